package vllm

import (
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Rules returns the rules of vLLM 0.23 to 0.33.
func Rules(v rules.Version) rules.Rules {
	since := func(minor int) bool { return v.AtLeast(0, minor, 0) }
	r := rules.Rules{
		Release: "0.32.0", BlockSize: 16, VLLMKeys: true,
		Oldest:             rules.Version{0, 23, 0},
		Uncompared:         !since(30) || since(34),
		Dialect:            Dialect(v),
		TakesUUID:          true,
		TakesSalt:          true,
		TakesSessionID:     since(30), // it uses the id for nothing else (read in 0.30.0, 0.31.0 and 0.32.0)
		RefusesLocal:       true,
		NewKeys:            func(o rules.KeysOptions) (rules.Keys, error) { return newKeys(v, o) },
		EventsIncludeMedia: true, EventsIncludeAdapter: true, // extra keys
		BlocksByGroup:   true,
		CountsCopies:    true, // its block pool reports each block
		Decoder:         func(d rules.Decoding) kvevent.Decoder { return &Decoder{Secret: d.Secret, Keep: d.KeepTokens} },
		ReportsSettings: true,
		Owner:           "vllm", Describe: describe,
		Flags: rules.Flags{
			Events: `--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`,
			Counts: "--enable-prompt-tokens-details", Order: "--scheduling-policy priority",
		},
		HasTokenize: true, TokenizesChats: true, TokenizesImages: true,
		Health: health, Load: load,
	}
	if since(30) {
		r.Order = rules.Order{Header: "x-vllm-priority", Assumed: rules.LowFirst, Ask: askOrder}
	}
	if since(31) {
		r.FindEvents = findEvents
	}
	return r
}

// generationOf returns the form of image hash that a release uses.
func generationOf(v rules.Version) Generation {
	for i, minor := range [...]int{31, 30, 27} {
		if v.AtLeast(0, minor, 0) {
			return H4 - Generation(i)
		}
	}
	return H1
}
