// Package account says of every prompt token of a finished request whether it was cached and, if not, why:
//
//	decided ─▶ Predict, from what each worker had of the prompt: an Account
//	ended   ─▶ Settle, by the engine's own counts ─▶ decision log, metric, report, /decisions
//
// Its spans lie behind each other, each under one cause: cached + the sum of all causes is the prompt's length, always. Where two
// causes hold, the first of the list below counts.
package account

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"
)

// Cause is why tokens were not cached. The set is closed, for use as metric labels.
type Cause uint8

// The causes. Those of the engine's own rules come first.
const (
	Block     Cause = iota // the rest behind the last whole block, the last token, a block that a drafting engine withholds
	KeptShort              // a hybrid model's worker holds the full attention, but no window or state to go on from
	NotRead                // the engine does not read its cache for this request
	Salt                   // they were computed under another salt or adapter, or for another tenant
	Elsewhere              // another worker held them
	Computing              // another request was computing them then, there or elsewhere
	Evicted                // the worker that had them last dropped them
	Lost                   // the worker that had them last restarted, reset its cache or left
	Changed                // an earlier prompt had them, behind another beginning
	New                    // nothing remembered has them
	Unknown                // nothing reads the prompt so far, or the worker's events do not say
	causes
)

var names = [causes]string{"block", "kept short", "not read", "salt", "elsewhere", "computing", "evicted", "lost", "changed", "new",
	"unknown"}

// Causes returns all of them.
func Causes() iter.Seq[Cause] {
	return func(yield func(Cause) bool) {
		for c := Cause(0); c < causes && yield(c); c++ {
		}
	}
}

func (c Cause) String() string { return names[c] }

// Says returns the cause in words for people, with what would change it.
func (c Cause) Says() string {
	return [causes]string{
		Block:     "behind the last whole block (smaller blocks keep more)",
		KeptShort: "of which a worker kept the attention, not the state or window",
		NotRead:   "that engines do not look up, as with prompt_logprobs",
		Salt:      "computed under another salt, adapter or tenant",
		Elsewhere: "held by another worker (see Regret)",
		Computing: "being computed by another request",
		Evicted:   "evicted (more cache, or a lower tier, keeps them)",
		Lost:      "lost with a worker's restart or cache reset",
		Changed:   "behind a changed beginning",
		New:       "seen for the first time",
		Unknown:   "of unknown cause",
	}[c]
}

// MarshalText returns the cause's name.
func (c Cause) MarshalText() ([]byte, error) { return []byte(names[c]), nil }

// UnmarshalText reads a cause's name.
func (c *Cause) UnmarshalText(text []byte) error {
	at := slices.Index(names[:], string(text))
	if at < 0 {
		return fmt.Errorf("cause %.40q (want one of %q)", text, names)
	}
	*c = Cause(at)
	return nil
}

// By is something by cause. JSON has what is not 0, by name.
type By[N int | float64] [causes]N

// Sums are tokens, and Seconds seconds by cause.
type (
	Sums    = By[int]
	Seconds = By[float64]
)

// MarshalJSON returns an object of what is not 0, by cause.
func (s By[N]) MarshalJSON() ([]byte, error) {
	by := make(map[Cause]N, len(s))
	for c, n := range s {
		if n != 0 {
			by[Cause(c)] = n
		}
	}
	return json.Marshal(by)
}

// UnmarshalJSON reads one. What is of a cause that this release does not know counts as of an unknown one.
func (s *By[N]) UnmarshalJSON(text []byte) error {
	var by map[string]N
	err := json.Unmarshal(text, &by)
	*s = By[N]{}
	for name, n := range by {
		c := Unknown
		_ = c.UnmarshalText([]byte(name))
		s[c] += n
	}
	return err
}

// Add adds others.
func (s *By[N]) Add(o *By[N]) {
	for c, n := range o {
		s[c] += n
	}
}

// Total returns the sum of all causes.
func (s *By[N]) Total() (n N) {
	for _, one := range s {
		n += one
	}
	return n
}

// Each calls a function with each cause that has tokens, the largest first.
func (s *By[N]) Each(do func(c Cause, n N)) {
	var order [causes]Cause
	for c := range order {
		order[c] = Cause(c)
	}
	slices.SortStableFunc(order[:], func(a, b Cause) int { return cmp.Compare(s[b], s[a]) })
	for _, c := range order {
		if s[c] > 0 {
			do(c, s[c])
		}
	}
}

// Span is a run of a prompt's tokens that were not cached for one cause.
type Span struct {
	From   int    `json:"from"`
	To     int    `json:"to"` // the first token behind it
	Cause  Cause  `json:"cause"`
	Why    string `json:"why,omitempty"`    // more about the cause, in words of ours
	Worker string `json:"worker,omitempty"` // evicted, lost: the worker that had them
	// evicted, lost: how long before the request the worker was last asked for them
	Ago    time.Duration `json:"ago_ns,omitempty"`
	Times  float64       `json:"cache_times,omitempty"` // evicted: a cache so many times the size would have kept all of them; 0: not known
	Change *Change       `json:"change,omitempty"`      // changed: where the prompt departs from the earlier one
}

// String returns the span for people.
func (s *Span) String() string {
	text := fmt.Sprintf("%d–%d %s", s.From, s.To-1, s.Cause)
	if s.Worker != "" {
		text += " by " + s.Worker
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	if s.Change != nil {
		text += ": " + s.Change.String()
	}
	if s.Ago > 0 {
		text += fmt.Sprintf(", last used %s before", s.Ago.Round(time.Second))
	}
	if s.Times > 0 {
		text += fmt.Sprintf("; %.1f times its cache would have kept them", s.Times)
	}
	return text
}

// Account is what became of a prompt's tokens: the first Cached were cached, the spans say why the others were not.
type Account struct {
	Tokens   int    `json:"tokens"`
	Cached   int    `json:"cached"`
	Uncached Sums   `json:"uncached,omitzero"` // of the spans
	Spans    []Span `json:"spans,omitempty"`
	Kept     int    `json:"kept_by_a_fifth,omitempty"` // evicted tokens that a cache a fifth larger would have kept

	known  Known
	unless []Span // from what is proven on, if less is found cached than predicted; nil: they are Spans
}

// Known is what a decision knew of a prompt at the worker that gets it, in tokens from the prompt's beginning.
type Known struct {
	Tokens int // of the prompt; 0: not known
	Usable int // those that an engine can find cached at most
	Cached int // predicted to be found cached
	Exact  int // the part of Cached that the worker's events prove
	// Held are those that the worker holds; behind Cached its engine does not use them: they follow the last state of a hybrid model, or
	// the first Withheld are withheld since it drafts.
	Held, Withheld int
	Elsewhere      int    // the most that another worker holds
	Why            string // why that worker did not get the request
	Read           int    // those that something reads
	Rest           Cause  // of those behind
	RestWhy        string
	NoRead         bool // the engine does not read its cache
	MayRead        bool // it may not
}

// Predict returns the account as a decision predicts it. behind appends the spans of tokens that no other worker holds, from the first one
// on, as far as something is known of them: who computes them, or had them.
func Predict(k Known, behind func(spans []Span, from, to int) []Span) *Account {
	a := &Account{Tokens: k.Tokens, Cached: min(k.Exact, k.Cached, k.Usable), Spans: make([]Span, 0, 4), known: k}
	cached := min(k.Cached, k.Usable)
	if k.NoRead {
		a.Cached, cached = 0, 0
		a.extend(k.Usable, NotRead, "")
	}
	if k.Held > k.Cached {
		a.extend(min(a.Cached+k.Withheld, k.Held, k.Usable), Block, "")
		a.extend(min(k.Held, k.Usable), KeptShort, "")
	}
	a.extend(min(k.Elsewhere, k.Usable), Elsewhere, k.Why)
	read := min(k.Read, k.Usable)
	if from := a.end(); from < read {
		a.Spans = behind(a.Spans, from, read)
		a.extend(read, New, "")
	}
	a.extend(k.Usable, k.Rest, k.RestWhy)
	a.extend(k.Tokens, Block, "")
	if a.Cached < cached {
		a.unless = slices.Clone(a.Spans)
		a.found(cached)
	}
	a.sum()
	return a
}

// Unseen returns the run of tokens in which all are of which nothing is remembered; from == to: there is none.
func (a *Account) Unseen() (from, to int) { return within(New, a.Spans, a.unless) }

// Evicted returns the run of tokens in which all are that were evicted; from == to: there is none.
func (a *Account) Evicted() (from, to int) { return within(Evicted, a.Spans) }

func within(c Cause, lists ...[]Span) (from, to int) {
	for _, list := range lists {
		for _, s := range list {
			if s.Cause == c && from == to {
				from = s.From
			}
			if s.Cause == c {
				from, to = min(from, s.From), max(to, s.To)
			}
		}
	}
	return from, to
}

// Explain puts tokens from one to another of which nothing was remembered under a cause.
func (a *Account) Explain(from, to int, c Cause, why string, change *Change) {
	for _, list := range []*[]Span{&a.Spans, &a.unless} {
		for i := 0; i < len(*list); i++ {
			s := (*list)[i]
			from, to := max(from, s.From), min(to, s.To)
			if s.Cause != New || from >= to {
				continue
			}
			parts := make([]Span, 0, 3)
			if s.From < from {
				parts = append(parts, Span{From: s.From, To: from, Cause: New})
			}
			parts = append(parts, Span{From: from, To: to, Cause: c, Why: why, Change: change})
			if to < s.To {
				parts = append(parts, Span{From: to, To: s.To, Cause: New})
			}
			*list = slices.Replace(*list, i, i+1, parts...)
		}
	}
	a.sum()
}

// Needs says how large a worker's cache would have had to be for its evicted blocks: those from one on, up to the next one, so many times
// the size; +Inf: not known. Pushed: there was room for them, had requests in flight not taken it.
type Needs struct {
	Token  int
	Times  float64
	Pushed bool
}

// PushedOut is why tokens of an evicted span, or some of them, were: with too many requests in flight for its cache an engine also
// preempts some, and computes them again.
const PushedOut = "requests in flight took the room"

// Enlarge fills in what larger caches would have kept; needs are by token.
func (a *Account) Enlarge(needs []Needs) {
	a.Kept = 0
	for i := range a.Spans {
		s := &a.Spans[i]
		if s.Cause != Evicted {
			continue
		}
		for k, n := range needs {
			end := s.To
			if k+1 < len(needs) {
				end = min(end, needs[k+1].Token)
			}
			from := max(s.From, n.Token)
			if k == 0 {
				from = s.From
			}
			if from >= end {
				continue
			}
			if n.Pushed {
				s.Why = PushedOut
			}
			s.Times = max(1, s.Times, n.Times)
			if n.Times <= aFifthLarger {
				a.Kept += end - from
			}
		}
		if math.IsInf(s.Times, 1) {
			s.Times = 0
		}
	}
}

const aFifthLarger = 1.2

// Change returns where the prompt departs from an earlier one; nil: no token is under Changed.
func (a *Account) Change() *Change {
	for i := range a.Spans {
		if c := a.Spans[i].Change; c != nil {
			return c
		}
	}
	return nil
}

// Says returns the spans for people.
func (a *Account) Says() (list []string) {
	for i := range a.Spans {
		list = append(list, a.Spans[i].String())
	}
	return list
}

func (a *Account) sum() {
	a.Uncached = Sums{}
	for i := range a.Spans {
		a.Uncached[a.Spans[i].Cause] += a.Spans[i].To - a.Spans[i].From
	}
}

// end returns the first token that no span has.
func (a *Account) end() int {
	if n := len(a.Spans); n > 0 {
		return a.Spans[n-1].To
	}
	return a.Cached
}

// extend adds a span up to a token, if that is behind the others.
func (a *Account) extend(to int, c Cause, why string) {
	from := a.end()
	if to <= from {
		return
	}
	if n := len(a.Spans); n > 0 && a.Spans[n-1].Cause == c && a.Spans[n-1].Why == why && a.Spans[n-1].Worker == "" {
		a.Spans[n-1].To = to
		return
	}
	a.Spans = append(a.Spans, Span{From: from, To: to, Cause: c, Why: why})
}

// Found is what the end of a request says of its prompt.
type Found struct {
	Tokens int  // the engine's count; 0: not known
	Cached int  // the engine's count; -1: not known
	Moved  bool // another worker got the request
	// Restored reports whether the worker has stored some of the tokens from one to another since the decision: then it had dropped them
	// before.
	Restored func(from, to int) bool
}

// Settle makes the account agree with what the engine counted. Tokens that it found although no decision expected it are taken from the
// causes in front; of those that it did not find the decision's knowledge tells why.
func (a *Account) Settle(f Found) {
	switch {
	case f.Cached < 0:
	case f.Cached < a.Cached:
		a.missed(&f)
	default:
		a.found(f.Cached)
	}
	a.Tokens = max(a.Tokens, a.Cached)
	if f.Tokens > 0 && f.Tokens != a.Tokens {
		a.Tokens = f.Tokens
		a.cut()
		a.extend(a.Tokens, a.known.Rest, a.known.RestWhy)
	}
	a.sum()
}

// cut ends the account with the prompt.
func (a *Account) cut() {
	a.Cached = min(a.Cached, a.Tokens)
	a.Spans = slices.DeleteFunc(a.Spans, func(s Span) bool { return s.From >= a.Tokens })
	if n := len(a.Spans); n > 0 {
		a.Spans[n-1].To = min(a.Spans[n-1].To, a.Tokens)
	}
}

// found makes the first tokens cached ones, at the cost of the causes in front.
func (a *Account) found(cached int) {
	a.Cached = cached
	a.Spans = slices.DeleteFunc(a.Spans, func(s Span) bool { return s.To <= cached })
	if len(a.Spans) > 0 {
		a.Spans[0].From = max(a.Spans[0].From, cached)
	}
}

// missed puts spans before the others for tokens that were predicted to be cached and were not.
func (a *Account) missed(f *Found) {
	k, rest, to, proven := &a.known, a.Spans, a.Cached, a.Cached
	if a.unless != nil {
		rest, proven = a.unless, a.unless[0].From
	}
	a.Cached, a.Spans = f.Cached, make([]Span, 0, len(rest)+3)
	switch {
	case f.Moved:
		a.extend(to, Elsewhere, "moved")
	case k.MayRead && f.Cached == 0:
		a.extend(to, NotRead, "")
	}
	a.extend(min(k.Elsewhere, proven), Elsewhere, "")
	if from := a.end(); from < proven {
		if f.Restored(from, proven) {
			a.extend(proven, Evicted, "since the decision")
		} else {
			a.extend(proven, Unknown, "its events say that it held them")
		}
	}
	for i := range rest {
		if at := a.end(); rest[i].To > at {
			a.Spans = append(a.Spans, rest[i])
			a.Spans[len(a.Spans)-1].From = at
		}
	}
}
