// Package choose chooses the slot for a prompt: from what each slot has of it (Overlap) and its load it makes candidates, each with its
// cost in terms, and ranks them. It knows neither the request nor the index, and changes nothing.
//
//	Input ─ steps, in their order ─▶ candidates ─ Rank ─▶ Choice
//
// cost.go has the formula. Time is linear in the candidates; what a Choice allocated is used again.
package choose

import (
	"math"
	"slices"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	maxRanked     = 8    // candidates that are ranked
	maxDecoders   = 3    // of each revision
	othersPrefill = 1000 // queued tokens assumed for another sender's request at a prefill-only worker: 500 to 2,000 work as well
)

// Input is what a choice is made from.
type Input struct {
	Slots        []*fleet.Slot // that may get the request; their load is read from them
	Overlaps     []Overlap     // of those that can serve it, by class
	Trial        *fleet.Worker // failing, and due for one request: it is ranked first; nil: none is
	Now          time.Time
	Draw         uint64        // breaks ties
	FirstToken   time.Duration // within which the client wants its first token; 0: not given
	Adapter      string        // that the prompt needs; "": none
	MaxLoRAs     int           // adapters that a worker has loaded at once; 0: as it reports, else 1
	Adapters     *Adapters
	Encoders     []*fleet.Slot // healthy workers that only encode
	EncodeQueues *EncodeQueues
	FetchKV      bool // workers fetch KV blocks from each other
}

// Choice is what comes of it. Its memory is used again by the next one.
type Choice struct {
	Candidates []Candidate   // all; those of Ranked first
	Ranked     []Candidate   // the best, best first
	Chosen     *fleet.Slot   // slot of Ranked[0]; nil: no slot can serve the request
	Decode     *fleet.Slot   // slot that decodes, if another than Chosen
	Decoders   []Candidate   // those that may decode for Chosen, best first; empty: it decodes itself
	Holder     *fleet.Worker // from which candidates with Pulled would fetch; nil: none
	Deadline   string        // "in time" if a candidate should meet FirstToken, else "late"; "": none was given
	NoPrefill  bool          // some workers only decode by configuration, but had to prefill too
}

// steps make the candidates, in this order. Each sees what the ones before it have made.
var steps = [...]func(*Input, *Choice){
	addLoad,         // requests, queues and rates; the trial; the zone
	skipCordoned,    // but for what they alone hold
	addAdapterLoads, // adapters.go
	moveEncoding,    // encoders.go: workers that only encode
	addPulls,        // what another worker could send
	addDecoders,     // pairs.go: workers that only prefill, and those that decode
	addLateness,     // the client's deadline
}

// Make replaces a choice by the one for an input. It leaves Chosen nil if no candidate remains: all only prefill, and none decodes.
func (c *Choice) Make(in *Input) {
	*c = Choice{Candidates: c.Candidates[:0], Decoders: c.Decoders[:0]}
	for _, step := range steps {
		step(in, c)
	}
	if len(c.Candidates) == 0 {
		return
	}
	c.Ranked = Rank(c.Candidates, maxRanked, in.Draw)
	c.Chosen = in.Slots[c.Ranked[0].Slot]
	keepRevision(in, c)
}

// addLoad makes the candidates, with the load of each slot. At a slot that only prefills, requests wait to be prefilled and are decoded
// elsewhere.
func addLoad(in *Input, c *Choice) {
	for i := range in.Overlaps {
		o := &in.Overlaps[i]
		slot := in.Slots[o.Slot]
		load := slot.Load(in.Now)
		if slot.Worker.Role == fleet.Prefill {
			load.Backlog += othersPrefill * float64(load.OtherSenders)
			load.Inflight, load.OtherSenders, load.Context = 0, 0, 0
		}
		c.Candidates = append(c.Candidates, Candidate{Overlap: *o, First: slot.Worker == in.Trial,
			Inflight: load.Inflight - load.OtherSenders + discountOthers(load.OtherSenders),
			Backlog:  load.Backlog + load.Waits(o.Tokens), Context: load.Context, Rate: load.Rate, Recent: load.Recent,
			ZoneDelay: slot.Worker.ZoneDelay.Seconds()})
		if o.Offloaded > 0 {
			c.Candidates[len(c.Candidates)-1].FetchRate = slot.FetchRate()
		}
	}
}

// skipCordoned removes candidates of cordoned workers that hold no more of the prompt than one in service. They stay where no other worker
// of their kind is left.
func skipCordoned(in *Input, c *Choice) {
	worker := func(one *Candidate) *fleet.Worker { return in.Slots[one.Slot].Worker }
	prefills := func(one *Candidate) int {
		if worker(one).Role == fleet.Prefill {
			return 1
		}
		return 0
	}
	cordoned, held, others := false, 0, [2]bool{}
	for i := range c.Candidates {
		one := &c.Candidates[i]
		if !worker(one).InService() {
			cordoned = true
			continue
		}
		held, others[prefills(one)] = max(held, one.Predicted), true
	}
	if cordoned {
		c.Candidates = slices.DeleteFunc(c.Candidates, func(one Candidate) bool {
			return !worker(&one).InService() && one.Predicted <= held && others[prefills(&one)]
		})
	}
}

// discountOthers discounts the number of other senders' requests: 50 count as 14. The number is seconds old, and routers that all follow
// it would herd, so it steers requests away from workers with others' work without making much of how much there is.
func discountOthers(others int) int { return int(2 * math.Sqrt(float64(others))) }

// addPulls fills in what each candidate could fetch from the worker that holds most of the prompt by its events, if workers fetch from
// each other.
func addPulls(in *Input, c *Choice) {
	if !in.FetchKV {
		return
	}
	most := 0
	for i := range c.Candidates {
		if one := &c.Candidates[i]; one.Exact > most && !one.Doubtful {
			c.Holder, most = in.Slots[one.Slot].Worker, one.Exact
		}
	}
	if c.Holder == nil {
		return
	}
	for i := range c.Candidates {
		one := &c.Candidates[i]
		if w := in.Slots[one.Slot].Worker; w != c.Holder && w.Instance == "" && w.Revision == c.Holder.Revision {
			one.Pulled = max(0, min(most, one.Tokens)-one.Predicted)
		}
	}
}

// addLateness ranks candidates that are expected to be in time first, if the client gave a time for its first token.
func addLateness(in *Input, c *Choice) {
	if in.FirstToken <= 0 || len(c.Candidates) == 0 {
		return
	}
	f := FleetOf(c.Candidates)
	c.Deadline = "late"
	for i := range c.Candidates {
		one := &c.Candidates[i]
		one.Late = max(0, f.FirstToken(one)-in.FirstToken.Seconds())
		if one.Late == 0 {
			c.Deadline = "in time"
		}
	}
}
