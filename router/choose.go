package router

import (
	"hash/maphash"
	"math"
	"slices"

	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	maxRanked     = 8    // candidates that are ranked
	maxTargets    = 3    // targets sent to Envoy
	maxMedia      = 64   // media of a prompt that influence a choice
	unknownImage  = 1000 // tokens assumed for an image of unknown size: about 1280×720 for most families
	othersPrefill = 1000 // queued tokens assumed for another sender's request at a prefill-only worker: 500 to 2,000 work as well
)

// Values of Decision.Why.
const (
	noWorker    = "no worker known"
	unconfirmed = "not confirmed by events yet"
)

// blocks are the hashes that are looked up for the slots of one group (read.go), and what was found.
type blocks struct {
	class         *servedClass
	form          block.Form
	hasWorkers    bool // there are such slots among those that may get the request
	locals, chain []uint64
	own           int // of locals that were computed: the others are recalled
	recalled      recalled
	standing      *audit.Standing // of the rules that compute its prompts
	aside         audit.Rules     // those that have stepped aside for its workers
	cut           reading         // without what these compute, if its computed is set
	computed      []uint64        // then the blocks with it
	images        []placedMedium  // of the prompt
	front         uint64          // chain hash of the last block that some slot holds; 0: none
}

// unit returns how many blocks the lower tiers of its workers return at once.
func (b *blocks) unit() int { return max(1, b.class.Unit/max(1, b.form.Size)) }

// overlap is how many leading blocks of a prompt a slot's engine would find in any tier, how many of them are on its GPU, and how many
// blocks the slot holds: more if its model has several KV cache groups.
type overlap struct{ blocks, gpu, held int32 }

// choose picks the slot for a prompt and explains the choice. It returns false if no worker can serve the request.
func (x *planner) choose() bool {
	x.mem.candidates, x.mem.bestExcluded = x.mem.candidates[:0], bestExcluded{}
	x.mem.encoders = x.encoders(x.mem.encoders[:0])
	for group := range x.mem.blocks {
		x.addCandidates(group)
	}
	if !x.rank() {
		return false
	}
	x.keepSameEdits()
	best := &x.ranked[0]
	group := x.groupOf(x.chosen)
	rd, size := x.reading(group), x.mem.blocks[group].form.Size
	if x.steers || x.editsAgree() {
		x.addEdits(rd.edits)
	}
	x.out.PromptTokens = max(len(rd.prompt.IDs), x.mem.blocks[group].recalled.Tokens)
	if n := x.mem.blocks[group].recalled.Tokens; rd.computed != nil && n > 0 {
		x.out.PromptTokens = n
	}
	// An engine always computes the last token, so a prompt that is wholly cached loses its last block (vLLM).
	most := max(0, x.tokens(group)-1) / size * size
	x.out.CachedTokens, x.out.OffloadedTokens = min(best.Predicted, most), min(best.Offloaded, most)
	x.out.MatchedBlocks = x.out.CachedTokens / size
	if x.out.CachedTokens == 0 && len(rd.prompt.IDs) >= beginTokens {
		x.out.Begins = uint32(maphash.Comparable(x.seed, [beginTokens]uint32(rd.prompt.IDs)))
	}
	x.out.Images, x.out.ImagesHeld = len(x.mem.blocks[group].images), best.ImagesHeld
	x.recordRegret(best, most)
	x.nameTargets()
	x.out.Source, x.out.Encoder = x.pullSource(best), x.encoder(rd.prompt, best)
	keys := &x.mem.blocks[group]
	x.explain(best, rd, keys)
	x.setSession(group)
	return true
}

// chooseByLoad picks the slot for a request of which at most the model is known. It returns false if no worker can serve it.
func (x *planner) chooseByLoad() bool {
	x.mem.candidates = x.mem.candidates[:0]
	for i := range x.slots {
		x.mem.candidates = append(x.mem.candidates, x.candidate(i, 0))
	}
	if !x.rank() {
		return false
	}
	x.nameTargets()
	return true
}

// nameTargets names the targets, if Envoy is to follow the choice; else the worker that the request would have got, and for an Envoy
// that cannot pick the targets that a request of unknown content would get.
func (x *planner) nameTargets() {
	if x.model != nil {
		x.out.Engine = x.model.classes[x.model.classOf(x.chosen.Worker)].Prompts.Server().Engine
	}
	if x.steers {
		x.setTargets()
		x.rankInBody()
		return
	}
	x.out.UnsteeredChoice = Target{Worker: x.chosen.Worker.Name, Addr: x.chosen.Worker.Addr, Rank: x.chosen.Rank}
	if x.req.MustPick {
		x.pickTargets()
	}
}

func (x *planner) reading(group int) *reading {
	keys := &x.mem.blocks[group]
	if keys.cut.computed != nil {
		return &keys.cut
	}
	return &x.mem.readings[keys.class.reading]
}

// addCandidates looks a group's prompt up in the index and adds the group's slots as candidates. A group whose engine will refuse
// the request adds none; one that could not read the prompt adds slots without overlap.
func (x *planner) addCandidates(group int) {
	s, rd, size, keys := x.mem, x.reading(group), x.mem.blocks[group].form.Size, &x.mem.blocks[group]
	if !keys.hasWorkers || rd.refused() {
		return
	}
	tokens := x.tokens(group)
	if rd.err != nil && tokens == 0 {
		tokens = s.longest
	}
	looked := rd.facts.Reuse != prompt.Recomputed
	s.match(x, keys, looked, max(0, tokens-1)/size)
	from := len(s.candidates)
	s.reach.Reset()
	for i, slot := range x.slots {
		if x.groupOf(slot) != group {
			continue
		}
		c := x.candidate(i, tokens)
		c.AdapterLoad = x.adapters.loadCost(slot, x.adapter, x.model.MaxLoRAs)
		var gpu int
		c.Exact, gpu, c.Doubtful = x.proven(slot, group)
		c.Offloaded = (c.Exact - gpu) * size
		if c.Offloaded > 0 {
			c.FetchRate = slot.FetchRate()
		}
		s.reach.Add(uint32(slot.ID), c.Exact)
		s.candidates = append(s.candidates, c)
	}
	if looked {
		x.predicted.Extend(keys.chain, &s.reach, x.now)
	}
	onItsWay := x.onItsWay(group)
	for i := range s.candidates[from:] {
		c, promised := &s.candidates[from+i], s.reach.Blocks(i)
		if onItsWay != nil {
			estimate := keys.recalled.blocksOf(onItsWay.Blocks(i), size)
			if estimate > promised+1 { // it is not exact to the block
				promised = estimate
			}
		}
		if its := s.overlapOf(x.slots[c.Slot]); promised <= int(its.held) {
			promised = c.Exact // these blocks have come, and do not make a hit
			if !c.Doubtful {
				c.Unkept = int(its.held-its.blocks) * size
			}
		}
		c.Exact, c.Predicted = c.Exact*size, promised*size
	}
	x.addFront(keys, s.candidates[from:])
	x.addImages(keys.images, x.slots, s.candidates[from:])
	x.moveEncoding(s.candidates[from:])
	x.recordEstimates(group, x.slots, s.candidates[from:]...)
	x.matchExcluded(group, looked)
}

// addFront tells a group's candidates how many requests are expected that begin with the longest part that any of them holds.
func (x *planner) addFront(keys *blocks, cands []choose.Candidate) {
	longest := 0
	for i := range cands {
		longest = max(longest, cands[i].Predicted/keys.form.Size)
	}
	if longest == 0 || longest > len(keys.chain) {
		return
	}
	keys.front = keys.chain[longest-1]
	again := x.fronts.expected(keys.front, x.now)
	for i := range cands {
		cands[i].Again = again
	}
}

// countFronts counts the request, once where workers of several classes hold the same.
func (x *planner) countFronts() {
	all := x.mem.blocks
	for i := range all {
		front := all[i].front
		if front != 0 && !slices.ContainsFunc(all[:i], func(b blocks) bool { return b.front == front }) {
			x.fronts.add(front, x.now)
		}
	}
}

// proven returns how many leading blocks of the prompt matched last a slot holds by its events, how many of them are on its GPU,
// and whether that is in doubt. Blocks in lower tiers count in whole units, since a tier returns no less than one.
func (x *planner) proven(slot *fleet.Slot, group int) (blocks, gpu int, doubtful bool) {
	held := x.mem.overlapOf(slot)
	age, _ := indexAge(slot, x.now)
	blocks, doubtful = trustedBlocks(int(held.blocks), age)
	gpu = min(blocks, int(held.gpu))
	unit := x.mem.blocks[group].unit()
	return max(gpu, blocks/unit*unit), gpu, doubtful
}

// candidate returns a slot with its load, which is all that a choice by load needs, for a prompt of so many tokens.
func (x *planner) candidate(i, tokens int) choose.Candidate {
	slot := x.slots[i]
	load := slot.Load(x.now)
	if slot.Worker.Role == fleet.Prefill { // requests waiting there are prefilled there and decoded elsewhere
		load.Backlog += othersPrefill * float64(load.OtherSenders)
		load.Inflight, load.OtherSenders, load.Context = 0, 0, 0
	}
	return choose.Candidate{Slot: i, First: slot.Worker == x.trial, Tokens: tokens, Inflight: load.Inflight - load.OtherSenders +
		discountOthers(load.OtherSenders),
		Backlog: load.Backlog + load.Waits(tokens), Context: load.Context, Rate: load.Rate, Recent: load.Recent,
		ZoneDelay: slot.Worker.ZoneDelay.Seconds()}
}

// discountOthers discounts the number of other senders' requests: 50 count as 14. The number is seconds old, and routers that all follow
// it would herd, so it steers requests away from workers with others' work without making much of how much there is.
func discountOthers(others int) int { return int(2 * math.Sqrt(float64(others))) }

// hashPrompt computes the blocks that are looked up for a group, or copies them from an earlier group with the same ones: two releases
// read most requests alike.
func (x *planner) hashPrompt(group int) {
	p, keys := x.reading(group).prompt, &x.mem.blocks[group]
	keys.locals, keys.chain = keys.locals[:0], keys.chain[:0]
	if same := x.sameBlocks(group); same != nil {
		keys.locals = append(keys.locals, same.locals[:same.own]...)
	} else {
		keys.locals = p.Locals(keys.locals, keys.form, x.adapter)
	}
	x.recall(group)
	keys.chain = x.opt.Secret.Key().Chain(keys.chain, keys.locals)
	x.listImages(group)
}

// sameBlocks returns the blocks of an earlier group that are the same as this group's; nil: there is none.
func (x *planner) sameBlocks(group int) *blocks {
	p, form := x.reading(group).prompt, x.mem.blocks[group].form
	for i := range group {
		if x.mem.blocks[i].hasWorkers && x.reading(i).err == nil && x.mem.blocks[i].form == form && p.SameBlocks(x.reading(i).prompt) {
			return &x.mem.blocks[i]
		}
	}
	return nil
}

// match looks up how many leading blocks each slot holds and replaces the previous match; with look false none holds any. An engine
// finds no more than most.
func (s *scratch) match(x *planner, keys *blocks, look bool, most int) {
	for _, h := range s.matches.Slots {
		s.overlap[h.Slot] = overlap{}
	}
	for _, h := range s.matches.Reduced {
		s.overlap[h.Slot] = overlap{}
	}
	s.matches.Slots, s.matches.GPU, s.matches.Reduced = s.matches.Slots[:0], s.matches.GPU[:0], s.matches.Reduced[:0]
	if look {
		s.matches.Most = most
		x.opt.Index.Match(keys.locals, &s.matches)
	}
	for _, h := range s.matches.Slots {
		for int(h.Slot) >= len(s.overlap) {
			s.overlap = append(s.overlap, overlap{})
		}
		s.overlap[h.Slot] = overlap{int32(h.Blocks), int32(h.Blocks), int32(h.Blocks)}
	}
	for _, h := range s.matches.Reduced {
		for int(h.Slot) >= len(s.overlap) {
			s.overlap = append(s.overlap, overlap{})
		}
		s.overlap[h.Slot].held = int32(h.Blocks)
	}
	for _, h := range s.matches.GPU {
		if int(h.Slot) >= len(s.overlap) {
			continue // its engine would find nothing
		}
		s.overlap[h.Slot].gpu = int32(h.Blocks)
	}
}

func (s *scratch) overlapOf(slot *fleet.Slot) overlap {
	if int(slot.ID) >= len(s.overlap) {
		return overlap{}
	}
	return s.overlap[slot.ID]
}

// placedMedium is an image or another medium of a prompt.
type placedMedium struct {
	SharedMedium     // what its encoding costs
	offset, end  int // tokens of the prompt; end is 0 if its place is not known
}

// listImages lists a group's images, after what is known of its prompt.
func (x *planner) listImages(group int) {
	keys, p := &x.mem.blocks[group], x.reading(group).prompt
	keys.images = keys.images[:0]
	for i := range p.Media[:min(len(p.Media), maxMedia)] {
		md := &p.Media[i]
		one := placedMedium{SharedMedium{md.Key, md.Alias, md.Length}, md.Offset, md.Offset + md.Length}
		if md.Length == 0 {
			one.Tokens, one.end = unknownImage, 0
		}
		keys.images = append(keys.images, one)
	}
	if keys.recalled.class != 0 {
		x.recallImages(keys)
	}
}

// addImages counts, for each candidate (an index into slots), the image tokens after its cached prefix: to encode, or in its
// encoder cache.
func (x *planner) addImages(images []placedMedium, slots []*fleet.Slot, cands []choose.Candidate) {
	for i := range images {
		md := &images[i]
		by := x.sightings.slotsOf(md.Key)
		if by == (seenBy{}) && md.Alias != 0 {
			by = x.sightings.slotsOf(md.Alias)
		}
		for j := range cands {
			c := &cands[j]
			switch {
			case md.end > 0 && md.end <= c.Predicted:
				c.ImagesHeld++
			case by.holds(slots[c.Slot]):
				c.ImagesHeld++
				c.Seen += md.Tokens
			default:
				c.Encode += md.Tokens // all of it, even if a single token is missing
			}
		}
	}
}

// rank orders the candidates. It returns false if none is left: all only prefill, and none decodes for them.
func (x *planner) rank() bool {
	x.addPullSources()
	x.addDecoders()
	if len(x.mem.candidates) == 0 {
		return false
	}
	x.applyDeadline()
	x.ranked = choose.Rank(x.mem.candidates, maxRanked, x.tieBreak())
	x.chosen = x.slots[x.ranked[0].Slot]
	return true
}

// applyDeadline ranks candidates that are expected to be in time first, if the client gave a time for its first token.
func (x *planner) applyDeadline() {
	if x.req.FirstToken <= 0 {
		return
	}
	f, outcome := choose.FleetOf(x.mem.candidates), "late"
	for i := range x.mem.candidates {
		c := &x.mem.candidates[i]
		c.Late = max(0, f.FirstToken(c)-x.req.FirstToken.Seconds())
		if c.Late == 0 {
			outcome = "in time"
		}
	}
	x.tally.deadline = outcome
}

// tieBreak returns a pseudo-random number that differs by decision and by router.
func (x *planner) tieBreak() uint64 {
	d := (x.tieSeed + x.opt.Seed) * 0x9E3779B97F4A7C15
	return d ^ d>>32
}

// keepSameEdits keeps the ranked candidates that need the same body edits as the best one: Envoy changes the body once, for all
// retries.
func (x *planner) keepSameEdits() {
	if len(x.model.prompts) == 1 {
		return
	}
	changes := func(c choose.Candidate) []Edit { return x.reading(x.groupOf(x.slots[c.Slot])).edits }
	best := changes(x.ranked[0])
	kept := slices.DeleteFunc(x.ranked[1:], func(c choose.Candidate) bool { return !sameEdits(changes(c), best) })
	if len(kept) < len(x.ranked)-1 {
		x.tally.fewerRetries = true
	}
	x.ranked = x.ranked[:1+len(kept)]
}

// setTargets names up to three different addresses in the order of the ranking. A worker behind front ends is named in the request,
// for retries too: then the targets are its front ends, and no other worker is offered.
func (x *planner) setTargets() {
	x.out.Targets = make([]Target, 0, maxTargets)
	switch w := x.chosen.Worker; {
	case w.Role == fleet.Prefill:
		x.setPairTargets()
		return
	case w.Instance != "":
		x.targetFrontends(Target{Worker: w.Name, Rank: x.chosen.Rank, Instance: w.Instance})
		return
	}
	for _, c := range x.ranked {
		slot := x.slots[c.Slot]
		named := slices.ContainsFunc(x.out.Targets, func(t Target) bool { return t.Addr == slot.Worker.Addr })
		if slot.Worker.Instance == "" && slot.Worker.Role != fleet.Prefill && !named && len(x.out.Targets) < maxTargets {
			x.out.Targets = append(x.out.Targets, Target{Worker: slot.Worker.Name, Addr: slot.Worker.Addr, Rank: slot.Rank})
		}
	}
}

// targetFrontends makes the chosen worker's front ends the targets, each a copy of t.
func (x *planner) targetFrontends(t Target) {
	list := x.chosen.Worker.Frontends
	for i := range min(len(list), maxTargets) {
		t.Addr = list[(x.tieSeed+uint64(i))%uint64(len(list))]
		x.out.Targets = append(x.out.Targets, t)
	}
}

// explain sets Reason and Why: what the decision is based on, and what keeps it from a better reason or from being certain.
func (x *planner) explain(best *choose.Candidate, rd *reading, keys *blocks) {
	d := &x.out
	_, doubt := indexAge(x.chosen, x.now)
	switch {
	case best.Doubtful && best.Exact > 0:
		d.Reason, d.Why = Predicted, doubt
	case best.Predicted > best.Exact:
		d.Reason, d.Why = Predicted, unconfirmed
	case best.Exact > keys.own*keys.form.Size:
		d.Reason = Learned
		if keys.recalled.Estimate {
			d.Reason = Predicted
		}
	case best.Exact > 0 && keys.class.rules.Uncompared:
		d.Reason, d.Why = Predicted, prompt.Uncompared
	case best.Exact > 0:
		d.Reason = Exact
	case best.Seen > 0:
		d.Reason, d.Why = Affinity, "no block held, media seen"
	case best.Doubtful:
		d.Why = doubt
	default:
		d.Why = "no block held"
	}
	d.Partial = x.opt.Index.Partial(x.chosen.ID) || rd.computed != nil && best.Exact <= keys.own*keys.form.Size
	if d.Partial && d.Why == "" {
		d.Why = "a lower bound: the worker is known in part"
	}
	if x.opt.Index.FindsParts(x.chosen.ID) {
		d.Partial = true
		if d.Why == "" {
			d.Why = "a lower bound: the engine also finds parts of blocks"
		}
	}
	d.UpperBound = x.opt.Index.UpperBound(x.chosen.ID) || rd.model.UpperBound()
	if d.UpperBound && d.CachedTokens > 0 {
		d.Why = "an upper bound: the events do not say all that a hit needs"
	}
	if rd.facts.Reuse == prompt.Perhaps && d.CachedTokens > 0 {
		d.Why = "an upper bound: the engine may read no cache for this request"
	}
	if !rd.prompt.Exact {
		d.Why = rd.prompt.Why
	}
	if rd.facts.Reuse == prompt.Recomputed {
		d.Why = "the engine bypasses its cache for this request"
	}
}
