package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/lab"
)

// A prompt that is known only up to an image goes on in its worker's events, far behind what is known of it: the image's
// blocks, then each block that the answer fills. The audit compares what it can and says nothing of the rest.
func TestAuditOfPromptsKnownInPart(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) {
			keys["media"] = map[string]any{"allow": []string{"127.0.0.1/32"}, "budget": "20ms"}
			keys["fixed"] = unprobed()
		}
	})
	late, asked := make(chan struct{}), make(map[string]*atomic.Int64)
	for i := range 3 {
		asked[fmt.Sprintf("/%d.jpg", i)] = new(atomic.Int64)
	}
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked[r.URL.Path].Add(1) == 1 { // Sightline, ahead of the worker
			<-late
		}
		_, _ = w.Write(photo(900 + uint64(r.URL.Path[1])))
	}))
	t.Cleanup(host.Close)
	t.Cleanup(func() { close(late) })
	forbidden := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(photo(910)) }))
	forbidden.Listener.Close()
	forbidden.Listener = listenAt(t, "127.0.0.2:0")
	forbidden.Start()
	t.Cleanup(forbidden.Close)

	const requests = 4
	for i, url := range []string{host.URL + "/0.jpg", host.URL + "/1.jpg", host.URL + "/2.jpg", forbidden.URL + "/x.jpg"} {
		before := map[string]any{"type": "text",
			"text": fmt.Sprintf("Question %d: what is to be seen in the picture that follows, what stands behind it, and who is "+
				"it that has taken it?", i)}
		body := request(fmt.Sprint("part-", i), "Say it.", before, imagePart(url, nil))
		body["max_tokens"] = 40 // its answer fills blocks
		if r := post(t, l, body, nil); r.status != 200 || r.prompt < 100 {
			t.Fatalf("%s: got %+v, want status 200, prompt at least 100", url, r)
		}
		if d := lastDecision(t, l); d.Get("prompt_tokens").Int() > 80 {
			t.Fatalf("%s: the prompt was known: %s", url, d.Raw)
		}
	}
	eventually(t, "a verdict on each", func() bool { return metric(t, l, "sightline_audit_total", "") == requests })
	if n := metric(t, l, "sightline_audit_total", `"equal"`); n != requests {
		t.Errorf("%v of %d are equal as far as they were known, want %v", n, requests, requests)
	}
}
