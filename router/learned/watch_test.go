package learned

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/workers/fleet"
)

// told is a slot whose events a test makes up. Its block hashes are the local ones and one more.
type told struct {
	t        *testing.T
	l        *Learner
	m        *Memory
	index    *indexer.Index
	slot     indexer.SlotID
	now      time.Time
	outcomes map[Outcome]int
}

func newEngine(t *testing.T) *told {
	e := &told{t: t, m: NewMemory(1<<20, new(Sizes)), index: indexer.New(indexer.Options{}), now: time.Unix(1, 0), outcomes: map[Outcome]int{}}
	e.slot = e.index.Join(indexer.SlotOptions{})
	e.l = NewLearner(Options{Memory: e.m, Chain: e.index.Chain, Now: func() time.Time {
		return e.now
	}, Outcome: func(o Outcome) { e.outcomes[o]++ }})
	return e
}

func (e *told) watch(id, session string, r request) {
	var p Recalled
	e.m.Recall(1, r.path(), &p)
	e.l.Watch(&Request{ID: id, Slot: e.slot, Class: 1, Size: 16, Session: session, Path: *r.path(), Begin: p.Blocks[:p.Learned]})
}

// stores makes the slot store blocks from one on of some tokens.
func (e *told) stores(session string, tokens []int, from, to int) {
	e.t.Helper()
	chain := chainOf(tokens)
	to = min(to, len(chain))
	ev := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Session: session, Locals: chain[from:to]}
	for _, h := range ev.Locals {
		ev.EngineHashes = append(ev.EngineHashes, h+1)
	}
	if from > 0 {
		ev.HasParent, ev.Parent = true, chain[from-1]+1
	}
	e.l.Stored(e.slot, &ev)
	if err := e.index.Store(e.slot, ev.Tier, ev.Parent, ev.HasParent, ev.EngineHashes, ev.Locals); err != nil {
		e.t.Fatal(err)
	}
}

func (e *told) end(id string, prompt, output int) {
	e.l.End(id, Report{prompt, output})
	e.now = e.now.Add(2 * grace)
	e.l.Settle(e.now)
}

func (e *told) knows(r request) int {
	var p Recalled
	e.m.Recall(1, r.path(), &p)
	return p.Learned
}

func (e *told) estimates(r request) bool {
	var p Recalled
	e.m.Recall(1, r.path(), &p)
	return p.Estimate
}

// Of requests that wait at once and of which nothing is remembered, the first event is of the one with which the slot begins: the oldest,
// or where it serves by when they are due the one that is due first. All teach guesses, the last one too: if the slot serves otherwise,
// its blocks are another's.
func TestWhoseTurn(t *testing.T) {
	list := []request{{[]int{1, 2, 11, 12}}, {[]int{2, 1, 12, 11}}, {[]int{11, 12, 2, 1}}} // of equal length
	for name, c := range map[string]struct {
		due, served []int
		right       bool
	}{
		"as they come":              {[]int{0, 0, 0}, []int{0, 1, 2}, true},
		"by when they are due":      {[]int{30, 10, 20}, []int{1, 2, 0}, true},
		"those without it before":   {[]int{30, 0, 20}, []int{1, 2, 0}, true},
		"alike":                     {[]int{20, 10, 10}, []int{1, 2, 0}, true},
		"in an order nobody knows":  {[]int{0, 0, 0}, []int{1, 2, 0}, false},
		"otherwise than it is said": {[]int{10, 20, 30}, []int{2, 1, 0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			for i, r := range list {
				e.l.Watch(&Request{ID: fmt.Sprint(i), Slot: e.slot, Class: 1, Size: 16, Path: *r.path(), Due: int64(c.due[i])})
			}
			for _, i := range c.served {
				e.stores("", list[i].prompt(), 0, 1<<20)
			}
			for i := range list {
				e.end(fmt.Sprint(i), len(list[i].prompt()), 1)
			}
			for i, r := range list {
				var p Recalled
				e.m.Recall(1, r.path(), &p)
				own := slices.Equal(p.Blocks, chainOf(r.prompt()))
				if len(p.Blocks) > 0 && !p.Estimate || c.right && !own {
					t.Errorf("request %d: got its own blocks: %v, an estimate: %v; want %v and true", i, own, p.Estimate, c.right)
				}
			}
		})
	}
}

// A request that a worker failed is due at the next one as that one serves, not as the first did.
func TestMovedIsDue(t *testing.T) {
	a, b := request{[]int{1, 2, 11, 12}}, request{[]int{2, 1, 12, 11}}
	e := newEngine(t)
	e.l.Watch(&Request{ID: "a", Slot: e.slot + 1, Class: 1, Size: 16, Path: *a.path(), Due: 30})
	e.l.Move("a", e.slot, 1, 0)
	e.l.Watch(&Request{ID: "b", Slot: e.slot, Class: 1, Size: 16, Path: *b.path()})
	e.stores("", a.prompt(), 0, 1<<20)
	e.stores("", b.prompt(), 0, 1<<20)
	for id, r := range map[string]request{"a": a, "b": b} {
		e.end(id, len(r.prompt()), 1)
	}
	for _, r := range []request{a, b} {
		var p Recalled
		e.m.Recall(1, r.path(), &p)
		if !slices.Equal(p.Blocks, chainOf(r.prompt())) {
			t.Errorf("%v: got blocks of another prompt, %d, want its own", r, len(p.Blocks))
		}
	}
}

// TestWhose: what an event teaches, and whom.
func TestWhose(t *testing.T) {
	a, b := request{[]int{1, 2, 11, 12}}, request{[]int{3, 4, 13, 14}}
	const all = 1 << 20
	for name, c := range map[string]struct {
		do   func(e *told)
		a, b bool // are learned
		want map[Outcome]int
	}{
		"one after another": {func(e *told) {
			e.watch("a", "", a)
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			e.watch("b", "", b)
			e.stores("", b.prompt(), 0, all)
			e.end("b", len(b.prompt()), 1)
		}, true, true, map[Outcome]int{Learned: 2}},
		"behind the answer of another one, which has ended here and goes on there": {func(e *told) {
			long := append(a.prompt(), tokensOf(-5)...)
			long = append(long, tokensOf(-6)...)
			n := len(chainOf(a.prompt()))
			e.watch("a", "", a)
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			other := request{[]int{1, 2, 21, 22}} // begins as a does
			e.watch("other", "", other)
			e.l.byID["other"].Seen, e.l.byID["other"].Shared = &fleet.Seen{Blocks: n + 1}, true // and is about as long
			e.stores("", long, n, n+1)
			e.stores("", other.prompt(), 0, all)
			e.end("other", len(other.prompt()), 1)
			if got, want := e.knows(other), len(chainOf(other.prompt())); got != want {
				e.t.Errorf("of the other %d blocks are known, want %d", got, want)
			}
		}, true, false, map[Outcome]int{Learned: 1, Guessed: 1}},
		"behind the answer of another one, which is not watched any more and goes on": {func(e *told) {
			long := append(a.prompt(), tokensOf(-5)...)
			n := len(chainOf(a.prompt()))
			e.watch("a", "", a)
			e.stores("", a.prompt(), 0, all)
			e.l.remove(e.l.byID["a"])             // for lack of room
			other := request{[]int{1, 2, 21, 22}} // begins as a does
			e.watch("other", "", other)
			e.l.byID["other"].Seen = &fleet.Seen{Blocks: n + 1} // and is about as long
			e.stores("", long, n, n+1)
			e.stores("", other.prompt(), 0, all)
			e.end("other", len(other.prompt()), 1)
			if got, want := e.knows(other), len(chainOf(other.prompt())); got != want {
				e.t.Errorf("of the other %d blocks are known, want %d", got, want)
			}
		}, false, false, map[Outcome]int{Learned: 1}},
		"behind the answer of one that overtook another, which has ended": {func(e *told) {
			fast, third := request{[]int{1, 2, 13, 14}}, request{[]int{1, 2, 21, 22}} // begin as a does
			n := len(chainOf(fast.prompt()))
			e.watch("a", "", a)
			e.watch("fast", "", fast)
			e.stores("", fast.prompt(), 0, all) // taken for a's
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			e.watch("third", "", third)
			e.stores("", append(fast.prompt()[:16*n:16*n], tokensOf(-5)...), n, n+1)
			e.stores("", third.prompt(), 0, all)
			e.end("third", len(third.prompt()), 1)
			e.end("fast", len(fast.prompt()), 1)
			if got, want := e.knows(third), len(chainOf(third.prompt())); got != want {
				e.t.Errorf("of the third %d blocks are known, want %d", got, want)
			}
		}, false, false, map[Outcome]int{LengthDiffers: 2, Learned: 1}},
		"by one block behind all of another one, which has ended, and by another way": {func(e *told) {
			n := len(chainOf(a.prompt()))
			other := append(a.prompt()[:16*n:16*n], tokensOf(21)...) // as where a list of token ids goes on within a step
			e.watch("a", "", a)
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			e.watch("other", "", request{[]int{1, 2, 11, 21}})
			e.stores("", other, n, n+1)
			e.end("other", 16*n+17, 1)
			if got := e.knows(request{[]int{1, 2, 11, 21}}); got != n+1 {
				e.t.Errorf("of the other %d blocks are known, want %d", got, n+1)
			}
		}, true, false, map[Outcome]int{Learned: 2}},
		"at once, with sessions": {func(e *told) {
			e.watch("a", "s1", a)
			e.watch("b", "s2", b)
			e.stores("s2", b.prompt(), 0, 3)
			e.stores("s1", a.prompt(), 0, all)
			e.stores("s2", b.prompt(), 3, all)
			e.end("a", len(a.prompt()), 1)
			e.end("b", len(b.prompt()), 1)
		}, true, true, map[Outcome]int{Learned: 2}},
		"at once, with one session": {func(e *told) {
			e.watch("a", "s", a)
			e.watch("b", "s", b)
			e.stores("s", b.prompt(), 0, all)
			e.stores("s", a.prompt(), 0, all)
			e.end("a", -1, -1)
			e.end("b", -1, -1)
		}, false, false, map[Outcome]int{NoEvents: 2}},
		"the next turn of a session, before the first one's blocks count": {func(e *told) {
			more := request{append(slices.Clone(a.parts), 5, 6)}
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 0, all)
			e.l.End("a", Report{-1, -1})
			e.watch("more", "s", more)
			e.stores("s", more.prompt(), len(chainOf(a.prompt())), all)
			e.end("more", -1, -1)
			if n, want := e.knows(a), len(chainOf(a.prompt())); n != want {
				e.t.Errorf("of the first turn %d blocks are known, want %d", n, want)
			}
		}, true, false, map[Outcome]int{Learned: 2}},
		"the next turn of a session, by a single block": {func(e *told) {
			more := request{append(slices.Clone(a.parts), 5, 6)}
			from := len(chainOf(a.prompt()))
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 0, all)
			e.l.End("a", Report{-1, -1})
			e.watch("more", "s", more)
			e.stores("s", more.prompt(), from, from+1)
			e.end("more", -1, -1)
		}, false, false, map[Outcome]int{Unattributed: 2}},
		"a session that a request has which is not watched": {func(e *told) {
			e.watch("a", "s", a)
			e.l.Borrowed(e.slot, "s")
			e.stores("s", b.prompt(), 0, all)
			e.end("a", -1, -1)
		}, false, false, map[Outcome]int{Unattributed: 1}},
		"the same, after its blocks have come": {func(e *told) {
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 0, all)
			e.l.End("a", Report{-1, -1})
			e.l.Borrowed(e.slot, "s")
			e.stores("s", request{append(slices.Clone(a.parts), 5, 6)}.prompt(), len(chainOf(a.prompt())), all)
			e.end("a", -1, -1)
			if n, want := e.knows(a), len(chainOf(a.prompt())); n != want {
				e.t.Errorf("%d blocks are known, want %d", n, want)
			}
		}, true, false, map[Outcome]int{Learned: 1}},
		"at once, without sessions": {func(e *told) {
			e.watch("a", "", a)
			e.watch("b", "", b)
			e.stores("", b.prompt(), 0, all)
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			e.end("b", len(b.prompt()), 1)
		}, false, false, map[Outcome]int{LengthDiffers: 2}},
		"at once, without sessions, in order": {func(e *told) {
			e.watch("a", "", a)
			e.watch("b", "", b)
			e.stores("", a.prompt(), 0, all)
			e.stores("", b.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			e.end("b", len(b.prompt()), 1)
			if !e.estimates(a) || !e.estimates(b) {
				e.t.Error("a or b is proven, want both guesses: the slot may have served b first")
			}
		}, true, true, map[Outcome]int{Guessed: 2}},
		"at once, without sessions, when both are remembered": {func(e *told) {
			for _, r := range []request{a, b} {
				chain := chainOf(r.prompt())
				e.m.Teach(&Lesson{1, *r.path(), Taught{Chain: chain, Prompt: len(chain), Tokens: len(r.prompt())}})
			}
			e.watch("a", "", a)
			e.watch("b", "", b)
			e.stores("", b.prompt(), 0, 4)
			e.stores("", a.prompt(), 0, 4)
			e.stores("", b.prompt(), 4, all)
			e.stores("", a.prompt(), 4, all)
			e.end("a", len(a.prompt()), 1)
			e.end("b", len(b.prompt()), 1)
			if e.estimates(a) || e.estimates(b) {
				e.t.Error("what was proven is a guess, want it proven still")
			}
		}, true, true, map[Outcome]int{Guessed: 1, Learned: 1}},
		"the second begins when the first has begun": {func(e *told) {
			e.watch("a", "", a)
			e.stores("", a.prompt(), 0, 2)
			e.watch("b", "", b)
			e.stores("", b.prompt(), 0, 2)
			e.stores("", a.prompt(), 2, all)
			e.stores("", b.prompt(), 2, all)
			e.end("a", len(a.prompt()), 1)
			e.end("b", len(b.prompt()), 1)
		}, true, true, map[Outcome]int{Learned: 2}},
		"traffic that is not ours": {func(e *told) {
			e.watch("a", "", a)
			e.stores("", b.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{LengthDiffers: 1}},
		"traffic without a session, where events name them": {func(e *told) {
			e.watch("a", "s1", a)
			e.stores("s1", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			e.watch("b", "s2", b)
			e.stores("", request{[]int{5, 6, 15, 16}}.prompt(), 0, all)
			e.stores("s2", b.prompt(), 0, all)
			e.end("b", len(b.prompt()), 1)
		}, true, true, map[Outcome]int{Learned: 2}},
		"a session that is not ours": {func(e *told) {
			e.watch("a", "s1", a)
			e.stores("s7", b.prompt(), 0, all)
			e.stores("s1", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
		}, true, false, map[Outcome]int{Learned: 1}},
		"no count, and no session": {func(e *told) {
			e.watch("a", "", a)
			e.stores("", a.prompt(), 0, all)
			e.end("a", -1, -1)
			if !e.estimates(a) {
				e.t.Error("a is proven, want a guess: nobody counted its tokens")
			}
		}, true, false, map[Outcome]int{Guessed: 1}},
		"others send requests too": {func(e *told) {
			e.l.Watch(&Request{ID: "a", Slot: e.slot, Class: 1, Size: 16, Path: *a.path(), Shared: true})
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
			if !e.estimates(a) {
				e.t.Error("a is proven, want a guess: it may be another's")
			}
		}, true, false, map[Outcome]int{Guessed: 1}},
		"another replica's request, and nothing is counted": {func(e *told) {
			e.l.Watch(&Request{ID: "b", Slot: e.slot, Class: 1, Size: 16, Path: *b.path(), Shared: true, Theirs: true})
			e.l.Watch(&Request{ID: "a", Slot: e.slot, Class: 1, Size: 16, Path: *a.path(), Shared: true})
			e.stores("", b.prompt(), 0, all)
			e.l.Drop("b")
			e.stores("", a.prompt(), 0, all)
			e.end("a", -1, -1)
			if !e.estimates(a) {
				e.t.Error("a is proven, want a guess: it may be another's")
			}
		}, true, false, map[Outcome]int{Guessed: 1}},
		"others send requests that are not watched, and nothing is counted": {func(e *told) {
			e.l.Watch(&Request{ID: "a", Slot: e.slot, Class: 1, Size: 16, Path: *a.path(), Shared: true, Unwatched: true})
			e.stores("", a.prompt(), 0, all)
			e.end("a", -1, -1)
		}, false, false, map[Outcome]int{Unattributed: 1}},
		"an answer's block of a request that is not watched": {func(e *told) {
			e.stores("", b.prompt(), 0, 4)
			path := *a.path()
			e.l.Watch(&Request{ID: "a", Slot: e.slot, Class: 1, Size: 16, Path: path, Seen: &fleet.Seen{Blocks: 3 * len(chainOf(a.prompt()))}})
			e.stores("", b.prompt(), 4, 5)
			e.stores("", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
		}, true, false, map[Outcome]int{Learned: 1}},
		"too few blocks": {func(e *told) {
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 0, 2)
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{LengthDiffers: 1}},
		"a parent that nobody knows": {func(e *told) {
			e.watch("a", "s", a)
			ev := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Session: "s", HasParent: true, Parent: 77,
				EngineHashes: []uint64{1}, Locals: []uint64{2}}
			e.l.Stored(e.slot, &ev)
			e.end("a", 20, 1)
		}, false, false, map[Outcome]int{Unattributed: 1}},
		"blocks of another size": {func(e *told) {
			e.watch("a", "s", a)
			e.l.Stored(e.slot, &kvevent.Event{Kind: kvevent.Stored, BlockSize: 32, Session: "s", EngineHashes: []uint64{1}, Locals: []uint64{2}})
			e.end("a", 40, 1)
		}, false, false, map[Outcome]int{Unattributed: 1}},
		"another slot's": {func(e *told) {
			e.watch("a", "s", a)
			e.l.Stored(e.slot+1, &kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Session: "s", EngineHashes: []uint64{1}, Locals: []uint64{2}})
			e.end("a", 20, 1)
		}, false, false, map[Outcome]int{NoEvents: 1}},
		"a worker that tells of another one's request": {func(e *told) {
			e.watch("a", "s1", a)
			other := e.index.Join(indexer.SlotOptions{})
			lie := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Session: "s1", Locals: chainOf(b.prompt())}
			lie.EngineHashes = slices.Clone(lie.Locals)
			e.l.Stored(other, &lie)
			e.stores("s1", a.prompt(), 0, all)
			e.end("a", len(a.prompt()), 1)
		}, true, false, map[Outcome]int{Learned: 1}},
		"a worker that tells of another prompt": {func(e *told) { // b is what it was
			e.watch("b", "s2", b)
			e.stores("s2", b.prompt(), 0, all)
			e.end("b", len(b.prompt()), 1)
			e.watch("a", "s1", a)
			e.stores("s1", request{[]int{5}}.prompt(), 0, 1)
			e.stores("s2", a.prompt(), 0, 3)
			e.end("a", len(a.prompt()), 1)
		}, false, true, map[Outcome]int{Learned: 1, LengthDiffers: 1}},
		"a worker that tells of more blocks than a prompt has": {func(e *told) {
			e.watch("a", "s1", a)
			lie := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Session: "s1", Locals: make([]uint64, MaxBlocks+1)}
			lie.EngineHashes = make([]uint64, MaxBlocks+1)
			e.l.Stored(e.slot, &lie)
			for range 3 {
				lie.Locals, lie.EngineHashes = lie.Locals[:MaxBlocks-5], lie.EngineHashes[:MaxBlocks-5]
				e.l.Stored(e.slot, &lie)
			}
			if x := e.l.byID["a"]; len(x.chain) > MaxBlocks {
				e.t.Errorf("got %d blocks kept, want at most %d", len(x.chain), MaxBlocks)
			}
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{LengthDiffers: 1}},
		"it failed": {func(e *told) {
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 0, all)
			e.l.Drop("a")
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{}},
		"moved, with what the first slot had stored": {func(e *told) {
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 0, 2)
			e.l.Move("a", e.slot+1, 2, 0)
			e.stores("s", a.prompt(), 2, all)
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{NoEvents: 1}},
		"its slot left": {func(e *told) {
			e.watch("a", "s", a)
			e.l.Leave(e.slot)
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{}},
		"behind blocks that were held": {func(e *told) {
			e.stores("x", a.prompt(), 0, 3)
			e.watch("a", "s", a)
			e.stores("s", a.prompt(), 3, all)
			e.end("a", len(a.prompt()), 1)
		}, true, false, map[Outcome]int{Learned: 1}},
		"all of its blocks were held": {func(e *told) {
			e.stores("x", a.prompt(), 0, all)
			e.watch("a", "s", a)
			e.end("a", len(a.prompt()), 1)
		}, false, false, map[Outcome]int{NoEvents: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			c.do(e)
			for i, r := range []request{a, b} {
				want := 0
				if i == 0 && c.a || i == 1 && c.b {
					want = len(chainOf(r.prompt()))
				}
				if got := e.knows(r); got != want {
					t.Errorf("request %d: %d blocks learned, want %d", i, got, want)
				}
			}
			if !maps.Equal(e.outcomes, c.want) {
				t.Errorf("outcomes %v, want %v", e.outcomes, c.want)
			}
			if len(e.l.byID)+len(e.l.slots)+e.l.steps+len(e.l.ended) != 0 {
				t.Errorf("got %d requests, %d slots, %d steps, %d ended requests left, want none",
					len(e.l.byID), len(e.l.slots), e.l.steps, len(e.l.ended))
			}
		})
	}
}

// Another replica's requests take no place of those that teach, and give theirs up for them.
func TestTheirsTakeNoPlace(t *testing.T) {
	e := newEngine(t)
	r := request{[]int{1, 2}}
	theirs := func(id string) {
		e.l.Watch(&Request{ID: id, Slot: e.slot, Class: 1, Size: 16, Path: *r.path(), Shared: true, Theirs: true})
	}
	theirs("first")
	for i := range openPerSlot {
		e.watch(string(rune('a'+i)), "", r)
	}
	theirs("last")
	if n := len(e.l.slots[e.slot]); e.l.byID["first"] != nil || e.l.byID["last"] != nil || n != openPerSlot || e.outcomes[NoRoom] != 0 {
		t.Errorf("got another replica's first request watched %v, its last %v, of %d, and %d without room; want neither, %d and none",
			e.l.byID["first"] != nil, e.l.byID["last"] != nil, n, e.outcomes[NoRoom], openPerSlot)
	}
}

// Requests whose end is never reported, and more than a slot or the memory of their paths has room for.
func TestWatchIsBounded(t *testing.T) {
	e := newEngine(t)
	r := request{[]int{1, 2}}
	for i := range openPerSlot + 10 {
		e.watch(string(rune('a'+i)), "", r)
	}
	if n := len(e.l.slots[e.slot]); n != openPerSlot || e.outcomes[NoRoom] != 10 {
		t.Errorf("got %d requests watched and %d without room, want %d and 10", n, e.outcomes[NoRoom], openPerSlot)
	}
	e.now = e.now.Add(patience + time.Second)
	e.l.Settle(e.now)
	if len(e.l.byID)+e.l.steps != 0 {
		t.Errorf("after patience: got %d requests and %d steps left, want none", len(e.l.byID), e.l.steps)
	}
	long := Path{Steps: slices.Repeat([]Step{{}}, MaxSteps)}
	for i := range openSteps/MaxSteps + 5 {
		e.l.Watch(&Request{ID: string(rune('a' + i)), Slot: indexer.SlotID(i), Path: long})
	}
	if e.l.steps > openSteps || e.outcomes[NoRoom] != 15 {
		t.Errorf("got %d steps watched and %d requests without room, want at most %d and 15", e.l.steps, e.outcomes[NoRoom], openSteps)
	}
	e.now = e.now.Add(patience + time.Second)
	e.l.Settle(e.now)
	chain := make([]uint64, MaxBlocks)
	for i := range openBlocks/MaxBlocks + 5 { // a worker that says it has stored the longest prompts
		slot := indexer.SlotID(i)
		e.l.Watch(&Request{ID: strconv.Itoa(i), Slot: slot, Size: 16})
		e.l.Stored(slot, &kvevent.Event{Kind: kvevent.Stored, EngineHashes: chain, Locals: chain})
	}
	kept := 0
	for _, x := range e.l.byID {
		kept += len(x.chain)
	}
	if kept != openBlocks || e.l.blocks != kept {
		t.Errorf("%d blocks are kept and %d counted, want %d", kept, e.l.blocks, openBlocks)
	}
	e.l.Clear()
	if e.l.blocks != 0 {
		t.Errorf("after Clear: got %d blocks left, want 0", e.l.blocks)
	}
}

// A request whose blocks have all come when it ends teaches at once; one that may still get some teaches after the grace.
func TestTeachesAtOnce(t *testing.T) {
	m, now := NewMemory(1<<20, new(Sizes)), time.Unix(1, 0)
	var outcomes []Outcome
	l := NewLearner(Options{Memory: m, Chain: func(dst []uint64, _ indexer.SlotID, _ uint64, _ int) []uint64 { return dst },
		Now: func() time.Time { return now }, Outcome: func(o Outcome) { outcomes = append(outcomes, o) }})
	r := request{[]int{1, 2, 3}}
	chain := chainOf(r.prompt())
	for i, blocks := range []int{len(chain), len(chain) - 1} {
		id := string(rune('a' + i))
		l.Watch(&Request{ID: id, Slot: 1, Class: 1, Size: 16, Session: id, Path: *r.path()})
		l.Stored(1, &kvevent.Event{Kind: kvevent.Stored, Session: id, BlockSize: 16, EngineHashes: chain[:blocks], Locals: chain[:blocks]})
		l.End(id, Report{len(r.prompt()), 0})
		if got := len(outcomes); got != 1 {
			t.Fatalf("%d requests have taught, want 1", got)
		}
	}
	l.Stored(1, &kvevent.Event{Kind: kvevent.Stored, Session: "b", BlockSize: 16, HasParent: true, Parent: chain[len(chain)-2],
		EngineHashes: chain[len(chain)-1:], Locals: chain[len(chain)-1:]})
	now = now.Add(2 * grace)
	l.Settle(now)
	if len(outcomes) != 2 || outcomes[0] != Learned || outcomes[1] != Learned {
		t.Errorf("got outcomes %v, want learned twice", outcomes)
	}
}
