package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestOddWorker: a worker that is started anew with another --model, or in a rolling upgrade as another release, names images otherwise.
// The rule for images steps aside for this worker alone, the five others keep what they have exactly; and it is back as soon as the worker
// is what it was, without any request.
func TestOddWorker(t *testing.T) {
	t.Parallel()
	t.Run("model", func(t *testing.T) { oddWorker(t, func(c *sim.Config) { c.Model = "another/model" }) })
	t.Run("release", func(t *testing.T) { oddWorker(t, func(c *sim.Config) { c.Version = "0.30.0" }) })
}

func oddWorker(t *testing.T, change func(*sim.Config)) {
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	l := startLab(t, func(o *lab.Options) { o.Workers = 6 })
	image := uint64(500)
	fresh := func() string { image++; return dataURL(photo(image)) }
	served := func(question, url string) gjson.Result {
		if r := ask(t, l, question, url); r.status != 200 {
			t.Fatalf("got %+v, want status 200", r)
		}
		quiet(t, l)
		return lastDecision(t, l)
	}
	agreed := func() bool {
		served("What is this?", fresh())
		raw, _ := lab.Get("http://" + l.Admin + "/metrics")
		for i := range 6 {
			if !strings.Contains(string(raw), fmt.Sprintf(`verdict="equal",worker="worker-%d"`, i+1)) {
				return false
			}
		}
		return true
	}
	eventually(t, "a request of each worker agrees", agreed)
	kept := fresh()
	home := "worker-1"
	for home == "worker-1" {
		kept = fresh()
		home = served("Which is kept?", kept).Get("worker").Str
	}

	at := sim.Config{Model: lab.ModelName, ServedName: lab.ModelName, Prompt: p, Listen: l.Sims[0].Addr(),
		Events: strings.TrimPrefix(l.Sims[0].EventsAddr(), "tcp://"), Replay: strings.TrimPrefix(l.Sims[0].ReplayAddr(), "tcp://")}
	swap := func(c sim.Config) {
		l.Sims[0].Close()
		w, err := sim.New(c)
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		l.Sims[0] = w
	}
	odd := at
	change(&odd)
	swap(odd)
	asides := func() gjson.Result {
		raw, err := lab.Get("http://" + l.Admin + "/problems")
		if err != nil {
			t.Fatal(err)
		}
		return gjson.ParseBytes(raw)
	}
	aside := func() float64 { return metric(t, l, "sightline_rules_aside", "") }
	eventually(t, "the rule steps aside", func() bool { ask(t, l, "And this?", fresh()); return aside() == 1 })
	for i := range 3 {
		d := served(fmt.Sprint("Kept, question ", i, "?"), kept)
		if d.Get("worker").Str != home || d.Get("reason").Str != "exact" || d.Get("cached_tokens").Int() < 350 {
			t.Errorf("an image at %s, after worker-1 became another: %s; %s", home, d.Raw, asides().Raw)
		}
	}
	swap(at)
	eventually(t, "the rule is in use at the worker, without a request", func() bool { return aside() == 0 })
}
