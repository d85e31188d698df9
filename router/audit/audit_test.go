package audit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

const size = 16

// bench is an index with one worker, and an auditor with a test clock.
type bench struct {
	t          *testing.T
	now        time.Time
	ix         *indexer.Index
	slot       indexer.SlotID
	a          *Auditor
	engineHash uint64
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, now: time.Unix(1000, 0), ix: indexer.New(indexer.Options{})}
	b.slot = b.ix.Join(indexer.SlotOptions{})
	b.a = New(Options{Index: b.ix, Now: func() time.Time { return b.now }})
	return b
}

func ids(n int, first uint32) (out []uint32) {
	for i := range n {
		out = append(out, first+uint32(i))
	}
	return out
}

func locals(tokens []uint32, media []engine.Medium) []uint64 {
	var spans []block.Span
	for _, m := range media {
		spans = append(spans, block.Span{Offset: m.Offset, Length: m.Length, Name: block.Fixed().Name(m.Name)})
	}
	return block.Fixed().Locals(nil, tokens, block.Form{Size: size}, spans, block.Root{})
}

// expect watches a request of these tokens.
func (b *bench) expect(id string, tokens []uint32, media ...engine.Medium) {
	b.a.Expect(Expectation{ID: id, Slot: b.slot, Worker: "w", Model: "m", Locals: locals(tokens, media), Form: block.Form{Size: size},
		Prompts: &engine.Model{}, Prompt: &engine.Prompt{IDs: tokens, Media: media, Exact: true}})
}

// named is expect for a request that was given a session id, which its worker names in its events, with tell.
func (b *bench) named(id string, tokens []uint32) {
	b.a.Expect(Expectation{ID: id, Slot: b.slot, Worker: "w", Model: "m", Session: id, Locals: locals(tokens, nil),
		Form:    block.Form{Size: size},
		Prompts: &engine.Model{}, Prompt: &engine.Prompt{IDs: tokens, Exact: true}})
}

func (b *bench) tell(session string, tokens []uint32) {
	b.engineHash += 100
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Session: session, Tokens: tokens, Locals: locals(tokens, nil)}
	for i := range e.Locals {
		e.EngineHashes = append(e.EngineHashes, b.engineHash+uint64(i))
	}
	b.a.Stored(b.slot, &e)
}

// TestSessionsAttribute checks that the session attributes an event to one of two requests that begin alike, and that an event
// without one is attributed to neither once the worker is known to name sessions.
func TestSessionsAttribute(t *testing.T) {
	b := newBench(t)
	prompt, twin, other := ids(64, 100), ids(64, 100), ids(64, 100)
	twin[60], other[40] = 3, 7
	b.named("r", prompt)
	b.named("twin", twin)
	b.tell("twin", twin)
	b.tell("", other) // bypassed us
	b.tell("r", other)
	if got := b.verdict("twin"); got != Equal {
		t.Errorf("verdict of the twin %s, want %s", got, Equal)
	}
	b.tell("", other)
	if got := b.verdict("r"); got != Token {
		t.Errorf("verdict %s, want %s", got, Token)
	}

	// An engine that does not repeat them is judged without.
	b = newBench(t)
	b.named("r", prompt)
	b.tell("", other)
	if got := b.verdict("r"); got != Token {
		t.Errorf("verdict without names %s, want %s", got, Token)
	}
}

// store reports blocks after a parent (0: none), as a feed does: to the audit first, then to the index.
func (b *bench) store(parent uint64, tokens []uint32, media ...engine.Medium) (last uint64) {
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, HasParent: parent != 0, Parent: parent, Tokens: tokens,
		Locals: locals(tokens, media)}
	for range e.Locals {
		b.engineHash++
		e.EngineHashes = append(e.EngineHashes, b.engineHash)
	}
	for i := range media {
		for k := media[i].Offset / size; k*size < media[i].Offset+media[i].Length; k++ {
			e.Media = append(e.Media, kvevent.MediaRef{Block: k, Offset: media[i].Offset - k*size, Paired: true, Name: []byte(media[i].Name)})
		}
	}
	b.a.Stored(b.slot, &e)
	if err := b.ix.Store(b.slot, indexer.GPU, parent, parent != 0, e.EngineHashes, e.Locals); err != nil {
		b.t.Fatal(err)
	}
	return b.engineHash
}

// verdict ends a request and returns its verdict.
func (b *bench) verdict(id string) Verdict {
	b.t.Helper()
	x := b.a.byID[id]
	if x == nil {
		b.t.Fatalf("%s: got no expectation, want it watched", id)
	}
	b.a.End(id, true)
	b.now = b.now.Add(grace)
	v, _ := b.a.verdictOf(x)
	b.a.judge(b.now)
	if b.a.byID[id] != nil {
		b.t.Fatalf("%s: got it watched after its verdict, want it forgotten", id)
	}
	return v
}

func imageAt(offset, length int, name string) engine.Medium {
	return engine.Medium{Modality: "image", Offset: offset, Length: length, Name: name, HasName: true, HasFacts: true}
}

func TestVerdicts(t *testing.T) {
	prompt := ids(64, 100)
	pads := slices.Concat(ids(20, 1), slices.Repeat([]uint32{9}, 30), ids(14, 500))
	other := slices.Clone(prompt)
	other[40] = 7
	longer := slices.Concat(ids(20, 1), slices.Repeat([]uint32{9}, 40), ids(4, 500))
	shorter := slices.Concat(ids(20, 1), slices.Repeat([]uint32{9}, 25), ids(19, 500))
	for name, c := range map[string]struct {
		do   func(b *bench)
		want Verdict
		f    Finding // the finding, if any
	}{
		"all stored": {func(b *bench) { b.expect("r", prompt); b.store(0, prompt) }, Equal, Finding{}},
		"stored in two steps, with what was generated": {func(b *bench) {
			b.expect("r", prompt)
			last := b.store(0, prompt[:32])
			b.store(last, slices.Concat(prompt[32:], ids(32, 7000)))
		}, Equal, Finding{}},
		"nothing came":    {func(b *bench) { b.expect("r", prompt) }, Nothing, Finding{}},
		"a token differs": {func(b *bench) { b.expect("r", prompt); b.store(0, other) }, Token, Finding{Position: 40, Ours: 140, Theirs: 7}},
		"a token differs in the second event": {func(b *bench) {
			b.expect("r", prompt)
			last := b.store(0, prompt[:32])
			b.store(last, other[32:])
		}, Token, Finding{Position: 40, Ours: 140, Theirs: 7}},
		"the image is longer there": {func(b *bench) {
			b.expect("r", pads, imageAt(20, 30, "n"))
			b.store(0, longer, imageAt(20, 40, "n"))
		}, Span,
			Finding{Position: 20, Ours: 30, Theirs: 40}},
		"the image is shorter there": {func(b *bench) {
			b.expect("r", pads, imageAt(20, 30, "n"))
			b.store(0, shorter, imageAt(20, 25, "n"))
		}, Span,
			Finding{Position: 20, Ours: 30, Theirs: 25}},
		"the image's name differs": {func(b *bench) {
			b.expect("r", pads, imageAt(20, 30, "n"))
			b.store(0, pads, imageAt(20, 30, "x"))
		}, MediaName, Finding{Position: 20}},
		"a name where we have none": {func(b *bench) {
			b.expect("r", pads)
			b.store(0, pads, imageAt(20, 30, "x"))
		}, Keys, Finding{Position: 16}},
		"another's traffic alone": {func(b *bench) { b.expect("r", prompt); b.store(0, ids(64, 9000)) }, Unattributed, Finding{}},
		"another's, then its own": {func(b *bench) { b.expect("r", prompt); b.store(0, other); b.store(0, prompt) }, Equal, Finding{}},
		"two that could be its own": {func(b *bench) {
			b.expect("r", prompt)
			b.store(0, other)
			again := slices.Clone(other)
			again[50] = 8
			b.store(0, again)
		}, Unattributed, Finding{}},
		"two requests, one departs from both": {func(b *bench) {
			b.expect("r", prompt)
			twin := slices.Clone(prompt)
			twin[60] = 3
			b.expect("twin", twin)
			b.store(0, other)
		}, Unattributed, Finding{}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c.do(b)
			if got := b.verdict("r"); got != c.want {
				t.Fatalf("verdict %s, want %s", got, c.want)
			}
			found := b.a.Findings()
			if c.want == Equal || c.want == Unattributed {
				if len(found) != 0 {
					t.Fatalf("a finding without a difference: got %+v, want 0 of them", found)
				}
				return
			}
			if len(found) != 1 || found[0].Says == "" {
				t.Fatalf("findings %+v, want one", found)
			}
			if f := found[0]; f.Position != c.f.Position || f.Ours != c.f.Ours || f.Theirs != c.f.Theirs {
				t.Errorf("finding at %d, ours %d, theirs %d; want %d, %d, %d", f.Position, f.Ours, f.Theirs, c.f.Position, c.f.Ours, c.f.Theirs)
			}
		})
	}
}

func TestBlockSizeIsNamed(t *testing.T) {
	b := newBench(t)
	b.expect("r", ids(64, 100))
	b.a.Stored(b.slot, &kvevent.Event{Kind: kvevent.Stored, BlockSize: 32, EngineHashes: []uint64{1, 2}, Locals: []uint64{1, 2}})
	if got := b.verdict("r"); got != BlockSize {
		t.Fatalf("verdict %s, want %s", got, BlockSize)
	}
	if f := b.a.Findings()[0]; f.Ours != size || f.Theirs != 32 {
		t.Errorf("finding %+v, want ours 16, theirs 32", f)
	}

	// Its events have shown the form of its blocks since: the request was decided before, and says nothing.
	for _, form := range []block.Form{{Size: 32}, {Size: size, Lookahead: 1}} {
		b := newBench(t)
		prompt := ids(64, 100)
		b.expect("r", prompt)
		b.a.Stored(b.slot, &kvevent.Event{Kind: kvevent.Stored, BlockSize: form.Size, Lookahead: form.Lookahead,
			EngineHashes: []uint64{1, 2}, Locals: []uint64{1, 2}})
		b.ix.SetForm(b.slot, form)
		if got := b.verdict("r"); got != Unattributed {
			t.Errorf("%+v: verdict %s, want %s", form, got, Unattributed)
		}
	}
}

// TestWithoutTokens compares by block, as over NATS without tokens: the finding names the block, not the token.
func TestWithoutTokens(t *testing.T) {
	b := newBench(t)
	prompt := ids(64, 100)
	b.expect("r", prompt)
	want := locals(prompt, nil)
	b.a.Stored(b.slot, &kvevent.Event{Kind: kvevent.Stored, BlockSize: size, EngineHashes: []uint64{1, 2, 3},
		Locals: []uint64{want[0], want[1], 5}})
	if got := b.verdict("r"); got != Block {
		t.Fatalf("verdict %s, want %s", got, Block)
	}
	if f := b.a.Findings()[0]; f.Position != 32 {
		t.Errorf("difference at %d, want 32", f.Position)
	}
}

// TestNoText checks that a finding names a differing token by its number: its text is a client's.
func TestNoText(t *testing.T) {
	shared, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	m, err := engine.Load("m", "../../examples/models/qwen2.5-vl", engine.DefaultServer(), shared)
	if err != nil {
		t.Fatal(err)
	}
	prompt := ids(64, 100)
	prompt[40] = 9707 // "Hello"
	other := slices.Clone(prompt)
	other[40] = 1879 // " world"
	b := newBench(t)
	b.expect("r", prompt)
	b.a.byID["r"].Prompts = m
	b.store(0, other)
	if got := b.verdict("r"); got != Token {
		t.Fatalf("verdict %s, want %s", got, Token)
	}
	f := b.a.Findings()[0]
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if f.Ours != 9707 || f.Theirs != 1879 || strings.Contains(string(text), "Hello") {
		t.Errorf("got %s, want the tokens 9707 and 1879 without text", text)
	}
}

// TestMoveAndFailure checks that a moved request is judged by the slot that got it, and that a failed one is not judged.
func TestMoveAndFailure(t *testing.T) {
	b := newBench(t)
	first, prompt := b.slot, ids(64, 100)
	b.expect("r", prompt)
	b.slot = b.ix.Join(indexer.SlotOptions{})
	b.a.Move("r", b.slot, "other")
	b.store(0, prompt)
	if got := b.verdict("r"); got != Equal {
		t.Errorf("moved: verdict %s, want %s", got, Equal)
	}
	b.a.Leave(b.slot)
	b.slot = first
	b.expect("gone", prompt)
	b.a.Leave(first)
	if len(b.a.byID) != 0 || len(b.a.slots) != 0 {
		t.Errorf("of a worker that left: got %d requests and %d slots kept, want none", len(b.a.byID), len(b.a.slots))
	}
	b.expect("f", prompt)
	b.a.End("f", false)
	if b.a.byID["f"] != nil || len(b.a.slots[first].open) != 0 || b.a.tokens != 0 {
		t.Error(`a failed request is still watched, want b.a.byID["f"] == nil, len(b.a.slots[first].open) == 0, b.a.tokens == 0`)
	}
}

// TestBounds checks that what is kept is bounded, even if nothing ever ends.
func TestBounds(t *testing.T) {
	b := newBench(t)
	for i := range 3 * openPerSlot {
		b.expect(string(rune('a'+i)), ids(64, uint32(i)))
	}
	if n := len(b.a.byID); n != openPerSlot {
		t.Errorf("%d requests watched, want %d", n, openPerSlot)
	}
	b.now = b.now.Add(patience)
	b.a.judge(b.now)
	if len(b.a.byID) != 0 || b.a.tokens != 0 {
		t.Errorf("%d requests and %d tokens kept for good, want 0, 0", len(b.a.byID), b.a.tokens)
	}
}

// TestAuditIsBounded checks that what open requests keep is bounded: first the token ids are dropped, then requests; and that all
// of it is released.
func TestAuditIsBounded(t *testing.T) {
	b := newBench(t)
	b.expect("whole", ids(64, 1))
	b.a.tokens += openTokens - 100
	b.expect("no room for ids", ids(128, 1000))
	if b.a.byID["whole"].ids == nil || b.a.byID["no room for ids"].ids != nil {
		t.Error(`ids are kept beyond the bound, or not below, want b.a.byID["whole"].ids != nil, b.a.byID["no room for ids"].ids ` +
			`== nil`)
	}
	b.a.tokens -= openTokens - 100
	b.a.tokens += openTokens - 500
	b.expect("ids in a large array", append(make([]uint32, 0, 1000), ids(64, 3000)...))
	if b.a.byID["ids in a large array"].ids != nil {
		t.Errorf("the bound counts the ids, not the array that holds them: got %v, want nil", b.a.byID["ids in a large array"].ids)
	}
	b.a.End("ids in a large array", false)
	b.a.tokens -= openTokens - 500
	b.a.blocks += openBlocks
	b.expect("no room", ids(64, 2000))
	if b.a.byID["no room"] != nil {
		t.Errorf("a request is watched beyond the bound: got %+v, want nil", b.a.byID["no room"])
	}
	if n := testutil.ToFloat64(b.a.verdicts.WithLabelValues("m", "w", string(Unattributed))); n != 1 {
		t.Errorf("%v counted as unattributed, want 1", n)
	}
	b.a.blocks -= openBlocks
	b.a.Move("whole", b.slot, "w")
	b.a.End("whole", false)
	b.a.End("no room for ids", false)
	if b.a.tokens != 0 || b.a.blocks != 0 || len(b.a.byID) != 0 {
		t.Errorf("%d tokens, %d blocks, %d requests are kept of none, want 0, 0, 0", b.a.tokens, b.a.blocks, len(b.a.byID))
	}
}

// TestKnownInPart audits prompts that are exact only in part: the ids end at a medium that could not be read (a late image,
// audio, a video), or at the first that cannot be named, or nothing can be hashed. The worker's events continue far beyond that;
// only what is known is compared.
func TestKnownInPart(t *testing.T) {
	whole := slices.Concat(ids(46, 1), slices.Repeat([]uint32{9}, 400), ids(30, 5000)) // the worker's prompt
	unread := engine.Medium{Modality: "image", Offset: 46}
	unnamed := engine.Medium{Modality: "image", Offset: 46, Length: 400, HasFacts: true}
	short := unread
	short.Offset = 5
	differs := func(at int) []uint32 {
		other := slices.Clone(whole)
		other[at] = 7777
		return other
	}
	for name, c := range map[string]struct {
		known  int // leading ids
		hashed int // of them
		media  []engine.Medium
		from   int // blocks that were held before
		noRoom bool
		tokens []uint32 // the worker's
		want   Verdict
		at     int
	}{
		"a medium that is not here": {known: 46, hashed: 46, media: []engine.Medium{unread}, tokens: whole, want: Equal},
		"at once":                   {known: 5, hashed: 5, media: []engine.Medium{short}, tokens: whole, want: Unattributed},
		"a block before it that differs": {known: 46, hashed: 46, media: []engine.Medium{unread}, tokens: differs(20),
			want: Token, at: 20},
		"its beginning is there":  {known: 46, hashed: 46, media: []engine.Medium{unread}, from: 2, tokens: whole, want: Equal},
		"a medium without a name": {known: 476, hashed: 46, media: []engine.Medium{unnamed}, tokens: whole, want: Equal},
		"one, and then one that is not here": {known: 446, hashed: 46, media: []engine.Medium{unnamed,
			{Modality: "audio", Offset: 446}}, tokens: whole, want: Equal},
		"nothing can be hashed":                  {known: 476, media: []engine.Medium{unnamed}, tokens: whole, want: Equal},
		"nothing can be hashed, a token differs": {known: 476, media: []engine.Medium{unnamed}, tokens: differs(20), want: Token, at: 20},
		"nothing can be hashed, nor is compared": {known: 476, media: []engine.Medium{unnamed}, noRoom: true, tokens: whole, want: Unattributed},
		"no room for the ids": {known: 46, hashed: 46, media: []engine.Medium{unread}, noRoom: true,
			tokens: whole, want: Equal},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.noRoom {
				b.a.tokens = openTokens
			}
			b.a.Expect(Expectation{ID: "r", Slot: b.slot, Worker: "w", Model: "m", Locals: locals(whole[:c.hashed], nil),
				From: c.from, Form: block.Form{Size: size},
				Prompts: &engine.Model{}, Prompt: &engine.Prompt{IDs: whole[:c.known], Media: c.media}})
			last := uint64(0)
			if c.from > 0 {
				last = b.store(0, whole[:c.from*size])
			}
			last = b.store(last, c.tokens[c.from*size:464], imageAt(46-c.from*size, 400, "n"))
			for i := range 6 { // the prompt's end, and blocks that the answer fills
				last = b.store(last, ids(size, uint32(9000+i*size)))
			}
			b.store(0, ids(320, 70000)) // another request's
			if got := b.verdict("r"); got != c.want {
				t.Fatalf("verdict %s, want %s", got, c.want)
			}
			if f := b.a.Findings(); c.want == Token && (len(f) != 1 || f[0].Position != c.at) {
				t.Errorf("findings %+v, want one at token %d", f, c.at)
			}
		})
	}
}

// TestNothingHashedNothingTold checks that, for a request of which nothing can be hashed, on a worker that holds all of it,
// missing events mean nothing.
func TestNothingHashedNothingTold(t *testing.T) {
	b := newBench(t)
	b.a.Expect(Expectation{ID: "r", Slot: b.slot, Form: block.Form{Size: size}, Prompts: &engine.Model{},
		Prompt: &engine.Prompt{IDs: ids(64, 1)}})
	if got := b.verdict("r"); got != Unattributed {
		t.Errorf("verdict %s, want %s", got, Unattributed)
	}
}

// TestMoveForgets checks that what a first worker reported for a request is forgotten when it is moved.
func TestMoveForgets(t *testing.T) {
	b := newBench(t)
	prompt := ids(64, 100)
	b.expect("r", prompt)
	b.store(0, prompt)
	b.slot = b.ix.Join(indexer.SlotOptions{})
	b.a.Move("r", b.slot, "other")
	if got := b.verdict("r"); got != Nothing {
		t.Errorf("verdict %s, want %s: the other worker told of no block", got, Nothing)
	}
}

// FuzzStored compares events in any order, of any blocks, with prompts known to any length: no comparison may reach beyond what
// is known.
func FuzzStored(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t)
		whole := slices.Concat(ids(46, 1), slices.Repeat([]uint32{9}, 60), ids(30, 5000))
		for i := range 6 {
			known := rnd.IntN(len(whole) + 1)
			hashed := rnd.IntN(known + 1)
			if rnd.IntN(3) == 0 {
				b.a.tokens = openTokens
			}
			exact := known == len(whole) && hashed == known
			chain := locals(whole[:hashed], nil)
			b.a.Expect(Expectation{ID: string(rune('a' + i)), Slot: b.slot, Locals: chain, From: rnd.IntN(len(chain) + 1),
				Form: block.Form{Size: size}, Prompts: &engine.Model{},
				Prompt: &engine.Prompt{IDs: whole[:known], Exact: exact,
					Media: []engine.Medium{{Offset: min(46, known), Length: min(60, known-min(46, known))}}}})
			b.a.tokens = 0
		}
		for range 60 {
			tokens := whole
			if rnd.IntN(3) == 0 {
				tokens = slices.Clone(whole)
				tokens[rnd.IntN(len(tokens))] = 4
			}
			from := rnd.IntN(len(tokens)/size) * size
			tokens = tokens[from : from+1+rnd.IntN(len(tokens)-from)]
			e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Tokens: tokens, Locals: locals(whole[:from+len(tokens)], nil)[from/size:]}
			if rnd.IntN(4) > 0 {
				e.HasParent, e.Parent = true, uint64(rnd.IntN(40))
			}
			for range e.Locals {
				e.EngineHashes = append(e.EngineHashes, uint64(1+rnd.IntN(40)))
			}
			e.Media = []kvevent.MediaRef{{Block: rnd.IntN(9), Offset: rnd.IntN(size), Paired: rnd.IntN(2) == 0, Name: []byte("n")}}
			b.a.Stored(b.slot, &e)
		}
		b.now = b.now.Add(patience)
		b.a.judge(b.now)
	})
}

// TestNobodyWaitsForAComparison checks that no decision or report waits for a comparison: Stored and judge hold that lock while
// they compare.
func TestNobodyWaitsForAComparison(t *testing.T) {
	b := newBench(t)
	b.expect("first", ids(64, 1))
	first := b.a.byID["first"]
	first.slot.compareMu.Lock()
	b.expect("second", ids(64, 500))
	b.a.End("second", true)
	b.a.End("first", false)
	b.a.Move("second", b.slot, "w")
	b.a.Findings()
	b.a.Leave(b.slot)
	first.slot.compareMu.Unlock()
	if len(b.a.byID) != 0 || b.a.tokens != 0 || b.a.blocks != 0 {
		t.Errorf("%d requests, %d tokens, %d blocks are kept of none, want 0, 0, 0", len(b.a.byID), b.a.tokens, b.a.blocks)
	}
}

// TestSideBySide runs decisions, reports and events concurrently, for the race detector; an event right after its decision is
// attributed to it.
func TestSideBySide(t *testing.T) {
	b := newBench(t)
	slots := []indexer.SlotID{b.slot, b.ix.Join(indexer.SlotOptions{})}
	b.a.o.Now = func() time.Time { return time.Unix(1000, 0) }
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 100 {
				id, prompt := fmt.Sprint(worker, "-", i), ids(64, uint32(1000*(worker*100+i)))
				slot := slots[i%2]
				b.a.Expect(Expectation{ID: id, Slot: slot, Model: "m", Worker: "w", Locals: locals(prompt, nil),
					Form: block.Form{Size: size}, Prompts: &engine.Model{},
					Prompt: &engine.Prompt{IDs: prompt, Exact: true}})
				b.a.mu.Lock()
				x := b.a.byID[id]
				b.a.mu.Unlock()
				if i%5 == 0 {
					b.a.Move(id, slots[1-i%2], "v")
				}
				e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Tokens: prompt, Locals: locals(prompt, nil), EngineHashes: make([]uint64, 4)}
				b.a.Stored(slot, &e)
				x.slot.compareMu.Lock()
				if !x.held && i%5 != 0 {
					t.Errorf("%s: got no event, want its own", id)
				}
				x.slot.compareMu.Unlock()
				b.a.End(id, i%7 != 0)
				b.a.judge(time.Unix(1000+int64(i%3), 0))
			}
		})
	}
	all.Wait()
	b.a.judge(time.Unix(1010, 0))
	if len(b.a.byID) != 0 || b.a.tokens != 0 || b.a.blocks != 0 || len(b.a.ended) != 0 {
		t.Errorf("after all were judged: got %d requests, %d tokens, %d blocks, %d ended requests kept, want none",
			len(b.a.byID), b.a.tokens, b.a.blocks, len(b.a.ended))
	}
}

// BenchmarkExpect measures what a decision waits for while the slot has 128 open requests of 32 k tokens and reports such
// prompts.
func BenchmarkExpect(b *testing.B) {
	now := time.Unix(1000, 0)
	ix := indexer.New(indexer.Options{})
	slot := ix.Join(indexer.SlotOptions{})
	a := New(Options{Index: ix, Now: func() time.Time { return now }})
	var open []Expectation
	for i := range 2 * openPerSlot {
		prompt := slices.Concat(ids(16384, 1), ids(16384, uint32(100000+i*20000)))
		open = append(open, Expectation{ID: fmt.Sprint(i), Slot: slot, Model: "m", Worker: "w", Locals: locals(prompt, nil),
			Form:    block.Form{Size: size},
			Prompts: &engine.Model{}, Prompt: &engine.Prompt{IDs: prompt, Exact: true}})
	}
	stop := make(chan struct{})
	var feed sync.WaitGroup
	feed.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			e := &open[i%len(open)]
			a.Stored(slot, &kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Tokens: e.Prompt.IDs, Locals: e.Locals,
				EngineHashes: make([]uint64, len(e.Locals))})
		}
	})
	took := make([]time.Duration, b.N)
	b.ResetTimer()
	for i := range b.N {
		time.Sleep(50 * time.Microsecond) // to meet the feed at any point
		start := time.Now()
		a.Expect(open[i%len(open)])
		took[i] = time.Since(start)
	}
	b.StopTimer()
	close(stop)
	feed.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// TestImagesByCount checks that the engine's count of the prompt names a worker whose images have another number of tokens where its
// events do not: they end before its image does, or none comes for what it held already.
func TestImagesByCount(t *testing.T) {
	prompt := slices.Concat(ids(size, 100), slices.Repeat([]uint32{7}, 10*size), ids(4, 300))
	one := []engine.Medium{{Name: "a", HasName: true, Offset: size, Length: 10 * size}}
	two := []engine.Medium{{Name: "a", HasName: true, Offset: size, Length: 4 * size},
		{Name: "b", HasName: true, Offset: 6 * size, Length: 5 * size}}
	for what, c := range map[string]struct {
		media []engine.Medium
		more  int
		send  bool
		want  Verdict
		says  string
	}{
		"fewer, a beginning came": {one, -6 * size, true, Span, "the medium at token 16 has 160 tokens here and 64 there"},
		"fewer, nothing came":     {one, -6 * size, false, Span, "the medium at token 16 has 160 tokens here and 64 there"},
		"two images": {two, -size, false, Span,
			"2 media from token 16 on have 144 tokens here and, by the engine's count, 128 there"},
		"more, a beginning came":      {one, 2 * size, true, Span, "the medium at token 16 has 160 tokens here and 192 there"},
		"as many":                     {one, 0, true, Unattributed, ""},
		"fewer than without the rest": {one, -10 * size, false, Nothing, ""},
		"no image":                    {nil, -6 * size, false, Nothing, ""},
	} {
		b := newBench(t)
		b.expect("r", prompt, c.media...)
		if c.send {
			b.store(0, prompt[:4*size], engine.Medium{Name: "a", HasName: true, Offset: size, Length: 3 * size})
		}
		b.a.Found("r", 0, c.more)
		if got := b.verdict("r"); got != c.want {
			t.Errorf("%s: verdict %s, want %s", what, got, c.want)
		}
		if c.says != "" && (len(b.a.Findings()) != 1 || !strings.HasPrefix(b.a.Findings()[0].Says, c.says)) {
			t.Errorf("%s: %+v, want %q", what, b.a.Findings(), c.says)
		}
	}
}

// TestAgreed: requests that a worker stores as predicted end its findings, of media only those with media; what is about another worker
// stays.
func TestAgreed(t *testing.T) {
	b := newBench(t)
	media := &engine.Prompt{Media: make([]engine.Medium, 1)}
	of := func(v Verdict) Finding { return Finding{Model: "m", Worker: "w", Verdict: v} }
	b.a.recent = []Finding{of(Nothing), of(Token), of(MediaName), {Model: "m", Worker: "other", Verdict: Nothing}}
	for _, c := range []struct {
		agree int
		with  *engine.Prompt
		want  string
	}{{3, &engine.Prompt{}, "[nothing token media_name nothing]"}, {1, &engine.Prompt{}, "[token media_name nothing]"},
		{27, &engine.Prompt{}, "[token media_name nothing]"}, {1, &engine.Prompt{}, "[media_name nothing]"},
		{31, media, "[media_name nothing]"}, {1, media, "[nothing]"}} {
		for range c.agree {
			b.a.agree(&request{Expectation: Expectation{Model: "m", Worker: "w", Prompt: c.with}})
		}
		var left []Verdict
		for _, f := range b.a.recent {
			left = append(left, f.Verdict)
		}
		if got := fmt.Sprint(left); got != c.want {
			t.Errorf("after %d more that agree: got %s, want %s", c.agree, got, c.want)
		}
	}
}

// TestMended checks that findings about a model that was read anew, or a worker whose process is another one, are dropped.
func TestMended(t *testing.T) {
	for _, c := range []struct {
		model, worker string
		left          int
	}{{"other", "other", 1}, {"m", "", 0}, {"", "w", 0}} {
		b := newBench(t)
		b.expect("r", ids(4*size, 100))
		b.verdict("r")
		b.a.Mended(c.model, c.worker)
		if got := b.a.Findings(); len(got) != c.left {
			t.Errorf("after Mended(%q, %q): %+v, want %d", c.model, c.worker, got, c.left)
		}
	}
}
