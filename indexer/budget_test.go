package indexer

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestBudget fills a small index many times over: it must stay within its limit, keep what is looked up, never claim a block that
// was not stored, and report which slots lost blocks.
func TestBudget(t *testing.T) {
	const limit, slots, length = 16 << 20, 4, 96
	x := New(Options{MaxBytes: limit})
	var ids []SlotID
	for range slots {
		ids = append(ids, x.Join(SlotOptions{}))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	prompt := func(seed uint64) []uint64 {
		p := make([]uint64, length)
		for i := range p {
			p[i] = pathOf(seed, uint64(i))
		}
		return p
	}
	hot := prompt(7)
	if err := x.Store(ids[0], GPU, 0, false, hot, hot); err != nil {
		t.Fatal(err)
	}
	var m Matches
	total := 0
	for round := uint64(0); total < 1_500_000; round++ {
		id := ids[rng.IntN(slots)]
		p := prompt(1000 + round)
		for at := 0; at < length; at += 16 {
			var parent uint64
			if at > 0 {
				parent = p[at-1]
			}
			if err := x.Store(id, GPU, parent, at > 0, p[at:at+16], p[at:at+16]); err != nil {
				t.Fatalf("round %d: got %v (partial %v), want no error", round, err, x.Partial(id))
			}
		}
		total += length
		x.Match(hot, &m)
		if m.Longest != length {
			t.Fatalf("round %d: the prompt in use has %d of %d blocks left, want %d", round, m.Longest, length, length)
		}
		x.Match(prompt(1000+round/2), &m)
		if len(m.Slots) > 1 || m.Longest > length {
			t.Fatalf("round %d: %+v; got %d, want at most 1 of them, at most %d", round, m.Slots, m.Longest, length)
		}
		if round%1000 == 0 {
			if s := x.Stats(); s.Resident > limit {
				t.Fatalf("round %d: got %d bytes, limit %d, want at most %d", round, s.Resident, limit, limit)
			}
		}
	}
	s := x.Stats()
	t.Logf("%+v", s)
	if s.Evicted < int64(total)*3/4 || s.Partial != slots {
		t.Errorf("of %d blocks %d evicted, %d slots partial, want at least %d, %d", total, s.Evicted, s.Partial, int64(total)*3/4, slots)
	}
	if s.Dropped > int64(total)/50 {
		t.Errorf("%d blocks found no memory, want at most %d", s.Dropped, int64(total)/50)
	}
	if s.Blocks*60 < limit {
		t.Errorf("%d blocks held in %d bytes: got %d, want at least %d", s.Blocks, limit, s.Blocks*60, limit)
	}
	sum := 0
	for _, id := range ids {
		sum += x.HeldBlocks(id)
	}
	if int64(sum) != s.Blocks {
		t.Errorf("%d blocks by slot, %d in all: got %d, want %d", sum, s.Blocks, int64(sum), s.Blocks)
	}
	for _, id := range ids {
		if err := x.Clear(id); err != nil || x.Partial(id) || x.HeldBlocks(id) != 0 {
			t.Errorf("slot %d after Clear: got %v, partial %v, want it empty and whole", id, err, x.Partial(id))
		}
	}
	if s := x.Stats(); s.Nodes != 0 || s.Blocks != 0 {
		t.Errorf("left behind: got %+v, want Nodes 0, Blocks 0", s)
	}
}

// TestOneOwnerPushesOutNobody: a worker of several ranks reports blocks without end. Those of another, which nobody asks for, stay.
func TestOneOwnerPushesOutNobody(t *testing.T) {
	x := New(Options{MaxBytes: 16 << 20})
	honest, doc := x.Join(SlotOptions{Owner: 1}), make([]uint64, 96)
	fill := func(id SlotID, seed uint64) {
		for i := range doc {
			doc[i] = pathOf(seed, uint64(i))
		}
		if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
			t.Fatal(err)
		}
	}
	for p := range uint64(100) {
		fill(honest, p)
	}
	var ranks []SlotID
	for range 24 {
		ranks = append(ranks, x.Join(SlotOptions{Owner: 2}))
	}
	for p := range uint64(20_000) {
		fill(ranks[p%24], 1000+p)
	}
	if got := x.HeldBlocks(honest); got != 9600 || x.Partial(honest) || x.Stats().Evicted == 0 {
		t.Errorf("%d blocks are left, partial %t, %d evicted; want all 9600", got, x.Partial(honest), x.Stats().Evicted)
	}
}

// TestFloodLeavesRoom: a worker whose ranks all report without end, also blocks that take room beside the index, keeps no block of another
// worker out, one that begins when the index is full.
func TestFloodLeavesRoom(t *testing.T) {
	x := New(Options{MaxBytes: 16 << 20})
	honest, done := x.Join(SlotOptions{Owner: 1}), make(chan struct{})
	var stored atomic.Int64
	var floods sync.WaitGroup
	for rank := range 24 {
		id := x.Join(SlotOptions{Owner: 2, CountCopies: rank%2 == 0})
		floods.Go(func() {
			long := make([]uint64, 4000)
			for p := uint64(0); ; p++ {
				select {
				case <-done:
					return
				default:
				}
				for i := range long {
					long[i] = pathOf(uint64(rank)<<32|p, uint64(i))
				}
				for range 1 + rank%2 {
					if err := x.Store(id, GPU, 0, false, long, long); err != nil {
						t.Error(err)
						return
					}
				}
				stored.Add(int64(len(long)))
			}
		})
	}
	chain, parent := make([]uint64, 4), uint64(0)
	for n := range uint64(200) {
		for stored.Load() < 1_000_000+5_000*int64(n) { // the index holds some 600,000
			runtime.Gosched()
		}
		for i := range chain {
			chain[i] = pathOf(1<<60, n*4+uint64(i))
		}
		if err := x.Store(honest, GPU, parent, n > 0, chain, chain); err != nil {
			t.Fatal(err)
		}
		parent = chain[3]
	}
	close(done)
	floods.Wait()
	if got := x.HeldBlocks(honest); got != 800 || x.Partial(honest) || x.Stats().Evicted == 0 {
		t.Errorf("got %d blocks, partial %t, after %d evicted and %d not taken; want all 800", got, x.Partial(honest), x.Stats().Evicted,
			x.Stats().Dropped)
	}
}

// TestReserve: owners share what is kept beside the blocks, whatever the number of their slots, and what was taken is there again.
func TestReserve(t *testing.T) {
	const quarter = 4 << 20
	x := New(Options{MaxBytes: 4 * quarter})
	take := func(ids ...SlotID) (n int) {
		for _, id := range ids {
			for x.Reserve(id, 1000) {
				n += 1000
			}
		}
		return n
	}
	var ranks []SlotID
	for range 24 {
		ranks = append(ranks, x.Join(SlotOptions{Owner: 2, CountCopies: true}))
	}
	other := x.Join(SlotOptions{Owner: 1})
	if n := take(ranks...); n > quarter*3/4 || n < quarter/2 {
		t.Errorf("one owner's slots took %d bytes, want three quarters of %d", n, quarter)
	}
	if n := take(other); n < quarter/8 {
		t.Errorf("another took %d bytes, want three quarters of the rest", n)
	}
	held := x.mem.beside.Load()
	hashes := []uint64{7, 8, 9}
	for range 3 { // copies, for which there is no room
		if err := x.Store(ranks[0], GPU, 0, false, hashes, hashes); err != nil {
			t.Fatal(err)
		}
	}
	if more := x.mem.beside.Load() - held; more > reserveStep {
		t.Errorf("%d bytes more for copies, want none", more)
	}
	for _, id := range append(ranks, other) {
		if err := x.Leave(id); err != nil {
			t.Fatal(err)
		}
	}
	if left, room := x.mem.beside.Load(), x.mem.room.Taken(); left != 0 || room != 0 {
		t.Errorf("%d and %d bytes are left, want none", left, room)
	}
}

// TestCopy: blocks that an event names by engine hash alone are held in another tier too, until that copy is removed.
func TestCopy(t *testing.T) {
	x := New(Options{})
	id, doc := x.Join(SlotOptions{CountCopies: true}), make([]uint64, 40)
	for i := range doc {
		doc[i] = pathOf(5, uint64(i))
	}
	if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
		t.Fatal(err)
	}
	if unknown, err := x.Copy(id, CPU, append([]uint64{1}, doc[:20]...)); unknown != 1 || err != nil {
		t.Errorf("%d unknown, %v, want 1", unknown, err)
	}
	if unknown, err := x.Copy(id, CPU, doc[:1]); unknown != 0 || err != nil { // a second copy
		t.Errorf("%d unknown, %v, want 0, no error", unknown, err)
	}
	audit(t, x)
	if unknown, _ := x.Remove(id, GPU, doc); unknown != 0 || x.HeldBlocks(id) != 20 || blocksIn(x, id, doc) != 20 {
		t.Errorf("%d unknown, %d held, %d found, want 20", unknown, x.HeldBlocks(id), blocksIn(x, id, doc))
	}
	if unknown, _ := x.Copy(id, GPU, doc[:30]); unknown != 10 {
		t.Errorf("%d unknown, want those that are not held any more", unknown)
	}
	audit(t, x)
	for _, tier := range []Tier{CPU, CPU, GPU} {
		unknown, err := x.Remove(id, tier, doc[:20])
		t.Log(tier, unknown, err)
	}
	if x.HeldBlocks(id) != 0 {
		t.Errorf("%d blocks are left, want 0", x.HeldBlocks(id))
	}
	audit(t, x)
}
