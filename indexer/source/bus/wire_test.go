package bus

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"

	"github.com/sightline-router/sightline/mmhash/block"
)

func TestWire(t *testing.T) {
	events := []kvevent.Event{
		{Kind: kvevent.Cleared},
		{Kind: kvevent.Stored, BlockSize: 2, EngineHashes: []uint64{1, 1 << 63}, Locals: []uint64{3, 4}},
		{Kind: kvevent.Stored, Tier: kvevent.Disk, HasParent: true, Parent: 9, MediaUnknown: true, BlockSize: 16,
			EngineHashes: []uint64{5}, Locals: []uint64{6}},
		{Kind: kvevent.Removed, Tier: kvevent.Remote, EngineHashes: []uint64{1, 2, 3}},
	}
	audit := kvevent.Event{Kind: kvevent.Stored, BlockSize: 2, EngineHashes: []uint64{1}, Locals: []uint64{2},
		Tokens: []uint32{7, 1 << 31}, LoRA: "sql",
		Session: "s-1", Media: []kvevent.MediaRef{{Block: 0, Offset: -3, Paired: true, Name: []byte("aa")}, {Name: []byte("")}}}
	for _, c := range []struct {
		name   string
		tokens bool
		in     []kvevent.Event
		out    []kvevent.Event
	}{
		{"blocks", false, append(events, audit), append(events, kvevent.Event{Kind: kvevent.Stored, BlockSize: 2,
			EngineHashes: []uint64{1}, Locals: []uint64{2}, Session: "s-1"})},
		{"tokens", true, append(events, audit), append(events, audit)},
	} {
		flags := byte(flagPartial | flagUpperBound)
		if c.tokens {
			flags = flagPartial | flagAway
		}
		b := (&head{flags, 77, 88, 99, 111, 222, block.Fixed().ID}).append(nil)
		for i := range c.in {
			b = appendEvent(b, &c.in[i], c.tokens)
		}
		if h, err := readHead(b); h != (head{flags, 77, 88, 99, 111, 222, block.Fixed().ID}) || err != nil {
			t.Errorf("%s: got %+v, %v, want what was written", c.name, h, err)
		}
		var d Decoder
		batch, err := d.Decode(b)
		if err != nil {
			t.Fatalf("%s: got %v, want no error", c.name, err)
		}
		if !batch.Partial || batch.Away != c.tokens || batch.UpperBound == c.tokens {
			t.Errorf("%s: got %+v, want Partial true, Away %v, UpperBound other than %v", c.name, batch, c.tokens, c.tokens)
		}
		for i := range batch.Events {
			got, want := batch.Events[i], c.out[i]
			if len(got.EngineHashes) == 0 {
				got.EngineHashes = nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: event %d\n got %+v\nwant %+v", c.name, i, got, want)
			}
		}
		for cut := range b {
			if batch, err := d.Decode(b[:cut]); err != nil && len(batch.Events) > 0 {
				t.Fatalf("cut at %d: events beside %v", cut, err)
			}
		}
	}
	for _, foreign := range []string{"HTTP/1.1 400 Bad Request and more", "S\x02 of a release before, with its numbers"} {
		if _, err := readHead([]byte(foreign)); err == nil || !strings.Contains(err.Error(), "update them together") {
			t.Errorf("%q is taken: got %v, want an error, %q in it", foreign, err, "update them together")
		}
	}
}

func FuzzDecode(f *testing.F) {
	b := (&head{key: block.Fixed().ID, epoch: 1, seq: 2}).append(nil)
	b = appendEvent(b, &kvevent.Event{Kind: kvevent.Stored, HasParent: true, Parent: 1, BlockSize: 2,
		EngineHashes: []uint64{1}, Locals: []uint64{2}, Tokens: []uint32{7, 8},
		LoRA: "a", Media: []kvevent.MediaRef{{Name: []byte("n")}}}, true)
	f.Add(appendEvent(b, &kvevent.Event{Kind: kvevent.Removed, EngineHashes: []uint64{4}}, false))
	f.Add(append(b, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	var d Decoder
	f.Fuzz(func(t *testing.T, b []byte) {
		batch, err := d.Decode(b)
		if err != nil && len(batch.Events) > 0 {
			t.Fatal("events beside an error")
		}
		for _, e := range every(&batch) {
			if e.Tier >= kvevent.Tiers || e.Kind == kvevent.Stored && (len(e.Locals) != len(e.EngineHashes) || len(e.EngineHashes) == 0) {
				t.Fatalf("%+v", e)
			}
			if e.Tokens != nil && len(e.Tokens) != e.BlockSize*len(e.EngineHashes) {
				t.Fatalf("%d tokens for %d blocks of %d", len(e.Tokens), len(e.EngineHashes), e.BlockSize)
			}
		}
	})
}

// Names become parts of subjects that NATS takes, each another.
func TestTokens(t *testing.T) {
	for worker, want := range map[string]string{"worker-1": "worker-1", "10.0.0.5:8000": "10=2E0=2E0=2E5=3A8000",
		"a b.c*>": "a=20b=2Ec=2A=3E", "ä": "=C3=A4", "x=2E": "x=3D2E"} {
		if got := subjectSuffix(worker, 7); got != want+".7" {
			t.Errorf("%q is %q, want %q", worker, got, want)
		}
	}
}

// TestPreviousRelease: a message of the previous release, made by its code (0.1.0-rc.1, version 3), is refused: its hashes have no key.
func TestPreviousRelease(t *testing.T) {
	text, err := os.ReadFile("testdata/rc1.hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := new(Decoder).Decode(b); err == nil || !strings.Contains(err.Error(), "update them together") {
		t.Errorf("got %v, want an error, %q in it", err, "update them together")
	}
}

// TestReleasesRead: what earlier releases wrote is read for as long as this one reads their version: an agent's message with every kind
// of event, and all that a worker holds as one router tells another. testdata/v5.txt was made by the code of 28 November
// 2026 (version 5).
func TestReleasesRead(t *testing.T) {
	text, err := os.ReadFile("testdata/v5.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(text))
	if len(lines) != 2 {
		t.Fatalf("testdata/v5.txt: got %d lines, want a message and what a worker holds", len(lines))
	}
	told, _ := hex.DecodeString(lines[1])
	wantHeld := releaseHeld()
	if at, all, err := ReadHeld(told, nil); err != nil || at != wantHeld.At || len(all.Events) != 2 ||
		!slices.Equal(all.Events[1].Locals, []uint64{1, 3}) || !slices.Equal(all.Events[1].EngineHashes, []uint64{2, 4}) {
		t.Errorf("what a worker holds: got %+v, %+v, %v, want %+v", at, all, err, wantHeld)
	}
	message, _ := hex.DecodeString(lines[0])
	var d Decoder
	got, err := d.Decode(message)
	if events := fmt.Sprintf("%+v", got.Events); err != nil || events != fmt.Sprintf("%+v", releaseEvents()) {
		t.Errorf("message: got %s, %v, want %+v", events, err, releaseEvents())
	}
	if !got.Partial || !got.UpperBound || got.Away {
		t.Errorf("message: got partial %v, upper bound %v, away %v, want true, true, false", got.Partial, got.UpperBound, got.Away)
	}
}

// releaseHeld is what testdata/v5.txt says that a worker holds.
func releaseHeld() stream.Held {
	return stream.Held{At: stream.Position{Next: 8, Sum: 9, UpperBound: true}, Form: block.Form{Size: 16, Lookahead: 1},
		Blocks: []indexer.Block{{Local: 1, EngineHash: 2, Parent: -1, Copies: [indexer.Tiers]uint8{1}},
			{Local: 3, EngineHash: 4, Parent: 0, Copies: [indexer.Tiers]uint8{1}}}}
}

// releaseEvents is what testdata/v5.txt says.
func releaseEvents() []kvevent.Event {
	return []kvevent.Event{
		{Kind: kvevent.Cleared},
		{Kind: kvevent.Stored, BlockSize: 2, EngineHashes: []uint64{1, 1 << 63}, Locals: []uint64{3, 4}, Session: "s-1"},
		{Kind: kvevent.Stored, Tier: kvevent.Disk, HasParent: true, Parent: 9, MediaUnknown: true, BlockSize: 16, Lookahead: 1,
			EngineHashes: []uint64{5}, Locals: []uint64{6}},
		{Kind: kvevent.Stored, BlockSize: 2, EngineHashes: []uint64{7}, Locals: []uint64{8}, Tokens: []uint32{7, 1 << 31}, LoRA: "sql",
			Media: []kvevent.MediaRef{{Offset: -3, Paired: true, Name: []byte("aa")}}},
		{Kind: kvevent.GroupStored, Group: 1, EngineHashes: []uint64{9}, Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 64, BlockSize: 16}},
		{Kind: kvevent.GroupRemoved, Group: 1, EngineHashes: []uint64{9}},
		{Kind: kvevent.Removed, Tier: kvevent.Remote, EngineHashes: []uint64{1, 2, 3}},
	}
}

// TestOtherKey: hashes under another secret are refused, whoever sends them.
func TestOtherKey(t *testing.T) {
	secret := block.NewSecret()
	b := (&head{key: secret.Key().ID, epoch: 1}).append(nil)
	if _, err := new(Decoder).Decode(b); !errors.Is(err, errOtherKey) {
		t.Errorf("got %v, want %v", err, errOtherKey)
	}
	if _, err := (&Decoder{Secret: secret}).Decode(b); err != nil {
		t.Error(err)
	}
	held := AppendHeld(nil, secret, &stream.Held{}, math.MaxInt)
	if _, _, err := ReadHeld(held, nil); !errors.Is(err, errOtherKey) {
		t.Errorf("got %v, want %v", err, errOtherKey)
	}
	if _, _, err := ReadHeld(held, secret); err != nil {
		t.Error(err)
	}
}

// TestHeldMessage checks that all that a worker holds is read back unchanged, and that another message is refused.
func TestHeldMessage(t *testing.T) {
	h := stream.Held{At: stream.Position{Next: 8, Sum: 9, UpperBound: true}, Form: block.Form{Size: 16, Lookahead: 1}, Blocks: []indexer.Block{
		{Local: 1, EngineHash: 2, Parent: -1, Copies: [indexer.Tiers]uint8{1}}, {Local: 3, EngineHash: 4, Parent: 0,
			Copies: [indexer.Tiers]uint8{2}}}}
	at, all, err := ReadHeld(AppendHeld(nil, nil, &h, math.MaxInt), nil)
	if err != nil || at != h.At || all.Stands || all.Partial || !all.UpperBound {
		t.Fatalf("got %+v %+v %v, want the head %+v of a whole listing that is an upper bound", at, all, err, h.At)
	}
	want := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Lookahead: 1, HasParent: true, Parent: 2,
		EngineHashes: []uint64{4}, Locals: []uint64{3}}
	if n := len(all.Events); n != 4 || all.Events[0].Kind != kvevent.Cleared || !reflect.DeepEqual(all.Events[2], want) ||
		!reflect.DeepEqual(all.Events[3], want) {
		t.Errorf("%+v: got %d, want 4, [0].Kind %v, [2] %+v, [3] %+v", all.Events, n, kvevent.Cleared, want, want)
	}
	for i := range headBytes + 2 { // up to the clear
		if _, _, err := ReadHeld(AppendHeld(nil, nil, &h, math.MaxInt)[:i], nil); err == nil {
			t.Errorf("%d bytes are read: got %v, want an error", i, err)
		}
	}
	for len(h.Blocks) < 1000 { // each an event of its own
		h.Blocks = append(h.Blocks, indexer.Block{Local: 5, EngineHash: uint64(len(h.Blocks)), Parent: -1, Copies: [indexer.Tiers]uint8{1}})
	}
	if n, all := len(AppendHeld(nil, nil, &h, 500)), len(AppendHeld(nil, nil, &h, math.MaxInt)); n <= 500 || n > 600 ||
		all < 1000*HeldBlockBytes {
		t.Errorf("%d bytes of %d, want few more than 500", n, all)
	}
	h.At.Partial = true // there was no memory for the rest
	if at, all, err := ReadHeld(AppendHeld(nil, nil, &h, math.MaxInt), nil); err != nil || at != h.At || !all.Partial {
		t.Errorf("got %+v %+v %v, want no error, %+v, Partial true", at, all, err, h.At)
	}
	away := (&head{key: block.Fixed().ID, flags: flagAway}).append(nil)
	if _, _, err := ReadHeld(appendBlocks(away, h.Blocks, nil, h.Form, math.MaxInt), nil); err == nil {
		t.Errorf("an agent's is read: got %v, want an error", err)
	}
	e := kvevent.Event{Kind: kvevent.Removed, EngineHashes: []uint64{1}}
	if _, _, err := ReadHeld(appendEvent((&head{key: block.Fixed().ID}).append(nil), &e, false), nil); err == nil {
		t.Errorf("a change is read as all: got %v, want an error", err)
	}
}

// TestEventsAreBounded checks that a message of too many events is refused, and that only some of a large one's are in memory.
func TestEventsAreBounded(t *testing.T) {
	var d Decoder
	message := func(events int) []byte {
		return append((&head{key: block.Fixed().ID}).append(nil), bytes.Repeat([]byte{byte(kvevent.Cleared), 0}, events)...)
	}
	if batch, err := d.Decode(message(maxEvents)); err != nil || len(every(&batch)) != maxEvents {
		t.Errorf("got %d events, %v, want %d", len(batch.Events), err, maxEvents)
	}
	if batch, err := d.Decode(message(maxEvents + 1)); err == nil {
		t.Errorf("%d events are read: got %v, want an error", len(batch.Events), err)
	}
	if cap(d.a.Events) > 2*eventsAtOnce {
		t.Errorf("room for %d events is kept, want at most %d", cap(d.a.Events), 2*eventsAtOnce)
	}
}

// every returns copies of all events of a batch.
func every(b *kvevent.Batch) (all []kvevent.Event) {
	for events := b.Events; len(events) > 0; events = b.More() {
		for _, e := range events {
			e.EngineHashes, e.Locals = slices.Clone(e.EngineHashes), slices.Clone(e.Locals)
			all = append(all, e)
		}
		if b.More == nil {
			break
		}
	}
	return all
}

// TestLargeMessage checks that the events of a large message are all read, in order, and none of them if its end is damaged.
func TestLargeMessage(t *testing.T) {
	b := (&head{key: block.Fixed().ID}).append(nil)
	var want []kvevent.Event
	for i := range 5 * eventsAtOnce {
		e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
		blocks := 1
		if i == 2*eventsAtOnce {
			blocks = 3 * wordsAtOnce
		}
		for k := range blocks {
			e.EngineHashes, e.Locals = append(e.EngineHashes, uint64(i+k)), append(e.Locals, uint64(i*k))
		}
		want = append(want, e)
		b = appendEvent(b, &e, false)
	}
	var d Decoder
	batch, err := d.Decode(b)
	if got := every(&batch); err != nil || len(batch.Events) > eventsAtOnce || !reflect.DeepEqual(got, want) {
		t.Errorf("%d events of %d, %d at once, %v: got %+v, want no error, at most %d, %+v",
			len(got), len(want), len(batch.Events), err, got, eventsAtOnce, want)
	}
	if batch, err := d.Decode(b[:len(b)-1]); err == nil || batch.Events != nil || batch.More != nil {
		t.Errorf("%d events of a message that is cut at its end: got %v, %+v, want an error, nil and nothing more",
			len(batch.Events), err, batch.Events)
	}
}
