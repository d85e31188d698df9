package router

import "sync/atomic"

// Totals are sums of all decisions since the start, of all models: Prometheus has them by model. All but Decisions are tokens.
type Totals struct {
	Decisions                  uint64
	Prompt, Cached, Held       uint64 // of prompts; of them predicted to be cached where they went, and where most was
	EnginePrompt, EngineCached uint64 // as engines counted, of the answers that told
}

// Less is what came since before.
func (t Totals) Less(before Totals) Totals {
	return Totals{t.Decisions - before.Decisions, t.Prompt - before.Prompt, t.Cached - before.Cached, t.Held - before.Held,
		t.EnginePrompt - before.EnginePrompt, t.EngineCached - before.EngineCached}
}

// Plus is both together.
func (t Totals) Plus(o Totals) Totals {
	return Totals{t.Decisions + o.Decisions, t.Prompt + o.Prompt, t.Cached + o.Cached, t.Held + o.Held,
		t.EnginePrompt + o.EnginePrompt, t.EngineCached + o.EngineCached}
}

// totals are summed up by decisions side by side. What is a part is added after the whole and read before it, so that no share
// is above one.
type totals struct{ decisions, prompt, cached, held, asked, found atomic.Uint64 }

// Totals reads them.
func (r *Router) Totals() (t Totals) {
	s := &r.metrics.totals
	t.EngineCached, t.Cached = s.found.Load(), s.cached.Load()
	t.Held = s.held.Load()
	t.EnginePrompt, t.Prompt, t.Decisions = s.asked.Load(), s.prompt.Load(), s.decisions.Load()
	return t
}
