package indexer

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Models with sliding windows, chunks or recurrent layers keep several KV cache groups. The blocks of one of them, full attention
// over the largest blocks, are what Store records. The others (StoreGroup) hold blocks of the same prompts, mostly few: vLLM keeps
// those that a request may continue from. Their events have no content and often no place, but a block's engine hash is the same in
// all groups at the same position. So the slot counts the copies of each engine hash by group, and for each node that has such a
// block a run of bits says at which of its blocks each kind of group holds what it needs. A lookup reads only these bits; the rule
// is in hybrid.go.
//
// Cost: nothing for slots without further groups; for the others about 25 bytes for each engine hash that a further group holds, a
// bit for each block and kind of group in nodes where one holds something, and about 0.1 µs a block stored or removed there.
type groups struct {
	blockSize int         // tokens of a block that Store records; 0: not known yet
	kinds     []groupKind // groups that need the same are looked up together
	view      groupView
	published *groupView // what lookups see
	unclear   bool       // the groups are not understood: Store's blocks are an upper bound

	held map[uint64]uint64 // engine hash → number of copies by group, four bits each
	// For groups with smaller blocks than Store's: before[h][k-1] is the engine hash of the group's block that ends k blocks before
	// the block h; anchors is the reverse: prompts that differ within one of Store's blocks share the smaller ones before.
	before  map[uint64]*[maxRatio - 1]uint64
	anchors map[uint64][]anchor
	places  int // anchors in all
	// placesLeft is twice their number after those of blocks that are not held were last forgotten.
	placesLeft int
}

type groupKind struct {
	kvevent.Spec
	members uint64 // bit 4n for group n
	ratio   int    // of the group's blocks in one of Store's
}

type anchor struct {
	engineHash uint64
	k          int
}

const (
	maxKinds       = 6
	maxIdleAnchors = 1 << 10
	maxRatio       = 8       // most blocks of a group in one of Store's
	maxGroupCopies = 15      // further copies are not counted: too few cost a hit, too many promise one
	maxGroupBlocks = 1 << 20 // of a slot, under different engine hashes; places of as many again are known
	maxPlaces      = 256     // of a block smaller than Store's
	eachGroup      = 0x1111111111111111

	// Approximate memory of an entry of held, and of a place.
	groupBlockBytes = 40
	placeBytes      = 200
)

// groupView is what a lookup needs to know about a slot's groups. It does not change once it is published.
type groupView struct {
	version  uint32 // of the runs of bits
	align    int32  // a hit is a multiple of this number of blocks
	count    int32  // of kinds
	words    int32  // of a run of bits for 64 blocks
	withhold bool   // the engine withholds the last block found
	anywhere bool   // a hit may end where no group holds anything
	parts    bool   // a hit may also end within a block
	kinds    [maxKinds]kindView
}

// kindView is 8 bytes, so that a view of few kinds is in one cache line.
type kindView struct {
	blocks int32 // the group's: in a row at most (NeedWindow, NeedLast, NeedAll), in a chunk (NeedChunk)
	need   kvevent.Need
	ratio  uint8
	first  uint8 // of its words
	plain  bool  // its blocks are Store's, and it has no chunks
}

// SetWithholds says whether a slot's engine withholds the last block that it finds, as vLLM does when it drafts with EAGLE or MTP (up to
// 0.32, and 0.33 with a KV connector). Events do not say it.
func (x *Index) SetWithholds(id SlotID, withholds bool) {
	s, err := x.lockSlot(id)
	if err != nil {
		return
	}
	defer s.mu.Unlock()
	if s.groups == nil && !withholds {
		return
	}
	g := s.makeGroups()
	g.view.withhold = withholds
	s.publish()
}

// Withholds returns what SetWithholds said; false if the slot's groups are not understood.
func (x *slotList) Withholds(id SlotID) bool {
	v := x.view(id)
	return v != nil && v.withhold
}

// view returns what lookups see of a slot's groups; nil: it has none, or they are not understood.
func (x *slotList) view(id SlotID) *groupView {
	views := *x.views.Load()
	if int(id) >= len(views) {
		return nil
	}
	return views[id].Load()
}

// WindowsMayWithhold reports whether a slot's engine withholds the last block found and has groups with windows. vLLM 0.32 can flag
// these for drafting too, and then needs one block more of a window; no event says so. A group of states needs no more when flagged.
func (x *slotList) WindowsMayWithhold(id SlotID) bool {
	v := x.view(id)
	return v != nil && v.withhold && slices.ContainsFunc(v.kinds[:v.count], func(k kindView) bool { return k.need == kvevent.NeedWindow })
}

// OneGroup reports whether a slot's worker has a single KV cache group, whose blocks are those of prompts.
func (x *slotList) OneGroup(id SlotID) bool {
	s := x.slot(id)
	return s != nil && x.view(id) == nil && !s.unclear.Load()
}

// FindsParts reports whether a slot's engine also finds parts of blocks that hold a state (vLLM's prefix_match_unit). Events do not
// say where these end, so a match is a lower bound: the engine may find up to a block more.
func (x *slotList) FindsParts(id SlotID) bool {
	v := x.view(id)
	return v != nil && v.parts
}

func (s *slot) makeGroups() *groups {
	if s.groups == nil {
		s.groups = &groups{held: map[uint64]uint64{}}
		s.x.hybrids.Add(1)
	}
	return s.groups
}

// publish makes the view what lookups see; they do nothing for groups that are not understood.
func (s *slot) publish() {
	g := s.groups
	var v *groupView
	if !g.unclear {
		if g.published != nil && *g.published == g.view {
			return
		}
		v = new(g.view)
	} else if s.unclear.Load() {
		return
	}
	s.unclear.Store(g.unclear)
	g.published = v
	s.x.setView(s.id, v)
}

// setView sets what lookups see of a slot. The list is one of its own, because slots themselves are far apart in memory.
func (x *slotList) setView(id SlotID, v *groupView) {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := *x.views.Load()
	if int(id) >= len(list) {
		larger := make([]atomic.Pointer[groupView], 2*int(id)+1)
		for i := range list {
			larger[i].Store(list[i].Load())
		}
		list = larger
		x.views.Store(&larger)
	}
	list[id].Store(v)
}

// StoreGroup records that a further group of a slot holds one more copy of some blocks. blockSize is the number of tokens in the
// blocks that Store records. It returns how many were not recorded, for lack of room. Error: ErrUnknownSlot.
func (x *Index) StoreGroup(id SlotID, blockSize int, e *kvevent.Event) (dropped int, err error) {
	s, err := x.lockSlot(id)
	if err != nil {
		return 0, err
	}
	dropped = s.storeGroup(blockSize, e)
	s.mu.Unlock()
	if x.budget.limited {
		x.keepBudget(0, false) // for the runs of bits
	}
	return dropped, nil
}

func (s *slot) storeGroup(blockSize int, e *kvevent.Event) (dropped int) {
	g := s.makeGroups()
	if !g.learn(e.Group, e.Spec, blockSize) || g.unclear {
		s.publish()
		if len(g.held) > 0 {
			s.clearGroups()
		}
		return 0
	}
	if g.published == nil || g.view.version != g.published.version {
		s.publish()
		for h := range g.held { // runs of bits of another version count as empty
			s.syncHash(h)
		}
	}
	for _, h := range e.EngineHashes {
		v, known := g.held[h]
		if n := 4 * e.Group; !known && (len(g.held) >= maxGroupBlocks || !s.reserve(groupBlockBytes)) {
			dropped++
		} else if v>>n&maxGroupCopies < maxGroupCopies {
			g.held[h] = v + 1<<n
		}
	}
	g.anchor(s, e.EngineHashes)
	for _, h := range e.EngineHashes {
		s.syncHash(h)
	}
	return dropped
}

// RemoveGroup records that one copy of some blocks left a further group, and returns how many it did not hold. Error: ErrUnknownSlot.
func (x *Index) RemoveGroup(id SlotID, group int, engineHashes []uint64) (unknown int, err error) {
	s, err := x.lockSlot(id)
	if err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	g := s.groups
	if g == nil || group < 0 || group >= kvevent.Groups {
		return len(engineHashes), nil
	}
	for _, h := range engineHashes {
		v := g.held[h]
		switch copies := v >> (4 * group) & maxGroupCopies; {
		case copies == 0:
			unknown++
		case copies > 1:
			g.held[h] = v - 1<<(4*group)
		default:
			g.held[h] = v - 1<<(4*group)
			if g.held[h] == 0 {
				delete(g.held, h)
				s.reserve(-groupBlockBytes)
			}
			s.syncHash(h)
		}
	}
	return unknown, nil
}

// learn records what a group needs; it returns false if that is not understood. It raises the view's version if lookups must see
// other bits than before.
func (g *groups) learn(group int, spec kvevent.Spec, blockSize int) bool {
	if group < 0 || group >= kvevent.Groups || spec.BlockSize <= 0 {
		g.unclear = true
		return false
	}
	member := uint64(1) << (4 * group)
	for i := range g.kinds {
		k := &g.kinds[i]
		switch {
		case k.Spec == spec || k.members&member == 0:
		case k.Need != kvevent.NeedLast || spec.Need != k.Need: // a group with blocks of two sizes
			g.unclear = true
			return false
		default: // the smaller is a part of a block, which has no place
			if !g.view.parts {
				g.view.parts = true
				g.view.version++
			}
			if spec.BlockSize < k.BlockSize {
				return true
			}
			k.members &^= member
		}
	}
	g.kinds = slices.DeleteFunc(g.kinds, func(k groupKind) bool { return k.members == 0 })
	at := slices.IndexFunc(g.kinds, func(k groupKind) bool { return k.Spec == spec })
	if at >= 0 && g.kinds[at].members&member != 0 && (g.blockSize == blockSize || blockSize == 0) {
		return true
	}
	if at < 0 {
		if len(g.kinds) == maxKinds {
			g.unclear = true
			return false
		}
		at = len(g.kinds)
		g.kinds = append(g.kinds, groupKind{Spec: spec})
	}
	g.kinds[at].members |= member
	if blockSize > 0 {
		g.blockSize = blockSize
	}
	g.describe()
	return true
}

// describe makes the view anew.
func (g *groups) describe() {
	v := &g.view
	v.version++
	align, first, small := max(g.blockSize, 1), 0, 0
	v.count, v.anywhere = int32(len(g.kinds)), true
	for i := range g.kinds {
		k := &g.kinds[i]
		k.ratio = 1
		own := kindView{need: k.Need, first: uint8(first), blocks: 1}
		unit := g.blockSize
		switch {
		case g.blockSize == 0:
		case k.BlockSize < g.blockSize:
			k.ratio, unit = g.blockSize/k.BlockSize, k.BlockSize
			g.unclear = g.unclear || g.blockSize%k.BlockSize != 0 || k.ratio > maxRatio || small != 0 && small != k.BlockSize
			small, k.ratio = k.BlockSize, min(k.ratio, maxRatio)
		case k.BlockSize > g.blockSize:
			g.unclear = g.unclear || k.BlockSize%g.blockSize != 0 || k.Need != kvevent.NeedLast
		}
		switch k.Need {
		case kvevent.NeedAll:
			own.blocks = math.MaxInt32
		case kvevent.NeedWindow:
			own.blocks = int32(max(1, (k.Window-1+unit-1)/max(unit, 1)))
		case kvevent.NeedChunk:
			g.unclear = g.unclear || k.Window <= 0 || g.blockSize == 0 || k.Window%g.blockSize != 0
			own.blocks = int32(max(1, k.Window/max(unit, 1)))
		}
		own.ratio, own.plain = uint8(k.ratio), k.ratio == 1 && k.Need != kvevent.NeedChunk
		first += k.ratio
		align = lcm(align, k.BlockSize)
		v.anywhere = v.anywhere && k.Need == kvevent.NeedChunk
		v.kinds[i] = own
	}
	v.align, v.words = int32(align/max(g.blockSize, 1)), int32(first)
}

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// clearGroups forgets what the further groups hold, but not what they are.
func (s *slot) clearGroups() {
	if g := s.groups; g != nil {
		s.reserve(-int64(len(g.held)*groupBlockBytes + g.places*placeBytes))
		g.held, g.before, g.anchors, g.places, g.placesLeft = map[uint64]uint64{}, nil, nil, 0, 0
		g.view.version++
		s.publish()
	}
}

// ForgetGroups forgets what the further groups of a slot are, and what they hold: the engine's process is another,
// which may have been started otherwise.
func (x *Index) ForgetGroups(id SlotID) {
	s, err := x.lockSlot(id)
	if err != nil {
		return
	}
	defer s.mu.Unlock()
	s.clearGroups()
	if g := s.groups; g != nil {
		g.kinds, g.blockSize, g.unclear = nil, 0, false
		g.view = groupView{version: g.view.version + 1, withhold: g.view.withhold}
		s.publish()
	}
}

// anchor records the places of blocks that are smaller than Store's. What a group keeps is runs of blocks that end where one of
// Store's blocks ends, so the neighbours in the event give the place. A place is known for longer than the block is held, since that
// may be stored again.
func (g *groups) anchor(s *slot, engineHashes []uint64) {
	ratio := 1
	for i := range g.kinds {
		ratio = max(ratio, g.kinds[i].ratio)
	}
	if ratio == 1 {
		return
	}
	if g.places > max(g.placesLeft, len(g.held))+maxIdleAnchors {
		for h := range g.anchors {
			if g.held[h] == 0 {
				s.reserve(-int64(len(g.anchors[h]) * placeBytes))
				g.unanchor(h)
			}
		}
		g.placesLeft = 2 * g.places
	}
	isStored := func(h uint64) bool { return s.find(h, mix(h, s.x.seed)) != noRef }
	next := -1 // index of the next of Store's blocks
	for i := len(engineHashes) - 1; i >= 0; i-- {
		h := engineHashes[i]
		if isStored(h) {
			next = i
			continue
		}
		if next < 0 || next-i >= ratio {
			continue
		}
		if g.anchors == nil {
			g.anchors, g.before = map[uint64][]anchor{}, map[uint64]*[maxRatio - 1]uint64{}
		}
		at := engineHashes[next]
		if g.places >= maxGroupBlocks || len(g.anchors[h]) == maxPlaces || slices.ContainsFunc(g.anchors[h], func(a anchor) bool {
			return a.engineHash == at
		}) || !s.reserve(placeBytes) {
			continue
		}
		list := g.before[at]
		if list == nil {
			list = new([maxRatio - 1]uint64)
			g.before[at] = list
		}
		list[next-i-1] = h
		g.anchors[h] = append(g.anchors[h], anchor{at, next - i})
		g.places++
	}
}

// unanchor forgets the place of a block that no group holds any more.
func (g *groups) unanchor(h uint64) {
	for _, a := range g.anchors[h] {
		if list := g.before[a.engineHash]; list != nil && list[a.k-1] == h {
			list[a.k-1] = 0
			if *list == ([maxRatio - 1]uint64{}) {
				delete(g.before, a.engineHash)
			}
		}
	}
	g.places -= len(g.anchors[h])
	delete(g.anchors, h)
}

// bits returns for each kind of group which of its blocks, up to the end of Store's block h, all of its groups hold.
func (g *groups) bits(h uint64) (out [maxKinds]uint8) {
	before := g.before[h]
	own := g.membersOf(h)
	for i := range g.kinds {
		k := &g.kinds[i]
		if own&k.members == k.members {
			out[i] = 1 << (k.ratio - 1)
		}
		if before == nil || k.ratio == 1 {
			continue
		}
		for back := 1; back < k.ratio; back++ {
			if h := before[back-1]; h != 0 && g.membersOf(h)&k.members == k.members {
				out[i] |= 1 << (k.ratio - 1 - back)
			}
		}
	}
	return out
}

// membersOf returns the groups that hold a block: bit 4n for group n.
func (g *groups) membersOf(h uint64) uint64 {
	v := g.held[h]
	return (v | v>>1 | v>>2 | v>>3) & eachGroup
}

// syncHash updates the bits of a block after its copies changed.
func (s *slot) syncHash(h uint64) {
	for _, a := range s.groups.anchors[h] {
		if ref := s.find(a.engineHash, mix(a.engineHash, s.x.seed)); ref != noRef {
			s.syncRef(ref)
		}
	}
	if ref := s.find(h, mix(h, s.x.seed)); ref != noRef {
		s.syncRef(ref)
	}
}

// syncRef updates the bits of a page's entry.
func (s *slot) syncRef(ref uint32) {
	id := s.x.mem.page(ref / pageBlocks).node
	sh := s.x.shardOfNode(id)
	sh.lockFor(s.table.payer)
	s.syncEntry(sh, sh.node(id), ref/pageBlocks, int(ref%pageBlocks), true)
	sh.lock.Unlock()
}

// syncEntry does so under the shard's lock. With grow false it adds no run, so that residencies of the node do not move.
func (s *slot) syncEntry(sh *shard, nd *node, page uint32, bit int, grow bool) {
	mem := sh.mem
	var now [maxKinds]uint8
	base := mem.page(page).base
	for id := mem.firstAt(page); id != noPage && mem.page(id).base == base; id = mem.page(id).next {
		if pg := mem.page(id); pg.held[GPU]>>bit&1 != 0 {
			for i, b := range s.groups.bits(pg.engineHashes[bit]) {
				now[i] |= b
			}
		}
	}
	res, at := mem.residencyOf(nd, bitsOf(s.id))
	if res == nil {
		if now == ([maxKinds]uint8{}) || !grow {
			return
		}
		res, at = sh.runs.addResidency(nd, bitsOf(s.id))
		if res == nil {
			s.partial.Store(true)
			return
		}
		*at = 0
	}
	if !sh.runs.bitRun(at, int(base)+bit, &s.groups.view, grow) {
		if grow {
			s.partial.Store(true)
		}
		if *at == 0 { // lookups want a run
			sh.runs.dropResidency(nd, bitsOf(s.id))
		}
		return
	}
	v := &s.groups.view
	offset := int(base) + bit
	words := mem.bitRun(*at)[1+offset/64*int(v.words):]
	for i := range v.count {
		k := &v.kinds[i]
		for j := range int(k.ratio) {
			pos := offset%64*int(k.ratio) + j
			w := &words[int(k.first)+pos/64]
			*w = *w&^(1<<(pos%64)) | uint64(now[i]>>j&1)<<(pos%64)
		}
	}
}

// A run of bits: a header (version, blocks, units of memory), then for each 64 blocks of the node, for each kind of group, a bit for each
// of its blocks there.

// bitRun returns the words of a run.
func (m *space) bitRun(at uint32) []uint64 {
	return m.run(at, int(m.run(at, 1)[0]&0xFFFF)*unitWords)
}

// bitRun makes a run of the view's version that has the block at an offset; false if it cannot, or would have to grow and may not.
func (r *runs) bitRun(at *uint32, offset int, v *groupView, grow bool) bool {
	var old []uint64
	have := 0
	if *at != 0 {
		old = r.mem.bitRun(*at)
		if uint32(old[0]>>32) == v.version {
			have = int(old[0] >> 16 & 0xFFFF)
		}
		if offset < have {
			return true
		}
	}
	if !grow {
		return false
	}
	blocks := max(have, (offset+64)/64*64)
	if have > 0 {
		blocks = max(blocks, min(2*have, maxNodeBlocks))
	}
	n := units(1 + int(v.words)*blocks/64)
	to := r.alloc(n)
	if to == 0 {
		return false
	}
	words := r.mem.run(to, n*unitWords)
	clear(words)
	if have > 0 {
		copy(words[1:], old[1:][:int(v.words)*have/64])
	}
	words[0] = uint64(v.version)<<32 | uint64(blocks)<<16 | uint64(n)
	if old != nil {
		r.free(*at, int(old[0]&0xFFFF))
	}
	*at = to
	return true
}

// dropResidency removes the slot's residency of a node, and its run of bits.
func (s *slot) dropResidency(sh *shard, nd *node) {
	if s.groups != nil {
		if _, at := sh.mem.residencyOf(nd, bitsOf(s.id)); at != nil {
			sh.runs.free(*at, int(sh.mem.run(*at, 1)[0]&0xFFFF))
			sh.runs.dropResidency(nd, bitsOf(s.id))
		}
	}
	sh.runs.dropResidency(nd, blocksOf(s.id))
}

// GroupEvents returns the events that make a slot's further groups, empty, hold what they hold, given the slot's own blocks.
func (x *Index) GroupEvents(id SlotID) (out []kvevent.Event) {
	s, err := x.lockSlot(id)
	if err != nil {
		return nil
	}
	defer s.mu.Unlock()
	g := s.groups
	if g == nil {
		return nil
	}
	if g.unclear { // and is by these
		for size := range 2 {
			out = append(out, kvevent.Event{Kind: kvevent.GroupStored, Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 1, BlockSize: size + 1}})
		}
		return out
	}
	for n := range kvevent.Groups {
		for i := range g.kinds {
			if g.kinds[i].members>>(4*n)&1 != 0 {
				spec := g.kinds[i].Spec
				out = s.appendGroupEvents(out, n, spec)
				spec.BlockSize--
				if g.view.parts && spec.Need == kvevent.NeedLast && spec.BlockSize > 0 {
					out = append(out, kvevent.Event{Kind: kvevent.GroupStored, Group: n, Spec: spec})
				}
			}
		}
	}
	return out
}

func (s *slot) appendGroupEvents(out []kvevent.Event, group int, spec kvevent.Spec) []kvevent.Event {
	g := s.groups
	notStored := func(h uint64) int {
		if s.find(h, mix(h, s.x.seed)) == noRef {
			return 1
		}
		return 0
	}
	var byCopies [maxGroupCopies][]uint64
	var placed []uint64 // those that must be beside the block that gives their place
	for h, v := range g.held {
		copies := int(v >> (4 * group) & maxGroupCopies)
		if _, small := g.anchors[h]; small && copies > 0 {
			placed = append(placed, h)
		}
		for c := range copies {
			byCopies[c] = append(byCopies[c], h)
		}
	}
	type place struct {
		engineHash uint64
		anchor
	}
	var places []place
	for _, h := range placed {
		for _, a := range g.anchors[h] {
			places = append(places, place{h, a})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return b.k - a.k }) // the blocks between are removed again, with their places
	for _, p := range places {
		list := []uint64{p.engineHash}
		for k := p.k - 1; k > 0; k-- {
			list = append(list, bits.Reverse64(p.engineHash)+uint64(k))
		}
		list = append(list, p.anchor.engineHash)
		out = append(out, kvevent.Event{Kind: kvevent.GroupStored, Group: group, Spec: spec, EngineHashes: list},
			kvevent.Event{Kind: kvevent.GroupRemoved, Group: group, EngineHashes: list})
	}
	for c, list := range byCopies {
		// Store's blocks first: before one of them another block would seem to have its place there.
		slices.SortStableFunc(list, func(a, b uint64) int { return notStored(a) - notStored(b) })
		if c == 0 || len(list) > 0 {
			out = append(out, kvevent.Event{Kind: kvevent.GroupStored, Group: group, Spec: spec, EngineHashes: list})
		}
	}
	return out
}
