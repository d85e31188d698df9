package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// streamBench is a fleet whose requests are reported wherever a test says.
type streamBench struct {
	*bench
	slots map[string]indexer.SlotID // by worker, and rank after a slash
	n     int
}

func newStreamBench(t *testing.T, log *zap.Logger, slots ...string) *streamBench {
	b := &streamBench{bench: &bench{t: t, now: time.Unix(1000, 0), ix: indexer.New(indexer.Options{})}, slots: make(map[string]indexer.SlotID)}
	for _, name := range slots {
		b.slots[name] = b.ix.Join(indexer.SlotOptions{})
	}
	b.a = New(Options{Index: b.ix, Now: func() time.Time { return b.now }, Log: log, WorkerOf: func(h indexer.SlotID) string {
		for name, slot := range b.slots {
			if slot == h {
				worker, _, _ := strings.Cut(name, "/")
				return worker
			}
		}
		return ""
	}})
	return b
}

// begin sends a prompt to a slot.
func (b *streamBench) begin(to string, prompt []uint32, change func(*Expectation)) (id string) {
	b.n++
	worker, _, _ := strings.Cut(to, "/")
	e := Expectation{ID: fmt.Sprint("r", b.n), Slot: b.slots[to], Worker: worker, Model: "m", Locals: locals(prompt, nil),
		Form: block.Form{Size: size}, Prompts: &engine.Model{}, Prompt: &engine.Prompt{IDs: prompt, Exact: true}, Whole: uint64(prompt[0]),
		New: true, Alone: true}
	if change != nil {
		change(&e)
	}
	b.a.Expect(e)
	return e.ID
}

// report stores a prompt by the events of a slot; "": nowhere.
func (b *streamBench) report(by, session string, prompt []uint32) {
	if by == "" {
		return
	}
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Tokens: prompt, Locals: locals(prompt, nil), Session: session}
	for range e.Locals {
		b.engineHash++
		e.EngineHashes = append(e.EngineHashes, b.engineHash)
	}
	b.a.Stored(b.slots[by], &e)
	if err := b.ix.Store(b.slots[by], indexer.GPU, 0, false, e.EngineHashes, e.Locals); err != nil {
		b.t.Fatal(err)
	}
}

func (b *streamBench) end(id string) {
	b.a.End(id, true)
	b.now = b.now.Add(grace)
	b.a.judge(b.now)
}

func (b *streamBench) fresh() []uint32 { return ids(64, uint32(1000*(b.n+1))) }

func (b *streamBench) found() string {
	var list []string
	for _, m := range b.a.Misplaced() {
		list = append(list, m.Worker+" over "+m.Over)
	}
	return strings.Join(list, ", ")
}

func TestMisplaced(t *testing.T) {
	type sent struct{ to, by string }
	cases := []struct {
		name   string
		slots  string
		sent   []sent // again and again
		change func(*Expectation)
		want   string
	}{
		{"healthy", "a b", []sent{{"a", "a"}, {"b", "b"}}, nil, ""},
		{"one worker", "a", []sent{{"a", "a"}}, nil, ""},
		{"swapped", "a b c", []sent{{"a", "b"}, {"b", "a"}, {"c", "c"}}, nil, "a over b, b over a"},
		{"swapped, and some reported rightly by chance", "a b",
			[]sent{{"a", "b"}, {"b", "a"}, {"a", "b"}, {"b", "a"}, {"a", "b"}, {"b", "a"}, {"a", "b"}, {"b", "a"}, {"a", "b"}, {"b", "b"}}, nil,
			"a over b, b over a"},
		{"a ring", "a b c", []sent{{"a", "b"}, {"b", "c"}, {"c", "a"}}, nil, "a over b, b over c, c over a"},
		{"ports one too high", "a b c", []sent{{"a", ""}, {"b", "a"}, {"c", "b"}}, nil, "b over a, c over b"},
		{"ranks of one worker", "a/0 a/1", []sent{{"a/0", "a/1"}, {"a/1", "a/0"}}, nil, ""},
		{"no events of a, whose conversations go on at b", "a b", []sent{{"a", "b"}, {"b", "b"}}, nil, ""},
		{"no events at all", "a b", []sent{{"a", ""}, {"b", ""}}, nil, ""},
		{"a balancer before both", "a b", []sent{{"a", "a"}, {"a", "b"}, {"b", "b"}, {"b", "a"}}, nil, ""},
		{"prefilled elsewhere", "a b", []sent{{"a", "b"}, {"b", "a"}}, func(e *Expectation) { e.Alone = false }, ""},
		{"held before", "a b", []sent{{"a", "b"}, {"b", "a"}}, func(e *Expectation) { e.New = false }, ""},
		{"idle b", "a b", []sent{{"a", "b"}}, nil, ""},
	}
	for _, c := range cases {
		for _, named := range []bool{false, true} {
			if named && c.name == "held before" {
				continue // an event that names its request is certain
			}
			b := newStreamBench(t, nil, strings.Fields(c.slots)...)
			for range 20 {
				for _, one := range c.sent {
					prompt, session := b.fresh(), ""
					id := b.begin(one.to, prompt, func(e *Expectation) {
						if named {
							e.Session, e.New, session = e.ID, one.by == "", e.ID
						}
						if c.change != nil {
							c.change(e)
						}
					})
					b.report(one.by, session, prompt)
					b.end(id)
				}
			}
			if got := b.found(); got != c.want {
				t.Errorf("%s, sessions %v: %q, want %q", c.name, named, got, c.want)
			}
		}
	}
}

// TestMisplacedSameRequest: two workers without events get the same prompts at once; what one of them stores says nothing.
func TestMisplacedSameRequest(t *testing.T) {
	b := newStreamBench(t, nil, "a", "b", "c")
	for range 20 {
		prompt := b.fresh()
		first, second := b.begin("a", prompt, nil), b.begin("b", prompt, func(e *Expectation) { e.New = false })
		b.report("c", "", prompt)
		b.end(first)
		b.end(second)
	}
	if got := b.found(); got != "" {
		t.Errorf("got %q, want %q", got, "")
	}
}

// TestMisplacedEnds: both workers are misplaced; a worker that left is forgotten, and one that is mended is not
// misplaced any more.
func TestMisplacedEnds(t *testing.T) {
	b := newStreamBench(t, zap.NewNop(), "a", "b")
	both := func(a, over string) {
		for range streamWindow {
			for _, one := range [][2]string{{"a", a}, {"b", over}} {
				prompt := b.fresh()
				id := b.begin(one[0], prompt, nil)
				b.report(one[1], "", prompt)
				b.end(id)
			}
		}
	}
	both("b", "a")
	if n := len(b.a.Misplaced()); n != 2 {
		t.Errorf("got %d misplaced workers, want both", n)
	}
	for _, m := range b.a.Misplaced() {
		if m.Since.IsZero() || m.Requests < fewPlaced {
			t.Errorf("got %+v, want !m.Since.IsZero(), m.Requests >= fewPlaced", m)
		}
	}
	if f := b.a.Findings(); len(f) == 0 || f[0].Verdict != Elsewhere || f[0].Says == "" {
		t.Errorf("findings %+v, want some of them, [0].Verdict %q, [0].Says some", f, Elsewhere)
	}
	both("a", "b")
	if got := b.found(); got != "" {
		t.Errorf("mended, and %q, want %q", got, "")
	}
	both("b", "a")
	b.a.WorkerLeft("a")
	if got := b.found(); got != "" {
		t.Errorf("a has left, and %q, want %q", got, "")
	}
}

// TestLate: a worker whose events come three seconds after its requests' ends is named with that, and those are its own; not so one of
// which a single request comes late, one whose next turns store what it had not told of, and one that is in time again.
func TestLate(t *testing.T) {
	b := newStreamBench(t, zap.NewNop(), "a", "b")
	send := func(to string, late time.Duration) {
		prompt := b.fresh()
		id := b.begin(to, prompt, nil)
		if late == 0 {
			b.report(to, "", prompt)
			b.end(id)
			return
		}
		b.end(id)
		b.now = b.now.Add(late - grace)
		b.report(to, "", prompt)
		b.a.judge(b.now)
	}
	for i := range 12 {
		send("a", 3*time.Second)
		if i == 5 {
			send("b", 5*time.Second)
		} else {
			send("b", 0)
		}
		if list := b.a.Late(); i >= fewPlaced && (len(list) != 1 || list[0].Worker != "a" || list[0].By != 3*time.Second ||
			list[0].Since.IsZero()) {
			t.Fatalf("request %d: got %+v, want worker a late by 3 s since some moment", i, list)
		}
	}
	if got := b.found(); got != "" {
		t.Errorf("got %q, want %q", got, "")
	}
	if got := b.a.SomeLate(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %q of which some came late, want a and b", got)
	}
	for range lateWindow {
		send("a", 0)
	}
	if list, some := b.a.Late(), b.a.SomeLate(); len(list) > 0 || !slices.Equal(some, []string{"b"}) {
		t.Errorf("in time again: got %+v, and some of %q, want none, and b", list, some)
	}

	for range openLate + 10 { // never
		b.end(b.begin("a", b.fresh(), nil))
	}
	if n := len(b.a.mayBeLate); n > openLate {
		t.Errorf("%d requests may be late, want at most %d", n, openLate)
	}
	b.now = b.now.Add(latePatience)
	if more := b.a.judge(b.now); more || len(b.a.mayBeLate) > 0 || len(b.a.Late()) > 0 {
		t.Errorf("after %v: got more to judge %v, %d requests that may be late, %+v late; want none",
			latePatience, more, len(b.a.mayBeLate), b.a.Late())
	}
}

// TestNoAuditor: a nil Auditor has seen nothing.
func TestNoAuditor(t *testing.T) {
	var none *Auditor
	if m, late, some := none.Misplaced(), none.Late(), none.SomeLate(); len(m)+len(late)+len(some) > 0 {
		t.Errorf("got %+v, %+v and %q, want nothing", m, late, some)
	}
}
