//go:build linux

package router

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/fleet"
)

// thousand is a busy fleet of a thousand workers: prompts of 8,192 tokens, of which 2,048 are one of eight system prompts that
// most workers hold, 4,096 a conversation's, and the rest new; eight requests in flight a worker, of which one is being
// prefilled.
type thousand struct {
	*Router
	now   time.Time
	index *indexer.Index
	audit *audit.Auditor
	by    map[string]*fleet.Slot // by address
	rnd   *rand.Rand
	open  []underway // oldest first
	count int
}

type underway struct {
	d      Decision
	prompt *engine.Prompt
}

const (
	thousandWorkers = 1000
	perWorker       = 8
)

func newThousand() *thousand {
	w := &thousand{now: time.Unix(1_800_000_000, 0), index: indexer.New(indexer.Options{}), by: map[string]*fleet.Slot{},
		rnd: rand.New(rand.NewPCG(1, 2))}
	clock := func() time.Time { return w.now }
	f := fleet.New(clock)
	var workers []*fleet.Worker
	for i := range thousandWorkers {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		one := fleet.NewWorker(fmt.Sprint("w", i), addr, "m", 0, func(int) indexer.SlotID { return w.index.Join(indexer.SlotOptions{}) })
		one.Slots[0].EventAge = func(time.Time) time.Duration { return 0 }
		workers = append(workers, one)
		w.by[one.Addr] = one.Slots[0]
	}
	f.Set(workers)
	w.audit = audit.New(audit.Options{Index: w.index, Now: clock})
	w.Router = New(Options{Models: []Model{{Name: "m",
		Prompts: engine.NewUnloaded(engine.Server{Engine: "vllm", EngineVersion: "0.32.0", BlockSize: 16})}},
		Fleet: f, Index: w.index, Audit: w.audit, PredictedTTL: 20 * time.Second, Now: clock, Metrics: prometheus.NewRegistry(), Seed: 1})
	for range thousandWorkers * perWorker {
		w.request()
	}
	return w
}

func (w *thousand) prompt() *engine.Prompt {
	ids := make([]uint32, 0, 8192)
	add := func(n int, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		for range n {
			ids = append(ids, r.Uint32N(150_000))
		}
	}
	add(2048, w.rnd.Uint64N(8))
	add(4096, 1000+w.rnd.Uint64N(4*thousandWorkers))
	add(2048, 1<<32+uint64(w.count))
	return &engine.Prompt{IDs: ids, HashableIDs: len(ids), Exact: true}
}

// request decides one more request and advances the fleet: the oldest one ends, and a waiting one is prefilled and reported. It
// returns the time of the decision, and its thread's CPU time, which other work on the machine does not affect.
func (w *thousand) request() (took, own time.Duration) {
	w.count++
	p := w.prompt()
	w.now = w.now.Add(500 * time.Microsecond)
	start, before := time.Now(), threadTime()
	d := w.DecidePrompt(fmt.Sprint(w.count), "m", 0, p)
	own, took = threadTime()-before, time.Since(start)
	w.open = append(w.open, underway{d: d, prompt: p})
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr, CachedTokens: -1})
	if at := len(w.open) - thousandWorkers; at >= 0 {
		w.store(&w.open[at])
	}
	if len(w.open) > thousandWorkers*perWorker {
		w.Observe(Outcome{ID: w.open[0].d.ID, Phase: Ended, Addr: w.open[0].d.Targets[0].Addr, Code: 200, Answered: true, CachedTokens: -1})
		w.open = slices.Delete(w.open, 0, 1)
	}
	return took, own
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// store reports that a worker has prefilled a request.
func (w *thousand) store(u *underway) {
	slot := w.by[u.d.Targets[0].Addr]
	locals := u.prompt.Locals(nil, block.Form{Size: 16}, "")
	chain := block.Fixed().Chain(nil, locals)
	w.audit.Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Tokens: u.prompt.IDs, Locals: locals, EngineHashes: chain})
	if err := w.index.Store(slot.ID, indexer.GPU, 0, false, chain, locals); err != nil {
		panic(err)
	}
	slot.Progress(func(locals []uint64) int { return len(locals) }, w.now)
	u.prompt = nil
}

// BenchmarkThousandWorkers decides one request after another among them.
func BenchmarkThousandWorkers(b *testing.B) {
	w := newThousand()
	runtime.GC()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took, own := make([]time.Duration, b.N), make([]time.Duration, b.N)
	b.ResetTimer()
	for i := range b.N {
		took[i], own[i] = w.request()
	}
	b.StopTimer()
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	slices.Sort(own)
	for _, share := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*share/100].Microseconds()), fmt.Sprintf("p%d-µs", share))
		b.ReportMetric(float64(own[len(own)*share/100].Microseconds()), fmt.Sprintf("own-p%d-µs", share))
	}
	b.ReportMetric(float64(after.HeapAlloc>>20), "heap-MiB")
	s := w.index.Stats()
	b.ReportMetric(float64(s.Blocks)/1e6, "Mblocks")
}
