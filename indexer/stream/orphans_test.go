package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// tree is a worker's cache that evicts only leaves, as engines do; its events are made by the test. Evicted nodes are kept, to
// check that nothing is promised of them.
type tree struct {
	*testing.T
	rng   *rand.Rand
	nodes []*node
	index *indexer.Index
	slot  indexer.SlotID
	feed  *Feed
	hand  *byHand
	doubt time.Duration // how long it lasts; 0: the default
}

type node struct {
	hash, local uint64
	parent      *node
	held        bool
	children    int // number of held ones
}

// byHand is a Source without a replay and the Decoder of its messages.
type byHand struct {
	feed   chan *Feed
	events map[string][]kvevent.Event
	seq    uint64
}

func (h *byHand) Run(ctx context.Context, f *Feed) error {
	f.Up()
	h.feed <- f
	<-ctx.Done()
	return ctx.Err()
}

func (h *byHand) Replay(context.Context, uint64, func(Message) error) error {
	return errors.ErrUnsupported
}

func newTree(t *testing.T, seed uint64) *tree {
	return &tree{T: t, rng: rand.New(rand.NewPCG(seed, 5)), index: indexer.New(indexer.Options{})}
}

// join starts a feed that has received nothing of what was before.
func (w *tree) join() {
	sink := Join(w.index, indexer.SlotOptions{})
	w.slot, w.hand = sink.Slot(), &byHand{feed: make(chan *Feed, 1), seq: 1000}
	w.feed = Start(Options{Source: w.hand, Decoder: w.hand, Sink: sink, doubtTime: w.doubt})
	<-w.hand.feed
	w.Cleanup(w.feed.Close)
}

func (h *byHand) Decode(b []byte) (kvevent.Batch, error) {
	return kvevent.Batch{Events: h.events[string(b)]}, nil
}

// tell sends one batch and waits until it is applied.
func (w *tree) tell(events ...kvevent.Event) {
	w.Helper()
	if w.feed == nil {
		return
	}
	before := w.feed.Stats().Batches
	key := fmt.Sprint("batch ", w.hand.seq)
	w.hand.events = map[string][]kvevent.Event{key: events}
	w.feed.Offer(Message{Seq: w.hand.seq, Payload: []byte(key)})
	w.hand.seq++
	applied(w.T, w.feed, key, func(s Stats) bool { return s.Batches == before+1 })
}

// store adds a chain of n blocks after a node, nil: at the root.
func (w *tree) store(parent *node, n int) (last *node) {
	w.Helper()
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size}
	if parent != nil {
		e.HasParent, e.Parent = true, parent.hash
	}
	for range n {
		child := &node{hash: w.rng.Uint64(), local: w.rng.Uint64(), parent: parent, held: true}
		if parent != nil {
			parent.children++
		}
		w.nodes = append(w.nodes, child)
		e.EngineHashes, e.Locals = append(e.EngineHashes, child.hash), append(e.Locals, child.local)
		parent = child
	}
	w.tell(e)
	return parent
}

// evict removes leaves, one after the other.
func (w *tree) evict(leaves ...*node) {
	w.Helper()
	e := kvevent.Event{Kind: kvevent.Removed}
	for _, n := range leaves {
		n.held = false
		if n.parent != nil {
			n.parent.children--
		}
		e.EngineHashes = append(e.EngineHashes, n.hash)
	}
	w.tell(e)
}

// locals returns a node's prompt.
func (n *node) locals() (out []uint64) {
	for ; n != nil; n = n.parent {
		out = append([]uint64{n.local}, out...)
	}
	return out
}

// learn reveals a node to the feed, as a request below it would.
func (w *tree) learn(n *node) {
	w.Helper()
	w.feed.Learn(Stem{Parent: n.hash, Locals: n.locals()})
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Microsecond) {
		w.feed.mu.Lock()
		taken := len(w.feed.queuedStems) == 0
		w.feed.mu.Unlock()
		if taken {
			break
		} else if time.Now().After(end) {
			w.Fatal("a stem is not taken")
		}
	}
	w.tell() // waits for it
}

// matched returns how many leading blocks of a node's prompt the index has.
func (w *tree) matched(n *node) int {
	var m indexer.Matches
	w.index.Match(n.locals(), &m)
	return m.Longest
}

// neverMore checks that the index promises nothing that is not held.
func (w *tree) neverMore() {
	w.Helper()
	for _, n := range w.nodes {
		if !n.held && w.matched(n) == len(n.locals()) {
			w.Fatalf("a block that is not held is promised, %d blocks into its prompt", len(n.locals()))
		}
	}
}

// TestHotFront checks a system prompt that was stored before the feed began: what is below it waits, and counts once a request
// has revealed its parent; the system prompt counts with it, until the last known block after it is gone.
func TestHotFront(t *testing.T) {
	w := newTree(t, 1)
	front := w.store(nil, 50)
	w.join()
	var leaves []*node
	for range 100 {
		leaves = append(leaves, w.store(w.store(front, 10), 10))
	}
	if held, s := w.index.HeldBlocks(w.slot), w.feed.Stats(); held != 0 || s.Orphans != 2000 || s.UnknownParents != 200 || !s.Partial {
		t.Fatalf("%d blocks held, %+v, want 0, Orphans 2000, UnknownParents 200, Partial true", held, s)
	}
	w.evict(leaves[0]) // applies to what waits
	w.learn(leaves[5].parent)
	w.tell()
	for i, n := range leaves {
		want := 70
		if i == 0 {
			want = 69
		}
		if got := w.matched(n); got != want {
			t.Fatalf("%d blocks of prompt %d are known, want %d", got, i, want)
		}
	}
	if s := w.feed.Stats(); s.Orphans != 0 || s.OrphansAttached != 1999 || s.Stems != 1 || s.UnknownBlocks != 0 {
		t.Errorf("got %+v, want Orphans 0, OrphansAttached 1999, Stems 1, UnknownBlocks 0", s)
	}
	for _, n := range leaves { // all of it is evicted, from the ends
		var chain []*node
		for ; n != front; n = n.parent {
			if n.held {
				chain = append(chain, n)
			}
		}
		w.evict(chain...)
	}
	if got := w.matched(front); got != 50 {
		t.Errorf("%d blocks of the front are known before its last is told to go, want 50", got)
	}
	w.evict(front)
	if held := w.index.HeldBlocks(w.slot); held != 0 {
		t.Errorf("%d blocks held, with the end of the front gone, want 0", held)
	}
}

// TestStemRefused checks that a request reveals nothing if its blocks are not those that wait, or nothing waits, or the parent
// was removed.
func TestStemRefused(t *testing.T) {
	w := newTree(t, 2)
	front, other := w.store(nil, 5), w.store(nil, 5)
	w.join()
	end := w.store(w.store(front, 3), 3)
	lie := end.parent.locals()
	lie[6]++
	for _, s := range []Stem{
		{Parent: end.parent.hash, Locals: lie},
		{Parent: end.parent.hash, Locals: end.parent.locals()[6:]},
		{Parent: other.hash, Locals: other.locals()},
	} {
		w.feed.Learn(s)
	}
	w.learn(other)
	w.tell(kvevent.Event{Kind: kvevent.Removed, EngineHashes: []uint64{front.hash}}) // one of its copies, as far as known
	w.learn(front)
	if held := w.index.HeldBlocks(w.slot); held != 0 {
		t.Errorf("%d blocks held, want 0", held)
	}
	w.store(front, 1) // it is still there
	w.learn(front)
	if got := w.matched(end); got != 11 {
		t.Errorf("%d blocks known, want 11", got)
	}
}

// TestOrphansModel checks that, whatever is stored, evicted, cleared and learned in whatever order, what is promised is held, and
// that all is known when all that waits has been revealed.
func TestOrphansModel(t *testing.T) {
	seeds := 6
	if os.Getenv("SIGHTLINE_LONG") != "" {
		seeds = 500
	}
	for seed := range uint64(seeds) {
		w := newTree(t, seed)
		parent := func() *node {
			if n := w.nodes; len(n) > 0 && w.rng.IntN(5) > 0 {
				if p := n[w.rng.IntN(len(n))]; p.held {
					return p
				}
			}
			return nil
		}
		for range 20 {
			w.store(parent(), w.rng.IntN(4)+1)
		}
		w.join()
		for range 150 {
			switch r := w.rng.IntN(100); {
			case r < 45:
				w.store(parent(), w.rng.IntN(4)+1)
			case r < 80:
				if n := w.nodes[w.rng.IntN(len(w.nodes))]; n.held && n.children == 0 {
					w.evict(n)
				}
			case r < 99:
				if n := parent(); n != nil {
					w.learn(n)
				}
			default:
				w.clears()
			}
			w.neverMore()
		}
		for w.feed.Stats().Orphans > 0 {
			waiting := w.feed.Stats().Orphans
			for _, n := range w.nodes {
				if n.held && n.children > 0 {
					w.learn(n)
				}
			}
			if w.feed.Stats().Orphans == waiting {
				t.Fatalf("seed %d: %d blocks wait whose prompt was shown", seed, waiting)
			}
		}
		w.neverMore()
	}
}

// TestOrphansBounded checks the limit of waiting blocks: the oldest is dropped with what waits for it.
func TestOrphansBounded(t *testing.T) {
	w := newTree(t, 3)
	front := w.store(nil, 1)
	w.join()
	old := w.store(front, 3)
	young := w.store(front, 3)
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, HasParent: true, Parent: 7}
	for i := range uint64(maxOrphans - 5) {
		e.EngineHashes, e.Locals = append(e.EngineHashes, 1000+i), append(e.Locals, i)
	}
	w.tell(e)
	if s := w.feed.Stats(); s.Orphans != maxOrphans-2 || s.OrphansDropped != 3 {
		t.Errorf("got %+v, want Orphans %d, OrphansDropped 3", s, maxOrphans-2)
	}
	w.learn(front)
	a, b := w.matched(old), w.matched(young)
	if a != 1 || b != 4 {
		t.Errorf("%d blocks of the older prompt, %d of the younger, want 1 and 4", a, b)
	}
	// The bookkeeping stays complete: all of it can be dropped.
	w.tell(kvevent.Event{Kind: kvevent.Removed, EngineHashes: e.EngineHashes})
	if o := &w.feed.orphans; o.reported != 0 || len(o.byHash) != 0 || len(o.blocks) != 0 {
		t.Errorf("%d blocks and %d places are left: got %d, want 0, 0, 0", o.reported, len(o.byHash), len(o.blocks))
	}
}

// TestOrphansInACircle checks that blocks that wait for themselves, which no engine reports, do no harm.
func TestOrphansInACircle(t *testing.T) {
	w := newTree(t, 4)
	w.join()
	for _, e := range [][2]uint64{{1, 2}, {2, 3}, {3, 1}, {9, 1}} { // parent, block
		w.tell(kvevent.Event{Kind: kvevent.Stored, BlockSize: size, HasParent: true, Parent: e[0], EngineHashes: e[1:], Locals: e[1:]})
	}
	w.tell(kvevent.Event{Kind: kvevent.Stored, BlockSize: size, EngineHashes: []uint64{9}, Locals: []uint64{9}})
	if held := w.index.HeldBlocks(w.slot); held == 0 || w.feed.orphans.reported+held != 4 {
		t.Errorf("got %d held and %d that wait, want four in all, and some held", held, w.feed.orphans.reported)
	}
}

// TestUnknownParentOfACompleteRank checks that an unknown parent that should be known shows that something is missing, although
// no message is: the worker is asked for everything, and the rank is partial until then.
func TestUnknownParentOfACompleteRank(t *testing.T) {
	w := newWorker(31, true)
	f, r := start(t, w, Options{})
	f.Up()
	for range 60 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	r.mu.Lock() // the sink loses everything: the next chain that grows has no parent
	clear(r.held)
	clear(r.known)
	r.mu.Unlock()
	w.noClear = true
	w.failing.Store(true)
	for f.Stats().UnknownParents == 0 {
		m := w.step()
		f.Offer(m)
		applied(t, f, "the message", func(s Stats) bool { return s.LastSeq == m.Seq })
	}
	applied(t, f, "the question", func(s Stats) bool { return s.ReplayErrors > 0 && s.Partial })
	w.failing.Store(false)
	settle(t, w, r, f)
}

// TestUnknownParentAndAShortReplay checks that nothing known is dropped if the worker replays less.
func TestUnknownParentAndAShortReplay(t *testing.T) {
	w := newWorker(32, true)
	w.noClear, w.keep = true, 3
	f, r := start(t, w, Options{})
	f.Up()
	for range 60 {
		f.Offer(w.step())
		drained(f)
	}
	settle(t, w, r, f)
	before, _ := r.state()
	replays := f.Stats().Replays
	m := w.stray()
	f.Offer(m)
	applied(t, f, "the answer", func(s Stats) bool { return s.Replays > replays && s.Partial && s.UnknownParents > 0 })
	f.Offer(w.step())
	applied(t, f, "the next message", func(s Stats) bool { return s.LastSeq == m.Seq+1 })
	if got, partial := r.state(); len(got) < len(before)-3 || !partial { // that message removes three at most
		t.Errorf("%d blocks of %d are left, partial %v, want at least %d, true", len(got), len(before), partial, len(before)-3)
	}
}

// TestStemsAreBounded checks the limits of stems that wait for the feed and of their made blocks, with further ones dropped and
// counted.
func TestStemsAreBounded(t *testing.T) {
	f := &Feed{wake: make(chan struct{}, 1)}
	for range maxQueuedStems + 3 {
		f.Learn(Stem{})
	}
	if len(f.queuedStems) != maxQueuedStems || f.stats.StemsDropped != 3 {
		t.Errorf("%d stems wait, %d dropped, want %d, 3", len(f.queuedStems), f.stats.StemsDropped, maxQueuedStems)
	}
	var s stems
	if s.add(1, make([]uint64, maxStems+1), nil) != nil || s.add(1, make([]uint64, maxStems), nil) == nil {
		t.Errorf("got %d blocks made, want %d at most, and no more refused", len(s.made), maxStems)
	}
}
