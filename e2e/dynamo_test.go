package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
)

// Behind real processes of NVIDIA Dynamo: `make e2e-dynamo` installs them and sets SIGHTLINE_DYNAMO to where they are. No
// etcd, no GPU: file discovery, workers on Dynamo's runtime that keep a prefix cache and publish events as vLLM's would
// (dynamo/worker.py), and two of its front ends in direct mode behind a real Envoy.

// deployment is a Dynamo deployment.
type deployment struct {
	t     *testing.T
	bin   string
	model string
	root  string // of its discovery
	plane []string
	log   lockedBuffer
}

// dynamoStart bounds a process's start: 6 s on idle cores.
const dynamoStart = 4 * time.Minute

// start runs a Python process of the deployment until the test ends, or stop is called.
func (d *deployment) start(args ...string) (stop func()) {
	d.t.Helper()
	c := exec.Command(filepath.Join(d.bin, "bin", "python"), args...)
	c.Env = append(os.Environ(), append(d.plane, "DYN_FILE_KV="+d.root, "DYN_DISCOVERY_BACKEND=file",
		"DYN_EVENT_PLANE_HOST=127.0.0.1", "DYN_TCP_RPC_HOST=127.0.0.1",
		"HF_HUB_OFFLINE=1", "DYN_MM_ALLOW_INTERNAL=1")...)
	c.Stdout, c.Stderr = &d.log, &d.log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		d.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM) // it takes its records away
		killed := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
		_ = c.Wait()
		killed.Stop()
	})
	d.t.Cleanup(stop)
	return stop
}

func (d *deployment) worker(component, kind string, ranks int) (stop func()) {
	return d.start("dynamo/worker.py", d.model, component, kind, strconv.Itoa(ranks), strconv.Itoa(photoTokens))
}

// photoTokens is what Qwen2.5-VL makes of a photo of 640×480: 644×476 pixels in cells of 28.
const photoTokens = 23 * 17

// frontend starts a front end and waits until it serves the model.
func (d *deployment) frontend(mode string) (addr string) {
	d.t.Helper()
	addr = freeAddr(d.t)
	host, port, _ := net.SplitHostPort(addr)
	d.start("-m", "dynamo.frontend", "--router-mode", mode, "--http-host", host, "--http-port", port)
	return addr
}

func (d *deployment) serves(addr string) {
	d.t.Helper()
	for end := time.Now().Add(dynamoStart); ; time.Sleep(100 * time.Millisecond) {
		if resp, err := http.Get("http://" + addr + "/v1/models"); err == nil {
			var b bytes.Buffer
			_, _ = b.ReadFrom(resp.Body)
			resp.Body.Close()
			if gjson.GetBytes(b.Bytes(), "data.0.id").Str == "m" {
				return
			}
		}
		if time.Now().After(end) {
			d.t.Fatalf("front end %s does not serve the model", addr)
		}
	}
}

func TestRealDynamo(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_DYNAMO")
	if bin == "" {
		t.Skip("needs a real Dynamo: make e2e-dynamo")
	}
	dir := t.TempDir()
	model := filepath.Join(dir, "model")
	if err := os.CopyFS(model, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(tinyConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	var total score
	for _, plane := range []string{"zmq", "nats"} {
		t.Run(plane, func(t *testing.T) {
			d := &deployment{t: t, bin: bin, model: model, root: filepath.Join(t.TempDir(), "kv"), plane: []string{"DYN_EVENT_PLANE=" + plane}}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("Dynamo:\n%s", d.log.String())
				}
			})
			link := map[string]any{"discovery": d.root}
			if plane == "nats" {
				s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
				if err != nil {
					t.Fatal(err)
				}
				s.Start()
				t.Cleanup(s.Shutdown)
				if !s.ReadyForConnections(20 * time.Second) {
					t.Fatal("the NATS server does not start")
				}
				d.plane = append(d.plane, "NATS_SERVER="+s.ClientURL())
				link["nats"] = map[string]string{"url": s.ClientURL()}
			}
			r := &dynamoRun{t: t, d: d, score: &total}
			r.begin(link)
			r.steering()
			r.images("aggregated")
			r.withoutFiles(link)
			if plane == "zmq" {
				r.theirs()
			}
			r.apart()
		})
	}
	fmt.Printf("e2e-dynamo: requests right %d, wrong %d; an image behind another URL: cached %d of %d times, by Dynamo's "+
		"own router %d of %d\n",
		total.right, total.wrong, total.otherURL, total.otherURLs, total.theirs, total.theirsOf)
	if total.wrong > 0 || total.otherURL < total.otherURLs || total.right == 0 {
		t.Errorf("requests went wrong: got %d, %d, %d, want 0, at least %d, some", total.wrong, total.otherURL, total.right, total.otherURLs)
	}
}

// score counts requests that went where they should and whose cached tokens were predicted, and those that did not.
type score struct{ right, wrong, otherURL, otherURLs, theirs, theirsOf int }

type dynamoRun struct {
	*gateway
	*score
	t      *testing.T
	d      *deployment
	ends   []func() // the workers'
	imageS string   // URL of the image server
}

// begin starts two workers of two ranks, two front ends, Sightline and Envoy.
func (r *dynamoRun) begin(link map[string]any) {
	t := r.t
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { // /SEED/anything is a photo
		seed, _, _ := strings.Cut(req.URL.Path[1:], "/")
		n, _ := strconv.ParseUint(seed, 10, 32)
		http.ServeContent(w, req, "p.jpg", time.Time{}, bytes.NewReader(photo(n)))
	}))
	t.Cleanup(web.Close)
	r.imageS = web.URL
	for range 2 {
		r.ends = append(r.ends, r.d.worker("backend", "aggregated", 2))
	}
	frontends := []string{r.d.frontend("direct"), r.d.frontend("direct")}
	link["frontends"] = frontends
	relay := freeAddr(t)
	r.gateway = startGateway(t, map[string]any{"log_level": "warn", "fixed": unprobed(),
		"media": map[string]any{"allow": []string{"127.0.0.0/8"}, "budget": "5s", "relay": map[string]any{"listen": relay,
			"url": "http://" + relay}},
		"models": []any{map[string]any{"name": "m", "dir": r.d.model, "block_size": 16, "block_hash": "dynamo", "media_names": "injected"}},
		"dynamo": link,
	}, func(o *envoy.Options) { o.Workers, o.TokenUsage = frontends, true })
	for _, f := range frontends {
		r.d.serves(f)
	}
	r.workers(4)
	r.ready(4)
}

// workers waits until so many worker-ranks are known.
func (r *dynamoRun) workers(n int64) {
	r.t.Helper()
	for end := time.Now().Add(dynamoStart); gjson.Get(r.page("/workers"), "#").Int() != n; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("worker-ranks known: %s, want %d", r.fleet(), n)
		}
	}
}

// answer is where a request went, as the workers log, and what was found cached there.
type answer struct {
	worker, rank   string // of the prefill
	decode         string
	prompt, cached int64
	picked         gjson.Result // the decision
}

// send sends one request and checks that it went to the worker and rank that were picked, and that the cached tokens are
// those that were predicted.
func (r *dynamoRun) send(what string, content any, header http.Header, more map[string]any) answer {
	r.t.Helper()
	return r.converse(what, []any{content}, header, more)
}

// converse is send with all messages of a conversation.
func (r *dynamoRun) converse(what string, messages []any, header http.Header, more map[string]any) answer {
	t := r.t
	t.Helper()
	all := map[string]any{"model": "m"}
	for k, v := range more {
		all[k] = v
	}
	before, logged := r.heard(), len(r.d.log.after(0))
	status, text := r.ask(messages, all, header)
	d := gjson.Get(r.page("/decisions?n=1"), "0")
	u := gjson.Get(text, "usage")
	a := answer{prompt: u.Get("prompt_tokens").Int(), cached: u.Get("prompt_tokens_details.cached_tokens").Int(), picked: d}
	if status == http.StatusOK {
		eventually(t, what+": a worker has logged it", func() bool {
			a.servedBy(r.d.log.after(logged))
			return a.decode != ""
		})
	}
	apart := a.worker != "dynamo-"+a.decode // then the usage is the decode worker's
	first := d.Get("memory").Bool() && d.Get("reason").Str != "learned"
	if status != http.StatusOK || a.worker != d.Get("worker").Str || !apart && !first && a.cached != d.Get("cached_tokens").Int() {
		r.wrong++
		t.Errorf("%s: status %d, picked %s, served by %s rank %s; cached tokens predicted %d, found %d: %.200s", what,
			status, d.Get("worker").Str, a.worker, a.rank,
			d.Get("cached_tokens").Int(), a.cached, text)
		return a
	}
	r.right++
	if d.Get("cached_tokens").Int()+16 <= d.Get("prompt_tokens").Int() { // something new was stored: its events come
		eventually(t, what+": its events", func() bool { return r.heard() > before })
	}
	return a
}

// servedBy reads from the log which workers have served a request, as dynamo/worker.py writes it.
func (a *answer) servedBy(log string) {
	for _, served := range servedLine.FindAllStringSubmatch(log, -1) {
		if served[1] != "decode" {
			a.worker, a.rank = "dynamo-"+served[2], served[3]
		}
		if served[1] != "prefill" {
			a.decode = served[2]
		}
	}
}

// Others write to the same log, even before a line's end.
var servedLine = regexp.MustCompile(`served (\w+) (\d+) (\d+);`)

// heard counts the batches of events that have come.
func (r *dynamoRun) heard() (n int64) {
	for _, b := range gjson.Get(r.page("/workers"), "#.event_batches").Array() {
		n += b.Int()
	}
	return n
}

// steering: what is held draws what continues it, to the same rank; whatever a client says of workers is not heard.
func (r *dynamoRun) steering() {
	for i := range 4 {
		text := fmt.Sprintf("Story %d. %s", i, strings.Repeat("it was a dark and stormy night and ", 30))
		first := r.send("first", user(text), nil, nil)
		again := r.send("again", user(text), nil, nil)
		if again.worker != first.worker || again.rank != first.rank || again.cached == 0 {
			r.wrong++
			r.t.Errorf("the same text: %+v, then %+v", first, again)
		}
		other := "1"
		for _, w := range gjson.Get(r.page("/workers"), "#.name").Array() {
			if w.Str != first.worker {
				other = strings.TrimPrefix(w.Str, "dynamo-")
			}
		}
		r.sameAs(first, r.send("a client's headers", user(text), http.Header{"X-Dynamo-Worker-Instance-Id": {other},
			"X-Worker-Instance-Id": {other}, "X-Dynamo-Dp-Rank": {"1"},
			"X-Dynamo-Prefill-Instance-Id": {other}}, nil))
		salted := r.send("another tenant", user(text), nil, map[string]any{"cache_salt": fmt.Sprint("tenant-", i)})
		if salted.picked.Get("cached_tokens").Int() != 0 {
			r.wrong++
			r.t.Errorf("another tenant's request is promised %d cached tokens", salted.picked.Get("cached_tokens").Int())
		}
		for _, own := range []any{nil, "no tenant"} { // Dynamo's own field for it comes first
			r.sameAs(salted, r.send("another tenant again", user(text), nil, map[string]any{"cache_salt": own,
				"nvext": map[string]any{"cache_salt": fmt.Sprint("tenant-", i)}}))
		}
	}
}

func (r *dynamoRun) sameAs(first, now answer) {
	if now.worker != first.worker || now.rank != first.rank {
		r.wrong++
		r.t.Errorf("held by %s rank %s, went to %s rank %s (%s)", first.worker, first.rank, now.worker, now.rank, now.picked.Get("reason").Str)
	}
}

// images: an image behind another URL is the one that is held.
func (r *dynamoRun) images(what string) {
	for i := range 6 {
		n := 100*len(what) + i
		text := fmt.Sprintf("Picture %d, %s: what is to be seen?", i, what)
		at := func(name string) any { return user(text, fmt.Sprintf("%s/%d/%s.jpg", r.imageS, n, name)) }
		first := r.send("image at A", at("a"), nil, nil)
		other := r.send("image at B", at("b"), nil, nil)
		r.sameAs(first, other)
		r.otherURLs++
		if other.picked.Get("cached_tokens").Int() >= photoTokens {
			r.otherURL++
		}
		r.sameAs(first, r.send("image in the body", user(text, dataURL(photo(uint64(n)))), nil, nil))
		if strange := r.send("another image", user(text, fmt.Sprintf("%s/%d/a.jpg", r.imageS, n+50)), nil,
			nil); strange.picked.Get("cached_tokens").Int() >= photoTokens {
			r.wrong++
			r.t.Errorf("another image is promised %d cached tokens", strange.picked.Get("cached_tokens").Int())
		}
	}
}

// withoutFiles sends conversations through a second Sightline that has no file of the model: from the second turn on they go on where they
// began, and the cached tokens are known.
func (r *dynamoRun) withoutFiles(link map[string]any) {
	t := r.t
	own := &dynamoRun{t: t, d: r.d, score: r.score, imageS: r.imageS}
	own.gateway = startGateway(t, map[string]any{"log_level": "warn", "fixed": unprobed(), "dynamo": link,
		"models": []any{map[string]any{"name": "m", "block_size": 16, "block_hash": "dynamo"}}},
		func(o *envoy.Options) { o.Workers, o.TokenUsage = link["frontends"].([]string), true })
	own.workers(4)
	own.ready(4)
	outcomes := func() (n float64) {
		for _, count := range own.counted("sightline_learned_requests_total", "outcome") {
			n += count
		}
		return n
	}
	for i := range 6 {
		content := user(fmt.Sprintf("Tale %d. %s", i, strings.Repeat("once there was a city by the sea and ", 30)))
		if i%2 == 1 {
			content = user("And what is to be seen here?", dataURL(photo(uint64(9000+i))))
		}
		talk, first := []any{content}, answer{}
		for turn := range 3 {
			before := outcomes()
			a := own.converse(fmt.Sprintf("without files: talk %d, turn %d", i, turn), talk, nil, nil)
			if turn == 0 {
				first = a
			}
			own.sameAs(first, a)
			if turn > 0 && (a.picked.Get("reason").Str != "predicted" || a.cached == 0) { // it goes on with an answer
				r.wrong++
				t.Errorf("talk %d, turn %d: %d tokens cached: %s", i, turn, a.cached, a.picked.Raw)
			}
			eventually(t, "it is learned", func() bool { return outcomes() > before })
			talk = append(talk, map[string]any{"role": "assistant", "content": "\n"}, user("And then? "+strings.Repeat("Tell me more. ", 10+i)))
		}
	}
	t.Logf("without files: %v", own.counted("sightline_learned_requests_total", "outcome"))
}

// theirs sends the same to Dynamo's own router, for comparison.
func (r *dynamoRun) theirs() {
	r.t.Helper()
	addr := r.d.frontend("kv")
	r.d.serves(addr)
	own := &gateway{t: r.t, url: "http://" + addr}
	for i := range 6 {
		var cached int64
		for _, name := range []string{"a", "b"} {
			status, text := own.ask([]any{user("Theirs: what is to be seen?", fmt.Sprintf("%s/%d/%s.jpg", r.imageS, 5000+i, name))},
				map[string]any{"model": "m"}, nil)
			if status != http.StatusOK {
				r.t.Errorf("Dynamo's own router: status %d: %.200s", status, text)
			}
			cached = gjson.Get(text, "usage.prompt_tokens_details.cached_tokens").Int()
		}
		r.score.theirsOf++
		if cached >= photoTokens {
			r.score.theirs++
		}
	}
}

// apart lets other workers take over: two that prefill, two that decode.
func (r *dynamoRun) apart() {
	t := r.t
	for _, end := range r.ends {
		end()
	}
	r.workers(0)
	for range 2 {
		r.d.worker("prefill", "prefill", 2)
		r.d.worker("backend", "decode", 1)
	}
	r.workers(6)
	r.ready(6)
	decoders := map[string]int{}
	text := strings.Repeat("what is prefilled here is decoded there, and ", 20)
	ok := 0 // the front ends find the workers in their own time, and are asked in turns
	for end := time.Now().Add(dynamoStart); ok < 4; time.Sleep(50 * time.Millisecond) {
		if status, _ := r.ask([]any{user("are you there?")}, map[string]any{"model": "m"}, nil); status == http.StatusOK {
			ok++
		} else {
			ok = 0
			if time.Now().After(end) {
				t.Fatal("the front ends do not find the workers that prefill and decode")
			}
		}
	}
	first := r.send("apart", user(text), nil, nil)
	for range 3 {
		again := r.send("apart, again", user(text), nil, nil)
		r.sameAs(first, again)
		decoders[again.decode]++
		if "dynamo-"+again.decode == again.worker {
			r.wrong++
			t.Errorf("prefilled and decoded by %s", again.worker)
		}
	}
	if len(decoders) != 2 {
		r.wrong++
		t.Errorf("decoded by %v, want two in turn", decoders)
	}
	r.images("apart")
}
