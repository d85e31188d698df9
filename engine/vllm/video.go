package vllm

import (
	"slices"

	"github.com/sightline-router/sightline/mmhash/name"
)

// readsVideo reports whether the hash is over the file's bytes. It is over the frames if those are fewer bytes. Before 0.31 the
// forms were not checked against a running engine.
func (v *Names) readsVideo(it *name.Item) bool {
	return v.Generation >= H6 && it.Video != nil && 3*it.Video.Pixels*int64(len(it.Video.Indices)) >= it.Bytes
}

// video writes the pair of file and description (vLLM since 0.31, media/video.py).
func (w *writer) video(key string, it name.Item) {
	w.frame(key)
	w.b = append(w.b, tagList)
	w.length(2)
	w.b = append(w.b, tagLeaf)
	w.frame("video")
	w.file(it.Bytes)
	v := it.Video
	w.value(name.ObjectOf(name.Fields{
		{Key: "total_num_frames", Value: name.IntOf(v.Frames)},
		{Key: "fps", Value: name.FloatOf(v.FPS)},
		{Key: "duration", Value: name.FloatOf(v.Duration)},
		{Key: "video_backend", Value: name.TextOf(v.Loader)},
		{Key: "frames_indices", Value: name.IntsOf(v.Indices)},
		{Key: "do_sample_frames", Value: name.BoolOf(v.All)},
	}))
}

// videoIO merges a request's options into the server's. A number of frames removes a rate, and the other way round.
func videoIO(merged, request name.Fields) name.Fields {
	_, frames := request.Get("num_frames")
	_, rate := request.Get("fps")
	drop := ""
	switch {
	case frames && !rate:
		drop = "fps"
	case rate && !frames:
		drop = "num_frames"
	}
	return slices.DeleteFunc(merged, func(f name.Field) bool { return f.Key == drop })
}

// VideoOptions returns the media_io_kwargs in force for a request's videos, the loader's arguments. ok is false if one is no
// number.
func (v *Names) VideoOptions(request name.Fields) (options map[string]float64, ok bool) {
	options = map[string]float64{}
	for _, f := range v.mediaIO(name.Item{Modality: "video", MediaIO: request}) {
		options[f.Key], ok = f.Value.Number()
		if !ok {
			return nil, false
		}
	}
	return options, true
}
