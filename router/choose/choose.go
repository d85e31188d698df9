// Package choose ranks the candidates of a decision by cost.
//
//	work  = tokens to prefill + picture tokens to encode + cost of loading an adapter
//	wait  = tokens queued before it + work
//	cost  = slowness × (wait + wait² ÷ tailTokens + stalled × work × (1 + 1.5 × tokens queued ÷ tailTokens)
//	                    + perRequest × requests in flight + perContext × their prompt tokens)
//	        + full × KV cache in use + cost of fetching + cost of work elsewhere + distance
//	        + junctionWorth × tokens whose end another worker would keep, and this one would not
//
//	stalled = stallShare × requests in flight × tokens queued ÷ overloadTokens (1 at least), at most maxStall + tokens queued ÷ stallStep
//
// All terms are in tokens of an average worker's prefill, so that they can be read and compared. The wait is the request's own
// delay; its square keeps long waits rare. The "stalled" term is the delay of others: work holds up the requests that decode and
// those queued behind it, and costs each of them about as much as one more token costs with that queue (the derivative of wait +
// wait² ÷ tailTokens has 2 for 1.5, but 2 concentrates work in bursts). So a cached prefix is worth more on a busier worker: a fleet
// that is too full to serve everything serves more if it computes less twice. The remaining terms are the delay that other
// requests cause while this one decodes. docs/choice.md has the measurements. Time is linear in the candidates; nothing is
// allocated.
package choose

import "math"

const (
	tailTokens      = 10000 // tokens of waiting at which one more costs three: about a second
	stallShare      = 0.15  // cost to each request in flight there, as a share of the prefill's time
	maxStall        = 10    // limit of the sum with an empty queue: beyond it a queue would grow for the sake of cached prefixes
	stallStep       = 2500  // queued tokens that raise the limit by one: if all queues are long, cached prefixes matter most
	overloadTokens  = 1e5   // queued tokens from which the stall is scaled up: ten seconds of them mean an overloaded fleet
	perRequest      = 64    // tokens that a request in flight costs the next one: its share of each decode step
	perContext      = 0.03  // likewise for each context token that its decode steps read
	fullCacheCost   = 1024  // cost of a completely used KV cache, if the worker reports its use (NVIDIA's standalone example)
	equalWithin     = 48    // costs that differ by at most so many tokens are equal: less than a request in flight, more than a block or two
	equalRateFactor = 1.2   // rates that differ by less are equal: prompt lengths and decode steps vary them as much
	latePerSecond   = 1e9   // cost of a second too late: more than everything else
	maxSlowness     = 8     // limit of slowness, both ways

	handoverCost = 128   // cost of handing a prompt from one worker to another: two requests instead of one, some 10 ms
	defaultRate  = 10000 // tokens prefilled a second if no worker's rate is known

	// junctionWorth is what it is worth, per token, that the next prompt with the same beginning resumes at its end: the prefill, and the
	// delay of others that comes with it.
	junctionWorth = 1.5

	fetchPerToken = 0.06 // cost of each token whose KV blocks are fetched: 128 KB of an 8 B model at 25 GB/s
	tierWaitCost  = 64   // cost of waiting for the worker's own lower tiers: a step of its other requests
)

// Candidate is one slot as the decision sees it.
type Candidate struct {
	Slot      int     // the caller's index
	First     bool    // ranks before all others: its worker gets a trial
	Tokens    int     // length of the prompt, which may differ by class
	Exact     int     // leading tokens held by its events; they count as proof unless Doubtful
	Predicted int     // leading tokens held or predicted; ≥ Exact
	Offloaded int     // the part of Exact, after what its GPU has, to fetch from its lower tiers, in whole units
	FetchRate float64 // tokens fetched from lower tiers a second; 0: not known
	// tokens after Predicted that a hybrid model's worker holds in full attention alone; with this prompt it keeps their end
	Unkept       int
	Pulled       int     // tokens after Predicted that another worker holds; fetched from there if that is cheaper
	Encode       int     // picture tokens after the cached prefix that it would have to encode
	EncodedApart int     // picture tokens after the cached prefix that an encode worker encodes
	AdapterLoad  int     // tokens that it could prefill while it loads the prompt's adapter
	Seen         int     // picture tokens after the cached prefix that its encoder cache should have
	Inflight     int     // requests
	Backlog      float64 // tokens queued
	Context      float64 // prompt tokens of the requests in flight
	Rate         float64 // tokens prefilled a second; 0: not known
	Recent       float64 // tokens given to it recently
	Usage        float64 // share of its KV cache in use, 0 to 1
	Doubtful     bool    // its events have not come for long
	Shared       int     // the part of Backlog that earlier requests in flight spend on this prompt's own prefix
	Late         float64 // seconds by which it misses the client's time for the first token; 0: in time
	ZoneDelay    float64 // seconds of additional round trip from Envoy, compared with a worker in Envoy's zone
	Elsewhere    float64 // cost of others' work for it, in tokens: encoding, the transfer, and the load of the decode worker

	cost float64
}

// Terms is a candidate's cost, term by term, in tokens.
type Terms struct {
	Prefill  float64 `json:"prefill"` // the prompt's rest and its pictures
	Queue    float64 `json:"queue"`
	Tail     float64 `json:"tail"`  // additional cost of a long wait
	Stall    float64 `json:"stall"` // delay of the other requests there during this prefill
	Requests float64 `json:"requests"`
	Context  float64 `json:"context"`
	Cache    float64 `json:"cache"`
	Fetch    float64 `json:"fetch"` // from its lower tiers or another worker
	// Elsewhere is the cost of others: the encode workers; for a prefill worker the transfer and the decode worker.
	Elsewhere float64 `json:"elsewhere"`
	Distance  float64 `json:"distance"` // to another zone
	Junction  float64 `json:"junction"` // another worker would keep more of the prompt's beginning for the next one (Fleet.kept)
}

// Sum returns the cost.
func (t Terms) Sum() float64 {
	return t.Prefill + t.Queue + t.Tail + t.Stall + t.Requests + t.Context + t.Cache + t.Fetch + t.Elsewhere + t.Distance + t.Junction
}

// Term is one part of a cost, with its displayed name.
type Term struct {
	Name   string
	Tokens float64
}

// Named returns the terms, always in this order.
func (t Terms) Named() []Term {
	return []Term{{"prefill", t.Prefill}, {"queue", t.Queue}, {"long wait", t.Tail}, {"stall", t.Stall},
		{"requests", t.Requests}, {"context", t.Context},
		{"cache", t.Cache}, {"fetch", t.Fetch}, {"elsewhere", t.Elsewhere}, {"distance", t.Distance}, {"junction", t.Junction}}
}

// Fleet is what the cost needs to know of all candidates.
type Fleet struct {
	Rate float64 // mean of the known rates

	overlap int // the longest Predicted
	most    int // the most that any candidate would keep
}

// FleetOf summarizes all candidates of a decision.
func FleetOf(c []Candidate) (f Fleet) {
	known := 0
	for i := range c {
		if c[i].Rate > 0 {
			f.Rate += c[i].Rate
			known++
		}
	}
	f.Rate /= float64(max(1, known))
	for i := range c {
		f.overlap = max(f.overlap, c[i].Predicted)
	}
	for i := range c {
		f.most = max(f.most, f.kept(&c[i]))
	}
	return f
}

// kept returns how many leading tokens, beyond those at which some worker can resume already, a candidate's engine would make the next
// prompt with the same beginning resume at. vLLM 0.32 and 0.33 keep windows and states where a prompt ends, and where it parts from
// one that the worker has in full attention: the first worker that computes it after another one is the first that has it.
func (f Fleet) kept(c *Candidate) int { return min(c.Unkept, max(0, c.Predicted+c.Unkept-f.overlap)) }

// rate returns how many tokens a second is worth.
func (f Fleet) rate() float64 {
	if f.Rate > 0 {
		return f.Rate
	}
	return defaultRate
}

// FirstToken returns in how many seconds a candidate is expected to answer: its queue, the prompt's rest and the work elsewhere.
func (f Fleet) FirstToken(c *Candidate) float64 {
	rate := c.Rate
	if rate <= 0 {
		rate = f.rate()
	}
	queue, left, fetches := f.workAhead(c, f.rate()/rate)
	return (queue+left)/rate + (fetches+c.Elsewhere)/f.rate() + c.ZoneDelay
}

// workAhead returns the tokens queued before the prompt, those of it to compute, and the cost of fetching the rest. If fetching from
// a lower tier is not cheaper than computing, the tokens there count as not held.
func (f Fleet) workAhead(c *Candidate, slow float64) (queue, left, fetches float64) {
	queue, left = max(0, c.Backlog-float64(c.Shared)), float64(c.Tokens-min(c.Tokens, c.Predicted))+float64(c.Encode+c.AdapterLoad)
	if c.Pulls() {
		left, fetches = left-float64(c.Pulled), Fetch(c.Pulled)
	}
	if c.Offloaded == 0 {
		return queue, left, fetches
	}
	there := float64(c.Offloaded)
	below := tierWaitCost + fetchPerToken*there
	if c.FetchRate > 0 {
		below = there * f.rate() / c.FetchRate
	}
	if below >= slow*there {
		return queue, left + there, fetches
	}
	return queue, left, fetches + below
}

// Pulls reports whether the candidate is to fetch what another worker holds, because that is cheaper than computing it.
func (c *Candidate) Pulls() bool { return float64(c.Pulled) > Fetch(c.Pulled) }

// Cost returns a candidate's cost. Backlog caused by requests in flight with this same prefix (Shared) is subtracted: elsewhere
// that work would have to be done again.
func (f Fleet) Cost(c *Candidate) Terms {
	slow := 1.0
	if c.Rate > 0 {
		slow = min(maxSlowness, max(1./maxSlowness, f.Rate/c.Rate))
		slow = min(max(1, slow/equalRateFactor), max(slow*equalRateFactor, 1./maxSlowness))
	}
	queue, left, fetches := f.workAhead(c, slow)
	others := float64(c.Inflight)
	return Terms{
		Prefill:  slow * left,
		Queue:    slow * queue,
		Tail:     slow * (queue + left) * (queue + left) / tailTokens,
		Stall:    slow * min(maxStall+queue/stallStep, stallShare*others*max(1, queue/overloadTokens)) * (1 + 1.5*queue/tailTokens) * left,
		Requests: slow * perRequest * others,
		Context:  slow * perContext * c.Context,
		Cache:    fullCacheCost * c.Usage,
		Fetch:    fetches,

		Elsewhere: c.Elsewhere,
		Distance:  c.ZoneDelay * f.rate(),
		Junction:  junctionWorth * float64(f.most-f.kept(c)),
	}
}

// Fetch returns the cost of fetching the KV blocks of so many tokens from another worker. For a few tokens computing is cheaper.
func Fetch(tokens int) float64 { return handoverCost + fetchPerToken*float64(tokens) }

// Encoding returns the cost of having picture tokens encoded by another worker with so many queued. It takes time, but none of
// the candidate's own.
func Encoding(tokens int, waiting float64) float64 { return handoverCost + waiting + float64(tokens) }

// Decoding returns the candidate as one that decodes what another prefills: it fetches what its GPU lacks, and still loads the
// adapter.
func (c *Candidate) Decoding() Candidate {
	d := *c
	d.Elsewhere = Fetch(c.Tokens - min(c.Tokens, c.Predicted-c.Offloaded))
	d.Tokens, d.Offloaded, d.Unkept, d.Pulled, d.Encode, d.EncodedApart, d.First = 0, 0, 0, 0, 0, 0, false
	return d
}

// Rank moves the best n candidates to the front, best first, and returns them. Among equal ones, the one with the least recent
// work comes first; then draw decides, so that routers which do not see each other choose differently. draw should be random.
func Rank(c []Candidate, n int, draw uint64) []Candidate {
	f := FleetOf(c)
	for i := range c {
		c[i].cost = f.Cost(&c[i]).Sum() + latePerSecond*c[i].Late
		if c[i].First {
			c[i].cost = math.Inf(-1)
		}
	}
	n = min(n, len(c))
	for i := range n {
		best := bestIndex(c[i:], draw>>i) + i
		c[i], c[best] = c[best], c[i]
	}
	return c[:n]
}

// bestIndex returns the index of the best candidate.
func bestIndex(c []Candidate, draw uint64) int {
	cheapest := math.Inf(1)
	for i := range c {
		cheapest = min(cheapest, c[i].cost)
	}
	best := -1
	for i := range c {
		if c[i].cost <= cheapest+equalWithin && (best < 0 || tieLess(&c[i], &c[best], draw)) {
			best = i
		}
	}
	return best
}

// tieLess orders candidates of equal cost: by recent work, then by draw.
func tieLess(a, b *Candidate, draw uint64) bool {
	if a.Recent != b.Recent {
		return a.Recent < b.Recent
	}
	return slotHash(a.Slot, draw) < slotHash(b.Slot, draw)
}

// slotHash returns a pseudo-random number for a slot and a draw.
func slotHash(slot int, draw uint64) uint64 {
	x := (draw ^ uint64(slot)) * 0x9E3779B97F4A7C15
	x = (x ^ x>>32) * 0xD6E8FEB86659FD93
	return x ^ x>>32
}
