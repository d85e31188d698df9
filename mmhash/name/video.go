package name

import (
	"encoding/binary"
	"math"
	"slices"
)

// Video is what vLLM's loader says of a video, beside its file, when it hashes it (vLLM 0.31 on, media/video.py): which
// frames it took of how many.
type Video struct {
	Frames        int // of the file
	FPS, Duration float64
	Loader        string // as it calls itself: opencv, opencv_dynamic, jpeg_sequence
	Indices       []int  // of the frames taken
	All           bool   // they are all, and the model's own processor may sample again
	Pixels        int64  // of one frame
}

// readsVideo reports that the hash is over the file's bytes: it is over the frames where they are fewer bytes. Before
// 0.31 the forms were not checked against a running engine.
func (v *VLLM) readsVideo(it *Item) bool {
	return v.Generation >= H6 && it.Video != nil && 3*it.Video.Pixels*int64(len(it.Video.Indices)) >= it.Bytes
}

// video writes the pair of file and description.
func (w *writer) video(key string, it Item) {
	w.frame(key)
	w.b = append(w.b, tagList)
	w.length(2)
	w.b = append(w.b, tagLeaf)
	w.frame("video")
	w.file(it.Bytes)
	v := it.Video
	indices := Value{kind: kindList, list: make([]Value, len(v.Indices))}
	for i, n := range v.Indices {
		indices.list[i] = integer(int64(n))
	}
	w.value(object(Fields{{"total_num_frames", integer(int64(v.Frames))}, {"fps", real(v.FPS)}, {"duration", real(v.Duration)},
		{"video_backend", text(v.Loader)}, {"frames_indices", indices}, {"do_sample_frames", boolean(v.All)}}))
}

func real(f float64) Value {
	return Value{kind: kindFloat, raw: binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))}
}

func boolean(b bool) Value {
	v := Value{kind: kindBool, raw: []byte{0}}
	if b {
		v.raw[0] = 1
	}
	return v
}

// videoIO is how a request's options are laid over the server's: a number of frames unseats a rate, and the other way
// round.
func videoIO(merged, request Fields) Fields {
	_, frames := request.get("num_frames")
	_, rate := request.get("fps")
	drop := ""
	switch {
	case frames && !rate:
		drop = "fps"
	case rate && !frames:
		drop = "num_frames"
	}
	return slices.DeleteFunc(merged, func(f Field) bool { return f.Key == drop })
}

// VideoOptions are the media_io_kwargs in force for a request's videos: the loader's arguments. ok is false where one is no
// number.
func (v *VLLM) VideoOptions(request Fields) (options map[string]float64, ok bool) {
	options = map[string]float64{}
	for _, f := range v.mediaIO(Item{Modality: "video", MediaIO: request}) {
		switch {
		case f.Value.kind == kindInt:
			options[f.Key] = float64(int64(binary.LittleEndian.Uint64(f.Value.raw)))
		case f.Value.kind == kindFloat:
			options[f.Key] = math.Float64frombits(binary.LittleEndian.Uint64(f.Value.raw))
		default:
			return nil, false
		}
	}
	return options, true
}
