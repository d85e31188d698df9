package generate

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/lab/fakekube"
	"github.com/sightline-router/sightline/lab/sim"
)

const modelDir = "../../examples/models/qwen2.5-vl"

func start(t *testing.T, cfg sim.Config) *sim.Worker {
	t.Helper()
	cfg.Prompt = func(context.Context, string, []byte) ([]sim.Prompt, error) {
		return []sim.Prompt{{Tokens: make([]uint32, 40)}}, nil
	}
	w, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	t.Cleanup(w.Close)
	return w
}

// run drafts into a new directory and returns what was written, without comments, and what was printed; each worker's address is
// replaced by W0, W1 and so on, its sockets' by PUB0 and REPLAY0.
func run(t *testing.T, o Options, fleet ...*sim.Worker) (text, said string, err error) {
	t.Helper()
	names := []string{}
	for i, w := range fleet {
		o.Workers = append(o.Workers, w.Addr())
		for name, at := range map[string]string{"W": w.Addr(), "PUB": w.EventsAddr(), "REPLAY": w.ReplayAddr()} {
			if at != "" {
				name = fmt.Sprint(name, i)
				names = append(names, `"`+at+`"`, name, at, name)
			}
		}
	}
	if o.Out == "" {
		o.Out = filepath.Join(t.TempDir(), "new")
	}
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	var say strings.Builder
	err = Run(t.Context(), o, &say)
	written, _ := os.ReadFile(filepath.Join(o.Out, configFile))
	for line := range strings.Lines(string(written)) {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) != "" {
			text += strings.TrimRight(line, " \n") + "\n"
		}
	}
	if _, missing := os.Stat(filepath.Join(o.Out, envoyFile)); (missing == nil) != (err == nil) {
		t.Errorf("envoy.yaml: %v, but %v, want (missing == nil) == (err == nil)", missing, err)
	}
	r := strings.NewReplacer(names...)
	return r.Replace(text), r.Replace(say.String()), err
}

// TestKeyAndTLS: a worker that wants a key, or speaks TLS, is named as such with the flag; with it, the configuration gets the key.
func TestKeyAndTLS(t *testing.T) {
	w := start(t, sim.Config{Model: "m"})
	there := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: w.Addr()})
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		there.ServeHTTP(rw, r)
	}))
	front.EnableHTTP2 = false
	front.StartTLS()
	defer front.Close()
	dir := t.TempDir()
	ca, key, wrong := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key"), filepath.Join(dir, "wrong")
	for file, text := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}),
		key: []byte("secret\n"), wrong: []byte("x")} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		access secure.Peer
		err    string
	}{
		{secure.Peer{}, "it speaks TLS: worker_access.ca"},
		{secure.Peer{CA: ca}, "status 401: the worker wants a key, or another one: worker_access.api_key_file (here: --api-key-file FILE"},
		{secure.Peer{CA: ca, APIKeyFile: wrong}, "the worker wants a key, or another one"},
		{secure.Peer{CA: ca, APIKeyFile: key}, ""},
	} {
		o := Options{Workers: []string{front.Listener.Addr().String()}, ModelDir: []string{modelDir}, Access: c.access, Canary: true}
		text, _, err := run(t, o)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
			strings.Contains(fmt.Sprint(text, err), "secret") {
			t.Errorf(`%+v: %v, want (err == nil) == (c.err == ""), no error or %q in err.Error(), no "secret" in `+
				`fmt.Sprint(text, err)`, c.access, err, c.err)
		}
		if want := "worker_access:\n  ca: " + ca + "\n  api_key_file: " + key + "\n"; err == nil && !strings.HasPrefix(text, want) {
			t.Errorf("%s, want an error or strings.HasPrefix(text, want)", text)
		}
	}
	typed := []string{"sk-typed", ""}
	o := Options{Workers: []string{front.Listener.Addr().String()}, Access: secure.Peer{CA: ca}}
	o.Question = func(string) (answer string) { answer, typed = typed[0], typed[1:]; return answer }
	_, said, err := run(t, o)
	if err == nil || len(typed) > 0 || strings.Contains(fmt.Sprint(said, err), "sk-typed") {
		t.Errorf("a key typed in place of its file: got %s, %v, want it not repeated", said, err)
	}
}

// TestHostileCertificate: the names in a worker's certificate are shown on a terminal without their control characters.
func TestHostileCertificate(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a\x1b[2J"}}
	der, err := x509.CreateCertificate(nil, cert, cert, public, private)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(http.NotFoundHandler())
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}
	front.StartTLS()
	defer front.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Workers: []string{front.Listener.Addr().String()}, Access: secure.Peer{CA: ca, Name: "b"},
		Question: func(string) string { return "" }}
	_, said, err := run(t, o)
	if err == nil || !strings.Contains(said, "[2J") || strings.ContainsRune(said, '\x1b') {
		t.Errorf("init: got %q, %v, want the name without its escape", said, err)
	}
	out := new(strings.Builder)
	_, given, wrong := Given(o, out)
	if wrong != nil {
		t.Fatal(wrong)
	}
	given.Say("", err)
	if !strings.Contains(out.String(), "[2J") || strings.ContainsRune(out.String(), '\x1b') {
		t.Errorf("serve: got %q, want the name without its escape", out)
	}
}

// TestFleets: the exact keys written for each kind of fleet; Run itself checks that they are valid. The output names the flags that
// the workers lack.
func TestFleets(t *testing.T) {
	dir, _ := filepath.Abs(modelDir)
	vllm := sim.Config{Model: "o/m", ServedName: "m"}
	for name, c := range map[string]struct {
		fleet    []sim.Config
		dirs     []string
		canary   bool
		want     string
		says     []string
		saysNone []string
	}{
		"vLLM": {fleet: []sim.Config{vllm, {Model: "o/m", ServedName: "m", Adapters: []sim.Adapter{{Name: "sql", Path: "/l"}}, Ranks: 2}},
			canary: true,
			want: `models:
- name: m
  adapters: [sql]
  dir: DIR
  engine_version: 0.32.0
  engine_model: o/m
  max_model_len: 65520
workers:
- addr: W0
  events: {auto: true}
- addr: W1
  ranks: 2
  events: {auto: true}
envoy:
  token_usage: true
`, says: []string{"W0: vllm 0.32.0, simulated, serves m, blocks of 16 tokens, KV events at PUB0"},
			saysNone: []string{"switch on", "Not learnt"}},
		"without flags": {fleet: []sim.Config{{Model: "m", Bare: true}}, canary: true,
			want: `models:
- name: m
  dir: DIR
  engine_version: 0.32.0
  max_model_len: 65520
workers:
- addr: W0
`, says: []string{"W0: the worker publishes no KV events", `--kv-events-config '{"enable_kv_cache_events":true`,
				"--enable-prompt-tokens-details", ", no KV events"}},
		"two classes and another engine": {fleet: []sim.Config{{Model: "o/m", ServedName: "m", Version: "0.30.0",
			BlockSize: 32, MaxModelLen: 9000},
			{Model: "o/m", ServedName: "m", MaxModelLen: 9000}, {Model: "o/m", ServedName: "m", MaxModelLen: 9000},
			{Engine: sim.SGLang, Model: "o/m", ServedName: "m", MaxModelLen: 9000}},
			want: `models:
- name: m
  dir: DIR
  engine_version: 0.32.0
  engine_model: o/m
  max_model_len: 9000
  classes:
  - name: v0.30.0
    engine_version: 0.30.0
  - name: sglang
    engine: sglang
    engine_version: 0.5.23
workers:
- addr: W1
  events: {auto: true}
- addr: W2
  events: {auto: true}
- addr: W0
  class: v0.30.0
- addr: W3
  class: sglang
  events: {auto: true}
envoy:
  token_usage: true
`, says: []string{"W0: vllm 0.30.0 does not say where it publishes KV events", "W1: whether answers report cached tokens ("}},
		"SGLang of two ages": {fleet: []sim.Config{{Engine: sim.SGLang, Model: "o/m", ServedName: "m", BlockSize: 1, Blocks: 9999},
			{Engine: sim.SGLang, Version: "0.5.20", Model: "o/m", ServedName: "m", BlockSize: 1, Blocks: 9999, Topic: "kv", Bare: false}},
			want: `models:
- name: m
  dir: DIR
  engine: sglang
  engine_version: 0.5.23
  engine_model: o/m
  max_model_len: 9998
  classes:
  - name: v0.5.20
    engine_version: 0.5.20
workers:
- addr: W0
  events: {auto: true}
- addr: W1
  class: v0.5.20
  events: {zmq: PUB1, replay: REPLAY1}
envoy:
  token_usage: true
`, says: []string{"--page-size 16"}, saysNone: []string{"sk-secret"}},
		"TensorRT-LLM": {fleet: []sim.Config{{Engine: sim.TRTLLM, Model: "m", BlockSize: 32}},
			want: `models:
- name: m
  dir: DIR
  engine: trtllm
  engine_version: 1.3.0
  block_size: 32
workers:
- addr: W0
  events: {http: "http://W0"}
`, says: []string{"event_buffer_max_size: 16384", "drained"}},
		"a worker that refers to our secrets": {fleet: []sim.Config{{Model: "${env:HOME} # x"}},
			want: `models:
- name: "$${env:HOME}
  dir: DIR
  engine_version: 0.32.0
  max_model_len: 65520
workers:
- addr: W0
  events: {auto: true}
`},
		"two models": {fleet: []sim.Config{{Model: "a"}, {Model: "b: c"}}, dirs: []string{"a=" + modelDir, "b: c=" + modelDir},
			want: `models:
- name: a
  dir: DIR
  engine_version: 0.32.0
  max_model_len: 65520
- name: "b: c"
  dir: DIR
  engine_version: 0.32.0
  max_model_len: 65520
workers:
- addr: W0
  model: a
  events: {auto: true}
- addr: W1
  model: "b: c"
  events: {auto: true}
`},
	} {
		t.Run(name, func(t *testing.T) {
			var fleet []*sim.Worker
			for _, cfg := range c.fleet {
				fleet = append(fleet, start(t, cfg))
			}
			if c.dirs == nil {
				c.dirs = []string{modelDir}
			}
			text, said, err := run(t, Options{ModelDir: c.dirs, Canary: c.canary}, fleet...)
			text = strings.ReplaceAll(text, dir, "DIR")
			if err != nil || text != c.want {
				t.Errorf("%v\n%s\nwant\n%s", err, text, c.want)
			}
			for _, s := range append(c.says, "sightline serve -c") {
				if !strings.Contains(said, s) {
					t.Errorf("does not say %q:\n%s, want it in said", s, said)
				}
			}
			for _, s := range c.saysNone {
				if strings.Contains(said+text, s) {
					t.Errorf("says %q:\n%s, want it not in said+text", s, said)
				}
			}
		})
	}
}

// TestPods: pods are asked at their current addresses, and followed by their selector; kubectl's proxy authenticates us.
func TestPods(t *testing.T) {
	api, err := fakekube.Start(t.TempDir(), "models")
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer secret-token")
		api.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	w := start(t, sim.Config{Engine: sim.SGLang, Version: "0.5.20", Model: "m"})
	at := netip.MustParseAddrPort(w.Addr())
	api.Put("vllm-1", "vllm", int(at.Port()), fakekube.Pod{Name: "a", IP: "127.0.0.1", Ready: true}, fakekube.Pod{Name: "b", IP: "127.0.0.2"})
	group := Pods{API: proxy.URL, Namespace: "models", Selector: "kubernetes.io/service-name=vllm"}
	text, _, err := run(t, Options{Groups: []Pods{group}, ModelDir: []string{modelDir}})
	dir, _ := filepath.Abs(modelDir)
	port := func(endpoint string) string { return endpoint[strings.LastIndexByte(endpoint, ':'):] }
	want := `models:
- name: m
  dir: ` + dir + `
  engine: sglang
  engine_version: 0.5.20
  block_size: 16
  max_model_len: 65520
kubernetes:
  api: ` + proxy.URL + `
  workers:
  - selector: kubernetes.io/service-name=vllm
    namespace: models
    events: {zmq: "tcp://{ip}` + port(w.EventsAddr()) + `", replay: "tcp://{ip}` + port(w.ReplayAddr()) + `"}
envoy:
  worker_networks: ["127.0.0.0/16` + port(w.Addr()) + `"]
  token_usage: true
`
	if plain := strings.ReplaceAll(text, `"`, ""); err != nil || plain != strings.ReplaceAll(want, `"`, "") {
		t.Errorf("%v\n%s\nwant\n%s", err, text, want)
	}
}

// TestFiles: where a model's files are searched, in order, and the error if they are not found.
func TestFiles(t *testing.T) {
	dir, _ := filepath.Abs(modelDir)
	w, local, gone := start(t, sim.Config{Model: "o/m", ServedName: "m"}), start(t, sim.Config{Model: dir}),
		start(t, sim.Config{Model: "/no/such/model"})
	cache := t.TempDir()
	snapshot := filepath.Join(cache, "hub", "models--o--m", "snapshots", "c0ffee")
	if err := os.CopyFS(snapshot, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	hub := localHub(t)
	for name, c := range map[string]struct {
		worker    *sim.Worker
		env       map[string]string
		dir, want string // the configuration's dir, and why there is none
	}{
		"the workers' path":     {local, nil, "dir: " + dir + "\n", ""},
		"a path that is theirs": {gone, nil, "", "its requests are learned: "},
		"a cache":               {w, map[string]string{"HF_HOME": cache}, "dir: " + cache + "/hub/models--o--m\n", ""},
		"a hub":                 {w, map[string]string{"HF_ENDPOINT": hub.URL, "HOME": "/nowhere"}, "dir: models/o--m\n", ""},
		"nowhere":               {w, nil, "models:\n- name: m\n  engine_version", "HF_ENDPOINT is not set"},
	} {
		text, said, err := run(t, Options{Getenv: func(key string) string { return c.env[key] }}, c.worker)
		if err != nil || !strings.Contains(text, c.dir) || !strings.Contains(said, c.want) ||
			c.want != "" && strings.Contains(text, "dir:") {
			t.Errorf("%s: got %v, %s\n%s\nwant %s, %s", name, err, said, text, c.dir, c.want)
		}
	}
}

// localHub is a hub with the test's model under every name.
func localHub(t *testing.T) *httptest.Server {
	hub := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/models/no/") {
			http.NotFound(rw, r)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			list, _ := os.ReadDir(modelDir)
			var files []string
			for _, f := range list {
				files = append(files, fmt.Sprintf(`{"rfilename":%q}`, f.Name()))
			}
			fmt.Fprintf(rw, `{"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[%s]}`, strings.Join(files, ","))
			return
		}
		http.ServeFile(rw, r, filepath.Join(modelDir, filepath.Base(r.URL.Path)))
	}))
	t.Cleanup(hub.Close)
	return hub
}

// TestMissing: what a configuration's models lack is fetched once, a class's too; what is there stays, and one failure stops no other.
func TestMissing(t *testing.T) {
	hub, dir := localHub(t), t.TempDir()
	here, _ := filepath.Abs(modelDir)
	file := filepath.Join(dir, configFile)
	text := `models:
- {name: a, dir: models/a, engine_version: 0.32.0, engine_model: o/a, revision: v1, classes: [{name: new, revision: v2}, {name: c, dir: models/c}]}
- {name: gone, dir: models/gone, engine_version: 0.32.0, engine_model: no/no}
- {name: here, dir: ` + here + `, engine_version: 0.32.0}
- {name: o/learned, engine_version: 0.32.0}
- {name: o/b, dir: models/b, engine_version: 0.32.0, engine_model: /their/path}
workers: [{model: a, addr: "127.0.0.1:1"}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	said := &strings.Builder{}
	env := map[string]string{"HF_ENDPOINT": hub.URL, "HOME": "/nowhere"}
	err = Missing(t.Context(), &cfg, func(key string) string { return env[key] }, said)
	for _, want := range []string{"o/a at v1, and o/a at v2 (want a dir for each)", "model gone: no/no at main: status 404"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	for _, want := range []string{"models/a: fetched o/a", "models/c: fetched o/a", "models/b: fetched o/b", here + ": there already"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%s\nwant %s", said, want)
		}
	}
	left, _ := os.ReadDir(filepath.Join(dir, "models"))
	if len(left) != 3 || !isModel(filepath.Join(dir, "models", "a")) {
		t.Errorf(`left behind: got %v, want len(left) == 3, isModel(filepath.Join(dir, "models", "a"))`, left)
	}
	hub.Close()
	said.Reset()
	err = Missing(t.Context(), &cfg, func(key string) string { return env[key] }, said)
	if err == nil || strings.Count(said.String(), "there already") != 5 || strings.Contains(said.String(), "fetched") {
		t.Errorf("a second run: %v\n%s, want an error, strings.Count(said.String(), \"there already\") == 5, no \"fetched\" in "+
			"said.String()", err, said)
	}
}

// TestRefusals: nothing is overwritten, nothing invalid is written, and no worker is left out.
func TestRefusals(t *testing.T) {
	w := start(t, sim.Config{Model: "m"})
	gone := start(t, sim.Config{Model: "m"})
	gone.Close()
	taken, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(taken, envoyFile), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string
		w    []*sim.Worker
	}{
		"taken":         {Options{Out: taken}, "move it away", []*sim.Worker{w}},
		"no model":      {Options{Out: empty, ModelDir: []string{empty}}, "nothing is written", []*sim.Worker{w}},
		"no directory":  {Options{Out: empty, ModelDir: []string{empty + "/none"}}, "/none is not a directory on this machine", []*sim.Worker{w}},
		"twice":         {Options{Out: empty}, "is given twice", []*sim.Worker{w, w}},
		"no port":       {Options{Out: empty, Workers: []string{"127.0.0.1"}}, "--worker 127.0.0.1: no address of a worker (want host:port", nil},
		"a URL":         {Options{Out: empty, Workers: []string{"http://127.0.0.1:80"}}, "want host:port", nil},
		"unreachable":   {Options{Out: empty, ModelDir: []string{modelDir}}, gone.Addr(), []*sim.Worker{w, gone}},
		"nobody":        {Options{Out: empty}, "0 workers", nil},
		"not in a pod":  {Options{Out: empty, Groups: []Pods{{Selector: "app=x"}}}, "kubectl proxy", nil},
		"no API server": {Options{Out: empty, Groups: []Pods{{API: "http://127.0.0.1:1", Namespace: "n", Selector: "app=x"}}}, "refused", nil},
	} {
		c.o.Getenv = func(string) string { return "" }
		for _, one := range c.w {
			c.o.Workers = append(c.o.Workers, one.Addr())
		}
		if err := Run(t.Context(), c.o, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (want %q)", name, err, c.want)
		}
	}
	if left, _ := os.ReadDir(empty); len(left) > 0 {
		t.Errorf("left behind: got %v, want 0 of them", left)
	}
}
