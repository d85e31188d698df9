package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/inspect"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/router/discover"
)

// Fit turns workers' answers into models, and into a configuration of each worker; it is generate.Fit. An error is about a worker that
// was left out.
type Fit func([]rules.Facts) ([]config.Model, []config.Worker, error)

const (
	askAgain   = time.Second      // after a worker has not answered
	askEvery   = 30 * time.Second // for adapters that were loaded, and a process that was started anew with other arguments
	asksAtOnce = 16
)

// poolFinder finds the workers of an InferencePool and asks each what it serves, how it was started and where it publishes. The models
// are served before their workers are reported.
//
//	the pool's pods ─▶ endpoints ─ asked, or told by annotations ─▶ facts ─ Fit ─▶ models, and a worker's keys for each endpoint
type poolFinder struct {
	discover.Pool
	fit    Fit
	client *http.Client
	serve  func(context.Context, []config.Model) (renamed map[string]string, err error)

	answers chan answered
	asking  int

	endpoints []discover.Endpoint
	known     map[discover.Endpoint]*asked
	fitted    []rules.Facts
	models    []config.Model // that are served; one without workers stays, because they may come back
	said      string

	mu      sync.Mutex
	workers map[string]config.Worker // by address
}

// asked is an endpoint's state.
type asked struct {
	facts rules.Facts
	ok    bool // facts are there
	tried bool
	under bool // it is being asked
	next  time.Time
	said  string
}

type answered struct {
	discover.Endpoint
	facts rules.Facts
	err   error
}

// connect makes a finder ready for Follow. serve has models served, and returns which of them have another name in the configuration's
// file, whose own keys they then have.
func (p *poolFinder) connect(fit Fit, as *secure.Client, serve func(context.Context, []config.Model) (map[string]string, error)) {
	p.fit, p.client, p.serve = fit, rules.NewClient(askTime, as), serve
	p.answers, p.known = make(chan answered), map[discover.Endpoint]*asked{}
}

// Follow implements finder.
func (p *poolFinder) Follow(ctx context.Context, found func([]discover.Endpoint)) {
	sets := make(chan []discover.Endpoint)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		p.Pool.Follow(ctx, func(now []discover.Endpoint) {
			select {
			case sets <- now:
			case <-ctx.Done():
			}
		})
	})
	tick := time.NewTicker(askAgain / 4)
	defer tick.Stop()
	due := false // something has changed since the last report
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-sets:
			due = true
			p.set(now)
		case a := <-p.answers:
			due = p.answer(a) || due
		case <-tick.C:
		}
		p.ask(ctx, &running)
		if due && p.complete() {
			due = !p.report(ctx, found)
		}
	}
}

// set replaces the endpoints. One that is still there is not asked anew.
func (p *poolFinder) set(now []discover.Endpoint) {
	known := make(map[discover.Endpoint]*asked, len(now))
	for _, e := range now {
		key := e
		key.Ready = false
		known[key] = p.known[key]
		if known[key] == nil {
			known[key] = &asked{}
		}
	}
	p.endpoints, p.known = now, known
}

// of returns the state of an endpoint, whether it is ready or not.
func (p *poolFinder) of(e discover.Endpoint) *asked {
	e.Ready = false
	return p.known[e]
}

// ask asks those ready endpoints whose time has come.
func (p *poolFinder) ask(ctx context.Context, running *sync.WaitGroup) {
	now := time.Now()
	for _, e := range p.endpoints {
		a := p.of(e)
		if !e.Ready || a.under || now.Before(a.next) || p.asking == asksAtOnce {
			continue
		}
		a.under = true
		p.asking++
		running.Go(func() {
			r := answered{Endpoint: e}
			r.err = guard.Call(func() (err error) {
				r.facts, err = inspect.Ask(ctx, p.client, e.Addr.String())
				return err
			})
			select {
			case p.answers <- r:
			case <-ctx.Done():
			}
		})
	}
}

// answer takes an endpoint's answer, and reports whether it says anything new. What its pod says of itself completes it, or stands for it
// if there is none.
func (p *poolFinder) answer(r answered) (fresh bool) {
	p.asking--
	a := p.of(r.Endpoint)
	if a == nil { // it is gone
		return false
	}
	fresh = !a.tried
	a.under, a.tried, a.next = false, true, time.Now().Add(askEvery)
	if r.err != nil && a.ok { // what it said before counts; its health is seen to elsewhere
		a.next = time.Now().Add(askAgain)
		return fresh
	}
	label := engine.ByLabel(r.Pod.Engine)
	if r.err == nil && r.facts.FrontEnd {
		r.err = errors.New("it is a front end of NVIDIA Dynamo, whose workers are behind it (want the section dynamo of a configuration)")
	}
	if r.err == nil && r.facts.Engine == "" && label == "" {
		a.tell(p.Log, r.Endpoint, fmt.Errorf("its engine is not known: %s (want the label llm-d.ai/engine-type at its pod). "+
			"It is chosen by load", r.facts.Unknown[len(r.facts.Unknown)-1].Why))
	}
	if r.err != nil && r.Pod.Model != "" {
		a.tell(p.Log, r.Endpoint, fmt.Errorf("it does not say what it serves: %w; its pod's annotations are believed", r.err))
		r.err, r.facts = nil, rules.Facts{Addr: r.Addr.String(), Served: []rules.Served{{ID: r.Pod.Model}}}
		a.next = time.Now().Add(askAgain)
	}
	if r.err == nil && len(r.facts.Served) == 0 {
		r.err = errors.New("it serves no model that can be named")
	}
	if r.err != nil {
		a.next = time.Now().Add(askAgain)
		a.tell(p.Log, r.Endpoint, fmt.Errorf("it gets no requests, because it does not say what it serves: %w (want an answer of "+
			"GET /v1/models, with worker_access if it needs a key, or the annotation sightline/model at its pod)", r.err))
		return fresh
	}
	if r.facts.Engine == "" {
		r.facts.Engine = label
	}
	if a.ok && !a.facts.Differs(&r.facts) {
		return fresh
	}
	a.facts, a.ok = r.facts, true
	return true
}

// tell logs what is wrong with an endpoint, once.
func (a *asked) tell(log *zap.Logger, e discover.Endpoint, err error) {
	if a.said != err.Error() {
		a.said = err.Error()
		log.Warn("a worker of the pool", zap.String("worker", e.Name), zap.Stringer("addr", e.Addr), zap.Error(err))
	}
}

// complete reports whether all ready endpoints have been asked once, so that the first report has all of them.
func (p *poolFinder) complete() bool {
	return p.fitted != nil || !slices.ContainsFunc(p.endpoints, func(e discover.Endpoint) bool { return e.Ready && !p.of(e).tried })
}

// report has new models served, and reports the endpoints of which it is known what they are; false: it must be tried again.
func (p *poolFinder) report(ctx context.Context, found func([]discover.Endpoint)) bool {
	facts := []rules.Facts{}
	for _, e := range p.endpoints {
		if a := p.of(e); a.ok {
			facts = append(facts, a.facts)
		}
	}
	if p.fitted == nil || !reflect.DeepEqual(facts, p.fitted) {
		models, workers, wrong := p.fit(facts)
		models = withoutWorkers(models, p.models)
		renamed, err := p.serve(ctx, models)
		if err != nil {
			p.tell(fmt.Errorf("the models of the pool's workers cannot be served: %w", err))
			return false
		}
		p.models, p.fitted = models, facts
		p.keep(workers, renamed)
		p.tell(wrong)
	}
	usable := []discover.Endpoint{}
	for _, e := range p.endpoints {
		if _, known := p.worker(e); known {
			usable = append(usable, e)
		}
	}
	found(usable)
	return true
}

func (p *poolFinder) tell(err error) {
	if err != nil && err.Error() != p.said {
		p.said = err.Error()
		p.Log.Warn("not every worker of the pool can be used", zap.String("pool", p.Name), zap.Error(err))
	}
}

// maxPoolModels bounds the models of a pool that have no workers any more.
const maxPoolModels = 64

// withoutWorkers adds those models of before that have no name in common with the present ones.
func withoutWorkers(models, before []config.Model) []config.Model {
	for _, old := range before {
		if len(models) < maxPoolModels && !slices.ContainsFunc(models, func(m config.Model) bool { return sharesName(&m, &old) }) {
			models = append(models, old)
		}
	}
	return models
}

// sharesName reports whether two models have a name in common.
func sharesName(a, b *config.Model) bool {
	names := slices.Concat([]string{a.Name}, a.Aliases, a.Adapters)
	shared := func(n string) bool { return slices.Contains(names, n) }
	return slices.ContainsFunc(slices.Concat([]string{b.Name}, b.Aliases, b.Adapters), shared)
}

func (p *poolFinder) keep(workers []config.Worker, renamed map[string]string) {
	byAddr := make(map[string]config.Worker, len(workers))
	for _, w := range workers {
		if name := renamed[w.Model]; name != "" {
			w.Model, w.Class = name, ""
		}
		byAddr[w.Addr] = w
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = byAddr
}

// worker returns the configuration of the worker at an endpoint. Where its pod says where it publishes, that counts; port n of a pod
// publishes n ports further on.
func (p *poolFinder) worker(e discover.Endpoint) (w config.Worker, known bool) {
	p.mu.Lock()
	w, known = p.workers[e.Addr.String()]
	p.mu.Unlock()
	w.Addr, w.Name = "", ""
	if e.Pod.Events == "" {
		return w, known
	}
	host := e.Addr.Addr().String()
	at := func(endpoint string) string {
		if endpoint == "" {
			return ""
		}
		addr, err := zmq.Address(strings.ReplaceAll(endpoint, "{ip}", host), host, e.Pod.Port)
		if err != nil {
			p.Log.Warn("an annotation of a pod names no event socket (want one such as tcp://{ip}:5557)",
				zap.String("worker", e.Name), zap.Error(err))
		}
		return addr
	}
	if zmqAt := at(e.Pod.Events); zmqAt != "" {
		w.Events = config.Events{ZMQ: zmqAt, Replay: at(e.Pod.Replay), Topic: e.Pod.Topic}
	}
	return w, known
}
