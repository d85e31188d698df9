package forecast

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A histogram has perDoubling buckets for each doubling of the size of all caches together, from 2^smallest to 2^largest blocks; the last
// one is of all that is larger.
const (
	perDoubling = 12
	smallest    = 6
	largest     = 32
	buckets     = (largest-smallest)*perDoubling + 2
)

// spanLength is how long one histogram is filled; spansKept are kept, a day.
const (
	spanLength = 5 * time.Minute
	spansKept  = 288
	spansBytes = spansKept * (2*buckets*4 + 100)
)

// span is what is known of a time: prompt tokens, by the size that all caches would need to have had them. Blocks, not shares of today's
// caches: caches that are filling seem smaller than they are, and fleets grow and shrink. By two, if two workers had one cache.
type span struct {
	number           int64 // since 1970
	by, two          [buckets]float32
	all              float64 // of requests whose blocks are known; what is in no bucket was never seen, or load had it sent elsewhere
	known, told      float64 // tokens whose blocks are known; of all requests
	measured, cached float64 // of requests whose worker is known to have had so many
	capacity         float64 // tokens that the workers could have computed
	used, usedFor    float64 // share of caches in use × seconds, and those seconds
	timed            float64 // requests whose queue and whose worker's rate are known
	waited, own      float64 // of these: seconds of work queued before them; seconds to compute what was not cached
	squares          float64 // of own
	computed, of     float64 // of these: tokens to compute, with images to encode; the prompts'
}

// spans is a ring of them.
type spans [spansKept]*span

func (r *spans) at(t time.Time) *span {
	n := t.Unix() / int64(spanLength.Seconds())
	s := &r[((n%spansKept)+spansKept)%spansKept]
	if *s == nil || (*s).number != n {
		*s = &span{number: n}
	}
	return *s
}

// of returns the sum of the spans of a window that ends now, and what it covers.
func (r *spans) of(window time.Duration, now time.Time) (sum span) {
	last := now.Unix() / int64(spanLength.Seconds())
	for _, s := range r {
		if s == nil || s.number > last || s.number <= last-int64(window/spanLength) {
			continue
		}
		for _, part := range []struct{ to, from *float64 }{{&sum.all, &s.all}, {&sum.known, &s.known}, {&sum.told, &s.told},
			{&sum.measured, &s.measured}, {&sum.cached, &s.cached}, {&sum.capacity, &s.capacity}, {&sum.used, &s.used},
			{&sum.usedFor, &s.usedFor}, {&sum.timed, &s.timed}, {&sum.waited, &s.waited}, {&sum.own, &s.own}, {&sum.squares, &s.squares},
			{&sum.computed, &s.computed}, {&sum.of, &s.of}} {
			*part.to += *part.from
		}
		for i, n := range s.by {
			sum.by[i] += n
			sum.two[i] += s.two[i]
		}
	}
	return sum
}

// add counts tokens by what they need of caches that have so many blocks in all.
func (s *span) add(n needs, blocks, tokens float64) {
	s.all += tokens
	count(&s.by, n.own*blocks, tokens)
	count(&s.two, n.two*blocks, n.share*tokens)
}

func count(by *[buckets]float32, blocks, tokens float64) {
	if !math.IsInf(blocks, 1) {
		by[min(buckets-1, max(0, int(math.Floor(bucket(blocks)))))] += float32(tokens)
	}
}

// bucket is a size's position among the buckets.
func bucket(blocks float64) float64 { return (math.Log2(blocks)-smallest)*perDoubling + 1 }

// below returns the share of the tokens that caches of so many blocks in all would have had, if each had what goes to so many of today's.
func (s *span) below(blocks, each float64) (share float64) {
	if s.all == 0 {
		return 0
	}
	x, two := bucket(blocks), min(1, max(0, each-1))
	for b := range s.by {
		share += ((1-two)*float64(s.by[b]) + two*float64(s.two[b])) * min(1, max(0, x-float64(b)))
	}
	return share / s.all
}

// Forecast is what a model's traffic of a window tells.
type Forecast struct {
	Window  float64 `json:"window_seconds"`
	Tokens  float64 `json:"prompt_tokens"` // that the forecast is made from
	Covered float64 `json:"covered"`       // their share of all prompt tokens of requests to the model's workers
	Workers int     `json:"workers"`       // caches, whose sizes are known
	Blocks  int     `json:"cache_blocks"`  // of all these
	Today   Point   `json:"today"`         // the hit rate is as engines count, else as predicted
	Curve   []Point `json:"curve"`
	Marks   []Mark  `json:"marks"`

	span span
}

// Point is what caches of a size would bring.
type Point struct {
	Size    float64 `json:"size"`     // of all caches, in sizes of today's
	HitRate float64 `json:"hit_rate"` // share of prompt tokens that would come from a cache
	Busy    float64 `json:"busy"`     // share of the time that workers would compute prompts; 0: their rate is not known
	Bound   Bound   `json:"bound,omitempty"`
}

// Bound says that a hit rate is only a bound, since the load would change much.
type Bound string

// Requests would wait for each other, and find less than is forecast; they do so today, and would find more.
const (
	AtMost  Bound = "at_most"
	AtLeast Bound = "at_least"
)

// Mark is a change of the fleet that can be ordered.
type Mark struct {
	Name string `json:"change"`
	Point
}

// Names of marks.
const (
	MoreCache   = "cache_fifth_larger"
	OneMore     = "worker_more"
	OneFewer    = "worker_fewer"
	NothingLost = "nothing_evicted"
)

// From these on load decides about hits, in the scenarios of lab/fleetsim: where requests in flight hold fullToday of the caches, or would
// hold fullThen of smaller ones, or where the queue before each worker, b/(1-b) long if it is busy for b of the time, would grow by
// queueGrows.
const (
	fullToday  = 0.25
	fullThen   = 0.2
	queueGrows = 0.1
)

// Forecast returns what the traffic of a window tells that ends now, of whole spans of five minutes.
func (m *Forecaster) Forecast(window time.Duration, now time.Time) Forecast {
	m.Settle()
	m.mu.Lock()
	defer m.mu.Unlock()
	f := Forecast{Window: window.Seconds(), span: m.spans.of(window, now)}
	for _, s := range m.slots {
		if s.size > 0 {
			f.Workers, f.Blocks = f.Workers+1, f.Blocks+s.size
		}
	}
	f.Tokens = math.Round(f.span.known)
	if f.Tokens == 0 || f.Workers == 0 {
		return f
	}
	f.Covered, f.Today = f.span.known/f.span.told, f.With(1, f.Workers)
	for size := 0.25; size < 4.01; size *= math.Pow(2, 0.25) {
		f.Curve = append(f.Curve, f.With(size, f.Workers))
	}
	f.Marks = []Mark{{MoreCache, f.With(1.2, f.Workers)}, {OneMore, f.With(1, f.Workers+1)}, {NothingLost, f.With(1<<20, f.Workers)}}
	if f.Workers > 1 {
		f.Marks = slices.Insert(f.Marks, 2, Mark{OneFewer, f.With(1, f.Workers-1)})
	}
	return f
}

// With returns what a number of workers would bring whose caches are as large as so many times today's.
func (f *Forecast) With(size float64, workers int) Point {
	s := &f.span
	at := s.below(float64(f.Blocks), 1)
	today := at
	if s.measured > 0 {
		today = s.cached / s.measured
	}
	share := float64(workers) / float64(f.Workers)
	p := Point{Size: size * share, HitRate: today}
	if p.Size != 1 {
		p.HitRate = min(1, max(0, s.below(p.Size*float64(f.Blocks), 1/share)+today-at))
	}
	if s.capacity > 0 {
		p.Busy = s.all * (1 - p.HitRate) / s.capacity / share
	}
	used, queue := 0.0, func(busy float64) float64 { return busy / max(0.01, 1-busy) }
	if s.usedFor > 0 {
		used = s.used / s.usedFor
	}
	switch {
	case p.Size > 1 && used >= fullToday:
		p.Bound = AtLeast
	case p.Size < 1 && (used >= fullToday || used/p.Size >= fullThen):
		p.Bound = AtMost
	case p.Size < 1 && s.capacity > 0 && queue(p.Busy)-queue(s.all*(1-today)/s.capacity) >= queueGrows:
		p.Bound = AtMost
	}
	return p
}

// mostWorkers is how many times today's caches Needed tells at most: of larger caches little is known.
const mostWorkers = 4

// A Goal is what workers should hold: each one that is not 0.
type Goal struct {
	Busy       float64 // the most of the time that they should compute prompts
	FirstToken float64 // seconds until a prompt is computed, on average
}

// Needed returns the least number of caches whose workers would hold a goal, by what they would then have, and meanwhile get done what
// waits: work, of so many all the time. Prompts that are not covered count like the others. 0: rates are not known, or no prompt is
// covered, or of none its queue.
func (f *Forecast) Needed(g Goal, work float64) int {
	s, all := &f.span, 1.0 // prompts, in times of those that are covered
	if f.Workers == 0 || s.capacity == 0 || s.all == 0 && s.told > 0 || s.told > 0 && s.timed == 0 && g.FirstToken > 0 {
		return 0
	}
	if s.all > 0 {
		all = s.told / s.all
	}
	n, today := 1, f.With(1, f.Workers)
	for ; n < mostWorkers*f.Workers; n++ {
		p := f.With(1, n)
		more := work / float64(n)
		if (g.Busy == 0 || all*p.Busy+more <= g.Busy) && (g.FirstToken == 0 || f.firstToken(&p, &today, n, more, all) <= g.FirstToken) {
			break
		}
	}
	return n
}

// mostWaiting limits how many times the waiting of one queue for all workers today's is taken to be. It is taken to be that at least:
// queues that are nearly empty do not tell how long fuller ones would be.
const mostWaiting = 4

// queuesGrow is the share of the time from which on prompts wait for long: engines decode in the rest, the more the fewer they are
// (chats of lab/fleetsim).
const queuesGrow = 0.6

// occupied returns the share of the time that workers compute prompts and encode their images, which Point.Busy leaves out.
func (f *Forecast) occupied(p, today *Point, all float64) float64 {
	s, busy := &f.span, all*p.Busy
	if s.of > 0 && today.HitRate < 1 {
		busy = max(busy, s.computed*s.told/s.of/s.capacity/p.Size*(1-p.HitRate)/(1-today.HitRate))
	}
	return busy
}

// firstToken returns the mean time in seconds until prompts are computed by n workers that do more for a share of the time: their own, by
// what would be cached, and that of the queue before them. A queue is taken to be that of all workers together, with the prompts' variance
// (Sakasegawa, An approximation formula L_q ≃ αρ^β/(1-ρ), 1977), times what today's queues are of it. +Inf: they would not keep up.
func (f *Forecast) firstToken(p, today *Point, n int, more, all float64) float64 {
	s, busy := &f.span, f.occupied(p, today, all)+more
	switch {
	case busy >= queuesGrow:
		return math.Inf(1)
	case s.timed == 0:
		return 0
	}
	mean := s.own / s.timed
	vary := s.squares/s.timed/(mean*mean) - 1
	waits := func(own, busy float64, n int) float64 {
		k := float64(n)
		return own * (1 + vary) / 2 * math.Pow(busy, math.Sqrt(2*(k+1))-1) / (k * (1 - busy))
	}
	own, times := mean, 1.0
	if today.HitRate < 1 {
		own *= (1 - p.HitRate) / (1 - today.HitRate)
		if now := f.occupied(today, today, all); now < 1 && now > 0 && s.waited > 0 {
			times = min(mostWaiting, max(1, s.waited/s.timed/waits(mean, now, f.Workers)))
		}
	}
	return own + times*waits(own, busy, n)
}

// String says it in a sentence.
func (f *Forecast) String() string {
	if f.Tokens == 0 || f.Workers == 0 {
		return "No forecast yet: no request whose prompt and whose worker's cache are known."
	}
	said := map[string]string{MoreCache: "A fifth more cache", OneMore: "One worker more", OneFewer: "One fewer",
		NothingLost: "Nothing evicted"}
	var out strings.Builder
	fmt.Fprintf(&out, "You are at %.0f %%.", 100*f.Today.HitRate)
	for _, m := range f.Marks {
		by := fmt.Sprintf("%+.0f", 100*(m.HitRate-f.Today.HitRate))
		if m.Name == NothingLost {
			by = fmt.Sprintf("%.0f %%", 100*m.HitRate)
		}
		by += map[Bound]string{AtMost: " or worse", AtLeast: " or better"}[m.Bound]
		fmt.Fprintf(&out, " %s: %s.", said[m.Name], by)
	}
	return out.String()
}
