package discover

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/lab/fakekube"
)

// costs are what a test says of workers.
type costs struct {
	sync.Mutex
	of  map[string]float64 // by address
	why string
}

func (c *costs) set(addr string, cost float64) {
	c.Lock()
	defer c.Unlock()
	c.of[addr] = cost
}

// costed follows the pool "chat" of an API server under a writer's name.
func (c *costs) costed(api *fakekube.Server, log *zap.Logger, writer string) *Pool {
	return &Pool{Cluster: Cluster{API: api.URL, CAFile: api.CAFile, TokenFile: api.TokenFile, Namespace: "llm"}, Name: "chat", Log: log,
		Retry: 5 * time.Millisecond, Costs: &DeletionCosts{Writer: writer, Every: costsAgain,
			Told: func(why string) { c.Lock(); c.why = why; c.Unlock() },
			Of: func() func(netip.AddrPort) (float64, bool) {
				return func(at netip.AddrPort) (float64, bool) {
					c.Lock()
					defer c.Unlock()
					cost, known := c.of[at.String()]
					return cost, known
				}
			}}}
}

const costsAgain = 90 * time.Millisecond

// written returns the patches so far as pod=cost, in their order.
func written(api *fakekube.Server) string {
	var out []string
	for _, p := range api.Patches() {
		out = append(out, p.Pod+"="+p.Annotations[costKey])
	}
	return strings.Join(out, " ")
}

// TestDeletionCosts: pods are told what their removal costs where that has changed by more than a tenth, each at most once in a while;
// those whose workers are out of service the least; what is not known, what is being deleted, and what another process writes, stays.
func TestDeletionCosts(t *testing.T) {
	c := &costs{of: map[string]float64{"10.0.0.1:8000": 1000, "10.0.0.2:8000": 1e12}}
	w := follows(t, func(api *fakekube.Server, log *zap.Logger) finder {
		api.AllowPatch(true)
		api.PutPool("chat", vllmPods, 8000)
		for i := range 3 {
			api.PutPod(ready(i+1), vllmPods, nil)
		}
		return c.costed(api, log, "a")
	})
	has := func(what string, want ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			list := w.api.Patches()
			for _, one := range want {
				pod, cost, _ := strings.Cut(one, "=")
				last := "none"
				for _, p := range list {
					if p.Pod == pod {
						last = p.Annotations[costKey]
					}
				}
				if last != cost {
					return false
				}
			}
			return true
		})
	}
	has("the first costs", "p1=1000", fmt.Sprint("p2=", math.MaxInt32), "p3=none")
	n := len(w.api.Patches())
	c.set("10.0.0.1:8000", 1090)
	for i := range 12 {
		c.set("10.0.0.3:8000", float64(i%2*fewTokens))
		time.Sleep(costsAgain / 4)
	}
	if got := w.api.Patches(); len(got) != n {
		t.Errorf("got %s, want no patch of a cost that has changed by less than a tenth, nor by few tokens", written(w.api))
	}
	c.set("10.0.0.1:8000", math.Inf(-1))
	c.set("10.0.0.2:8000", 5)
	has("one is taken out of service", fmt.Sprint("p1=", math.MinInt32), "p2=5")
	c.Lock()
	delete(c.of, "10.0.0.1:8000")
	delete(c.of, "10.0.0.2:8000")
	c.Unlock()
	has("it is in service again, and not known", "p1=0", "p2=5")
	for i := range 40 {
		c.set("10.0.0.2:8000", float64(10_000*(i%2)+10_000))
		time.Sleep(costsAgain / 9)
	}
	last := map[string]time.Time{}
	for _, p := range w.api.Patches() {
		if at, again := last[p.Pod]; again && p.At.Sub(at) < costsAgain {
			t.Errorf("%s was changed again after %v, want %v at least", p.Pod, p.At.Sub(at), costsAgain)
		}
		last[p.Pod] = p.At
	}

	// Several ports are several workers: their costs add up, and what is out of service adds nothing.
	c.set("10.0.0.3:8000", 3000)
	c.set("10.0.0.3:8001", 4000)
	w.api.PutPool("chat", vllmPods, 8000, 8001)
	has("the sum", "p3=7000")
	c.set("10.0.0.3:8000", math.Inf(-1))
	has("the rest", "p3=4000")
	c.set("10.0.0.3:8001", math.Inf(-1))
	has("none is left", fmt.Sprint("p3=", math.MinInt32))
	leaving := ready(3)
	leaving.Terminating = true
	w.api.PutPod(leaving, vllmPods, nil)
	eventually(t, "a pod that is being deleted", func() bool { now, _ := w.state(); return strings.Contains(now, "-") })
	c.set("10.0.0.3:8000", 12345)
	time.Sleep(3 * costsAgain)
	if strings.Contains(written(w.api), "12345") {
		t.Errorf("got %s, want no patch of a pod that is being deleted", written(w.api))
	}
}

// TestDeletionCostsRefused: without the right to patch pods that is told, and told to be over once it is there; a pod that another one
// has replaced is not patched.
func TestDeletionCostsRefused(t *testing.T) {
	c := &costs{of: map[string]float64{"10.0.0.1:8000": 1000}}
	w := follows(t, func(api *fakekube.Server, log *zap.Logger) finder {
		api.PutPool("chat", vllmPods, 8000)
		api.PutPod(ready(1), vllmPods, nil)
		return c.costed(api, log, "a")
	})
	why := func() string { c.Lock(); defer c.Unlock(); return c.why }
	eventually(t, "the refusal", func() bool { return strings.Contains(why(), "want a Role with patch on pods") })
	eventually(t, "a line in the log", func() bool { return w.log.FilterMessageSnippet("deletion costs").Len() == 1 })
	w.want(t, "p1=10.0.0.1:8000")
	c.set("10.0.0.1:8000", 0)
	eventually(t, "nothing is to be written", func() bool { return why() == "" })
	c.set("10.0.0.1:8000", 1000)
	eventually(t, "the refusal again", func() bool { return why() != "" })
	w.api.AllowPatch(true)
	eventually(t, "it is over", func() bool { return why() == "" && written(w.api) == "p1=1000" })
	s := &server{Cluster: Cluster{API: w.api.URL, CAFile: w.api.CAFile, TokenFile: w.api.TokenFile}}
	for _, gone := range []podPatch{{"p1", []byte(`{"metadata":{"uid":"another","annotations":{"x":"y"}}}`)}, {"p9", []byte(`{}`)}} {
		if err := s.patchPods(t.Context(), "llm", []podPatch{gone}); err != nil || len(w.api.Patches()) != 1 {
			t.Errorf("%s: error %v and %d patches, want none more", gone.name, err, len(w.api.Patches())-1)
		}
	}
}

// TestDeletionCostsByOne: of several processes that know different costs one writes; another goes on where that one is gone.
func TestDeletionCostsByOne(t *testing.T) {
	c := &costs{of: map[string]float64{"10.0.0.1:8000": 1000}}
	w := follows(t, func(api *fakekube.Server, log *zap.Logger) finder {
		api.AllowPatch(true)
		api.PutPool("chat", vllmPods, 8000)
		api.PutPod(ready(1), vllmPods, nil)
		return c.costed(api, log, "a")
	})
	eventually(t, "the first cost", func() bool { return written(w.api) == "p1=1000" })
	other := &poolFollower{Pool: &Pool{}, ports: []int{8000}, pods: map[string]*pod{}}
	p := &pod{}
	p.Metadata.Annotations, p.Status.PodIP = w.api.Patches()[0].Annotations, "10.0.0.1"
	other.pods["p1"] = p
	of := func(netip.AddrPort) (float64, bool) { return 400, true }
	now := time.Now()
	for _, one := range []struct {
		writer string
		at     time.Time
		want   int
	}{{"b", now, 0}, {"b", now.Add(writerLasts - time.Second), 0}, {"b", now.Add(writerLasts + time.Second), 1}, {"a", now, 1},
		{"b", now.Add(-writerLasts + 2*time.Second), 0}, {"b", now.Add(-time.Hour), 1}} { // a clock that is ahead, and one by an hour
		if list := other.changedCosts(of, one.writer, one.at); len(list) != one.want {
			t.Errorf("%s after %v: %d changes, want %d", one.writer, one.at.Sub(now), len(list), one.want)
		}
	}
}
