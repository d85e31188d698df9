package engine

import (
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/header"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/prompt/vision"
)

// sample finds out which frames of a video the engine will take: they decide both its tokens and its name. vLLM before
// 0.31 was not checked, other engines count otherwise; then the prompt is exact up to the video. The error is a *Refused.
func (m *Model) sample(md *Medium, item *name.Item) error {
	if md.Modality != "video" || !md.Facts.IsVideo() || m.names.vllm == nil || !m.rules.SamplesVideos {
		return nil
	}
	pixels := int64(md.Facts.Width) * int64(md.Facts.Height)
	if pixels > header.MaxPixels {
		return &Refused{Status: 400, Reason: "video of more pixels than the engine decodes"}
	}
	options, ok := m.names.vllm.VideoOptions(item.MediaIO)
	if !ok {
		return nil
	}
	md.clip = m.prompt.Sample(vision.File{Frames: md.Facts.Frames, FPS: md.Facts.FPS, List: md.Facts.Format == mmhash.FrameList}, options)
	if c := md.clip; c != nil {
		item.Video = &name.Video{Frames: c.Frames, FPS: c.FPS, Duration: c.Duration, Loader: c.Loader, Indices: c.Indices,
			All: c.All, Pixels: pixels}
	}
	return nil
}
