package vision

import (
	"errors"
	"slices"
	"testing"
)

// TestSamplers: indices as computed by vLLM 0.32's compute_frames_index_to_sample, followed by OpenCV's single pass over the file.
func TestSamplers(t *testing.T) {
	for name, c := range map[string]struct {
		by      sampler
		file    File
		options map[string]float64
		want    []int
	}{
		"qwen2":             {sampleQwen2, File{Frames: 8, FPS: 4}, nil, []int{0, 2, 4, 6}},
		"qwen2 at least 4":  {sampleQwen2, File{Frames: 30, FPS: 30}, nil, []int{0, 7, 15, 22}},
		"qwen2 made even":   {sampleQwen2, File{Frames: 75, FPS: 30}, nil, []int{0, 18, 37, 56}},
		"qwen2 of 5 frames": {sampleQwen2, File{Frames: 5, FPS: 1}, nil, []int{0, 1, 2, 3}},
		"qwen2 fps 1":       {sampleQwen2, File{Frames: 60, FPS: 10}, map[string]float64{"fps": 1}, []int{0, 10, 20, 30, 40, 50}},
		"qwen2 of 1 frame":  {sampleQwen2, File{Frames: 1, FPS: 10}, nil, nil},
		"qwen3":             {sampleQwen3, File{Frames: 8, FPS: 4}, nil, []int{0, 2, 5, 7}},
		"qwen3 at most 3":   {sampleQwen3, File{Frames: 300, FPS: 30}, map[string]float64{"max_frames": 3}, []int{0, 150, 299}},
		"qwen3 of 1 frame":  {sampleQwen3, File{Frames: 1, FPS: 10}, nil, []int{0}},
		"evenly":            {sampleEvenly, File{Frames: 100, FPS: 25}, map[string]float64{"num_frames": 4}, []int{0, 33, 66, 99}},
		"evenly all":        {sampleEvenly, File{Frames: 3, FPS: 25}, nil, []int{0, 1, 2}},
		"evenly fps":        {sampleEvenly, File{Frames: 100, FPS: 25}, map[string]float64{"fps": 1}, []int{0, 33, 66, 99}},
		"evenly one":        {sampleEvenly, File{Frames: 10, FPS: 25}, map[string]float64{"fps": 1}, []int{0}},
	} {
		if got := c.by(c.file, c.options); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for _, c := range []struct{ frames, want int }{{100_000, 768}, {900, 60}} {
		for name, by := range map[string]sampler{"qwen2": sampleQwen2, "qwen3": sampleQwen3} {
			if got := by(File{Frames: c.frames, FPS: 30}, nil); len(got) != c.want && len(got) != c.want+1 {
				t.Errorf("%s of %d frames: %d, want %d", name, c.frames, len(got), c.want)
			}
		}
	}
}

func qwen3(t *testing.T) *Model {
	t.Helper()
	m, err := Load(dir(obj{
		"config.json":              obj{"model_type": "qwen3_vl"},
		"preprocessor_config.json": obj{"patch_size": 16, "merge_size": 2, "size": obj{"shortest_edge": 65536, "longest_edge": 16777216}},
		"video_preprocessor_config.json": obj{"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 16,
			"size": obj{"shortest_edge": 4096, "longest_edge": 25165824}},
	}), newStub("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestVideoOfQwen3: the times of the pairs, and tokens for each.
func TestVideoOfQwen3(t *testing.T) {
	m := qwen3(t)
	clip, err := m.Sample(File{Frames: 8, FPS: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stub := m.tok
	pad, _ := stub.ID("<|video_pad|>")
	prompt := stub.EncodeText(nil, "A<|vision_start|><|video_pad|><|vision_end|>B")
	got, spans, err := m.Expand(nil, prompt, []Media{{Modality: "video", Width: 112, Height: 84, Clip: clip}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := stub.EncodeText(nil, "A<|vision_start|><0.2 seconds><|vision_start|>")
	want = append(appendRun(want, pad, 12), stub.EncodeText(nil, "<|vision_end|><1.5 seconds><|vision_start|>")...)
	want = append(appendRun(want, pad, 12), stub.EncodeText(nil, "<|vision_end|><|vision_end|>B")...)
	if !slices.Equal(got, want) {
		t.Errorf("have %q, want %q", stub.DecodeText(got), stub.DecodeText(want))
	}
	if len(spans) != 1 || spans[0].Length != len(want)-len(prompt)+1 {
		t.Errorf("span %+v of %d tokens", spans, len(want))
	}
	if _, total, err := m.Count(Media{Modality: "video", Width: 112, Height: 84, Clip: clip}, nil); err != nil || total != spans[0].Length {
		t.Errorf("counted %d %v, want %d", total, err, spans[0].Length)
	}
}

// TestVideoUnknown: cases that the rule does not cover are not guessed.
func TestVideoUnknown(t *testing.T) {
	m := qwen3(t)
	clip, _ := m.Sample(File{Frames: 8, FPS: 4}, nil)
	var open *UndecidableError
	for name, kw := range map[string]Kwargs{"fps": {"fps": 1.0}, "scoped": {"videos_kwargs": map[string]any{"do_sample_frames": false}}} {
		if _, _, err := m.Count(Media{Modality: "video", Width: 112, Height: 84, Clip: clip}, kw); !errors.As(err, &open) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := m.Count(Media{Modality: "video", Width: 112, Height: 84, Clip: clip},
		Kwargs{"images_kwargs": map[string]any{"max_pixels": 1.0e6}}); err != nil {
		t.Errorf("images_kwargs: %v", err)
	}
	if _, _, err := m.Count(Media{Modality: "video", Width: 112, Height: 84}, nil); !errors.As(err, &open) {
		t.Errorf("no clip: %v", err)
	}
	if _, err := m.Sample(File{Frames: 8, FPS: 4}, map[string]float64{"frame_recovery": 1}); !errors.As(err, &open) {
		t.Errorf("options: %v", err)
	}
	if _, err := m.Sample(File{FPS: 4}, nil); !errors.As(err, &open) {
		t.Errorf("no frames: %v", err)
	}
}
