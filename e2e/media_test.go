package e2e

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/prompt"
)

// What reaches the workers of a request's media: bodies as workers see them, through a real Envoy.

// received are the bodies that workers read, by the request's user field.
type received struct{ byUser sync.Map }

// watch has a lab's workers keep what they read.
func (r *received) watch(o *lab.Options) {
	inner := o.Prompts
	o.Prompts = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
		r.byUser.Store(gjson.GetBytes(body, "user").Str, string(body))
		return inner(ctx, path, body)
	}
}

func (r *received) body(user string) string {
	b, _ := r.byUser.Load(user)
	s, _ := b.(string)
	return s
}

func contentID(t *testing.T, file []byte) string {
	t.Helper()
	f, err := media.Identify(media.File(file))
	if err != nil {
		t.Fatal(err)
	}
	return f.ID.String()
}

// countingHost serves images and counts, by file name.
func countingHost(t *testing.T, files map[string][]byte) (url string, count func(name string) int) {
	t.Helper()
	var mu sync.Mutex
	n := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Base(r.URL.Path)
		mu.Lock()
		n[name]++
		mu.Unlock()
		w.Header().Set("Content-Type", "image/jpeg")
		w.Header().Set("Cache-Control", "max-age=600")
		_, _ = w.Write(files[name])
	}))
	t.Cleanup(s.Close)
	return s.URL, func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return n[name]
	}
}

func imagePart(url string, more map[string]any) map[string]any {
	p := map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}}
	maps.Copy(p, more)
	return p
}

func request(user, question string, parts ...any) map[string]any {
	return map[string]any{"user": user,
		"messages": []any{map[string]any{"role": "user", "content": append(parts, map[string]any{"type": "text", "text": question})}}}
}

// names are the identifiers under which a worker holds blocks.
func names(w *sim.Worker) map[string]bool {
	out := map[string]bool{}
	for _, b := range w.Blocks() {
		for _, k := range b.ExtraKeys {
			if pair, ok := k.([]any); ok && len(pair) == 2 {
				out[fmt.Sprint(pair[0])] = true
			}
		}
	}
	return out
}

// Injected: workers hold an image under its content id, and we predict what they report.
func TestInjectedNames(t *testing.T) {
	t.Parallel()
	var got received
	l := startLab(t, func(o *lab.Options) {
		got.watch(o)
		o.Config = func(keys map[string]any) { keys["models"].([]any)[0].(map[string]any)["media_names"] = "injected" }
	})
	file := photo(21)
	id := contentID(t, file)
	host, _ := countingHost(t, map[string][]byte{"a.jpg": file})
	first := post(t, l, request("inject-1", "What is this?", imagePart(dataURL(file), nil)), nil)
	awaitExact(t, l, first.worker, first.prompt)
	if held := names(l.Sims[first.worker]); len(held) != 1 || !held[id] {
		t.Errorf("the worker holds blocks under %v, want %s", held, id)
	}
	second := post(t, l, request("inject-2", "And how old is it?", imagePart(dataURL(file), map[string]any{"uuid": "of a client"})), nil)
	if d := lastDecision(t, l); second.worker != first.worker || second.cached < 380 ||
		int(d.Get("cached_tokens").Int()) != second.cached || d.Get("reason").Str != "exact" {
		t.Errorf("again: worker %d (first %d), %d cached, decision %s", second.worker, first.worker, second.cached, d.Raw)
	}
	for user, url := range map[string]string{"inject-1": dataURL(file), "inject-2": dataURL(file)} {
		part := gjson.Get(got.body(user), "messages.0.content.0")
		if part.Get("uuid").Str != id || part.Get("image_url.url").Str != url {
			t.Errorf("%s: the worker got %.200s … %s", user, got.body(user), part.Get("uuid").Raw)
		}
	}
	// By URL the worker fetches for itself: no name of ours, since its bytes may be others.
	third := post(t, l, request("inject-3", "What is this?", imagePart(host+"/a.jpg", nil)), nil)
	d := lastDecision(t, l)
	if uuid := gjson.Get(got.body("inject-3"), "messages.0.content.0.uuid"); third.status != 200 || uuid.Exists() ||
		int(d.Get("cached_tokens").Int()) != third.cached {
		t.Errorf("by URL: status %d, uuid %s, %d cached, decision %s", third.status, uuid.Raw, third.cached, d.Raw)
	}
}

// replica runs one more Sightline, whose relay listens at addr and shares the key.
func replica(t *testing.T, addr, keyFile string) {
	t.Helper()
	dir, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	config, bin := filepath.Join(t.TempDir(), "replica.yaml"), ""
	text := fmt.Sprintf("listen: %s\nadmin: ''\nfixed: {probe: false}\nlog_level: error\nmodels: [{name: m, dir: %s}]\nworkers: "+
		"[{addr: '127.0.0.1:1'}]\nmedia: {relay: {listen: %s, url: 'http://%s/pictures', key_file: %s}}\n",
		freeAddr(t), dir, addr, addr, keyFile)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	bin, err = product()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", "--config", config)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, "a second replica's relay answers", func() bool {
		resp, err := http.Get("http://" + addr)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
}

// With the relay the image host sees one download, whoever asks and as often as they ask; workers load from Sightline,
// from the process that holds the image ("injected false") or through another replica ("injected true").
func TestRelay(t *testing.T) {
	t.Parallel()
	for _, inject := range []bool{false, true} {
		t.Run(fmt.Sprint("injected ", inject), func(t *testing.T) {
			var got received
			listen := freeAddr(t)
			at, keyFile := "http://"+listen, filepath.Join(t.TempDir(), "key")
			if inject {
				other := freeAddr(t)
				if err := os.WriteFile(keyFile, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
					t.Fatal(err)
				}
				replica(t, other, keyFile)
				at = "http://" + other
			}
			l := startLab(t, func(o *lab.Options) {
				got.watch(o)
				o.Config = func(keys map[string]any) {
					keys["fixed"] = unprobed() // its image would be counted too
					m := keys["media"].(map[string]any)
					m["budget"] = "5s" // the machine may be busy: what is late keeps its URL
					m["signing"] = map[string]any{"127.0.0.1": []string{"sig"}}
					m["relay"] = map[string]any{"listen": listen, "url": at + "/pictures", "data_urls": true}
					if inject {
						m["relay"].(map[string]any)["key_file"] = keyFile
						keys["models"].([]any)[0].(map[string]any)["media_names"] = "injected"
					}
				}
			})
			a, b := photo(22), photo(23)
			host, downloads := countingHost(t, map[string][]byte{"a.jpg": a, "b.jpg": b, "c.jpg": photo(24)})
			id := contentID(t, a)
			first := post(t, l, request("relay-0", "What is this?", imagePart(host+"/a.jpg", nil)), nil)
			awaitExact(t, l, first.worker, first.prompt)
			for i, url := range []string{host + "/a.jpg", host + "/a.jpg", dataURL(a)} {
				r := post(t, l, request(fmt.Sprint("relay-", i+1), fmt.Sprintf("Question %d?", i), imagePart(url, nil)), nil)
				if d := lastDecision(t, l); r.status != 200 || r.worker != first.worker || r.cached < 380 ||
					int(d.Get("cached_tokens").Int()) != r.cached || d.Get("reason").Str != "exact" {
					t.Errorf("%.40s: worker %d (first %d), %d cached, decision %s", url, r.worker, first.worker, r.cached, d.Raw)
				}
			}
			var link string
			for i := range 4 {
				part := gjson.Get(got.body(fmt.Sprint("relay-", i)), "messages.0.content.0")
				link = part.Get("image_url.url").Str
				if !strings.HasPrefix(link, at+"/pictures/"+id+"?") || (part.Get("uuid").Str == id) != inject {
					t.Errorf("request %d: the worker got %.300s", i, part.Raw)
				}
			}
			if held := names(l.Sims[first.worker]); len(held) != 1 || held[id] != inject {
				t.Errorf("the worker holds blocks under %v; the content id is %s, want 1 of them, [id] %v", held, id, inject)
			}
			two := post(t, l, request("relay-two", "Which is nicer?", imagePart(host+"/a.jpg", nil), imagePart(host+"/b.jpg", nil)), nil)
			if d := lastDecision(t, l); two.status != 200 || int(d.Get("cached_tokens").Int()) != two.cached {
				t.Errorf("two images: got status %d, %d cached, decision %s; want 200, and as many cached as decided",
					two.status, two.cached, d.Raw)
			}
			for i, url := range []string{host + "/c.jpg?sig=mine", host + "/c.jpg"} {
				post(t, l, request(fmt.Sprint("relay-signed-", i), "What is this?", imagePart(url, nil)), nil)
			}
			if n := downloads("c.jpg"); n != 2 {
				t.Errorf("the host was asked %d times, want once for the signed URL and once for the one without a signature", n)
			}
			if downloads("a.jpg") != 1 || downloads("b.jpg") != 1 {
				t.Errorf("the image host saw %d and %d downloads, want 1 each", downloads("a.jpg"), downloads("b.jpg"))
			}
			for name, c := range map[string]struct {
				url  string
				code int
			}{"as it is": {link, 200}, "longer": {strings.Replace(link, "e=", "e=1", 1), 403}, "unsigned": {link[:strings.Index(link, "?")], 403}} {
				resp, err := http.Get(c.url)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != c.code || (c.code == 200) != (string(body) == string(a)) {
					t.Errorf("%s: status %d, want %d", name, resp.StatusCode, c.code)
				}
			}
			if metric(t, l, "sightline_relay_total", "served") < 3 || metric(t, l, "sightline_relay_images", "") != 3 {
				t.Errorf("served %v, images %v, want at least 3, 3",
					metric(t, l, "sightline_relay_total", "served"), metric(t, l, "sightline_relay_images", ""))
			}
		})
	}
}

// A worker that takes no data URLs gets their images by the relay, and holds them under its engine's own name.
func TestRelayToTensorRTLLM(t *testing.T) {
	t.Parallel()
	var got received
	listen := freeAddr(t)
	l := startEngines(t, sim.TRTLLM, 32, func(o *lab.Options) {
		o.Workers = 2
		o.Sim = func(_ int, s *sim.Config) { s.BlockSize, s.Blocks = 32, 1<<11 }
		got.watch(o)
		inner := o.Config
		o.Config = func(keys map[string]any) {
			if inner != nil {
				inner(keys)
			}
			keys["media"].(map[string]any)["relay"] = map[string]any{"listen": listen, "url": "http://" + listen, "data_urls": true}
		}
	})
	url, n := pngURL(110), 0
	eventually(t, "the image is found again", func() bool { // its pixels are decoded beside the requests
		n++
		user := fmt.Sprint("trt-", n)
		r := post(t, l, request(user, "A question long enough for a block of thirty-two tokens behind its picture, so that it is found again",
			imagePart(url, nil)), nil)
		if body := got.body(user); r.status != 200 || strings.Contains(body, "data:image") || !strings.Contains(body, "http://"+listen+"/") {
			t.Fatalf("request %d: status %d, the worker got %.300s", n, r.status, body)
		}
		d := lastDecision(t, l)
		settled(t, l)
		return r.cached > 250 && int(d.Get("cached_tokens").Int()) == r.cached && d.Get("why").Str == prompt.Uncompared
	})
	if metric(t, l, "sightline_relay_total", "served") < 1 {
		t.Error("no worker came to the relay")
	}
}

// BenchmarkBodyEdit: one and four images of 3.7 MB through Envoy, with the body as it is and sent back.
func BenchmarkBodyEdit(b *testing.B) {
	big := make([]byte, 2_775_000)
	copy(big, "\xff\xd8\xff\xe0")
	body := func(images int, field bool) []byte {
		var parts []any
		for range images {
			parts = append(parts, imagePart("data:image/jpeg;base64,"+base64.StdEncoding.EncodeToString(big), nil))
		}
		m := request("bench", "?", parts...)
		m["model"], m["max_tokens"] = "unknown", 1
		if field {
			m["kv_transfer_params"] = "x"
		}
		raw, err := json.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return raw
	}
	bin, err := product()
	if err != nil {
		b.Fatal(err)
	}
	p, err := prompts()
	if err != nil {
		b.Fatal(err)
	}
	l, err := lab.Start(b.Context(), lab.Options{Self: bin, Envoy: binary(b), ModelDir: modelDir, Prompts: p, Log: new(lockedBuffer)})
	defer l.Stop()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		images int
		field  bool
	}{{"1/untouched", 1, false}, {"1/edited", 1, true}, {"4/untouched", 4, false}, {"4/edited", 4, true}} {
		raw := body(c.images, c.field)
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				raws(b, l, raw, nil) // the worker answers that it has no such model
			}
		})
	}
}

// BenchmarkResident: eight clients with four images of 3.7 MB each at once; what Sightline's process then holds, with
// bodies as they are and with every body sent back.
func BenchmarkResident(b *testing.B) {
	file := append(photo(30), make([]byte, 2_600_000)...)
	var parts []any
	for range 4 {
		parts = append(parts, imagePart(dataURL(file), nil))
	}
	body := request("bench", "?", parts...)
	body["model"], body["max_tokens"] = lab.ModelName, 1
	raw, err := json.Marshal(body)
	if err != nil {
		b.Fatal(err)
	}
	bin, err := product()
	if err != nil {
		b.Fatal(err)
	}
	p, err := prompts()
	if err != nil {
		b.Fatal(err)
	}
	for _, how := range []string{"computed", "injected"} {
		b.Run(how, func(b *testing.B) {
			l, err := lab.Start(b.Context(), lab.Options{Self: bin, Envoy: binary(b), ModelDir: modelDir, Prompts: p, Log: new(lockedBuffer),
				Config: func(keys map[string]any) { keys["models"].([]any)[0].(map[string]any)["media_names"] = how }})
			defer l.Stop()
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(8 * int64(len(raw)))
			most := 0.0
			for b.Loop() {
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						if r := raws(b, l, raw, nil); r.status != 200 {
							b.Errorf("status %d: %.200s", r.status, r.body)
						}
					})
				}
				all.Wait()
				most = max(most, metric(b, l, "process_resident_memory_bytes", ""))
			}
			b.ReportMetric(most/(1<<20), "MiB-resident")
			b.ReportMetric(1000*metric(b, l, "sightline_decision_seconds_sum", "")/metric(b, l, "sightline_decision_seconds_count", ""),
				"ms/decision")
		})
	}
}
