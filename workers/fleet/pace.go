package fleet

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A slot's rate is that of all workers of its model, divided by how much slower it is than they are with equal work. A step has a fixed
// cost and carries decodes, so a worker whose prompts are cached prefills few tokens a second, and is no slower for it. So each step's
// time is compared with the mean time of all workers' steps with about as many tokens.
const (
	fullSample    = 1024        // tokens of a step that counts as one sample; the fewer, the less it counts
	priorSamples  = 1           // samples that a slot is assumed to have shown, as fast as the others
	maxSamples    = 24          // the last ones that count
	priorSpread   = 0.3         // standard deviation of their logarithms
	doubt         = 3           // standard errors by which a slot must differ to count as different
	sampleLife    = time.Minute // half-life of a sample, and of the difference while there are no new ones
	decodeTokens  = 1           // tokens prefilled in the time by which a request in flight makes a step longer
	ContextTokens = 0.03 / 64   // the same for each token of the requests' prompts; router/choose weighs them in this proportion
	attention     = 1. / 80000  // of a token's own cost, that of each token before it
	maxRatio      = 1.4         // limit of the logarithm of one sample: four times as slow, or as fast
	meanSteps     = 256         // steps, of about the same size, of which a mean consists
)

// pace is what the steps of all workers of a model have shown.
type pace struct {
	mu              sync.Mutex
	steps           [20]struct{ mean, n float64 } // logarithm of the seconds per token of work, by the work
	tokens, seconds float64
	measured        atomic.Uint64 // tokens a second, as Float64bits; 0: not known
}

// rate returns the tokens that a worker of the model prefills a second on average; 0: not known.
func (p *pace) rate() float64 { return math.Float64frombits(p.measured.Load()) }

// compare returns the logarithm of a step's time over that of steps with about as much work, of which it becomes one.
func (p *pace) compare(tokens, work, seconds float64) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.steps[min(len(p.steps)-1, bits.Len(uint(work)))]
	ratio := 0.0
	if m.n > 0 {
		ratio = min(maxRatio, max(-maxRatio, math.Log(seconds/work)-m.mean))
	} else {
		m.mean = math.Log(seconds / work)
	}
	m.n = min(m.n+1, meanSteps)
	m.mean += ratio / m.n
	const fading = 1 - 1./(4*meanSteps)
	p.tokens, p.seconds = fading*p.tokens+tokens, fading*p.seconds+seconds
	if p.tokens >= minRateTokens {
		p.measured.Store(math.Float64bits(p.tokens / p.seconds))
	}
	return ratio
}

// slowness is what a slot's own steps have shown: sums over its last samples, of logarithms of their times over the mean's.
type slowness struct {
	n, sum, squares float64
	seconds         float64   // that the steps took
	at              time.Time // of the last sample
	slow            Slow
}

// add adds a sample, weighted by its tokens.
func (s *slowness) add(ratio, tokens, seconds float64, now time.Time) {
	weight := min(1, tokens/fullSample)
	keep := min(s.fade(now), (maxSamples-weight)/max(1, s.n))
	s.n, s.sum, s.squares, s.at = keep*s.n+weight, keep*s.sum+weight*ratio, keep*s.squares+weight*ratio*ratio, now
	s.seconds = keep*s.seconds + weight*seconds
}

func (s *slowness) fade(now time.Time) float64 {
	return math.Exp2(-now.Sub(s.at).Seconds() / sampleLife.Seconds())
}

// factor returns by how much the slot is slower than the others: as much as is certain. An idle slot counts as fast as they are, and
// is tried, if its latest sample is older than one second for each sample: rarely, if all were slow.
func (s *slowness) factor(idle bool, now time.Time) float64 {
	fade := s.fade(now)
	if s.n == 0 || idle && s.sum > 0 && now.Sub(s.at).Seconds() > fade*s.n {
		return 1
	}
	n, mean := fade*s.n, s.sum/s.n
	variance := (fade*(s.squares-s.sum*mean) + priorSamples*priorSpread*priorSpread) / (n + priorSamples)
	mean *= fade * n / (n + priorSamples)
	return math.Exp(mean * max(0, 1-doubt*doubt*variance/(n+priorSamples)/(mean*mean)))
}

// A worker that computes much slower than its class gets fewer requests, and a finding names it. The last samples count however old they
// are, since it gets few. The finding waits for enough samples, of steps that are more than a fixed cost, and for some time.
const (
	slowTimes, noLongerSlow      = 1.5, 1.25 // as long as the others' steps, to be named and to be as fast again
	slowCertain, noLongerCertain = 1.2, 1.1  // the same, of what is certain
	slowSamples                  = 4
	slowStep                     = 0.02             // seconds of its steps, at least
	slowLasts                    = 3 * time.Second  // before it is named
	slowUntil                    = 15 * time.Minute // after its last sample
)

// Slow says that a slot takes Times as long as others of its class to compute prompts, which was first seen at Since; zero: it does not.
type Slow struct {
	Times   float64   `json:"times"`
	Since   time.Time `json:"since"`
	Certain bool      `json:"-"` // it has lasted
}

// Slow returns whether the slot is slow, as JudgePace found it last.
func (s *Slot) Slow() Slow {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.slowness.slow.Certain {
		return Slow{}
	}
	return s.slowness.slow
}

// JudgePace compares the slots of each class with the middle one, and returns those that have become slow, or as fast as others again.
func (f *Fleet) JudgePace(now time.Time) (changed []*Slot) {
	type known struct {
		slot *Slot
		mean float64
	}
	classes := make(map[[2]string][]known)
	for _, w := range f.Workers() {
		for _, s := range w.Slots {
			if mean, ok := s.meanSlowness(); ok {
				classes[[2]string{w.Model, w.Class}] = append(classes[[2]string{w.Model, w.Class}], known{s, mean})
			}
		}
	}
	for _, slots := range classes {
		slices.SortFunc(slots, func(a, b known) int { return cmp.Compare(a.mean, b.mean) })
		for i := range slots {
			if slots[i].slot.judge(slots[(len(slots)-1)/2].mean, now) {
				changed = append(changed, slots[i].slot)
			}
		}
	}
	return changed
}

// meanSlowness returns the mean of the slot's samples, if they are enough.
func (s *Slot) meanSlowness() (mean float64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slowness.sum / max(1, s.slowness.n), s.slowness.n >= slowSamples
}

// judge compares the slot with the mean of others, and reports whether it has become slow, or is so no more.
func (s *Slot) judge(others float64, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.slowness
	was := l.slow
	times, certain := math.Exp(l.sum/l.n-others), l.factor(false, l.at)
	switch {
	case now.Sub(l.at) >= slowUntil, was.Certain && (times < noLongerSlow || certain < noLongerCertain),
		!was.Certain && (times < slowTimes || certain < slowCertain || l.seconds < slowStep*l.n):
		l.slow = Slow{}
	case was.Since.IsZero():
		l.slow = Slow{times, now, false}
	default:
		l.slow.Times, l.slow.Certain = times, was.Certain || now.Sub(was.Since) >= slowLasts
	}
	return was.Certain != l.slow.Certain
}
