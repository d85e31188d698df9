// Package health polls workers for their health and load, each at its own address only.
//
//	health path   ─▶ Worker.RecordCheck: after three failures in a row, or a 503, it gets no requests until the next good answer
//	metrics page  ─▶ Slot.SetReport: other senders' requests, the KV cache's usage; valid for three periods
//	both          ─▶ Options.ProcessRestarted: another process answers at the worker's address (life.go)
//	/v1/models    ─▶ Worker.SetAdapters: the LoRA adapters that it has loaded (adapters.go)
//	its settings  ─▶ Worker.SetServing: the order in which it serves waiting requests
//
// The engine defines the paths, the gauges' names, and how old values may be (rules.Rules). A worker without them is asked once a
// minute, in case another one has taken its place, and is not penalized. Answers are hostile: reading is limited in size and
// time, and an answer is used as a whole or not at all (page.go).
package health

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/repeat"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/internal/sockets"
	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	healthTime    = 5 * time.Second // SGLang answers after one second at the earliest
	loadTime      = 2 * time.Second
	validPeriods  = 3                      // for which a worker's load is valid
	retryPause    = time.Second            // until a worker that failed its health check is asked again
	closeLoad     = 250 * time.Millisecond // least time until the load of a worker with others' requests is read again
	missingPause  = time.Minute            // until a worker without the endpoint is asked again
	askedTogether = 8                      // workers that are asked at the same moment, which wakes us up once
	idleTime      = 10 * time.Second       // without a change after which an idle worker's load is read half as often
	failuresToLog = 3                      // failures in a row after which the missing load is logged
)

// Options configure a Poller: how often workers are asked; 0: never.
type Options struct {
	Health, Load time.Duration
	As           *secure.Client // TLS settings and key for workers, or nil
	Log          *zap.Logger
	Metrics      prometheus.Registerer
	Fleet        *fleet.Fleet // whose workers the metrics are about
	// ProcessRestarted, if set, is called when a worker's process is not the one that ran at the given time. It must not block.
	ProcessRestarted func(w *fleet.Worker, was time.Time)
}

// Poller polls workers. It is safe for concurrent use.
type Poller struct {
	o            Options
	health, load *http.Client // with the same connections
	phase        float64      // of the first workers' beats, at random: other replicas ask at other moments
	watched      atomic.Int64 // workers so far
	failed       *prometheus.CounterVec
	reloaded     *prometheus.CounterVec
	// of the workers' caches of processed media
	mediaQueries, mediaHits *prometheus.CounterVec
	ownLog                  *zap.Logger // logs each message once a minute
}

// New returns a Poller; call Watch for each worker.
func New(o Options) *Poller {
	n := &Poller{o: o, ownLog: repeat.Once(o.Log, time.Minute), load: rules.NewPollingClient(loadTime, o.As), phase: rand.Float64()}
	health := *n.load
	health.Timeout = healthTime
	n.health = &health
	of := meter.At(o.Metrics)
	n.failed = of.Counters("worker_checks_failed_total",
		"Failed health and load queries of workers; own limit: Sightline's own.", "worker", "what", "why")
	n.reloaded = of.Counters("worker_adapters_reloaded_total",
		"LoRA adapters reloaded from another path under the same name.", "worker")
	n.mediaQueries = of.Counters("worker_media_cache_queries_total",
		"Media looked up in a worker's cache of processed ones.", "worker")
	n.mediaHits = of.Counters("worker_media_cache_hits_total", "Media found in a worker's cache of processed ones.", "worker")
	of.ReadAll(n.collect, ageDesc, usageDesc, adaptersDesc, inflightDesc, queuedDesc)
	return n
}

// Forget drops a worker's counters.
func (n *Poller) Forget(worker string) {
	n.failed.DeletePartialMatch(prometheus.Labels{"worker": worker})
	n.reloaded.DeleteLabelValues(worker)
	n.mediaQueries.DeleteLabelValues(worker)
	n.mediaHits.DeleteLabelValues(worker)
}

var (
	ageDesc      = meter.Desc("worker_load_age_seconds", "Age of the reported load that counts.", "worker", "rank")
	adaptersDesc = meter.Desc("worker_adapters", "LoRA adapters that a worker lists.", "worker")
	usageDesc    = meter.Desc("worker_kv_cache_usage",
		"Share of the KV cache in use, as reported.", "worker", "rank")
	inflightDesc = meter.Desc("worker_requests_in_flight",
		"Requests in flight at each worker, others' included.", "worker", "rank")
	queuedDesc = meter.Desc("worker_queued_prefill_seconds",
		"Time to prefill what waits at a worker, at its measured rate.", "model", "worker", "rank")
)

func (n *Poller) collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for _, w := range n.o.Fleet.Workers() {
		if listed := w.Adapters(); len(listed) > 0 {
			meter.Gauge(ch, adaptersDesc, float64(len(listed)), w.Name)
		}
		for _, s := range w.Slots {
			load, rank := s.Load(now), strconv.Itoa(max(s.Rank, 0))
			meter.Gauge(ch, inflightDesc, float64(load.Inflight), w.Name, rank)
			if ours := s.Queued(now); ours == 0 || load.Rate > 0 {
				meter.Gauge(ch, queuedDesc, ours/max(load.Rate, 1), w.Model, w.Name, rank)
			}
			if _, usage, age, ok := s.CurrentReport(now); ok {
				meter.Gauge(ch, ageDesc, age.Seconds(), w.Name, rank)
				if usage >= 0 {
					meter.Gauge(ch, usageDesc, usage, w.Name, rank)
				}
			}
		}
	}
}

// Watch asks a worker for its health and, with load, for its load, until ctx ends. It does not ask while the worker is not in the
// fleet. A nil Poller does nothing.
func (n *Poller) Watch(ctx context.Context, w *fleet.Worker, r rules.Rules, load bool) {
	if n == nil {
		return
	}
	var both sync.WaitGroup
	one, phase := &processState{}, n.nextPhase()
	if n.o.Health > 0 && r.Health != "" {
		c := &healthPoll{Poller: n, worker: w, path: r.Health, life: one}
		both.Go(func() { poll(ctx, w, n.o.Health, phase, c.ask) })
		a := &adapterPoll{Poller: n, worker: w}
		both.Go(func() { poll(ctx, w, adapterPeriod*n.o.Health, phase, a.ask) })
		if r.Order.Ask != nil {
			o := &orderPoll{Poller: n, worker: w, order: r.Order}
			both.Go(func() { poll(ctx, w, adapterPeriod*n.o.Health, phase, o.ask) })
		}
	}
	if n.o.Load > 0 && load && r.Load.Path != "" {
		l := &loadPoll{Poller: n, worker: w, load: r.Load, last: make([]rankReport, len(w.Slots)), life: one}
		both.Go(func() { poll(ctx, w, n.o.Load, phase, l.ask) })
	}
	both.Wait()
}

// nextPhase returns the phase of another worker's beats: eight workers are asked at the same moment, the next eight at another.
func (n *Poller) nextPhase() float64 {
	const golden = 0.618 // spreads any number of groups
	_, phase := math.Modf(n.phase + golden*float64((n.watched.Add(1)-1)/askedTogether))
	return phase
}

// poll calls ask periodically until ctx ends; ask may return another time until the next call. phase is a share of that time.
func poll(ctx context.Context, w *fleet.Worker, every time.Duration, phase float64, ask func(context.Context) time.Duration) {
	for wait := rand.N(min(every, retryPause)); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = every
		if w.Present() {
			if other := ask(ctx); other > 0 {
				wait = other
			}
		}
		wait = retry.UntilBeat(time.Now(), wait, time.Duration(phase*float64(wait)))
	}
}

// healthPoll are the health checks of one worker.
type healthPoll struct {
	*Poller
	worker     *fleet.Worker
	path       string
	noEndpoint bool // it has no health endpoint; logged already
	life       *processState
}

func (c *healthPoll) ask(ctx context.Context) (next time.Duration) {
	w, asked := c.worker, time.Now()
	status, err := get(ctx, c.health, "http://"+w.Addr+c.path, nil)
	failed, said := rules.Fault(""), c.noEndpoint
	if sockets.Exhausted(err) { // it says nothing about the worker
		c.failed.WithLabelValues(w.Name, "health", ownLimit).Inc()
		c.exhausted(w, err)
		return min(retryPause, c.o.Health)
	}
	switch c.noEndpoint = false; {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		failed = faultOf(ctx, w.Addr, err)
	case status >= 500 && status != http.StatusNotImplemented:
		failed = rules.Fault(strconv.Itoa(status))
	case status < 200 || status > 299: // it answers, but has no health endpoint for us
		if !said {
			c.o.Log.Info("worker has no health endpoint; only requests show its health",
				zap.String("worker", w.Name), zap.String("path", c.path), zap.Int("status", status), hint(ctx, w.Addr, status))
		}
		c.noEndpoint, next = true, missingPause
	}
	if err == nil || failed == rules.Refused {
		c.processRestarted(w, c.life.answered(failed == rules.Refused, asked))
	}
	if failed != "" {
		c.failed.WithLabelValues(w.Name, "health", string(failed)).Inc()
		next = min(retryPause, c.o.Health)
	}
	changed := w.RecordCheck(failed, status == http.StatusServiceUnavailable, time.Now())
	switch at := []zap.Field{zap.String("worker", w.Name), zap.String("addr", w.Addr), zap.String("path", c.path)}; {
	case changed && failed != "":
		c.o.Log.Warn("worker failed its health checks and gets no requests",
			append(at, zap.String("why", string(failed)), zap.Int("status", status))...)
	case changed:
		c.o.Log.Info("worker is healthy again", at...)
	}
	return next
}

// loadPoll are the load queries of one worker.
type loadPoll struct {
	*Poller
	worker      *fleet.Worker
	load        rules.Load
	last        []rankReport // by slot
	failures    int          // in a row
	reportsNone bool
	life        *processState
	// the last page's counters
	mediaQueried, mediaFound float64
}

// rankReport is what a rank reported, and since when it is unchanged.
type rankReport struct {
	gauges
	since time.Time
}

func (l *loadPoll) ask(ctx context.Context) (next time.Duration) {
	w := l.worker
	var page loadPage
	asked := time.Now()
	status, err := get(ctx, l.Poller.load, "http://"+w.Addr+l.load.Path, func(body io.Reader) (err error) {
		page, err = parsePage(&l.load, body)
		return err
	})
	failed := rules.Fault("")
	if err == nil && l.worker.Slots[0].Rank >= 0 {
		page.ranks, err = ownRanks(page.ranks, len(l.worker.Slots))
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case sockets.Exhausted(err):
		l.failed.WithLabelValues(w.Name, "load", ownLimit).Inc()
		l.exhausted(w, err)
		return 0
	case err != nil:
		failed = faultOf(ctx, w.Addr, err)
	case status >= 500 && status != http.StatusNotImplemented || status == http.StatusTooManyRequests:
		failed = rules.Fault(strconv.Itoa(status))
	case status != http.StatusOK || len(page.ranks) == 0:
		if !l.reportsNone {
			l.o.Log.Info("worker does not report its load; other senders' requests are unknown",
				zap.String("worker", w.Name), zap.String("path", l.load.Path), zap.Int("status", status), hint(ctx, w.Addr, status))
		}
		l.reportsNone, next = true, missingPause
	}
	if failed != "" { // its last report stays until it expires
		l.failed.WithLabelValues(w.Name, "load", string(failed)).Inc()
		l.failures++
		if l.failures == failuresToLog {
			l.o.Log.Warn("worker's load cannot be read; only our own requests count",
				zap.String("worker", w.Name), zap.String("path", l.load.Path), zap.String("why", string(failed)))
		}
		return 0
	}
	if l.failures >= failuresToLog {
		l.o.Log.Info("worker's load is read again", zap.String("worker", w.Name))
	}
	l.failures, l.reportsNone = 0, next > 0
	l.processRestarted(w, l.life.startReported(page.startTime, asked))
	w.SetLoadedAdapters(page.usedAdapters, page.adapterCapacity)
	l.applyLoad(page.ranks, asked, time.Now())
	l.countMedia(page.mediaQueries, page.mediaHits)
	return cmp.Or(next, l.sooner(time.Now()), l.later(time.Now()))
}

// sooner returns when to ask a worker again that has others' requests; 0: after Options.Load. Routers that tell each other nothing see
// each other there alone: at a quarter of a second instead of one, requests of sixteen such routers wait 15 % less, of four 3 %. A page
// costs a vLLM some 3 ms, so a hundredth of a core for each router. One router reads a thousand pages a second at most.
func (l *loadPoll) sooner(now time.Time) time.Duration {
	if !slices.ContainsFunc(l.worker.Slots, func(s *fleet.Slot) bool { return s.Load(now).OtherSenders > 0 }) {
		return 0
	}
	return min(l.o.Load, max(l.o.Load/4, closeLoad, time.Duration(len(l.o.Fleet.Workers()))*time.Millisecond))
}

// later returns when to ask a worker again that has had no request for idleTime; 0: after Options.Load. Queries, at 0.4 ms of CPU time
// each, are most of an idle Sightline's work. The last report stays valid.
func (l *loadPoll) later(now time.Time) time.Duration {
	if slices.ContainsFunc(l.last, func(r rankReport) bool { return r.running+r.waiting > 0 || now.Sub(r.since) < idleTime }) {
		return 0
	}
	return 2 * l.o.Load
}

// countMedia counts what was added to a worker's counters since the last page. Smaller ones are a new process's.
func (l *loadPoll) countMedia(queries, hits float64) {
	if queries < l.mediaQueried {
		l.mediaQueried, l.mediaFound = 0, 0
	}
	if queries > l.mediaQueried {
		l.mediaQueries.WithLabelValues(l.worker.Name).Add(queries - l.mediaQueried)
		l.mediaHits.WithLabelValues(l.worker.Name).Add(max(0, hits-l.mediaFound))
	}
	l.mediaQueried, l.mediaFound = queries, hits
}

// applyLoad gives each slot its rank's report, or the sum of all ranks to the slot of a worker without ranks.
func (l *loadPoll) applyLoad(page map[int]gauges, asked, now time.Time) {
	for i, s := range l.worker.Slots {
		g, ok := page[s.Rank]
		if s.Rank < 0 {
			g, ok = sumRanks(page), len(page) > 0
		}
		if last := &l.last[i]; g != last.gauges {
			*last = rankReport{g, now}
		} else if l.load.KeepsLastValue && g.running+g.waiting > 0 && now.Sub(last.since) > l.load.MaxAge {
			ok = false
		}
		t := fleet.LoadReport{Cache: g.cache} // which does not change: the rest may be out of date
		if ok {
			t = fleet.LoadReport{Running: g.running, Waiting: g.waiting, Usage: g.usage, Cache: g.cache, MaxAge: l.load.MaxAge + now.Sub(asked),
				ValidFor: validPeriods * max(l.o.Load, retryPause)}
		}
		s.SetReport(t, now)
	}
}

// get requests a page. body, if set, reads an answer with status 200.
func get(ctx context.Context, client *http.Client, url string, body func(io.Reader) error) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode > 599 { // not a status, so it must not become a label
		return 0, rules.Unreadable
	}
	if resp.StatusCode >= 500 && rules.IsPage(resp.Header) {
		return resp.StatusCode, rules.Page
	}
	if body != nil && resp.StatusCode == http.StatusOK {
		err = guard.Call(func() error { return body(resp.Body) })
	}
	return resp.StatusCode, err
}

// hint says what to do about an answer other than 200, where that is known.
func hint(ctx context.Context, addr string, status int) zap.Field {
	switch {
	case rules.WantsKey(status):
		return zap.String("hint", rules.KeyHint)
	case status == http.StatusBadRequest && rules.SpeaksTLS(ctx, addr, nil):
		return zap.String("hint", rules.TLS.Error())
	}
	return zap.Skip()
}

// ownLimit means that this process could not open a connection.
const ownLimit = "own limit"

// exhausted logs once a minute that workers cannot be asked.
func (n *Poller) exhausted(w *fleet.Worker, err error) {
	n.ownLog.Error("workers cannot be asked for health and load, and what is known of them stays: "+sockets.RaiseLimit,
		zap.String("worker", w.Name), zap.Error(err))
}

// faultOf returns what kind of failure an error is, if need be by asking what the server speaks.
func faultOf(ctx context.Context, addr string, err error) rules.Fault {
	fault := rules.FaultOf(err)
	if fault != rules.Broken {
		return fault
	}
	if other := rules.Instead(ctx, addr, err); other != nil {
		fault = rules.FaultOf(other)
	}
	return fault
}

// orderPoll asks one worker in which order it serves waiting requests: at each beat until it has answered, then once a minute. If it
// fails to answer, its last answer stays until its process is another one.
type orderPoll struct {
	*Poller
	worker *fleet.Worker
	order  rules.Order
	next   time.Time // when it is asked again; before that, only once it is another process
}

func (l *orderPoll) ask(ctx context.Context) time.Duration {
	if now := time.Now(); l.worker.Serving() != rules.Unsaid && now.Before(l.next) {
		return 0
	}
	serves, err := l.order.Ask(ctx, l.health, l.worker.Addr)
	if status, is := errors.AsType[*rules.StatusError](err); is && status.Status < http.StatusInternalServerError {
		l.worker.SetServing(rules.Unsaid)
		return missingPause
	}
	if err != nil {
		return 0
	}
	l.next = time.Now().Add(missingPause)
	if was := l.worker.Serving(); was != serves {
		l.worker.SetServing(serves)
		l.o.Log.Info("a worker says in which order it serves waiting requests", zap.String("worker", l.worker.Name),
			zap.Stringer("order", serves))
	}
	return 0
}
