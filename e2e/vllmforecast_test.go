package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// TestRealVLLMForecast plays the same prompts to two real vLLM with caches of three sizes. What is forecast at one size for another is what
// vLLM has there, for each pair; and the meter's sums are the engines' own counters, while they evict.
func TestRealVLLMForecast(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_VLLM")
	if bin == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	sizes := []int{200, 300, 450} // blocks of a worker
	forks, version, dir := startForks(t, bin), versionOf(t, bin), t.TempDir()
	h := &hybrid{config: "llama"} // one layer, which sees all tokens
	h.write(t, filepath.Join(dir, h.config))
	type played struct {
		rate     float64
		forecast gjson.Result
	}
	play := func(t *testing.T, blocks int) (p played) {
		var workers []any
		var addrs []string
		var servers []*forked
		for i := range 2 {
			s := forks.start(t, dir, "serve", h.config, "--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--block-size",
				fmt.Sprint(hybridBlock), "--max-model-len", fmt.Sprint(hybridLength), "--max-num-batched-tokens", "512", "--max-num-seqs", "8",
				"--num-gpu-blocks-override", fmt.Sprint(blocks), "--enable-prefix-caching", "--enable-prompt-tokens-details")
			servers, addrs = append(servers, s), append(addrs, s.addr)
			workers = append(workers, map[string]any{"name": fmt.Sprint("worker-", i+1), "addr": s.addr, "events": map[string]any{"auto": true}})
		}
		for _, s := range servers {
			if err := s.healthy(); err != nil {
				t.Fatal(err)
			}
		}
		g := startGateway(t, map[string]any{"log_level": "warn", "workers": workers, "fixed": unprobed(),
			"models": []any{map[string]any{"name": h.config, "dir": filepath.Join(dir, h.config), "engine_version": version,
				"block_size": hybridBlock, "max_model_len": hybridLength}}},
			func(o *envoy.Options) { o.TokenUsage, o.Workers = true, addrs })
		g.ready(2)
		r := rand.New(rand.NewPCG(7, 7))
		documents := make([]string, 24)
		for i := range documents {
			documents[i] = words(r, 100+r.IntN(100))
		}
		ask := func(text string) {
			if status, text := g.ask([]any{user(text)}, map[string]any{"model": h.config, "max_tokens": 1}, nil); status != 200 {
				t.Fatalf("status %d: %.300s", status, text)
			}
		}
		// of all workers, by their own metrics
		counted := func(name string) (sum float64) {
			for _, addr := range addrs {
				raw, err := lab.Get("http://" + addr + "/metrics")
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(string(raw)) {
					if strings.HasPrefix(line, name+"{") {
						n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
						if err != nil {
							t.Fatal(err)
						}
						sum += n
					}
				}
			}
			return sum
		}
		hits, queries := counted("vllm:prefix_cache_hits_total"), counted("vllm:prefix_cache_queries_total")
		for range 3 {
			for _, text := range documents {
				ask(text) // so that the caches are full, and their sizes known
			}
		}
		for range 240 {
			ask(documents[min(r.IntN(len(documents)), r.IntN(len(documents)))] + words(r, 10))
		}
		hits, queries = counted("vllm:prefix_cache_hits_total")-hits, counted("vllm:prefix_cache_queries_total")-queries
		var prompt, cached, uncached float64
		sums := func() bool {
			report := gjson.Parse(g.page("/report"))
			prompt, uncached = report.Get("accounted_tokens").Float(), 0
			report.Get("uncached").ForEach(func(_, n gjson.Result) bool { uncached += n.Float(); return true })
			cached = prompt - uncached
			return math.Abs(prompt-queries) <= 0.005*queries
		}
		eventually(t, "all requests are accounted", sums)
		if math.Abs(cached-hits) > 0.005*hits {
			t.Errorf("%d blocks: the causes leave %.0f tokens cached, want the %.0f that vLLM counts", blocks, cached, hits)
		}
		if evicted := gjson.Get(g.page("/report"), "uncached.evicted").Int(); evicted == 0 && blocks == sizes[0] {
			t.Errorf("%d blocks: got no evicted token, want some", blocks)
		}
		p.rate, p.forecast = hits/queries, gjson.Get(g.page("/forecast"), "0.hour")
		t.Logf("%d blocks: %.0f of %.0f tokens cached by vLLM, %.0f and %.0f by the meter; forecast %s", blocks, hits, queries, cached, prompt,
			p.forecast.Get("today").Raw)
		return p
	}
	plays := make([]played, len(sizes))
	for i, blocks := range sizes {
		t.Run(fmt.Sprint(blocks), func(t *testing.T) { plays[i] = play(t, blocks) })
	}
	if t.Failed() {
		return
	}
	for i, from := range sizes {
		for k, to := range sizes {
			if i >= k { // a pair is forecast from its smaller cache, whose events show what evicts
				continue
			}
			told := curveAt(plays[i].forecast, float64(to)/float64(from))
			fmt.Printf("e2e-vllm: %d blocks have %.1f %%; for %d blocks %.1f %% is forecast and %.1f %% come\n", from, 100*plays[i].rate, to,
				100*told, 100*plays[k].rate)
			if math.Abs(told-plays[k].rate) > 0.02 {
				t.Errorf("%d blocks: %.3f is forecast for %d, want within 0.02 of the %.3f that come", from, told, to, plays[k].rate)
			}
		}
	}
}

// curveAt returns the hit rate that a forecast's curve has at a size, between its points.
func curveAt(forecast gjson.Result, size float64) (rate float64) {
	x, y := 0.0, 0.0
	forecast.Get("curve").ForEach(func(_, p gjson.Result) bool {
		next, value := p.Get("size").Float(), p.Get("hit_rate").Float()
		if next >= size {
			rate = value
			if next > size && x > 0 {
				rate = y + (value-y)*math.Log(size/x)/math.Log(next/x)
			}
			return false
		}
		x, y = next, value
		return true
	})
	return rate
}
