package e2e

import (
	"net/http"
	"testing"

	"github.com/sightline-router/sightline/extproc"
)

func TestPickIsObeyed(t *testing.T) {
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	for _, c := range []*http.Client{w.client, w.h2} {
		for range 3 {
			for i, addr := range w.addrs() {
				r := w.send(c, "POST", "/v1/chat/completions?x=1", chat(script{Targets: []string{addr}}), nil)
				if r.err != nil || r.status != 200 || r.Worker != addr {
					t.Fatalf("worker %d: %v, status %d from %q, want %q", i, r.err, r.status, r.Worker, addr)
				}
			}
		}
	}
}
