package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/internal/fair"
)

// answered decides a request of a client and has the chosen worker answer with a status.
func (w *world) answered(client fair.Client, body string, status func(worker string) int) Decision {
	w.ids++
	d := w.Decide(w.t.Context(), &Request{ID: fmt.Sprint("a", w.ids), Path: "/v1/chat/completions", Client: client,
		Body: [][]byte{[]byte(body)}})
	if len(d.Targets) > 0 {
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: status(d.Targets[0].Worker), Answered: true, CachedTokens: -1})
	}
	return d
}

// TestOneWorkerRefuses: a worker that alone answers 401, 403 or 404 does not keep the requests with an image, or an adapter, and is
// put out, which its reason names. A client to whom all workers answer so changes nothing.
func TestOneWorkerRefuses(t *testing.T) {
	const good, bad = fair.Client(1), fair.Client(2)
	img := chatBody("m", testImage(1, 640, 480))
	for _, code := range []int{401, 403, 404} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			w := newWorld(t, 2)
			first := ""
			refusing := func(worker string) int {
				if first == "" {
					first = worker
				}
				if worker == first {
					return code
				}
				return 200
			}
			refused := 0
			for range 40 {
				if d := w.answered(good, img, refusing); d.Targets[0].Worker == first {
					refused++
				}
			}
			if refused > 5 {
				t.Errorf("%d of 40 requests went to the worker that refuses them, want at most 5", refused)
			}
			for i := range 40 { // other prompts, of the same client
				w.answered(good, chatBody("m", fmt.Sprintf("%q", text(300, uint64(i)))), refusing)
			}
			for _, slot := range w.slots {
				why := slot.Worker.OutReason(w.opt.Now()).String()
				if out := slot.Worker.Name == first; out != strings.Contains(why,
					fmt.Sprintf("status %d to clients whom another worker answers", code)) {
					t.Errorf("%s: %q; got %v, want %v",
						slot.Worker.Name, why, out, strings.Contains(why, fmt.Sprintf("status %d to clients whom another worker answers", code)))
				}
			}
		})
	}
	w := newWorld(t, 2)
	for i := range 40 {
		w.answered(good, chatBody("m", fmt.Sprintf("%q", text(300, uint64(i)))), func(string) int { return 200 })
		w.answered(bad, chatBody("m", fmt.Sprintf("%q", text(300, uint64(100+i)))), func(string) int { return 401 })
	}
	for _, slot := range w.slots {
		if why := slot.Worker.OutReason(w.opt.Now()).String(); why != "" {
			t.Errorf("%s: got %q, though only one client is refused, by all workers, want %q", slot.Worker.Name, why, "")
		}
	}
	for c := range fair.Client(2 * maxServedClients) {
		w.follower.lastServed.Add(clientOf{c, "m"}, w.slots[0].Worker)
	}
	if n := w.follower.lastServed.Len(); n > maxServedClients {
		t.Errorf("%d clients remembered, want at most %d", n, maxServedClients)
	}
}
