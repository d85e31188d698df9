package choose

import (
	"cmp"
	"math"

	"github.com/sightline-router/sightline/workers/fleet"
)

// The cost of a candidate, in tokens of an average worker's prefill; 10,000 are about a second:
//
//	work  = tokens to prefill + image tokens to encode + cost of loading an adapter
//	cost  = slowness × ((1 + decodeShare × (1 + requests in flight)) × (1 + tokens queued ÷ queueScale) × work + tokens queued
//	                    + perRequest × requests in flight + perContext × their prompt tokens)
//	        + cost of fetching + cost of work elsewhere + distance
//	        + tokens that the next request would compute again here and not at another worker (Fleet.kept)
//
// Work delays the requests that decode there, and those that come while there is a queue. So a cached prefix is worth more on a
// busier worker: a fleet that is too full to serve everything serves more if it computes less twice. docs/choice.md has the
// measurements. Time is linear in the candidates; nothing is allocated.
const (
	decodeShare   = 0.15 // delay of a decoding request by a prefill, as a share of its time: most of it waits anyway; 0.1 to 0.25 do as well
	queueScale    = 5000 // tokens queued that double what work costs: as many as come while they are computed, at 70 % load
	perRequest    = 64   // delay by a request in flight: its share of each decode step, some 6 ms of an answer's time in them
	fetchPerToken = 0.06 // fetching a token's KV blocks: 128 KB of an 8 B model at 25 GB/s

	// The same for each context token that its decode steps read. A step's time shows the proportion, too (fleet.pace).
	perContext = perRequest * fleet.ContextTokens

	defaultRate = 10000 // tokens prefilled a second if no worker's rate is known: the unit of all of this

	// Costs that differ by less are equal, and so are those that differ by less than a share of the prompt's own work (0.05 to 0.15 do
	// as well): what continues a long prompt follows it to its worker, so that balance is worth more than a short beginning.
	tie      = 0.75 * perRequest
	tieShare = 0.07
)

// Overlap is what a slot has of a prompt, in tokens, whatever its load.
type Overlap struct {
	Slot      int     // index into Input.Slots
	Tokens    int     // length of the prompt, which may differ by class
	Exact     int     // leading tokens held by its events; they count as proof unless Doubtful
	Predicted int     // leading tokens held or predicted; ≥ Exact
	Offloaded int     // the part of Exact, after what its GPU has, to fetch from its lower tiers, in whole units
	Unkept    int     // tokens after Predicted that it holds in full attention alone; this prompt makes a hybrid keep their end
	Encode    int     // image tokens after the cached prefix that it would have to encode
	Seen      int     // image tokens after the cached prefix that its encoder cache should have
	Again     float64 // requests expected soon that begin with the longest Predicted of all
	Doubtful  bool    // its events have not come for long
}

// Candidate is one slot as the decision sees it: its overlap, and what its load, its place and other workers' work for it cost.
type Candidate struct {
	Overlap
	First        bool    // ranks before all others: its worker gets a trial
	FetchRate    float64 // tokens fetched from lower tiers a second; 0: not known
	Pulled       int     // tokens after Predicted that another worker holds; fetched from there if that is cheaper
	EncodedApart int     // image tokens after the cached prefix that an encode worker encodes; Encode is 0 then
	AdapterLoad  int     // tokens that it could prefill while it loads the prompt's adapter
	Inflight     int     // requests
	Backlog      float64 // tokens queued
	Context      float64 // prompt tokens of the requests in flight
	Rate         float64 // tokens prefilled a second; 0: not known
	Recent       float64 // tokens given to it recently
	Late         float64 // seconds by which it misses the client's time for the first token; 0: in time
	ZoneDelay    float64 // seconds of additional round trip from Envoy, compared with a worker in Envoy's zone
	Elsewhere    float64 // cost of others' work for it, in tokens: encoding, the transfer, and the load of the decode worker

	Cost float64 // set by Rank
	work float64 // the part of Cost for the prompt's own prefill and encoding
}

// Terms is a candidate's cost, term by term, in tokens.
type Terms struct {
	Prefill   float64 `json:"prefill"` // the prompt's rest and its images
	Queue     float64 `json:"queue"`
	Delay     float64 `json:"delay"` // of other requests, by this prefill
	Requests  float64 `json:"requests"`
	Context   float64 `json:"context"`
	Fetch     float64 `json:"fetch"`     // from its lower tiers or another worker
	Elsewhere float64 `json:"elsewhere"` // cost of others: the encode workers; for a prefill worker the transfer and the decode worker
	Distance  float64 `json:"distance"`  // to another zone
	Junction  float64 `json:"junction"`  // another worker would keep more of the prompt's beginning for the next one (Fleet.kept)
}

// Sum returns the cost.
func (t Terms) Sum() float64 {
	return t.Prefill + t.Queue + t.Delay + t.Requests + t.Context + t.Fetch + t.Elsewhere + t.Distance + t.Junction
}

// Fleet is what the cost needs to know of all candidates.
type Fleet struct {
	Rate          float64 // mean of the known rates
	overlap, most int     // the longest Predicted; the most that any candidate would keep
	holders       float64 // candidates with the longest Predicted
}

// FleetOf summarizes all candidates of a decision.
func FleetOf(c []Candidate) (f Fleet) {
	known := 0
	for i := range c {
		if c[i].Rate > 0 {
			f.Rate += c[i].Rate
			known++
		}
		f.overlap = max(f.overlap, c[i].Predicted)
	}
	f.Rate /= float64(max(1, known))
	for i := range c {
		f.most = max(f.most, f.kept(&c[i]))
		if c[i].Predicted == f.overlap {
			f.holders++
		}
	}
	return f
}

// kept returns how many leading tokens, beyond those at which some worker can resume already, a candidate's engine would make the next
// prompt with the same beginning resume at. vLLM 0.32 and 0.33 keep windows and states where a prompt ends, and where it parts from
// one that the worker has in full attention: the first worker that computes it after another one is the first that has it.
func (f Fleet) kept(c *Candidate) int { return min(c.Unkept, max(0, c.Predicted+c.Unkept-f.overlap)) }

// rates returns how many tokens a second is worth, and how much slower a candidate is.
func (f Fleet) rates(c *Candidate) (rate, slow float64) {
	if f.Rate > 0 && c.Rate > 0 {
		return f.Rate, f.Rate / c.Rate
	}
	return cmp.Or(f.Rate, defaultRate), 1
}

// FirstToken returns in how many seconds a candidate is expected to answer: its queue, the prompt's rest and the work elsewhere.
func (f Fleet) FirstToken(c *Candidate) float64 {
	rate, slow := f.rates(c)
	queue, left, fetches := f.workAhead(c, rate, slow)
	return (slow*(queue+left)+fetches+c.Elsewhere)/rate + c.ZoneDelay
}

// workAhead returns the tokens queued before the prompt, those of it to compute, and the cost of fetching the rest. If fetching from
// a lower tier is not cheaper than computing, the tokens there count as not held.
func (f Fleet) workAhead(c *Candidate, rate, slow float64) (queue, left, fetches float64) {
	queue, left = c.Backlog, float64(c.Tokens-min(c.Tokens, c.Predicted)+c.Encode+c.AdapterLoad)
	if c.Pulls() {
		left, fetches = left-float64(c.Pulled), Fetch(c.Pulled)
	}
	there := float64(c.Offloaded)
	below := perRequest + fetchPerToken*there // it waits for a step of the worker's other requests
	if c.FetchRate > 0 {
		below = there * rate / c.FetchRate
	}
	if below >= slow*there {
		return queue, left + there, fetches
	}
	return queue, left, fetches + below
}

// Work returns the tokens that the candidate has to compute and to encode for the prompt.
func (c *Candidate) Work() int {
	work := c.Tokens - min(c.Tokens, c.Predicted) + c.Encode
	if c.Pulls() {
		work -= c.Pulled
	}
	return max(0, work)
}

// Pulls reports whether the candidate is to fetch what another worker holds, because that is cheaper than computing it.
func (c *Candidate) Pulls() bool { return float64(c.Pulled) > Fetch(c.Pulled) }

// Cost returns a candidate's cost.
func (f Fleet) Cost(c *Candidate) Terms {
	rate, slow := f.rates(c)
	queue, left, fetches := f.workAhead(c, rate, slow)
	inflight := float64(c.Inflight)
	if more := min(f.overlap, c.Tokens) - c.Predicted; more > 0 { // a copy is for its share of the requests expected, too
		left -= float64(more) * (1 - 1/(1+c.Again/(f.holders+1)))
	}
	return Terms{Prefill: slow * left, Queue: slow * queue, Delay: slow * left * ((1+decodeShare*(1+inflight))*(1+queue/queueScale) - 1),
		Requests: slow * perRequest * inflight, Context: slow * perContext * c.Context, Fetch: fetches,
		Elsewhere: c.Elsewhere, Distance: c.ZoneDelay * rate, Junction: float64(f.most - f.kept(c))}
}

// Fetch returns the cost of fetching the KV blocks of a number of tokens from another worker, which takes two requests instead of one.
func Fetch(tokens int) float64 { return 2*perRequest + fetchPerToken*float64(tokens) }

// Rank moves the best n candidates to the front, best first, and returns them. Of those with equal costs one that is
// computing the prompt's beginning comes first, then the one with the least recent work, then the cheaper one if tieShare alone makes
// them equal, then draw decides, so that routers which do not see each other choose differently. draw should be random.
func Rank(c []Candidate, n int, draw uint64) []Candidate {
	f := FleetOf(c)
	for i := range c {
		terms := f.Cost(&c[i])
		c[i].Cost, c[i].work = terms.Sum()+1e9*c[i].Late, terms.Prefill // those in time before all others
		if c[i].First {
			c[i].Cost = math.Inf(-1)
		}
	}
	n = min(n, len(c))
	for i := range n {
		equal, best := Cheapest(c[i:]).Equal(), -1
		for j := i; j < len(c); j++ {
			if c[j].Cost <= equal && (best < 0 || tieLess(&c[j], &c[best], draw>>i)) {
				best = j
			}
		}
		c[i], c[best] = c[best], c[i]
	}
	return c[:n]
}

// Cheapest returns the candidate of the least cost, after Rank.
func Cheapest(c []Candidate) *Candidate {
	least := &c[0]
	for i := range c {
		if c[i].Cost < least.Cost {
			least = &c[i]
		}
	}
	return least
}

// Equal returns the highest cost that counts as equal to the candidate's.
func (c *Candidate) Equal() float64 { return c.Cost + max(tie, tieShare*c.work) }

// tieLess orders candidates of equal cost.
func tieLess(a, b *Candidate, draw uint64) bool {
	if more := float64(a.Predicted - a.Exact - (b.Predicted - b.Exact)); math.Abs(more) > tie {
		return more > 0
	}
	if a.Recent != b.Recent {
		return a.Recent < b.Recent
	}
	if math.Abs(a.Cost-b.Cost) > tie {
		return a.Cost < b.Cost
	}
	return slotHash(a.Slot, draw) < slotHash(b.Slot, draw)
}

// slotHash returns a pseudo-random number for a slot and a draw.
func slotHash(slot int, draw uint64) uint64 {
	x := (draw ^ uint64(slot)) * 0x9E3779B97F4A7C15
	x = (x ^ x>>32) * 0xD6E8FEB86659FD93
	return x ^ x>>32
}
