package fleetsim

import (
	"slices"
	"time"
)

// Summary holds the figures of a run.
type Summary struct {
	Mean     time.Duration // time to first token
	TTFT     Quantiles
	Classes  [classes]Quantiles
	E2E      time.Duration // mean
	Hits     float64       // share of prompt tokens found in the cache
	Possible float64       // the same with an infinite cache shared by all workers
	Regret   float64       // share of prompt tokens that another worker held and the chosen one did not
	Skew     float64       // the busiest worker's work over the mean
	Rate     float64       // requests completed per second
	Failed   int
}

// Quantiles are those of the times to first token of N requests.
type Quantiles struct {
	N             int
	P50, P90, P99 time.Duration
	Curve         [51]time.Duration // every second percentile
}

// class is a kind of request.
type class int

const (
	warm  class = iota // an infinite cache has at least half of the prompt
	cold               // it has less
	short              // the prompt has fewer than 32 tokens: hardly a block
	classes
)

func (c class) String() string { return [...]string{"warm", "cold", "short"}[c] }

func classOf(s *Served) class {
	switch {
	case s.Req.Input() < 32:
		return short
	case 2*s.Possible >= s.Req.Input():
		return warm
	}
	return cold
}

// Summarise returns the figures of the requests that arrived between two times.
func (r *Result) Summarise(from, until time.Duration) (s Summary) {
	var all []time.Duration
	var of [classes][]time.Duration
	var sum, e2e time.Duration
	asked, found, possible, lost, ended := 0, 0, 0, 0, 0
	until = min(until, r.Took)
	for i := range r.Served {
		one := &r.Served[i]
		if end := one.At + one.E2E; !one.Failed && end >= from && end < until {
			ended++
		}
		if one.At < from || one.At >= until {
			continue
		}
		if one.Failed {
			s.Failed++
			continue
		}
		c := classOf(one)
		all, of[c] = append(all, one.TTFT), append(of[c], one.TTFT)
		sum, e2e = sum+one.TTFT, e2e+one.E2E
		asked, found, possible, lost = asked+one.Req.Input(), found+one.Cached, possible+one.Possible, lost+one.Lost
	}
	if len(all) == 0 {
		return s
	}
	n := time.Duration(len(all))
	s.Mean, s.E2E, s.TTFT = sum/n, e2e/n, quantiles(all)
	for c := range of {
		s.Classes[c] = quantiles(of[c])
	}
	s.Hits, s.Possible, s.Regret = float64(found)/float64(asked), float64(possible)/float64(asked), float64(lost)/float64(asked)
	s.Rate = float64(ended) / (until - from).Seconds()
	total, most := 0.0, 0.0
	for _, w := range r.Work {
		total, most = total+w, max(most, w)
	}
	s.Skew = most / (total / float64(len(r.Work)))
	return s
}

// quantiles sorts d in place.
func quantiles(d []time.Duration) (q Quantiles) {
	if len(d) == 0 {
		return q
	}
	slices.Sort(d)
	at := func(share float64) time.Duration { return d[min(len(d)-1, int(share*float64(len(d))))] }
	q.N, q.P50, q.P90, q.P99 = len(d), at(0.5), at(0.9), at(0.99)
	for i := range q.Curve {
		q.Curve[i] = at(float64(i) / float64(len(q.Curve)-1))
	}
	return q
}

// Share returns a worker's share of the requests between two times, over a fair share.
func (r *Result) Share(worker int, from, until time.Duration) float64 {
	all, its := 0, 0
	for _, s := range r.Served {
		if s.At >= from && s.At < until {
			all++
			if s.Worker == worker {
				its++
			}
		}
	}
	return float64(its) / float64(max(1, all)) * float64(len(r.Work))
}
