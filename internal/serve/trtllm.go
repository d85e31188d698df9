package serve

import (
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer/stream"
)

// decoderOf reads an engine's events as they come over ZeroMQ; keep for audit and learning.
func decoderOf(engine string, keep bool) stream.Decoder {
	switch engine {
	case "trtllm":
		return &trtllm.Decoder{Keep: keep}
	case "sglang":
		return &sglang.Decoder{Keep: keep}
	}
	return &vllm.Decoder{Keep: keep}
}

// countsCopies tells whether an engine reports each physical copy of a block, stored and removed: vLLM's block pool does.
// SGLang and TensorRT-LLM have a block once in their tree and may tell of it again.
func countsCopies(engine string) bool { return engine == "vllm" }

// drainOptions is the feed, but for its sink, of one rank of a server that is drained.
func drainOptions(d *trtllm.Drain, rank, blockSize int, keep bool) stream.Options {
	return stream.Options{Source: d.Source(), Decoder: &trtllm.Decoder{Rank: rank, BlockSize: blockSize, Keep: keep}, BlockSize: blockSize}
}
