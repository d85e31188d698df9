// Package router decides which worker gets a request. A decision is three values, each made from the one before (plan.go):
//
//	reading    what each kind of engine makes of the request; no worker is known
//	overlap    what each slot has of the prompt; no load is known
//	Choice     candidates with their costs, ranked (package choose); no effects
//
// A slot is a worker or, if the worker has them, one of its data-parallel ranks. A step that fails lowers the decision by one reason
// (exact, learned, predicted, affinity, load); it never fails the request. To follow a decision, read downwards:
//
//	decide.go          a decision: make a plan, carry it out, in one of three ways
//	plan.go            the values of a plan, and its steps up to the choice, which it does not carry out
//	reading.go         the request, cleaned, and its prompt as each kind of engine reads it (models.go: the models and their classes)
//	shortlist.go       the slots that may get it: a list of screens; pending.go: waiting; fairshare.go: the last places
//	overlap.go         what the slots have of the prompt; lookup.go: its blocks; recall.go: blocks that events taught
//	router/choose      a list of steps, costs, the ranking
//	answer.go          targets, edits and reasons; regret.go: cached tokens that the choice gave up
//	order.go           when the request is due, for engines that serve by that
//	commit.go          how a plan is carried out: steered, unsteered (unsteered.go), or not at all (dryrun.go)
//	booking.go         what is recorded then; router/ledger: the life of a booking
//
// What is known of prompts at workers, besides the index:
//
//	staleness.go       how far a worker's events can be trusted
//	fronts.go          beginnings that are asked about often
//	sightings.go, router/speculative             images seen and prompts sent, until events confirm them
//
// What happens afterwards:
//
//	outcomes.go        Envoy's reports; publish is the one place that says that a request has ended
//	accounting.go, router/account                why tokens of a prompt were not cached
//	comparing.go, router/changes                 where prompts depart from earlier ones (parts.go: their parts)
//	missdetector.go    what answers teach about a worker
//	decisionrecord.go, recent.go, metrics.go     what is written, shown and counted
//	forecasting.go, router/forecast              what other caches would bring
//	replicasync.go, learnedsync.go               what replicas tell each other
//	readinglanes.go    memory and turns for reading bodies
//	simulate.go        prompts without bodies
package router

import (
	"cmp"
	"context"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/repeat"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/changes"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

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
	live, dry    ways // of Decide, and of Consider
	booker       booker
	follower     follower
	replicas     *Replicas
	forecasting  forecasting
	unserved     unserved
	recent       *recent
	choices      atomic.Uint64 // number of choices taken
	admission    sync.Mutex    // see commitSteered
	metrics      *metrics
	waiters      *waiters
	unsampledLog *zap.Logger   // not sampled, for the line of each decision
	unsteered    atomic.Uint64 // bits of Options.UnsteeredShare
	scratch      sync.Pool
}

// state is what a plan is made from. Planning only reads it, but for the effects that stand above plan.
type state struct {
	opt Options
	memory
	serving      atomic.Pointer[serving]
	encodeQueues *choose.EncodeQueues
	adapters     *choose.Adapters
	answers      *lru.Cache[string, string] // worker by id of an answer, see followAnswer
	beginSeed    maphash.Seed               // for Decision.Begins
	past         *account.Past
	changes      *changes.Memory
	comparisons  comparisons
	lanes        *lanes
	listed       func(adapter string) (model, name string) // readInput.listed, made once
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
	known := memory{predicted: speculative.New(opt.PredictedTTL, speculative.Blocks), sightings: newSightings(opt.NoRoom), fronts: newFronts()}
	r := &Router{state: state{opt: opt, memory: known, encodeQueues: choose.NewEncodeQueues(opt.NoRoom), adapters: choose.NewAdapters(),
		beginSeed: maphash.MakeSeed(), past: account.NewPast(account.Blocks, opt.Now()), changes: changes.NewMemory(),
		lanes: newLanes(), listed: opt.Fleet.ModelOf},
		recent: newRecent(), waiters: newWaiters(meter.At(opt.Metrics)), unsampledLog: lines}
	r.live, r.dry = newWays(r.waiters)
	r.replicas = &Replicas{state: &r.state, forecasting: &r.forecasting}
	r.forecasting.state = &r.state
	r.booker = booker{state: &r.state, replicas: r.replicas, forecasting: &r.forecasting}
	r.follower.booker, r.follower.recent = &r.booker, r.recent
	if r.opt.Report == nil {
		r.opt.Report = report.New("", opt.Now())
	}
	r.opt.Seed = cmp.Or(r.opt.Seed, rand.Uint64())
	r.answers, _ = lru.New[string, string](maxAnswers) // fails only for a size below 1, as the next one
	r.follower.lastServed, _ = lru.New[clientOf, *fleet.Worker](maxServedClients)
	r.metrics = newMetrics(opt.Metrics, r)
	r.follower.metrics = r.metrics
	opt.Ledger.OnExpired(r.follower.expired)
	opt.Index.OnLost(r.noteLost)
	r.learning = newLearning(&r.opt, r.metrics.learned)
	r.scratch.New = func() any { return new(scratch) }
	r.SetUnsteered(opt.UnsteeredShare)
	r.Serve(opt.Models, opt.MaxInFlight, opt.PredictedTTL)
	return r
}

// SetUnsteered changes Options.UnsteeredShare, for decisions that begin from now on.
func (r *Router) SetUnsteered(share float64) { r.unsteered.Store(math.Float64bits(share)) }

// Run performs the periodic work until ctx ends: it expires bookings that never ended, frees places that no worker uses, and judges
// which workers are slow.
func (r *Router) Run(ctx context.Context) {
	if r.learning != nil {
		go r.learning.learner.Run(ctx)
	}
	go r.forecasting.run(ctx)
	for range retry.Every(ctx, time.Second) {
		r.opt.Ledger.Expire()
		r.opt.Ledger.FreeAnswered()
		r.opt.Fleet.JudgePace(r.opt.Now())
	}
}
