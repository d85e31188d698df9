package relay

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/mmhash"
)

var png = []byte("\x89PNG\r\n\x1a\n and more")

func newRelay(t testing.TB, max int64) (*Relay, *time.Time) {
	t.Helper()
	now := time.Unix(1_700_000_000, 0)
	r, err := New(Config{URL: "http://10.0.0.2:9904/pictures/", TTL: time.Minute, MaxBytes: max, now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return r, &now
}

func id(b byte) mmhash.ContentID { return mmhash.ContentID{b, 1, 2} }

func give(b []byte) func() ([]byte, bool) { return func() ([]byte, bool) { return b, true } }

func get(r *Relay, method, link string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(method, link, nil))
	return w
}

func TestServes(t *testing.T) {
	r, now := newRelay(t, 1<<20)
	link, ok := r.Offer(id(1), give(png))
	if !ok || !strings.HasPrefix(link, "http://10.0.0.2:9904/pictures/"+id(1).String()+"?e=1700000060&s=") {
		t.Fatalf(`got %v %s, want ok, strings.HasPrefix(link, "http://10.0.0.2:9904/pictures/"+id(1).String()+"?e=1700000060&s=")`, ok, link)
	}
	w := get(r, "GET", link)
	for key, want := range map[string]string{"Content-Type": "image/png", "Content-Length": "17", "Etag": `"` +
		id(1).String() + `"`, "X-Content-Type-Options": "nosniff"} {
		if got := w.Header().Get(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if w.Code != 200 || !bytes.Equal(w.Body.Bytes(), png) {
		t.Errorf("got status %d, %q, want 200 and the image", w.Code, w.Body)
	}
	if w := get(r, "HEAD", link); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("HEAD: got %d with %d bytes, want 200, 0", w.Code, w.Body.Len())
	}
	if w := get(r, "POST", link); w.Code != 405 {
		t.Errorf("POST: got %d, want 405", w.Code)
	}
	other, _ := newRelay(t, 1<<20)
	link2, _ := r.Offer(id(2), give(png))
	for name, c := range map[string]struct {
		r    *Relay
		link string
	}{
		"another image's signature": {r, strings.Replace(link2, id(2).String(), id(1).String(), 1)},
		"later expiry":              {r, strings.Replace(link, "e=1700000060", "e=1900000000", 1)},
		"no signature":              {r, link[:strings.Index(link, "&s=")]},
		"half a signature":          {r, link[:len(link)-20]},
		"no query":                  {r, link[:strings.Index(link, "?")]},
		"longer id":                 {r, strings.Replace(link, "?", "00?", 1)},
		"another process's key":     {other, link},
	} {
		if w := get(c.r, "GET", c.link); w.Code != 403 || bytes.Contains(w.Body.Bytes(), png) {
			t.Errorf("%s: got status %d, want 403 without the image", name, w.Code)
		}
	}
	*now = now.Add(60 * time.Second)
	if w := get(r, "GET", link); w.Code != 200 {
		t.Errorf("in the last second: got %d, want 200", w.Code)
	}
	*now = now.Add(time.Second)
	if w := get(r, "GET", link); w.Code != 410 {
		t.Errorf("after its time: got %d, want 410", w.Code)
	}
	if s := r.Stats(); s.Offered != 2 || s.Served != 2 || s.Expired != 1 || s.Forbidden != 6 {
		t.Errorf("got %+v, want Offered 2, Served 2, Expired 1, Forbidden 6", s)
	}
}

// TestRoom: an image that a worker has yet to fetch is kept; fetched ones are evicted; memory is bounded.
func TestRoom(t *testing.T) {
	file := make([]byte, 1000)
	r, now := newRelay(t, 3*(1000+overhead))
	var links []string
	for i := range byte(3) {
		link, ok := r.Offer(id(i), give(file))
		if !ok {
			t.Fatal("no room for three")
		}
		links = append(links, link)
	}
	if _, ok := r.Offer(id(3), give(file)); ok {
		t.Fatal("room for a fourth while three are awaited")
	}
	if _, ok := r.Offer(id(9), func() ([]byte, bool) { return nil, false }); ok {
		t.Error("offered without bytes")
	}
	again, ok := r.Offer(id(1), func() ([]byte, bool) { t.Error("asked for bytes that are here"); return nil, false })
	if !ok {
		t.Error("one that is held is not offered again")
	}
	get(r, "GET", links[1])
	if _, ok := r.Offer(id(3), give(file)); ok {
		t.Error("the one offered twice has gone after one fetch")
	}
	get(r, "GET", again)
	if _, ok := r.Offer(id(3), give(file)); !ok {
		t.Error("no room though one was fetched")
	}
	if w := get(r, "GET", links[1]); w.Code != 404 {
		t.Errorf("the one that went: got %d, want 404", w.Code)
	}
	if w := get(r, "GET", links[0]); w.Code != 200 {
		t.Errorf("one that is awaited: got %d, want 200", w.Code)
	}
	*now = now.Add(2 * time.Minute) // no worker will come any more
	for i := range byte(3) {
		if _, ok := r.Offer(id(10+i), give(file)); !ok {
			t.Error("no room though all have expired")
		}
	}
	if s := r.Stats(); s.Bytes > 3*(1000+overhead) || s.Images != 3 || len(r.held) != 3 || r.order.Len() != 3 || s.Full != 2 {
		t.Errorf("got %+v, want three images within their limit, and two for which there was no room", s)
	}
}

func TestBadURL(t *testing.T) {
	for _, u := range []string{"", "10.0.0.2:9904", "ftp://h/", "http://", "http://h/?x=1", "http://h/\"", "http://h/#a"} {
		if _, err := New(Config{URL: u}); err == nil {
			t.Errorf("%q is taken: got %v, want an error", u, err)
		}
	}
}

func TestContentType(t *testing.T) {
	for file, want := range map[string]string{"\xff\xd8\xff\xe0": "image/jpeg", "GIF89a": "image/gif", "BM12": "image/bmp",
		"RIFF0000WEBPVP8 ": "image/webp",
		"II*\x00":          "image/tiff", "MM\x00*": "image/tiff", "\x00\x00\x00\x1cftypavif\x00\x00\x00\x00": "image/avif",
		"<html><script>": "application/octet-stream", "": "application/octet-stream"} {
		if got := contentType([]byte(file)); got != want {
			t.Errorf("%q: %s, want %s", file, got, want)
		}
	}
}

func FuzzServe(f *testing.F) {
	r, _ := newRelay(f, 1<<20)
	link, _ := r.Offer(id(1), give(png))
	f.Add(link[len("http://10.0.0.2:9904"):])
	f.Add("/pictures/" + hex.EncodeToString(make([]byte, 32)) + "?e=1&s=AAAA")
	good := link[strings.Index(link, "&s="):]
	f.Fuzz(func(t *testing.T, target string) {
		q, err := http.NewRequest("GET", "http://x/", nil)
		if err != nil {
			t.Skip()
		}
		q.URL, err = q.URL.Parse(target)
		if err != nil {
			t.Skip()
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		if w.Code == 200 && !strings.Contains(target, good[3:40]) {
			t.Fatalf("%q opens an image", target)
		}
	})
}

// BenchmarkOffer measures the cost of a relayed image for a decision.
func BenchmarkOffer(b *testing.B) {
	r, _ := newRelay(b, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := r.Offer(id(1), give(png)); !ok {
			b.Fatal("no room")
		}
	}
}

// TestReplicas: a URL of one replica works at each of them, and at none with another key.
func TestReplicas(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	start := func(key []byte) (*Relay, string) {
		t.Helper()
		web := httptest.NewUnstartedServer(nil)
		r, err := New(Config{URL: "http://all-replicas:9904", Key: key, Self: Address(web.Listener.Addr())})
		if err != nil {
			t.Fatal(err)
		}
		web.Config.Handler = r
		web.Start()
		t.Cleanup(web.Close)
		return r, web.URL
	}
	a, atA := start(key)
	b, atB := start(key)
	_, atC := start(bytes.Repeat([]byte{8}, 32))
	link, ok := a.Offer(id(1), give(png))
	if !ok || !strings.HasPrefix(link, "http://all-replicas:9904/"+id(1).String()) {
		t.Fatalf(`got %q, want ok, strings.HasPrefix(link, "http://all-replicas:9904/"+id(1).String())`, link)
	}
	link = link[strings.Index(link, "9904")+4:]
	for at, want := range map[string]int{atA + link: 200, atB + link: 200, atC + link: 403,
		atB + strings.Replace(link, "&h=", "&h=127.0.0.1:1#", 1):       403,
		atB + strings.Replace(link, id(1).String(), id(2).String(), 1): 403} {
		resp, err := http.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || (want == 200) != bytes.Equal(body, png) {
			t.Errorf("%s: status %d with %d bytes, want %d", at, resp.StatusCode, len(body), want)
		}
		if want == 200 && (resp.Header.Get("Content-Type") != "image/png" || resp.ContentLength != int64(len(png))) {
			t.Errorf("%s: %v", at, resp.Header)
		}
	}
	if a.Stats().Served != 2 || b.Stats().Passed != 1 || b.Stats().Served != 0 {
		t.Errorf("got %+v and %+v, want both served by the first, one of them passed on by the second", a.Stats(), b.Stats())
	}
	// The images of a replica that is gone are gone too.
	dead, _ := New(Config{URL: "http://all-replicas:9904", Key: key, Self: "127.0.0.1:1"})
	link, _ = dead.Offer(id(3), give(png))
	if w := get(b, "GET", link); w.Code != 502 {
		t.Errorf("a replica that is gone: got %d, want 502", w.Code)
	}
	for _, c := range []Config{{Key: key[:31], Self: "10.0.0.1:1"}, {Key: key}, {Self: "10.0.0.1:1"}, {Key: key, Self: "host:1"}} {
		c.URL = "http://h:1"
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken: got %v, want an error", c, err)
		}
	}
}
