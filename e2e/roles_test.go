package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
)

// sidecar stands before a simulated worker and does what llm-d's does: it has the i-th image encoded at the i-th worker of one header,
// has the worker that the other header names prefill, and then its own worker answers.
type sidecar struct {
	*httptest.Server
	addr string
	seen chan http.Header // of each chat request
	hold chan struct{}    // what requests with x-hold wait for
}

func startSidecar(t *testing.T, worker string) *sidecar {
	s := &sidecar{seen: make(chan http.Header, 64), hold: make(chan struct{})}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: worker})
	s.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			proxy.ServeHTTP(rw, r)
			return
		}
		if r.Header.Get("x-hold") != "" {
			<-s.hold
			return
		}
		s.seen <- r.Header.Clone()
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if at := r.Header.Get(extproc.HeaderEncoder); at != "" {
			encoders := strings.Split(at, ",")
			for i, url := range gjson.GetBytes(body, `messages.0.content.#(type=="image_url")#.image_url.url`).Array() {
				res, err := http.Post("http://"+encoders[i%len(encoders)]+r.URL.Path, "application/json", strings.NewReader(url.Str))
				if err != nil {
					t.Errorf("encode at %s: got %v, want no error", at, err)
					continue
				}
				res.Body.Close()
			}
		}
		if at := r.Header.Get(extproc.HeaderPrefiller); err == nil && at != "" {
			var res *http.Response
			res, err = http.Post("http://"+at+r.URL.Path, "application/json", bytes.NewReader(body))
			if err == nil {
				res.Body.Close()
			}
			if err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("prefill at %s: got %+v, %v, want 200", at, res, err)
			}
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(s.Close)
	s.addr = s.Listener.Addr().String()
	return s
}

// Two workers that prefill, one that decodes, four that encode, behind a real Envoy: what headers name is a configured worker's
// address, never a client's, until the last worker that prefills is gone.
func TestRoles(t *testing.T) {
	t.Parallel()
	fronts := make([]*sidecar, 3) // prefill, prefill, decode
	var encoders []string
	var mu sync.Mutex
	encodes := map[string]map[string]int{} // image by URL → encoder → how often it was asked
	l := startLab(t, func(o *lab.Options) {
		o.Front = func(e *envoy.Options) { e.Workers = []string{fronts[2].addr} } // the only one that Envoy may dial
		o.Config = func(keys map[string]any) {
			workers := keys["workers"].([]any)
			for i, role := range []string{"prefill", "prefill", "decode"} {
				w := workers[i].(map[string]any)
				fronts[i] = startSidecar(t, w["addr"].(string))
				w["addr"], w["role"] = fronts[i].addr, role
			}
			for i := range 4 {
				encoder := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodPost {
						return
					}
					url, _ := io.ReadAll(r.Body)
					mu.Lock()
					defer mu.Unlock()
					if encodes[string(url)] == nil {
						encodes[string(url)] = map[string]int{}
					}
					encodes[string(url)][r.Host]++
				}))
				t.Cleanup(encoder.Close)
				encoders = append(encoders, encoder.Listener.Addr().String())
				workers = append(workers, map[string]any{"name": fmt.Sprint("encoder-", i), "addr": encoders[i], "role": "encode"})
			}
			keys["workers"], keys["fixed"] = workers, unprobed("health_every", "100ms")
		}
	})
	decode := fronts[2]
	// A worker that decodes nothing prefills as well as any. So four requests are held there, which prefill would hold up.
	const held = 4
	for i := range held {
		go func() {
			req, _ := http.NewRequest(http.MethodPost, l.URL+"/v1/chat/completions",
				strings.NewReader(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"Hold %d"}]}`, lab.ModelName, i)))
			req.Header.Set("content-type", "application/json")
			req.Header.Set("x-hold", "1")
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		}()
	}
	defer close(decode.hold)
	rows := func() gjson.Result {
		raw, err := lab.Get("http://" + l.Admin + "/workers")
		if err != nil {
			t.Fatal(err)
		}
		return gjson.ParseBytes(raw)
	}
	settled := func() {
		t.Helper()
		eventually(t, "only what is held is in flight, and the index has what the workers have", func() bool {
			n, all := 0, rows()
			for i, row := range all.Array() {
				n += int(row.Get("in_flight").Int())
				if i < len(l.Sims) && int(row.Get("blocks_held").Int()) != len(l.Sims[i].Blocks()) {
					return false
				}
			}
			return n == held
		})
	}
	forged := http.Header{}
	for _, name := range []string{extproc.HeaderPrefiller, extproc.HeaderEncoder, extproc.HeaderSource} {
		forged[http.CanonicalHeaderKey(name)] = []string{"192.0.2.1:1", "192.0.2.2:2"}
	}
	// Encode workers report no queue: Sightline assumes that one does 10,000 image tokens a second. An image moves to another encoder
	// while its own is assumed to be busy with those of earlier requests, which depends on the ports and on the machine's speed.
	const drained = 200 * time.Millisecond
	// ask sends a prompt and gives what the worker that decodes is told: who prefills and who encodes.
	ask := func(text string, images ...string) (prefill, encode string) {
		t.Helper()
		settled()
		if len(images) > 0 {
			time.Sleep(drained)
		}
		parts := []any{map[string]any{"type": "text", "text": text}}
		for _, image := range images {
			parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": image}})
		}
		body, err := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 2,
			"messages": []any{map[string]any{"role": "user", "content": parts}}})
		if err != nil {
			t.Fatal(err)
		}
		if r := raws(t, l, body, forged); r.status != http.StatusOK {
			t.Fatalf("got %d %s, want %d", r.status, r.body, http.StatusOK)
		}
		got := <-decode.seen
		for _, name := range []string{extproc.HeaderPrefiller, extproc.HeaderEncoder, extproc.HeaderSource} {
			if v := got.Values(name); len(v) > 1 || strings.Contains(strings.Join(v, ""), "192.0.2.") {
				t.Errorf("%s: got %q at the worker, want one of ours at most, and none of the client's", name, v)
			}
		}
		if v := got.Values(extproc.HeaderSource); len(v) > 0 {
			t.Errorf("KV blocks from %q, though nothing is to be fetched, want 0 of them", v)
		}
		prefill, encode = got.Get(extproc.HeaderPrefiller), got.Get(extproc.HeaderEncoder)
		for _, at := range strings.Split(encode, ",") {
			if prefill != "" && prefill != fronts[0].addr && prefill != fronts[1].addr || encode != "" && !slices.Contains(encoders, at) {
				t.Errorf("prefill at %q, encode at %q: not those of the configuration", prefill, encode)
			}
		}
		return prefill, encode
	}
	text := func(n int) string {
		return strings.Repeat(fmt.Sprintf("Story %d is about routers and their caches. ", n), 200)
	}

	if p, e := ask(text(0)); p == "" || e != "" {
		t.Fatalf("a new text: prefill at %q, encode at %q, want some, %q", p, e, "")
	}
	if p, e := ask(text(0)); p != "" || e != "" {
		t.Errorf("a text that is held where it is decoded: prefill at %q, encode at %q, want %q, %q", p, e, "", "")
	}
	const images = 4
	var prefilled, encoded [images]string
	for i := range images {
		prefilled[i], encoded[i] = ask(text(10+i), dataURL(photo(uint64(500+i))))
		if prefilled[i] == "" || encoded[i] == "" {
			t.Fatalf("new image %d: prefill at %q, encode at %q, want some, some", i, prefilled[i], encoded[i])
		}
	}
	// The worker that prefilled the first image goes. The other one has not seen what that one had, and names the same encoders.
	gone := slices.IndexFunc(fronts, func(s *sidecar) bool { return s.addr == prefilled[0] })
	other := fronts[1-gone].addr
	lose := func(i int) {
		t.Helper()
		fronts[i].CloseClientConnections()
		fronts[i].Close()
		eventually(t, "its end is noticed", func() bool { return strings.HasPrefix(rows().Get(fmt.Sprint(i, ".health")).Str, "out") })
	}
	lose(gone)
	for i := range images {
		want := encoded[i]
		if prefilled[i] == other {
			want = "" // it has it
		}
		if p, e := ask(text(20+i), dataURL(photo(uint64(500+i)))); p != other || e != want {
			t.Errorf("image %d again: prefill at %q, want %q; encode at %q, want %q", i, p, other, e, want)
		}
	}
	// Each of them again, behind a new one: it is encoded where it was.
	for i := range images {
		_, e := ask(text(40+i), dataURL(photo(uint64(600+i))), dataURL(photo(uint64(500+i))))
		if first, again, both := strings.Cut(e, ","); !both || again != encoded[i] {
			t.Errorf("image %d behind a new one: encode at %q and %q, want %q", i, first, again, encoded[i])
		}
	}
	mu.Lock()
	if len(encodes) != 2*images {
		t.Errorf("%d images came to be encoded, want %d", len(encodes), 2*images)
	}
	for url, at := range encodes {
		if len(at) != 1 {
			t.Errorf("an image of %d bytes was encoded at %v, want 1 of them", len(url), at)
		}
	}
	mu.Unlock()
	missing := func() float64 { return metric(t, l, "sightline_role_missing_total", `role="prefill"`) }
	if n := missing(); n != 0 {
		t.Errorf("%v requests lacked a worker that prefills, want 0", n)
	}
	lose(1 - gone)
	if p, _ := ask(text(30)); p != "" || missing() != 1 {
		t.Errorf("without workers that prefill: prefill at %q, %v counted, want %q, 1", p, missing(), "")
	}
}
