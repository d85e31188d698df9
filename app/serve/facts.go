package serve

import (
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/report"
)

// facts returns a function that collects what is known now, for the table of findings.
func (r *running) facts(reloads *reloader, decisions *decisionlog.Log) func(now time.Time) findings.Facts {
	const lately, most = time.Minute, 1024
	lost := r.peers.hooks().lost
	return func(now time.Time) findings.Facts {
		f := findings.Facts{Now: now, Began: r.gate.began, Workers: r.workers(), Unserved: r.router.Unserved(), Audited: r.audit.Findings(),
			Misplaced: r.audit.Misplaced(), Late: r.audit.Late(), Mode: r.report.Of(report.Range{}).Mode,
			NATS: r.sources.nats.Away(), Unresolved: r.sources.unresolved(), Faults: r.Faults(), Hosts: r.media.Hosts(),
			Certificates: r.cfg.Expiring(now), DecisionLog: decisions.Failing(), TakesOne: reloads.envoy.TakesOne(),
			Recent: r.router.RecentSince(now.Add(-lately), most), Strays: reloads.envoy.Strays(), Refused: reloads.envoy.RefusedCalls()}
		f.Configuration, f.Restart = reloads.status()
		f.Silent, f.SilentSince = r.router.Silent()
		if r.probe != nil {
			f.Probes = r.probe.Results()
		}
		if lost != nil {
			f.LostReplicas = lost()
		}
		if _, err := r.gate.look(now); err != nil {
			f.NotReady = err.Error()
		}
		return f
	}
}
