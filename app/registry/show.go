package registry

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/workers/fleet"
)

func (s *Set) register() {
	of := meter.At(s.o.Metrics)
	s.resyncs = of.Counters("resyncs_total", "Resyncs of a worker's blocks; rehash: another secret.", "worker", "why")
	of.ReadAll(s.collect, eventsDesc, ageDesc, orphansDesc, doubtfulDesc, partialDesc, sharedDesc)
}

// Resync restarts the feeds of matching slots and returns how many. why is a label of the counter.
func (s *Set) Resync(match func(*fleet.Slot) bool, why string) (n int) {
	for _, f := range s.Slots() {
		if f.Feed == nil || !match(f.Slot) {
			continue
		}
		n++
		f.Feed.Resync()
		s.resyncs.WithLabelValues(f.Worker.Name, why).Inc()
		s.o.Log.Warn("resync of a worker's blocks requested", zap.String("worker", f.Worker.Name), zap.Int("rank", f.Rank),
			zap.String("why", why))
	}
	return n
}

// ProcessRestarted tells the feeds of a worker that its process is not the one that ran at the given time.
func (s *Set) ProcessRestarted(w *fleet.Worker, was time.Time) {
	for _, f := range s.Slots() {
		if f.Worker == w && f.Feed != nil {
			f.Feed.ProcessRestarted(was)
		}
	}
}

// LearnParent tells the feed of a slot which blocks lead up to a parent that its events name and that it does not know.
func (s *Set) LearnParent(slot indexer.SlotID, parent uint64, locals []uint64) {
	for _, f := range s.Slots() {
		if f.ID == slot && f.Feed != nil {
			f.Feed.Learn(stream.Stem{Parent: parent, Locals: locals})
		}
	}
}

// Blocks returns what the index has for a worker's rank.
func (s *Set) Blocks(worker string, rank int) ([]indexer.Block, error) {
	for _, f := range s.Slots() {
		if f.Worker.Name == worker && max(f.Rank, 0) == rank {
			return s.o.Index.Blocks(f.ID)
		}
	}
	return nil, fmt.Errorf("no worker %q with rank %d", worker, rank)
}

var (
	eventsDesc   = meter.Desc("events_total", "KV events by outcome (docs/signals.md).", "worker", "rank", "what")
	ageDesc      = meter.Desc("event_stream_age_seconds", "Time since a worker's KV event stream was live.", "worker", "rank")
	orphansDesc  = meter.Desc("orphan_blocks", "Reported blocks whose parent is not known.", "worker", "rank")
	doubtfulDesc = meter.Desc("doubtful_blocks",
		"Blocks reported before messages were lost, and not since.", "worker", "rank")
	sharedDesc = meter.Desc("event_socket_shared",
		"1 while the same KV events come under another worker's name too.", "worker", "rank")
	partialDesc = meter.Desc("worker_partial", "1 while a worker may hold more than is known of it.", "worker", "rank")
)

// collect reads every feed's counters.
func (s *Set) collect(ch chan<- prometheus.Metric) {
	list := s.Slots()
	shared := Shared(list)
	for _, f := range list {
		if f.Feed == nil {
			continue
		}
		st := f.Feed.Stats()
		rank := fmt.Sprint(max(f.Rank, 0))
		gauge := func(of *prometheus.Desc, v float64) { meter.Gauge(ch, of, v, f.Worker.Name, rank) }
		gauge(ageDesc, f.Feed.Age(time.Now()).Seconds())
		gauge(orphansDesc, float64(st.Orphans))
		gauge(doubtfulDesc, float64(st.Doubtful))
		gauge(sharedDesc, meter.Flag(shared[f.Feed] != ""))
		gauge(partialDesc, meter.Flag(st.Partial || s.o.Index.Partial(f.ID)))
		for what, n := range st.Counters() {
			meter.Counter(ch, eventsDesc, float64(n), f.Worker.Name, rank, what)
		}
	}
}

// Shared finds feeds whose last stored blocks came by the same message, including its time stamp: their sockets are one
// publisher's. It returns the other worker's name for each.
func Shared(list []Slot) map[*stream.Feed]string {
	first, out := map[[2]uint64]Slot{}, map[*stream.Feed]string{}
	for _, f := range list {
		if f.Feed == nil {
			continue
		}
		key := f.Feed.Stats().Stored
		other, twice := first[key]
		first[key] = f
		if twice && key != [2]uint64{} {
			out[f.Feed], out[other.Feed] = other.Worker.Name, f.Worker.Name
		}
	}
	return out
}
