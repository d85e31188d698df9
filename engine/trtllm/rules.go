package trtllm

import (
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Rules returns the rules of TensorRT-LLM (trtllm-serve) 1.0 to 1.3.
func Rules(v rules.Version) rules.Rules {
	return rules.Rules{
		Release:    "1.3.0",
		Uncompared: true, // no server of it could be run
		Dialect:    Dialect(),
		TakesPaths: true, TakesEmbeddingFiles: true,
		NewKeys:            func(o rules.KeysOptions) (rules.Keys, error) { return newKeys(v, o) },
		EventsIncludeMedia: v.AtLeast(1, 2, 0), EventsIncludeAdapter: true,
		// The V2 manager commits a batch's blocks when the batch is launched, and flushes them with the results of the previous one
		// (1.3, _executor_loop_overlap in pyexecutor/py_executor.py). The HTTP drain gets them after the prefill.
		StoredEarly:    v.AtLeast(1, 3, 0),
		EventsOverHTTP: true, PublishesLoad: true,
		AnswersAtEnd: true, // when 1.0 to 1.2 store them is not known: what comes before the last event is the prompt's in any case
		Decoder: func(d rules.Decoding) kvevent.Decoder {
			return &Decoder{Secret: d.Secret, Keep: d.KeepTokens, Standalone: d.Standalone}
		},
		Owner: "tensorrt_llm", Describe: describe,
		Flags: rules.Flags{
			Events:  "kv_cache_config: {enable_block_reuse: true, event_buffer_max_size: 16384} (in the file of --config)",
			Metrics: "return_perf_metrics: true, enable_iter_perf_stats: true (in the file of --config)",
		},
		Health: health, Load: load,
	}
}
