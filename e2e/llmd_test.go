package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
)

// heard is a request as a worker got it.
type heard struct {
	header http.Header
	body   gjson.Result
}

// hearing stands before a simulated worker and keeps what comes to it; before "" it answers itself. Requests with x-hold wait there
// until hold is closed, where it is not nil.
func hearing(t *testing.T, worker string, hold chan struct{}) (addr string, got chan heard) {
	got = make(chan heard, 64)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: worker})
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if hold != nil && r.Header.Get("x-hold") != "" {
				<-hold
				return
			}
			raw, _ := io.ReadAll(r.Body)
			got <- heard{r.Header.Clone(), gjson.ParseBytes(raw)}
			r.Body = io.NopCloser(bytes.NewReader(raw))
		}
		if worker != "" {
			proxy.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), got
}

// Behind llm-d's real sidecar (`make e2e-llmd` builds it and sets SIGHTLINE_SIDECAR): the workers that headers name get their parts of a
// request as that sidecar sends them, and no others.
func TestRealSidecar(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_SIDECAR")
	if bin == "" {
		t.Skip("needs llm-d's sidecar: make e2e-llmd")
	}
	hold := make(chan struct{})
	var prefill, encode []string
	parts := map[string]chan heard{} // by address
	var decode chan heard
	ports, err := lab.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	front := fmt.Sprint("127.0.0.1:", ports[0])
	l := startLab(t, func(o *lab.Options) {
		o.Front = func(e *envoy.Options) { e.Workers = []string{front} }
		o.Config = func(keys map[string]any) {
			workers := keys["workers"].([]any)
			for i, role := range []string{"prefill", "prefill", "decode"} {
				w := workers[i].(map[string]any)
				w["role"] = role
				if role == "prefill" {
					addr, got := hearing(t, w["addr"].(string), nil)
					w["addr"], parts[addr], prefill = addr, got, append(prefill, addr)
					continue
				}
				var addr string
				addr, decode = hearing(t, w["addr"].(string), hold)
				_, port, _ := net.SplitHostPort(addr)
				log, err := os.Create(filepath.Join(t.TempDir(), "sidecar.log"))
				if err != nil {
					t.Fatal(err)
				}
				c := exec.Command(bin, "--port", fmt.Sprint(ports[0]), "--vllm-port", port, "--secure-proxy=false",
					"--kv-connector=nixlv2", "--ec-connector=ec-example")
				c.Stdout, c.Stderr = log, log
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = c.Process.Kill()
					_ = c.Wait()
					if text, _ := os.ReadFile(log.Name()); t.Failed() {
						t.Logf("the sidecar:\n%s", text)
					}
				})
				w["addr"] = front
			}
			for i := range 3 {
				addr, got := hearing(t, "", nil)
				parts[addr], encode = got, append(encode, addr)
				workers = append(workers, map[string]any{"name": fmt.Sprint("encoder-", i), "addr": addr, "role": "encode"})
			}
			keys["workers"], keys["fixed"] = workers, unprobed("health_every", "100ms")
		}
	})
	send := func(header http.Header, content any) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 2,
			"messages": []any{map[string]any{"role": "user", "content": content}}})
		if err != nil {
			t.Fatal(err)
		}
		if r := raws(t, l, body, header); r.status != http.StatusOK {
			t.Fatalf("got %d %s, want %d", r.status, r.body, http.StatusOK)
		}
	}
	const held = 4 // at the worker that decodes: it would prefill as well as any if it had nothing to do
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
	defer close(hold)
	// ask gives what the worker that decodes was sent, and by address what the others were.
	ask := func(content any) (at heard, others map[string][]heard) {
		t.Helper()
		eventually(t, "only what is held is in flight, and the index has what the workers have", func() bool {
			raw, err := lab.Get("http://" + l.Admin + "/workers")
			n := 0
			for i, row := range gjson.ParseBytes(raw).Array() {
				n += int(row.Get("in_flight").Int())
				if i < len(l.Sims) && int(row.Get("blocks_held").Int()) != len(l.Sims[i].Blocks()) {
					return false
				}
			}
			return err == nil && n == held
		})
		send(http.Header{http.CanonicalHeaderKey(extproc.HeaderPrefiller): {"192.0.2.1:1"},
			http.CanonicalHeaderKey(extproc.HeaderEncoder): {"192.0.2.1:1"}}, content)
		at, others = <-decode, map[string][]heard{}
		for addr, got := range parts {
			for len(got) > 0 {
				others[addr] = append(others[addr], <-got)
			}
		}
		return at, others
	}
	text := func(n int) string { return strings.Repeat(fmt.Sprintf("Story %d is about sidecars. ", n), 300) }
	image := func(seed uint64) map[string]any {
		return map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(seed))}}
	}

	// A new text is prefilled where the header says, one token of it, and decoded with what came of that.
	at, others := ask(text(0))
	named := at.header.Get(extproc.HeaderPrefiller)
	if got := others[named]; !slices.Contains(prefill, named) || len(others) != 1 || len(got) != 1 ||
		got[0].body.Get("max_tokens").Int() != 1 || !got[0].body.Get("kv_transfer_params.do_remote_decode").Bool() {
		t.Errorf("prefill named at %q: %v", named, others)
	}
	if !at.body.Get("kv_transfer_params").Exists() || at.body.Get("max_tokens").Int() != 2 {
		t.Errorf(`decoded with %s of %d tokens, want at.body.Get("kv_transfer_params").Exists(), at.body.Get("max_tokens").Int() == 2`,
			at.body.Get("kv_transfer_params"), at.body.Get("max_tokens").Int())
	}
	if at, others := ask(text(0)); len(others) != 0 || at.header.Get(extproc.HeaderPrefiller) != "" ||
		at.body.Get("kv_transfer_params").Exists() {
		t.Errorf("the same text: %v", others)
	}
	// Images are encoded each at the place of its own, in whatever company, and by nobody else.
	home := map[string]string{}
	for i, seeds := range [][]uint64{{500}, {501, 502}, {503, 504, 505}, {506, 501, 500}} {
		content := []any{map[string]any{"type": "text", "text": text(10 + i)}}
		for _, seed := range seeds {
			content = append(content, image(seed))
		}
		at, others := ask(content)
		list, asked := strings.Split(at.header.Get(extproc.HeaderEncoder), ","), 0
		if len(list) != len(seeds) {
			t.Fatalf("%d images, encoders %q, want %d of them", len(seeds), list, len(seeds))
		}
		for _, addr := range encode {
			for _, got := range others[addr] {
				asked++
				url := got.body.Get("messages.0.content.0.image_url.url").Str
				place := slices.IndexFunc(seeds, func(seed uint64) bool { return dataURL(photo(seed)) == url })
				if place < 0 || list[place] != addr || len(got.body.Get("messages.0.content").Array()) != 1 || home[url] != "" && home[url] != addr {
					t.Errorf("%s got image %d of %q: %d parts, before at %q", addr, place, list,
						len(got.body.Get("messages.0.content").Array()), home[url])
				}
				home[url] = addr
			}
		}
		if asked != len(seeds) || len(others[at.header.Get(extproc.HeaderPrefiller)]) != 1 {
			t.Errorf("%d images: got %d encoded, %d prefills where it was named, want %d, 1",
				len(seeds), asked, len(others[at.header.Get(extproc.HeaderPrefiller)]), len(seeds))
		}
	}
}
