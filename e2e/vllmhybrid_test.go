package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// hybrid is a model with several KV cache groups, or one that drafts, as a real vLLM serves it with random weights. Its config.json is
// in vllm/hybrids.json.
type hybrid struct {
	name, config string
	block        int    // tokens of a block of the layers that see all tokens; 0: as --block-size says
	blocks       int    // of the cache, so few that blocks are evicted
	drafts       string // --speculative-config
	plain        bool   // vLLM does not read the chat template, so requests are completions
	upper        bool   // no layer sees all tokens: the prediction is an upper bound
	withholds    bool   // vLLM withholds the last block found, which is learned from three answers
	fails        string // why the CPU build cannot run it: the error that is expected
}

const (
	hybridBlock  = 16
	hybridLength = 1024 // tokens of a prompt and its answer
)

var hybrids = []hybrid{
	{name: "Gemma 3", config: "gemma3", blocks: 300},
	{name: "Gemma 4", config: "gemma4", block: 32, blocks: 300},
	{name: "GPT-OSS", config: "gpt_oss", blocks: 160, plain: true},
	{name: "Qwen3-Next", config: "qwen3_next", block: 48, blocks: 120},
	{name: "LFM2", config: "lfm2", blocks: 160},
	{name: "Llama 4", config: "llama4", blocks: 300},
	{name: "Mistral with windows alone", config: "mistral", blocks: 100, upper: true},
	{name: "Llama with EAGLE", config: "llama", blocks: 100, withholds: true,
		drafts: `{"method":"eagle","model":"eagle","num_speculative_tokens":2}`},
	{name: "Gemma 3 with ngrams", config: "gemma3", blocks: 300,
		drafts: `{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4}`},
	{name: "Qwen3-Next with MTP", config: "qwen3_next", block: 48, blocks: 120, withholds: true,
		fails: "'function' object is not subscriptable", drafts: `{"method":"mtp","num_speculative_tokens":1}`},
	{name: "Granite 4 with Mamba 2", config: "granite", block: 272, blocks: 60, fails: "IndexError"},
}

// vllmForks starts servers of vLLM from one process that has imported it (vllm/fork.py).
type vllmForks struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

func startForks(t *testing.T, bin string) *vllmForks {
	t.Helper()
	c := exec.Command(filepath.Join(bin, "bin", "python"), "vllm/fork.py")
	c.Env = append(os.Environ(), "PATH="+filepath.Join(bin, "bin")+":"+os.Getenv("PATH"), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1",
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "VLLM_HOST_IP=127.0.0.1")
	log := &lockedBuffer{}
	c.Stderr = log
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	f := &vllmForks{in: in, out: bufio.NewReader(out)}
	for line := ""; line != "ready\n"; {
		line, err = f.out.ReadString('\n')
		if err != nil {
			t.Fatalf("vllm/fork.py: %v\n%s", err, log.String())
		}
	}
	return f
}

// forked is a server of vLLM. It is stopped with the test.
type forked struct {
	addr string
	pid  int
	log  string
}

// start starts a server in dir, which holds its models.
func (f *vllmForks) start(t *testing.T, dir string, args ...string) *forked {
	t.Helper()
	s := &forked{addr: freeAddr(t), log: filepath.Join(t.TempDir(), "vllm.log")}
	port := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
	args = append(args, "--host", "127.0.0.1", "--port", port(s.addr), "--kv-events-config",
		fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s"}`,
			port(freeAddr(t)), port(freeAddr(t))))
	line, err := json.Marshal(map[string]any{"dir": dir, "log": s.log, "args": args})
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := fmt.Fprintf(f.in, "%s\n", line); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(f.out, &s.pid); err != nil || s.pid <= 1 {
		t.Fatalf("vllm/fork.py gives no process id: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-s.pid, syscall.SIGKILL)
		if t.Failed() {
			text, _ := os.ReadFile(s.log)
			t.Logf("vLLM:\n%s", text[max(0, len(text)-3000):])
		}
	})
	return s
}

// healthy waits for the server; if it ends, the error is the first that it logged.
func (s *forked) healthy() error {
	for end := time.Now().Add(engineStart); ; time.Sleep(100 * time.Millisecond) {
		if _, err := lab.Get("http://" + s.addr + "/health"); err == nil {
			return nil
		}
		if syscall.Kill(s.pid, 0) != nil {
			return fmt.Errorf("has ended: %s", s.firstError())
		}
		if time.Now().After(end) {
			return fmt.Errorf("not up within %v", engineStart)
		}
	}
}

// firstError returns the first exception of Python in the log: those after it are of processes that saw the first one end.
func (s *forked) firstError() string {
	text, _ := os.ReadFile(s.log)
	for line := range strings.Lines(string(text)) {
		if at := strings.Index(line, "Error: "); at >= 0 && !strings.Contains(line, " WARNING ") {
			return strings.TrimSpace(line[strings.LastIndexByte(line[:at], ' ')+1:])
		}
	}
	return "no exception in its log"
}

// TestRealVLLMHybrids sends conversations with shared beginnings to models with windows, chunks or states, and to one that drafts:
// what is predicted is what vLLM takes from its cache, while it evicts blocks.
func TestRealVLLMHybrids(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_VLLM")
	if bin == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	forks, version := startForks(t, bin), versionOf(t, bin)
	for i := range hybrids {
		h := &hybrids[i]
		t.Run(h.name, func(t *testing.T) { h.run(t, forks, version) })
	}
}

// write makes a model's directory.
func (h *hybrid) write(t *testing.T, model string) {
	t.Helper()
	if err := os.CopyFS(model, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	configs, err := os.ReadFile("vllm/hybrids.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(gjson.GetBytes(configs, h.config).Raw), 0o644); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(model, "preprocessor_config.json"))
}

func (h *hybrid) run(t *testing.T, forks *vllmForks, version string) {
	begin, dir := time.Now(), t.TempDir()
	h.write(t, filepath.Join(dir, h.config))
	if strings.Contains(h.drafts, `"eagle"`) {
		h.write(t, filepath.Join(dir, "eagle"))
	}
	args := []string{"serve", h.config, "--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16",
		"--block-size", fmt.Sprint(hybridBlock), "--max-model-len", fmt.Sprint(hybridLength), "--max-num-batched-tokens", "512",
		"--max-num-seqs", "8", "--num-gpu-blocks-override", fmt.Sprint(h.blocks), "--enable-prefix-caching", "--enable-prompt-tokens-details"}
	if h.drafts != "" {
		args = append(args, "--speculative-config", h.drafts)
	}
	s := forks.start(t, dir, args...)
	err := s.healthy()
	if err == nil && h.fails != "" {
		direct := &gateway{t: t, url: "http://" + s.addr}
		question := []any{user(strings.Repeat("What is to be seen? ", 100))}
		for range 3 {
			status, _ := direct.ask(question, map[string]any{"model": h.config, "max_tokens": 4}, nil)
			if status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", status, s.firstError())
				break
			}
		}
	}
	switch {
	case err != nil && h.fails != "" && strings.Contains(err.Error(), h.fails):
		fmt.Printf("e2e-vllm: %s, vLLM %s: NOT RUN: %v\n", h.name, version, err)
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	up := time.Since(begin)
	config := map[string]any{"log_level": "warn", "fixed": map[string]any{"predicted_ttl": "100ms"}, // what counts is what the index knows
		"workers": []any{map[string]any{"name": "worker-1", "addr": s.addr, "events": map[string]any{"auto": true}}},
		"models": []any{map[string]any{"name": h.config, "dir": filepath.Join(dir, h.config), "engine_version": version,
			"block_size": cmp.Or(h.block, hybridBlock), "max_model_len": hybridLength}}}
	r := &hybridRun{t: t, rng: rand.New(rand.NewPCG(7, 7)), model: h.config, block: cmp.Or(h.block, hybridBlock)}
	r.plain, r.upper = h.plain, h.upper
	r.gateway = startGateway(t, config, func(o *envoy.Options) { o.TokenUsage, o.Workers = true, []string{s.addr} })
	r.ready(1)
	r.traffic(h.withholds)
	corrections, resyncs := r.sum("sightline_blocks_corrected_total"), r.sum("sightline_resyncs_total")
	learned := ""
	if h.withholds {
		learned = fmt.Sprintf(" (after %d that taught that the last block is withheld)", r.learning)
	}
	fmt.Printf("e2e-vllm: %s, vLLM %s: cached tokens equal %d of %d%s; %d of %d tokens cached, in %d answers; evictions seen %d; "+
		"blocks corrected %.0f, resyncs %.0f; up after %v, done after %v\n", h.name, version, r.equal, r.equal+r.unequal, learned, r.cached,
		r.prompts, r.hits, r.evictions, corrections, resyncs, up.Round(time.Second), time.Since(begin).Round(time.Second))
	// Without a layer that sees all tokens, events do not tell prompts that end with a block from those that end behind it.
	if !h.upper && r.unequal > 0 || r.tooHigh > 0 || r.unequal > r.equal/8 || corrections+resyncs > 0 {
		t.Error("the engine and the predictions do not agree")
	}
	if r.hits < 15 || r.evictions == 0 {
		t.Errorf("%d answers with cached tokens, %d evictions seen: the requests show nothing", r.hits, r.evictions)
	}
	for _, what := range []string{"other_block_size", "unknown_blocks", "unknown_parents", "unreadable", "gaps", "orphans_dropped"} {
		if n := r.counted("sightline_events_total", "what")[what]; n > 0 {
			t.Errorf("events: %s %.0f", what, n)
		}
	}
}

// hybridRun sends requests to one worker and counts.
type hybridRun struct {
	*gateway
	t                        *testing.T
	rng                      *rand.Rand
	model                    string
	plain, upper             bool
	block                    int
	equal, unequal, learning int
	tooHigh                  int // of the unequal
	hits                     int // answers with cached tokens
	cached, prompts          int64
	evictions                int // requests after which the worker held less
	held                     int64
}

// traffic sends a system prompt with one question after another, then conversations that are new, go on, are sent again, or branch.
func (r *hybridRun) traffic(withholds bool) {
	learn := 0 // answers that may be one block less than predicted
	if withholds {
		learn = 3
	}
	var systems [3]string
	for i := range systems {
		systems[i] = words(r.rng, 90+40*i)
	}
	begin := func(system string) []any {
		return []any{map[string]any{"role": "system", "content": system}, user(words(r.rng, 10+r.rng.IntN(20)))}
	}
	var talks [][]any // each ends with a user's message
	for range 4 {
		talks = append(talks, begin(systems[0]))
		r.send(talks[len(talks)-1], &learn)
	}
	for range 40 {
		i := r.rng.IntN(len(talks))
		one := talks[i]
		switch n := r.rng.IntN(20); {
		case n < 3:
			r.send(one, &learn)
		case n < 9 && len(one) < 8:
			answer := r.send(one, &learn)
			talks[i] = append(slices.Clone(one), map[string]any{"role": "assistant", "content": answer}, user(words(r.rng, 10+r.rng.IntN(40))))
			r.send(talks[i], &learn)
		case n < 13:
			talks = append(talks, append(slices.Clone(one[:1+2*r.rng.IntN((len(one)+1)/2)]), user(words(r.rng, 10+r.rng.IntN(30)))))
			r.send(talks[len(talks)-1], &learn)
		case n < 18:
			talks = append(talks, begin(systems[r.rng.IntN(len(systems))]))
			r.send(talks[len(talks)-1], &learn)
		default:
			talks = append(talks, begin(words(r.rng, 250))) // takes the room of others
			r.send(talks[len(talks)-1], &learn)
		}
	}
}

// send sends one request and compares. Up to learn answers may be one block less than predicted.
func (r *hybridRun) send(messages []any, learn *int) (answer string) {
	t := r.t
	t.Helper()
	path, request := "/v1/chat/completions", map[string]any{"model": r.model, "max_tokens": 6, "temperature": 0}
	if r.plain {
		path, request["prompt"] = "/v1/completions", fmt.Sprintln(messages...)
	} else {
		request["messages"] = messages
	}
	status, text := r.post(path, request, nil)
	if status != http.StatusOK {
		t.Fatalf("status %d: %.300s", status, text)
	}
	d, u := gjson.Get(r.page("/decisions?n=1"), "0"), gjson.Get(text, "usage")
	predicted, cached := d.Get("cached_tokens").Int(), u.Get("prompt_tokens_details.cached_tokens").Int()
	switch {
	case d.Get("prompt_tokens").Int() != u.Get("prompt_tokens").Int():
		r.unequal++
		t.Logf("prompt tokens: ours %d, vLLM's %d", d.Get("prompt_tokens").Int(), u.Get("prompt_tokens").Int())
	case predicted == cached && (d.Get("upper_bound").Bool() == r.upper || predicted == 0):
		r.equal++
	case *learn > 0 && predicted == cached+int64(r.block):
		*learn--
		r.learning++
	default:
		r.unequal++
		if predicted > cached {
			r.tooHigh++
		}
		t.Logf("request %d: cached tokens: predicted %d (upper bound: %v), vLLM's %d of %d", r.equal+r.unequal+r.learning, predicted,
			d.Get("upper_bound").Bool(), cached, u.Get("prompt_tokens").Int())
	}
	if cached > 0 {
		r.hits++
	}
	r.cached, r.prompts = r.cached+cached, r.prompts+u.Get("prompt_tokens").Int()
	r.settled()
	return gjson.Get(text, "choices.0.message.content").Str + gjson.Get(text, "choices.0.text").Str
}

// settled waits until the events of the last request have come: none for a tenth of a second.
func (r *hybridRun) settled() {
	row := func() gjson.Result { return gjson.Get(r.page("/workers"), "0") }
	last := row()
	for calm := 0; calm < 4; {
		time.Sleep(25 * time.Millisecond)
		now := row()
		calm++
		if now.Get("event_batches").Int() != last.Get("event_batches").Int() {
			calm = 0
		}
		last = now
	}
	held := last.Get("blocks_held").Int()
	if held < r.held {
		r.evictions++
	}
	r.held = held
}

// sum adds up a counter's values.
func (g *gateway) sum(name string) (sum float64) {
	for line := range strings.Lines(g.page("/metrics")) {
		if strings.HasPrefix(line, name) && strings.Trim(line[len(name):len(name)+1], " {") == "" {
			var v float64
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
			sum += v
		}
	}
	return sum
}
