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
	Every time.Duration // between two messages: one goes at once, what comes within this time goes together; 0: nothing is told
	To    time.Duration // from then on nothing arrives; 0: all does
	Back  time.Duration // and from then on all does again; 0: never
}

// What router/peers has: the pause, and the silence after which a replica is gone. A message travels for a guess of two hops in one
// zone and a server; at 3 ms replicas that share answer 2.5 % later, with a p99 of 1.06 times one's.
const (
	shareEvery  = 2 * time.Millisecond
	shareTravel = time.Millisecond
	shareGone   = 1250 * time.Millisecond
	shareDeaf   = time.Second // until a line that hangs is left for the next, at most
)

// share tells the other replicas of a booking.
func (s *sightline) share(v *View, own int, told *router.Shared) {
	if how := v.sim.setup.Sharing; how.To != 0 && s.now >= how.To && (how.Back == 0 || s.now < how.Back) {
		return
	}
	if s.flush < s.now { // what waits until then goes together
		s.flush = max(s.now, s.flush+v.sim.setup.Sharing.Every)
	}
	s.others(v, own, s.flush-s.now+shareTravel, func(o *sightline) {
		one := *told
		o.router.Follow(replicaName(own), &one)
	})
}

// cut has the other replicas forget this one where nothing more comes of it, and hear all that it has open where it comes again.
func (s *sightline) cut(v *View, own int) {
	switch how := v.sim.setup.Sharing; {
	case how.Back != 0:
		s.others(v, own, how.Back, func(o *sightline) {
			open, _ := s.router.Open(math.MaxInt)
			o.router.Reconcile(replicaName(own), open)
		})
	case how.To != 0:
		s.others(v, own, how.To+shareGone, func(o *sightline) { o.router.Leave(replicaName(own)) })
	}
}

// others has something done at all other replicas, later.
func (s *sightline) others(v *View, own int, after time.Duration, do func(*sightline)) {
	v.sim.after(after, func() {
		for i, r := range v.sim.rules {
			if o := r.(*sightline); i != own {
				o.now = v.sim.now
				do(o)
			}
		}
	})
}

func replicaName(i int) string { return fmt.Sprint("replica ", i) }

// sharings are the ways of replicas that goals are about, and how much longer than behind one router requests may wait.
func sharings() []sharing {
	half := seconds * time.Second / 2
	return []sharing{
		{"all is shared", Sharing{Every: shareEvery}, 1.03},
		{"NATS hangs at half the time and their streams take over", Sharing{Every: shareEvery, To: half, Back: half + shareDeaf}, 1.05},
		{"nothing is shared", Sharing{}, 1.15},
	}
}

type sharing struct {
	about string
	how   Sharing
	most  float64
}

// replicaSeeds are the traffics that replicas are judged by, together: p99s of one differ by 6 % with the draws alone.
const replicaSeeds = 6

// playReplicas judges 2, 4 and 16 replicas beside one, by images at a load.
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
		judge(fmt.Sprintf("%d replicas, %s: at most %.2f of one's", r.replicas, r.about, r.most), fmt.Sprintf("%.3f, %.3f", mean, tail), mean <= r.most && tail <= r.most)
	}
}
