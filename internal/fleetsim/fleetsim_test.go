package fleetsim

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func scenario(t *testing.T, name string) *Scenario {
	t.Helper()
	list := Scenarios()
	at := slices.IndexFunc(list, func(s Scenario) bool { return s.Name == name })
	if at < 0 {
		t.Fatalf("no scenario %q", name)
	}
	return &list[at]
}

func rule(t *testing.T, name string) Rival {
	t.Helper()
	list := Rules()
	at := slices.IndexFunc(list, func(r Rival) bool { return r.Name == name })
	if at < 0 {
		t.Fatalf("no rule %q", name)
	}
	return list[at]
}

// The router itself, with no more than it is told in real life, does about as well as one that sees true queues and caches,
// and better than rules that herd or spread.
func TestNearTheOracle(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of simulation")
	}
	for _, c := range []struct {
		scenario string
		load     float64
		most     float64 // of the oracle's mean
		rivals   []string
	}{
		{"images", 0.7, 1.06, []string{"least request", "session sticky", "Dynamo lmetric", "SGLang"}},
		{"hot image", 0.7, 1.06, []string{"least request", "session sticky"}},
		{"images", 1.3, 1, []string{"Dynamo lmetric", "AIBrix tokens"}},
		{"siblings", 1.3, 1, []string{"round robin", "llm-d filter"}},
	} {
		sc := scenario(t, c.scenario)
		trace := sc.at(c.load)
		_, ours := sc.run(trace, rule(t, "sightline"))
		_, best := sc.run(trace, rule(t, "oracle"))
		if got := float64(ours.Mean) / float64(best.Mean); got > c.most {
			t.Errorf("%s at %v: mean TTFT %v, %.2f of the oracle's, want %v at most", c.scenario, c.load, ours.Mean, got, c.most)
		}
		for _, name := range c.rivals {
			if _, s := sc.run(trace, rule(t, name)); ours.Mean > s.Mean+s.Mean/33 || ours.P99 > s.P99+s.P99/33 {
				t.Errorf("%s at %v: TTFT %v, p99 %v; %s has %v, %v", c.scenario, c.load, ours.Mean, ours.P99, name, s.Mean, s.P99)
			}
		}
	}
}

// A slow worker gets less, a failing one nothing but trials.
func TestUnequalWorkers(t *testing.T) {
	share := func(name string) float64 {
		sc := scenario(t, name)
		r, _ := sc.run(sc.at(0.7), rule(t, "sightline"))
		late, first := 0, 0
		for _, s := range r.Served {
			if s.At > 10*time.Second && s.At < sc.Until {
				late++
				if s.Worker == 0 {
					first++
				}
			}
		}
		return float64(first) / float64(late) * float64(sc.Workers)
	}
	if got := share("slow worker"); got > 0.6 {
		t.Errorf("a worker of half the speed gets %.2f of a fair share after 10 s, want 0.6 at most", got)
	}
	if got := share("failing worker"); got > 0.08 {
		t.Errorf("a worker that answers 503 gets %.3f of a fair share after 10 s, want 1 %% of all requests at most", got)
	}
}

// Without events, or with a tenth of them lost, it is no worse than the least loaded worker.
func TestBlind(t *testing.T) {
	for _, name := range []string{"event loss", "no events"} {
		sc := scenario(t, name)
		trace := sc.at(0.7)
		_, ours := sc.run(trace, rule(t, "sightline"))
		if _, s := sc.run(trace, rule(t, "least request")); ours.Mean > s.Mean+s.Mean/20 {
			t.Errorf("%s: mean TTFT %v, least request has %v", name, ours.Mean, s.Mean)
		}
	}
}

// Equal seeds give equal runs.
func TestDeterministic(t *testing.T) {
	var tables [2]bytes.Buffer
	for i := range tables {
		if err := Play(&tables[i], Options{Scenarios: []string{"siblings"}, Loads: []float64{0.4}}); err != nil {
			t.Fatal(err)
		}
	}
	if tables[0].String() != tables[1].String() || strings.Count(tables[0].String(), "\n") != len(Rules())+3 {
		t.Errorf("two runs differ, or rules are missing:\n%s%s", &tables[0], &tables[1])
	}
}

// A trace's blocks are equal where its ids are, and prompts have the recorded lengths.
func TestMooncake(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = io.WriteString(w, `{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 1030, "output_length": 7, "hash_ids": [1, 3, 4]}
`)
	_ = w.Close()
	trace, err := mooncake(&z, 2, 10)
	if err != nil || len(trace) != 2 || trace[1].At != 1500*time.Millisecond || trace[0].Input() != 1000 || trace[1].Input() != 1030 || trace[1].Answer.Tokens != 7 {
		t.Fatalf("%v %+v", err, trace)
	}
	prepare(trace, 16)
	a, b := trace[0].blocks, trace[1].blocks
	if !slices.Equal(a[:32], b[:32]) || a[32] == b[32] {
		t.Error("the first 512 tokens are not equal, or the next ones are")
	}
	bad := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(bad, []byte("no gzip"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{Trace: bad}, {Scenarios: []string{"nope"}}, {Rules: []string{"nope"}}} {
		if err := Play(io.Discard, o); err == nil {
			t.Errorf("%+v is played", o)
		}
	}
}
