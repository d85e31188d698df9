// Package report sums up the effect of steering. Requests belong to two arms: those that Sightline steered, and those that it
// left to Envoy's own balancing, with `enforce: 0%` or `enforce: 10%`.
//
//	ended request, or line of a decision log ─▶ Totals ─▶ Report: JSON, metrics, and text for people
//
// For both arms it reports how many prompt tokens were cached and how soon answers came. For unsteered requests it also reports
// what the choice would have gained for each: what the chosen worker held at the decision, less what the used one held. That does
// not forecast a steered fleet, whose workers hold other things. Totals count from the start, and the last days by minute and model.
package report

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/decisionlog"
)

// Arm is a side of the split. "" is for requests that can go to only one worker or were refused.
type Arm string

// The arms, as logs, metrics and metadata name them.
const (
	Steered   Arm = "steered"   // Envoy was told where to send it
	Unsteered Arm = "unsteered" // Envoy was told nothing
)

// Request is an ended request.
type Request struct {
	ID        string // of the decision
	Arm       Arm
	Model     string
	OK        bool // the answer's status is below 400
	Prompt    int  // tokens, the engine's own count if it reports both; 0: not known
	Cached    int  // cached tokens of Prompt; -1: not known
	Counted   bool // Cached is the engine's own count; else what its worker was known to hold at the decision
	FirstByte time.Duration
	End       time.Duration
	Accounted int // tokens of the prompt that were cached or are in Uncached; 0: not known
	Uncached  account.Sums
	Kept      int                       // evicted tokens that a cache a fifth larger would have kept
	Rate      float64                   // tokens that its worker prefills a second; 0: not known
	Steps     int                       // of priority: above or below 0
	Waited    time.Duration             // at its worker until it was first computed; 0: not known
	Changed   *account.Change           // where the prompt departs from an earlier one; nil: nowhere
	Would     *decisionlog.Hypothetical // if it was not steered; nil: not known
}

// Of converts a line of a decision log. ok is false if it has no arm or its end was not reported.
func Of(l *decisionlog.Line) (r Request, ok bool) {
	arm := Arm(l.Arm)
	if arm != Steered && arm != Unsteered || l.Outcome != decisionlog.Ended {
		return r, false
	}
	r = Request{ID: l.ID, Arm: arm, Model: l.Model, OK: isOK(l.Status), Prompt: l.InputLength, Cached: l.ReportedCached,
		Counted: l.ReportedCached >= 0, FirstByte: duration(l.FirstByte), End: duration(l.End), Would: l.Would,
		Steps: l.Steps, Waited: duration(l.Waited)}
	if l.Uncached != (account.Sums{}) {
		r.Accounted, r.Uncached = cmp.Or(l.ReportedPrompt, l.InputLength), l.Uncached
		r.Changed, r.Kept, r.Rate = l.Changed, l.Kept, l.Rate
	}
	switch {
	case r.Counted:
		r.Prompt = cmp.Or(l.ReportedPrompt, r.Prompt)
	case l.Would != nil:
		r.Cached = l.Would.UsedCached
	case arm == Steered && l.Used == l.Worker:
		r.Cached = l.Cached
	}
	return r, true
}

func isOK(status int) bool { return status >= 200 && status < 400 }

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Report is the sums of both arms over a time, as /report shows them.
type Report struct {
	Mode  string    `json:"mode,omitempty"` // the share that is steered, such as 10%; "" for a log
	Since time.Time `json:"since"`          // time of the start, or of the first decision
	Until time.Time `json:"until"`
	// Accounted are the prompt tokens of answered requests of both arms of which it is known why they were not cached, or that they were:
	// all that are not in Uncached.
	Accounted int          `json:"accounted_tokens,omitempty"`
	Uncached  account.Sums `json:"uncached,omitzero"`
	// Kept are evicted tokens that caches a fifth larger would have kept.
	Kept       int             `json:"evicted_kept_by_a_fifth,omitempty"`
	Seconds    account.Seconds `json:"prefill_seconds,omitzero"` // that workers took for uncached tokens, at the rates that they have shown
	Departures []Departure     `json:"changed,omitempty"`        // where prompts have changed, the dearest first
	// Replicas are those whose requests are in the sums, Silent those that did not tell theirs in time; 0: no replicas share.
	Replicas  int     `json:"replicas,omitempty"`
	Silent    int     `json:"silent_replicas,omitempty"`
	Steered   Side    `json:"steered"`
	Unsteered Side    `json:"unsteered"`
	Would     Savings `json:"would"` // for unsteered requests
	// Waited is how long answered requests of both arms waited at their workers until they were first computed, where events show it: of a
	// low priority, of none, of a high one.
	Waited [bands]Times `json:"waited"`

	// Of a decision log: lines that are cut off, and of ended requests of an arm with another name, as an older release has it.
	Unreadable int `json:"unreadable_lines,omitempty"`
	UnknownArm int `json:"unknown_arm_lines,omitempty"`
}

const bands = 3

// Side is one arm. Tokens are of answered requests whose prompt's and cached tokens are known.
type Side struct {
	Requests  int   `json:"requests"` // ended
	Failed    int   `json:"failed"`   // the part of Requests without an answer or with an error
	Known     int   `json:"known"`    // the part of Requests whose tokens are in the sums below
	Counted   int   `json:"counted"`  // the part of Known by the engine's own count; the rest by what its worker was known to hold
	Prompt    int   `json:"prompt_tokens"`
	Cached    int   `json:"cached_tokens"`
	FirstByte Times `json:"first_byte"` // of answers; of a streamed one its headers, which engines may send before the prefill
	End       Times `json:"end"`        // from the decision to the answer's end
}

// Times has quantiles of N requests in milliseconds, accurate to a tenth.
type Times struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_ms"` // 0: too few
	P95 float64 `json:"p95_ms"` // 0: too few
	P99 float64 `json:"p99_ms"` // 0: too few
}

// With fewer requests a number is not significant.
const (
	fewForP50  = 20
	fewForP95  = 100
	fewForP99  = 500
	fewForMean = 30
)

// Savings is what the choice would have gained for unsteered requests, if both the choice and the used worker are known.
type Savings struct {
	Requests    int     `json:"requests"`
	Prompt      int     `json:"prompt_tokens"`
	Better      int     `json:"better"` // requests whose chosen worker held more
	Spared      int     `json:"spared_tokens"`
	Worse       int     `json:"worse"` // requests whose chosen worker held less: it was chosen for its load
	Cost        int     `json:"cost_tokens"`
	Encode      int     `json:"encode_tokens"` // image tokens that would not have been encoded; negative: additional ones
	Timed       int     `json:"timed"`         // requests with a known rate
	Millis      float64 `json:"ms"`            // total time of prefill and encoding that would have been saved
	Mean        float64 `json:"mean_tokens"`   // spared less cost, for each request
	Uncertainty float64 `json:"mean_error"`    // 95 % confidence interval of Mean for independent requests; 0: too few
}

// Totals sums requests up. It is safe for concurrent use.
type Totals struct {
	mu    sync.Mutex
	mode  string
	all   *period
	parts map[part]*period // of the last minutes in which requests were decided
}

// part is a minute of a model.
type part struct {
	minute int64
	model  string
}

// maxParts bounds the parts, of some 2 KB each; beyond, the earliest are dropped.
const maxParts = 4096

// Range selects requests by when they were decided, to the minute, and by their model; zero values select all.
type Range struct {
	Since, Until time.Time
	Model        string
}

func (r *Range) has(p part) bool {
	begins := time.Unix(60*p.minute, 0)
	return (r.Model == "" || r.Model == p.model) && (r.Since.IsZero() || begins.Add(time.Minute).After(r.Since)) &&
		(r.Until.IsZero() || begins.Before(r.Until))
}

// period sums up the requests of one, and is what replicas tell each other.
type period struct {
	Since, Until time.Time
	Arms         map[Arm]*sums
	Accounted    int
	Uncached     account.Sums
	Kept         int
	Seconds      account.Seconds
	Departures   departures `json:"Places"` // the name among replicas
	Would        Savings
	Squares      float64 // sum of the squares of tokens spared
	Waited       [bands]times
}

func newPeriod(since time.Time) *period {
	return &period{Since: since, Arms: map[Arm]*sums{Steered: {}, Unsteered: {}}}
}

type sums struct {
	Side
	First times `json:"first"`
	Last  times `json:"last"`
}

// New returns empty totals. mode and since are for the report; a zero since becomes the time of the first request.
func New(mode string, since time.Time) *Totals {
	return &Totals{mode: mode, all: newPeriod(since), parts: map[part]*period{}}
}

// SetMode changes the mode that the report names.
func (t *Totals) SetMode(mode string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mode = mode
}

// Add counts a request that was decided at a time. One without an arm is not counted.
func (t *Totals) Add(r Request, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all.Arms[r.Arm] == nil {
		return
	}
	t.all.add(&r, at)
	key := part{at.Unix() / 60, r.Model}
	if t.parts[key] == nil {
		if len(t.parts) >= maxParts {
			t.dropEarliest()
		}
		t.parts[key] = newPeriod(time.Time{})
	}
	t.parts[key].add(&r, at)
}

// dropEarliest drops an eighth of the parts, so that it is seldom called.
func (t *Totals) dropEarliest() {
	keys := slices.SortedFunc(maps.Keys(t.parts), func(a, b part) int { return cmp.Compare(a.minute, b.minute) })
	for _, key := range keys[:len(keys)/8] {
		delete(t.parts, key)
	}
}

func (t *period) add(r *Request, at time.Time) {
	s := t.Arms[r.Arm]
	if t.Since.IsZero() || at.Before(t.Since) {
		t.Since = at
	}
	if end := at.Add(r.End); end.After(t.Until) {
		t.Until = end
	}
	s.Requests++
	if !r.OK {
		s.Failed++
		return
	}
	s.First.add(r.FirstByte)
	s.Last.add(r.End)
	t.Waited[1+cmp.Compare(r.Steps, 0)].add(r.Waited)
	t.Accounted += r.Accounted
	t.Uncached.Add(&r.Uncached)
	t.Kept += r.Kept
	if r.Rate > 0 {
		for c, n := range r.Uncached {
			t.Seconds[c] += float64(n) / r.Rate
		}
	}
	t.Departures.add(r)
	if r.Prompt > 0 && r.Cached >= 0 {
		s.Known++
		s.Prompt += r.Prompt
		s.Cached += min(r.Cached, r.Prompt)
		if r.Counted {
			s.Counted++
		}
	}
	if w := r.Would; w != nil && r.Arm == Unsteered {
		t.Would.add(w, r.Prompt)
		t.Squares += float64(w.Tokens()) * float64(w.Tokens())
	}
}

func (w *Savings) add(one *decisionlog.Hypothetical, prompt int) {
	w.Requests++
	w.Prompt += prompt
	switch n := one.Tokens(); {
	case n > 0:
		w.Better++
		w.Spared += n
	case n < 0:
		w.Worse++
		w.Cost -= n
	}
	w.Encode += one.Encode
	if one.Rate > 0 {
		w.Timed++
		w.Millis += 1e3 * float64(one.Tokens()+one.Encode) / one.Rate
	}
}

// Report returns the totals up to now.
func (t *Totals) Report() Report { return t.Of(Range{}) }

// Of returns the totals of a range, as far as it is kept by minute, with those that other replicas have told of it.
func (t *Totals) Of(r Range, others ...[]byte) Report {
	t.mu.Lock()
	sum, mode := t.sum(r), t.mode
	t.mu.Unlock()
	told := 0
	for _, text := range others {
		if one := newPeriod(time.Time{}); json.Unmarshal(text, one) == nil && one.plausible() {
			sum.merge(one)
			told++
		}
	}
	out := sum.report(mode)
	if len(others) > 0 {
		out.Replicas, out.Silent = 1+told, len(others)-told
	}
	return out
}

// Told returns the totals of a range as another replica's Of takes them.
func (t *Totals) Told(r Range) []byte {
	t.mu.Lock()
	sum := t.sum(r)
	t.mu.Unlock()
	text, _ := json.Marshal(sum) // of numbers and texts
	return text
}

// sum returns the totals of a range.
func (t *Totals) sum(r Range) *period {
	sum := newPeriod(r.Since)
	if r == (Range{}) {
		sum.merge(t.all)
		return sum
	}
	for key, p := range t.parts {
		if r.has(key) {
			sum.merge(p)
		}
	}
	return sum
}

// plausible reports whether another replica can have told so: sums of what many tell must stay numbers.
func (t *period) plausible() bool {
	const most = 1 << 50
	fit := func(counts ...int) bool { return slices.Min(counts) >= 0 && slices.Max(counts) <= most }
	for _, p := range t.Departures {
		if p == nil || !fit(p.Tokens, p.Requests) || !(p.Seconds >= 0 && p.Seconds <= most) ||
			len(p.Model)+len(p.Part)+len(p.Kind)+len(p.Advice)+len(p.Example) > maxPlaceText {
			return false
		}
	}
	for _, s := range t.Arms {
		if s == nil || !fit(s.Requests, s.Failed, s.Known, s.Counted, s.Prompt, s.Cached, s.First.N, s.Last.N) {
			return false
		}
	}
	w := &t.Would
	return len(t.Arms) == 2 && t.Arms[Steered] != nil && t.Arms[Unsteered] != nil && fit(t.Uncached[:]...) &&
		fit(t.Accounted, t.Kept, t.Waited[0].N, t.Waited[1].N, t.Waited[2].N) &&
		t.Accounted >= t.Uncached.Total() && slices.Min(t.Seconds[:]) >= 0 && slices.Max(t.Seconds[:]) <= most &&
		fit(w.Requests, w.Prompt, w.Better, w.Spared, w.Worse, w.Cost, w.Timed, max(w.Encode, -w.Encode)) &&
		math.Abs(w.Millis) <= most && t.Squares >= 0 && t.Squares <= most*most
}

const maxPlaceText = 1024

func (t *period) merge(o *period) {
	if !o.Since.IsZero() && (t.Since.IsZero() || o.Since.Before(t.Since)) {
		t.Since = o.Since
	}
	if o.Until.After(t.Until) {
		t.Until = o.Until
	}
	for arm, s := range t.Arms {
		s.merge(o.Arms[arm])
	}
	t.Accounted += o.Accounted
	t.Uncached.Add(&o.Uncached)
	t.Kept += o.Kept
	t.Seconds.Add(&o.Seconds)
	t.Departures.merge(o.Departures)
	w, v := &t.Would, &o.Would
	w.Requests, w.Prompt, w.Better, w.Spared = w.Requests+v.Requests, w.Prompt+v.Prompt, w.Better+v.Better, w.Spared+v.Spared
	w.Worse, w.Cost, w.Encode, w.Timed, w.Millis = w.Worse+v.Worse, w.Cost+v.Cost, w.Encode+v.Encode, w.Timed+v.Timed, w.Millis+v.Millis
	t.Squares += o.Squares
	for i := range t.Waited {
		t.Waited[i].merge(&o.Waited[i])
	}
}

func (s *sums) merge(o *sums) {
	s.Requests, s.Failed, s.Known, s.Counted = s.Requests+o.Requests, s.Failed+o.Failed, s.Known+o.Known, s.Counted+o.Counted
	s.Prompt, s.Cached = s.Prompt+o.Prompt, s.Cached+o.Cached
	s.First.merge(&o.First)
	s.Last.merge(&o.Last)
}

func (t *period) report(mode string) Report {
	r := Report{Mode: mode, Since: t.Since, Until: t.Until, Accounted: t.Accounted, Uncached: t.Uncached, Kept: t.Kept, Seconds: t.Seconds,
		Departures: t.Departures.dearest(),
		Steered:    t.Arms[Steered].side(), Unsteered: t.Arms[Unsteered].side(), Would: t.Would}
	for i := range r.Waited {
		r.Waited[i] = t.Waited[i].quantiles()
	}
	if n := float64(r.Would.Requests); n > 0 {
		r.Would.Mean = float64(r.Would.Spared-r.Would.Cost) / n
		if r.Would.Requests >= fewForMean {
			r.Would.Uncertainty = 1.96 * math.Sqrt(max(0, t.Squares/n-r.Would.Mean*r.Would.Mean)/(n-1))
		}
	}
	return r
}

func (s *sums) side() Side {
	side := s.Side
	side.FirstByte, side.End = s.First.quantiles(), s.Last.quantiles()
	return side
}

// times counts durations in buckets, each ending at the fourth root of two times the previous one.
type times struct {
	N       int
	Buckets [96]uint32
}

const firstBucket = 0.25 // ms

func (h *times) add(d time.Duration) {
	if d <= 0 { // not known
		return
	}
	h.N++
	at := math.Round(4 * math.Log2(d.Seconds()*1e3/firstBucket))
	h.Buckets[int(min(max(0, at), float64(len(h.Buckets)-1)))]++
}

func (h *times) merge(o *times) {
	h.N += o.N
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

func (h *times) quantiles() Times {
	q := Times{N: h.N}
	if h.N >= fewForP50 {
		q.P50 = h.at(0.5)
	}
	if h.N >= fewForP95 {
		q.P95 = h.at(0.95)
	}
	if h.N >= fewForP99 {
		q.P99 = h.at(0.99)
	}
	return q
}

func (h *times) at(share float64) float64 {
	left := int(math.Ceil(share * float64(h.N)))
	i := slices.IndexFunc(h.Buckets[:], func(n uint32) bool { left -= int(n); return left <= 0 })
	return math.Round(10*firstBucket*math.Exp2(float64(i)/4)) / 10
}

// The metrics: the values of the report that are worth a graph.
var (
	requestsDesc = meter.Desc("steering_requests_total", "Ended requests: steered, or by Envoy's load balancing.", "arm")
	tokensDesc   = meter.Desc("steering_tokens_total", "Tokens of answered requests: prompt and cached; "+
		"of the unsteered, those that only the chosen worker held (spared) or only the used one (cost).", "arm", "what")
)

// Show shows the metrics.
func (t *Totals) Show(of meter.Metrics) {
	of.ReadAll(t.collect, requestsDesc, tokensDesc)
}

func (t *Totals) collect(ch chan<- prometheus.Metric) {
	r := t.Report()
	for arm, s := range map[Arm]Side{Steered: r.Steered, Unsteered: r.Unsteered} {
		meter.Counter(ch, requestsDesc, float64(s.Requests), string(arm))
		meter.Counter(ch, tokensDesc, float64(s.Prompt), string(arm), "prompt")
		meter.Counter(ch, tokensDesc, float64(s.Cached), string(arm), "cached")
	}
	meter.Counter(ch, tokensDesc, float64(r.Would.Spared), string(Unsteered), "spared")
	meter.Counter(ch, tokensDesc, float64(r.Would.Cost), string(Unsteered), "cost")
}
