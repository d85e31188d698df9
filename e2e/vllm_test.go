package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/demo"
)

// The same with real engines: `make e2e-vllm` installs the CPU build of vLLM and sets SIGHTLINE_VLLM to where it is. Two
// workers with one layer of random weights stand behind a real Envoy. Their answers are noise; tokens, image names, cache
// and KV events are the engine's own. SIGHTLINE_VLLM_OLD, if set, is an older release for the second worker.

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

// engineStart bounds an engine's start: 70 s on two idle cores.
const engineStart = 6 * time.Minute

type engine struct {
	bin, version, dir     string
	port, events, replays int
	cmd                   *exec.Cmd
	log                   *os.File
}

func (e *engine) start(t *testing.T) {
	t.Helper()
	e.cmd = exec.Command(filepath.Join(e.bin, "bin", "vllm"), "serve", tinyName, "--host", "127.0.0.1", "--port", fmt.Sprint(e.port),
		"--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--skip-mm-profiling", "--block-size", "16",
		"--max-model-len", "20000", "--max-num-batched-tokens", "20000", "--max-num-seqs", "8", "--enable-prompt-tokens-details",
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, e.events, e.replays))
	e.cmd.Dir, e.cmd.Stdout, e.cmd.Stderr = e.dir, e.log, e.log
	e.cmd.Env = append(os.Environ(), "PATH="+filepath.Join(e.bin, "bin")+":"+os.Getenv("PATH"), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1",
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "VLLM_HOST_IP=127.0.0.1")
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (e *engine) stop() {
	if e.cmd != nil {
		_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
		_ = e.cmd.Wait()
		e.cmd = nil
	}
}

func (e *engine) healthy(t *testing.T) {
	t.Helper()
	waitLong(t, "vLLM "+e.version, func() bool {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/health", e.port))
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func waitLong(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(engineStart); !cond(); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, engineStart)
		}
	}
}

// freePorts gives ports that are free now.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // not before all are chosen
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// versionOf asks an installed vLLM for its release.
func versionOf(t *testing.T, dir string) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(dir, "lib", "python*", "site-packages", "vllm-*.dist-info"))
	if len(found) == 0 {
		t.Fatalf("%s holds no vLLM (run make e2e-vllm)", dir)
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "vllm-"), "+cpu.dist-info")
}

func TestRealVLLM(t *testing.T) {
	venv := os.Getenv("SIGHTLINE_VLLM")
	if venv == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model := filepath.Join(dir, tinyName)
	if err := os.CopyFS(model, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(tinyConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	old := os.Getenv("SIGHTLINE_VLLM_OLD")
	if old == "" {
		old = venv
	}
	ports := freePorts(t, 9)
	var engines []*engine
	for i, at := range []string{venv, old} {
		e := &engine{bin: at, version: versionOf(t, at), dir: dir, port: ports[3*i], events: ports[3*i+1], replays: ports[3*i+2]}
		if e.log, err = os.Create(filepath.Join(dir, fmt.Sprint("vllm-", i+1, ".log"))); err != nil {
			t.Fatal(err)
		}
		e.start(t)
		t.Cleanup(func() {
			e.stop()
			if text, _ := os.ReadFile(e.log.Name()); t.Failed() {
				t.Logf("%s:\n%s", e.log.Name(), text[max(0, len(text)-3000):])
			}
		})
		e.healthy(t) // one after the other: two cores
		engines = append(engines, e)
	}
	r := realRun{t: t, url: fmt.Sprint("http://127.0.0.1:", ports[6]), admin: fmt.Sprint("127.0.0.1:", ports[8]), l: new(demo.Lab)}
	r.begin(bin, dir, model, engines, ports)
	r.conversations(0)
	first := r.equal
	if engines[0].version == engines[1].version { // a worker that starts anew holds nothing, and nothing is expected of it
		engines[0].stop()
		engines[0].start(t)
		engines[0].healthy(t)
		r.fresh = "worker-1"
		r.conversations(100)
		if r.equal == first {
			t.Error("no request was predicted after the restart")
		}
	}
	r.audited()
	fmt.Printf("e2e-vllm: %s and %s: cached tokens equal %d, unequal %d, first of a worker %d; audit equal %.0f, other %.0f\n",
		engines[0].version, engines[1].version, r.equal, r.unequal, r.first, r.auditEqual, r.auditOther)
	if r.unequal > 0 || r.auditOther > 0 {
		t.Error("the engines and the predictions do not agree")
	}
}

// realRun sends conversations and counts.
type realRun struct {
	t                      *testing.T
	url, admin             string
	l                      *demo.Lab
	equal, unequal, first  int
	hits                   int
	fresh                  string // a worker that has begun anew and told nothing since
	auditEqual, auditOther float64
}

func (r *realRun) begin(bin, dir, model string, engines []*engine, ports []int) {
	t := r.t
	var workers []any
	var addrs []string
	classes := []any{}
	for i, e := range engines {
		addrs = append(addrs, fmt.Sprint("127.0.0.1:", e.port))
		w := map[string]any{"name": fmt.Sprint("worker-", i+1), "addr": addrs[i],
			"events": map[string]any{"zmq": fmt.Sprint("tcp://127.0.0.1:", e.events), "replay": fmt.Sprint("tcp://127.0.0.1:", e.replays)}}
		if e.version != engines[0].version {
			classes = append(classes, map[string]any{"name": "old", "engine_version": e.version})
			w["class"] = "old"
		}
		workers = append(workers, w)
	}
	text, err := yaml.Marshal(map[string]any{"listen": fmt.Sprint("127.0.0.1:", ports[7]), "admin": r.admin, "log_level": "warn",
		"models": []any{map[string]any{"name": tinyName, "dir": model, "engine_version": engines[0].version, "engine_model": tinyName,
			"block_size": 16, "max_model_len": 20000, "classes": classes}}, "workers": workers})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "sightline.yaml")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	serve := exec.Command(bin, "serve", "-c", config)
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
		t.Logf("Sightline:\n%s", log.String())
	})
	o := envoy.Default()
	adminPort := freePorts(t, 1)[0]
	o.Listen, o.Admin, o.Sightline, o.Workers, o.TokenUsage = strings.TrimPrefix(r.url, "http://"), fmt.Sprint("127.0.0.1:", adminPort), fmt.Sprint("127.0.0.1:", ports[7]), addrs, true
	proxy, err := envoy.Start(t.Context(), binary(t), o, io.Discard, "--concurrency", "1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	waitLong(t, "both workers' events and Envoy's health check", func() bool {
		rows, err := r.get("http://" + r.admin + "/workers")
		stats, err2 := r.get(fmt.Sprintf("http://127.0.0.1:%d/stats?filter=cluster.sightline.membership_healthy", adminPort))
		return err == nil && err2 == nil && strings.Count(rows, `"live"`) == len(engines) && strings.Contains(stats, ": 1")
	})
}

func (r *realRun) get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// conversations sends four conversations of four turns, a picture in the first and the third, turn by turn in turns, and
// each request twice.
func (r *realRun) conversations(seed int) {
	var talks [4][]any
	for turn := range 4 {
		for i := range talks {
			content := []any{map[string]any{"type": "text", "text": fmt.Sprintf("Turn %d of conversation %d: what is to be seen, and what is not? Say it at some length.", turn, seed+i)}}
			if turn%2 == 0 {
				content = append([]any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(uint64(900 + seed + 10*i + turn)))}}}, content...)
			}
			talks[i] = append(talks[i], map[string]any{"role": "user", "content": content})
			answer := r.ask(talks[i])
			r.ask(talks[i])
			talks[i] = append(talks[i], map[string]any{"role": "assistant", "content": answer})
		}
	}
}

// ask sends one request and compares.
func (r *realRun) ask(messages []any) (answer string) {
	t := r.t
	t.Helper()
	raw, err := json.Marshal(map[string]any{"model": tinyName, "messages": messages, "max_tokens": 24, "temperature": 0})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %.300s", resp.StatusCode, err, text)
	}
	row, err := r.get("http://" + r.admin + "/decisions?n=1")
	if err != nil {
		t.Fatal(err)
	}
	d, u := gjson.Get(row, "0"), gjson.GetBytes(text, "usage")
	worker := d.Get("worker").Str
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
		t.Logf("cached tokens: predicted %d, vLLM's %d of %d (%s, %s %s)", predicted, cached, u.Get("prompt_tokens").Int(), worker, d.Get("reason").Str, d.Get("why").Str)
	}
	if cached > 0 {
		r.hits++
	}
	return gjson.GetBytes(text, "choices.0.message.content").Str
}

// audited waits for the last verdicts and counts them.
func (r *realRun) audited() {
	before := -1.0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Second) {
		text, err := r.get("http://" + r.admin + "/metrics")
		if err != nil {
			r.t.Fatal(err)
		}
		r.auditEqual, r.auditOther = 0, 0
		for _, line := range strings.Split(text, "\n") {
			if v := 0.0; strings.HasPrefix(line, "sightline_audit_total{") {
				fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
				if strings.Contains(line, `verdict="equal"`) {
					r.auditEqual += v
				} else {
					r.auditOther += v
					r.t.Log(line)
				}
			}
		}
		if sum := r.auditEqual + r.auditOther; sum == before {
			break
		} else {
			before = sum
		}
	}
	if r.hits == 0 || r.auditEqual == 0 {
		r.t.Error("nothing was cached, or nothing was audited")
	}
}
