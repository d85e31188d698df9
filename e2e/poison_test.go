package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// Nothing of one client's request is seen by another, or by an operator, once the request is over: hosts of images that
// fail, names of files, sessions and answers are kept in memory of their own. The product that is tested overwrites each
// body's memory as soon as it gives it back.
func TestBodiesLeaveNothingBehind(t *testing.T) {
	asked := sync.Map{} // path → true, as the images' host sees it
	release := make(chan struct{})
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Path, true)
		<-release // longer than any request waits
		http.Error(w, "broken", http.StatusServiceUnavailable)
	}))
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	l := startLab(t, func(o *lab.Options) {
		o.Prompts = func(context.Context, string, []byte) ([]sim.Prompt, error) { // workers do not look at their media
			return []sim.Prompt{{Tokens: []uint32{1, 2, 3}}}, nil
		}
		o.Config = func(keys map[string]any) {
			keys["media"] = map[string]any{"allow": []string{"127.0.0.1/32"}, "budget": "10ms"}
			keys["fixed"] = unprobed()
		}
	})
	const clients, each = 6, 12
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := range each {
				name := []string{"127.0.0.1", "localhost"}[i%2]
				secret := strings.Repeat(fmt.Sprintf("tenant-%d-secret-%d ", c, i), 40)
				r := ask(t, l, secret, fmt.Sprintf("http://%s:%s/%d/%d.jpg", name, port, c, i))
				if r.status != http.StatusOK {
					t.Errorf("status %d: %s, want %d", r.status, r.body, http.StatusOK)
				}
			}
		})
	}
	all.Wait()
	close(release)
	eventually(t, "all downloads to have failed", func() bool {
		raw, err := lab.Get("http://" + l.Admin + "/hosts")
		n := 0
		gjson.ParseBytes(raw).ForEach(func(_, h gjson.Result) bool { n += int(h.Get("failures").Int()); return true })
		return err == nil && n >= 10
	})
	raw, err := lab.Get("http://" + l.Admin + "/hosts")
	if err != nil {
		t.Fatal(err)
	}
	gjson.ParseBytes(raw).ForEach(func(_, h gjson.Result) bool {
		if name := h.Get("host").Str; name != "127.0.0.1" && name != "localhost" {
			t.Errorf("a host of the name %q", name)
		}
		return true
	})
	asked.Range(func(path, _ any) bool {
		if dir, file := filepath.Split(path.(string)); len(strings.Trim(dir, "/0123456789")) > 0 || !strings.HasSuffix(file, ".jpg") {
			t.Errorf("the host was asked for %q, want a number and a name that ends with .jpg", path)
		}
		return true
	})
	for _, page := range []string{"/", "/metrics", "/decisions?n=1000", "/audit", "/hosts", "/workers"} {
		text, err := lab.Get("http://" + l.Admin + page)
		if err != nil || strings.Contains(string(text), "secret") || strings.Contains(string(text), "\xDB\xDB") ||
			strings.Contains(string(text), `\ufffd`) || strings.Contains(string(text), "\uFFFD") {
			t.Errorf("%s shows what a client sent, or memory that was given back (%v)", page, err)
		}
	}
}
