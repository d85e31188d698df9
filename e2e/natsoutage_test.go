package e2e

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab"
)

// TestNATSOutage: while the agents' NATS server is down, and while it hangs, requests go on, and all that is said blames NATS: no audit
// finds fault with workers whose events cannot come. Once it is back nothing is said any more.
func TestNATSOutage(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		begin, end func(t *testing.T, nats *process)
	}{
		"killed": {func(_ *testing.T, nats *process) { nats.stop() }, func(t *testing.T, nats *process) { nats.start(t) }},
		"hangs": {func(_ *testing.T, nats *process) { nats.signal(syscall.SIGSTOP) },
			func(_ *testing.T, nats *process) { nats.signal(syscall.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startStand(t, 2, 2, 1, 0, map[string]any{"drain": "0s", "fixed": unprobed()})
			r, rng := s.replicas[0], rand.New(rand.NewPCG(1, 1))
			ask := func() {
				body, err := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 2,
					"messages": []any{map[string]any{"role": "user", "content": words(rng, 200)}}})
				if err != nil {
					t.Fatal(err)
				}
				if a := s.send(string(body), false, 20*time.Second); a.failed() {
					t.Fatalf("status %d, %v, want an answer", a.status, a.err)
				}
			}
			// said reports whether NATS is blamed. A finding of the audit, or about a prefix cache, is a wrong one.
			said := func() (blamed bool) {
				page, err := lab.Get("http://" + r.admin + "/problems")
				if err != nil {
					t.Fatal(err)
				}
				for _, one := range gjson.ParseBytes(page).Array() {
					blamed = blamed || strings.HasPrefix(one.Get("code").Str, "SL06")
					if one.Get("from").Str == "audit" || one.Get("code").Str == "SL0102" {
						t.Fatalf("%s %s: got it while NATS is away, want nothing said of the workers", one.Get("code"), one.Get("what"))
					}
				}
				return blamed
			}
			for range 8 {
				ask()
			}
			fault.begin(t, s.nats)
			// The server's connection counts as lost within 15 s; what the audit says is told 15 s after it began.
			for began := time.Now(); time.Since(began) < 18*time.Second || !said(); time.Sleep(100 * time.Millisecond) {
				ask()
				said()
				if time.Since(began) > 3*time.Minute {
					t.Fatal("nothing blames NATS after three minutes")
				}
			}
			if page, err := lab.Get("http://" + r.admin + "/"); err != nil || !strings.Contains(string(page), "SL0601") {
				t.Errorf(`the page does not blame NATS (SL0601): got %v, want no error, strings.Contains(string(page), "SL0601")`, err)
			}
			checks, _ := doctored(t, s.bin, r.file, "--no-canary")
			for _, c := range checks {
				text := strings.Join(c.Evidence, "; ")
				if c.Code == "SL0601" && c.Verdict != doctor.Error {
					t.Errorf("doctor: got %+v, want an error", c)
				} else if strings.Contains(text, "stored otherwise") || strings.Contains(text, "prefix cache") {
					t.Errorf("doctor: got %s %s, want nothing said of the workers", c.Code, text)
				}
			}
			fault.end(t, s.nats)
			eventually(t, "the finding to end", func() bool { return !said() && s.whole() })
			for range 20 {
				ask()
				said()
			}
		})
	}
}
