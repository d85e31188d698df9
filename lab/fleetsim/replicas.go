package fleetsim

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router"
)

// Sharing is what replicas of this repository's router tell each other, as router/peers does; the zero value: nothing.
type Sharing struct {
	Every time.Duration // the least time between two messages: updates within it are sent together; 0: no sharing
	To    time.Duration // from then on no message arrives; 0: all arrive
	Back  time.Duration // and from then on all arrive again; 0: never
}

// The values of router/peers: the pause, and the silence after which a replica counts as gone. A message's delay is a guess for two
// hops in one zone and a server; at 3 ms, replicas that share answer 2.5 % later, with a p99 of 1.06 times a single one's.
const (
	shareEvery  = 2 * time.Millisecond
	shareTravel = time.Millisecond
	shareGone   = 1250 * time.Millisecond
	shareDeaf   = time.Second // at most, until a stalled connection is abandoned for the next
)

// share tells the other replicas of a booking.
func (s *sightline) share(v *View, own int, told *router.SharedBooking) {
	if how := v.sim.setup.Sharing; how.To != 0 && s.now >= how.To && (how.Back == 0 || s.now < how.Back) {
		return
	}
	if s.flush < s.now { // updates until then are sent together
		s.flush = max(s.now, s.flush+v.sim.setup.Sharing.Every)
	}
	s.others(v, own, s.flush-s.now+shareTravel, func(o *sightline) {
		one := *told
		o.router.Replicas().Apply(replicaName(own), &one)
	})
}

// cut makes the other replicas forget this one while none of its messages arrive, and learn all its open requests when they do
// again.
func (s *sightline) cut(v *View, own int) {
	switch how := v.sim.setup.Sharing; {
	case how.Back != 0:
		s.others(v, own, how.Back, func(o *sightline) {
			open, _ := s.router.Replicas().Open(math.MaxInt)
			o.router.Replicas().Reconcile(replicaName(own), open)
		})
	case how.To != 0:
		s.others(v, own, how.To+shareGone, func(o *sightline) { o.router.Replicas().Left(replicaName(own)) })
	}
}

// others runs do for all other replicas, after a delay.
func (s *sightline) others(v *View, own int, after time.Duration, do func(*sightline)) {
	v.sim.after(after, func() {
		for i, r := range v.sim.pickers {
			if o := r.(*sightline); i != own {
				o.now = v.sim.now
				do(o)
			}
		}
	})
}

func replicaName(i int) string { return fmt.Sprint("replica ", i) }

// sharings are the settings that goals are about, and how much longer than with a single router requests may wait.
func sharings() []sharing {
	half := seconds * time.Second / 2
	return []sharing{
		{"everything is shared", Sharing{Every: shareEvery}, 1.03},
		{"streams hang halfway and are opened again", Sharing{Every: shareEvery, To: half, Back: half + shareDeaf}, 1.05},
		{"nothing is shared", Sharing{}, 1.15},
	}
}

type sharing struct {
	about string
	how   Sharing
	most  float64
}

// replicaSeeds is the number of seeds over which replicas are judged together: the p99s of single ones differ by 6 % by chance.
const replicaSeeds = 6

// playReplicas judges 2, 4 and 16 replicas against one, on image traffic at a load.
func playReplicas(sc Scenario, load float64, judge func(about, measured string, ok bool)) {
	type row struct {
		sharing
		replicas   int
		mean, tail [replicaSeeds]time.Duration
	}
	rows := []row{{replicas: 1}}
	for _, s := range sharings() {
		for _, n := range []int{2, 4, 16} {
			rows = append(rows, row{sharing: s, replicas: n})
		}
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for seed := range replicaSeeds {
		trace := prepare(images(uint64(seed+1), load*sc.Capacity, seconds, 0), defaultEngine().BlockSize)
		for i := range rows {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				setup := sc.setup()
				setup.Replicas, setup.Sharing = rows[i].replicas, rows[i].how
				sum := Run(setup, trace, newSightline).Summarise(warmUp, sc.Until)
				rows[i].mean[seed], rows[i].tail[seed] = sum.Mean, sum.TTFT.P99
			})
		}
	}
	all.Wait()
	total := func(of [replicaSeeds]time.Duration) (sum time.Duration) {
		for _, d := range of {
			sum += d
		}
		return sum
	}
	for _, r := range rows[1:] {
		mean, tail := over(total(r.mean), total(rows[0].mean)), over(total(r.tail), total(rows[0].tail))
		judge(fmt.Sprintf("%d replicas, %s: mean, p99 ≤ %.2f of a single one's", r.replicas, r.about, r.most),
			fmt.Sprintf("%.3f, %.3f", mean, tail), mean <= r.most && tail <= r.most)
	}
}
