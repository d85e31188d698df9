package router

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// The second of a decision's three values: what each slot has of the prompt. No load is known here.
//
//	begin: slots by class, form of their blocks and rules aside ─▶ hash: blocks, computed or recalled (lookup.go, recall.go)
//	─▶ match: of each slot what its events prove, what is predicted, and the images that it has seen

// overlap is what the slots of a selection have of a prompt. Its memory is used again by the next one.
type overlap struct {
	lookups   []lookup
	bySlot    []uint16         // by slot: its lookup
	slots     []choose.Overlap // of those that may get the request now, by lookup
	excluded  []choose.Overlap // of the others, where Slot is an index into selection.known
	matches   indexer.Matches
	matched   []matched           // by slot; entries that are not in matches are 0
	reach     speculative.Reaches // by slot of the current lookup
	path      learned.Path        // of the request, if it is remembered
	pathChain []uint64            // the numbers of its steps, if they were looked up
	sent      speculative.Reaches
}

// matched is how many leading blocks of a prompt a slot's engine would find in any tier, how many of them are on its GPU, and how many
// blocks the slot holds: more if its model has several KV cache groups.
type matched struct{ blocks, gpu, held int32 }

// memory is what is known of prompts at workers, besides the index.
type memory struct {
	predicted *speculative.Index
	sightings *sightings
	fronts    *fronts
	learning  *learning
}

// lookInput is what an overlap is made from.
type lookInput struct {
	*reading
	*selection
	*memory
	index        *indexer.Index
	secret       *block.Secret
	path, tenant string // of the request
	now          time.Time
	all          bool // images count at excluded slots too, since Envoy may use them nevertheless
}

// String describes what the slots have.
func (o *overlap) String() string {
	var b strings.Builder
	for i := range o.lookups {
		if l := &o.lookups[i]; l.hasWorkers {
			fmt.Fprintf(&b, "class %q, blocks of %d: %d computed, %d in all, %d media\n",
				l.class.Name, l.form.Size, l.own, len(l.locals), len(l.images))
		}
	}
	for i := range o.slots {
		fmt.Fprintf(&b, "%+v\n", o.slots[i])
	}
	return b.String()
}

// release drops what refers to a request.
func (o *overlap) release() {
	for i := range o.lookups {
		o.lookups[i].cut, o.lookups[i].read = engineReading{}, nil
	}
	o.lookups = o.lookups[:0] // a request that is not read looks nothing up
	o.slots, o.excluded = o.slots[:0], o.excluded[:0]
	o.path.Reset()
}

// of returns the index of a slot's lookup.
func (o *overlap) of(slot *fleet.Slot) int { return int(o.bySlot[slot.ID]) }

// begin lists what is looked up for the slots, and marks the readings that they need.
func (o *overlap) begin(in *lookInput) {
	r := in.reading
	r.begin()
	r.byEngine[0].needed = len(in.slots) == 0
	o.lookups = o.lookups[:0]
	for i := range r.model.classes {
		o.add(r, &r.model.classes[i], block.Form{}, r.model.classes[i].judged.Standing(), 0)
	}
	for _, slot := range in.known { // a class's first lookup has the form of its first slot that has stored something
		if first := &o.lookups[r.model.classOf(slot.Worker)]; first.form == (block.Form{}) {
			first.form = in.index.Form(slot.ID)
		}
	}
	for _, slot := range in.known {
		class := r.model.classOf(slot.Worker)
		at := o.lookupFor(r, class, in.index.Form(slot.ID), o.lookups[class].standing.Aside(slot.Worker.Name))
		for int(slot.ID) >= len(o.bySlot) {
			o.bySlot = append(o.bySlot, 0)
		}
		o.bySlot[slot.ID] = uint16(at)
	}
	for _, slot := range in.slots {
		l := &o.lookups[o.of(slot)]
		l.hasWorkers, l.read.needed = true, true
	}
}

// add adds a lookup.
func (o *overlap) add(r *reading, class *servedClass, form block.Form, standing *audit.Standing, aside audit.Rules) {
	n := len(o.lookups)
	o.lookups = slices.Grow(o.lookups, 1)[:n+1]
	o.lookups[n].begin(r, class, form, standing, aside)
}

// lookupFor returns the lookup of those slots of a class that have blocks of a form and for which the same rules have stepped aside. If it
// is not listed yet, it is added. A slot that has stored nothing has no form: its blocks are expected to be like those of the first one.
func (o *overlap) lookupFor(r *reading, class int, form block.Form, aside audit.Rules) int {
	own := &o.lookups[class]
	if own.form == (block.Form{}) {
		own.form.Size = own.class.BlockSize
	}
	if form == (block.Form{}) {
		form = own.form
	}
	for i := range o.lookups {
		if l := &o.lookups[i]; l.class == own.class && l.form == form && l.aside == aside {
			return i
		}
	}
	o.add(r, own.class, form, own.standing, aside)
	return len(o.lookups) - 1
}

// hash computes the blocks that are looked up. It runs before decisions are taken one at a time.
func (o *overlap) hash(in *lookInput) {
	for i := range o.lookups {
		l := &o.lookups[i]
		l.stepAside(in.reading)
		if !l.hasWorkers || l.read.refused() {
			continue
		}
		l.locals, l.chain = l.locals[:0], l.chain[:0]
		if same := o.sameBlocks(i); same != nil {
			l.locals = append(l.locals, same.locals[:same.own]...)
		} else {
			l.locals = l.read.prompt.Locals(l.locals, l.form, in.adapter)
		}
		l.recall(in, &o.path)
		l.chain = in.secret.Key().Chain(l.chain, l.locals)
		l.listImages()
	}
}

// sameBlocks returns an earlier lookup that has computed the same blocks as another one has: two releases read most requests alike; nil:
// there is none.
func (o *overlap) sameBlocks(i int) *lookup {
	l := &o.lookups[i]
	for at := range i {
		as := &o.lookups[at]
		if as.hasWorkers && as.read.err == nil && as.form == l.form && l.read.prompt.SameBlocks(as.read.prompt) {
			return as
		}
	}
	return nil
}

// match fills in what the slots have. A class whose engine will refuse the request is left out; one that could not read the prompt has
// nothing.
func (o *overlap) match(in *lookInput) {
	o.slots, o.excluded = o.slots[:0], o.excluded[:0]
	for i := range o.lookups {
		if l := &o.lookups[i]; l.hasWorkers && !l.read.refused() {
			o.matchOne(in, i)
		}
	}
}

// matchNothing lists the slots without a prompt.
func (o *overlap) matchNothing(s *selection) {
	o.slots, o.excluded = o.slots[:0], o.excluded[:0]
	for i := range s.slots {
		o.slots = append(o.slots, choose.Overlap{Slot: i})
	}
}

func (o *overlap) matchOne(in *lookInput, i int) {
	l := &o.lookups[i]
	size, tokens := l.form.Size, l.tokens()
	if l.read.err != nil && tokens == 0 {
		tokens = in.longest
	}
	looked := l.read.facts.Reuse != prompt.Recomputed
	o.find(in.index, l.locals, looked, max(0, tokens-1)/size)
	from := len(o.slots)
	o.reach.Reset()
	for at, slot := range in.slots {
		if o.of(slot) == i {
			blocks, gpu, doubtful := o.proven(slot, l.unit(), in.now)
			o.reach.Add(uint32(slot.ID), blocks)
			o.slots = append(o.slots, choose.Overlap{Slot: at, Tokens: tokens, Exact: blocks, Offloaded: (blocks - gpu) * size, Doubtful: doubtful})
		}
	}
	if looked {
		in.predicted.Extend(l.chain, &o.reach, in.now)
	}
	o.addPredicted(in, i, o.slots[from:])
	l.addFront(in, o.slots[from:])
	addImages(l.images, in.sightings, in.slots, o.slots[from:])
	o.matchExcluded(in, i, looked)
}

// addPredicted adds what each slot of a lookup is predicted to hold, and turns blocks into tokens.
func (o *overlap) addPredicted(in *lookInput, i int, slots []choose.Overlap) {
	l := &o.lookups[i]
	size, onItsWay := l.form.Size, o.onItsWay(in, i)
	for at := range slots {
		c, promised := &slots[at], o.reach.Blocks(at)
		if onItsWay != nil {
			estimate := l.recalled.blocksOf(onItsWay.Blocks(at), size)
			if estimate > promised+1 { // it is not exact to the block
				promised = estimate
			}
		}
		if its := o.matchedAt(in.slots[c.Slot]); promised <= int(its.held) {
			promised = c.Exact // these blocks have come, and do not make a hit
			if !c.Doubtful {
				c.Unkept = int(its.held-its.blocks) * size
			}
		}
		c.Exact, c.Predicted = c.Exact*size, promised*size
	}
}

// matchExcluded adds what the slots of a lookup have that cannot be chosen now.
func (o *overlap) matchExcluded(in *lookInput, i int, looked bool) {
	l, from := &o.lookups[i], len(o.excluded)
	in.selection.excluded(func(at int, slot *fleet.Slot) {
		if o.of(slot) != i {
			return
		}
		exact, _, doubtful := o.proven(slot, l.unit(), in.now)
		held := exact
		if looked {
			held = in.predicted.Leading(uint32(slot.ID), l.chain, exact, in.now)
		}
		o.excluded = append(o.excluded, choose.Overlap{Slot: at, Exact: exact * l.form.Size, Predicted: held * l.form.Size, Doubtful: doubtful})
	})
	if in.all {
		addImages(l.images, in.sightings, in.known, o.excluded[from:])
	}
}

// find looks up how many leading blocks each slot holds and replaces the previous result; with look false none holds any. An engine
// finds no more than most.
func (o *overlap) find(index *indexer.Index, locals []uint64, look bool, most int) {
	for _, h := range o.matches.Slots {
		o.matched[h.Slot] = matched{}
	}
	for _, h := range o.matches.Reduced {
		o.matched[h.Slot] = matched{}
	}
	o.matches.Slots, o.matches.GPU, o.matches.Reduced = o.matches.Slots[:0], o.matches.GPU[:0], o.matches.Reduced[:0]
	if look {
		o.matches.Most = most
		index.Match(locals, &o.matches)
	}
	for _, h := range o.matches.Slots {
		for int(h.Slot) >= len(o.matched) {
			o.matched = append(o.matched, matched{})
		}
		o.matched[h.Slot] = matched{int32(h.Blocks), int32(h.Blocks), int32(h.Blocks)}
	}
	for _, h := range o.matches.Reduced {
		for int(h.Slot) >= len(o.matched) {
			o.matched = append(o.matched, matched{})
		}
		o.matched[h.Slot].held = int32(h.Blocks)
	}
	for _, h := range o.matches.GPU {
		if int(h.Slot) >= len(o.matched) {
			continue // its engine would find nothing
		}
		o.matched[h.Slot].gpu = int32(h.Blocks)
	}
}

func (o *overlap) matchedAt(slot *fleet.Slot) matched {
	if int(slot.ID) >= len(o.matched) {
		return matched{}
	}
	return o.matched[slot.ID]
}

// proven returns how many leading blocks of the prompt matched last a slot holds by its events, how many of them are on its GPU,
// and whether that is in doubt. Blocks in lower tiers count in whole units, since a tier returns no less than one.
func (o *overlap) proven(slot *fleet.Slot, unit int, now time.Time) (blocks, gpu int, doubtful bool) {
	held := o.matchedAt(slot)
	age, _ := indexAge(slot, now)
	blocks, doubtful = trustedBlocks(int(held.blocks), age)
	gpu = min(blocks, int(held.gpu))
	return max(gpu, blocks/unit*unit), gpu, doubtful
}

// onItsWay returns how many steps of the request's path the slots of a lookup were sent recently in other requests; nil: nothing more
// than what is remembered of it.
func (o *overlap) onItsWay(in *lookInput, i int) *speculative.Reaches {
	r := &o.lookups[i].recalled
	if r.class == 0 || r.Steps >= len(r.path.Steps) || o.lookups[i].read.facts.Reuse == prompt.Recomputed {
		return nil
	}
	o.sent.Reset()
	for _, slot := range in.slots {
		if o.of(slot) == i {
			o.sent.Add(uint32(slot.ID), 0)
		}
	}
	o.pathChain = appendChain(o.pathChain[:0], r.path)
	in.learning.sent.Extend(o.pathChain, &o.sent, in.now)
	return &o.sent
}

// mostExcluded returns the longest overlap of an excluded slot; nil: none has any.
func (o *overlap) mostExcluded() (best *choose.Overlap) {
	for i := range o.excluded {
		if one := &o.excluded[i]; one.Predicted > 0 && (best == nil || one.Predicted > best.Predicted) {
			best = one
		}
	}
	return best
}

// addFront tells slots how many requests are expected that begin with the longest part that any of them holds.
func (l *lookup) addFront(in *lookInput, slots []choose.Overlap) {
	longest := 0
	for i := range slots {
		longest = max(longest, slots[i].Predicted/l.form.Size)
	}
	if longest == 0 || longest > len(l.chain) {
		return
	}
	l.front = l.chain[longest-1]
	again := in.fronts.expected(l.front, in.now)
	for i := range slots {
		slots[i].Again = again
	}
}

// addImages counts the image tokens after each slot's cached prefix: to encode, or in its encoder cache. Slots are listed in list.
func addImages(images []placedMedium, seen *sightings, list []*fleet.Slot, slots []choose.Overlap) {
	for i := range images {
		md := &images[i]
		by := seen.slotsOf(md.Key)
		if by == (seenBy{}) && md.Alias != 0 {
			by = seen.slotsOf(md.Alias)
		}
		for j := range slots {
			c := &slots[j]
			switch {
			case md.end > 0 && md.end <= c.Predicted:
			case by.holds(list[c.Slot]):
				c.Seen += md.Tokens
			default:
				c.Encode += md.Tokens // all of it, even if a single token is missing
			}
		}
	}
}
