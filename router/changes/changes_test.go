package changes

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/mmhash/block"
)

// prompt is one whose tokens are numbers and whose text is not known; space tells tenants apart.
func prompt(space uint64, ids []uint32) *Input {
	key := block.Fixed()
	p := &Input{Key: key, Class: 1, Space: space, Client: fair.Client(space), IDs: ids, Size: 16,
		Decode: func([]uint32) string { return "" }}
	p.Chain = key.Chain(nil, key.Locals(nil, ids, block.Form{Size: 16}, nil, block.Root{First: space}))
	return p
}

func ids(seed uint64, n int) []uint32 {
	r, list := rand.New(rand.NewPCG(seed, 3)), make([]uint32, n)
	for i := range list {
		list[i] = r.Uint32N(150_000)
	}
	return list
}

func changed(runs []Run) (n int) {
	for _, r := range runs {
		if r.Had == Behind {
			n += r.To - r.From
		}
	}
	return n
}

// TestTokens compares prompts of token ids that differ in one place, at each token of a block: the place is found, and what follows.
func TestTokens(t *testing.T) {
	for at := 400; at < 432; at++ {
		m := NewMemory()
		was := ids(1, 2000)
		m.Compare(prompt(1, was), 0, 2000, false)
		is := append([]uint32{}, was...)
		is[at]++
		runs, c := m.Compare(prompt(1, is), at/16*16, 2000, false)
		if c == nil || c.Token != at || changed(runs) < 2000-at-mostChunk {
			t.Errorf("token %d is another: got %+v, %d tokens behind it", at, c, changed(runs))
		}
		if _, c := m.Compare(prompt(2, is), 0, 2000, false); c != nil {
			t.Errorf("another tenant's prompt: got %s", c)
		}
	}
}

// TestBackAndForth checks that where a prompt goes back to what an earlier one had, the earlier place is told.
func TestBackAndForth(t *testing.T) {
	m := NewMemory()
	words := func(seed uint64) (text string) {
		for _, id := range ids(seed, 200) {
			text += strconv.Itoa(int(id)) + " "
		}
		return text
	}
	system, talk := words(7), words(8)
	ask := func(date, talk string, from int) string {
		text := "<s>It is " + date + ". " + system + "<u>" + talk + "<a>"
		list := make([]uint32, len(text))
		for i := range list {
			list[i] = uint32(text[i])
		}
		p := prompt(1, list)
		p.Text, p.Decode = text, func(ids []uint32) string {
			out := make([]byte, len(ids))
			for i := range out {
				out[i] = byte(ids[i])
			}
			return string(out)
		}
		first := len("<s>It is " + date + ". " + system)
		p.Parts = []Part{{Kind: System, At: 3, Len: first - 3}, {Kind: Message, Number: 2, Role: "user", At: first + 3, Len: len(talk)}}
		_, c := m.Compare(p, from, len(list), false)
		if c == nil {
			return ""
		}
		return c.String()
	}
	const want = "the system text differs at token 17: a date"
	ask("2026-11-29", talk, 0)
	if got := ask("2026-11-30", words(9), 0); got != want {
		t.Errorf("another date: got %q, want %q", got, want)
	}
	if got := ask("2026-11-30", talk, len(system)/16*16); got != want { // the system text is held, the talk was under the other date
		t.Errorf("what follows the other date: got %q, want %q", got, want)
	}
}

// TestLockIsFree checks that a long prompt's texts are searched and its words hashed while others may compare theirs.
func TestLockIsFree(t *testing.T) {
	m, free := NewMemory(), 0
	ask := func(seed uint64) {
		list := ids(1, 5000)
		list[70] = uint32(seed)
		p := prompt(1, list)
		p.Text, p.Parts = strings.Repeat("long text, ", 2000), []Part{{Kind: System, At: 2, Len: 21_000}}
		p.Decode = func([]uint32) string {
			if m.mu.TryLock() {
				m.mu.Unlock()
				free++
			}
			return "not there"
		}
		m.Compare(p, 0, len(list), false)
	}
	ask(1)
	ask(2)
	if free < 10 {
		t.Errorf("the lock was free in %d calls of Decode, want at least the 28 before a place", free)
	}
	func() { // a panic of what is called so leaves the lock to others
		defer func() { _ = recover() }()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.outside(func() { panic("x") })
	}()
	if !m.mu.TryLock() {
		t.Error("the lock is held after a panic, want it free")
	}
}

// TestAnything compares random prompts that share pieces, with images anywhere.
func TestAnything(t *testing.T) {
	r, m := rand.New(rand.NewPCG(5, 5)), NewMemory()
	for range 2000 {
		var list []uint32
		for range 1 + r.IntN(6) {
			if r.IntN(4) == 0 {
				list = append(list, make([]uint32, r.IntN(700))...)
			} else {
				list = append(list, ids(r.Uint64N(20), r.IntN(700))...)
			}
		}
		p := prompt(r.Uint64N(3), list)
		for at := 0; at < len(list) && r.IntN(3) > 0; {
			md := Span{Offset: at + r.IntN(300), Length: r.IntN(300), Key: r.Uint64N(5)}
			p.Media = append(p.Media, md)
			at = md.Offset + md.Length
		}
		if r.IntN(2) == 0 {
			p.Text = strings.Repeat("text ", r.IntN(100))
			for at := 0; at < len(p.Text); at += 1 + r.IntN(60) {
				p.Parts = append(p.Parts, Part{Kind: Kind(r.IntN(5)), Number: 1, Role: "user", At: at, Len: r.IntN(80)})
			}
		}
		p.Size = 16 << (4 * r.IntN(2))
		p.Chain = p.Chain[:r.IntN(len(list)/p.Size+1)]
		from := r.IntN(len(list) + 1)
		to := from + r.IntN(len(list)-from+1)
		runs, _ := m.Compare(p, from, to, r.IntN(5) == 0)
		for i, one := range runs {
			if one.From < from || one.To > to || one.From >= one.To && one.Had != Salted {
				t.Fatalf("run %d of %d tokens from %d to %d: %+v, want one.From >= %v, one.To <= %v, one.From < %v or one.Had == "+
					"Salted", i, len(list), from, to, one, from, to, one.To)
			}
		}
	}
}

// TestHostile checks that what a client sends over and over makes no work that grows faster than it.
func TestHostile(t *testing.T) {
	const many = 4000
	text, kept := strings.Repeat("a<think></think>", many), ""
	if allocs := testing.AllocsPerRun(1, func() { kept = withoutReasoning(text) }); kept != strings.Repeat("a", many) || allocs > 50 {
		t.Errorf("without reasoning: got %d bytes, %v allocations, want %d, 50 at most", len(kept), allocs, many)
	}
	p, decoded := prompt(1, ids(1, 2000)), 0
	p.Text, p.Decode = text, func([]uint32) string { decoded++; return "not there" }
	if _, ok := p.textOffset(1000); ok || decoded > 7*4 {
		t.Errorf("a token that the text has not: got %v after %d texts, want none after 28 at most", ok, decoded)
	}

	var list []chunk // known ones, each far from the others
	for at := 0; at < 1<<17; at += 200 {
		list = append(list, chunk{from: at, to: at + leastRun, known: true})
	}
	if runs := findRuns(list, 0, 1<<17); len(runs) != mostRuns {
		t.Errorf("got %d runs, want %d at most", len(runs), mostRuns)
	}

	m := NewMemory() // of parts that stand behind others, the first of which is forgotten, and of one that leads back
	for i := range uint64(many) {
		m.nodes.Put(1, 1e6+i, node{parent: 1e6 + i - 1})
		m.nodes.Put(1, 2e6+i, node{parent: 1e6 + i})
	}
	m.nodes.Put(1, 4e6, node{parent: 3e6})
	m.nodes.Put(1, 5e6, node{parent: 4e6})
	for _, n := range []uint64{10, many} {
		list := []segment{{before: 3e6, alone: 5e6}}
		for i := range n {
			list = slices.Insert(list, int(i), segment{before: 6e6 + i, alone: 2e6 + i})
		}
		if _, was := m.departure(list, 0); (was != nil) != (n == 10) {
			t.Errorf("behind %d parts that lead nowhere: got %v, want a departure behind 10 only", n, was)
		}
	}
}

// TestFull checks the bound, that a client with ever new prompts pushes out no prompt of one that has less, and the memory that all takes.
func TestFull(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m := NewMemory()
	theirs := ids(1, 20_000)
	m.Compare(prompt(1, theirs), 0, len(theirs), false)
	for i := range uint64(350) {
		list := ids(10+i, 64_000)
		p := prompt(2, list)
		p.Text = strings.Repeat("some text, ", 200)
		for at := 0; at < len(p.Text); at += 8 {
			p.Parts = append(p.Parts, Part{Kind: Message, Number: 1, Role: "user", At: at, Len: 7})
		}
		p.Text = string(rune('a'+i)) + p.Text
		m.Compare(p, 0, len(list), false)
		if n := m.chunks.Len(); n > Chunks {
			t.Fatalf("%d chunks, want %d at most", n, Chunks)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if size := (after.HeapAlloc - before.HeapAlloc) >> 10; size > 32<<10 {
		t.Errorf("%d KiB, want 32 MiB at most", size)
	} else {
		t.Logf("%d KiB for %d chunks", size, m.chunks.Len())
	}
	is := append([]uint32{}, theirs...)
	is[5]++
	if runs, c := m.Compare(prompt(1, is), 0, len(is), false); c == nil || c.Token != 5 || changed(runs) < 19_000 {
		t.Errorf("of the other client's prompt %d tokens are left, and the place is %+v, want one, Token 5, at least 19_000", changed(runs), c)
	}
}

// BenchmarkCompare is of a prompt that is wholly new.
func BenchmarkCompare(b *testing.B) {
	m, n := NewMemory(), uint64(0)
	lists := make([]*Input, 64)
	for i := range lists {
		lists[i] = prompt(1, ids(uint64(i), 8000))
	}
	b.ReportAllocs()
	for b.Loop() {
		n++
		p := *lists[n%64]
		m.Compare(&p, 0, 8000, false)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/8000, "ns/token")
}

// TestEqualPromptsAtOnce: of equal prompts that are compared at the same time each segment is remembered once, so that forgetting finds it.
func TestEqualPromptsAtOnce(t *testing.T) {
	m, text := NewMemory(), strings.Repeat("some words of a message ", mostWords/24)
	const prompts = 40
	for i := range prompts {
		var all sync.WaitGroup
		for range 4 {
			p := prompt(1, ids(uint64(i), 64))
			p.Text = strconv.Itoa(i) + text
			p.Parts = []Part{{Kind: Whole, Len: len(p.Text)}}
			all.Go(func() { m.Compare(p, 0, 64, false) })
		}
		all.Wait()
	}
	if got, want := m.nodes.Len(), 2*prompts+3; got != want {
		t.Errorf("%d prompts, each four times at once: got %d entries, want %d", prompts, got, want)
	}
}
