package trtllm

import (
	"github.com/sightline-router/sightline/engine/rules"
)

// Rules are TensorRT-LLM's (trtllm-serve), from 1.0 to 1.3.
func Rules(v rules.Version) rules.Rules {
	return rules.Rules{
		Release:    "1.3.0",
		Dialect:    Dialect(),
		TakesPaths: true, TakesEmbeddingFiles: true,
		Names:           rules.ByPixels,
		EventsTellMedia: v.AtLeast(1, 2, 0), EventsTellSalt: v.AtLeast(1, 2, 0), EventsTellAdapter: true,
		EventsOverHTTP: true, TellsLoad: true,
		Decoder: func(d rules.Decoding) rules.Decoder { return &Decoder{Keep: d.Keep, Standalone: d.Standalone} },
	}
}
