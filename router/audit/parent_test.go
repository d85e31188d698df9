package audit

import (
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// behind reports blocks after a parent that the index does not know, for a session.
func (b *bench) behind(parent uint64, session string, blocks []uint64) (last uint64) {
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, HasParent: parent != 0, Parent: parent, Session: session, Locals: blocks}
	for range blocks {
		b.engineHash++
		e.EngineHashes = append(e.EngineHashes, b.engineHash)
	}
	b.a.Stored(b.slot, &e)
	return b.engineHash
}

// TestParentIsShown checks that a request whose stored blocks follow an unknown block reveals what that block is, but only if
// nothing else can be meant.
func TestParentIsShown(t *testing.T) {
	const old = 7777
	prompt := ids(size*6, 100)
	all := locals(prompt, nil)
	twin := append(ids(size*3, 5000), prompt[size*3:]...) // another beginning, the same end
	repeats := slices.Concat(prompt[:size*4], prompt[size*2:size*4])
	for name, c := range map[string]struct {
		do   func(b *bench)
		want int // index of the block after the parent; 0: nothing is revealed
	}{
		"at once": {func(b *bench) { b.behind(old, "", all[3:]) }, 3},
		"in two chunks": {func(b *bench) {
			last := b.behind(old, "", all[3:5])
			b.behind(last, "", all[5:])
		}, 3},
		"with the engine's own count":      {func(b *bench) { b.a.Found("r", 3*size, 0); b.behind(old, "", all[3:]) }, 3},
		"with a count that says otherwise": {func(b *bench) { b.a.Found("r", 5*size, 0); b.behind(old, "", all[3:]) }, 0},
		"not to its end":                   {func(b *bench) { b.behind(old, "", all[3:5]) }, 0},
		"behind two parents":               {func(b *bench) { b.behind(old, "", all[3:]); b.behind(old+1, "", all[3:]) }, 0},
		"stored from its beginning":        {func(b *bench) { b.behind(0, "", all); b.behind(old, "", all[3:]) }, 0},
		"another open request with that end": {func(b *bench) {
			b.expect("twin", twin)
			b.behind(old, "", all[3:])
		}, 0},
		"another with its own beginning too": {func(b *bench) {
			b.expect("twin", slices.Concat(prompt, ids(size, 9000)))
			b.behind(old, "", all[3:])
		}, 3},
		"named beside a twin": {func(b *bench) {
			b.expect("twin", twin)
			b.behind(old, "r", all[3:])
		}, 3},
		"an image before it that the engine fetched": {func(b *bench) {
			b.a.byID["r"].Prompt.Media = []engine.Medium{{Offset: 2 * size, Length: size / 2, Fetched: true}}
			b.behind(old, "", all[3:])
		}, 0},
		"an image after it that the engine fetched": {func(b *bench) {
			b.a.byID["r"].Prompt.Media = []engine.Medium{{Offset: 4 * size, Length: size / 2, Fetched: true}}
			b.behind(old, "", all[3:])
		}, 3},
		"of another session": {func(b *bench) { b.behind(old, "elsewhere", all[3:]) }, 0},
		"known to the index": {func(b *bench) {
			if err := b.ix.Store(b.slot, indexer.GPU, 0, false, []uint64{1, 2, 3, 4, 5, 6}, all); err != nil {
				b.t.Fatal(err)
			}
			b.behind(old, "", all[3:])
		}, 0},
	} {
		b := newBench(t)
		got := 0
		b.a.o.Parent = func(slot indexer.SlotID, engineHash uint64, leading []uint64) {
			got = len(leading)
			if slot != b.slot || engineHash != old || !slices.Equal(leading, all[:got]) {
				t.Errorf("%s: got slot %d, parent %d, blocks %v; want %d, %d, %v", name, slot, engineHash, leading, b.slot, old, all[:got])
			}
		}
		b.named("r", prompt)
		c.do(b)
		b.a.End("r", true)
		b.now = b.now.Add(grace)
		b.a.judge(b.now)
		if got != c.want {
			t.Errorf("%s: a parent of %d blocks is shown, want %d", name, got, c.want)
		}
	}

	// A block that occurs twice in a prompt does not tell which one it is.
	b := newBench(t)
	b.a.o.Parent = func(indexer.SlotID, uint64, []uint64) {
		t.Error("got a parent shown at a place that may be another, want none")
	}
	b.expect("r", repeats)
	b.behind(old, "", locals(repeats, nil)[4:])
	b.a.End("r", true)
	b.now = b.now.Add(grace)
	b.a.judge(b.now)
}

// TestOtherSizeBefore checks that what a process of another block size held before says nothing about the prompt: a worker that is
// started anew with another --block-size makes no rule step aside.
func TestOtherSizeBefore(t *testing.T) {
	b := newBench(t)
	prompt := ids(8*size, 100)
	b.named("r", prompt)
	b.ix.SetForm(b.slot, block.Form{Size: 2 * size})
	held := []uint64{11, 12} // hashes of larger blocks
	if err := b.ix.Store(b.slot, indexer.GPU, 0, false, []uint64{1, 2}, held); err != nil {
		t.Fatal(err)
	}
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 2 * size, Session: "r", HasParent: true, Parent: 2, Tokens: prompt[4*size:],
		Locals: []uint64{13, 14}, EngineHashes: []uint64{3, 4}}
	b.a.Stored(b.slot, &e)
	if got := b.verdict("r"); got.Differs() {
		t.Errorf("verdict %s: %+v, want !got.Differs()", got, b.a.Findings())
	}
}

// TestBlockInImage checks that a difference of which only the hash is known says whether an image has a part in the block.
func TestBlockInImage(t *testing.T) {
	for at, want := range map[int]string{2: "token 32; ", 3: "token 48, which has tokens of an image; "} {
		b := newBench(t)
		prompt := ids(8*size, 100)
		b.expect("r", prompt, engine.Medium{Name: "a", HasName: true, Offset: 3*size + 5, Length: size})
		own := locals(prompt, []engine.Medium{{Name: "a", HasName: true, Offset: 3*size + 5, Length: size}})
		other := slices.Clone(own)
		other[at]++
		e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Locals: other, EngineHashes: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}
		b.a.Stored(b.slot, &e)
		if got := b.verdict("r"); got != Block || !strings.Contains(b.a.Findings()[0].Says, want) {
			t.Errorf("verdict %s, %+v, want %q", got, b.a.Findings(), want)
		}
	}
}
