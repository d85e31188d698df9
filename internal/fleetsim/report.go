package fleetsim

import (
	"slices"
	"time"
)

// Summary is a run in numbers.
type Summary struct {
	Mean, P50, P90, P99 time.Duration // time to first token
	E2E                 time.Duration // mean
	Hits, Possible      float64       // share of prompt tokens found in the cache; and by a cache without end
	Skew                float64       // the busiest worker's work over the mean
	Rate                float64       // requests a second
	Failed              int
}

// Summarise gives the numbers of the served requests that keep selects; nil: all.
func (r *Result) Summarise(keep func(*Served) bool) (s Summary) {
	var ttft []time.Duration
	var sum, e2e time.Duration
	asked, found, possible := 0, 0, 0
	for i := range r.Served {
		one := &r.Served[i]
		if keep != nil && !keep(one) {
			continue
		}
		if one.Failed {
			s.Failed++
			continue
		}
		ttft = append(ttft, one.TTFT)
		sum, e2e = sum+one.TTFT, e2e+one.E2E
		asked, found, possible = asked+one.Req.Input(), found+one.Cached, possible+one.Possible
	}
	if len(ttft) == 0 {
		return s
	}
	slices.Sort(ttft)
	at := func(q float64) time.Duration { return ttft[min(len(ttft)-1, int(q*float64(len(ttft))))] }
	n := time.Duration(len(ttft))
	s.Mean, s.E2E, s.P50, s.P90, s.P99 = sum/n, e2e/n, at(0.5), at(0.9), at(0.99)
	s.Hits, s.Possible = float64(found)/float64(asked), float64(possible)/float64(asked)
	s.Rate = float64(len(ttft)) / r.Took.Seconds()
	total, most := 0.0, 0.0
	for _, w := range r.Work {
		total, most = total+w, max(most, w)
	}
	s.Skew = most / (total / float64(len(r.Work)))
	return s
}
