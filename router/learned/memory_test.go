package learned

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// request is a request of a made-up engine, part by part. Each part becomes some tokens; what asks for an answer is behind the last part.
type request struct {
	parts []int // numbers of parts; a negative one is an answer
}

const tail = -1 << 20 // a token

// tokensOf are the tokens of a part: 3 to 90.
func tokensOf(part int) (list []int) {
	rng := rand.New(rand.NewPCG(uint64(part), 5))
	for i := range 3 + rng.IntN(88) {
		list = append(list, part<<8|i)
	}
	return list
}

func (r request) prompt() (tokens []int) {
	for _, p := range r.parts {
		tokens = append(tokens, tokensOf(p)...)
	}
	return append(tokens, tail, tail+1)
}

// chain are the blocks of some tokens.
func chainOf(tokens []int) (chain []uint64) {
	for at := 0; at+16 <= len(tokens); at += 16 {
		h := uint64(7)
		for _, t := range tokens[at : at+16] {
			h = h*0x9E3779B97F4A7C15 + uint64(t)
		}
		chain = append(chain, h)
	}
	return chain
}

func (r request) path() *Path {
	p, number := new(Path), [2]uint64{1, 2}
	for _, part := range r.parts {
		for step := range 1 + len(tokensOf(part))/12 {
			rng := rand.New(rand.NewPCG(number[0]^uint64(part), number[1]+uint64(step)))
			number = [2]uint64{rng.Uint64(), rng.Uint64()}
			p.Steps = append(p.Steps, Step{Number: number, Bytes: map[bool]int32{true: 8, false: 48}[step == 0],
				Answer: step == 0 && part < 0})
		}
	}
	return p
}

func (r request) teach(m *Memory, answer []int) {
	tokens := r.prompt()
	m.Teach(&Lesson{1, *r.path(),
		Taught{Chain: chainOf(append(slices.Clone(tokens), answer...)), Prompt: len(tokens) / 16, Tokens: len(tokens)}})
}

// TestMemory teaches random conversations, and compares what is recalled of others with what the engine makes of them.
func TestMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	m := NewMemory(1<<30, new(Sizes))
	var known []request
	certain, exact, repeats, estimates, cold := 0, 0, 0, 0, 0
	for range 20_000 {
		var r request
		if len(known) > 0 && rng.IntN(4) > 0 {
			from := known[rng.IntN(len(known))].parts
			r.parts = append(r.parts, from[:1+rng.IntN(len(from))]...)
		} else {
			r.parts = []int{1 + rng.IntN(5)}
		}
		for range rng.IntN(3) {
			r.parts = append(r.parts, 1+rng.IntN(1<<16))
		}
		chain := chainOf(r.prompt())
		var p Recalled
		m.Recall(1, r.path(), &p)
		switch {
		case p.Learned > len(p.Blocks) || !p.Estimate && p.Learned < len(p.Blocks):
			t.Fatalf("got %d of %d blocks learned (estimate %v), want all of them, or fewer and an estimate", p.Learned, len(p.Blocks), p.Estimate)
		case p.Estimate:
			estimates++
			if n := common(p.Blocks, chain); n < p.Learned {
				t.Fatalf("%v: of %d learned blocks %d are right, want at least %d", r, p.Learned, n, p.Learned)
			}
		case p.Learned == 0:
			cold++
		default:
			certain++
			if n := common(p.Blocks, chain); n < p.Learned-1 { // the last one may have been of what asked for an answer
				t.Fatalf("%v: of %d learned blocks %d are right, want at least %d", r, p.Learned, n, p.Learned-1)
			} else if n == p.Learned {
				exact++
			}
			if slices.ContainsFunc(known, func(k request) bool { return slices.Equal(k.parts, r.parts) }) {
				repeats++
				if p.Learned != len(chain) || p.Tokens != len(r.prompt()) {
					t.Fatalf("%v was seen: got %d of %d blocks, %d of %d tokens, want %d, %d",
						r, p.Learned, len(chain), p.Tokens, len(r.prompt()), len(chain), len(r.prompt()))
				}
			}
		}
		if len(known) < 400 || rng.IntN(20) == 0 {
			r.teach(m, nil)
			known = append(known, r)
		}
	}
	check(t, m)
	t.Logf("%d certain, of which %d right to the block and %d repeats; %d estimates, %d unknown; %+v", certain, exact,
		repeats, estimates, cold, m.Stats())
	if certain < 1000 || repeats < 100 || exact < certain*99/100 {
		t.Error("want nearly all of them right")
	}
}

// A prompt that goes on with an answer is known up to there, as an estimate, whatever earlier answers became: only a prompt that was seen
// says which answer its client gave back. Where templates leave out the end of the prompt before, as they do <think>, it is a block less.
func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		before []string // what became of the answers of earlier conversations
		cut    bool
	}{
		{"the first", nil, false},
		{"kept ones before", []string{"kept", "kept", "kept", "kept", "kept"}, false},
		{"replaced ones before", []string{"replaced", "replaced", "replaced", "replaced", "replaced"}, false},
		{"both in turn", []string{"kept", "kept", "replaced", "kept", "kept", "replaced"}, false},
		{"the prompt's end is left out", []string{"kept", "cut", "kept"}, true},
	} {
		m, p := NewMemory(1<<20, new(Sizes)), Recalled{}
		turns := func(i int) (first, second request) {
			return request{[]int{1, 10 + i}}, request{[]int{1, 10 + i, -300 - i, 60 + i}}
		}
		for i, what := range append(c.before, "asked") {
			first, second := turns(i)
			asked, answer := first.prompt(), append(tokensOf(-100-i), tokensOf(-200-i)...)
			for len(asked)%16 != 1 { // the prompt's last block has all but one token of what asks for an answer
				asked = append([]int{0}, asked...)
			}
			m.Teach(&Lesson{1, *first.path(),
				Taught{Chain: chainOf(append(slices.Clone(asked), answer...)), Prompt: len(asked) / 16, Tokens: len(asked)}})
			m.Recall(1, second.path(), &p)
			want := len(asked) / 16
			if c.cut && i > 1 {
				want--
			}
			if len(p.Blocks) != want || !p.Estimate || p.Learned != want {
				t.Errorf("%s, conversation %d: %d blocks behind an answer (%d certain, estimate: %t), want %d as an estimate", c.name, i,
					len(p.Blocks), p.Learned, p.Estimate, want)
			}
			tokens := slices.Clone(asked)
			switch what {
			case "kept":
				tokens = append(tokens, answer...)
			case "replaced":
				tokens = append(tokens, tokensOf(-400-i)...)
			case "cut":
				tokens = append(tokens[:len(tokens)-2], tokensOf(-400-i)...)
			}
			tokens = append(tokens, tokensOf(60+i)...)
			m.Teach(&Lesson{1, *second.path(), Taught{Chain: chainOf(tokens), Prompt: len(tokens) / 16, Tokens: len(tokens)}})
			m.Recall(1, second.path(), &p)
			if p.Learned != len(tokens)/16 || p.Estimate {
				t.Errorf("%s, conversation %d once more: %d blocks, want %d", c.name, i, p.Learned, len(tokens)/16)
			}
		}
	}
	m, first, p := NewMemory(1<<20, new(Sizes)), request{[]int{1, 2}}, Recalled{}
	first.teach(m, nil)
	m.Recall(1, request{[]int{1, 2, 4}}.path(), &p)
	if n := len(first.prompt())/16 - 1; p.Learned != n || !p.Estimate {
		t.Errorf("%d blocks without an answer, want %d as an estimate", p.Learned, n)
	}
	m.Recall(2, first.path(), &p)
	if p.Learned != 0 || len(p.Blocks) != 0 {
		t.Errorf("%+v for another class of engines: got %d, want Learned 0, 0", p, len(p.Blocks))
	}
}

// A prompt with a part that differs from time to time, such as the date in a template, is believed as far as it stays.
func TestUnsteady(t *testing.T) {
	m, r := NewMemory(1<<20, new(Sizes)), request{[]int{1, 2}}
	a := chainOf(append(append(tokensOf(1), 999), tokensOf(2)...))
	b := chainOf(append(append(tokensOf(1), 998), tokensOf(2)...))
	var p Recalled
	for i, chain := range [][]uint64{a, b, a} {
		m.Teach(&Lesson{1, *r.path(),
			Taught{Chain: chain, Prompt: len(chain)}})
		m.Recall(1, r.path(), &p)
		if i > 0 && p.Learned != common(a, b) {
			t.Errorf("%d blocks are believed, want %d", p.Learned, common(a, b))
		}
	}
}

// A memory stays within its bytes, and what is used stays.
func TestForget(t *testing.T) {
	const most = 200 << 10
	rng, m := rand.New(rand.NewPCG(6, 7)), NewMemory(most, new(Sizes))
	hot := request{[]int{1, 2, 3}}
	hot.teach(m, nil)
	var p Recalled
	for i := range 5000 {
		request{[]int{1 + rng.IntN(9), 10 + rng.IntN(90), 100 + i}}.teach(m, nil)
		if s := m.Stats(); s.Bytes > most {
			t.Fatalf("%d bytes, want at most %d", s.Bytes, most)
		}
		m.Recall(1, hot.path(), &p)
		if p.Learned != len(chainOf(hot.prompt())) {
			t.Fatalf("after %d others: got %d blocks of a request in use, want %d", i, p.Learned, len(chainOf(hot.prompt())))
		}
	}
	check(t, m)
	if s := m.Stats(); s.Forgotten == 0 || s.Bytes < most/2 {
		t.Errorf("got %+v, want Forgotten some, Bytes at least %d", s, most/2)
	}
	m.Clear()
	m.Recall(1, hot.path(), &p)
	if p.Learned != 0 || m.Stats().Bytes != 0 {
		t.Errorf("after Clear: got %d blocks learned and %d bytes kept, want none", p.Learned, m.Stats().Bytes)
	}
}

// check compares what a memory counts with what it has.
func check(t *testing.T, m *Memory) {
	t.Helper()
	bytes, leaves := 0, 0
	children := map[*node]int32{}
	for at, n := range m.nodes {
		bytes += n.bytes()
		if at.from != n.parent || at.step != n.steps[0] {
			t.Fatalf("got a node behind %p by step %d, want it behind its parent %p by its first step %d",
				at.from, at.step, n.parent, n.steps[0])
		}
		children[n.parent]++
		if n.children == 0 {
			leaves++
		}
		if int(n.from) > n.parent.length() || int(n.common) > n.length() || n.ending != nil && int(n.ending.from) > n.length() {
			t.Fatalf("got %+v: it begins in its parent's chain of %d blocks, and has %d; want what is common and its ending within these",
				n, n.parent.length(), n.length())
		}
	}
	for n, have := range children {
		if n.children != have {
			t.Fatalf("%d children, counted %d, want %d", have, n.children, have)
		}
	}
	ring := 0
	for n := m.ring.next; n != &m.ring; n = n.next {
		ring++
		if n.children > 0 {
			t.Fatalf("in the ring with children: got %d, want 0", n.children)
		}
	}
	if s := m.stats; s.Bytes != bytes || s.Nodes != len(m.nodes) || ring != leaves {
		t.Errorf("%+v, but %d bytes, %d nodes, %d leaves of which %d are in the ring, want Bytes %d, Nodes %d, %d",
			s, bytes, len(m.nodes), leaves, ring, bytes, len(m.nodes), leaves)
	}
}

func TestMemoryIsShared(t *testing.T) {
	m := NewMemory(100<<10, new(Sizes))
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			rng, p := rand.New(rand.NewPCG(uint64(g), 1)), Recalled{}
			for range 2000 {
				r := request{[]int{1 + rng.IntN(3), 10 + rng.IntN(30), 100 + rng.IntN(500)}}
				m.Recall(1, r.path(), &p)
				if rng.IntN(2) == 0 {
					r.teach(m, nil)
				}
			}
		})
	}
	all.Wait()
	check(t, m)
}

// A conversation of 10,000 tokens takes at most 6 KB.
func TestBytes(t *testing.T) {
	m, h := NewMemory(1<<30, new(Sizes)), NewHasher(nil)
	const conversations, turns = 50, 8
	for c := range conversations {
		body := `{"model":"m","messages":[`
		for turn := range turns {
			if turn > 0 {
				body += ","
			}
			body += fmt.Sprintf(`{"role":"user","content":%q}`, fmt.Sprint(c, turn, system[:10_000*4/turns-10]))
		}
		chain := make([]uint64, 10_000/16)
		for i := range chain {
			chain[i] = rand.Uint64()
		}
		m.Teach(&Lesson{1, Path{Steps: pathOf(t, h, Head{}, body+"]}")}, Taught{Chain: chain, Prompt: len(chain), Tokens: 10_000}})
	}
	if each := m.Stats().Bytes / conversations; each > 6<<10 {
		t.Errorf("%d bytes for a conversation, want at most 6 KB", each)
	} else {
		t.Logf("%d bytes for a conversation", each)
	}
}

// A prompt of token ids that ends where longer ones parted has all of their common blocks, but the engine computes its last token: how
// many of them it finds is not certain.
func TestEndsWithinAnother(t *testing.T) {
	m, h := NewMemory(1<<20, new(Sizes)), NewHasher(nil)
	body := func(n, last int) string {
		ids := make([]int, n+1)
		for i := range ids {
			ids[i] = i + 7
		}
		ids[n] = last
		text, _ := json.Marshal(map[string]any{"model": "m", "prompt": ids[:n+min(1, last)]})
		return string(text)
	}
	chain := []uint64{1, 2, 3}
	for _, last := range []int{901, 902} {
		m.Teach(&Lesson{1, Path{Steps: pathOf(t, h, Head{}, body(48, last))}, Taught{Chain: chain, Prompt: 3, Tokens: 49}})
	}
	var p Recalled
	m.Recall(1, &Path{Steps: pathOf(t, h, Head{}, body(48, 0))}, &p)
	if len(p.Blocks) != 3 || !p.Estimate {
		t.Errorf("48 of 49 token ids: %+v, want three blocks as an estimate", p)
	}
	m.Recall(1, &Path{Steps: pathOf(t, h, Head{}, body(48, 903))}, &p)
	if p.Learned != 3 || p.Estimate {
		t.Errorf("49 other token ids: %+v, want three certain blocks", p)
	}
}

// A worker with another template unmakes nothing of what is known of a beginning that all share, whether it comes first or later, and a
// template that changes is learned anew.
func TestAnotherTemplate(t *testing.T) {
	shared, questions := []int{501, 502, 503, 504, 505, 506}, 1000
	ask := func(template int) (r request, chain []uint64) {
		questions++
		r = request{append(slices.Clone(shared), questions)}
		return r, chainOf(append([]int{-template}, r.prompt()...))
	}
	teach := func(m *Memory, template int) {
		r, chain := ask(template)
		m.Teach(&Lesson{1, *r.path(), Taught{Chain: chain, Prompt: len(chain)}})
	}
	known := func(m *Memory, template int) int {
		var p Recalled
		r, chain := ask(template)
		m.Recall(1, r.path(), &p)
		return common(p.Blocks[:p.Learned], chain)
	}
	want := len(request{shared}.prompt()[2:]) / 16
	for first := range 3 {
		m := NewMemory(1<<20, new(Sizes))
		for range first {
			teach(m, 2)
		}
		for range 2 * enoughMore {
			teach(m, 1)
		}
		for i := range 100 {
			if n := known(m, 1); n != want {
				t.Fatalf("behind %d prompts of another template, and later one in five: got %d of %d blocks are known, want %d", first, n, want, want)
			}
			teach(m, 1)
			if i%4 == 0 {
				teach(m, 2)
			}
		}
		check(t, m)
		for range mostStrays + 2*enoughMore {
			teach(m, 3)
		}
		if n := known(m, 3); n != want {
			t.Errorf("of the new template %d of %d blocks are known, want %d", n, want, want)
		}
		check(t, m)
	}
	m, again := NewMemory(1<<20, new(Sizes)), request{shared}
	for template := range 3 {
		for range mostStrays + 1 {
			chain := chainOf(append([]int{-template}, again.prompt()...))
			m.Teach(&Lesson{1, *again.path(), Taught{Chain: chain, Prompt: len(chain)}})
		}
		var p Recalled
		m.Recall(1, again.path(), &p)
		if chain := chainOf(append([]int{-template}, again.prompt()...)); !slices.Equal(p.Blocks, chain) {
			t.Errorf("of a request that became another prompt %d of %d blocks are known: got %v, want %v",
				common(p.Blocks, chain), len(chain), p.Blocks, chain)
		}
		check(t, m)
	}
}

// What several requests at once may have taught is a guess until another prompt agrees, or is taught for certain. It is one still behind a
// snapshot.
func TestGuesses(t *testing.T) {
	a, more := request{[]int{1, 2, 11, 12}}, request{[]int{1, 2, 11, 12, -5, 6}}
	beside := request{[]int{1, 2, 21, 22}}
	teach := func(m *Memory, r request, guess bool) {
		chain := chainOf(r.prompt())
		m.Teach(&Lesson{1, *r.path(), Taught{Chain: chain, Prompt: len(chain), Tokens: len(r.prompt()), Guess: guess}})
	}
	for _, c := range []struct {
		name   string
		taught []request
		guess  []bool
		asked  request
		want   bool // it is an estimate
	}{
		{"a guess", []request{a}, []bool{true}, a, true},
		{"a lesson", []request{a}, []bool{false}, a, false},
		{"a guess that a second one agrees with", []request{a, a}, []bool{true, true}, a, false},
		{"a guess and a lesson", []request{a, a}, []bool{true, false}, a, false},
		{"a lesson and a guess", []request{a, a}, []bool{false, true}, a, false},
		{"a beginning that two guesses share", []request{a, beside}, []bool{true, true}, request{[]int{1, 2, 31}}, true},
		{"a beginning that a third one shares", []request{a, beside, {[]int{1, 2, 41}}}, []bool{true, true, true}, request{[]int{1, 2, 31}},
			false},
		{"a conversation that goes on", []request{a, more}, []bool{true, true}, more, true},
	} {
		m := NewMemory(1<<20, new(Sizes))
		for i, r := range c.taught {
			teach(m, r, c.guess[i])
		}
		check(t, m)
		again := NewMemory(1<<20, new(Sizes))
		again.Await()
		if err := again.Load(m.Snapshot(1 << 20)); err != nil {
			t.Fatal(err)
		}
		for i, m := range []*Memory{m, again} {
			var p Recalled
			m.Recall(1, c.asked.path(), &p)
			if p.Estimate != c.want || p.Learned == 0 {
				t.Errorf("%s (of a snapshot: %v): estimate %v, %d blocks, want %v and some", c.name, i > 0, p.Estimate, p.Learned, c.want)
			}
		}
	}
}

// TestTokenIDsPart: where prompts of token ids part within a step, that the ids before it fill what they share is enough to be sure of it.
func TestTokenIDsPart(t *testing.T) {
	ids := func(size, ahead int, lists ...[]int) (p Path, all Taught) {
		tokens := slices.Concat(lists...)
		raw, _ := json.Marshal(tokens)
		p.Steps = pathOf(t, NewHasher(nil), Head{}, `{"prompt":`+string(raw)+`}`)
		for end := size; end+ahead <= len(tokens); end += size {
			h := uint64(7)
			for _, id := range tokens[:end+ahead] {
				h = h*0x9E3779B97F4A7C15 + uint64(id)
			}
			all.Chain = append(all.Chain, h)
		}
		all.Prompt, all.Tokens, all.Size, all.Lookahead = len(all.Chain), len(tokens), size, ahead
		return p, all
	}
	run := func(from, n int) (list []int) {
		for i := range n {
			list = append(list, from+i)
		}
		return list
	}
	for name, c := range map[string]struct {
		size, ahead, alike, rest int // alike: ids behind 32 that two share; rest: those behind these
		counted                  int // tokens that the engine counted beyond the ids; -1: it told none
		above                    int // shared blocks that a third one has not
		sure                     bool
	}{
		"at blocks' ends":            {16, 0, 7, 40, 0, 0, true},
		"within a block":             {24, 0, 7, 40, 0, 0, true},
		"small blocks":               {4, 0, 7, 40, 0, 1, false},
		"a token ahead":              {16, 1, 7, 40, 0, 1, false},
		"a token ahead, odd blocks":  {24, 1, 7, 40, 0, 0, true},
		"not counted":                {16, 0, 7, 40, -1, 0, false},
		"more in the prompt":         {16, 0, 7, 40, 9, 0, false},
		"one ends there: its answer": {16, 0, 2, 10, 0, 0, false},
	} {
		m := NewMemory(1<<20, new(Sizes))
		for other := range 2 {
			p, taught := ids(c.size, c.ahead, run(0, 32), run(1000, c.alike), run(2000+1000*other, c.rest))
			taught.Tokens += c.counted
			if c.counted < 0 {
				taught.Tokens = 0
			}
			m.Teach(&Lesson{1, p, taught})
		}
		p, taught := ids(c.size, c.ahead, run(0, 32), run(9000, 40))
		var got Recalled
		m.Recall(1, &p, &got)
		if above := len(got.Blocks) - common(got.Blocks, taught.Chain); got.Estimate == c.sure || len(got.Blocks) == 0 || above != c.above {
			t.Errorf("%s: got %d blocks, %d above, as an estimate: %t, want some, %d above, %t", name, len(got.Blocks), above, got.Estimate,
				c.above, !c.sure)
		}
		check(t, m)
	}
}

// oddly are lessons of six workers, of which one makes other blocks of a shared beginning, from a block on.
type oddly struct {
	m         *Memory
	questions int
	shared    []int
}

func newOddly() *oddly {
	return &oddly{NewMemory(4<<20, new(Sizes)), 1000, []int{501, 502, 503, 504, 505, 506}}
}

func (o *oddly) ask() (r request, tokens []int) {
	o.questions++
	r = request{append(slices.Clone(o.shared), o.questions)}
	return r, r.prompt()
}

// teach teaches a prompt that a worker made; from: the first block that is other than the others', 0 of none.
func (o *oddly) teach(r request, worker uint32, from int) (news bool) {
	tokens := r.prompt()
	if from > 0 {
		tokens[from*16+3] = 7
	}
	chain := chainOf(tokens)
	return o.m.Teach(&Lesson{1, *r.path(), Taught{Chain: chain, Prompt: len(chain), Tokens: len(tokens), Worker: worker, Size: 16}})
}

// known returns how many blocks are recalled of a request, and how many of these others have not.
func (o *oddly) known(r request) (learned, above int) {
	var p Recalled
	o.m.Recall(1, r.path(), &p)
	return p.Learned, p.Learned - common(p.Blocks[:p.Learned], chainOf(r.prompt()))
}

// TestOddWorker: what one worker makes otherwise lowers for good nothing of what the others' prompts share, whether it begins, how often it
// teaches and how few blocks it has less; and what it makes of its own conversations is known all the same.
func TestOddWorker(t *testing.T) {
	all := len(request{newOddly().shared}.prompt()[2:]) / 16
	for _, c := range []struct {
		name           string
		before, during int // lessons: of the others, and of the odd worker, between which there are one of each other
		from           int // block
		after          int // lessons of the others until all is known
		repaired       bool
	}{
		{"once", 30, 1, all - 2, 80, true},
		{"once, still odd", 30, 1, all - 2, 80, false},
		{"a few times", 30, 6, all - 2, 10, true},
		{"a block less", 30, 6, all - 1, 10, true},
		{"from near the beginning", 30, 6, 1, 10, true},
		{"from the middle", 30, 6, all/2 + 1, 10, true},
		{"for long", 30, 40, all - 2, 0, false},
		{"for long, a block less", 30, 40, all - 1, 0, false},
		{"first of all", 0, 2, all - 2, 90, true},
	} {
		o := newOddly()
		good := func() {
			r, _ := o.ask()
			o.teach(r, uint32(11+o.questions%5), 0)
		}
		for range c.before {
			good()
		}
		for range c.during {
			r, _ := o.ask()
			o.teach(r, 10, c.from)
			if n, _ := o.known(r); n != len(chainOf(r.prompt())) {
				t.Errorf("%s: got %d blocks of the odd worker's own request, want all", c.name, n)
			}
			if c.before > 0 {
				for range 5 {
					good()
				}
			}
		}
		for range c.after {
			good()
			if c.repaired {
				r, _ := o.ask()
				o.teach(r, 10, 0)
			}
		}
		r, _ := o.ask()
		if n, above := o.known(r); n != all || above != 0 {
			t.Errorf("%s: got %d blocks that all share, %d above, want %d, 0", c.name, n, above, all)
		}
		check(t, o.m)
	}
}

// TestLoneWorker: where one worker teaches all, none is odd: prompts that share fewer and fewer blocks, as where clients edit texts, lower
// what is known each time.
func TestLoneWorker(t *testing.T) {
	o := newOddly()
	for range 10 {
		r, _ := o.ask()
		o.teach(r, 10, 0)
	}
	for from := len(request{o.shared}.prompt()[2:])/16 - 1; from > 2; from-- {
		r, _ := o.ask()
		o.teach(r, 10, from)
		r, _ = o.ask()
		if n, _ := o.known(r); n > from {
			t.Errorf("got %d blocks known of what all share, want %d at most, as the latest prompt has", n, from)
		}
	}
}

// TestOddWorkerRepeats: the same of one request that all workers get again and again.
func TestOddWorkerRepeats(t *testing.T) {
	for _, c := range []struct {
		name   string
		during int
		after  int
	}{{"once", 1, 40}, {"often", 20, 0}} {
		o := newOddly()
		r, _ := o.ask()
		all := len(chainOf(r.prompt()))
		for i := range 10 {
			o.teach(r, uint32(11+i%5), 0)
		}
		for range c.during {
			o.teach(r, 10, all-2)
			for i := range 5 {
				o.teach(r, uint32(11+i), 0)
			}
		}
		for i := range c.after {
			o.teach(r, uint32(11+i%5), 0)
		}
		if n, above := o.known(r); n != all || above != 0 {
			t.Errorf("%s: got %d blocks, %d above, want %d, 0", c.name, n, above, all)
		}
	}
}

// TestSeveralDisagree: what prompts of several workers lower is lowered, and so is what one worker's texts do now and then: no later prompt
// is promised more than it has.
func TestSeveralDisagree(t *testing.T) {
	o := newOddly()
	rng := rand.New(rand.NewPCG(5, 6))
	all, above, asked := len(request{o.shared}.prompt()[2:])/16, 0, 0
	for i := range 4000 {
		r, _ := o.ask()
		from := 0
		if i > 40 && rng.IntN(8) == 0 { // a kind of request of which all workers make something else
			from = all - 2
		}
		if i > 200 && from > 0 {
			asked++
			if n, _ := o.known(r); n > from {
				above++
			}
		}
		o.teach(r, uint32(11+rng.IntN(5)), from)
	}
	if above > 0 || asked < 300 {
		t.Errorf("of %d prompts with fewer blocks %d are promised more, want 0", asked, above)
	}
	for i := range 3 {
		r, _ := o.ask()
		if !o.teach(r, uint32(11+i), 0) {
			t.Errorf("a lesson of worker %d is none, after several have disagreed, want o.teach(r, uint32(11+i), 0)", 11+i)
		}
	}
}
