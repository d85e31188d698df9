package router

import "sync/atomic"

// Totals are sums over all decisions of all models since the start; Prometheus has them by model. All but Decisions are tokens.
type Totals struct {
	Decisions                  uint64
	Prompt, Cached, Held       uint64 // of prompts; predicted to be cached on the chosen worker; held by the worker that held most
	EnginePrompt, EngineCached uint64 // by the engines' count, for answers that report it
}

// Less returns the difference to an earlier value.
func (t Totals) Less(before Totals) Totals {
	return Totals{t.Decisions - before.Decisions, t.Prompt - before.Prompt, t.Cached - before.Cached, t.Held - before.Held,
		t.EnginePrompt - before.EnginePrompt, t.EngineCached - before.EngineCached}
}

// Plus returns the sum of both.
func (t Totals) Plus(o Totals) Totals {
	return Totals{t.Decisions + o.Decisions, t.Prompt + o.Prompt, t.Cached + o.Cached, t.Held + o.Held,
		t.EnginePrompt + o.EnginePrompt, t.EngineCached + o.EngineCached}
}

// totals are summed up by concurrent decisions. A part is added after its whole and read before it, so that no ratio exceeds one.
type totals struct{ decisions, prompt, cached, held, enginePrompt, engineCached atomic.Uint64 }

// Totals returns the current sums.
func (r *Router) Totals() (t Totals) {
	s := &r.metrics.totals
	t.EngineCached, t.Cached = s.engineCached.Load(), s.cached.Load()
	t.Held = s.held.Load()
	t.EnginePrompt, t.Prompt, t.Decisions = s.enginePrompt.Load(), s.prompt.Load(), s.decisions.Load()
	return t
}
