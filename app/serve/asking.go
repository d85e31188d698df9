package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/inspect"
)

// Fit turns workers' answers into models, and into a configuration of each worker; it is generate.Fit. An error is about a worker that
// was left out.
type Fit func([]rules.Facts) ([]config.Model, []config.Worker, error)

// Asking says whose workers are asked, and what comes of it.
type Asking struct {
	finder // where they are
	Fit    Fit
	// Usable says about a server that was asked whether it is a worker that can be used, and what the operator should know of it; err is
	// why it did not answer. It may complete the facts.
	Usable func(e discover.Endpoint, f *rules.Facts, err error) (says error, ok bool)
	Say    func(worker string, err error) // tells the operator; worker is "" if it is about several
	Again  time.Duration                  // until a worker that has not answered is asked again
	Every  time.Duration                  // until any other: adapters may be loaded, or its process started anew with other arguments
	// Given: the workers are given by address, instead of a configuration. One must answer before there is a report, and if none can ever
	// be used the server ends. One without KV events is asked again soon: its operator is told how to switch them on.
	Given bool
}

const (
	askEvery   = 30 * time.Second
	asksAtOnce = 16
)

// NewGiven returns an Asking of workers at these addresses; Fit, Usable and Say are to be set.
func NewGiven(workers []netip.AddrPort) *Asking {
	list := make(fixed, len(workers))
	for i, at := range workers {
		list[i] = discover.Endpoint{Name: at.String(), Addr: at, Ready: true}
	}
	return &Asking{finder: list, Again: 5 * time.Second, Every: askEvery, Given: true}
}

// fixed is a finder whose endpoints do not change.
type fixed []discover.Endpoint

// Follow implements finder.
func (f fixed) Follow(_ context.Context, found func([]discover.Endpoint)) { found(f) }

// ofPool returns an Asking of a pool's workers. What a pod says of itself completes its server's answer, or stands for it.
func ofPool(pool *discover.Pool, fit Fit) *Asking {
	return &Asking{finder: pool, Fit: fit, Again: time.Second, Every: askEvery,
		Say: func(worker string, err error) {
			pool.Log.Warn("not every worker of the pool can be used", zap.String("pool", pool.Name), zap.String("worker", worker), zap.Error(err))
		},
		Usable: func(e discover.Endpoint, f *rules.Facts, err error) (says error, ok bool) {
			if err == nil {
				err = inspect.Usable(f, true)
			}
			label := engine.ByLabel(e.Pod.Engine)
			const unsaid = "it does not say what it serves: "
			switch {
			case err != nil && e.Pod.Model != "":
				*f = rules.Facts{Addr: e.Addr.String(), Served: []rules.Served{{ID: e.Pod.Model}}}
				says = fmt.Errorf("%s%w; its pod's annotations are believed", unsaid, err)
			case err != nil:
				return fmt.Errorf("it gets no requests: %s%w (want an answer of GET /v1/models, with "+
					"worker_access if it needs a key, or the annotation sightline/model at its pod)", unsaid, err), false
			case f.Engine == "" && label == "":
				says = fmt.Errorf("its engine is not known: %s (want the label llm-d.ai/engine-type at its pod). It is chosen by load",
					f.Unknown[len(f.Unknown)-1].Why)
			}
			f.Engine = cmp.Or(f.Engine, label)
			return says, true
		}}
}

// askingFinder asks each worker that another finder finds what it serves, how it was started and where it publishes, and asks again. The
// models are served before their workers are reported.
//
//	a pool's pods, or given addresses ─▶ endpoints ─ asked, or told by annotations ─▶ facts ─ Fit ─▶ models, and a worker's keys for each
//
// A worker that stops answering stays as it was: its health is seen to elsewhere.
type askingFinder struct {
	*Asking
	log    *zap.Logger
	client *http.Client
	serve  func(context.Context, []config.Model) (renamed map[string]string, err error)
	end    func(error) // the server cannot go on

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
	lost  error // why it can never be used
}

type answered struct {
	discover.Endpoint
	facts rules.Facts
	err   error
}

// connect makes a finder ready for Follow. serve has models served, and returns which of them have another name in the configuration's
// file, whose own keys they then have. end is called if none of the given workers can be used.
func (p *askingFinder) connect(as *secure.Client, serve func(context.Context, []config.Model) (map[string]string, error), end func(error)) {
	p.client, p.serve, p.end = rules.NewClient(askTime, as), serve, end
	p.answers, p.known = make(chan answered), map[discover.Endpoint]*asked{}
}

// Follow implements finder.
func (p *askingFinder) Follow(ctx context.Context, found func([]discover.Endpoint)) {
	sets := make(chan []discover.Endpoint)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		p.finder.Follow(ctx, func(now []discover.Endpoint) {
			select {
			case sets <- now:
			case <-ctx.Done():
			}
		})
	})
	tick := time.NewTicker(min(p.Again, time.Second) / 4)
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
func (p *askingFinder) set(now []discover.Endpoint) {
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
func (p *askingFinder) of(e discover.Endpoint) *asked {
	e.Ready = false
	return p.known[e]
}

// ask asks those ready endpoints whose time has come.
func (p *askingFinder) ask(ctx context.Context, running *sync.WaitGroup) {
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
			r.facts, r.err = inspect.Ask(ctx, p.client, e.Addr.String())
			select {
			case p.answers <- r:
			case <-ctx.Done():
			}
		})
	}
}

// answer takes an endpoint's answer, and reports whether it says anything new.
func (p *askingFinder) answer(r answered) (fresh bool) {
	p.asking--
	a := p.of(r.Endpoint)
	if a == nil { // it is gone
		return false
	}
	fresh = !a.tried
	soon := time.Now().Add(p.Again)
	a.under, a.tried, a.next = false, true, time.Now().Add(p.Every)
	if r.err != nil && a.ok { // what it said before counts
		a.next = soon
		return fresh
	}
	says, ok := p.Usable(r.Endpoint, &r.facts, r.err)
	p.tell(&a.said, r.Name, says)
	if r.err != nil || !ok || p.Given && !inspect.HasEvents(&r.facts) {
		a.next = soon
	}
	a.lost = nil
	if _, lost := errors.AsType[*inspect.UnusableError](says); lost {
		a.lost = says
	}
	if !ok || a.ok && !a.facts.Differs(&r.facts) {
		return fresh
	}
	r.facts.Changed = a.ok
	a.facts, a.ok = r.facts, true
	return true
}

// tell tells what is wrong, once.
func (p *askingFinder) tell(said *string, worker string, err error) {
	if err != nil && err.Error() != *said {
		*said = err.Error()
		p.Say(worker, err)
	}
}

// complete reports whether all ready endpoints have been asked once, so that the first report has all of them.
func (p *askingFinder) complete() bool {
	if p.fitted != nil {
		return true
	}
	answered, lost := 0, []error{}
	for _, e := range p.endpoints {
		switch a := p.of(e); {
		case e.Ready && !a.tried:
			return false
		case a.ok:
			answered++
		case a.lost != nil:
			lost = append(lost, a.lost)
		}
	}
	if p.Given && len(lost) == len(p.endpoints) {
		p.end(errors.Join(lost...))
	}
	return !p.Given || answered > 0
}

// report has new models served, and reports the endpoints of which it is known what they are; false: it must be tried again.
func (p *askingFinder) report(ctx context.Context, found func([]discover.Endpoint)) bool {
	facts := []rules.Facts{}
	for _, e := range p.endpoints {
		if a := p.of(e); a.ok {
			facts = append(facts, a.facts)
		}
	}
	if p.fitted == nil || !reflect.DeepEqual(facts, p.fitted) {
		models, workers, wrong := p.Fit(facts)
		if len(workers) > 0 || wrong == nil || p.fitted == nil { // else what was known before counts
			models = withoutWorkers(models, p.models)
			renamed, err := p.serve(ctx, models)
			if err != nil {
				p.tell(&p.said, "", fmt.Errorf("the models of the workers cannot be served: %w", err))
				return false
			}
			p.models = models
			p.keep(workers, renamed)
		}
		p.fitted = facts
		p.tell(&p.said, "", wrong)
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

func (p *askingFinder) keep(workers []config.Worker, renamed map[string]string) {
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
func (p *askingFinder) worker(e discover.Endpoint) (w config.Worker, known bool) {
	p.mu.Lock()
	w, known = p.workers[e.Addr.String()]
	p.mu.Unlock()
	w.Addr, w.Name = "", ""
	host := e.Addr.Addr().String()
	w.Events.Host = host
	if e.Pod.Events == "" {
		return w, known
	}
	at := func(endpoint string) string {
		if endpoint == "" {
			return ""
		}
		addr, err := zmq.Address(strings.ReplaceAll(endpoint, "{ip}", host), host, e.Pod.Port)
		if err == nil {
			err = zmq.CheckClaimed(addr, host)
		}
		if err != nil {
			p.log.Warn("an annotation of a pod names no event socket (want one such as tcp://{ip}:5557)",
				zap.String("worker", e.Name), zap.Error(err))
			return ""
		}
		return addr
	}
	if zmqAt := at(e.Pod.Events); zmqAt != "" {
		w.Events = config.Events{ZMQ: zmqAt, Replay: at(e.Pod.Replay), Host: host}
	}
	return w, known
}
