package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
)

var (
	red, _  = base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR42mP4z8DAAMIM/4EAAB/uBfvxq7p3AAAAAElFTkSuQmCC")
	rgba, _ = base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAFElEQVR42mP4z8DwHwgbGMA0EAAAP9cIeV/HbbEAAAAASUVORK5CYII=")
)

// clock is a time that only the test advances.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }
func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	c.t = c.t.Add(d)
	c.mu.Unlock()
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func open(t *testing.T, cfg Config) *Fetcher {
	t.Helper()
	if cfg.Budget == 0 {
		cfg.Budget = 2 * time.Minute // tests of the budget set their own
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * time.Minute
	}
	if cfg.Proxy == nil {
		cfg.Proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// serve runs a loopback server that counts requests.
func serve(t *testing.T, h http.HandlerFunc) (base string, requests *atomic.Int32) {
	t.Helper()
	requests = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func image(b []byte, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Write(b)
	}
}

func want(t *testing.T, f *Fetcher, url string, b []byte) {
	t.Helper()
	facts, err := f.Get(t.Context(), 0, url)
	if err != nil || facts.ID != blake3.Sum256(b) || facts.Width != 2 {
		t.Fatalf("got %+v, %v, want the id of these bytes, two pixels wide", facts, err)
	}
}

func wantKind(t *testing.T, f *Fetcher, url string, k Kind) error {
	t.Helper()
	facts, err := f.Get(t.Context(), 0, url)
	if got, ok := kindOf(err); !ok || got != k {
		t.Fatalf("%+v, %v, want %v", facts, err, k)
	}
	return err
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestOnceForAll(t *testing.T) {
	gate := make(chan struct{})
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-gate
		image(red, "Cache-Control", "max-age=60")(w, r)
	})
	var seen atomic.Int32
	f := open(t, Config{Allow: loopback, Seen: func(_ fair.Client, f media.Facts, b []byte) { seen.Add(int32(len(b))) }})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { want(t, f, base+"/a.png", red) })
	}
	until(t, "a request", func() bool { return n.Load() > 0 })
	close(gate)
	wg.Wait()
	want(t, f, base+"/a.png#fragment", red)
	if n.Load() != 1 || seen.Load() != int32(len(red)) {
		t.Errorf("%d requests, seen %d bytes, want 1, %d", n.Load(), seen.Load(), int32(len(red)))
	}
	if s := f.Stats(); s.Downloads != 1 || s.Hits < 1 || f.inFlight.Taken() != 0 {
		t.Errorf("got %+v, want one download, then hits, and nothing in flight", s)
	}
	if b, ok := f.Bytes(blake3.Sum256(red)); !ok || string(b) != string(red) {
		t.Error("bytes are not kept")
	}
	want(t, f, base+"/b.png", red) // another URL, the same identity
	if n.Load() != 2 {
		t.Errorf("%d requests, want 2", n.Load())
	}
}

// TestLateJoiner: a request that looked up the URL before a download ended and joins after it takes its result and asks nobody.
func TestLateJoiner(t *testing.T) {
	base, n := serve(t, image(red, "Cache-Control", "no-cache"))
	f := open(t, Config{Allow: loopback})
	u, err := f.parse(base + "/a.png")
	if err != nil {
		t.Fatal(err)
	}
	want(t, f, base+"/a.png", red)
	fl, err := f.start(0, u, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-fl.done
	if got := n.Load(); got != 1 || fl.err != nil || fl.facts.ID != blake3.Sum256(red) {
		t.Errorf("got %d requests to the host, %+v, %v, want one and the image", got, fl.facts, fl.err)
	}
}

func TestBudget(t *testing.T) {
	gate := make(chan struct{})
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) { <-gate; image(red)(w, r) })
	f := open(t, Config{Allow: loopback, Budget: time.Millisecond})
	wantKind(t, f, base+"/a", Budget)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Get(ctx, 0, base+"/a"); func() Kind { k, _ := kindOf(err); return k }() != Budget {
		t.Error(err)
	}
	if _, ok := f.Last(base + "/a"); ok {
		t.Error("an identity before the first answer")
	}
	close(gate)
	until(t, "the download that went on", func() bool { _, ok := f.Last(base + "/a"); return ok })
	want(t, f, base+"/a", red)
	if n.Load() != 1 || f.Stats().Failed[Budget] != 2 {
		t.Errorf("got %d requests, counts %v, want one, and two over their budget", n.Load(), f.Stats())
	}
}

func TestFreshness(t *testing.T) {
	var body atomic.Pointer[[]byte]
	body.Store(&red)
	var asked atomic.Pointer[string]
	serveIt := func(cc string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			inm := r.Header.Get("If-None-Match")
			asked.Store(&inm)
			b := *body.Load()
			tag := fmt.Sprintf(`"%x"`, blake3.Sum256(b))
			w.Header().Set("ETag", tag)
			w.Header().Set("Cache-Control", cc)
			if inm == tag {
				w.WriteHeader(304)
				return
			}
			w.Write(b)
		}
	}
	c := &clock{t: time.Now()}
	t.Run("stale while it is checked", func(t *testing.T) {
		base, n := serve(t, serveIt("max-age=60"))
		f := open(t, Config{Allow: loopback, now: c.now})
		want(t, f, base, red)
		c.add(61 * time.Second)
		want(t, f, base, red) // immediately
		until(t, "a check", func() bool { return n.Load() == 2 })
		if *asked.Load() == "" {
			t.Errorf("no If-None-Match: got %q, want some", *asked.Load())
		}
		until(t, "fresh again", func() bool { want(t, f, base, red); return len(f.flights()) == 0 })
		body.Store(&rgba)
		defer body.Store(&red)
		c.add(61 * time.Second)
		want(t, f, base, red) // the last known answer, which is now being checked
		until(t, "the new image", func() bool { facts, _ := f.Get(t.Context(), 0, base); return facts.ID == blake3.Sum256(rgba) })
		until(t, "the end of that download", func() bool { return len(f.flights()) == 0 })
		c.add(2 * time.Hour) // too old to be used unchecked
		body.Store(&red)
		want(t, f, base, red)
	})
	t.Run("no-cache is checked before it is believed", func(t *testing.T) {
		base, n := serve(t, serveIt("no-cache"))
		f := open(t, Config{Allow: loopback, now: c.now})
		want(t, f, base, red)
		want(t, f, base, red)
		if n.Load() != 2 {
			t.Errorf("%d requests, want 2", n.Load())
		}
		body.Store(&rgba)
		defer body.Store(&red)
		want(t, f, base, rgba)
	})
	t.Run("no-store keeps no bytes", func(t *testing.T) {
		base, _ := serve(t, image(red, "Cache-Control", "no-store"))
		f := open(t, Config{Allow: loopback})
		want(t, f, base, red)
		if _, ok := f.Bytes(blake3.Sum256(red)); ok {
			t.Error("bytes are kept")
		}
	})
	t.Run("a host in trouble", func(t *testing.T) {
		var down atomic.Bool
		base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if down.Load() {
				w.WriteHeader(503)
				return
			}
			image(red, "Cache-Control", "max-age=60")(w, r)
		})
		f := open(t, Config{Allow: loopback, now: c.now})
		want(t, f, base, red)
		down.Store(true)
		c.add(61 * time.Second)
		want(t, f, base, red)
		until(t, "a check", func() bool { return n.Load() == 2 && len(f.flights()) == 0 })
		want(t, f, base, red)
		if n.Load() != 2 {
			t.Errorf("asked again at once: got %d, want 2", n.Load())
		}
	})
	t.Run("missing", func(t *testing.T) {
		base, n := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) })
		f := open(t, Config{Allow: loopback, now: c.now})
		wantKind(t, f, base, Status)
		wantKind(t, f, base, Status)
		if n.Load() != 1 {
			t.Errorf("%d requests, want 1", n.Load())
		}
		c.add(31 * time.Second)
		wantKind(t, f, base, Status)
		if n.Load() != 2 {
			t.Errorf("%d requests, want 2", n.Load())
		}
	})
}

// flights lists running downloads.
func (f *Fetcher) flights() (keys []key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.flight {
		keys = append(keys, k)
	}
	return keys
}

// TestPresigned: with another signature the cached image is used only if the host confirms it.
func TestPresigned(t *testing.T) {
	for _, validators := range [][]string{{"ETag", `"e1"`}, {"Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT"}} {
		var read atomic.Int32
		base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.FormValue("X-Amz-Signature"), "good") {
				w.WriteHeader(403)
				return
			}
			w.Header().Set(validators[0], validators[1])
			w.Header().Set("Cache-Control", "max-age=600")
			if r.Header.Get("If-None-Match") == `"e1"` {
				w.WriteHeader(304)
				return
			}
			read.Add(1)
			w.Write(red)
		})
		f := open(t, Config{Allow: loopback, Signing: map[string][]string{"127.0.0.1": {"x-amz-*"}}})
		u := base + "/bucket/a.png?version=1&X-Amz-Date=1&X-Amz-Signature="
		want(t, f, u+"good1", red)
		want(t, f, u+"good1", red)
		if n.Load() != 1 {
			t.Errorf("%d requests, want 1", n.Load())
		}
		wantKind(t, f, u+"stolen", Status)
		want(t, f, u+"good2", red)
		if n.Load() != 3 {
			t.Errorf("%s: %d requests, want 3", validators[0], n.Load())
		}
		wantKind(t, f, base+"/bucket/a.png?version=2&X-Amz-Signature=bad", Status)
		wantKind(t, f, base+"/bucket/a.png?version=1", Status)
		want(t, f, u+"good2", red) // still, although the host refuses those without a signature
		if n.Load() != 5 {
			t.Errorf("%s: %d requests, want 5: one asks the host without a signature", validators[0], n.Load())
		}
		if last, ok := f.Last(u + "anything"); !ok || last.ID != blake3.Sum256(red) {
			t.Error("the last identity is not found under another signature")
		}
	}
}

func TestBadBodies(t *testing.T) {
	big := func(w http.ResponseWriter, r *http.Request) {
		w.Write(red)
		junk := make([]byte, 8192)
		for {
			if _, err := w.Write(junk); err != nil {
				return
			}
		}
	}
	raw := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				io.WriteString(c, answer)
				c.Close()
			}
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want Kind
	}{
		"nothing":            {image(nil), NotAnImage},
		"html":               {image([]byte("<html>no</html>"), "Content-Type", "image/png"), NotAnImage},
		"cut image":          {image(red[:20]), NotAnImage},
		"endless":            {big, TooLarge},
		"announced too long": {raw("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"), TooLarge},
		"shorter than said":  {raw("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc"), Unreachable},
		"no HTTP":            {raw("hello\r\n\r\n"), Unreachable},
		"closed":             {raw(""), Unreachable},
		"endless header":     {raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20)), Unreachable},
		"500":                {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }, Status},
		"gzip bomb": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(make([]byte, 4<<20))
			z.Close()
		}, TooLarge},
		"slow drip": {func(w http.ResponseWriter, r *http.Request) {
			for range 10000 {
				if _, err := w.Write([]byte{0x89}); err != nil || r.Context().Err() != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		}, Timeout},
		"silent": {func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := serve(t, c.h)
			timeout := time.Minute
			if c.want == Timeout {
				timeout = 200 * time.Millisecond
			}
			before := runtime.NumGoroutine()
			f := open(t, Config{Allow: loopback, MaxBytes: 100_000, Timeout: timeout})
			wantKind(t, f, base, c.want)
			if n := f.inFlight.Taken(); n != 0 {
				t.Errorf("%d bytes stay counted, want 0", n)
			}
			f.Close()
			until(t, "goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
		})
	}
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		z.Write(red)
		z.Close()
	})
	want(t, open(t, Config{Allow: loopback}), base, red)

	// An image of a format that is not read is identified by its bytes; what is no image has an identity too, also when cached.
	sound := []byte("RIFF\x24\x00\x00\x00WAVEfmt ")
	base, n := serve(t, image(sound))
	f := open(t, Config{Allow: loopback})
	for range 2 {
		facts, err := f.Get(t.Context(), 0, base)
		if k, _ := kindOf(err); k != NotAnImage || facts.ID != blake3.Sum256(sound) {
			t.Errorf("got %+v %v, want the id of the bytes, which are no image", facts, err)
		}
	}
	icon := []byte("icns\x00\x00\x00\x20 and so on")
	other, _ := serve(t, image(icon))
	if facts, err := f.Get(t.Context(), 0, other); err != nil || facts.ID != blake3.Sum256(icon) || facts.Width != 0 {
		t.Errorf("got %+v %v, want the id of the bytes, and no size", facts, err)
	}
	if n.Load() != 1 {
		t.Errorf("%d requests, want 1", n.Load())
	}
}

func TestRedirects(t *testing.T) {
	var referer atomic.Bool
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Referer") != "" {
			referer.Store(true)
		}
		switch r.URL.Path {
		case "/loop":
			http.Redirect(w, r, "/loop", 302)
		case "/once":
			http.Redirect(w, r, "/a.png", 307)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", 302)
		case "/away":
			http.Redirect(w, r, "http://other.example/a.png", 302)
		default:
			image(red)(w, r)
		}
	})
	before := runtime.NumGoroutine()
	f := open(t, Config{Allow: loopback, AllowedDomains: []string{"127.0.0.1"}})
	want(t, f, base+"/once?secret=1", red)
	n.Store(0)
	wantKind(t, f, base+"/loop", Refused)
	if n.Load() != 6 {
		t.Errorf("%d requests in a loop, want 6", n.Load())
	}
	wantKind(t, f, base+"/file", Refused)
	wantKind(t, f, base+"/away", Refused)
	wantKind(t, f, "http://other.example/a.png", Refused)
	f.Close()
	until(t, "goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
	wantKind(t, open(t, Config{Allow: loopback, MaxRedirects: -1}), base+"/once", Refused)
	if referer.Load() {
		t.Error("a Referer was sent")
	}
}

func TestCircuit(t *testing.T) {
	var up atomic.Bool
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			w.WriteHeader(502)
			return
		}
		image(red)(w, r)
	})
	c := &clock{t: time.Now()}
	f := open(t, Config{Allow: loopback, now: c.now})
	for i := range openAfter {
		wantKind(t, f, fmt.Sprintf("%s/%d", base, i), Status)
	}
	wantKind(t, f, base+"/x", Open)
	if n.Load() != openAfter {
		t.Errorf("%d requests, want %d", n.Load(), openAfter)
	}
	if h := f.Hosts(); len(h) != 1 || !h[0].Open || h[0].Failures != openAfter || h[0].Host != "127.0.0.1" ||
		h[0].Last != "status 502" || !h[0].At.Equal(c.t) {
		t.Errorf("%+v", h)
	}
	c.add(openFirst + time.Second)
	wantKind(t, f, base+"/y", Status) // one trial, and it is open for longer
	wantKind(t, f, base+"/z", Open)
	up.Store(true)
	c.add(2*openFirst + time.Second)
	want(t, f, base+"/1", red)
	want(t, f, base+"/2", red)
	if h := f.Hosts(); h[0].Open || h[0].InARow != 0 {
		t.Errorf("got %+v, want [0].Open false, [0].InARow 0", h)
	}
}

// gated serves an image once the gate is closed, and counts the waiting requests: current and maximum.
func gated(t *testing.T) (base string, gate chan struct{}, now, most *atomic.Int32) {
	gate, now, most = make(chan struct{}), new(atomic.Int32), new(atomic.Int32)
	base, _ = serve(t, func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		<-gate
		image(red)(w, r)
	})
	return base, gate, now, most
}

func TestLimits(t *testing.T) {
	base, gate, _, most := gated(t)
	f := open(t, Config{Allow: loopback, PerHost: 2, Total: 3})
	var wg sync.WaitGroup
	var busy atomic.Int32
	for i := range 60 { // the queue of all hosts holds 17×3, that of one host 8×2
		wg.Go(func() {
			if _, err := f.Get(t.Context(), 0, fmt.Sprintf("%s/%d", base, i)); err != nil {
				busy.Add(1)
			}
		})
	}
	until(t, "2 downloads and 16 that wait", func() bool { return len(f.flights()) == 18 && busy.Load() == 42 })
	close(gate)
	wg.Wait()
	if most.Load() > 2 || f.Stats().Failed[Busy] != 42 {
		t.Errorf("got %d at once, counts %v, want at most 2, and 42 refused as busy", most.Load(), f.Stats())
	}
	small := open(t, Config{Allow: loopback, InFlightBytes: 10})
	wantKind(t, small, base+"/x", Busy)

	// The total limit, over all hosts.
	base, gate, now, most := gated(t)
	f = open(t, Config{Allow: loopback, PerHost: 3, Total: 4})
	for i := range 8 {
		wg.Go(func() {
			_, _ = f.Get(t.Context(), 0, fmt.Sprintf("%s/%d", []string{base, strings.Replace(base, "127.0.0.1", "localhost", 1)}[i%2], i))
		})
	}
	until(t, "4 downloads", func() bool { return now.Load() == 4 && len(f.flights()) == 8 })
	close(gate)
	wg.Wait()
	if most.Load() > 4 {
		t.Errorf("%d at once, want at most 4", most.Load())
	}
}

// TestCaches: images' bytes are evicted long before the facts.
func TestCaches(t *testing.T) {
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		image(append(slices.Clone(red), r.URL.Path...), "Cache-Control", "max-age=600")(w, r)
	})
	var urls, bytes, other atomic.Int64
	full := func(what string) {
		map[string]*atomic.Int64{"image URLs": &urls, "image bytes": &bytes, "image hosts": &other}[what].Add(1)
	}
	f := open(t, Config{Allow: loopback, ByteCache: 10 * weight(red), NoRoom: full})
	const all = 200
	kept := func() (kept int) {
		for i := range all {
			if facts, err := f.Get(t.Context(), 0, fmt.Sprintf("%s/%d", base, i)); err != nil || facts.Width != 2 {
				t.Fatalf("%d: got %+v %v, want no error, Width 2", i, facts, err)
			} else if _, ok := f.Bytes(facts.ID); ok {
				kept++
			}
		}
		return kept
	}
	kept()
	until(t, "a few images' bytes", func() bool { k := kept(); return k > 0 && k <= 10 })
	if n.Load() != all || bytes.Load() < all-10 || urls.Load() > 0 {
		t.Errorf("%d downloads, of %d images the bytes went: got %d, want %d, at least %d, 0", n.Load(), bytes.Load(), urls.Load(), all, all-10)
	}
	f = open(t, Config{Allow: loopback, URLs: 20, NoRoom: full})
	kept()
	if n := len(f.urls.entries); n > 20 || urls.Load() != int64(all-n) {
		t.Errorf("%d URLs kept, %d went, want at most 20, %d", n, urls.Load(), int64(all-n))
	}
	for i := range maxHosts + all {
		h, err := f.hosts.acquire(t.Context(), 0, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		h.release(0, time.Now(), time.Now(), nil)
	}
	if n := f.hosts.all.Len(); n > maxHosts || other.Load() < all {
		t.Errorf("%d hosts kept, %d went, want at most %d, at least %d", n, other.Load(), maxHosts, all)
	}
}

// TestErrorsKeepSecrets: no error contains more of a URL than its host.
func TestErrorsKeepSecrets(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://secret:hunter2@"+dead+"/secret?secret=1", 302)
	})
	live := strings.TrimPrefix(base, "http://")
	f := open(t, Config{Allow: loopback, resolver: deadResolver(t)})
	for _, u := range []string{
		"http://secret:hunter2@" + dead + "/secret?secret=1", "http://secret:hunter2@" + live + "/secret?secret",
		"https://secret:hunter2@" + live + "/secret",
		"http://secret:hunter2@nowhere.example/secret", "http://secret:hunter2@10.0.0.1/secret", "gopher://secret:hunter2@x/",
		"http://secret:hunter2@h:99999/secret", "http://secret%zz:hunter2@h/secret",
	} {
		_, err := f.Get(t.Context(), 0, u)
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("untyped %v", err)
		}
		if s := fmt.Sprintf("%v %+v %#v", err, e.Err, errors.Unwrap(err)); strings.Contains(s, "secret") || strings.Contains(s, "hunter2") {
			t.Errorf("got %s, want no %q in it, no %q in it", s, "secret", "hunter2")
		}
	}
}

// TestClose: no goroutine outlives Close, whatever was running.
func TestClose(t *testing.T) {
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ok" {
			image(red)(w, r)
			return
		}
		w.Write(red[:10])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	before := runtime.NumGoroutine()
	f, err := New(Config{Allow: loopback, Budget: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f.Get(t.Context(), 0, base+"/ok")
	for i := range 20 {
		f.Get(t.Context(), 0, fmt.Sprintf("%s/%d", base, i))
	}
	until(t, "requests", func() bool { return n.Load() > 5 })
	f.Close()
	if _, err := f.Get(t.Context(), 0, base+"/new"); func() Kind { k, _ := kindOf(err); return k }() != Closed {
		t.Error(err)
	}
	until(t, "goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{Budget: -1}, {MaxBytes: -5}, {AllowedDomains: []string{"http://x"}},
		{AllowedDomains: []string{"*.x"}}, {Total: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v: no error; got %v, want an error", c, err)
		}
	}
}

// kindOf returns the kind of a fetch error; ok is false for any other error.
func kindOf(err error) (k Kind, ok bool) {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind, true
	}
	return 0, false
}

// TestURLIsNotKept: no part of a URL's memory is kept, because it belongs to a request's body, which is reused during downloads.
func TestURLIsNotKept(t *testing.T) {
	gate := make(chan struct{})
	asked := make(chan string, 8)
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-gate
		http.Error(w, "broken", http.StatusServiceUnavailable)
	})
	f := open(t, Config{Budget: time.Millisecond, PerHost: 1, Allow: loopback})
	for _, path := range []string{"/first", "/second"} { // the second waits for the first one's slot
		body := []byte(base + path)
		wantKind(t, f, unsafe.String(&body[0], len(body)), Budget)
		copy(body, bytes.Repeat([]byte{0xDB}, len(body)))
		until(t, "the first download", func() bool { return len(asked) == 1 })
	}
	close(gate)
	for _, want := range []string{"/first", "/second"} {
		if got := <-asked; got != want {
			t.Errorf("the host was asked for %q, want %q", got, want)
		}
	}
	until(t, "both failures", func() bool { h := f.Hosts(); return len(h) == 1 && h[0].Failures == 2 })
	if got, want := f.Hosts()[0].Host, hostOf(t, base); got != want {
		t.Errorf("the host is remembered as %q, want %q", got, want)
	}
}

func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname()
}

// TestPanicCostsOneURL: a panic over a downloaded body fails only the requests waiting for that URL, for some time; its host, its
// slot and everything else continue.
func TestPanicCostsOneURL(t *testing.T) {
	base, _ := serve(t, image(red))
	var told atomic.Int32
	var bad []byte
	seen := 0
	f := open(t, Config{PerHost: 1, Total: 1, Allow: loopback, Panicked: func(error) {
		told.Add(1)
	}, Seen: func(fair.Client, media.Facts, []byte) {
		seen++
		if seen == 1 {
			bad[7]++
		}
	}})
	for range 2 {
		if err := wantKind(t, f, base+"/bad.png", Panicked); strings.Contains(err.Error(), "bad.png") {
			t.Errorf("the error tells the URL: got %v, want no %q in it", err, "bad.png")
		}
	}
	want(t, f, base+"/good.png", red)
	if s := f.Stats(); told.Load() != 1 || f.inFlight.Taken() != 0 || s.Failed[Panicked] != 2 {
		t.Errorf("got it told %d times, %+v, want once, two panics counted, and nothing in flight", told.Load(), s)
	}
}

// TestClientsShareDownloads: a client that names many images that never arrive, or images of which a few fill the
// limit of bytes, keeps no other client's images from being here.
func TestClientsShareDownloads(t *testing.T) {
	const hostile, victim = fair.Client(1), fair.Client(2)
	wide := make([]byte, 1<<20)
	base, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/drip"):
			w.Write(red[:10])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case strings.HasPrefix(r.URL.Path, "/wide"):
			w.Write(wide)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			image(red)(w, r)
		}
	})
	for _, path := range []string{"drip", "wide"} {
		t.Run(path, func(t *testing.T) {
			n.Store(0)
			f := open(t, Config{Allow: loopback, Total: 16, PerHost: 16, InFlightBytes: 16 << 20, Budget: time.Millisecond, Timeout: time.Hour})
			for i := range 17 * 16 * 2 {
				_, _ = f.Get(t.Context(), hostile, fmt.Sprintf("%s/%s/%d", base, path, i))
			}
			until(t, "as many downloads as one client gets", func() bool { return f.total.Taken() >= 10 || f.inFlight.Taken() >= 10<<20 })
			for i := range 20 {
				u := fmt.Sprintf("%s/%d", base, i)
				until(t, "the other client's image", func() bool {
					facts, err := f.Get(t.Context(), victim, u)
					return err == nil && facts.Width == 2
				})
			}
		})
	}
}

// TestSlowHostWhileItIsSlow: a host is told of while a download from it lasts, not only once it has ended.
func TestSlowHostWhileItIsSlow(t *testing.T) {
	now := time.Now()
	h := newHosts(1, func() time.Time { return now }, func(string) {})
	s, err := h.acquire(t.Context(), 0, "img.example")
	if err != nil {
		t.Fatal(err)
	}
	began := now
	s.begins(began)
	if list := h.list(); len(list) != 0 {
		t.Errorf("at once: got %+v, want nothing", list)
	}
	now = now.Add(4 * time.Second)
	if list := h.list(); len(list) != 1 || list[0].Took != 4*time.Second || !list[0].TookAt.Equal(now) {
		t.Errorf("while it lasts: got %+v, want 4 s", list)
	}
	s.release(0, began, now, nil)
	now = now.Add(time.Hour)
	ended := began.Add(4 * time.Second)
	if list := h.list(); len(list) != 1 || list[0].Took != 4*time.Second || !list[0].TookAt.Equal(ended) || len(s.under) != 0 {
		t.Errorf("afterwards: got %+v, want 4 s at its end, and none under way", list)
	}
}
