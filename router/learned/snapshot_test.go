package learned

import (
	"encoding/hex"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/sightline-router/sightline/internal/guard"
)

// conversations teaches a memory random conversations, and returns them in the order of their last use.
func conversations(m *Memory, n int) (known []request) {
	rng := rand.New(rand.NewPCG(8, 9))
	for i := range n {
		r := request{[]int{1 + rng.IntN(5), 10 + rng.IntN(20), 100 + rng.IntN(50), 1000 + i}}
		if len(known) > 0 && rng.IntN(3) == 0 {
			r.parts = append(slices.Clone(known[rng.IntN(len(known))].parts), -1-i, 1000+i)
		}
		r.teach(m, tokensOf(-2-i))
		known = append(known, r)
	}
	return known
}

// A replica that loads another one's snapshot recalls the same, goes on learning, and forgets in the same order.
func TestSnapshot(t *testing.T) {
	a, b := NewMemory(1<<30, new(Sizes)), NewMemory(1<<30, new(Sizes))
	known := conversations(a, 1000)
	b.Await()
	if err := b.Load(a.Snapshot(1 << 30)); err != nil {
		t.Fatal(err)
	}
	check(t, b)
	if x, y := a.Stats(), b.Stats(); x.Nodes != y.Nodes || x.Bytes != y.Bytes {
		t.Errorf("%+v became %+v, want Nodes %d, Bytes %d", x, y, y.Nodes, y.Bytes)
	}
	for _, r := range known {
		for _, of := range []request{r, {r.parts[:len(r.parts)-1]}, {append(slices.Clone(r.parts), 7)}} {
			var p, q Recalled
			a.Recall(1, of.path(), &p)
			b.Recall(1, of.path(), &q)
			if !slices.Equal(p.Blocks, q.Blocks) || p.Learned != q.Learned || p.Tokens != q.Tokens || p.Estimate != q.Estimate {
				t.Fatalf("%v: got %+v became %+v, want Blocks %v, Learned %d, Tokens %d, Estimate %v",
					of, p, q, q.Blocks, q.Learned, q.Tokens, q.Estimate)
			}
		}
	}
	if b.Load(a.Snapshot(1<<30)) == nil {
		t.Error("a second snapshot: got it loaded, want an error")
	}
	conversations(b, 1100)
	check(t, b)

	// What does not fit is what was not used for longest.
	a, b = NewMemory(1<<30, new(Sizes)), NewMemory(100<<10, new(Sizes))
	known = conversations(a, 1000)
	for _, most := range []int{1 << 30, 50 << 10, 0} {
		message := a.Snapshot(most)
		if len(message) > most {
			t.Errorf("%d bytes, want at most %d", len(message), most)
		}
		b.Clear()
		b.Await()
		if err := b.Load(message); err != nil {
			t.Fatal(err)
		}
		check(t, b)
		var p Recalled
		b.Recall(1, known[0].path(), &p)
		if p.Tokens != 0 {
			t.Errorf("the oldest has come: got %d, want 0", p.Tokens)
		}
		newest := known[len(known)-1]
		b.Recall(1, newest.path(), &p)
		if most > 0 && (p.Tokens != len(newest.prompt()) || b.Stats().Nodes < 100) {
			t.Errorf("snapshot of %d bytes: got %d tokens of the newest request and %d nodes, want %d tokens and at least 100 nodes",
				most, p.Tokens, b.Stats().Nodes, len(newest.prompt()))
		}
		conversations(b, 500)
		check(t, b)
	}
}

// A snapshot that is cut off, changed or made up is refused or does no harm.
func TestSnapshotIsChecked(t *testing.T) {
	a := NewMemory(1<<30, new(Sizes))
	known := conversations(a, 40)
	good, rng := a.Snapshot(1<<30), rand.New(rand.NewPCG(1, 1))
	refused := 0
	try := func(bad []byte) {
		m := NewMemory(1<<20, new(Sizes))
		m.Await()
		if m.Load(bad) != nil {
			refused++
			if m.Stats() != (Stats{}) {
				t.Fatalf("a refused one left %+v, want %+v", m.Stats(), Stats{})
			}
		}
		check(t, m)
		var p Recalled
		for _, r := range known {
			m.Recall(1, r.path(), &p)
			r.teach(m, nil)
		}
		check(t, m)
	}
	for range 400 {
		bad := slices.Clone(good)
		for range 1 + rng.IntN(3) {
			bad[rng.IntN(len(bad))] = byte(rng.Uint32())
		}
		try(bad)
		try(bad[:rng.IntN(len(bad))])
	}
	for _, bad := range [][]byte{{0}, {1}, {255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, {0, 1, 0, 0, 0, 255, 255, 127}} {
		before := refused
		try(bad)
		if refused == before {
			t.Errorf("snapshot %v: got it loaded, want it refused", bad)
		}
	}
	if refused < 400 {
		t.Errorf("%d are refused, want at least 400", refused)
	}
	var many []byte
	for class := range byte(255) {
		for more := range byte(5) {
			many = append(append(many, 0, class, more, 0, 0, 1, 9, 9), make([]byte, 16+5)...)
		}
	}
	if err := NewMemory(1<<20, new(Sizes)).Load(many); err == nil {
		t.Errorf("1275 classes were loaded: got %v, want an error", err)
	}
}

// TestReleasesRead: what a replica of an earlier release remembers is read for as long as this one reads its messages (version 2,
// router/peers/testdata). testdata/v2.txt was made by the code of 28 November 2026 of these lessons: two guesses that begin alike, and one
// of another class that is none.
func TestReleasesRead(t *testing.T) {
	text, err := os.ReadFile("testdata/v2.txt")
	if err != nil {
		t.Fatal(err)
	}
	snapshot, _ := hex.DecodeString(strings.TrimSpace(string(text)))
	steps := func(ends ...uint64) (p Path) {
		for _, end := range ends {
			p.Steps = append(p.Steps, Step{Number: [2]uint64{1<<63 | end, end}, Bytes: 100})
		}
		return p
	}
	lessons := []Lesson{{1, steps(1, 2, 3), Taught{Chain: []uint64{1, 2, 1 << 63}, Prompt: 3, Tokens: 50, Guess: true}},
		{1, steps(1, 2, 4), Taught{Chain: []uint64{1, 2, 5, 6}, Prompt: 4, Guess: true}},
		{1 << 31, steps(1, 2), Taught{Chain: []uint64{8, 9}, Prompt: 2, Tokens: 47}}}
	was, is := NewMemory(1<<20, new(Sizes)), NewMemory(1<<20, new(Sizes))
	for i := range lessons {
		is.Teach(&lessons[i])
	}
	was.Await()
	if err := was.Load(snapshot); err != nil {
		t.Fatal(err)
	}
	check(t, was)
	for i, l := range append(lessons, Lesson{1, steps(1, 2, 5), Taught{}}) {
		var got, want Recalled
		was.Recall(l.Class, &l.Path, &got)
		is.Recall(l.Class, &l.Path, &want)
		if !slices.Equal(got.Blocks, want.Blocks) || len(got.Blocks) == 0 || got.Learned != want.Learned || got.Tokens != want.Tokens ||
			got.Estimate != want.Estimate {
			t.Errorf("request %d: got %+v, want %+v", i, got, want)
		}
	}
}

// What is taught while a snapshot is awaited is known at once, and behind it.
func TestAwait(t *testing.T) {
	a, b := NewMemory(1<<20, new(Sizes)), NewMemory(1<<20, new(Sizes))
	old, fresh := request{[]int{1, 2}}, request{[]int{1, 3}}
	old.teach(a, nil)
	if !b.Await() {
		t.Fatal("an empty memory does not await, want b.Await()")
	}
	fresh.teach(b, nil)
	answered := request{[]int{1, 4}}
	tokens := answered.prompt()
	b.Teach(&Lesson{1, *answered.path(), Taught{Chain: chainOf(tokens), Prompt: len(tokens) / 16, Tokens: len(tokens), Said: 7,
		Answer: []uint64{8, 9}}})
	var p Recalled
	b.Recall(1, fresh.path(), &p)
	if p.Tokens != len(fresh.prompt()) {
		t.Errorf("while a snapshot is awaited: got %d tokens of what was taught since, want %d", p.Tokens, len(fresh.prompt()))
	}
	if err := b.Load(a.Snapshot(1 << 20)); err != nil {
		t.Fatal(err)
	}
	check(t, b)
	for _, r := range []request{old, fresh} {
		b.Recall(1, r.path(), &p)
		if p.Tokens != len(r.prompt()) {
			t.Errorf("request %v: got %d tokens, want %d", r, p.Tokens, len(r.prompt()))
		}
	}
	answers := 0
	for _, n := range b.nodes {
		if e := n.ending; e != nil && e.said == 7 && slices.Equal(e.answer, []uint64{8, 9}) {
			answers++
		}
	}
	if answers != 1 {
		t.Errorf("got %d prompts with the answer behind the snapshot, want 1", answers)
	}
	if b.Await() {
		t.Error("a memory awaits a second snapshot, want !b.Await()")
	}
	b.Clear()
	b.Await()
	for range mostAwaiting / MaxSteps {
		b.Teach(&Lesson{1, Path{Steps: make([]Step, MaxSteps)}, Taught{Chain: []uint64{1}, Prompt: 1}})
		if b.steps > mostAwaiting {
			t.Fatalf("%d steps and blocks are kept, want at most %d", b.steps, mostAwaiting)
		}
	}
	b.Clear()
	for i := range mostAwaiting / 2 { // short ones
		b.Teach(&Lesson{1, Path{Steps: []Step{{Number: [2]uint64{uint64(i), 1}}}, Media: []MediaStep{{}}}, Taught{Chain: []uint64{1}, Prompt: 1}})
		if got := len(b.since) * int(unsafe.Sizeof(Lesson{})+unsafe.Sizeof(Step{})+8); got > 16<<20 {
			t.Fatalf("%d lessons are kept, of %d bytes, want 16 MiB at most", len(b.since), got)
		}
		if n := len(b.since); n > 0 && b.since[n-1].Path.Media != nil {
			t.Fatal("got the media of a path that its reader uses again, want none kept")
		}
	}
	if err := b.Load(a.Snapshot(1 << 20)); err == nil || b.steps+len(b.since) != 0 {
		t.Errorf("after more lessons than are kept: got error %v, %d lessons and %d steps kept; want an error, and none kept",
			err, len(b.since), b.steps)
	}
}

// What is taught before a snapshot and while it is loaded is known behind it.
func TestTaughtWhileLoading(t *testing.T) {
	a, b := NewMemory(1<<20, new(Sizes)), NewMemory(8<<20, new(Sizes))
	old, begun := request{[]int{1, 2}}, make(chan bool)
	old.teach(a, nil)
	b.Await()
	const before, all = 5000, 6000
	lesson := func(i int) *Lesson {
		step := Step{Number: [2]uint64{uint64(i), uint64(i)}}
		return &Lesson{1, Path{Steps: []Step{step}}, Taught{Chain: []uint64{uint64(i)}, Prompt: 1, Tokens: 17}}
	}
	for i := range before {
		b.Teach(lesson(i))
	}
	var others sync.WaitGroup
	others.Go(func() {
		close(begun)
		for i := before; i < all; i++ {
			b.Teach(lesson(i))
		}
	})
	<-begun
	if err := b.Load(a.Snapshot(1 << 20)); err != nil {
		t.Fatal(err)
	}
	others.Wait()
	check(t, b)
	var p Recalled
	for i := range all {
		b.Recall(1, &lesson(i).Path, &p)
		if p.Tokens != 17 {
			t.Fatalf("lesson %d of %d: got %d tokens, want 17", i, all, p.Tokens)
		}
	}
	b.Recall(1, old.path(), &p)
	if p.Tokens != len(old.prompt()) || len(b.since) != 0 {
		t.Errorf("of the snapshot: got %d tokens, %d lessons kept; want %d and none", p.Tokens, len(b.since), len(old.prompt()))
	}
}

// A panic while lessons are taught to the memory of a snapshot leaves the one in use as it was.
func TestPanicWhileLoading(t *testing.T) {
	b := NewMemory(1<<20, new(Sizes))
	b.Await()
	for i := range 2 * fewSince {
		step := Step{Number: [2]uint64{uint64(i), uint64(i)}}
		b.Teach(&Lesson{1, Path{Steps: []Step{step}}, Taught{Chain: []uint64{uint64(i)}, Prompt: 1}})
	}
	nodes, sizes := b.Stats().Nodes, b.sizes
	b.sizes = nil
	if err := guard.Call(func() error { return b.Load(nil) }); err == nil {
		t.Error("got no panic, want one")
	}
	b.sizes = sizes
	if got := b.Stats().Nodes; got != nodes {
		t.Errorf("got %d nodes, want %d as before", got, nodes)
	}
	check(t, b)
}

// Only what says more is told to other replicas, and classes that nobody has do not add up.
func TestNews(t *testing.T) {
	m := NewMemory(1<<20, new(Sizes))
	teach := func(class uint32, parts ...int) bool {
		r := request{parts}
		tokens := r.prompt()
		return m.Teach(&Lesson{class, *r.path(), Taught{Chain: chainOf(tokens), Prompt: len(tokens) / 16, Tokens: len(tokens)}})
	}
	for i, c := range []struct {
		want  bool
		parts []int
	}{{true, []int{1, 2, 3}}, {false, []int{1, 2, 3}}, {true, []int{1, 2, 4}}, {false, []int{1, 2, 3}}, {true, []int{1, 2}},
		{false, []int{1, 2, 4}}, {false, []int{1, 2}}, {true, []int{1, 2, 3, -4, 5}}} {
		if got := teach(1, c.parts...); got != c.want {
			t.Errorf("%d: %v is news: got %v, want %v", i, c.parts, got, c.want)
		}
	}
	taught := 0
	for class := range uint32(2 * maxClasses) {
		if teach(class+5, 1, 2) {
			taught++
		}
	}
	if s := m.Stats(); len(m.roots) != maxClasses || taught != maxClasses-1 || s.NoRoom != maxClasses+1 {
		t.Errorf("got %d classes, %d taught, %+v, want %d, %d, NoRoom %d", len(m.roots), taught, s, maxClasses, maxClasses-1, maxClasses+1)
	}
	m = NewMemory(20<<10, new(Sizes)) // others are forgotten, and their classes with them
	for class := range uint32(3 * maxClasses) {
		if !teach(class, 1, 2) {
			t.Fatalf("class %d has no room, want teach(class, 1, 2)", class)
		}
	}
	check(t, m)
}

// Prompts that change, become shorter and are forgotten leave nothing that is not known, and nothing that another replica refuses.
func TestUnsteadySnapshot(t *testing.T) {
	for seed := range uint64(40) {
		m, rng := NewMemory(6<<10, new(Sizes)), rand.New(rand.NewPCG(seed, 4))
		var known []request
		for range 400 {
			r := request{[]int{1 + rng.IntN(3)}}
			if len(known) > 0 && rng.IntN(4) > 0 {
				from := known[rng.IntN(len(known))].parts
				r.parts = slices.Clone(from[:1+rng.IntN(len(from))])
			}
			for range rng.IntN(3) {
				r.parts = append(r.parts, rng.IntN(6)-1)
			}
			known = append(known, r)
			chain := chainOf(r.prompt())
			chain = chain[:rng.IntN(len(chain)+1)]
			m.Teach(&Lesson{1, *r.path(), Taught{Chain: chain, Prompt: rng.IntN(len(chain)+2) - 1}})
			check(t, m)
			var p Recalled
			m.Recall(1, request{append(slices.Clone(r.parts), 9)}.path(), &p)
			if slices.Contains(p.Blocks, 0) {
				t.Fatalf("seed %d: blocks that nothing taught: got %+v, want Blocks no %d in it", seed, p, 0)
			}
		}
		other := NewMemory(1<<20, new(Sizes))
		other.Await()
		if err := other.Load(m.Snapshot(1 << 20)); err != nil {
			t.Fatal(err)
		}
	}
}
