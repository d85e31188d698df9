package sglang

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Rules returns the rules of SGLang 0.5.20 to 0.5.23. Its page size is 1 unless the attention backend forces another.
func Rules(v rules.Version) rules.Rules {
	return rules.Rules{
		Release: "0.5.23", Oldest: rules.Version{0, 5, 20}, BlockSize: 1,
		Uncompared:    v != rules.Version{0, 5, 23}, // its servers were run: engine/sglang/testdata
		Dialect:       Dialect(),
		TakesExtraKey: true, NumbersRanksInBody: true,
		ZeroCachedAmbiguous: true, // without --enable-cache-report
		HasProcessor:        true,
		NewKeys:             func(o rules.KeysOptions) (rules.Keys, error) { return newKeys(v, o), nil },
		EventsIncludeMedia:  true, EventsIncludeAdapter: v.AtLeast(0, 5, 22),
		// UnifiedRadixCache reports its full component (0.5.23, unified_tree_core.py); a match also needs the window or state.
		EventsOfOneCache: true,
		AnswersAtEnd:     true, // cache_finished_req (0.5.23)
		Decoder: func(d rules.Decoding) kvevent.Decoder {
			return &Decoder{Secret: d.Secret, Keep: d.KeepTokens, Pad: d.Pad}
		},
		FindEvents:  findEvents,
		HasTokenize: true,
		Owner:       "sglang", Describe: describe, Adapters: 8, // default of --max-loras-per-batch: 0.5.23, srt/arg_groups/fields/lora.py
		Flags: rules.Flags{
			Events: `--kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`,
			Counts: "--enable-cache-report", Metrics: "--enable-metrics", Blocks: "--page-size 16",
			Order: "--enable-priority-scheduling --disable-priority-preemption, and without --enable-metrics",
		},
		Health: health, Load: load, Order: order(v),
	}
}

func findEvents(ctx context.Context, client *http.Client, addr, host string, ranks int) (list []rules.EventSource, err error) {
	info, err := FetchServerInfo(ctx, client, addr)
	if err != nil {
		return nil, err
	}
	ranks = cmp.Or(min(max(info.Ranks, 0), rules.MaxClaimedRanks), max(1, ranks))
	if !info.publishes(ranks) {
		return nil, fmt.Errorf("GET /server_info: kv_events has no ports for %d ranks", ranks)
	}
	return info.sources(host, ranks), nil
}

// PadRuleOf returns how a release derives pads.
func PadRuleOf(v rules.Version) PadRule {
	if v.AtLeast(0, 5, 23) {
		return PadFour
	}
	return PadOne
}
