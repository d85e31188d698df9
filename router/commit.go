package router

import (
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/guard"
)

// A plan is carried out in one of three ways (decide.go). Each makes the choice. The steered one books it in the same step, under a
// lock if there is a limit, so that two decisions do not choose the same last place.

// commitSteered books the choice at the chosen worker. With a limit, decisions run one at a time.
func (r *Router) commitSteered(p *plan) {
	if p.list.limit > 0 && !p.list.ignoresLimit() {
		r.admission.Lock()
		defer r.admission.Unlock()
	}
	if p.list.trial != nil && !p.list.trial.ClaimTrial(p.now) {
		p.list.withoutTrial()
	}
	if p.finish(r.choices.Add(1)) {
		r.fronts.count(p.mem.overlap.lookups, p.now)
		r.booker.book(p)
	}
}

// commitUnsteered keeps the choice until Envoy says which worker it picked (unsteered.go).
func (r *Router) commitUnsteered(p *plan) {
	if p.finish(r.choices.Add(1)) {
		r.fronts.count(p.mem.overlap.lookups, p.now)
		r.booker.bookUnsteered(p)
	}
}

// commitNothing makes the choice that the next decision would make.
func (r *Router) commitNothing(p *plan) { p.finish(r.choices.Load() + 1) }

// countAndTime counts a plan that was carried out, and returns the time that it took.
func (r *Router) countAndTime(p *plan) time.Duration {
	r.countPlan(p)
	r.logUnbooked(p)
	took := r.opt.Now().Sub(p.now)
	r.metrics.countDecision(&p.out, took)
	return took
}

// countPlan counts what a plan has noted, and logs it.
func (r *Router) countPlan(p *plan) {
	m, t, l, model := r.metrics, &p.tally, &p.list, p.out.Model
	for _, field := range p.mem.reading.removed {
		m.removed.WithLabelValues(field).Inc()
	}
	if p.out.Asked != "" {
		r.unserved.add(p.out.Asked, p.now)
	}
	if l.found {
		r.answers.Get(l.answer) // makes it recent
		m.storedAnswers.WithLabelValues("found").Inc()
	} else if l.answer != "" {
		m.storedAnswers.WithLabelValues("unknown").Inc()
	}
	if c := &p.mem.choice; c.Deadline != "" {
		m.deadlines.WithLabelValues(model, c.Deadline).Inc()
	}
	if l.shed != "" {
		m.shed.WithLabelValues(model, l.shed).Inc()
	}
	if p.mem.choice.NoPrefill {
		m.roleMissing.WithLabelValues(model, noPrefill).Inc()
	}
	if t.noEncode {
		m.roleMissing.WithLabelValues(model, noEncode).Inc()
	}
	if t.fewerRetries {
		r.opt.Log.Info("classes of this model need different body edits; only workers with the chosen worker's edits are offered for a retry",
			zap.String("model", model))
	}
	if t.unreadWhy != "" {
		r.opt.Log.Warn("request routed by load: "+t.unreadWhy, zap.String("id", p.out.ID), zap.String("model", model),
			zap.String("asked", p.out.Asked))
	}
}

// Label values of sightline_role_missing_total. A fleet without decode workers serves nothing ("no worker known").
const (
	noPrefill = "prefill" // some workers only decode by configuration, but had to prefill too
	noEncode  = "encode"  // the prefilling workers encoded the images too
)

// logDecision writes one line about the decision at debug level.
func logDecision(log *zap.Logger, d *Decision, took time.Duration) {
	line := log.Check(zap.DebugLevel, "decided")
	if line == nil {
		return
	}
	worker := ""
	if len(d.Targets) > 0 {
		worker = d.Targets[0].Worker
	}
	line.Write(zap.String("id", d.ID), zap.String("model", d.Model), zap.String("worker", worker), zap.String("reason", string(d.Reason)),
		zap.String("why", d.Why), zap.Int("prompt_tokens", d.PromptTokens), zap.Int("cached_tokens", d.CachedTokens), zap.Duration("took", took))
}

func logPanic(log *zap.Logger, p any) {
	log.Error("panic in a decision", zap.String("panic", guard.Fault(p)), zap.ByteString("stack", debug.Stack()))
}
