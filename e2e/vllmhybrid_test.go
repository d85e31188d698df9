package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// hybrid is a model with several KV cache groups, or one that drafts, as a real vLLM serves it with random weights.
type hybrid struct {
	name   string
	config map[string]any // of config.json, beside hybridBase
	block  int            // tokens of a block of the layers that see all tokens; 0: as --block-size says
	blocks int            // of the cache, so few that blocks are evicted
	args   []string
	plain  bool   // vLLM does not read the chat template, so requests are completions
	upper  bool   // no layer sees all tokens: the prediction is an upper bound
	drafts bool   // vLLM withholds the last block found, which is learned from three answers
	fails  string // why the CPU build cannot run it: the error that is expected
}

var hybridBase = map[string]any{"vocab_size": 152064, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2,
	"num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "bos_token_id": 151643,
	"eos_token_id": 151645, "pad_token_id": 151643, "torch_dtype": "bfloat16", "tie_word_embeddings": false, "hidden_act": "silu"}

const (
	hybridBlock  = 16
	hybridLength = 1024 // tokens of a prompt and its answer
)

var (
	gemma3 = map[string]any{"architectures": []string{"Gemma3ForCausalLM"}, "model_type": "gemma3_text", "num_hidden_layers": 4,
		"sliding_window": 64, "query_pre_attn_scalar": 64, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true,
		"layer_types": []string{"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"}}
	qwen3Next = map[string]any{"architectures": []string{"Qwen3NextForCausalLM"}, "model_type": "qwen3_next", "num_hidden_layers": 4,
		"layer_types": []string{"linear_attention", "linear_attention", "linear_attention", "full_attention"}, "full_attention_interval": 4,
		"num_key_value_heads": 2, "linear_num_value_heads": 1, "linear_num_key_heads": 1, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
		"linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
		"shared_expert_intermediate_size": 64, "decoder_sparse_step": 1, "norm_topk_prob": true, "mlp_only_layers": []int{},
		"partial_rotary_factor": 0.25}
	llama = map[string]any{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "num_hidden_layers": 1}
)

var hybrids = []hybrid{
	{name: "gemma3", config: gemma3, blocks: 300},
	{name: "gemma4", block: 32, blocks: 300, config: map[string]any{"architectures": []string{"Gemma4ForCausalLM"}, "model_type": "gemma4_text",
		"num_hidden_layers": 3, "layer_types": []string{"sliding_attention", "sliding_attention", "full_attention"}, "sliding_window": 96,
		"hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
		"global_head_dim": 64, "hidden_size_per_layer_input": 0, "tie_word_embeddings": true}},
	{name: "gpt-oss", blocks: 160, plain: true, config: map[string]any{"architectures": []string{"GptOssForCausalLM"}, "model_type": "gpt_oss", "num_hidden_layers": 2,
		"sliding_window": 128, "layer_types": []string{"sliding_attention", "full_attention"}, "num_local_experts": 4, "num_experts_per_tok": 2}},
	{name: "qwen3-next", config: qwen3Next, block: 48, blocks: 120},
	{name: "lfm2", blocks: 160, config: map[string]any{"architectures": []string{"Lfm2ForCausalLM"}, "model_type": "lfm2", "num_hidden_layers": 4,
		"layer_types": []string{"conv", "full_attention", "conv", "full_attention"}, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 128,
		"conv_dim_out": 128, "block_dim": 128, "block_ff_dim": 128, "block_multiple_of": 64, "block_ffn_dim_multiplier": 1.0,
		"block_auto_adjust_ff_dim": false, "norm_eps": 1e-5, "tie_word_embeddings": true}},
	{name: "llama4", blocks: 300, config: map[string]any{"architectures": []string{"Llama4ForCausalLM"}, "model_type": "llama4_text", "num_hidden_layers": 4,
		"attention_chunk_size": 128, "no_rope_layers": []int{1, 1, 1, 0}, "num_local_experts": 4, "num_experts_per_tok": 1,
		"layer_types":               []string{"chunked_attention", "chunked_attention", "chunked_attention", "full_attention"},
		"interleave_moe_layer_step": 1, "moe_layers": []int{0, 1, 2, 3}, "intermediate_size_mlp": 128, "use_qk_norm": true}},
	{name: "mistral-window", blocks: 100, upper: true, config: map[string]any{"architectures": []string{"MistralForCausalLM"}, "model_type": "mistral",
		"num_hidden_layers": 1, "sliding_window": 64}},
	{name: "llama-eagle", config: llama, blocks: 100, drafts: true,
		args: []string{"--speculative-config", `{"method":"eagle","model":"eagle","num_speculative_tokens":2}`}},
	{name: "gemma3-ngram", config: gemma3, blocks: 300,
		args: []string{"--speculative-config", `{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4}`}},
	{name: "qwen3-next-mtp", config: qwen3Next, block: 48, blocks: 120, drafts: true, fails: "'function' object is not subscriptable",
		args: []string{"--speculative-config", `{"method":"mtp","num_speculative_tokens":1}`}},
	{name: "granite-4-h", block: 272, blocks: 60, fails: "IndexError", config: map[string]any{
		"architectures": []string{"GraniteMoeHybridForCausalLM"}, "model_type": "granitemoehybrid", "num_hidden_layers": 2,
		"layer_types": []string{"mamba", "attention"}, "mamba_n_heads": 4, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 64,
		"mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256, "num_local_experts": 0, "num_experts_per_tok": 0,
		"shared_intermediate_size": 128, "embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0,
		"logits_scaling": 1.0, "position_embedding_type": "rope"}},
}

// vllmForks starts servers of vLLM from one process that has imported it (vllm/fork.py).
type vllmForks struct {
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
		if line, err = f.out.ReadString('\n'); err != nil {
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
		fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s"}`, port(freeAddr(t)), port(freeAddr(t))))
	line, err := json.Marshal(map[string]any{"dir": dir, "log": s.log, "args": args})
	if err != nil {
		t.Fatal(err)
	}
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
	config := maps.Clone(hybridBase)
	maps.Copy(config, h.config)
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(model, "preprocessor_config.json"))
}

func (h *hybrid) run(t *testing.T, forks *vllmForks, version string) {
	begin, dir := time.Now(), t.TempDir()
	h.write(t, filepath.Join(dir, h.name))
	if h.drafts {
		h.write(t, filepath.Join(dir, "eagle"))
	}
	s := forks.start(t, dir, append([]string{"serve", h.name, "--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16",
		"--block-size", fmt.Sprint(hybridBlock), "--max-model-len", fmt.Sprint(hybridLength), "--max-num-batched-tokens", "512", "--max-num-seqs", "8",
		"--num-gpu-blocks-override", fmt.Sprint(h.blocks), "--enable-prefix-caching", "--enable-prompt-tokens-details"}, h.args...)...)
	err := s.healthy()
	if err == nil && h.fails != "" {
		direct := &gateway{t: t, url: "http://" + s.addr}
		for range 3 {
			status, _ := direct.ask([]any{user(strings.Repeat("What is to be seen? ", 100))}, map[string]any{"model": h.name, "max_tokens": 4}, nil)
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
	config := map[string]any{"log_level": "warn", "index": map[string]any{"predicted_ttl": "100ms"}, // what counts is what the index knows
		"workers": []any{map[string]any{"name": "worker-1", "addr": s.addr, "events": map[string]any{"auto": true}}},
		"models": []any{map[string]any{"name": h.name, "dir": filepath.Join(dir, h.name), "engine_version": version,
			"block_size": cmp.Or(h.block, hybridBlock), "max_model_len": hybridLength}}}
	r := &hybridRun{t: t, rng: rand.New(rand.NewPCG(7, 7)), model: h.name, block: cmp.Or(h.block, hybridBlock), plain: h.plain, upper: h.upper}
	r.gateway = startGateway(t, config, func(o *envoy.Options) { o.TokenUsage, o.Workers = true, []string{s.addr} })
	r.ready(1)
	r.traffic(h.drafts)
	corrections, resyncs := r.sum("sightline_blocks_corrected_total"), r.sum("sightline_resyncs_total")
	fmt.Printf("e2e-vllm: %s, vLLM %s: cached tokens equal %d of %d, before the last block's withholding was learned %d; %d of %d tokens cached, in %d answers; "+
		"evictions seen %d, blocks corrected %.0f, resyncs %.0f; up after %v, done after %v\n", h.name, version, r.equal, r.equal+r.unequal, r.learning,
		r.cached, r.prompts, r.hits, r.evictions, corrections, resyncs, up.Round(time.Second), time.Since(begin).Round(time.Second))
	if !h.upper && r.unequal > 0 || r.unequal*100 > r.equal*3 || corrections+resyncs > 0 {
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
	hits                     int // answers with cached tokens
	cached, prompts          int64
	evictions                int // requests after which the worker held less
	held                     int64
}

// traffic sends a system prompt with one question after another, then conversations that are new, go on, are sent again, or branch.
func (r *hybridRun) traffic(drafts bool) {
	learn := 0 // answers that may be one block less than predicted
	if drafts {
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
	if request["messages"] = messages; r.plain {
		var prompt strings.Builder
		for _, m := range messages {
			fmt.Fprintln(&prompt, m)
		}
		delete(request, "messages")
		path, request["prompt"] = "/v1/completions", prompt.String()
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
		if calm++; now.Get("event_batches").Int() != last.Get("event_batches").Int() {
			calm = 0
		}
		last = now
	}
	if now := last.Get("blocks_held").Int(); now < r.held {
		r.evictions++
		r.held = now
	} else {
		r.held = now
	}
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
