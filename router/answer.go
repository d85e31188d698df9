package router

import (
	"cmp"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/workers/fleet"
)

// What Envoy and people are told of a plan's three values: targets, edits of the body, and why.

const maxTargets = 3 // sent to Envoy

// Values of Decision.Why.
const (
	noWorker    = "no worker known"
	unconfirmed = "not confirmed by events yet"
)

// answer fills in the decision about a prompt that was read.
func (p *plan) answer() {
	r, o, c, d := &p.mem.reading, &p.mem.overlap, &p.mem.choice, &p.out
	p.tally.fewerRetries = keepSameEdits(o, c, p.list.slots)
	best, l := &c.Ranked[0], p.lookup()
	if p.way.steers || r.editsAgree() {
		d.Edits = r.withEdits(l.read.edits)
	}
	d.PromptTokens = l.knownTokens()
	d.CachedTokens, d.OffloadedTokens = min(best.Predicted, l.usable()), min(best.Offloaded, l.usable())
	d.MatchedBlocks = d.CachedTokens / l.form.Size
	if ids := l.read.prompt.IDs; d.CachedTokens == 0 && len(ids) >= beginTokens {
		d.Begins = uint32(maphash.Comparable(p.beginSeed, [beginTokens]uint32(ids)))
	}
	held, why := regret(o, c, &p.list)
	d.HeldTokens = min(held, l.usable())
	if d.HeldTokens > d.CachedTokens {
		d.Regret = why
	}
	p.nameTargets()
	if best.Pulls() {
		d.Source = c.Holder.Addr
	}
	p.nameEncoders(best, l)
	explain(d, best, l, c.Chosen, p.opt.Index, p.now)
	p.setSession(l)
}

// lookup returns the lookup of the chosen slot.
func (p *plan) lookup() *lookup {
	o := &p.mem.overlap
	return &o.lookups[o.of(p.mem.choice.Chosen)]
}

// keepSameEdits keeps the ranked candidates that need the same body edits as the best one: Envoy changes the body once, for all
// retries. It reports whether others were left out.
func keepSameEdits(o *overlap, c *choose.Choice, slots []*fleet.Slot) (fewer bool) {
	if len(o.lookups) == 1 {
		return false
	}
	edits := func(one *choose.Candidate) []Edit { return o.lookups[o.of(slots[one.Slot])].read.edits }
	kept, best := 1, edits(&c.Ranked[0])
	for i := 1; i < len(c.Ranked); i++ {
		if one := c.Ranked[i]; sameEdits(edits(&one), best) {
			copy(c.Ranked[kept+1:i+1], c.Ranked[kept:i]) // those left out remain among all candidates
			c.Ranked[kept] = one
			kept++
		}
	}
	fewer = kept < len(c.Ranked)
	c.Ranked = c.Ranked[:kept]
	return fewer
}

// nameTargets names the targets, if Envoy is to follow the choice; else the worker that the request would have got, and for an Envoy
// that cannot pick the targets that a request of unknown content would get.
func (p *plan) nameTargets() {
	c, d, m := &p.mem.choice, &p.out, p.mem.reading.model
	if m != nil {
		d.Engine = m.classes[m.classOf(c.Chosen.Worker)].Prompts.Server().Engine
	}
	if p.way.steers {
		d.Targets = targets(c, p.list.slots, p.seed)
		if m != nil && m.classes[m.classOf(c.Chosen.Worker)].rules.NumbersRanksInBody {
			rankInBody(d, c.Chosen, p.req.Body, p.opt.Fleet)
		}
		return
	}
	d.UnsteeredChoice = Target{Worker: c.Chosen.Worker.Name, Addr: c.Chosen.Worker.Addr, Rank: c.Chosen.Rank}
	if p.req.MustPick {
		p.pickTargets()
	}
}

// pickTargets names the targets that a request of unknown content would get, and picks the first slot. It leaves the choice unchanged.
func (p *plan) pickTargets() {
	var any overlap
	any.matchNothing(&p.list.selection)
	in := p.mem.in
	in.Overlaps, in.Adapter, in.Encoders = any.slots, "", nil
	var byLoad choose.Choice
	byLoad.Make(&in)
	if byLoad.Chosen != nil {
		p.picked, p.out.Targets = byLoad.Chosen, targets(&byLoad, p.list.slots, p.seed)
	}
}

// targets names up to three different addresses in the order of the ranking. A worker behind front ends is named in the request,
// for retries too: then the targets are its front ends, and no other worker is offered.
func targets(c *choose.Choice, slots []*fleet.Slot, seed uint64) []Target {
	list := make([]Target, 0, maxTargets)
	switch w := c.Chosen.Worker; {
	case w.Role == fleet.Prefill:
		return pairTargets(c, slots, seed)
	case w.Instance != "":
		return frontends(list, w, Target{Worker: w.Name, Rank: c.Chosen.Rank, Instance: w.Instance}, seed)
	}
	for i := range c.Ranked {
		slot := slots[c.Ranked[i].Slot]
		named := slices.ContainsFunc(list, func(t Target) bool { return t.Addr == slot.Worker.Addr })
		if slot.Worker.Instance == "" && slot.Worker.Role != fleet.Prefill && !named && len(list) < maxTargets {
			list = append(list, Target{Worker: slot.Worker.Name, Addr: slot.Worker.Addr, Rank: slot.Rank})
		}
	}
	return list
}

// frontends makes a worker's front ends the targets, each a copy of t.
func frontends(list []Target, w *fleet.Worker, t Target, seed uint64) []Target {
	for i := range min(len(w.Frontends), maxTargets) {
		t.Addr = w.Frontends[(seed+uint64(i))%uint64(len(w.Frontends))]
		list = append(list, t)
	}
	return list
}

// pairTargets makes the decode workers the targets, in the order of their ranking, and names the worker that prefills for them. A worker
// behind front ends is named in the request, for retries too: then the targets are its front ends, and the workers stay the same.
func pairTargets(c *choose.Choice, slots []*fleet.Slot, seed uint64) []Target {
	w, list := c.Chosen.Worker, make([]Target, 0, maxTargets)
	t := Target{Worker: w.Name, Prefill: w.Instance, PrefillRank: c.Chosen.Rank, Instance: c.Decode.Worker.Instance, Rank: c.Decode.Rank}
	if w.Instance != "" {
		return frontends(list, w, t, seed)
	}
	t.Prefill, t.PrefillRank = w.Addr, -1
	for i := range c.Decoders {
		slot := slots[c.Decoders[i].Slot]
		t.Addr, t.Rank = slot.Worker.Addr, slot.Rank
		list = append(list, t)
	}
	return list
}

// The data-parallel rank travels as a header (package extproc), which Envoy removes from a retry. Some engines read it from the
// body (rules.NumbersRanksInBody), so the body is rewritten when a rank was chosen for them. Envoy repeats that body unchanged,
// so only workers that have the same rank are offered for a retry.

// rankInBody writes the chosen rank at the start of the body (routed_dp_rank, SGLang 0.5.23). What a client put there was removed
// before.
func rankInBody(d *Decision, chosen *fleet.Slot, body [][]byte, f *fleet.Fleet) {
	rank, at := chosen.Rank, bodyStart(body)
	if rank < 0 || at < 0 || chosen.Worker.Instance != "" {
		return
	}
	// The request names a model, so at least one member follows the comma, whatever was removed.
	d.Edits = slices.Insert(d.Edits, 0, Edit{From: at, To: at, Text: []byte(`"routed_dp_rank":` + strconv.Itoa(rank) + `,`)})
	d.Targets = slices.DeleteFunc(d.Targets, func(t Target) bool {
		w := f.ByAddr(t.Addr)
		return w != nil && w.Slots[min(rank, len(w.Slots)-1)].Rank != rank
	})
}

// bodyStart returns the offset after an object's opening brace; -1: the body is not an object.
func bodyStart(body [][]byte) (at int) {
	for _, piece := range body {
		for _, c := range piece {
			at++
			switch c {
			case ' ', '\t', '\r', '\n':
			case '{':
				return at
			default:
				return -1
			}
		}
	}
	return -1
}

// nameEncoders names the workers that encode the media of the prompt for its best candidate, if that does not do it itself.
func (p *plan) nameEncoders(best *choose.Candidate, l *lookup) {
	if best.EncodedApart == 0 {
		p.tally.noEncode = best.Encode > 0 && p.way.steers && len(p.opt.Fleet.Encoders(p.out.Model)) > 0
		return
	}
	media := l.read.prompt.Media[:min(len(l.read.prompt.Media), maxMedia)]
	images := make([]choose.Image, len(media))
	for i := range media {
		images[i] = choose.Image{Key: media[i].Key, Kind: media[i].Modality, Tokens: cmp.Or(media[i].Length, unknownImage)}
	}
	p.encodings, p.out.Encoder = p.encodeQueues.Assign(images, p.mem.encoders, p.now)
}

// explain sets Reason and Why: what the decision is based on, and what keeps it from a better reason or from being certain.
func explain(d *Decision, best *choose.Candidate, l *lookup, chosen *fleet.Slot, index *indexer.Index, now time.Time) {
	rd, computed := l.read, l.own*l.form.Size
	_, doubt := indexAge(chosen, now)
	switch {
	case best.Doubtful && best.Exact > 0:
		d.Reason, d.Why = Predicted, doubt
	case best.Predicted > best.Exact:
		d.Reason, d.Why = Predicted, unconfirmed
	case best.Exact > computed:
		d.Reason = Learned
		if l.recalled.Estimate {
			d.Reason = Predicted
		}
	case best.Exact > 0 && l.class.rules.Uncompared:
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
	d.Partial = index.Partial(chosen.ID) || rd.computed != nil && best.Exact <= computed
	if d.Partial && d.Why == "" {
		d.Why = "a lower bound: the worker is known in part"
	}
	if index.FindsParts(chosen.ID) {
		d.Partial = true
		if d.Why == "" {
			d.Why = "a lower bound: the engine also finds parts of blocks"
		}
	}
	d.UpperBound = index.UpperBound(chosen.ID) || rd.model.UpperBound() || rd.facts.Reuse == prompt.Perhaps
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

// setSession sets the request's session for the audit. If it has none and the engine's events name sessions, the decision's id becomes
// its session. An unsteered request may get to any class.
func (p *plan) setSession(l *lookup) {
	r, named := &p.mem.reading, l.class.sessions
	if !p.way.steers {
		named = slices.ContainsFunc(r.model.classes, func(c servedClass) bool { return c.sessions })
	} else if l.read.err != nil && (p.learning == nil || !l.looksUp()) {
		return
	}
	p.session = r.session
	if p.session == "" && (p.opt.Audit != nil || p.learning != nil) && named && p.mem.choice.Chosen.Worker.Instance == "" {
		p.session, p.out.Session = p.out.ID, p.out.ID
	}
}

// fetches reports whether the engine downloads media before it computes: how long the host takes is not the worker's. Text that begins
// like a URL counts too.
func (p *plan) fetches() bool {
	if b := p.mem.reading.req.Body; b != nil && strings.Contains(b.JSON(), `"http`) {
		return true
	}
	return p.mem.choice.Chosen != nil && !p.unread && p.lookup().read.prompt.StablePrefix() != math.MaxInt
}
