package router

import (
	"slices"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Model is a model that requests may name.
type Model struct {
	Name     string
	Aliases  []string // other names of the model
	Adapters []string // LoRA adapters: names that requests use instead of the model's
	MaxLoRAs int      // adapters that a worker has loaded at once, if its engine never says; 0: as it reports, else 1
	NoOrder  bool     // workers are not told when a request is due
	FetchKV  bool     // workers fetch KV blocks from each other if a request names the source
	Unit     int      // tokens that its workers' lower tiers return at once; less than a block: one block
	Prompts  *engine.LiveModel
	Classes  []Class // groups of workers that read or cache the model differently
}

// A class is the set of workers of a model that key their cache alike: one release, one set of flags, one block size. A model
// during a rolling upgrade has two. All classes share one index; a request is looked up once for each class that has workers,
// with that class's keys, and the candidates of all classes are ranked together, in tokens.
//
//	body ─▶ an engineReading for each distinct Prompts ─▶ block hashes for each class ─▶ overlap of the class's slots
//
// Classes that differ only in block size share a reading. A class whose engine will refuse the request is left out; the others
// stay. How large a worker's blocks are, and whether their hashes cover the tokens after them, is known by its events; slots of one
// class that differ in that, or in the rules that have stepped aside for them, are looked up apart (lookup.go).

// Class is a class of a model's workers that differs from the model's own Prompts.
type Class struct {
	Name      string            // as in fleet.Worker.Class
	Prompts   *engine.LiveModel // may be the model's, or another class's
	BlockSize int               // until events show it; may differ from that of Prompts
	Unit      int               // as in Model
}

// Class returns the class of a name; an unknown name gives the model's own class, "".
func (m *Model) Class(name string) Class {
	for _, c := range m.Classes {
		if c.Name == name {
			return c
		}
	}
	return Class{Prompts: m.Prompts, BlockSize: m.Prompts.Server().BlockSize, Unit: m.Unit}
}

// servedModel is a Model prepared for decisions.
type servedModel struct {
	*Model
	classes []servedClass       // the first is the model's own, for workers that name none
	prompts []*engine.LiveModel // distinct ones, by engineReading
}

type servedClass struct {
	Class
	reading  int // index of its engineReading
	rules    rules.Rules
	sessions bool         // its workers' events name the session that we give a request
	judged   *audit.Class // what is known of the rules that compute its prompts
}

func newServedModel(m *Model) *servedModel {
	s := &servedModel{Model: m}
	for _, c := range append([]Class{m.Class("")}, m.Classes...) {
		at := slices.Index(s.prompts, c.Prompts)
		if at < 0 {
			at, s.prompts = len(s.prompts), append(s.prompts, c.Prompts)
		}
		server := c.Prompts.Server()
		s.classes = append(s.classes, servedClass{Class: c, reading: at, rules: server.Rules(), sessions: namesSessions(server)})
	}
	return s
}

// adapterOf returns the adapter that all engines of the model use for a request, or "": named, the one that the model's name is, if they do
// not agree, or if it is not known.
func (m *servedModel) adapterOf(named string, req *body.Request) string {
	adapter, known := m.prompts[0].Model().Adapter(named, req)
	for _, p := range m.prompts[1:] {
		other, _ := p.Model().Adapter(named, req)
		known = known && other == adapter
	}
	if !known {
		return named
	}
	return adapter
}

// classOf returns the index of a worker's class.
func (m *servedModel) classOf(w *fleet.Worker) int {
	return max(0, slices.IndexFunc(m.classes, func(c servedClass) bool { return c.Name == w.Class }))
}

// serving is the configuration that a decision uses from begin to end, even if Serve is called meanwhile. It is immutable.
type serving struct {
	names        map[string]servedName // by every name that requests may use
	onlyModel    string                // the model's name if there is one model alone
	maxInFlight  int
	predictedTTL time.Duration
}

// servedName is what a request's model name resolves to.
type servedName struct {
	model   *servedModel
	adapter string // one of its LoRA adapters; "": none
}

// Serve replaces the models and limits, each as in Options, for decisions that begin from now on. Rules that had stepped aside are in use
// again.
func (r *Router) Serve(models []Model, maxInFlight int, predictedTTL time.Duration) {
	now := &serving{names: make(map[string]servedName), maxInFlight: maxInFlight, predictedTTL: predictedTTL}
	if len(models) == 1 {
		now.onlyModel = models[0].Name
	}
	var classes []audit.ClassName
	var served []*servedClass
	for i := range models {
		m := newServedModel(&models[i])
		for k := range m.classes {
			c := &m.classes[k]
			classes, served = append(classes, audit.ClassName{Model: m.Name, Class: c.Name, Prompts: c.Prompts}), append(served, c)
		}
		now.names[m.Name] = servedName{model: m}
		// Start at 0: an alert sees no increase in a counter that first appears as 1.
		r.metrics.decisions.WithLabelValues(m.Name, string(RefusedByUs))
		r.metrics.cachedComparison.WithLabelValues(m.Name, "fewer")
		for _, n := range m.Aliases {
			now.names[n] = servedName{model: m}
		}
		for _, n := range m.Adapters {
			now.names[n] = servedName{model: m, adapter: n}
		}
	}
	for i, judged := range r.opt.Audit.Serve(classes) {
		served[i].judged = judged
	}
	r.forecasting.serve(models)
	r.serving.Store(now)
}
