package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestMediaLadder: what media come to that are not simply there, behind one Envoy: each is decided on the rung that it
// can be, and the decision and a counter say why.
func TestMediaLadder(t *testing.T) {
	dir := t.TempDir()
	l := startLab(t, func(o *lab.Options) {
		inner := o.Prompts
		o.Prompts = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
			if strings.HasPrefix(gjson.GetBytes(body, "user").Str, "blind") { // the worker does not look at its media
				tokens := []uint32{1, 2, 3}
				if bytes.Contains(body, []byte(`"image_embeds"`)) { // but counts their tokens
					tokens = slices.Repeat(tokens, 400)
				}
				return []sim.Prompt{{Tokens: tokens}}, nil
			}
			if unread := []byte("data:unread/"); bytes.Contains(body, unread) { // by Sightline: it becomes as much as a photo does
				video := bytes.Contains(body, []byte(`"video_url"`))
				from := bytes.Index(body, unread)
				to := from + bytes.IndexByte(body[from:], '"')
				body = slices.Concat(body[:from], []byte(dataURL(photo(90))), body[to:])
				ps, err := inner(ctx, path, bytes.ReplaceAll(body, []byte("video_url"), []byte("image_url")))
				if err == nil && video {
					ps[0].Media[0].Modality = "video"
				}
				return ps, err
			}
			return inner(ctx, path, body)
		}
		o.Config = func(keys map[string]any) {
			m := keys["models"].([]any)[0].(map[string]any)
			m["allowed_local_media_path"] = dir
			keys["media"] = map[string]any{"allow": []string{"127.0.0.1/32"}, "budget": "20s",
				"signing": map[string]any{"127.0.0.1": []string{"sig"}}}
			keys["fixed"] = unprobed()
		}
	})
	file := photo(40)
	if err := os.WriteFile(filepath.Join(dir, "a.jpg"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	forbidden, knocks := secret(t)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch name := filepath.Base(r.URL.Path); name {
		case "away":
			http.Redirect(w, r, "http://"+forbidden+"/x.jpg", http.StatusFound)
		case "broken":
			http.Error(w, "broken", http.StatusServiceUnavailable)
		default:
			w.Header().Set("ETag", `"1"`)
			http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(file))
		}
	}))
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	_, secretPort, _ := net.SplitHostPort(forbidden)

	n := 0
	blind := func(parts ...any) (result, gjson.Result) {
		n++
		r := post(t, l, request(fmt.Sprint("blind-", n), fmt.Sprintf("Question %d?", n), parts...), nil)
		return r, lastDecision(t, l)
	}
	first := post(t, l, request("first", "What is this?", imagePart(host.URL+"/a.jpg?sig=1", nil)), nil)
	awaitExact(t, l, first.worker, first.prompt)
	for what, url := range map[string]string{"another signature": host.URL + "/a.jpg?sig=2", "a local file": "file://" +
		dir + "/a.jpg", "a data URL": dataURL(file)} {
		if r, d := blind(imagePart(url, nil)); r.worker != first.worker || d.Get("cached_tokens").Int() < 380 {
			t.Errorf("%s: got status %d, worker %d, decision %s; want worker %d, at least 380 tokens cached",
				what, r.status, r.worker, d.Raw, first.worker)
		}
	}
	down := func(why string) float64 { return metric(t, l, "sightline_steps_down_total", why) }
	for _, url := range []string{"http://" + forbidden + "/x.jpg", "http://2130706434:" + secretPort + "/x.jpg",
		"http://0x7f.2:" + secretPort + "/x.jpg",
		"http://[::ffff:127.0.0.2]:" + secretPort + "/x.jpg", host.URL + "/away", "http://169.254.169.254/latest", "http://168.63.129.16/x"} {
		const why = "image URL points where we do not fetch"
		before := down(why)
		if _, d := blind(imagePart(url, nil)); d.Get("why").Str != why && !strings.Contains(url, "//0x") &&
			!strings.Contains(url, "//21") || d.Get("reason").Str == "exact" && d.Get("cached_tokens").Int() > 300 {
			t.Errorf("%s: %s", url, d.Raw)
		} else if d.Get("why").Str == why && down(why) != before+1 {
			t.Errorf("%s: not counted", url)
		}
	}
	if k := knocks.Load(); k != 0 {
		t.Errorf("%d connections to an address that nobody allowed, want 0", k)
	}
	for i := range 6 { // by another name, so that the host of the other cases stays in favour
		blind(imagePart(fmt.Sprintf("http://localhost:%s/%d/broken", port, i), nil))
	}
	hosts, err := lab.Get("http://" + l.Admin + "/hosts")
	if h := gjson.GetBytes(hosts, `#(host=="localhost")`); err != nil || !h.Get("open").Bool() ||
		h.Get("failures").Int() != 5 || metric(t, l, "sightline_fetch_total", "circuit open") != 1 {
		t.Errorf("a host that failed five times: %s, %v", hosts, err)
	}
	embeds := map[string]any{"type": "image_embeds", "image_embeds": "AAAA"}
	one, _ := blind(embeds)
	if two, d := blind(embeds); two.worker != one.worker || d.Get("why").Str != "media other than images" || d.Get("reason").Str == "load" {
		t.Errorf("embeddings: workers %d and %d, %s", one.worker, two.worker, d.Raw)
	}
	// Exact up to a medium that is not read, and from the second sighting on by memory behind it.
	unread := func(text string) string {
		return "data:unread/x;base64," + base64.StdEncoding.EncodeToString([]byte(text))
	}
	for what, part := range map[string]func(url string) any{
		"video": func(url string) any {
			return map[string]any{"type": "video_url", "video_url": map[string]any{"url": url}}
		},
		"AVIF image": func(url string) any { return imagePart(url, nil) },
	} {
		send := func(i int) (result, gjson.Result) {
			file := unread(fmt.Sprintf("\x00\x00\x00\x20ftypavif, %s number %d", what, i))
			r := post(t, l, request("unread", "What is it?", part(file)), nil)
			return r, lastDecision(t, l)
		}
		first, _ := send(1)
		var again result
		var d gjson.Result
		eventually(t, "it is learned", func() bool { // earlier requests of the test are learned at the same time
			again, d = send(1)
			return d.Get("reason").Str == "learned"
		})
		if again.worker != first.worker || d.Get("reason").Str != "learned" || int(d.Get("cached_tokens").Int()) != again.cached ||
			again.cached < 380 {
			t.Errorf("a %s again: status %d, worker %d (first %d), %d tokens cached: %s", what, again.status, again.worker, first.worker,
				again.cached, d.Raw)
		}
		if other, d := send(2); other.status != 200 || other.cached > 100 || d.Get("cached_tokens").Int() > int64(other.cached) {
			t.Errorf("another %s: status %d, %d tokens cached: %s", what, other.status, other.cached, d.Raw)
		}
	}
	for what, part := range map[string]any{
		"a uuid and no data": map[string]any{"type": "image_url", "image_url": nil, "uuid": "theirs"},
		"an empty one":       map[string]any{"type": "image_url", "uuid": ""},
	} {
		if r, _ := blind(part); r.status != 400 || r.worker >= 0 || !strings.Contains(r.body, "uuid and no data") {
			t.Errorf("%s: status %d, worker %d: %s, want 400, less than 0, %q in it", what, r.status, r.worker, r.body, "uuid and no data")
		}
	}
	if _, d := blind(map[string]any{"type": "file",
		"file": map[string]any{"file_data": dataURL(file)}}); d.Get("why").Str != "the engine will answer with an error" {
		t.Errorf("a file part: %s", d.Raw)
	}
}

// TestMediaBudget: an image that does not come in time costs its request a rung, and the next request finds it.
func TestMediaBudget(t *testing.T) {
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["media"] = map[string]any{"allow": []string{"127.0.0.1/32"}, "budget": "50ms"}
			keys["fixed"] = unprobed()
		}
	})
	file, late := photo(41), make(chan struct{})
	var asked atomic.Int64
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 { // Sightline, ahead of the worker
			<-late
		}
		w.Header().Set("Cache-Control", "max-age=600")
		_, _ = w.Write(file)
	}))
	t.Cleanup(host.Close)
	first := post(t, l, request("late-1", "What is it?", imagePart(host.URL+"/a.jpg", nil)), nil)
	if d := lastDecision(t, l); d.Get("why").Str != "image not here within the time budget" ||
		metric(t, l, "sightline_steps_down_total", "time budget") != 1 {
		t.Errorf("late: %s", d.Raw)
	}
	close(late)
	eventually(t, "a decision with the image", func() bool {
		post(t, l, request("late-2", "And now?", imagePart(host.URL+"/a.jpg", nil)), nil)
		return lastDecision(t, l).Get("prompt_tokens").Int() == int64(first.prompt)-1
	})
	if n := metric(t, l, "sightline_fetch_total", `"downloads"`); n != 1 {
		t.Errorf("%v downloads, want 1", n)
	}
}

// secret listens where nobody may be sent, and counts who comes.
func secret(t *testing.T) (addr string, knocks *atomic.Int64) {
	t.Helper()
	lis := listenAt(t, "127.0.0.2:0")
	knocks = new(atomic.Int64)
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			knocks.Add(1)
			c.Close()
		}
	}()
	return lis.Addr().String(), knocks
}

// listenAt listens on an address that not every machine has.
func listenAt(t *testing.T, addr string) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skip(addr + " cannot be listened on here")
	}
	t.Cleanup(func() { lis.Close() })
	return lis
}
