// Package router takes the decision: which worker gets a request.
//
//	body ─ engine ─▶ block hashes ─ indexer ─▶ overlap per slot ─ pick ─▶ ranked targets and a reason
//
// A candidate is a slot: a worker or, where it has them, one of its data-parallel ranks. Each step that cannot be taken
// costs a rung of the ladder (exact, predicted, affinity, load), never the request.
//
//	decide.go   the way of a request, top to bottom
//	read.go     what its engines read, once for each different way of starting them
//	choose.go   candidates, the choice, targets
//	regret.go   what the choice gave up
//	consider.go a decision of which nothing comes, for people
//	book.go     what is remembered of a decision
//	left.go     requests that are decided and left to Envoy's own balancing
//	line.go     what the decision log says of it
//	observe.go  what Envoy reports of it: load and predictions move to the worker really used
//	share.go    what other replicas are told of it, and what is done with theirs
package router

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/report"
)

// Model is one model that requests may name.
type Model struct {
	Name     string
	Aliases  []string // other names for it
	Adapters []string // LoRA adapters: names that requests use in place of the model's
	MaxLoRAs int      // adapters that a worker has loaded at once; 0: 1
	FetchKV  bool     // workers fetch KV blocks from each other where they are told from whom
	Unit     int      // tokens that its workers' lower tiers give back at once; less than a block: blocks
	Prompts  *engine.Live
	Classes  []Class // of workers that read it, or cache it, otherwise
}

// Options are what a Router stands on.
type Options struct {
	Models       []Model
	Fleet        *fleet.Fleet
	MaxInFlight  int            // open requests of a slot, at which it gets no more; 0: no limit
	Hold         time.Duration  // that a request waits for a worker where none is known; 0: not, and it has no target then
	Fair         bool           // few free places are shared out by Request.Tenant and Priority
	RefuseUnread bool           // a body too large to be read is refused, whatever is in it
	Left         float64        // share of the conversations that are left to Envoy's own balancing; 1: all, nothing is steered
	Report       *report.Totals // sums up what comes of requests, by arm; nil: one of the router's own
	Index        *indexer.Index
	Audit        *audit.Auditor        // nil: predictions are not compared with what workers store
	PredictedTTL time.Duration         // how long a routed prompt counts as held before events confirm it
	Decisions    *decisionlog.Log      // nil: none
	Log          *zap.Logger           // nil: silent
	NoRoom       func(what string)     // is told of what had to go, or was not taken, for want of room: "answers", "pictures seen" and more; nil: nobody
	Metrics      prometheus.Registerer // nil: none
	// Decided and Ended, if set, hear of each decision, and of each request's end with its model. They must not block.
	Decided func(d *Decision, took time.Duration)
	Ended   func(model string, o *Outcome, took time.Duration)
	Now     func() time.Time // nil: time.Now
	Seed    uint64           // of the draws between equal candidates; 0: a random one
	// Resync, if set, is called when a slot has found less than its events promised again and again: what the index has of
	// it is in doubt. It must not block.
	Resync func(*fleet.Slot)
	// Share, if set, hears of each booking that other replicas are to be told of. It must not block.
	Share func(*Shared)
	// AskHolders, if set, asks a replica that holds another part of the index who holds leading blocks of a prompt of that part;
	// false: none answered in time.
	AskHolders func(ctx context.Context, locals []uint64) ([]Holder, bool)
}

// Router decides. Safe for concurrent use.
type Router struct {
	opt       Options
	serving   atomic.Pointer[serving]
	predicted *predictions
	seen      *sightings
	encodes   *encodes
	adapters  *adapters
	suspects  suspects
	answers   *lru.Cache[string, string] // see keeper.go
	unserved  unserved
	recent    *recent
	seed      maphash.Seed  // of Decision.Begins
	choices   atomic.Uint64 // taken
	admission sync.Mutex    // see inTurn
	lanes     *lanes
	metrics   *metrics
	waiters   *waiters
	lines     *zap.Logger   // for what is told of each decision
	shared    atomic.Uint64 // bookings numbered for other replicas
	theirs    theirs
	answered  atomic.Bool // the last question to a replica of another part was
	scratch   sync.Pool
}

// serving is what a decision goes by from its begin to its end, whatever is set meanwhile. It never changes.
type serving struct {
	names        map[string]servedName // by all names that requests may use
	maxInFlight  int
	predictedTTL time.Duration
}

// servedName is what a request's model name stands for.
type servedName struct {
	model   *servedModel
	adapter string // a LoRA adapter of it; "": none
}

// New makes a router. Names of models must be distinct (the configuration checks it).
func New(opt Options) *Router {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	if opt.NoRoom == nil {
		opt.NoRoom = func(string) {}
	}
	lines := opt.Log
	// Each message once a minute: what is wrong with requests is counted, and logged once in a while.
	opt.Log = opt.Log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewSamplerWithOptions(c, time.Minute, 1, 0) }))
	r := &Router{opt: opt, predicted: newPredictions(opt.PredictedTTL, predBlocks), seen: newSightings(opt.NoRoom), encodes: newEncodes(opt.NoRoom), adapters: &adapters{of: make(map[*fleet.Slot][]string)},
		recent: newRecent(), seed: maphash.MakeSeed(), lanes: newLanes(), waiters: newWaiters(), lines: lines}
	if r.opt.Report == nil {
		r.opt.Report = report.New("", opt.Now())
	}
	if r.opt.Seed == 0 {
		r.opt.Seed = rand.Uint64()
	}
	r.answers, _ = lru.New[string, string](mostAnswers) // fails for a size below 1
	r.metrics = newMetrics(opt.Metrics, r)
	if opt.Decisions != nil || opt.Share != nil {
		opt.Fleet.OnForgotten(r.forgotten)
	}
	r.scratch.New = func() any { return new(scratch) }
	r.Serve(opt.Models, opt.MaxInFlight, opt.PredictedTTL)
	return r
}

// Serve sets what is decided by, each as in Options, for decisions that begin from now on.
func (r *Router) Serve(models []Model, maxInFlight int, predictedTTL time.Duration) {
	now := &serving{names: make(map[string]servedName), maxInFlight: maxInFlight, predictedTTL: predictedTTL}
	for i := range models {
		m := newServedModel(&models[i])
		now.names[m.Name] = servedName{model: m}
		r.metrics.decisions.WithLabelValues(m.Name, string(RefusedByUs)) // a counter that first appears as 1 has not increased, to an alert
		r.metrics.told.WithLabelValues(m.Name, "fewer")
		for _, n := range m.Aliases {
			now.names[n] = servedName{model: m}
		}
		for _, n := range m.Adapters {
			now.names[n] = servedName{model: m, adapter: n}
		}
	}
	r.serving.Store(now)
}
