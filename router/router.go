// Package router decides which worker gets a request.
//
//	body ─ engine ─▶ block hashes ─ indexer ─▶ overlap per slot ─ choose ─▶ ranked targets and a reason
//
// A candidate is a slot: a worker or, if the worker has them, one of its data-parallel ranks. A step that fails lowers the
// decision by one reason (exact, predicted, affinity, load); it never fails the request.
//
// To follow a decision, read downwards:
//
//	decide.go          a decision: make a plan, carry it out
//	plan.go            the steps of a plan up to the choice, which it does not carry out
//	filter.go          the workers that may get the request
//	read.go            the prompt as each class of engines reads it
//	choose.go          candidates, the choice, targets (package choose: what a candidate costs)
//	commit.go          how a plan is carried out: steered, unsteered, or not at all (policy.go)
//	booking.go         what is recorded then
//	router/ledger      the life of a booking
//
// What a plan may further take into account:
//
//	admission.go       memory and turns for reading bodies
//	pending.go         waiting for a worker, or for a place
//	fairshare.go       the last places, shared by tenants
//	unsteered.go       conversations that are left to Envoy's own balancing
//	disaggregation.go  workers that only prefill, and those that decode
//	encoderpool.go     workers that only encode
//	adapters.go        LoRA adapters that workers have loaded
//	responseaffinity.go, session.go, dprank.go   requests that name an answer, a session, a rank
//	staleness.go       how far a worker's events can be trusted
//	fronts.go          beginnings that are asked about often
//	sightings.go, router/speculative             images seen and prompts sent, until events confirm them
//	regret.go          cached tokens that the choice gave up
//
// What happens afterwards:
//
//	outcomes.go        Envoy's reports; publish is the one place that says that a request has ended
//	missdetector.go, withheld.go, lonerefusal.go   what answers teach about a worker
//	decisionrecord.go, recent.go, metrics.go, totals.go, unserved.go   what is written, shown and counted
//	replicasync.go     bookings exchanged with other replicas
//	periodic.go        what is done every second
//	dryrun.go, simulate.go   plans that are not carried out, and prompts without bodies
package router

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/repeat"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Model is a model that requests may name.
type Model struct {
	Name     string
	Aliases  []string // other names of the model
	Adapters []string // LoRA adapters: names that requests use instead of the model's
	MaxLoRAs int      // adapters that a worker has loaded at once; 0: 1
	FetchKV  bool     // workers fetch KV blocks from each other if a request names the source
	Unit     int      // tokens that its workers' lower tiers return at once; less than a block: one block
	Prompts  *engine.LiveModel
	Classes  []Class // groups of workers that read or cache the model differently
}

// Options configure a Router.
type Options struct {
	Models      []Model
	Fleet       *fleet.Fleet
	Ledger      *ledger.Ledger // of requests to Fleet; nil: the router makes its own
	Secret      *block.Secret  // of the hashes that replicas share; nil: block.Fixed
	MaxInFlight int            // open requests at which a slot gets no more; 0: no limit
	Hold        time.Duration  // how long a request waits for a worker if none is known; 0: it does not wait and has no target
	Fair        bool           // share the last free places by Request.Tenant and Priority
	AskUsage    bool           // ask for the token usage at the end of streams that do not say whether they want it
	// Rewrite, if set, returns the name that a request for a model gets instead. share returns a number from 0 to below 1 that is the same
	// for all requests of a conversation.
	Rewrite        func(model string, share func() float64) string
	RefuseUnread   bool           // refuse a body that is too large to be read, whatever it holds
	CacheHints     bool           // leave in bodies what clients say about what caches should keep
	UnsteeredShare float64        // share of the conversations that are left to Envoy's own balancing; 1: all, nothing is steered
	Report         *report.Totals // sums up how requests end, by arm; nil: the router makes its own
	Index          *indexer.Index
	LearnedBytes   int              // of what is remembered about requests that no rule reads to their end; 0: nothing is
	Audit          *audit.Auditor   // nil: predictions are not compared with what workers store
	PredictedTTL   time.Duration    // how long a routed prompt counts as held before events confirm it
	Decisions      *decisionlog.Log // nil: none
	Log            *zap.Logger      // nil: silent
	// called when something was evicted or refused for lack of room: "answers", "images seen", …; nil: it is not counted
	NoRoom  func(what string)
	Metrics prometheus.Registerer // nil: none
	Now     func() time.Time      // nil: time.Now
	Seed    uint64                // seed of the tie-break between equal candidates; 0: random
	// Resync, if set, is called when a slot has repeatedly found less than its events promised, so the index's view of it is in
	// doubt. It must not block.
	Resync func(*fleet.Slot)
	// Share, if set, is called with each booking that other replicas are told of. It must not block.
	Share func(*SharedBooking)
	// ShareLearned, if set, is called with what a request taught under the secret's key of that ID. It must not block, nor keep it.
	ShareLearned func(key uint64, l *learned.Lesson)
}

// Router takes decisions. It is safe for concurrent use.
type Router struct {
	state
	live, dry    policies // of Decide, and of Consider
	serving      atomic.Pointer[serving]
	suspects     suspects
	withheld     withheld
	lastServed   *lru.Cache[clientOf, *fleet.Worker] // who gave the last good answer, see lonerefusal.go
	unserved     unserved
	recent       *recent
	choices      atomic.Uint64 // number of choices taken
	admission    sync.Mutex    // see commitSteered
	metrics      *metrics
	waiters      *waiters
	unsampledLog *zap.Logger   // not sampled, for the line of each decision
	lastShared   atomic.Uint64 // number of the last booking that other replicas were told of
	replicas     sync.Mutex    // held while a message of another replica is applied
	unsteered    atomic.Uint64 // bits of Options.UnsteeredShare
	scratch      sync.Pool
}

// state is what a plan is made from. Planning only reads it, but for the effects that stand above plan, and for one more: the first plan
// after the deployment's secret was replaced forgets what was learned under the old one (learning.paths).
type state struct {
	opt          Options
	predicted    *speculative.Index
	sightings    *sightings
	fronts       *fronts
	encodeQueues *encodeQueues
	adapters     *adapters
	answers      *lru.Cache[string, string] // worker by id of an answer, see responseaffinity.go
	seed         maphash.Seed               // for Decision.Begins
	lanes        *lanes
	learning     *learning
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

// New returns a router. Names of models must be distinct (the configuration checks it).
func New(opt Options) *Router {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Ledger == nil {
		opt.Ledger = ledger.New(opt.Fleet, opt.Now)
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	if opt.NoRoom == nil {
		opt.NoRoom = func(string) {}
	}
	lines := opt.Log
	// Each message at most once a minute: faulty requests are counted, and logged only now and then.
	opt.Log = repeat.Once(opt.Log, time.Minute)
	r := &Router{state: state{opt: opt, predicted: speculative.New(opt.PredictedTTL, speculative.Blocks), sightings: newSightings(opt.NoRoom),
		fronts: newFronts(), encodeQueues: newEncodeQueues(opt.NoRoom), adapters: &adapters{sentTo: make(map[*fleet.Slot][]string)},
		seed: maphash.MakeSeed(), lanes: newLanes()},
		recent: newRecent(), waiters: newWaiters(meter.At(opt.Metrics)), unsampledLog: lines}
	r.live, r.dry = newPolicies(r.waiters)
	if r.opt.Report == nil {
		r.opt.Report = report.New("", opt.Now())
	}
	if r.opt.Seed == 0 {
		r.opt.Seed = rand.Uint64()
	}
	r.lastServed, _ = lru.New[clientOf, *fleet.Worker](maxServedClients) // likewise
	r.answers, _ = lru.New[string, string](maxAnswers)                   // fails only for a size below 1
	r.metrics = newMetrics(opt.Metrics, r)
	opt.Ledger.OnExpired(r.expired)
	r.learning = newLearning(&r.opt, r.metrics.learned)
	r.scratch.New = func() any { return new(scratch) }
	r.SetUnsteered(opt.UnsteeredShare)
	r.Serve(opt.Models, opt.MaxInFlight, opt.PredictedTTL)
	return r
}

// SetUnsteered changes Options.UnsteeredShare, for decisions that begin from now on.
func (r *Router) SetUnsteered(share float64) { r.unsteered.Store(math.Float64bits(share)) }

func (r *Router) unsteeredShare() float64 { return math.Float64frombits(r.unsteered.Load()) }

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
	r.serving.Store(now)
}
