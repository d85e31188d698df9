package router

import (
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/guard"
)

// A plan is carried out in one of three ways, by its policy. Each makes the choice and books it at once, so that two decisions do not
// choose the same last place.

// commitSteered books the choice at the chosen worker. With a limit, decisions run one at a time.
func (r *Router) commitSteered(x *planner) {
	if x.maxInFlight > 0 && x.req.Stored == "" {
		r.admission.Lock()
		defer r.admission.Unlock()
	}
	if x.trial != nil && !x.trial.ClaimTrial(x.now) {
		x.withoutTrial()
	}
	if x.finish(r.choices.Add(1)) {
		x.countFronts()
		r.book(x)
	}
}

// commitUnsteered keeps the choice until Envoy says which worker it picked (unsteered.go).
func (r *Router) commitUnsteered(x *planner) {
	if x.finish(r.choices.Add(1)) {
		x.countFronts()
		r.bookUnsteered(x)
	}
}

// commitNothing makes the choice that the next decision would make.
func (r *Router) commitNothing(x *planner) { x.finish(r.choices.Load() + 1) }

// countAndTime counts a plan that was carried out, and returns the time that it took.
func (r *Router) countAndTime(x *planner) time.Duration {
	r.countPlan(x)
	r.logUnbooked(x)
	took := r.opt.Now().Sub(x.now)
	r.metrics.countDecision(&x.out, took)
	return took
}

// countPlan counts what a plan has noted, and logs it.
func (r *Router) countPlan(x *planner) {
	m, t, model := r.metrics, &x.tally, x.out.Model
	for _, field := range t.removed {
		m.removed.WithLabelValues(field).Inc()
	}
	if x.out.Asked != "" {
		r.unserved.add(x.out.Asked, x.now)
	}
	if t.answer != "" {
		m.storedAnswers.WithLabelValues(t.answer).Inc()
		r.answers.Get(t.answerID) // makes it recent
	}
	if t.deadline != "" {
		m.deadlines.WithLabelValues(model, t.deadline).Inc()
	}
	if t.shed != "" {
		m.shed.WithLabelValues(model, t.shed).Inc()
	}
	if t.noPrefill {
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
		r.opt.Log.Warn("request routed by load: "+t.unreadWhy, zap.String("id", x.out.ID), zap.String("model", model),
			zap.String("asked", x.out.Asked))
	}
}

// logDecision writes one line about the decision at debug level.
func (r *Router) logDecision(d *Decision, took time.Duration) {
	line := r.unsampledLog.Check(zap.DebugLevel, "decided")
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

func (r *Router) logPanic(p any) {
	r.opt.Log.Error("panic in a decision", zap.String("panic", guard.Fault(p)), zap.ByteString("stack", debug.Stack()))
}
