package vision

import (
	"math"
	"slices"
	"strings"
)

// Videos as vLLM (since 0.31) reads them: a loader selects frames by the container's metadata, and the model's processor makes
// tokens of them. The class of the directory's video processor selects the loader (multimodal/video.py). Other engines' videos are
// not counted.

// File is a video as its container describes it.
type File struct {
	Frames int
	FPS    float64
	List   bool // separate pictures (data:video/jpeg), not a container
}

// Clip is the part of a video that the engine takes.
type Clip struct {
	Loader        string // by its own name
	Frames        int    // of the file
	FPS, Duration float64
	Indices       []int // of the frames taken, ascending
	All           bool  // Indices are all frames, and the model's processor may sample again
}

// maxFrames bounds the frames taken of one video. The loaders' own limits are below it unless a server's options raise them.
const maxFrames = 1 << 14

const (
	notSampled = "the engine's choice of frames is not known for this model"
	notOptions = "media_io_kwargs for videos beyond num_frames, fps, min_frames and max_frames"
)

// sampler selects frames of a file; options are the loader's arguments.
type sampler func(f File, options map[string]float64) []int

// loaders are vLLM's, by the class of the video processor.
var loaders = map[string]sampler{
	"Qwen2VLVideoProcessor":        sampleQwen2,
	"Qwen3VLVideoProcessor":        sampleQwen3,
	"LlavaOnevisionVideoProcessor": sampleEvenly,
	"":                             sampleEvenly,
}

// Sample returns which frames of a video the engine takes. options are the media_io_kwargs in force for videos. The error is an
// *UndecidableError.
func (m *Model) Sample(f File, options map[string]float64) (*Clip, error) {
	r := m.rule("video")
	if r == nil || r.undecidable != "" || r.sample == nil {
		return nil, undecidable("video", notSampled)
	}
	for key, v := range options {
		switch {
		case key == "num_frames", key == "fps", !f.List && (key == "min_frames" || key == "max_frames"):
		default:
			return nil, undecidable("video", notOptions)
		}
		if key != "fps" && v != math.Trunc(v) || math.Abs(v) > 1<<20 {
			return nil, undecidable("video", "%s %v", key, v)
		}
	}
	c := &Clip{Loader: "opencv", Frames: f.Frames, FPS: f.FPS}
	switch {
	case f.Frames < 1 || !f.List && !(f.FPS > 0):
		return nil, undecidable("video", "a video without a known number of frames")
	case f.List:
		c.Loader, c.FPS = "jpeg_sequence", option(options, "fps", 1)
		if n := int(option(options, "num_frames", 32)); n == 0 {
			return nil, refused(400, "num_frames 0")
		} else if n > 0 {
			c.Frames = min(c.Frames, n)
		}
		if !(c.FPS > 0) || c.Frames > maxFrames {
			return nil, undecidable("video", "frames at a rate of %v, %d of them", c.FPS, c.Frames)
		}
		c.Indices = make([]int, c.Frames)
		for i := range c.Indices {
			c.Indices[i] = i
		}
	default:
		c.Indices = r.sample(f, options)
		if len(c.Indices) == 0 || len(c.Indices) > maxFrames {
			return nil, undecidable("video", notSampled)
		}
		slices.Sort(c.Indices) // the decoder reads the file once and returns each frame once
		c.Indices = slices.Compact(c.Indices)
		c.All = len(c.Indices) == c.Frames
	}
	c.Duration = float64(c.Frames) / c.FPS
	return c, nil
}

func option(options map[string]float64, key string, otherwise float64) float64 {
	if v, ok := options[key]; ok {
		return v
	}
	return otherwise
}

// sampleEvenly takes num_frames spread over the file, or fps of each second if that is fewer.
func sampleEvenly(f File, options map[string]float64) []int {
	n := f.Frames
	if want := int(option(options, "num_frames", 32)); want > 0 {
		n = min(n, want)
	}
	if fps := option(options, "fps", -1); fps > 0 {
		n = min(n, int(math.Floor(float64(f.Frames)/f.FPS*fps)))
	}
	n = max(n, 1)
	if n > maxFrames {
		return nil
	}
	return spread(f.Frames, n, math.Trunc)
}

// spread is numpy.linspace(0, frames-1, n), rounded by round.
func spread(frames, n int, round func(float64) float64) []int {
	out := make([]int, n)
	if n > 1 {
		step := float64(frames-1) / float64(n-1)
		for i := range out {
			out[i] = int(round(float64(i) * step))
		}
		out[n-1] = frames - 1
	}
	return out
}

const (
	mostFrames = 768 // of Qwen's loaders
	maxFPS     = 30
)

// sampleQwen3 takes fps (2) of each second, 4 to 768 in all, spread over the file.
func sampleQwen3(f File, options map[string]float64) []int {
	return qwen3Frames(f, min(option(options, "fps", 2), maxFPS), int(option(options, "min_frames", 4)),
		min(int(option(options, "max_frames", mostFrames)), mostFrames))
}

func qwen3Frames(f File, fps float64, least, most int) []int {
	n := min(max(int(float64(f.Frames)/f.FPS*fps), least), most, f.Frames)
	if n < 1 {
		return nil
	}
	return spread(f.Frames, n, math.RoundToEven)
}

// sampleQwen2 takes the same number of frames, rounded to an even one, from the beginning on. Its indices come from torch.arange in
// float32, whose last bit depends on the vector width of the machine; if the widths differ in the result, the choice is unknown.
func sampleQwen2(f File, options map[string]float64) []int {
	total := float64(f.Frames)
	most := math.Floor(min(option(options, "max_frames", mostFrames), mostFrames, total)/2) * 2
	n := total / f.FPS * min(option(options, "fps", 2), maxFPS)
	n = min(max(n, option(options, "min_frames", 4)), most, total)
	n = math.Floor(n/2) * 2
	if n < 1 {
		return nil // the engine divides by it
	}
	step := total / n
	out := make([]int, int(math.Ceil(total/step)))
	for i := range out {
		out[i] = int(float32(step * float64(i)))
		for _, width := range [...]int{8, 16} {
			if base := i / width * width; base+width <= len(out) &&
				int(float32(float64(float32(step*float64(base)))+step*float64(i-base))) != out[i] {
				return nil
			}
		}
		out[i] = min(out[i], f.Frames-1)
	}
	return out
}

// clipKind is a count rule for videos before its settings are known, clipCounter after. It counts frames of w x h pixels.
type clipKind interface{ bindClip(s *settings) clipCounter }

type clipCounter func(w, h int, c *Clip) (grid, error)

// sampler returns the loader of a directory: by the class that its files name, or else by the default of transformers for the type.
func (s *settings) sampler(byType string) (sampler, bool) {
	class := byType
	for _, file := range []map[string]any{s.ownVideo, s.image} {
		if named, ok := file["video_processor_type"].(string); ok {
			class = strings.TrimSuffix(named, "Fast")
			break
		}
	}
	f, ok := loaders[class]
	return f, ok
}

// plainVideo fails if files or kwargs change what the processor does with frames in a way that is not implemented here.
func (s *settings) plainVideo(sampled bool) {
	for _, key := range []string{"fps", "num_frames", "do_sample_frames", "min_frames", "max_frames", "temporal_patch_size", "patch_size",
		"merge_size", "do_resize", "cap_pixels_per_frame", "max_video_tokens", "video_metadata"} {
		if s.kwVideo[key] != nil {
			s.fail("mm_processor_kwargs: %s for a video", key)
		}
	}
	if s.video["cap_pixels_per_frame"] == true || s.video["do_resize"] == false || !sampled && s.video["do_sample_frames"] == true {
		s.fail("a video processor with cap_pixels_per_frame, without do_resize or with do_sample_frames")
	}
}

// videoBounds returns a pixel bound of the video processor: kwargs first, a bare one before size.
func videoBounds(s *settings, edge, pixels string, bare bool, fallback string) int {
	v := value{"kwVideo." + pixels, "kwVideo.size." + edge}
	if bare {
		v = append(v, "video."+pixels)
	}
	return s.int(append(v, "video.size."+edge, fallback))
}

// pairFrames makes a token of each unit of two frames (Qwen). With timed, each pair is separate and preceded by its time, and the
// area of all frames together is bounded.
type pairFrames struct {
	timed bool
	patch string // class default
}

func (k pairFrames) bindClip(s *settings) clipCounter {
	s.plainVideo(k.timed)
	f := s.small(value{"video.patch_size", k.patch}, 1, 1<<16) * s.small(value{"video.merge_size", "=2"}, 1, 1<<10)
	if s.small(value{"video.temporal_patch_size", "=2"}, 1, 16) != 2 {
		s.fail("video.temporal_patch_size: want 2")
	}
	if !k.timed {
		lo, hi := videoBounds(s, "shortest_edge", "min_pixels", true, "=100352"), videoBounds(s, "longest_edge", "max_pixels", true, "=602112")
		return func(w, h int, c *Clip) (grid, error) {
			cols, rows, err := smartResize{}.resize(w, h, f, lo, hi, 1, 1)
			return grid{main: (len(c.Indices) + 1) / 2 * rows * cols}, err
		}
	}
	lo, hi := videoBounds(s, "shortest_edge", "min_pixels", false, "=131072"), videoBounds(s, "longest_edge", "max_pixels", false, "=786432")
	fps := s.float(value{"video.fps", "=2"})
	least, most := s.small(value{"video.min_frames", "=4"}, 1, 1<<20), s.small(value{"video.max_frames", "=768"}, 1, 1<<20)
	return func(w, h int, c *Clip) (grid, error) {
		shown := c.Indices
		if c.All { // vLLM lets the processor sample once more, by its own settings
			shown = qwen3Frames(File{Frames: c.Frames, FPS: c.FPS}, fps, least, most)
		}
		n := len(shown)
		if n < 2 {
			return grid{}, undecidable("video", "a video of one frame")
		}
		cols, rows, err := smartResize{grow: growBoth}.resize(w, h, f, lo, hi, n, round(float64(n)/2)*2)
		return grid{rows: (n + 1) / 2, cols: 1, tile: rows * cols, frames: shown}, err
	}
}

// timedPairs writes each pair's time, the mean of its frames', and its tokens between the usual brackets.
func timedPairs(b *builder, g grid) {
	frames, fps := g.frames, b.clip.FPS
	for i := range g.rows {
		first, last := frames[2*i], frames[min(2*i+1, len(frames)-1)]
		b.seconds((float64(first)/fps + float64(last)/fps) / 2)
		b.run(g.tile)
		b.text("<|vision_end|>")
	}
}

// tiledFrames makes one tile of each frame (InternVL). It applies only to language models that have a token for it.
type tiledFrames struct {
	size value
	per  perTile
	llms []string
}

func (k tiledFrames) bindClip(s *settings) clipCounter {
	typ := s.text(value{"config.llm_config.model_type", "config.text_config.model_type"})
	if !slices.Contains(k.llms, typ) {
		s.fail("no videos with a language model of type %q", typ)
	}
	per := k.per.read(s, s.small(k.size, 1, 1<<16))
	return func(_, _ int, c *Clip) (grid, error) { return grid{rows: len(c.Indices), cols: 1, tile: per}, nil }
}

// pooledFrames is a pooled square for each frame and one token after the last (LLaVA-OneVision).
type pooledFrames struct{ size, patch, stride value }

func (k pooledFrames) bindClip(s *settings) clipCounter {
	stride := s.small(k.stride, 1, 64)
	side := (s.small(k.size, 1, 1<<16)/s.small(k.patch, 1, 1<<16) + stride - 1) / stride
	return func(_, _ int, c *Clip) (grid, error) { return grid{main: side*side*len(c.Indices) + 1}, nil }
}
