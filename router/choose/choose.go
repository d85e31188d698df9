// Package choose turns what is known of each candidate into a ranking.
//
//	work  = tokens to prefill + picture tokens to encode + what loading an adapter takes
//	wait  = tokens queued before it + work
//	cost  = slowness × (wait + wait² ÷ tail + stalled × work × (1 + 1.5 × tokens queued ÷ tail)
//	                    + perRequest × requests in flight + perContext × their prompt tokens)
//	        + full × KV cache in use + what is fetched + what is done elsewhere + distance
//
//	stalled = stall × requests in flight × tokens queued ÷ overfull (1 at least), at most mostStall + tokens queued ÷ stallStep
//
// All in tokens of an average worker's prefill, so that each term can be read and compared. The wait is what the request pays
// itself; its square keeps the long ones rare. Behind "stalled" stands what the others pay: work holds up those that decode
// and those that come behind it, and costs each of them about what one more token costs where so many are queued (the
// derivative of wait + wait² ÷ tail has 2 for 1.5, which draws work together in bursts). So work that a prefix spares is worth
// the more the busier its worker is: a fleet that is too full to serve all serves the more of them the less it computes twice.
// The rest is what the others make this request pay while it decodes. docs/choice.md has the measurements. Time is linear in
// the candidates; nothing is allocated.
package choose

import "math"

const (
	tail       = 10000 // tokens of waiting at which another one costs three: about a second
	stall      = 0.15  // share of a prefill's time that it costs each request in flight there
	mostStall  = 10    // together, where nothing is queued: beyond, a queue would grow for the sake of what its worker holds
	stallStep  = 2500  // tokens queued that raise it by one: where all queues are long, what is held is what counts
	overfull   = 1e5   // tokens queued from which it counts the more: ten seconds of them are a fleet that is given more than it can serve
	perRequest = 64    // tokens that one request in flight costs the next one: its share of each decode step
	perContext = 0.03  // the same of each token that its decode steps read
	full       = 1024  // what a KV cache costs that is all in use, where a worker tells (NVIDIA's standalone example)
	slack      = 48    // tokens within which costs count as equal: less than one request in flight, more than a block or two
	alike      = 1.2   // rates that differ by less are equal: prompts' lengths and decode steps move them as much
	late       = 1e9   // what a second too late costs: more than all else
	slowest    = 8     // bounds slowness, both ways

	handover = 128   // what it costs to hand a prompt from one worker to another: two requests for one, some 10 ms
	usual    = 10000 // tokens prefilled a second where no worker's rate is known

	fetch = 0.06 // and each token whose KV blocks are fetched: 128 KB of an 8 B model at 25 GB/s
	waits = 64   // and waiting for the worker's own lower tiers: a step of its others
)

// Candidate is one slot as the decision sees it.
type Candidate struct {
	Slot      int     // the caller's index
	First     bool    // it costs less than all others: its worker is to be tried
	Tokens    int     // the prompt's length; workers of another class may read it otherwise
	Exact     int     // leading tokens that its own events prove, or would if it were not Doubtful
	Predicted int     // leading tokens with what was routed there and not confirmed; ≥ Exact
	Offloaded int     // of Exact, those behind what its GPU has, in whole units of its lower tiers: they have to be fetched
	Fetches   float64 // tokens fetched from these a second; 0: not known
	Pulled    int     // tokens behind Predicted that another worker holds, from which it fetches them where that is cheaper
	Encode    int     // picture tokens behind the cached prefix that it would have to encode
	Apart     int     // picture tokens behind it that an encode worker encodes for it
	Load      int     // tokens that it could prefill while it loads the prompt's adapter
	Seen      int     // picture tokens behind the cached prefix that its encoder cache should have
	Inflight  int     // requests
	Backlog   float64 // tokens queued
	Context   float64 // prompt tokens of the requests in flight
	Rate      float64 // tokens prefilled a second; 0: not known
	Recent    float64 // tokens given to it lately
	Usage     float64 // share of its KV cache in use, 0 to 1
	Doubtful  bool    // its events have not come for long
	Shared    int     // of Backlog: work on this very prompt's front, booked by requests that are on their way
	Late      float64 // seconds after the time that the client wants its first token by; 0: in time
	Away      float64 // seconds from Envoy and back, beyond a worker of its own zone
	Elsewhere float64 // what others do for it costs: encoding, the transfer and the load of the one that decodes, in tokens

	cost float64
}

// Terms is a candidate's cost, term by term, in tokens.
type Terms struct {
	Prefill  float64 `json:"prefill"` // of the prompt's rest and its pictures
	Queue    float64 `json:"queue"`
	Tail     float64 `json:"tail"`  // of a long wait, beyond its length
	Stall    float64 `json:"stall"` // of the others there, while this one is prefilled
	Requests float64 `json:"requests"`
	Context  float64 `json:"context"`
	Cache    float64 `json:"cache"`
	Fetch    float64 `json:"fetch"` // of what its lower tiers hold, or another worker
	// Elsewhere is what others add: those that encode; of a worker that only prefills the transfer and the cost of the one that decodes.
	Elsewhere float64 `json:"elsewhere"`
	Distance  float64 `json:"distance"` // of another zone
}

// Sum is the cost.
func (t Terms) Sum() float64 {
	return t.Prefill + t.Queue + t.Tail + t.Stall + t.Requests + t.Context + t.Cache + t.Fetch + t.Elsewhere + t.Distance
}

// Fleet is what of all candidates a cost depends on.
type Fleet struct {
	Rate float64 // the mean of those that are known
}

// FleetOf looks at all candidates of a decision.
func FleetOf(c []Candidate) (f Fleet) {
	known := 0
	for i := range c {
		if c[i].Rate > 0 {
			f.Rate += c[i].Rate
			known++
		}
	}
	f.Rate /= float64(max(1, known))
	return f
}

// rate is what a second counts for, in tokens.
func (f Fleet) rate() float64 {
	if f.Rate > 0 {
		return f.Rate
	}
	return usual
}

// FirstToken is in how many seconds a candidate is expected to answer: its queue, the prompt's rest and what is done elsewhere.
func (f Fleet) FirstToken(c *Candidate) float64 {
	rate := c.Rate
	if rate <= 0 {
		rate = f.rate()
	}
	queue, left, fetches := f.ahead(c, f.rate()/rate)
	return (queue+left)/rate + (fetches+c.Elsewhere)/f.rate() + c.Away
}

// ahead is what is queued before the prompt, what of it there is to compute, and what fetching the rest takes, all in tokens. What a
// lower tier holds is worth computing less fetching: where that is nothing, it counts as if it were not held.
func (f Fleet) ahead(c *Candidate, slow float64) (queue, left, fetches float64) {
	queue, left = max(0, c.Backlog-float64(c.Shared)), float64(c.Tokens-min(c.Tokens, c.Predicted))+float64(c.Encode+c.Load)
	if c.Pulls() {
		left, fetches = left-float64(c.Pulled), Fetch(c.Pulled)
	}
	if c.Offloaded == 0 {
		return queue, left, fetches
	}
	there := float64(c.Offloaded)
	below := waits + fetch*there
	if c.Fetches > 0 {
		below = there * f.rate() / c.Fetches
	}
	if below >= slow*there {
		return queue, left + there, fetches
	}
	return queue, left, fetches + below
}

// Pulls tells whether it is to fetch what another worker holds: where that is cheaper than computing it.
func (c *Candidate) Pulls() bool { return float64(c.Pulled) > Fetch(c.Pulled) }

// Cost is a candidate's. Waiting for work that is being done on the prompt's own front is no cost: elsewhere the same work
// would have to be done again.
func (f Fleet) Cost(c *Candidate) Terms {
	slow := 1.0
	if c.Rate > 0 {
		slow = min(slowest, max(1./slowest, f.Rate/c.Rate))
		slow = min(max(1, slow/alike), max(slow*alike, 1./slowest))
	}
	queue, left, fetches := f.ahead(c, slow)
	others := float64(c.Inflight)
	return Terms{
		Prefill:  slow * left,
		Queue:    slow * queue,
		Tail:     slow * (queue + left) * (queue + left) / tail,
		Stall:    slow * min(mostStall+queue/stallStep, stall*others*max(1, queue/overfull)) * (1 + 1.5*queue/tail) * left,
		Requests: slow * perRequest * others,
		Context:  slow * perContext * c.Context,
		Cache:    full * c.Usage,
		Fetch:    fetches,

		Elsewhere: c.Elsewhere,
		Distance:  c.Away * f.rate(),
	}
}

// Fetch is what it costs to have the KV blocks of so many tokens from another worker; more than computing a few.
func Fetch(tokens int) float64 { return handover + fetch*float64(tokens) }

// Encoding is what it costs to have picture tokens encoded by another worker, where so many wait: time, and none of the candidate's own.
func Encoding(tokens int, waiting float64) float64 { return handover + waiting + float64(tokens) }

// Decoding is the candidate as one that decodes what another prefills: it fetches what its GPU lacks, and loads the adapter all the same.
func (c *Candidate) Decoding() Candidate {
	d := *c
	d.Elsewhere = Fetch(c.Tokens - min(c.Tokens, c.Predicted-c.Offloaded))
	d.Tokens, d.Offloaded, d.Pulled, d.Encode, d.Apart, d.First = 0, 0, 0, 0, 0, false
	return d
}

// Rank sorts the best n candidates to the front, best first, and returns them. Of equal ones that comes first which was
// given the least work lately, and of those the draw decides, so that routers which cannot see each other do not all choose
// the same. Give a random number.
func Rank(c []Candidate, n int, draw uint64) []Candidate {
	f := FleetOf(c)
	for i := range c {
		if c[i].cost = f.Cost(&c[i]).Sum() + late*c[i].Late; c[i].First {
			c[i].cost = math.Inf(-1)
		}
	}
	n = min(n, len(c))
	for i := range n {
		best := next(c[i:], draw>>i) + i
		c[i], c[best] = c[best], c[i]
	}
	return c[:n]
}

// next finds the place of the best one.
func next(c []Candidate, draw uint64) int {
	cheapest := math.Inf(1)
	for i := range c {
		cheapest = min(cheapest, c[i].cost)
	}
	best := -1
	for i := range c {
		if c[i].cost <= cheapest+slack && (best < 0 || before(&c[i], &c[best], draw)) {
			best = i
		}
	}
	return best
}

// before orders equal candidates: by recent work, then in an order of the draw's own.
func before(a, b *Candidate, draw uint64) bool {
	if a.Recent != b.Recent {
		return a.Recent < b.Recent
	}
	return mixed(a.Slot, draw) < mixed(b.Slot, draw)
}

// mixed is a number that looks random, of a slot in a draw.
func mixed(slot int, draw uint64) uint64 {
	x := (draw ^ uint64(slot)) * 0x9E3779B97F4A7C15
	x = (x ^ x>>32) * 0xD6E8FEB86659FD93
	return x ^ x>>32
}
