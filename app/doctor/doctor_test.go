package doctor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	zmq4 "github.com/go-zeromq/zmq4"
	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/lab/vllmid"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	arms "github.com/sightline-router/sightline/router/report"
	workers "github.com/sightline-router/sightline/workers/fleet"
)

const modelDir = "../../examples/models/qwen2.5-vl"

var prompts = sync.OnceValues(func() (lab.Prompts, error) { return lab.NewPrompts(modelDir, sim.VLLM, lab.ModelName, 16) })

// fleet is two simulated workers, their configuration, its envoy.yaml, and the pages of a running Sightline. A test plants a
// mistake in one of them.
type fleet struct {
	sim     func(i int, c *sim.Config)
	up      func(workers []*sim.Worker)                       // called once they serve
	proxy   func(w http.ResponseWriter, r *http.Request) bool // in front of worker a; true: it has answered
	tls     bool                                              // worker a speaks TLS, and closes connections in plain text
	config  []string                                          // pairs of text and replacement, in sightline.yaml and in envoy.yaml
	envoy   []string
	variant string // of envoy.yaml
	page    page
	agent   string           // the answer of its /state
	front   http.HandlerFunc // answers at envoy.listen, over TLS if secured; nil: no server does. A nil answer of one is worker a's
	secured bool
	options func(o *Options, front *httptest.Server)
}

// page is an admin page.
type page struct {
	notReady  string
	workers   []findings.Worker
	findings  []audit.Finding
	decisions []router.Recent
	unserved  []string
	disk      string
	hosts     []fetch.HostState
	lost      []string // replicas
	misplaced []audit.Misplaced
	strays    []extproc.Stray
	refused   []extproc.RefusedCall
	mode      string
	silent    string // what the access log lacks
	tooLate   int
	garbled   uint64
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/readyz":
		if p.notReady != "" {
			http.Error(w, p.notReady, http.StatusServiceUnavailable)
		}
	case "/workers":
		_ = json.NewEncoder(w).Encode(p.workers)
	case "/decisions":
		_ = json.NewEncoder(w).Encode(p.decisions)
	case "/problems":
		now := time.Now()
		facts := findings.Facts{Now: now, NotReady: p.notReady, Workers: p.workers, Unserved: p.unserved, Audited: p.findings,
			Mode:        p.mode,
			DecisionLog: p.disk, LostReplicas: p.lost, Recent: p.decisions, Misplaced: p.misplaced, Hosts: p.hosts,
			Last: p.decisions, Silent: p.silent, TooLate: p.tooLate, Garbled: p.garbled, Models: []string{lab.ModelName},
			Strays: p.strays, Refused: p.refused}
		_ = json.NewEncoder(w).Encode(facts.All())
	}
}

// well returns a fleet without a mistake.
func well() *fleet {
	f := &fleet{}
	for i, name := range []string{"a", "b"} {
		f.page.workers = append(f.page.workers, findings.Worker{Name: name, Addr: fmt.Sprint("127.0.0.1:", i+1),
			Model: lab.ModelName, Rank: -1, BlockSize: 16, Events: "live", Report: &findings.LoadReport{}})
	}
	for range 8 {
		f.page.decisions = append(f.page.decisions, decided(func(*router.Recent) {}))
	}
	return f
}

// decided returns a typical decision, modified by change.
func decided(change func(d *router.Recent)) router.Recent {
	d := router.Recent{Model: lab.ModelName, Worker: "a", Addr: "10.0.0.5:8000", Used: "10.0.0.5:8000", Reason: router.Exact,
		PromptTokens: 160, CachedTokens: 144, Reported: 144, Code: 200, Lasted: time.Second}
	change(&d)
	return d
}

func (f *fleet) decide(change func(d *router.Recent)) {
	for i := range f.page.decisions {
		change(&f.page.decisions[i])
	}
}

const yamlText = `
admin: ""
listen: "127.0.0.1:11" # not the defaults: they may run on this machine
envoy: {listen: "FRONT", admin: "127.0.0.1:13"}
models: [{name: sim-vl, dir: DIR, engine_version: 0.32.0, engine_model: sim-vl, block_size: 16}]
workers:
- {name: a, addr: "A:", events: {zmq: "A-EVENTS", replay: "A-REPLAY"}}
- {name: b, addr: "B:", events: {zmq: "B-EVENTS", replay: "B-REPLAY"}}
`

// examine starts the fleet and runs the checks.
func (f *fleet) examine(t *testing.T, change func(*Options)) []Result {
	t.Helper()
	read, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	put(t, filepath.Join(broken, "config.json"), "{}")
	put(t, filepath.Join(broken, "tokenizer.json"), "{")
	words := []string{"DIR", model, "BROKEN", broken}
	var sims []*sim.Worker
	for i, name := range []string{"A", "B"} {
		c := sim.Config{Model: lab.ModelName, Prompt: read}
		if f.sim != nil {
			f.sim(i, &c)
		}
		w, err := sim.New(c)
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		t.Cleanup(w.Close)
		addr := w.Addr()
		if i == 0 && f.proxy != nil {
			there := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
			front := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if !f.proxy(rw, r) {
					there.ServeHTTP(rw, r)
				}
			}))
			if f.tls {
				front.StartTLS()
			} else {
				front.Start()
			}
			t.Cleanup(front.Close)
			addr = front.Listener.Addr().String()
		}
		sims = append(sims, w)
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(w.EventsAddr(), "tcp://"))
		words = append(words, name+":", addr, name+"-PORT", port, name+"-EVENTS", w.EventsAddr(), name+"-REPLAY", w.ReplayAddr())
	}
	if f.up != nil {
		f.up(sims)
	}
	var front *httptest.Server
	listen := "127.0.0.1:9"
	if f.front != nil {
		there := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: sims[0].Addr()})
		front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer secret" && r.Host == "llm.example.com" {
				there.ServeHTTP(w, r)
				return
			}
			f.front(w, r)
		}))
		if f.secured {
			front.StartTLS()
		} else {
			front.Start()
		}
		t.Cleanup(front.Close)
		listen = front.Listener.Addr().String()
	}
	words = append(words, "FRONT", listen)
	o := Options{Config: filepath.Join(dir, "sightline.yaml"), Envoy: filepath.Join(dir, "envoy.yaml"), Canary: true,
		Patience: 2 * time.Second}
	text := strings.NewReplacer(words...).Replace(edited(t, yamlText, f.config))
	put(t, o.Config, text)
	if cfg, err := config.Load(o.Config); err == nil {
		made, err := serve.EnvoyYAML(cfg, f.variant, "")
		if err != nil {
			t.Fatal(err)
		}
		put(t, o.Envoy, edited(t, string(made), f.envoy))
	}
	running := httptest.NewServer(&f.page)
	t.Cleanup(running.Close)
	o.Admin = running.URL
	if f.agent != "" {
		beside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, f.agent) }))
		t.Cleanup(beside.Close)
		o.Agent = []string{beside.URL}
	}
	if f.options != nil {
		f.options(&o, front)
	}
	if change != nil {
		change(&o)
	}
	return Examine(t.Context(), o)
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestWell: nothing is reported for a fleet without mistakes.
func TestWell(t *testing.T) {
	list := well().examine(t, nil)
	for _, r := range list {
		if r.Verdict == Warning || r.Verdict == Error {
			t.Errorf("got %+v, want Verdict other than %q, Verdict other than %q", r, Warning, Error)
		}
	}
	if Status(list, false) != 0 {
		t.Errorf("got %d, want 0", Status(list, false))
	}
	out := &bytes.Buffer{}
	o := Options{Out: out}
	if err := o.print(list); err != nil || strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "√ SL0301 ") {
		t.Errorf(`got %v %+v, want no error, !strings.Contains(out.String(), "\x1b"), strings.Contains(out.String(), "√ SL0301 ")`, err, out)
	}
	for _, r := range list {
		if r.Verdict == Unchecked {
			t.Logf("%s: %v", r.Code, r.Evidence)
		}
	}
}

// Requests left to Envoy's own balancing go to other workers than the chosen ones and hit what those hold, as enforce: 0% intends.
func TestWellWhileObserving(t *testing.T) {
	f := well()
	f.config = pairs("models:", "enforce: 0%\nmodels:")
	f.decide(func(d *router.Recent) { d.Arm, d.Used, d.Reported = arms.Unsteered, "10.0.0.9:8000", 0 })
	for _, r := range f.examine(t, nil) {
		if r.Verdict == Warning || r.Verdict == Error {
			t.Errorf("got %+v, want Verdict other than %q, Verdict other than %q", r, Warning, Error)
		}
	}
}

func pairs(texts ...string) []string { return texts }

// edited replaces texts, at least one of which must occur.
func edited(t *testing.T, text string, pairs []string) string {
	t.Helper()
	out := strings.NewReplacer(pairs...).Replace(text)
	if len(pairs) > 0 && out == text {
		t.Fatalf("nothing of %q is there, want len(pairs) == 0 or out != %v", pairs, text)
	}
	return out
}

// twoFamilies has Envoy resolve the workers' names to IPv6, if they have both.
var twoFamilies = pairs("type: STATIC\n    lb_policy: ROUND_ROBIN", "type: STRICT_DNS\n    lb_policy: ROUND_ROBIN",
	`- endpoint: { address: { socket_address: { address: "127.0.0.1"`,
	`- endpoint: { address: { socket_address: { address: "localhost"`)

type mistake struct {
	name, code    string
	verdict       Verdict
	evidence, fix string
	plant         func(f *fleet)
}

// mistakes are those made in the field, most frequent first; some occur in several forms.
var mistakes = []mistake{
	{"1 events off", "SL0301", Error, "a: not as configured (events): the worker publishes no KV events",
		`"publisher":"zmq"`, func(f *fleet) { f.sim = only(func(c *sim.Config) { c.Bare = true }) }},
	{"2 block size", "SL0107", Warning, "a: blocks of another size than block_size; its own are used: 32 tokens",
		"block_size: its own", func(f *fleet) { f.sim = only(func(c *sim.Config) { c.BlockSize = 32 }) }},
	{"3 prefix caching off", "SL0102", Error, "a: not as configured (prefix caching): its prefix cache is off", "--enable-prefix-caching",
		func(f *fleet) { f.sim = only(func(c *sim.Config) { c.NoPrefixCache = true }) }},
	{"3 and it does not say so", "SL0102", Error, "a: found 0 of", "--enable-prefix-caching", func(f *fleet) {
		f.sim, f.proxy = only(func(c *sim.Config) { c.NoPrefixCache = true }), without("/metrics")
	}},
	{"4 chat template", "SL0201", Error, "a: not as configured (one turn): first difference at token ", "chat_template", func(f *fleet) {
		f.sim = only(reads("/v1/chat/completions", first))
	}},
	{"5 tokenizer", "SL0201", Error, "a: not as configured (text): first difference at token 0: ours ", "of the same commit", func(f *fleet) {
		f.sim = only(reads("/v1/completions", first))
	}},
	{"6 served name", "SL0103", Error, `a: not as configured (name): the worker serves no model called "sim-vl"`, "--served-model-name",
		func(f *fleet) { f.sim = only(func(c *sim.Config) { c.ServedName = "other" }) }},
	{"6 --model", "SL0103", Error, `configured "sim-vl", the worker reports "org/sim-vl"`, "engine_model", func(f *fleet) {
		f.sim = only(func(c *sim.Config) { c.Model, c.ServedName = "org/sim-vl", lab.ModelName })
	}},
	{"6 requests for others", "SL0103", Warning,
		`requests of the last hour name models that no worker serves: ["gpt-5"]`,
		`aliases: ["gpt-5"]`, func(f *fleet) {
			f.page.unserved = []string{"gpt-5"}
		}},
	{"7 hash seed", "SL0305", Warning, "a and b give the same block different hashes", "PYTHONHASHSEED=0", func(f *fleet) {
		f.sim = only(func(c *sim.Config) { c.HashSeed = "7" })
	}},
	{"7 hash algorithm", "SL0305", Warning, "a hashes with sha256, b with sha256_cbor", "--prefix-caching-hash-algo",
		func(f *fleet) { f.sim = only(func(c *sim.Config) { c.HashAlgo = vllmid.SHA256 }) }},
	{"8 event socket refuses", "SL0303", Error, "a: rank 0: tcp://127.0.0.1:", "publish at tcp://*:PORT (not at localhost)",
		func(f *fleet) { f.up = func(w []*sim.Worker) { w[0].StopEvents() } }},
	{"8 wrong port", "SL0303", Error, "a: rank 0: tcp://127.0.0.1:9: ", `events: {zmq: "tcp://127.0.0.1:`, func(f *fleet) {
		f.config = pairs("A-EVENTS", "tcp://127.0.0.1:9")
	}},
	{"8 ranks", "SL0303", Error, "a: not as configured (ranks): configured are 0, the worker has 2 data-parallel ranks", "ranks: as many",
		func(f *fleet) {
			f.sim = only(func(c *sim.Config) { c.Ranks = 2 })
		}},
	{"8 a Service's name, without its headless pods", "SL0303", Error, "a: rank 0: tcp://vllm.invalid:5557: ",
		`events: {zmq: "tcp://127.0.0.1:`, func(f *fleet) { f.config = pairs("A-EVENTS", "tcp://vllm.invalid:5557") }},
	{"8 not heard", "SL0303", Error, "a: no connection to the KV events: refused", "SL0601", func(f *fleet) {
		f.page.workers[0].Events, f.page.workers[0].EventsError = "waiting", findings.Failure{Text: "refused"}
	}},
	{"9 no replay", "SL0304", Warning, "a: no replay socket", `events: {replay: "tcp://127.0.0.1:`, func(f *fleet) {
		f.config = pairs(`, replay: "A-REPLAY"`, "")
	}},
	{"9 replay among the event ports", "SL0304", Error, "overlap: each rank takes its port plus its number",
		"events at 5557 and replay at 5657", func(f *fleet) {
			f.config = pairs(`{zmq: "A-EVENTS", replay: "A-REPLAY"}`, "{auto: true}", `addr: "A:"`, `addr: "A:", ranks: 2`)
			const rank = `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:3000%d","replay_endpoint":"tcp://*:3000%d"}`
			f.proxy = says("/kv_event_sources", fmt.Sprintf(`{"0":`+rank+`,"1":`+rank+`}`, 1, 2, 2, 3))
		}},
	{"10 offload without payload", "SL0305", Warning, "a: offloaded blocks were reported without their tokens: they are ignored: 7",
		`"self_describing_kv_events": true`, func(f *fleet) {
			f.page.workers[0].Unresolved = 7
		}},
	{"11 medium", "SL0309", Warning, "a: blocks in an unknown storage medium: HYPERRAM", "a newer Sightline",
		func(f *fleet) { f.page.workers[0].UnknownKey = `"medium HYPERRAM"` }},
	{"12 short prompts", "SL0205", OK, "8 of the last 8 prompts are shorter than a block of 16 tokens",
		"", func(f *fleet) {
			f.decide(func(d *router.Recent) { d.PromptTokens, d.CachedTokens, d.Reported = 12, 0, 0 })
		}},
	{"13 image settings", "SL0204", Error, "a: not as configured (an image): first difference at token ", "mm_processor_kwargs",
		func(f *fleet) { f.sim = only(reads("", shorterImages)) }},
	{"13 image names", "SL0204", Error, "a: requests are stored otherwise than predicted (media_name): the medium at token 5 has",
		"mm_hasher_algorithm", func(f *fleet) {
			f.page.findings = []audit.Finding{{Worker: "a", Verdict: audit.MediaName, Says: "the medium at token 5 has another name there"}}
		}},
	{"14 cached tokens not told", "SL0106", Warning, "a: the usage in its answers does not report cached tokens",
		"--enable-prompt-tokens-details", func(f *fleet) { f.sim = only(func(c *sim.Config) { c.Bare = true }) }},
	{"13 no images allowed", "SL0204", OK, "a: refuses a request with an image: POST /tokenize: status 400", "", func(f *fleet) {
		f.sim = only(func(c *sim.Config) {
			own := c.Prompt
			c.Prompt = func(ctx context.Context, at string, body []byte) ([]sim.Prompt, error) {
				if bytes.Contains(body, []byte("image_url")) {
					return nil, &sim.Refusal{Status: http.StatusBadRequest, Message: "At most 0 image(s) may be provided in one prompt."}
				}
				return own(ctx, at, body)
			}
		})
	}},
	{"13 names by uuid of an engine without", "SL0501", Error, "injected needs vLLM, which takes a uuid", "correct the keys", func(f *fleet) {
		f.config = pairs("engine_version: 0.32.0", "engine: trtllm, media_names: injected")
	}},
	{"13 a release that is not read", "SL0501", Error, "models[0].engine_version: vllm 0.22.1 is older than 0.23.0", "", func(f *fleet) {
		f.config = pairs("engine_version: 0.32.0", "engine_version: 0.22.1")
	}},
	{"13 the client's uuid", "SL0501", Error, "client_uuid: no longer a key", "correct the keys", func(f *fleet) {
		f.config = pairs("block_size: 16", "block_size: 16, client_uuid: trust")
	}},
	{"15 Envoy's body limit", "SL0401", Error, "bodies above it are answered with 413", "", func(f *fleet) { f.envoy = limits("32768") }},
	{"16 gRPC message", "SL0401", Error, "answers of more than 4194304 bytes fail", "max_receive_message_length", func(f *fleet) {
		f.envoy = pairs("envoy_grpc: { cluster_name: sightline }", "envoy_grpc: { cluster_name: sightline, max_receive_message_length: 4194304 }")
	}},
	{"17 message_timeout", "SL0404", Error, "200ms", "message_timeout: 2s", func(f *fleet) {
		f.envoy = pairs("message_timeout: 2s", "message_timeout: 0.2s")
	}},
	{"17 without end", "SL0404", Warning, "16m40s", "message_timeout: 2s", func(f *fleet) {
		f.envoy = pairs("message_timeout: 2s", "message_timeout: 1000s")
	}},
	{"18 fails closed", "SL0404", Warning, "false", "failure_mode_allow: true", func(f *fleet) {
		f.envoy = pairs("failure_mode_allow: true", "failure_mode_allow: false")
	}},
	{"18 fails open, and a refused connection is a 500", "SL0404", Error, "healthy_panic_threshold: { value: 0 }",
		"take them over", func(f *fleet) {
			f.variant, f.envoy = "full_duplex", pairs("common_lb_config: { healthy_panic_threshold: { value: 0 }, update_merge_window: 0s }",
				"common_lb_config: {}")
		}},
	{"19 two full duplex", "SL0401", Warning, "a second ext_proc with FULL_DUPLEX_STREAMED", "request_body_mode: BUFFERED", func(f *fleet) {
		f.variant, f.envoy = "full_duplex", pairs("          http_filters:\n", `          http_filters:
          - name: other
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: { envoy_grpc: { cluster_name: other } }
              processing_mode: { request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND }
`)
	}},
	{"18 names of two families: without Sightline", "SL0404", Error, "no_healthy_worker at ", "V4_PREFERRED", func(f *fleet) {
		f.envoy = twoFamilies
	}},
	{"28 names of two families: no choice is followed", "SL0408", Error, "no_healthy_worker at ", "V4_PREFERRED", func(f *fleet) {
		f.envoy = twoFamilies
	}},
	{"20 idle connections", "SL0410", Warning, "keep_alive at ", "idle_timeout: 4s", func(f *fleet) {
		f.envoy = pairs("idle_timeout: 4s", "idle_timeout: 60s")
	}},
	{"20 circuit breakers", "SL0410", Warning, "max_requests 1024", "raise them", func(f *fleet) {
		f.envoy = pairs("max_requests: 65536", "max_requests: 1024")
	}},
	{"20 retries", "SL0410", Warning, "max_retries 3", "raise them", func(f *fleet) {
		f.envoy = pairs("max_retries: 1024", "max_retries: 3")
	}},
	{"21 steering headers", "SL0407", Error, "accepted from clients: x-target-worker*", "the filter or extension", func(f *fleet) {
		f.envoy = pairs("prefix: x-target-worker }", "prefix: x-other }")
	}},
	{"21 any address is dialled", "SL0407", Warning, "any_address at ", "envoy.worker_networks", func(f *fleet) {
		f.envoy = pairs("envoy.extensions.filters.http.rbac.v3.RBAC", "mine.RBAC")
	}},
	{"22 replicas", "SL0504", Error, "agents publish to one of 2", "nats: {url: …}", func(f *fleet) {
		f.config = pairs(`envoy: {`, "nats: {listen: \"127.0.0.1:0\"}\nenvoy: {sightlines: [\"10.0.0.1:9002\", \"10.0.0.2:9002\"], ")
	}},
	{"22 events that one alone may drain", "SL0504", Error, "takes its events away from the other 1 Sightlines",
		"an agent beside the worker", func(f *fleet) {
			f.sim = func(_ int, c *sim.Config) { c.Engine, c.Version = sim.TRTLLM, "1.3.0" }
			f.config = pairs(`envoy: {`, `envoy: {sightlines: ["10.0.0.1:9002", "10.0.0.2:9002"], `,
				"engine_version: 0.32.0, engine_model: sim-vl", "engine: trtllm, engine_version: 1.3.0",
				`{zmq: "A-EVENTS", replay: "A-REPLAY"}`, `{http: "http://A:"}`, `{zmq: "B-EVENTS", replay: "B-REPLAY"}`, `{http: "http://B:"}`)
		}},
	{"23 role empty", "SL0109", Error, "sim-vl: 2 workers prefill, 0 encode, none decodes", "dynamo.component",
		func(f *fleet) { f.page.workers[0].Role, f.page.workers[1].Role = "prefill", "prefill" }},
	{"23 prefill and encode alone", "SL0109", Error, "sim-vl: 1 workers prefill, 1 encode, none decodes", "role: decode",
		func(f *fleet) { f.page.workers[0].Role, f.page.workers[1].Role = "prefill", "encode" }},
	{"23 peers one by one: none prefills", "SL0109", Warning, "sim-vl: 2 workers have the role decode, none prefills",
		"role: prefill", func(f *fleet) { f.page.workers[0].Role, f.page.workers[1].Role = "decode", "decode" }},
	{"23 no worker", "SL0109", Error, "sim-vl: no worker gets requests, of 2", "why they are out", func(f *fleet) {
		f.page.workers[0].Health, f.page.workers[1].Health = new(workers.Out), new(workers.Out)
	}},
	{"24 metrics want a key", "SL0106", Warning, "a: GET /metrics wants a key", "without a key", func(f *fleet) {
		f.proxy = without("/metrics")
	}},
	{"24 everything wants a key", "SL0109", Error, "the worker wants a key, or another one: worker_access.api_key_file",
		"api_key_file: FILE", func(f *fleet) {
			f.proxy = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusUnauthorized); return true }
		}},
	{"24 the worker speaks TLS", "SL0109", Error, "it speaks TLS: worker_access.ca", "worker_access: {ca: FILE}", func(f *fleet) {
		f.tls, f.proxy = true, func(http.ResponseWriter, *http.Request) bool { return false }
	}},
	{"25 guesses in the place of events", "SL0301", Warning, "a: no KV events: the cache's contents are guessed", "events: {auto: true}",
		func(f *fleet) { f.config = pairs(`, events: {zmq: "A-EVENTS", replay: "A-REPLAY"}`, "") }},
	{"25 match limit", "SL0107", Warning, "configured 1024, the worker reports ", "max_model_len", func(f *fleet) {
		f.config = pairs("block_size: 16", "block_size: 16, max_model_len: 1024")
	}},
	{"26 plain front end", "SL0107", Error, `owned_by of /v1/models is "nvidia"`, "dynamo.frontends", func(f *fleet) {
		f.proxy = says("/v1/models", `{"object":"list","data":[{"id":"sim-vl","object":"model","owned_by":"nvidia"}]}`)
	}},
	{"26 another release", "SL0107", Warning, `a: not as configured (engine_version): configured 0.32.0, the worker reports "0.30.0"`,
		"engine_version: the worker's",
		func(f *fleet) { f.sim = only(func(c *sim.Config) { c.Version = "0.30.0" }) }},
	{"27 adapters", "SL0103", Warning, `a: not as configured (adapters): the worker serves the adapter "cats"`, "load the same ones on all", func(f *fleet) {
		f.sim = only(func(c *sim.Config) { c.Adapters = []sim.Adapter{{Name: "cats", Path: "/cats"}} })
	}},
	{"28 picks not obeyed", "SL0408", Error, "8 of the last 8 requests went elsewhere than chosen, such as 10.0.0.9:8000 instead of",
		"x-target-worker", func(f *fleet) { f.decide(func(d *router.Recent) { d.Used = "10.0.0.9:8000" }) }},
	{"28 the cluster reads another header", "SL0408", Error, "http_header_name: x-target-worker", "read it from there", func(f *fleet) {
		f.envoy = pairs("http_header_name: x-target-worker }", "http_header_name: x-envoy-original-dst-host }")
	}},
	{"28 the gateway takes one address", "SL0408", Warning, "choice_not_read at ", "--one-address", func(f *fleet) {
		f.envoy = pairs("http_header_name: x-target-worker }", "http_header_name: x-gateway-destination-endpoint }")
	}},
	{"29 clocks", "SL0303", Warning, "a: its events' timestamps are -5m", "NTP", func(f *fleet) {
		f.sim = only(func(c *sim.Config) { c.Skew = 5 * time.Minute })
	}},
	{"30 one size for another", "SL0503", Warning, "workers' caches have 800000 blocks", "index: {max_bytes: 21MiB}", func(f *fleet) {
		f.sim = func(_ int, c *sim.Config) { c.Blocks = 400000 }
		f.config = pairs(`admin: ""`, "admin: \"\"\nindex: {max_bytes: 16MiB}")
	}},

	{"31 events of another form", "SL0309", Error, "a: events that cannot be read: messages of 1 frame",
		"docs/engines.md", func(f *fleet) {
			f.page.workers[0].Events, f.page.workers[0].EventsError = "unreadable", findings.Failure{Text: "messages of 1 frame"}
		}},
	{"31 as an agent hears", "SL0309", Error, "of worker a, rank 0: its engine's events: messages of 1 frame",
		"docs/engines.md", func(f *fleet) {
			f.agent = `{"worker":"a","ranks":[{"rank":0,"heard":{"Unreadable":"messages of 1 frame"}}]}`
		}},
	{"31 on Dynamo's plane", "SL0309", Error, "3 of Dynamo's event messages cannot be read", "docs/engines.md", func(f *fleet) {
		f.page.garbled = 3
	}},
	{"31 as heard here", "SL0309", Error, "a: its events cannot be read: ", "docs/engines.md", otherForm},
	{"31 events of another form are not missing", "SL0301", OK, "events came that cannot be read (SL0309)", "", otherForm},
	{"31 hits are an upper bound", "SL0309", OK, "a: a predicted hit is an upper bound: a KV cache group of an unknown kind",
		"", func(f *fleet) {
			f.page.workers[0].UpperBound = "a KV cache group of an unknown kind"
		}},
	{"32 Sightline is gone, and Envoy answers", "SL0505", Error, "and no Sightline at 127.0.0.1:11 nor at admin", "start it", func(f *fleet) {
		f.front, f.options = http.NotFound, func(o *Options, _ *httptest.Server) { o.Admin = "" }
	}},
	{"32 Sightline is frozen", "SL0505", Error, "takes connections and does not answer", "start it again", func(f *fleet) {
		f.options = func(o *Options, _ *httptest.Server) { o.Admin, o.Patience = "http://"+mute(), time.Second/2 }
	}},
	{"32 only its port for Envoy is frozen", "SL0505", Error, "takes connections and does not answer", "start it again", func(f *fleet) {
		f.config = pairs(`listen: "127.0.0.1:11" # not`, `listen: "`+mute()+`" # not`)
	}},
	{"32 what answers at admin is another program", "SL0505", Error, "does not answer as Sightline does",
		"admin must be Sightline's own port", func(f *fleet) {
			f.front = http.NotFound
			f.config = pairs(`admin: ""`, `admin: "FRONT"`)
			f.options = func(o *Options, _ *httptest.Server) { o.Admin = "" }
		}},
	{"33 Envoy's listener speaks TLS", "SL0408", Unchecked, "give --url https://NAME:PORT", "", func(f *fleet) {
		f.front, f.secured, f.page.decisions = http.NotFound, true, nil
	}},
	{"33 a certificate of a private authority", "SL0408", Unchecked, "give --ca FILE", "", func(f *fleet) {
		f.page.decisions = nil
		f.front, f.secured, f.options = http.NotFound, true, func(o *Options, front *httptest.Server) { o.URL = front.URL }
	}},
	{"33 Envoy wants a token", "SL0408", Unchecked, "give --header 'authorization: Bearer …'", "", func(f *fleet) {
		f.page.decisions = nil
		f.front = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	}},
	{"33 Envoy has no route for the host", "SL0408", Unchecked, "give --header 'host: NAME'", "", func(f *fleet) {
		f.front, f.page.decisions = http.NotFound, nil
	}},
	{"33 Envoy redirects", "SL0408", Unchecked, `to "https://llm.example.com/": give --url`, "", func(f *fleet) {
		f.page.decisions = nil
		f.front = func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://llm.example.com/", http.StatusMovedPermanently)
		}
	}},
	{"33 Envoy wants a token, and requests show where it sends them", "SL0408", OK,
		"not checked: the answer is status 401", "", func(f *fleet) {
			f.front = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
		}},
	{"33 Envoy refuses", "SL0408", Error, "the canary through Envoy at 127.0.0.1:", "its routes", func(f *fleet) {
		f.front = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	}},
	{"44 Envoy's RBAC filter refuses", "SL0408", Error, "status 403", "the RBAC filter of Envoy's listener", func(f *fleet) {
		f.front = forbids("RBAC: access denied", "")
	}},
	{"44 a worker's sidecar refuses", "SL0408", Error, "status 403", "SL0109", func(f *fleet) {
		f.front = forbids("RBAC: access denied", "7")
	}},
	{"44 another filter's 403 asks for a token", "SL0408", Unchecked, "give --header 'authorization: Bearer …'", "", func(f *fleet) {
		f.front, f.page.decisions = forbids("Jwt is missing: RBAC", ""), nil
	}},
	{"44 the admin port is blocked", "SL0505", Warning, "and not at admin: ", "keeps this machine from the admin port", func(f *fleet) {
		f.front = http.NotFound
		f.config = pairs(`admin: ""`, `admin: "127.0.0.1:9"`, `listen: "127.0.0.1:11" # not`, `listen: "FRONT" # not`,
			`envoy: {listen: "FRONT"`, `envoy: {listen: "127.0.0.1:9"`)
		f.options = func(o *Options, _ *httptest.Server) { o.Admin = "" }
	}},
	{"44 one of two Sightlines, which two clusters name", "SL0505", Warning, "has 2 Sightlines, 1 of them healthy", "the log of the others",
		func(f *fleet) {
			f.config = pairs(`envoy: {`, `envoy: {sightlines: ["127.0.0.1:11", "127.0.0.1:12"], `)
			f.options = asRunning("127.0.0.1:11", "127.0.0.1:12")
		}},
	// it is let in
	{"33 TLS, token and host are given", "SL0408", Error, "Envoy answered the canary without asking Sightline",
		"sightline envoy --for", func(f *fleet) {
			f.front, f.secured = http.NotFound, true
			f.options = func(o *Options, front *httptest.Server) {
				o.URL = strings.Replace(front.URL, "127.0.0.1", "localhost", 1)
				o.Header = []string{"authorization: Bearer secret", "Host: llm.example.com"}
				o.CA = filepath.Join(filepath.Dir(o.Config), "ca.pem")
				_ = os.WriteFile(o.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}), 0o600)
			}
		}},
	{"34 the audit: another token", "SL0201", Error,
		"a: requests are stored otherwise than predicted (token): first difference at token 3, as the running", "chat_template",
		audited(audit.Token)},
	{"34 the audit: another block", "SL0201", Error,
		"a: requests are stored otherwise than predicted (block): first difference", "chat_template",
		audited(audit.Block)},
	{"34 the audit: another key", "SL0201", Error, "a: requests are stored otherwise than predicted (keys): first difference", "adapters",
		audited(audit.Keys)},
	{"34 the audit: nothing came", "SL0301", Warning, "a: requests are stored otherwise than predicted (nothing): first difference", "SL0309",
		audited(audit.Nothing)},
	{"a rule stepped aside", "SL0206", Warning,
		"b: the rule for images has stepped aside, and such prompts are learned: a contradicts it: the medium at token 5",
		"SL0204", func(f *fleet) {
			f.page.workers[1].RulesAside = []audit.Aside{{Rule: "images", First: audit.Finding{Worker: "a", Says: "the medium at token 5"}}}
		}},
	{"35 by rule", "SL0206", OK, "sim-vl: by rule, family qwen2_vl", "", func(*fleet) {}},
	{"35 no directory", "SL0206", OK, "sim-vl: all requests are learned: model without a directory", "", func(f *fleet) {
		f.config = pairs("dir: DIR, ", "")
	}},
	{"35 a class whose tokenizer does not load", "SL0206", OK,
		"sim-vl, class b: all requests are learned: model whose directory does not load: ", "", func(f *fleet) {
			f.config = pairs("block_size: 16", "block_size: 16, classes: [{name: b, dir: BROKEN}]")
		}},
	{"35 a template that is gone", "SL0206", OK,
		"sim-vl: by rule, family qwen2_vl; chats are learned: chat template that does not load here", "", func(f *fleet) {
			f.config = pairs("block_size: 16", "block_size: 16, chat_template: /none/of/this")
		}},
	{"35 a directory that is gone", "SL0501", Error, "models[0].dir: ", "git lfs pull", func(f *fleet) {
		f.config = pairs("dir: DIR", "dir: /none/of/this")
	}},
	{"34 the audit, long ago", "SL0201", OK, "a: compared", "", func(f *fleet) {
		audited(audit.Token)(f)
		f.page.findings[0].At = time.Now().Add(-2 * time.Hour)
	}},
	{"34 few hits are not well", "SL0205", OK, "15 of the last 15 prompts are shorter than a block", "", func(f *fleet) { // one in sixteen
		f.decide(func(d *router.Recent) { d.PromptTokens = 12 })
		noHits(func(f *fleet) { f.page.decisions[0].CachedTokens, f.page.decisions[0].Reported = 12, 12 })(f)
		f.page.decisions = append(f.page.decisions, f.page.decisions[1:]...)
	}},
	{"35 a mapped port is heard", "SL0303", OK, "a, rank 0: tcp://127.0.0.1:", "", func(f *fleet) {
		f.proxy = says("/kv_event_sources",
			`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:30001","replay_endpoint":"tcp://*:30002"}}`)
	}},
	{"36 Envoy does not wait long enough", "SL0003", Error, "9 requests went on undecided and uncleaned", "message_timeout", tooLate},
	{"36 the access log is not to blame", "SL0409", OK, "", "", tooLate},

	{"a worker that refuses", "SL0109", Error, "connection refused", "start it, or correct addr", func(f *fleet) {
		f.config = pairs(`"A:"`, `"127.0.0.1:9"`)
	}},
	{"one socket for two", "SL0308", Error, "a and b: the same events come under both names", "each worker's own socket",
		func(f *fleet) { f.config = pairs("B-EVENTS", "tcp://localhost:A-PORT") }},
	{"one socket for two, in the file", "SL0501", Error, "is also", "correct the keys", func(f *fleet) {
		f.config = pairs("B-EVENTS", "A-EVENTS")
	}},
	{"one socket for two, as heard", "SL0308", Error, "a: the same events as another worker: b",
		"each worker's own socket", func(f *fleet) { f.page.workers[0].SameEvents = "b" }},
	{"38 swapped sockets", "SL0308", Error, "a: 4 of its last requests came over the socket of b", "exchange events.zmq and events.replay",
		func(f *fleet) {
			f.page.misplaced = []audit.Misplaced{{Worker: "a", Over: "b", Requests: 4}, {Worker: "b", Over: "a", Requests: 5}}
		}},
	{"unknown keys", "SL0309", Warning, `b: events with an unknown key: "hash_version"`, "a newer Sightline",
		func(f *fleet) { f.page.workers[1].UnknownKey = `"hash_version"` }},
	{"events lost", "SL0309", Warning, "b: lost events could not be replayed from anywhere: 3 times", "replay",
		func(f *fleet) { f.page.workers[1].Unfilled = 3 }},
	{"no ends", "SL0409", Error, "not their ends", "connection manager", func(f *fleet) {
		f.page.silent = "Envoy's access log reports where requests go but not their ends"
	}},
	{"no access log", "SL0409", Error, "no entry of Envoy's access log comes", "sightline envoy", func(f *fleet) {
		f.page.silent = "no entry of Envoy's access log comes"
	}},
	{"Envoy does not wait", "SL0410", Error, "not_asked at ", "does not wait for the choice", func(f *fleet) {
		f.envoy = pairs("failure_mode_allow: true", "observability_mode: true")
	}},
	{"not ready", "SL0505", Error, "catching up", "what it waits for", func(f *fleet) { f.page.notReady = "catching up" }},
	{"37 requests go anywhere", "SL0408", OK, "enforce is 0%", "", func(f *fleet) { f.page.mode = "0%" }},
	{"44 every client gets 504", "SL0001", Error, "504, Envoy's timeout ended before the answer (UT) at a", "the route", func(f *fleet) {
		f.decide(func(d *router.Recent) {
			d.At, d.Lasted, d.Used, d.Code, d.Flags = time.Now(), 1, "127.0.0.1:1", 504, "UT"
		})
	}},
	{"44 answers take a minute", "SL0002", Warning, "8 of the last 8 answers began more than 10s late", "image hosts", func(f *fleet) {
		f.decide(func(d *router.Recent) { d.At, d.Lasted, d.OutputTokens = time.Now(), time.Minute, 9 })
	}},
	{"44 a route without ext_proc", "SL0003", Error, "5 of the last", "docs/envoy.md", func(f *fleet) {
		f.page.strays = slices.Repeat([]extproc.Stray{{At: time.Now(), Addr: "127.0.0.1:1", Code: 200}}, 5)
	}},
	{"44 a token rotated here alone", "SL0004", Error, "decisions from 10.0.0.3: no token", "listen_token_file", func(f *fleet) {
		f.page.refused = []extproc.RefusedCall{{At: time.Now(), From: "10.0.0.3", What: "decisions", Why: "no token"}}
	}},
	{"37 the disk is full", "SL0501", Error, "no space left on device", "room on its disk",
		func(f *fleet) { f.page.disk = "no space left on device" }},
	{"41 an image host is gone", "SL0509", OK, `"images.example": no connection, 5 times in a row`, "", func(f *fleet) {
		f.page.hosts = []fetch.HostState{{Host: "images.example", InARow: 5, Last: "no connection", At: time.Now()}}
	}},
	{"41 a certificate has expired", "SL0501", Error, "tls.cert: the certificate ", "renew the file", func(f *fleet) {
		f.config = pairs("models:", fmt.Sprintf("tls: %s\nmodels:", certificate(-time.Hour)))
	}},
	{"41 a certificate expires soon", "SL0501", Warning, " ends at ", "renew the file", func(f *fleet) {
		f.config = pairs("models:", fmt.Sprintf("tls: %s\nmodels:", certificate(24*time.Hour)))
	}},
	{"37 no room", "SL0110", Warning, "1 of the last requests got 429", "max_in_flight", func(f *fleet) {
		f.page.decisions = append(f.page.decisions, router.Recent{At: time.Now(), Code: http.StatusTooManyRequests})
	}},
	{"40 the admin page speaks TLS", "SL0505", Error, "it speaks TLS: give https://", "correct --admin", func(f *fleet) {
		tls := httptest.NewTLSServer(http.NotFoundHandler())
		time.AfterFunc(time.Minute, tls.Close)
		f.options = func(o *Options, _ *httptest.Server) { o.Admin = strings.Replace(tls.URL, "https", "http", 1) }
	}},
	{"40 a worker's answer is broken off", "SL0109", Error, "a: at 127.0.0.1:", "a limit of time or size", func(f *fleet) {
		f.proxy = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, "{")
			return true
		}
	}},
	{"39 half the speed", "SL0110", Warning, "b: computes prompts much slower than others of its class, and gets fewer: 2.1 times as long",
		"see its GPU", func(f *fleet) { f.page.workers[1].Slow = workers.Slow{Times: 2.1, Since: time.Now()} }},
	{"37 a replica that refuses", "SL0504", Warning, "10.0.0.3:9002: no token", "listen_token_file", func(f *fleet) {
		f.page.lost = []string{"10.0.0.3:9002: no token"}
	}},
	{"37 one cause, sixty requests", "SL0301", Warning, "not connected (60 requests), as the running", "SL0303", func(f *fleet) {
		for range 60 {
			f.page.findings = append(f.page.findings, audit.Finding{At: time.Now(), Worker: "a", Verdict: audit.Nothing, Says: "not connected"})
		}
	}},
	{"an agent", "SL0601", Error, "of worker a, rank 0: NATS cannot be reached", "--nats", func(f *fleet) {
		f.agent = `{"worker":"a","ranks":[{"rank":0,"not_ready":"NATS cannot be reached"}]}`
	}},
	{"no agent", "SL0303", Error, "b: no connection to the KV events", "SL0601", func(f *fleet) {
		f.config = pairs(`{zmq: "B-EVENTS", replay: "B-REPLAY"}`, "{nats: true}", `admin: ""`, "admin: \"\"\nnats: {listen: \"127.0.0.1:0\"}")
		f.page.workers[1].Events = "waiting"
	}},
	{"no NATS", "SL0601", Error, "no server could be reached", "nats.url", func(f *fleet) {
		f.config = pairs(`admin: ""`, "admin: \"\"\nnats: {url: \"nats://127.0.0.1:9\"}")
	}},
	{"44 a NATS of Debian 12", "SL0601", Error, `nats-server "2.9.10" is too old (want 2.10.0 or newer)`, "nats-server 2.10 or newer",
		func(f *fleet) {
			f.config = pairs(`admin: ""`, "admin: \"\"\nnats: {url: \"nats://"+oldNATS()+"\"}")
		}},
	{"a model's files", "SL0501", Error, "models[0].dir: ", "copy those files again", func(f *fleet) {
		f.config = pairs("dir: DIR", "dir: BROKEN")
	}},
	{"configuration", "SL0501", Error, "unknown", "correct the keys", func(f *fleet) { f.config = pairs("listen:", "listn:") }},

	{"0 hits: events lost", "SL0205", Error, "engines found more than was predicted in 8 of 8", "SL0304",
		noHits(func(f *fleet) { f.decide(func(d *router.Recent) { d.Reported = 144 }) })},
	{"0 hits: evicted", "SL0205", Warning, "evicted: engines found less than was predicted in 8 of 8", "larger KV cache",
		func(f *fleet) { f.decide(func(d *router.Recent) { d.Reported = 0 }) }},
	{"0 hits: prefix below a block", "SL0205", OK, "shared prefix shorter than a block: 8 of 8", "",
		noHits(func(f *fleet) { f.decide(func(d *router.Recent) { d.Begins = 7 }) })},
	{"0 hits: nothing shared", "SL0205", OK, "no shared prefix: 0 of the last 8", "", noHits(func(*fleet) {})},
}

// otherForm makes worker a publish under a sequence number that cannot be read.
func otherForm(f *fleet) {
	pub := zmq4.NewPub(context.Background())
	_ = pub.Listen("tcp://127.0.0.1:0")
	go func() {
		for range 15_000 { // five minutes
			_ = pub.Send(zmq4.NewMsgFrom([]byte("kv"), []byte("seq"), []byte("x")))
			time.Sleep(20 * time.Millisecond)
		}
		pub.Close()
	}()
	f.config = pairs("A-EVENTS", "tcp://"+pub.Addr().String())
}

// mute returns an address that takes connections and never answers, as that of a stopped process.
func mute() string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error()
	}
	time.AfterFunc(10*time.Minute, func() { lis.Close() })
	return lis.Addr().String()
}

// oldNATS returns the address of a server that greets as nats-server 2.9.10.
func oldNATS() string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error()
	}
	time.AfterFunc(10*time.Minute, func() { lis.Close() })
	go func() {
		for c, err := lis.Accept(); err == nil; c, err = lis.Accept() {
			go func() {
				defer c.Close()
				fmt.Fprint(c, `INFO {"server_id":"X","version":"2.9.10","headers":true,"max_payload":1048576,"jetstream":true}`+"\r\n")
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if lines.Text() == "PING" {
						fmt.Fprint(c, "PONG\r\n")
					}
				}
			}()
		}
	}()
	return lis.Addr().String()
}

// forbids answers 403; took, unless empty, is how long a worker took for that.
func forbids(text, took string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if took != "" {
			w.Header().Set("x-envoy-upstream-service-time", took)
		}
		http.Error(w, text, http.StatusForbidden)
	}
}

// asRunning has the admin page of a running Envoy serve what --envoy names. Two of its clusters name Sightlines at addrs, of which the
// last is not healthy.
func asRunning(addrs ...string) func(*Options, *httptest.Server) {
	return func(o *Options, _ *httptest.Server) {
		text, _ := os.ReadFile(o.Envoy)
		js, err := yaml.YAMLToJSON(text)
		if err != nil {
			panic(err)
		}
		var hosts []string
		for i, at := range addrs {
			host, port, _ := net.SplitHostPort(at)
			hosts = append(hosts, fmt.Sprintf(`{"address":{"socket_address":{"address":%q,"port_value":%s}},`+
				`"health_status":{"failed_active_health_check":%v}}`, host, port, i == len(addrs)-1))
		}
		all := strings.Join(hosts, ",")
		pages := map[string]string{
			"/config_dump": `{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.BootstrapConfigDump","bootstrap":` + string(js) + `}]}`,
			"/server_info": `{"version":"x/1.40.0/Clean"}`,
			"/clusters": `{"cluster_statuses":[{"name":"sightline","host_statuses":[` + all + `]},{"name":"sightline_log","host_statuses":[` +
				all + `]}]}`,
		}
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, pages[r.URL.Path]) }))
		time.AfterFunc(time.Minute, page.Close)
		o.Envoy = page.URL
	}
}

// audited adds a finding of the audit.
func audited(v audit.Verdict) func(f *fleet) {
	return func(f *fleet) {
		f.page.findings = []audit.Finding{{At: time.Now(), Worker: "a", Verdict: v, Says: "first difference at token 3"}}
	}
}

func tooLate(f *fleet) {
	f.page.silent, f.page.tooLate = "no entry of Envoy's access log comes", 9
}

// only changes worker a.
func only(change func(c *sim.Config)) func(int, *sim.Config) {
	return func(i int, c *sim.Config) {
		if i == 0 {
			change(c)
		}
	}
}

// reads makes a worker read requests of a path ("": all) differently.
func reads(path string, change func(p *sim.Prompt)) func(*sim.Config) {
	return func(c *sim.Config) {
		own := c.Prompt
		c.Prompt = func(ctx context.Context, at string, body []byte) ([]sim.Prompt, error) {
			list, err := own(ctx, at, body)
			for i := range list {
				if path == "" || at == path {
					list[i].Tokens = slices.Clone(list[i].Tokens)
					change(&list[i])
				}
			}
			return list, err
		}
	}
}

func first(p *sim.Prompt) { p.Tokens[0]++ }

func shorterImages(p *sim.Prompt) {
	for i := range p.Media {
		at := p.Media[i].Offset
		p.Tokens = slices.Delete(p.Tokens, at, at+1)
		p.Media[i].Length--
	}
}

// says returns a handler that gives this answer for a path; the one of without answers 401.
func says(path, answer string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != path {
			return false
		}
		if answer == "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, answer)
		return true
	}
}

func without(path string) func(http.ResponseWriter, *http.Request) bool { return says(path, "") }

func noHits(plant func(f *fleet)) func(f *fleet) {
	return func(f *fleet) {
		f.decide(func(d *router.Recent) { d.Reason, d.CachedTokens, d.Reported = router.Load, 0, 0 })
		plant(f)
	}
}

func limits(bytes string) []string {
	return pairs("per_connection_buffer_limit_bytes: 67108864", "per_connection_buffer_limit_bytes: "+bytes,
		"request_body_buffer_limit: 67108864", "request_body_buffer_limit: "+bytes)
}

// certificate writes a certificate that is valid for so long, and its key, and returns the value of tls.
func certificate(lasts time.Duration) string {
	dir, err := os.MkdirTemp("", "sightline-doctor")
	if err != nil {
		panic(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		panic(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"sightline"}, NotAfter: time.Now().Add(lasts)}
	cert, err := x509.CreateCertificate(crand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	for name, der := range map[string][]byte{"CERTIFICATE": cert, "PRIVATE KEY": secret} {
		err = os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: name, Bytes: der}), 0o600)
		if err != nil {
			panic(err)
		}
	}
	return fmt.Sprintf("{cert: %q, key: %q}", filepath.Join(dir, "CERTIFICATE"), filepath.Join(dir, "PRIVATE KEY"))
}

// TestMistakes: each mistake, planted alone, is found under its code with a fix, and changes the exit status. All thirty are
// planted, and at least one for each code.
func TestMistakes(t *testing.T) {
	for n := 1; n <= 30; n++ {
		if !slices.ContainsFunc(mistakes, func(m mistake) bool { return strings.HasPrefix(m.name, fmt.Sprint(n, " ")) }) {
			t.Errorf(`mistake %d is not planted, want slices.ContainsFunc(mistakes, func(m mistake) bool { return `+
				`strings.HasPrefix(m.name, fmt.Sprint(n, " ")) })`, n)
		}
	}
	for _, c := range codes(t) {
		if !slices.ContainsFunc(mistakes, func(m mistake) bool { return m.code == c }) {
			t.Errorf("nothing is planted for %s, want slices.ContainsFunc(mistakes, func(m mistake) bool { return m.code == c })", c)
		}
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			f := well()
			m.plant(f)
			list := f.examine(t, nil)
			at := slices.IndexFunc(list, func(r Result) bool { return r.Code == m.code })
			r := list[at]
			says := strings.Join(r.Evidence, "\n")
			if m.verdict == OK || m.verdict == Unchecked { // what looks like a mistake and is none
				if r.Verdict != m.verdict || !strings.Contains(says, m.evidence) {
					t.Errorf("%+v\nwant %s, %q", r, m.verdict, m.evidence)
				}
				return
			}
			if r.Verdict != m.verdict || !strings.Contains(says, m.evidence) || !strings.Contains(r.Fix, m.fix) || r.Fix == "" ||
				r.Link != "docs/doctor.md#"+strings.ToLower(m.code) {
				t.Errorf("%+v\nwant %s, %q, fix %q", r, m.verdict, m.evidence, m.fix)
			}
			if status := Status(list, false); status == 0 || m.verdict == Error && status != 1 {
				t.Errorf("exit status %d, want status != 0, m.verdict != Error or status == 1", status)
			}
		})
	}
}

// TestForms: --pre asks nobody; JSON and colours are optional.
func TestForms(t *testing.T) {
	f := well()
	f.envoy = pairs("failure_mode_allow: true", "failure_mode_allow: false")
	var o Options
	list := f.examine(t, func(given *Options) { given.Pre, given.Canary, o = true, false, *given; o.Pre, o.Canary = true, false })
	for _, r := range list {
		wrong := r.Code == "SL0404"
		if static := r.Category == "envoy" || r.Category == "sightline" || r.Code == "SL0206"; wrong != (r.Verdict == Warning) || !static &&
			r.Verdict != Unchecked && r.Code != "SL0601" {
			t.Errorf(`%+v, want wrong == (r.Verdict == Warning), static or r.Verdict == Unchecked or r.Code == "SL0601"`, r)
		}
	}
	out := &bytes.Buffer{}
	o.Out, o.JSON = out, true
	if status, err := Run(t.Context(), o); status != 2 || err != nil || !json.Valid(out.Bytes()) ||
		!strings.Contains(out.String(), `"fix":"failure_mode_allow: true`) {
		t.Errorf("%d, %v: %s, want status == 2, no error, json.Valid(out.Bytes()), `\"fix\":\"failure_mode_allow: true` in "+
			"out.String()", status, err, out)
	}
	out.Reset()
	o.JSON = false
	if _, err := Run(t.Context(), o); err != nil || !strings.Contains(out.String(),
		"- SL0102 SL0103 SL0106 SL0107 SL0109 SL0110 (not checked: --pre looks at files alone)\n") {
		t.Errorf("what was not looked at for one reason takes one line: %v\n%s, want no error, \"- SL0102 SL0103 SL0106 SL0107 "+
			"SL0109 SL0110 (not checked: --pre looks at files alone)\\n\" in out.String()", err, out)
	}
	out.Reset()
	o.Color = true
	if _, err := Run(t.Context(), o); err != nil || !strings.Contains(out.String(), "\x1b[33m‼\x1b[0m SL0404") {
		t.Errorf("got %v, %s, want SL0404 with a coloured mark", err, out)
	}
}

// TestNames: a worker configured by name stands for one at each of its addresses, with its events there.
func TestNames(t *testing.T) {
	list := resolved(t.Context(), config.Worker{Name: "w", Addr: "localhost:8000", Events: config.Events{ZMQ: "tcp://{ip}:5557"}})
	at := slices.IndexFunc(list, func(w config.Worker) bool {
		return w.Addr == "127.0.0.1:8000" && w.Events.ZMQ == "tcp://127.0.0.1:5557"
	})
	if at < 0 {
		t.Errorf("got %+v, want at >= 0", list)
	}
}

// codes returns all codes.
func codes(t *testing.T) (list []string) {
	for _, r := range Examine(t.Context(), Options{Config: "none", Pre: true}) {
		list = append(list, r.Code)
	}
	return list
}

// TestPageHasEachCode: each code has a section, and each section a code.
func TestPageHasEachCode(t *testing.T) {
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, m := range regexp.MustCompile(`(?m)^### (SL\d{4})$`).FindAllStringSubmatch(string(text), -1) {
		have = append(have, m[1])
	}
	slices.Sort(have)
	want := slices.Sorted(slices.Values(codes(t)))
	if !slices.Equal(have, want) || len(slices.Compact(slices.Clone(want))) != len(want) {
		t.Errorf("docs/doctor.md has\n%v, checks are\n%v, want slices.Equal(have, want), len(slices.Compact(slices.Clone(want))) "+
			"== len(want)", have, want)
	}
}

// TestTokenIsNotSentInTheClear: the token goes to agents on this machine, and in plain text nowhere else.
func TestTokenIsNotSentInTheClear(t *testing.T) {
	token := ""
	beside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("Authorization")
		fmt.Fprint(w, "{}")
	}))
	defer beside.Close()
	for _, c := range []struct{ at, token, sent, err string }{
		{"http://127.0.0.1:", "secret", "Bearer secret", ""},
		{"127.0.0.1:", "secret", "Bearer secret", ""},
		{"http://0.0.0.0:", "secret", "", "unencrypted"},
		{"HTTP://0.0.0.0:", "secret", "", "unencrypted"},
		{"http://0.0.0.0:", "", "", ""},
		{"http://%:", "", "", "invalid"},
	} {
		token = ""
		s := &collected{Seen: &findings.Seen{Config: config.Config{AdminToken: c.token}}, o: Options{Patience: time.Minute}}
		a := s.askAgent(t.Context(), c.at+beside.URL[len("http://127.0.0.1:"):])
		if token != c.sent || (a.Err == nil) != (c.err == "") || a.Err != nil && !strings.Contains(a.Err.Error(), c.err) {
			t.Errorf(`%s: sent %q, %v, want token == %v, (a.Err == nil) == (c.err == ""), a.Err == nil or %q in a.Err.Error()`,
				c.at, token, a.Err, c.sent, c.err)
		}
	}
}

// Two workers that store their canaries at the same time stamp still publish different messages, else SL0308 would name them.
func TestCanariesDiffer(t *testing.T) {
	got := make(chan string, 4)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Prompt string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		got <- body.Prompt
		_, _ = w.Write([]byte(`{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`))
	}))
	defer server.Close()
	s := &collected{Seen: &findings.Seen{}, o: Options{Patience: time.Second}}
	s.Missing[findings.FromEnvoy] = "none"
	for range 2 {
		s.Servers = append(s.Servers, &findings.Server{Worker: config.Worker{Addr: server.Listener.Addr().String()},
			Facts: rules.Facts{Served: []rules.Served{{ID: "m"}}, BlockSize: 32}})
	}
	s.sendCanaries(t.Context())
	close(got)
	bodies := map[string]int{}
	for p := range got {
		bodies[p]++
	}
	begins := ""
	for p, n := range bodies {
		begin := p[:32*len("one ")]
		if n != 2 || begins != "" && begins != begin {
			t.Errorf(`%d times %.60s…, want n == 2, begins == "" or begins == %v`, n, p, begin)
		}
		begins = begin
	}
	if len(bodies) != 2 {
		t.Errorf("got %d canaries, want 2", len(bodies))
	}
}

// TestStatus: what was not checked is not passed, unless only files were to be; and it is less than a warning.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verdicts  []Verdict
		want, pre int
	}{{[]Verdict{OK}, 0, 0}, {[]Verdict{OK, Unchecked}, 3, 0}, {[]Verdict{Unchecked, Warning}, 2, 2}, {[]Verdict{Warning, Unchecked}, 2, 2},
		{[]Verdict{Unchecked, Warning, Error}, 1, 1}, {nil, 0, 0}} {
		var list []Result
		for _, v := range c.verdicts {
			list = append(list, Result{Verdict: v})
		}
		if all, pre := Status(list, false), Status(list, true); all != c.want || pre != c.pre {
			t.Errorf("%v: got status %d, %d with --pre, want %d and %d", c.verdicts, all, pre, c.want, c.pre)
		}
	}
}

// TestNotChecked: a fleet without mistakes of which the running Sightline cannot be asked is not called well.
func TestNotChecked(t *testing.T) {
	list := well().examine(t, func(o *Options) { o.Admin = "" })
	for _, r := range list {
		if r.Verdict == Warning || r.Verdict == Error {
			t.Errorf("got %+v, want no finding", r)
		}
	}
	if got := Status(list, false); got != 3 {
		t.Errorf("got exit status %d, want 3", got)
	}
	if got := Status(well().examine(t, func(o *Options) { o.Pre = true }), true); got != 0 {
		t.Errorf("got exit status %d of --pre, want 0", got)
	}
}

// TestPartly: what a passed check left out is printed and counted.
func TestPartly(t *testing.T) {
	var b bytes.Buffer
	o := Options{Out: &b}
	list := []Result{
		{Code: "SL0407", Verdict: OK, Evidence: []string{"nothing is found in the configuration",
			"not checked: forged headers: Envoy speaks TLS"}},
		{Code: "SL0408", Verdict: OK, Evidence: []string{"8 of 8"}},
	}
	if err := o.print(list); err != nil || !strings.Contains(b.String(), "\n    not checked: forged headers: Envoy speaks TLS\n") ||
		!strings.Contains(b.String(), "\n2 passed (1 in part), 0 warnings") || strings.Contains(b.String(), "nothing is found") {
		t.Errorf("%v:\n%s, want no error, \"\\n    not checked: forged headers: Envoy speaks TLS\\n\" in b.String(), \"\\n2 "+
			"passed (1 in part), 0 warnings\" in b.String(), no \"nothing is found\" in b.String()", err, b.String())
	}
}

// TestNoHealthySightline: what to do where Envoy has no healthy Sightline depends on whether one runs, and is ready.
func TestNoHealthySightline(t *testing.T) {
	for _, c := range []struct {
		missing, notReady, fix string
	}{{"none answers", "", "start it"}, {"", "catching up", "see what it waits for"}, {"", "", "TLS if listen has it"}} {
		seen := &findings.Seen{Life: findings.Life{Envoy: "http://127.0.0.1:9901", Hosts: 1, NotReady: c.notReady}}
		seen.Missing[findings.FromRunning] = c.missing
		seen.Through.Asked = true
		facts := findings.Facts{Seen: seen}
		for _, check := range facts.Checks(nil) {
			r := verdict(&check)
			if r.Code == "SL0505" && (r.Verdict != Error || !strings.Contains(r.Fix, c.fix) || !strings.Contains(r.Evidence[0], "has no healthy")) {
				t.Errorf("%+v: got %+v, want an error with the fix %q", c, r, c.fix)
			}
			if r.Code == "SL0408" && r.Fix != "see SL0505" {
				t.Errorf("%+v: got SL0408 %+v, want the fix of SL0505", c, r)
			}
		}
	}
}
