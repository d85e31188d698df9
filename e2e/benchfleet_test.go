package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// What the choice spares real engines: `make bench-fleet`. One load of conversations that begin with an image and show
// another later, by several clients at once, through a real Envoy before the same workers: in turns with its own round robin,
// its own least request, and Sightline. Each turn has its own conversations, so that no way finds what another has left.
//
// It is judged by what the engines count, in tokens: prompts (queries of the prefix cache), of them found in the cache
// (hits), of them computed. Times to the first token are printed too; where workers, Envoy and clients share a few
// cores, they show how these get in each other's way more than what is spared.

// benchClients talk at once, each of benchTalks conversations a turn has benchTurns answers. SIGHTLINE_BENCH_SCALE multiplies clients
// and conversations, for workers with GPUs.
var (
	benchScale   = max(1, number(os.Getenv("SIGHTLINE_BENCH_SCALE")))
	benchClients = 6 * benchScale
	benchTalks   = 12 * benchScale
)

const (
	benchTurns  = 4
	benchRounds = 2
)

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// fleetWay is one way through Envoy, and what came of it.
type fleetWay struct {
	name, url        string
	mu               sync.Mutex
	prompt, cached   int // as the answers' usage tells
	queries, hits    float64
	first            []time.Duration
	failed, requests int
}

func TestBenchFleet(t *testing.T) {
	var addrs []string
	var keys map[string]any
	name := lab.ModelName
	switch bin := os.Getenv("SIGHTLINE_VLLM"); {
	case os.Getenv("SIGHTLINE_BENCH_WORKERS") != "":
		addrs = strings.Split(os.Getenv("SIGHTLINE_BENCH_WORKERS"), ",")
		name, keys = ownFleet(t, addrs)
	case os.Getenv("SIGHTLINE_BENCH_FLEET") == "":
		t.Skip("takes minutes, and real engines: make bench-fleet")
	default:
		var fleet []*engineProcess
		dir := t.TempDir()
		for i := range 2 {
			var command func(*engineProcess) *exec.Cmd
			e, version := fmt.Sprint("worker-", i+1), "0.32.0"
			if bin != "" {
				if i == 0 {
					tinyModel(t, dir)
				}
				command, version = vllmCommand(bin, dir, window), versionOf(t, bin)
			} else {
				command = simCommand(t, 1)
			}
			fleet = append(fleet, startEngine(t, e, version, command))
		}
		for _, e := range fleet {
			e.healthy(t)
		}
		addrs = addrsOf(fleet)
		if workers, _ := workersOf(fleet); bin != "" {
			name, keys = tinyName, realConfig(dir+"/"+tinyName, fleet, "computed")
		} else {
			keys = map[string]any{"workers": workers, "models": []any{map[string]any{"name": name, "dir": absolute(t, modelDir)}}}
		}
		fmt.Printf("bench-fleet: 2 workers, %s %s\n", map[bool]string{true: "vLLM", false: "simulated vLLM"}[bin != ""], fleet[0].version)
	}
	keys["log_level"] = "warn"
	g := startGateway(t, keys, func(o *envoy.Options) { o.Workers = addrs })
	g.ready(len(addrs))
	ways := []*fleetWay{{name: "round robin", url: plainEnvoy(t, addrs, "ROUND_ROBIN")},
		{name: "least request", url: plainEnvoy(t, addrs, "LEAST_REQUEST")}, {name: "Sightline", url: g.url}}
	eventually(t, "Sightline decides", func() bool { // and the engines have met the template
		for i, w := range ways {
			w.talk(t, name, 1000+i, 1)
		}
		return gjson.Get(g.page("/decisions?n=1"), "0.worker").Str != ""
	})
	for _, w := range ways {
		w.first, w.prompt, w.cached, w.requests, w.failed = nil, 0, 0, 0, 0
	}
	for round := range benchRounds {
		for i := range ways {
			at := (round + i) % len(ways)
			w := ways[at]
			queries, hits := cacheCounters(t, addrs)
			w.play(t, name, (round*len(ways)+at)*benchTalks)
			q, h := cacheCounters(t, addrs)
			w.queries, w.hits = w.queries+q-queries, w.hits+h-hits
		}
	}
	fmt.Printf("bench-fleet: %d requests a way: %d conversations of %d turns, %d at once, %d rounds; tokens\n",
		ways[0].requests, benchTalks, benchTurns, benchClients, benchRounds)
	fmt.Printf("bench-fleet: %-14s %9s %9s %7s %10s %22s\n", "", "prompts", "cached", "hits", "computed", "first token mean / p99")
	for _, w := range ways {
		how := "by the engines' counters"
		if w.queries == 0 { // an engine that does not count so: by its answers
			how, w.queries, w.hits = "by the answers' usage", float64(w.prompt), float64(w.cached)
		}
		var sum time.Duration
		for _, d := range w.first {
			sum += d
		}
		fmt.Printf("bench-fleet: %-14s %9.0f %9.0f %5.1f %% %10.0f %9.0f / %.0f ms   %s; usage: %d of %d cached\n", w.name,
			w.queries, w.hits, 100*w.hits/max(1, w.queries),
			w.queries-w.hits, ms(sum)/float64(max(1, len(w.first))), ms(quantile(w.first, .99)), how, w.cached, w.prompt)
		if w.failed > 0 || w.requests != ways[0].requests {
			t.Errorf("%s: got %d of %d requests failed, want 0 of %d", w.name, w.failed, w.requests, ways[0].requests)
		}
	}
	fmt.Println("bench-fleet: judged by tokens; with all on a few cores, times measure contention")
	if ours := ways[2]; ours.hits/ours.queries <= max(ways[0].hits/ways[0].queries, ways[1].hits/ways[1].queries) {
		t.Errorf("Sightline's hit rate is not the best: got %v, want more than %v",
			ours.hits/ours.queries, max(ways[0].hits/ways[0].queries, ways[1].hits/ways[1].queries))
	}
}

// ownFleet is the configuration for somebody's own workers, which say themselves what they serve; MODEL_DIR is its directory.
func ownFleet(t *testing.T, addrs []string) (name string, keys map[string]any) {
	t.Helper()
	dir := os.Getenv("MODEL_DIR")
	if dir == "" {
		t.Fatalf("WORKERS needs MODEL_DIR, the model's directory (tokenizer, template, configs): got %q, want some", dir)
	}
	models, err := lab.Get("http://" + addrs[0] + "/v1/models")
	if err != nil {
		t.Fatalf("%s: what does it serve: got %v, want no error", addrs[0], err)
	}
	first := gjson.GetBytes(models, "data.0")
	name = first.Get("id").Str
	model := map[string]any{"name": name, "dir": absolute(t, dir), "engine": cmp.Or(os.Getenv("ENGINE"), "vllm")}
	if version, err := lab.Get("http://" + addrs[0] + "/version"); err == nil {
		model["engine_version"] = gjson.GetBytes(version, "version").Str
	}
	if root := first.Get("root").Str; root != "" {
		model["engine_model"] = root
	}
	var workers []any
	for _, addr := range addrs {
		workers = append(workers, map[string]any{"addr": addr, "events": map[string]any{"auto": true}})
	}
	fmt.Printf("bench-fleet: %d workers of %s\n", len(addrs), name)
	return name, map[string]any{"workers": workers, "models": []any{model}}
}

// plainEnvoy is the same Envoy with Sightline away, and with a policy of its own.
func plainEnvoy(t *testing.T, addrs []string, policy string) (url string) {
	t.Helper()
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.Workers = freeAddr(t), freeAddr(t), freeAddr(t), addrs
	text, err := envoy.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(string(text), "lb_policy: ROUND_ROBIN", "lb_policy: "+policy)
	if !strings.Contains(edited, "lb_policy: "+policy) {
		t.Fatal("the printed configuration has no cluster with a policy of its own")
	}
	var log lockedBuffer
	proxy, err := envoytest.Run(t.Context(), binary(t), []byte(edited), o.Admin, &log, "--concurrency", "2")
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Cleanup(proxy.Stop)
	return "http://" + o.Listen
}

// cacheCounters sums what vLLM's workers count of their prefix caches, in tokens; 0 of others.
func cacheCounters(t *testing.T, addrs []string) (queries, hits float64) {
	t.Helper()
	for _, addr := range addrs {
		text, _ := lab.Get("http://" + addr + "/metrics")
		for line := range strings.Lines(string(text)) {
			var v float64
			fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
			switch {
			case strings.HasPrefix(line, "vllm:prefix_cache_queries_total"):
				queries += v
			case strings.HasPrefix(line, "vllm:prefix_cache_hits_total"):
				hits += v
			}
		}
	}
	return queries, hits
}

// play has all clients talk until all conversations from seed on are over.
func (w *fleetWay) play(t *testing.T, model string, seed int) {
	next := make(chan int, benchTalks)
	for i := range benchTalks {
		next <- seed + i
	}
	close(next)
	var clients sync.WaitGroup
	for range benchClients {
		clients.Go(func() {
			for seed := range next {
				w.talk(t, model, seed, benchTurns)
			}
		})
	}
	clients.Wait()
}

// talk holds one conversation: a system prompt that all share, an image in the first turn and in the third.
func (w *fleetWay) talk(t *testing.T, model string, seed, turns int) {
	messages := []any{map[string]any{"role": "system",
		"content": strings.Repeat("You describe pictures to people who cannot see them, and never guess. ", 6)}}
	for turn := range turns {
		text := strings.Repeat(fmt.Sprintf("Turn %d of conversation %d: what is to be seen, and what is not? ", turn, seed), 6)
		if turn%2 == 0 {
			messages = append(messages, user(text, dataURL(photo(uint64(3000+10*seed+turn)))))
		} else {
			messages = append(messages, user(text))
		}
		answer, err := w.ask(model, messages)
		if err != nil {
			t.Log(w.name, err)
			w.mu.Lock()
			w.failed++
			w.mu.Unlock()
		}
		messages = append(messages, map[string]any{"role": "assistant", "content": answer})
	}
}

// ask sends one request, streamed, and counts.
func (w *fleetWay) ask(model string, messages []any) (answer string, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "messages": messages, "max_tokens": 16, "temperature": 0,
		"stream": true, "stream_options": map[string]bool{"include_usage": true}})
	if err != nil {
		return "", err
	}
	began, first := time.Now(), time.Duration(0)
	resp, err := http.Post(w.url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var usage gjson.Result
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: {")
		if !ok {
			continue
		}
		if first == 0 { // not with the headers, which come before the prefill
			first = time.Since(began)
		}
		chunk := gjson.Parse("{" + data)
		answer += chunk.Get("choices.0.delta.content").Str
		if u := chunk.Get("usage"); u.IsObject() {
			usage = u
		}
	}
	if err := lines.Err(); err != nil || resp.StatusCode != http.StatusOK || !usage.Exists() {
		return answer, fmt.Errorf("status %d, %v, usage %s", resp.StatusCode, err, usage.Raw)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests++
	w.first = append(w.first, first)
	w.prompt += int(usage.Get("prompt_tokens").Int())
	w.cached += int(usage.Get("prompt_tokens_details.cached_tokens").Int())
	return answer, nil
}
