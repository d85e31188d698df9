package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// wordPrompt is a prompt stage for tests: every word of every message is a token, an image part is as many placeholder
// tokens as "tokens" in the part says.
func wordPrompt(_ context.Context, _ string, body []byte) ([]Prompt, error) {
	var p Prompt
	text := func(s string) {
		for _, word := range strings.Fields(s) {
			h := uint32(7)
			for _, c := range []byte(word) {
				h = h*31 + uint32(c)
			}
			p.Tokens = append(p.Tokens, h%100_000)
		}
	}
	var err error
	if s := gjson.GetBytes(body, "prompt"); s.IsArray() {
		var prompts []Prompt
		for _, one := range s.Array() {
			p = Prompt{}
			text(one.Str)
			prompts = append(prompts, p)
		}
		return prompts, nil
	} else if s.Exists() {
		text(s.Str)
	}
	gjson.GetBytes(body, "messages").ForEach(func(_, m gjson.Result) bool {
		if c := m.Get("content"); c.Type == gjson.String {
			text(c.Str)
			return true
		}
		for _, part := range m.Get("content").Array() {
			switch part.Get("type").Str {
			case "text":
				text(part.Get("text").Str)
			case "image_url":
				n := int(min(max(part.Get("tokens").Int(), 0), 1000))
				p.Media = append(p.Media, Media{Offset: len(p.Tokens), Length: n})
				for range n {
					p.Tokens = append(p.Tokens, 151655)
				}
			default:
				err = fmt.Errorf("unknown part type")
			}
		}
		return true
	})
	return []Prompt{p}, err
}

// start runs a worker until the test ends.
func start(t *testing.T, cfg Config) *Worker {
	t.Helper()
	setDefault(&cfg.Model, "test-vl")
	if cfg.Prompt == nil {
		cfg.Prompt = wordPrompt
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	t.Cleanup(w.Close)
	return w
}

// call sends one request and gives status and body.
func call(t *testing.T, w *Worker, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+w.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// words gives n distinct words.
func words(n int, tag string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", tag, i)
	}
	return b.String()
}

func chat(text string, more string) string {
	b, _ := json.Marshal(text)
	return fmt.Sprintf(`{"model":"test-vl","messages":[{"role":"user","content":%s}]%s}`, b, more)
}

func TestAnswerForms(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64, Adapters: []Adapter{{Name: "tuned", Path: "/adapters/tuned"},
		{Name: "later", Path: "/adapters/later", Later: true}}})
	status, body := call(t, w, "POST", "/v1/chat/completions", chat(words(10, "a"), `,"max_tokens":3,"return_token_ids":true`),
		"X-Request-Id", "r1")
	r := gjson.Parse(body)
	if status != 200 || r.Get("id").Str != "chatcmpl-r1" || r.Get("object").Str != "chat.completion" ||
		r.Get("choices.0.finish_reason").Str != "length" ||
		len(r.Get("prompt_token_ids").Array()) != 10 || len(r.Get("choices.0.token_ids").Array()) != 3 ||
		r.Get("usage.prompt_tokens").Int() != 10 || r.Get("usage.total_tokens").Int() != 13 ||
		r.Get("usage.prompt_tokens_details.cached_tokens").Int() != 0 {
		t.Errorf("chat: %d %s", status, body)
	}
	answer := r.Get("choices.0.message.content").Str

	// The same, streamed: same text, its two full blocks are now cached, usage in the last chunk.
	status, body = call(t, w, "POST", "/v1/chat/completions",
		chat(words(10, "a"), `,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}`))
	var text string
	chunks := sse(t, body)
	for _, c := range chunks {
		text += c.Get("choices.0.delta.content").Str
	}
	last := chunks[len(chunks)-1]
	if status != 200 || text != answer || chunks[0].Get("choices.0.delta.role").Str != "assistant" || len(chunks) != 1+3+1 ||
		chunks[3].Get("choices.0.finish_reason").Str != "length" || last.Get("choices.#").Int() != 0 ||
		last.Get("usage.prompt_tokens_details.cached_tokens").Int() != 8 {
		t.Errorf("stream: %d %s", status, body)
	}

	// Two prompts in one completion request.
	status, body = call(t, w, "POST", "/v1/completions", `{"model":"tuned","prompt":["x1 x2 x3 x4 x5","y1 y2"],"max_tokens":2}`)
	r = gjson.Parse(body)
	if status != 200 || r.Get("choices.#").Int() != 2 || r.Get("choices.1.text").Str == "" ||
		r.Get("usage.prompt_tokens").Int() != 7 || r.Get("usage.completion_tokens").Int() != 4 || r.Get("model").Str != "tuned" {
		t.Errorf("completions: %d %s", status, body)
	}
	_, body = call(t, w, "POST", "/v1/completions", `{"prompt":"x1 x2 x3 x4 x5","max_tokens":2,"stream":true}`)
	chunks = sse(t, body)
	if len(chunks) != 2 || chunks[0].Get("choices.0.text").Str == "" {
		t.Errorf(`completions, streamed: got %s, want len(chunks) == 2, chunks[0].Get("choices.0.text").Str != ""`, body)
	}
	_, body = call(t, w, "POST", "/tokenize", `{"prompt":"x1 x2 x3"}`)
	if gjson.Get(body, "count").Int() != 3 {
		t.Errorf("tokenize: %s", body)
	}
	_, body = call(t, w, "GET", "/v1/models", "")
	r = gjson.Parse(body)
	if r.Get("data.0.root").Str != "test-vl" || r.Get("data.0.parent").Type != gjson.Null ||
		r.Get("data.1.parent").Str != "test-vl" || r.Get("data.1.root").Str != "/adapters/tuned" {
		t.Errorf("models: %s", body)
	}
	_, body = call(t, w, "GET", "/version", "")
	if gjson.Get(body, "version").Str != "0.32.0" {
		t.Errorf("version: %s", body)
	}
	status, _ = call(t, w, "GET", "/health", "")
	if status != 200 {
		t.Errorf("health: got %d, want 200", status)
	}
	_, body = call(t, w, "GET", "/metrics", "")
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="test-vl"} 0`,
		`vllm:prefix_cache_queries_total{engine="0",model_name="test-vl"} 32`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="test-vl"} 8`, // an adapter's blocks are its own
		`block_size="4",cache_dtype="auto",enable_prefix_caching="True",engine="0"`, `num_gpu_blocks="64"`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="test-vl"} 5`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s in\n%s", want, body)
		}
	}
}

func sse(t *testing.T, body string) []gjson.Result {
	t.Helper()
	var chunks []gjson.Result
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	for i, e := range events {
		data, ok := strings.CutPrefix(e, "data: ")
		if i == len(events)-1 {
			if data != "[DONE]" {
				t.Fatalf("stream ends with %q, want %q", data, "[DONE]")
			}
			break
		}
		if !ok || !gjson.Valid(data) {
			t.Fatalf("not an event: got %q, want ok, gjson.Valid(data)", e)
		}
		chunks = append(chunks, gjson.Parse(data))
	}
	return chunks
}

func TestRefusals(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 8, Ranks: 2})
	for _, c := range []struct {
		name, body string
		status     int
		headers    []string
	}{
		{"not JSON", `{`, 400, nil},
		{"not an object", `[]`, 400, nil},
		{"unknown model", `{"model":"other"}`, 404, nil},
		{"unknown part", `{"messages":[{"content":[{"type":"sound"}]}]}`, 400, nil},
		{"nothing", `{"messages":[]}`, 400, nil},
		{"too long", chat(words(40, "w"), ""), 400, nil},
		{"no tokens wanted", chat("a b", `,"max_tokens":0`), 400, nil},
		{"huge answer", chat("a b", `,"max_tokens":1e18`), 400, nil},
		{"rank out of range", chat("a b", ""), 400, []string{"X-Data-Parallel-Rank", "7"}},
		{"upper-case base64", image("DATA:IMAGE/PNG;BASE64,", ""), 501, nil},
		{"bad base64", image("data:image/png;base64,#", ""), 400, nil},
		{"newline in base64", image(`data:image/png;base64,AA\nAA`, ""), 400, nil},
		{"foreign host", image("http://192.0.2.1/x.png", ""), 400, nil},
		{"file", image("file:///etc/passwd", ""), 400, nil},
		{"uuid never seen", `{"messages":[{"content":[{"type":"image_url","image_url":null,"uuid":"u","tokens":4}]}]}`, 400, nil},
	} {
		status, body := call(t, w, "POST", "/v1/chat/completions", c.body, c.headers...)
		if status != c.status || int(gjson.Get(body, "error.code").Int()) != status || gjson.Get(body, "error.message").Str == "" {
			t.Errorf("%s: %d %s, want %d", c.name, status, body, c.status)
		}
	}
}

func image(url, more string) string {
	return fmt.Sprintf(`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%s"},"tokens":6%s},{"type":"text","text":"see this please"}]}]}`, url, more)
}

// One image by data URL and by http URL has one name; the encoder works once, and not at all for what is cached.
func TestImages(t *testing.T) {
	file := []byte("not really an image")
	w := start(t, Config{BlockSize: 4, Blocks: 64})
	server := http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/missing" {
			http.NotFound(rw, r)
			return
		}
		_, _ = io.Copy(rw, bytes.NewReader(file))
	})}
	l := listenLoopback(t)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	link := "http://" + l.Addr().String()

	for i, c := range []struct {
		body            string
		status          int
		encoded, cached int
	}{
		{image("data:image/png;base64,bm90IHJlYWxseSBhbiBpbWFnZQ==", ""), 200, 1, 0},
		{image(link+"/a", ""), 200, 1, 8},
		{image("data:image/png;base64,YW5vdGhlcg==", ""), 200, 2, 8},            // another image: no hit
		{image("data:image/png;base64,YW5vdGhlcg==", `,"uuid":"u"`), 200, 3, 8}, // the same under the client's name
		{image("", `,"uuid":"u"`), 200, 3, 16},
		{image(link+"/missing", ""), 422, 3, 16},
	} {
		status, body := call(t, w, "POST", "/v1/chat/completions", c.body)
		s := w.Stats()
		if status != c.status || s.ImagesEncoded != c.encoded || s.CachedTokens != c.cached {
			t.Errorf("step %d: %d, %d images encoded, %d tokens cached, want %d, %d, %d; %s", i, status, s.ImagesEncoded,
				s.CachedTokens, c.status, c.encoded, c.cached, body)
		}
	}
	if _, body := call(t, w, "GET", "/metrics", ""); !strings.Contains(body,
		`vllm:mm_cache_queries_total{engine="0",model_name="test-vl"} 5`) ||
		!strings.Contains(body, `vllm:mm_cache_hits_total{engine="0",model_name="test-vl"} 2`) {
		t.Errorf("processor cache not counted:\n%s", body)
	}
}

// A client that goes away ends its generation, and its blocks are free again.
func TestDisconnect(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 1024, Speed: 1, MaxSeqs: 1, Time: TimeModel{Decode: time.Millisecond}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 { // one runs, one waits
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+w.Addr()+"/v1/chat/completions",
			strings.NewReader(chat("a b c d e", `,"max_tokens":4000,"stream":true`)))
		go func() {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
	}
	eventually(t, "one running, one waiting", func() bool { s := w.Stats(); return s.Running == 1 && s.Waiting == 1 })
	if w.ResetPrefixCache() {
		t.Error("reset worked under a running request")
	}
	cancel()
	eventually(t, "both aborted", func() bool { s := w.Stats(); return s.Aborted == 2 && s.Running+s.Waiting == 0 })
	if !w.ResetPrefixCache() {
		t.Error("blocks are still in use")
	}
}

// With too few blocks for all, the request admitted last steps back and ends later; every answer is whole.
func TestPreemption(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 17, MaxModelLen: 44, Speed: 1, Time: TimeModel{Decode: 200 * time.Microsecond}})
	answers := make(chan string, 4)
	for i := range 4 {
		go func() {
			_, body := call(t, w, "POST", "/v1/chat/completions", chat(words(6, fmt.Sprint("p", i)), `,"max_tokens":30,"return_token_ids":true`))
			answers <- body
		}()
	}
	for range 4 {
		if body := <-answers; len(gjson.Get(body, "choices.0.token_ids").Array()) != 30 {
			t.Errorf("answer is not whole: %s", body)
		}
	}
	if s := w.Stats(); s.Preempted == 0 || s.PromptTokens != 24 || !w.ResetPrefixCache() {
		t.Errorf("want preemptions, and all blocks free again: %+v", s)
	}
}

func TestTimeModel(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64, Speed: 2, Time: TimeModel{Encode: 100 * time.Millisecond,
		Prefill: 4 * time.Millisecond, Decode: 2 * time.Millisecond}})
	took := func(body string) time.Duration {
		t0 := time.Now()
		if status, answer := call(t, w, "POST", "/v1/chat/completions", body); status != 200 {
			t.Fatalf("got %d %s, want 200", status, answer)
		}
		return time.Since(t0)
	}
	// 9 tokens and one image: 50 + 18 ms; the second time 1 token: 2 ms.
	body := image("data:image/png;base64,AAAA", "")
	if cold := took(body); cold < 68*time.Millisecond {
		t.Errorf("cold: got %v, want at least %v", cold, 68*time.Millisecond)
	}
	if warm := w.Stats(); warm.PrefilledTokens != 9 {
		t.Errorf("prefilled %d tokens, want 9", warm.PrefilledTokens)
	}
	if warm := took(body); warm < 2*time.Millisecond || w.Stats().PrefilledTokens != 10 {
		t.Errorf("warm: got %v and %d tokens prefilled, want at least %v, 10", warm, w.Stats().PrefilledTokens, 2*time.Millisecond)
	}
}

// A stream's headers come before anything is computed, those of another answer behind all of it.
func TestHeadersComeFirst(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64, Speed: 1, Time: TimeModel{Prefill: time.Hour}})
	for _, stream := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if !stream {
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		}
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+w.Addr()+"/v1/chat/completions",
			strings.NewReader(chat("a b", fmt.Sprintf(`,"stream":%v`, stream))))
		resp, err := http.DefaultClient.Do(req)
		if stream && (err != nil || resp.StatusCode != 200) || !stream && err == nil {
			t.Errorf("stream %v: %v, %v", stream, resp, err)
		}
		cancel()
		if err == nil {
			resp.Body.Close()
		}
	}
}

// Each engine tells its load under its own names, and a slower worker is slower from the next step on.
func TestLoadMetrics(t *testing.T) {
	for engine, c := range map[Engine]struct{ path, running, waiting, usage string }{
		VLLM: {"/metrics", `vllm:num_requests_running{engine="0",model_name="test-vl"} 1`,
			`vllm:num_requests_waiting{engine="0",model_name="test-vl"} 1`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="test-vl"} 0.25`},
		SGLang: {"/metrics", `sglang:num_running_reqs{engine_type="unified",model_name="test-vl",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1`,
			`sglang:num_queue_reqs{engine_type="unified",model_name="test-vl",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1`,
			`sglang:token_usage{engine_type="unified",model_name="test-vl",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.25`},
		TRTLLMZMQ: {"/prometheus/metrics", `trtllm_num_requests_running{engine_type="trtllm",model_name="test-vl"} 1`,
			`trtllm_num_requests_waiting{engine_type="trtllm",model_name="test-vl"} 1`,
			`trtllm_kv_cache_utilization{engine_type="trtllm",model_name="test-vl"} 0.25`},
	} {
		w := start(t, Config{Engine: engine, BlockSize: 4, Blocks: 9, MaxSeqs: 1, Speed: 1, Time: TimeModel{Prefill: time.Second}})
		if status, body := call(t, w, "POST", "/sim/slow?by=3600", ""); status != 200 {
			t.Fatalf("%q: got %d, want 200", body, status)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+w.Addr()+"/v1/chat/completions",
				strings.NewReader(chat(words(8, "w"), `,"stream":true`)))
			if resp, err := http.DefaultClient.Do(req); err != nil {
				t.Fatal(err)
			} else {
				defer resp.Body.Close()
			}
		}
		eventually(t, "one runs, one waits", func() bool { s := w.Stats(); return s.Running == 1 && s.Waiting == 1 })
		_, body := call(t, w, "GET", c.path, "")
		for _, want := range []string{c.running, c.waiting, c.usage} {
			if !strings.Contains(body, want+"\n") {
				t.Errorf("%s: no %s in\n%s", engine, want, body)
			}
		}
		cancel()
	}
}

func TestFaults(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64})
	url := "http://" + w.Addr() + "/v1/chat/completions"
	set := func(mode string) {
		if status, body := call(t, w, "POST", "/sim/fault?mode="+mode, ""); status != 200 {
			t.Fatalf("%s: got %d %s, want 200", mode, status, body)
		}
	}
	refuses := func(health int) {
		t.Helper()
		for _, path := range []string{"/health", "/v1/models", "/metrics"} {
			if status, _ := call(t, w, "GET", path, ""); status != health {
				t.Errorf("%s: %d, want %d", path, status, health)
			}
		}
		if status, _ := call(t, w, "POST", "/v1/chat/completions", chat("a", "")); status != 503 {
			t.Errorf("a request: %d, want 503", status)
		}
	}
	set("refuse")
	refuses(200)
	set("refuse&deaf=1")
	refuses(503)
	set("hang")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(chat("a", "")))
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("a hanging worker answered: got %v, want an error", err)
	}
	set("die-after-first-byte")
	for _, stream := range []string{"true", "false"} {
		resp, err := http.Post(url, "application/json", strings.NewReader(chat("a", `,"stream":`+stream)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil || len(got) == 0 || strings.Contains(string(got), "[DONE]") {
			t.Errorf("stream %s: %q, %v; want a first piece and a broken connection", stream, got, err)
		}
	}
	set("healthy")
	if status, body := call(t, w, "POST", "/v1/chat/completions", chat("a", "")); status != 200 {
		t.Errorf("healed: got %d %s, want 200", status, body)
	}
}

func TestConfigErrors(t *testing.T) {
	good := func() Config { return Config{Model: "m", Prompt: wordPrompt} }
	for name, spoil := range map[string]func(*Config){
		"no model":  func(c *Config) { c.Model = "" },
		"no prompt": func(c *Config) { c.Prompt = nil },
		"version":   func(c *Config) { c.Version = "1.0" },
		"algorithm": func(c *Config) { c.HashAlgo = "md5" },
		"media":     func(c *Config) { c.MediaAlgo = "md5" },
		"blocks":    func(c *Config) { c.Blocks = 1 },
		"address":   func(c *Config) { c.Listen = "nowhere:x" },
		"events":    func(c *Config) { c.Events = "nowhere:x" },
	} {
		c := good()
		spoil(&c)
		if w, err := New(c); err == nil {
			w.Close()
			t.Errorf("%s was accepted: got %v, want an error", name, err)
		}
	}
}

// FuzzRequest sends any body: the worker answers, refuses, and goes on.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		chat("a b c", `,"max_tokens":2,"return_token_ids":true,"prompt_logprobs":1`),
		image("data:image/png;base64,AAAA", `,"uuid":7`), image("http://127.0.0.1:1/x", ""), image("", `,"uuid":null`),
		`{"prompt":["a","b c"],"stream":true,"stream_options":{"include_usage":true},"max_tokens":1}`,
		`{"messages":[{"content":[{"type":"video_url","video_url":{"url":"data:;base64,AA=="}}]}],"mm_processor_kwargs":{"a":[1.5,null,{"b":true}]}}`,
		`{"messages":5,"max_tokens":-1e99,"cache_salt":{},"model":[]}`,
	} {
		f.Add([]byte(seed))
	}
	w, err := New(Config{Model: "test-vl", Prompt: wordPrompt, BlockSize: 4, Blocks: 64})
	if err != nil {
		f.Fatal(err)
	}
	w.Start()
	f.Cleanup(w.Close)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			rec := httptest.NewRecorder()
			w.server.Handler.ServeHTTP(rec, httptest.NewRequest("POST", path, bytes.NewReader(body)))
			if rec.Code >= 500 && rec.Code != 501 {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		}
	})
}

func BenchmarkRequest8k(b *testing.B) {
	tokens := make([]uint32, 8192)
	n := uint32(0)
	w, err := New(Config{Model: "m", Prompt: func(context.Context, string, []byte) ([]Prompt, error) {
		p := Prompt{Tokens: append([]uint32(nil), tokens...)}
		n++
		p.Tokens[0] = n // every prompt is new, so all blocks are stored, and old ones removed
		return []Prompt{p}, nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	w.Start()
	defer w.Close()
	for b.Loop() {
		rec := httptest.NewRecorder()
		w.server.Handler.ServeHTTP(rec, httptest.NewRequest("POST", "/v1/completions", strings.NewReader(`{"max_tokens":1}`)))
		if rec.Code != 200 {
			b.Fatalf("%+v: got %d, want 200", rec.Body, rec.Code)
		}
	}
	b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

// TestOtherAPIs: /v1/responses and /v1/messages are answered in their own forms, whole and as streams, with a call where a tool is
// demanded; and a fault that begins after a number of requests.
func TestOtherAPIs(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64, Fault: Refuse, FaultAfter: 9})
	ask := func(path, more string) string {
		t.Helper()
		status, body := call(t, w, "POST", path, chat("a b c d e", `,"max_tokens":3,"max_output_tokens":3`+more))
		if status != 200 {
			t.Fatalf("%s: got %d %s, want 200", path, status, body)
		}
		return body
	}
	const tools = `,"tools":[{"type":"function","name":"look","function":{"name":"look"}}],"tool_choice":`
	responses, messages := gjson.Parse(ask(responsesPath, "")), gjson.Parse(ask(messagesPath, ""))
	if responses.Get("output.0.content.0.text").Str == "" || responses.Get("usage.input_tokens").Int() != 5 ||
		responses.Get("output.0.content.0.text").Str != messages.Get("content.0.text").Str || messages.Get("usage.input_tokens").Int() != 5 ||
		messages.Get("stop_reason").Str != "max_tokens" {
		t.Errorf("%s\n%s", responses, messages)
	}
	for body, want := range map[string]string{
		ask(responsesPath, `,"stream":true`): "response.created response.in_progress response.output_item.added response.content_part.added " +
			strings.Repeat("response.output_text.delta ", 3) +
			"response.output_text.done response.content_part.done response.output_item.done response.completed ",
		ask(messagesPath, `,"stream":true`): "message_start content_block_start " + strings.Repeat("content_block_delta ", 3) +
			"content_block_stop message_delta message_stop ",
		ask(responsesPath, `,"stream":true`+tools+`"required"`): "response.created response.in_progress response.output_item.added " +
			"response.function_call_arguments.delta response.function_call_arguments.done response.output_item.done response.completed ",
	} {
		got := ""
		for line := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				got += gjson.Get(data, "type").Str + " "
			}
		}
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	if r := gjson.Parse(ask(messagesPath, tools+`{"type":"any"}`)); r.Get("content.0.name").Str != "look" ||
		r.Get("content.0.input.text").Str == "" || r.Get("stop_reason").Str != "tool_use" {
		t.Errorf("%s", r)
	}
	named := tools + `{"type":"function","function":{"name":"look"}}`
	if r := gjson.Parse(ask("/v1/chat/completions", named)); r.Get("choices.0.message.tool_calls.0.function.name").Str != "look" ||
		r.Get("choices.0.finish_reason").Str != "tool_calls" {
		t.Errorf("%s", r)
	}
	if chunks := sse(t, ask("/v1/chat/completions", named+`,"stream":true`)); len(chunks) != 1 ||
		chunks[0].Get("choices.0.delta.tool_calls.0.function.arguments").Str == "" {
		t.Errorf(`got %v, want len(chunks) == 1, chunks[0].Get("choices.0.delta.tool_calls.0.function.arguments").Str != ""`, chunks)
	}
	ask("/v1/chat/completions", "")
	if status, _ := call(t, w, "POST", responsesPath, chat("a", "")); status != 503 {
		t.Errorf("the tenth request: %d, want 503", status)
	}
}
