// Package probe asks workers whether they read prompts as we do.
//
//	/v1/models, /version ─▶ is the server the one that the configuration describes?
//	POST /tokenize       ─▶ a few conversations (cases.go): their token ids against ours, with the first difference
//
// vLLM and SGLang offer these; a worker without them is left alone. Probes run in the background at start, again until each
// worker has answered and is as configured, after its process has restarted, and on demand. They change nothing: the findings are
// for people, among a running Sightline's, as a metric and as a row of the admin page.
package probe

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/workers/inspect"
)

// Worker is a server to probe.
type Worker struct {
	Name  string
	Addr  string   // ip:port
	Model string   // the configured name
	Names []string // all names that requests may use for the model, including Model
	Ours  *engine.LiveModel
	// Adapters are the configured LoRA adapters.
	Adapters []string
	Ranks    int // configured; 0: one
	// Facts are what it has answered already; nil: it is asked, but for what only some engines tell together with keys.
	Facts *rules.Facts
}

// Verdict is the result of one comparison, in one word. A worker's verdict is its worst.
type Verdict string

// The verdicts, best first.
const (
	Equal         Verdict = "equal"
	Absent        Verdict = "absent"        // the worker does not offer the endpoint, or requires a key
	Inexact       Verdict = "inexact"       // we cannot read this prompt exactly
	Refused       Verdict = "refused"       // one side accepts the conversation, the other does not
	Unreachable   Verdict = "unreachable"   // no usable answer in time
	Configuration Verdict = "configuration" // the server is not as configured
	Differs       Verdict = "differs"       // the tokens differ: no block from there on will ever match
)

var severity = []Verdict{Equal, Absent, Inexact, Refused, Unreachable, Configuration, Differs}

// Finding is the result of one comparison.
type Finding struct {
	What       string      `json:"what"` // the conversation or the setting
	Verdict    Verdict     `json:"verdict"`
	Detail     string      `json:"detail,omitempty"`
	Difference *Difference `json:"difference,omitempty"` // for Differs
	Fault      rules.Fault `json:"fault,omitempty"`      // why the worker could not be asked
}

// Identity are What of the settings by which prompts and names are read.
var Identity = []string{"engine", "engine_version", "engine_model"}

// Asked is the value of What for the question after a worker's list of models. Without an answer to it, it is not known what the worker
// serves.
const Asked = "/v1/models"

// What of settings that only some engines tell.
const (
	Events        = "events"
	PrefixCaching = "prefix caching"
	Cache         = "cache size"
)

// NotAsked returns the finding that a worker could not be asked what it serves; nil: it could, or has not been yet.
func (r *Result) NotAsked() *Finding {
	for i := range r.Findings {
		if f := &r.Findings[i]; f.What == Asked && (f.Verdict == Absent || f.Verdict == Unreachable) {
			return f
		}
	}
	return nil
}

// Difference is where two token lists diverge.
type Difference struct {
	Position  int   `json:"position"` // of the first token that differs
	Ours      int64 `json:"ours"`     // its id; -1: the list has ended
	Theirs    int64 `json:"theirs"`
	OurLen    int   `json:"our_length"`
	TheirsLen int   `json:"their_length"`
	// The texts of the two tokens; "": the list has ended.
	OurText   string `json:"our_text,omitempty"`
	TheirText string `json:"their_text,omitempty"`
}

// Result is what is known about one worker.
type Result struct {
	Worker   string    `json:"worker"`
	Model    string    `json:"model"`
	Engine   string    `json:"-"` // as configured
	At       time.Time `json:"at"`
	Verdict  Verdict   `json:"verdict"` // the worst finding's
	Findings []Finding `json:"findings"`
	Release  string    `json:"release,omitempty"` // its engine's, as it told last; "": it has not
}

// Options configure a Prober.
type Options struct {
	Workers []Worker              // initial workers; Set changes them
	Budget  time.Duration         // for one worker's whole probe; 0: 20 s
	Retry   time.Duration         // first wait for a worker that did not answer; it grows to 64 times that; 0: 5 s
	As      *secure.Client        // TLS settings and key for workers, or nil
	Log     *zap.Logger           // nil: silent
	Metrics prometheus.Registerer // nil: none
	// Probed, if set, is told of each worker that answered whether it is other than configured: another engine, release or model, or one
	// that reads prompts otherwise.
	Probed func(worker string, other bool)
}

// Prober probes workers. It is safe for concurrent use.
type Prober struct {
	opt    Options
	client *http.Client
	again  retry.Bell
	joined retry.Bell
	total  *prometheus.CounterVec
	mu     sync.Mutex
	known  []*probedWorker
}

// probedWorker is a worker and its result; a zero At: not probed yet.
type probedWorker struct {
	Worker
	result Result
	stale  bool // it is to be probed again: see Ask
}

// open reports whether it is to be probed again.
func (w *probedWorker) open() bool { return w.stale || w.result.open() }

// New returns a Prober; Run starts it.
func New(opt Options) *Prober {
	if opt.Budget <= 0 {
		opt.Budget = 20 * time.Second
	}
	if opt.Retry <= 0 {
		opt.Retry = 5 * time.Second
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	p := &Prober{opt: opt, client: rules.NewClient(requestTimeout, opt.As), again: make(retry.Bell, 1), joined: make(retry.Bell, 1),
		total: meter.At(opt.Metrics).Counters("probe_total",
			"Comparisons of workers' tokens and settings with ours.", "worker", "verdict")}
	p.Set(opt.Workers)
	return p
}

// Set changes the workers. New ones are probed soon, the others keep their results. A nil Prober does nothing.
func (p *Prober) Set(workers []Worker) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.known
	p.known = nil
	for _, w := range workers {
		i := slices.IndexFunc(old, func(s *probedWorker) bool { return s.Name == w.Name && s.Addr == w.Addr && s.Ours == w.Ours })
		if i >= 0 {
			p.known = append(p.known, old[i])
			old = slices.Delete(old, i, i+1)
			continue
		}
		none := Result{Worker: w.Name, Model: w.Model, Verdict: Unreachable, Findings: []Finding{}}
		p.known = append(p.known, &probedWorker{Worker: w, result: none})
		p.joined.Ring()
	}
	for _, gone := range old {
		p.total.DeletePartialMatch(prometheus.Labels{"worker": gone.Name})
	}
}

// Run probes all workers, then retries those that did not answer, with back-off, and all once more after each Again. It returns
// when ctx ends.
func (p *Prober) Run(ctx context.Context) {
	all, wait := true, p.opt.Retry
	for {
		open := p.round(ctx, all)
		var retry <-chan time.Time
		if open {
			retry = time.After(wait)
			wait = min(2*wait, 64*p.opt.Retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.again:
			all, wait = true, p.opt.Retry
		case <-p.joined:
			all, wait = false, p.opt.Retry
		case <-retry:
			all = false
		}
	}
}

// All probes all workers once.
func (p *Prober) All(ctx context.Context) { p.round(ctx, true) }

// Again requests a probe of all workers. It does not block; several calls before the probe count as one. A nil Prober does
// nothing.
func (p *Prober) Again() {
	if p != nil {
		p.again.Ring()
	}
}

// Ask has a worker probed again: its process may be another one, or its events contradict how its prompts are read. It does not block. A
// nil Prober does nothing.
func (p *Prober) Ask(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	for _, w := range p.known {
		w.stale = w.stale || w.Name == name
	}
	p.mu.Unlock()
	p.joined.Ring()
}

// Results returns what is known about each worker, in their order. A nil Prober knows nothing.
func (p *Prober) Results() (list []Result) {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.known {
		list = append(list, s.result)
	}
	return list
}

// round probes all workers or those without an answer, and reports whether some still have none.
func (p *Prober) round(ctx context.Context, all bool) (open bool) {
	p.mu.Lock()
	asked := slices.Clone(p.known)
	if !all {
		asked = slices.DeleteFunc(asked, func(s *probedWorker) bool { return !s.open() })
	}
	for _, s := range asked {
		s.stale = false // from now on another question is about what comes after this answer
	}
	p.mu.Unlock()
	inspect.Each(asked, func(_ int, s *probedWorker) {
		within, cancel := context.WithTimeout(ctx, p.opt.Budget)
		defer cancel()
		var found []Finding
		release := ""
		if err := guard.Call(func() error { found, release = p.probeWorker(within, &s.Worker); return nil }); err != nil {
			found = []Finding{{What: "the probe itself", Verdict: Unreachable, Detail: err.Error()}}
			p.opt.Log.Error("a worker's answer to a probe could not be read: an internal error", zap.String("worker", s.Name), zap.Error(err))
		}
		p.storeResult(ctx, s, found, release)
	})
	return slices.ContainsFunc(p.Results(), func(r Result) bool { return r.open() })
}

// open reports whether the worker is to be probed again: it did not answer, or is to be mended.
func (r *Result) open() bool {
	return r.Verdict == Unreachable || r.Verdict == Configuration || r.Verdict == Differs || r.NotAsked() != nil
}

// storeResult stores a result, and logs its verdict if that is another than before.
func (p *Prober) storeResult(ctx context.Context, w *probedWorker, found []Finding, release string) {
	if ctx.Err() != nil {
		return // stopping: the failure says nothing about the worker
	}
	r := Result{Worker: w.Name, Model: w.Model, Engine: w.Ours.Model().Server.Engine, At: time.Now(), Verdict: Equal,
		Findings: append([]Finding{}, found...), Release: release}
	for _, f := range found {
		p.total.WithLabelValues(w.Name, string(f.Verdict)).Inc()
		if slices.Index(severity, f.Verdict) > slices.Index(severity, r.Verdict) {
			r.Verdict = f.Verdict
		}
	}
	p.mu.Lock()
	old := w.result
	r.Release = cmp.Or(r.Release, old.Release)
	w.result = r
	p.mu.Unlock()
	if p.opt.Probed != nil && r.Verdict != Unreachable {
		p.opt.Probed(w.Name, slices.ContainsFunc(found, func(f Finding) bool {
			return f.Verdict == Differs || f.Verdict == Configuration && slices.Contains(Identity, f.What)
		}))
	}
	if old.Verdict != r.Verdict {
		p.opt.Log.Info("worker probed", zap.String("worker", w.Name), zap.String("model", w.Model), zap.String("verdict", string(r.Verdict)))
	}
}

// Limits of an exchange with a worker, which may be anything that listens on the configured address.
const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 1 << 20
)

// verdictOf returns the verdict for an error of asking a worker.
func verdictOf(err error) Verdict {
	e, is := errors.AsType[*rules.StatusError](err)
	switch {
	case !is || e.Page && e.Status/100 != 3:
		return Unreachable
	case e.Status/100 == 3:
		return Absent
	}
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return Absent // it does not exist, or not for us
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return Unreachable // retried later
	}
	if e.Status/100 == 4 {
		return Refused
	}
	return Unreachable
}
