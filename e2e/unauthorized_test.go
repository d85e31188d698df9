package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestOneWorkerUnauthorized: a worker behind another API key, which answers 401 at once, does not keep the requests with an image. Log,
// page and doctor name it, and the status.
func TestOneWorkerUnauthorized(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	l := startLab(t, func(o *lab.Options) {
		o.Workers, o.Log, o.Config = 2, &log, func(keys map[string]any) { keys["log_level"] = "warn" }
	})
	l.Sims[0].SetFault(sim.Unauthorized)
	refused := 0
	for range 40 {
		switch r := ask(t, l, "What is this?", dataURL(photo(77))); r.status {
		case http.StatusOK:
		case http.StatusUnauthorized:
			refused++
		default:
			t.Fatalf("status %d: %s", r.status, r.body)
		}
		quiet(t, l)
	}
	t.Logf("%d of 40 requests with one image got 401", refused)
	if refused > 8 {
		t.Error("want 8 at most")
	}
	const why = "status 401 to clients whom another worker answers"
	isOut := func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && strings.Contains(gjson.GetBytes(rows, `#(name=="worker-1").health`).Str, why)
	}
	for i := uint64(0); !isOut(); i++ { // other images draw requests to the idle worker, as in a fleet
		if i == 60 {
			rows, _ := lab.Get("http://" + l.Admin + "/workers")
			t.Fatalf("/workers does not say %q: %s; got %d, want other than 60", why, rows, i)
		}
		ask(t, l, "And this?", dataURL(photo(1000+i)))
		quiet(t, l)
		time.Sleep(5 * time.Millisecond)
	}
	if page, err := lab.Get("http://" + l.Admin + "/"); err != nil || !strings.Contains(string(page), why) {
		t.Errorf("the page does not say %q: %v, want no error, strings.Contains(string(page), why)", why, err)
	}
	if !strings.Contains(log.String(), "worker worker-1 is failing") || !strings.Contains(log.String(), why) {
		t.Errorf("the log does not say %q", why)
	}
	said := false
	checks, status := doctored(t, l.Self(), l.Config())
	for _, c := range checks {
		evidence := strings.Join(c.Evidence, "\n")
		said = said || strings.Contains(evidence, "worker-1") && strings.Contains(evidence, why)
	}
	if !said || status == 0 {
		t.Errorf("doctor exits with %d and does not say %q: %+v; got %v, want true, some", status, why, checks, said)
	}
}
