package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/router/report"
)

// The way of docs/rollout.md, with workers and a real Envoy that stay: none steered, a tenth, all, and a changed file
// between them, which the same process takes up. Conversations show an image each, and ask about it again; each step has new ones.
func TestRollout(t *testing.T) {
	t.Parallel()
	const conversations, turns = 40, 3
	var file map[string]any
	log := filepath.Join(t.TempDir(), "decisions.jsonl")
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["decision_log"] = map[string]any{"file": log}
			file = maps.Clone(keys)
		}
	})
	for n, step := range []struct {
		name  string
		keys  map[string]any
		check func(t *testing.T, r report.Report)
	}{
		{"none", map[string]any{"enforce": "0%", "max_in_flight": 1}, func(t *testing.T, r report.Report) {
			if r.Steered.Requests != 0 || r.Would.Requests != r.Unsteered.Requests || r.Would.Spared < 300*conversations {
				t.Errorf("got %+v, want Steered.Requests 0, Would.Requests %d, Would.Spared at least %d", r, r.Unsteered.Requests, 300*conversations)
			}
		}},
		{"a tenth", map[string]any{"enforce": "10%"}, func(t *testing.T, r report.Report) {
			if r.Steered.Requests < turns || r.Unsteered.Requests < 5*r.Steered.Requests || share(r.Steered) <= share(r.Unsteered) {
				t.Errorf("%+v", r)
			}
		}},
		{"all", map[string]any{}, func(t *testing.T, r report.Report) {
			if r.Unsteered.Requests != 0 || r.Would.Requests != 0 || share(r.Steered) < 0.5 {
				t.Errorf("got %+v, want no unsteered request, none compared, and at least half of the steered ones' tokens cached", r)
			}
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			keys := maps.Clone(file)
			maps.Copy(keys, step.keys)
			text, err := yaml.Marshal(keys)
			if err == nil {
				err = os.WriteFile(l.ConfigFile(), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			mode := fmt.Sprint(cmp.Or(step.keys["enforce"], any("100%")))
			eventually(t, "the file is taken up", func() bool { return told(t, l).Mode == mode })
			began := time.Now()
			before := told(t, l)
			var photos []string
			for c := range conversations {
				photos = append(photos, dataURL(photo(uint64(n*conversations+c))))
			}
			served, order := map[int]int{}, rand.New(rand.NewPCG(1, 1))
			for turn := range turns {
				for _, c := range order.Perm(conversations) { // round robin would fall in step with a fixed order
					// A client that would choose a worker chooses nothing.
					got := post(t, l, map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{
						map[string]any{"type": "image_url", "image_url": map[string]any{"url": photos[c]}},
						map[string]any{"type": "text", "text": fmt.Sprintf("And what is number %d?", turn)}}}}},
						http.Header{"X-Target-Worker": {l.Sims[0].Addr()}, "X-Session-Id": {fmt.Sprint("session ", n*conversations+c)}})
					served[got.worker]++
					if got.status != http.StatusOK {
						t.Fatalf("status %d: %s, want %d", got.status, got.body, http.StatusOK)
					}
				}
				eventually(t, "all ends are known", func() bool {
					return ended(told(t, l))-ended(before) == conversations*(turn+1)
				})
			}
			if len(served) != len(l.Sims) {
				t.Errorf("requests by worker: got %v, want %d of them", served, len(l.Sims))
			}
			var r report.Report
			eventually(t, "the log has all lines", func() bool {
				text, err := exec.Command(l.Self(), "report", "-o", "json", "--since", began.Format(time.RFC3339Nano), log).Output()
				return err == nil && json.Unmarshal(text, &r) == nil && ended(r) == conversations*turns
			})
			if r.Unsteered.Failed+r.Steered.Failed > 0 || r.Unsteered.Counted+r.Steered.Counted != conversations*turns {
				t.Errorf("%+v: got %d, %d, want 0, %d",
					r, r.Unsteered.Failed+r.Steered.Failed, r.Unsteered.Counted+r.Steered.Counted, conversations*turns)
			}
			step.check(t, r)
			armsHold(t, l)
			checks, _ := doctored(t, l.Self(), waiting(t, l.ConfigFile(), "10s"), "--no-canary")
			for _, r := range checks { // unsteered requests go to other workers than the chosen ones, which is no fault
				if r.Verdict == doctor.Error || r.Code == "SL0205" && r.Verdict == doctor.Warning {
					t.Errorf("the doctor says %+v", r)
				}
			}
			var all report.Report
			text, err = exec.Command(l.Self(), "report", "-o", "json", log).Output()
			if err == nil {
				err = json.Unmarshal(text, &all)
			}
			if now := told(t, l); err != nil || all.Would != now.Would || all.Unsteered.Cached != now.Unsteered.Cached ||
				all.Steered.Prompt != now.Steered.Prompt {
				t.Errorf("%v, of the log\n%+v\nof the page\n%+v", err, all, now)
			}
			text, err = exec.Command(l.Self(), "report", "--admin", l.Admin, "--since", "1h", "--model", lab.ModelName).Output()
			if err != nil || strings.Contains(string(text), "Nothing to report") {
				t.Errorf(`got %v: %s, want no error, !strings.Contains(string(text), "Nothing to report")`, err, text)
			}
			t.Logf("%s", text)
		})
	}
}

// told is what the running Sightline reports.
func told(t *testing.T, l *lab.Lab) (r report.Report) {
	t.Helper()
	text, err := lab.Get("http://" + l.Admin + "/report")
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ended returns how many requests a report is about.
func ended(r report.Report) int { return r.Unsteered.Requests + r.Steered.Requests }

func share(s report.Side) float64 { return float64(s.Cached) / float64(max(1, s.Prompt)) }

// armsHold looks through all decisions: each tells its arm, the choice and who got it, and one that was steered went where it should.
func armsHold(t *testing.T, l *lab.Lab) {
	t.Helper()
	all, err := lab.Get("http://" + l.Admin + "/decisions?n=1024")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range gjson.ParseBytes(all).Array() {
		arm, chosen, used := d.Get("arm").Str, d.Get("addr").Str, d.Get("used").Str
		if used == "" || chosen == "" || arm != "unsteered" && (arm != "steered" || chosen != used) {
			t.Errorf("%s", d.Raw)
		}
	}
}
