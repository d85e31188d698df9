package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
)

// The same with real engines: `make e2e-vllm` installs the CPU build of vLLM and sets SIGHTLINE_VLLM to where it is. Two
// workers with one layer of random weights stand behind a real Envoy. Their answers are noise; tokens, image names, cache
// and KV events are the engine's own. SIGHTLINE_VLLM_OLD, if set, is an older release for the second worker, which is then
// of another class.

const window = 10000 // vLLM's default

const tinyName = "qwen2.5-vl" // vLLM's --model argument is part of its image names

// tinyConfig is Qwen2.5-VL's configuration with all sizes of weights made small; what decides tokens is as published.
const tinyConfig = `{"architectures":["Qwen2_5_VLForConditionalGeneration"],"model_type":"qwen2_5_vl","vocab_size":152064,
"max_position_embeddings":128000,"bos_token_id":151643,"eos_token_id":151645,"vision_start_token_id":151652,
"vision_end_token_id":151653,"vision_token_id":151654,"image_token_id":151655,"video_token_id":151656,"hidden_act":"silu",
"hidden_size":128,"intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":1,"num_key_value_heads":1,
"rms_norm_eps":1e-6,"rope_theta":1000000.0,"rope_scaling":{"type":"mrope","mrope_section":[16,24,24]},
"tie_word_embeddings":false,"torch_dtype":"bfloat16","vision_config":{"depth":1,"hidden_act":"silu","hidden_size":64,
"intermediate_size":64,"num_heads":1,"in_chans":3,"out_hidden_size":128,"patch_size":14,"spatial_merge_size":2,
"spatial_patch_size":14,"window_size":112,"fullatt_block_indexes":[0],"tokens_per_second":2,"temporal_patch_size":2}}`

// versionOf tells the release of an installed vLLM.
func versionOf(t *testing.T, dir string) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(dir, "lib", "python*", "site-packages", "vllm-*.dist-info"))
	if len(found) == 0 {
		t.Fatalf("%s holds no vLLM (run make e2e-vllm): got %d, want some", dir, len(found))
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "vllm-"), "+cpu.dist-info")
}

// vllmCommand is a vLLM installed in bin, which serves the tiny model that lies in dir and can tell so many batches again.
func vllmCommand(bin, dir string, window int) func(e *engineProcess) *exec.Cmd {
	return func(e *engineProcess) *exec.Cmd {
		portOf := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
		c := exec.Command(filepath.Join(bin, "bin", "vllm"), "serve", tinyName, "--host", "127.0.0.1", "--port", portOf(e.addr),
			"--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--skip-mm-profiling", "--block-size", "16",
			"--max-model-len", "20000", "--max-num-batched-tokens", "20000", "--max-num-seqs", "8", "--enable-prompt-tokens-details",
			"--kv-events-config",
			fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s","buffer_steps":%d}`, portOf(e.events), portOf(e.replays), window))
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+filepath.Join(bin, "bin")+":"+os.Getenv("PATH"), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1",
			"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "VLLM_HOST_IP=127.0.0.1")
		return c
	}
}

// tinyModel makes the model's directory in dir.
func tinyModel(t *testing.T, dir string) (model string) {
	t.Helper()
	model = filepath.Join(dir, tinyName)
	if err := os.CopyFS(model, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(tinyConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	return model
}

func TestRealVLLM(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_VLLM")
	if bin == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	dir := t.TempDir()
	model := tinyModel(t, dir)
	old := os.Getenv("SIGHTLINE_VLLM_OLD")
	if old == "" {
		old = bin
	}
	engines := []*engineProcess{startEngine(t, "worker-1", versionOf(t, bin), vllmCommand(bin, dir, window)),
		startEngine(t, "worker-2", versionOf(t, old), vllmCommand(old, dir, window))}
	for _, e := range engines {
		e.healthy(t)
	}
	r := &realRun{t: t, served: map[string]int{}}
	r.gateway = startGateway(t, realConfig(model, engines, "computed"), func(o *envoy.Options) {
		o.TokenUsage = true
		for _, e := range engines {
			o.Workers = append(o.Workers, e.addr)
		}
	})
	r.ready(len(engines))
	r.probed(len(engines))
	r.conversations("computed names", 0)
	r.refusals(engines)

	// A worker that starts anew holds nothing, and nothing is expected of it.
	engines[0].stop()
	engines[0].start(t)
	engines[0].healthy(t)
	r.ready(len(engines))
	r.fresh = "worker-1"
	r.conversations("a restarted worker", 100)
	r.audited()
	if strings.Contains(r.page("/metrics"), "\nsightline_audit_events_total{what=\"named\"} 0\n") {
		t.Error("no event names its request by the session that it was given")
	}

	equal, other := r.auditEqual, r.auditOther
	r.end()
	r.run(realConfig(model, engines, "injected"))
	r.ready(len(engines))
	eventually(t, "a decision of the new Sightline, once Envoy has seen it", func() bool {
		r.ask([]any{user("Ready?")}, map[string]any{"model": tinyName, "max_tokens": 1}, nil)
		return gjson.Get(r.page("/decisions?n=1"), "0.worker").Str != ""
	})
	r.conversations("uuids injected", 200)
	r.audited()
	equal, other = equal+r.auditEqual, other+r.auditOther

	for _, e := range engines {
		if r.served[e.name] == 0 {
			t.Errorf("%s, vLLM %s, got no request", e.name, e.version)
		}
	}
	fmt.Printf("e2e-vllm: %s and %s: cached tokens equal %d, unequal %d, first of a restarted worker %d; refused alike "+
		"%d, otherwise %d; probes equal %d; audit equal %.0f, other %.0f\n",
		engines[0].version, engines[1].version, r.equal, r.unequal, r.first, r.refused, r.notRefused, r.probes, equal, other)
	if r.unequal+r.notRefused > 0 || other > 0 {
		t.Errorf("the engines and the predictions do not agree: got %d, %v, want 0, 0", r.unequal+r.notRefused, other)
	}
}

// A router that starts beside a worker whose history is longer than it can tell again: what comes again is known, and nothing
// is promised that vLLM does not have.
func TestRealVLLMShortReplay(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_VLLM")
	if bin == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	dir := t.TempDir()
	model := tinyModel(t, dir)
	e := startEngine(t, "worker-1", versionOf(t, bin), vllmCommand(bin, dir, 4))
	e.healthy(t)
	ask := func(g *gateway, c *talk) string {
		status, text := g.ask(c.turn(60)["messages"].([]any), map[string]any{"model": tinyName, "max_tokens": 1}, nil)
		if status != http.StatusOK {
			t.Fatalf("status %d: %.300s", status, text)
		}
		return text
	}
	var talks [12]*talk
	for i := range talks {
		talks[i] = newTalk(uint64(i))
		ask(&gateway{t: t, url: "http://" + e.addr}, talks[i])
	}
	config := realConfig(model, []*engineProcess{e}, "computed")
	config["fixed"] = map[string]any{"predicted_ttl": "100ms"} // what counts is what the index knows
	g := startGateway(t, config, func(o *envoy.Options) { o.TokenUsage, o.Workers = true, []string{e.addr} })
	g.ready(1)
	var held, known int64
	for round := range 2 {
		held, known = 0, 0
		for _, c := range talks {
			cached := gjson.Get(ask(g, c), "usage.prompt_tokens_details.cached_tokens").Int()
			predicted := gjson.Get(g.page("/decisions?n=1"), "0.cached_tokens").Int()
			if predicted > cached {
				t.Errorf("%d tokens predicted, vLLM had %d, want at most %d", predicted, cached, cached)
			}
			held, known = held+cached, known+predicted
		}
		t.Logf("time %d: %d of %d cached tokens known", round+1, known, held)
		eventually(t, "verdicts of all requests", func() bool {
			return g.counted("sightline_audit_total", "verdict")["equal"] >= float64(len(talks)*(round+1))
		})
	}
	fmt.Printf("e2e-vllm: a replay window of 4 batches, a history of %d: %d of %d cached tokens known the second time\n",
		len(talks), known, held)
	if known*100 < held*95 {
		t.Errorf("%d of %d tokens that vLLM holds are known, want 95 %%", known, held)
	}
}

// realConfig is Sightline's configuration for engines, the first of which is of the model's own release.
func realConfig(model string, engines []*engineProcess, mediaNames string) map[string]any {
	workers, classes := workersOf(engines)
	return map[string]any{"log_level": "warn", "workers": workers, "models": []any{map[string]any{"name": tinyName, "dir": model,
		"engine_version": engines[0].version, "engine_model": tinyName, "block_size": 16, "max_model_len": 20000,
		"media_names": mediaNames, "classes": classes}}}
}

// realRun sends conversations and counts.
type realRun struct {
	*gateway
	t                      *testing.T
	equal, unequal, first  int
	hits                   int // requests with cached tokens, in this phase
	refused, notRefused    int // requests that vLLM answers with an error: alike here, and otherwise
	probes                 int // conversations whose tokens vLLM's /tokenize has as we do
	served                 map[string]int
	fresh                  string // a worker that has begun anew and told nothing since
	auditEqual, auditOther float64
}

// probed waits until each engine was asked for its tokens, of texts, conversations and an image: all as ours, and its
// settings as configured.
func (r *realRun) probed(engines int) {
	t := r.t
	t.Helper()
	var rows []gjson.Result
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) { // an engine's first image takes it long
		text := r.page("/probes")
		rows = gjson.Parse(text).Array()
		if len(rows) == engines && !strings.Contains(text, `"unreachable"`) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("not all workers answer the probe: %s", text)
		}
	}
	for _, row := range rows {
		if row.Get("verdict").Str != "equal" || !row.Get(`findings.#(what=="an image")`).Exists() {
			t.Errorf("got %s, want row.Get(\"verdict\").Str == \"equal\", row.Get(`findings.#(what==\"an image\")`).Exists()", row.Raw)
		}
		r.probes += len(row.Get(`findings.#(verdict=="equal")#`).Array())
	}
}

// conversations sends four conversations of four turns, an image in the first and the third, turn by turn in turns, and
// each request twice.
func (r *realRun) conversations(what string, seed int) {
	r.t.Helper()
	before := r.equal
	r.hits = 0
	var talks [4][]any
	for turn := range 4 {
		for i := range talks {
			text := fmt.Sprintf("Turn %d of conversation %d: what is to be seen, and what is not? Say it at some length.", turn, seed+i)
			if turn%2 == 0 {
				talks[i] = append(talks[i], user(text, dataURL(photo(uint64(900+seed+10*i+turn)))))
			} else {
				talks[i] = append(talks[i], user(text))
			}
			answer := r.compare(talks[i])
			r.compare(talks[i])
			talks[i] = append(talks[i], map[string]any{"role": "assistant", "content": answer})
		}
	}
	r.t.Logf("%s: %d equal", what, r.equal-before)
	if r.hits == 0 || r.equal == before {
		r.t.Errorf("%s: nothing was predicted or nothing was cached", what)
	}
}

// compare sends one request and compares.
func (r *realRun) compare(messages []any) (answer string) {
	t := r.t
	t.Helper()
	status, text := r.ask(messages, map[string]any{"model": tinyName, "max_tokens": 24, "temperature": 0}, nil)
	if status != http.StatusOK {
		t.Fatalf("status %d: %.300s", status, text)
	}
	d, u := gjson.Get(r.page("/decisions?n=1"), "0"), gjson.Get(text, "usage")
	worker := d.Get("worker").Str
	r.served[worker]++
	predicted, cached := d.Get("cached_tokens").Int(), u.Get("prompt_tokens_details.cached_tokens").Int()
	fresh := worker == r.fresh
	if fresh {
		r.fresh = ""
	}
	switch {
	case d.Get("prompt_tokens").Int() != u.Get("prompt_tokens").Int():
		r.unequal++
		t.Logf("prompt tokens: ours %d, vLLM's %d (%s)", d.Get("prompt_tokens").Int(), u.Get("prompt_tokens").Int(), worker)
	case predicted == cached:
		r.equal++
	case fresh: // vLLM tells of its new life with its first event
		r.first++
	default:
		r.unequal++
		t.Logf("cached tokens: predicted %d, vLLM's %d of %d (%s, %s %s)", predicted, cached, u.Get("prompt_tokens").Int(),
			worker, d.Get("reason").Str, d.Get("why").Str)
	}
	if cached > 0 {
		r.hits++
	}
	return gjson.Get(text, "choices.0.message.content").Str
}

// refusals sends what vLLM answers with an error: through the gateway it is answered with the same status, and nothing is
// stored, predicted or judged for it.
func (r *realRun) refusals(engines []*engineProcess) {
	t := r.t
	t.Helper()
	r.audited()
	held := func() (sums string) { return gjson.Get(r.page("/workers"), "#.blocks_held").Raw }
	before, verdicts := held(), r.auditEqual
	long := strings.Repeat("a long text that no engine will take ", 4000)
	for name, body := range map[string]map[string]any{
		"too long":            {"messages": []any{user(long)}},
		"no image":            {"messages": []any{user(strings.Repeat("what is it? ", 40), "data:image/png;base64,AAAA")}},
		"cut base64":          {"messages": []any{user(strings.Repeat("what is it? ", 40), dataURL(photo(1))[:2000])}},
		"temperature":         {"messages": []any{user(strings.Repeat("what is it? ", 40))}, "temperature": -3},
		"no tokens":           {"messages": []any{user(strings.Repeat("what is it? ", 40))}, "max_tokens": -1},
		"unknown role's part": {"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "smell"}}}}},
		"messages missing":    {"messages": nil},
		"unknown model":       {"messages": []any{user(strings.Repeat("what is it? ", 40))}, "model": "another"},
	} {
		more := map[string]any{"model": tinyName, "max_tokens": 8}
		for k, v := range body {
			more[k] = v
		}
		got, text := r.ask(nil, more, nil)
		direct := &gateway{t: t, url: "http://" + engines[0].addr}
		want, _ := direct.ask(nil, more, nil)
		if got == want && want >= 400 && want < 500 {
			r.refused++
		} else {
			r.notRefused++
			t.Logf("%s: status %d, vLLM's %d: %.200s", name, got, want, text)
		}
	}
	r.audited()
	if after := held(); after != before || r.auditEqual != verdicts {
		r.notRefused++
		t.Logf("refused requests: blocks held %s, then %s; verdicts %.0f, then %.0f", before, after, verdicts, r.auditEqual)
	}
	// What was routed is not believed to be there: the same text as a good request finds what is there.
	r.compare([]any{user(strings.Repeat("what is it? ", 40))})
	r.compare([]any{user(strings.Repeat("what is it? ", 40))})
}

// audited waits for the last verdicts and counts them, of this Sightline's life.
func (r *realRun) audited() {
	before := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Second) {
		verdicts := r.counted("sightline_audit_total", "verdict")
		r.auditEqual, r.auditOther = verdicts["equal"], 0
		for v, n := range verdicts {
			if v != "equal" {
				r.auditOther += n
			}
		}
		if now := fmt.Sprint(verdicts); now != before {
			before = now
			continue
		}
		if r.auditOther > 0 {
			r.t.Log(before, r.page("/audit"))
		}
		if r.auditEqual == 0 {
			r.t.Error("nothing was audited")
		}
		return
	}
	r.t.Errorf("verdicts still come after 30 s: %s", before)
}
