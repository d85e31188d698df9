package serve

import (
	"fmt"
	"sync"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/report"
)

// facts returns a function that collects what is known now, for the table of findings.
func (r *running) facts(reloads *reloader, decisions *decisionlog.Log) func(now time.Time) findings.Facts {
	const lately, most = time.Minute, 1024
	lost, grown := r.peers.hooks().lost, &growths{of: map[string]growth{}, behind: map[string]time.Time{}}
	return func(now time.Time) findings.Facts {
		f := findings.Facts{Now: now, Began: r.gate.began, Workers: r.workers(), Unserved: r.router.Unserved(), Audited: r.audit.Findings(),
			Misplaced: r.audit.Misplaced(), Late: r.audit.Late(), SomeLate: r.audit.SomeLate(), Mode: r.report.Of(report.Range{}).Mode,
			NATS: r.sources.natsAway(), Costs: r.sources.costsUnwritten(), Unresolved: r.sources.unresolved(), Faults: r.Faults(),
			Hosts: r.media.Hosts(), Certificates: r.cfg.Expiring(now), DecisionLog: decisions.Failing(), TakesOne: reloads.envoy.TakesOne(),
			Recent: r.router.RecentSince(now.Add(-lately), most), Last: r.router.Recent(most), Strays: reloads.envoy.Strays(),
			Refused: reloads.envoy.RefusedCalls()}
		f.Configuration, f.Restart = reloads.status()
		f.Silent, f.SilentSince = r.router.Silent()
		f.Probes = r.probe.Results()
		if lost != nil {
			f.LostReplicas = lost()
		}
		if _, err := r.gate.look(now); err != nil {
			f.NotReady = err.Error()
		}
		for _, at := range reloads.envoy.DecidedLate() {
			if now.Sub(at) <= lately {
				f.TooLate++
			}
		}
		for _, m := range r.now.Load().models {
			f.Models = append(f.Models, m.Name)
		}
		grown.judge(&f, r)
		return f
	}
}

// growths keep by how much counters have grown lately: what has not grown for findings.GrowthAge is over.
type growths struct {
	mu     sync.Mutex
	of     map[string]growth
	behind map[string]time.Time // when workers' events were last not live
}

type growth struct {
	before, n uint64 // before it began to grow, and now
	at, seen  time.Time
}

// judge replaces counters by their growths.
func (g *growths) judge(f *findings.Facts, r *running) {
	g.mu.Lock()
	defer g.mu.Unlock()
	garbled := uint64(0)
	for _, l := range r.sources.dynamo {
		garbled += l.plane.Unreadable()
	}
	index := r.index.Stats()
	f.Lost, f.Garbled = g.grown("index", uint64(index.Evicted+index.Dropped), f.Now), g.grown("plane", garbled, f.Now)
	f.NATSRefused = g.grown("nats", r.sources.denied.Load(), f.Now)
	for i := range f.Workers {
		w := &f.Workers[i]
		if w.Events != "live" {
			g.behind[w.Name] = f.Now
		}
		w.BehindAt = g.behind[w.Name]
		key := func(what string) string { return fmt.Sprintf("%s\x00%d\x00%s", w.Name, w.Rank, what) }
		w.Unfilled, w.Garbled = g.grown(key("unfilled"), w.Unfilled, f.Now), g.grown(key("garbled"), w.Garbled, f.Now)
		w.Unresolved = g.grown(key("unresolved"), w.Unresolved, f.Now)
		if g.grown(key("unknown"), w.UnknownKeys, f.Now) == 0 {
			w.UnknownKey = ""
		}
	}
	for key, one := range g.of {
		if f.Now.Sub(one.seen) > time.Hour { // of a worker that is gone
			delete(g.of, key)
		}
	}
	for worker, at := range g.behind {
		if f.Now.Sub(at) > time.Hour {
			delete(g.behind, worker)
		}
	}
}

func (g *growths) grown(key string, n uint64, now time.Time) uint64 {
	one, known := g.of[key]
	switch {
	case n == 0 && !known:
		return 0
	case n < one.n: // it began anew
		one = growth{}
		fallthrough
	case n > one.n:
		if now.Sub(one.at) > findings.GrowthAge {
			one.before = one.n
		}
		one.n, one.at = n, now
	}
	one.seen = now
	g.of[key] = one
	if now.Sub(one.at) > findings.GrowthAge {
		return 0
	}
	return one.n - one.before
}
