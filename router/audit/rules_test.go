package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// judges is an auditor whose class m has workers a to d.
type judges struct {
	*bench
	class   *Class
	slots   map[string]indexer.SlotID
	n       int
	metrics *prometheus.Registry
	waits   bool // verdicts are not due
}

func newJudges(t *testing.T) *judges {
	b := &judges{bench: newBench(t), slots: map[string]indexer.SlotID{}}
	b.metrics = prometheus.NewRegistry()
	b.a = New(Options{Index: b.ix, Now: b.a.o.Now, Metrics: b.metrics})
	b.class = b.a.Serve([]ClassName{{Model: "m", Prompts: engine.NewUnloaded(engine.Server{})}})[0]
	for _, name := range []string{"a", "b", "c", "d"} {
		b.slots[name] = b.ix.Join(indexer.SlotOptions{})
	}
	return b
}

// one is a request of its own, and what its worker stores of it.
type one struct {
	worker string
	named  bool   // its worker names sessions
	stores string // "": what was computed; token, span or name: something else
	change func(e *Expectation)
	// borrowed: its client names its session in another request, which is not audited and whose event this is.
	borrowed bool
}

// request has a worker serve a request: 32 tokens of text, an image of 40, 40 of text.
func (b *judges) request(o one) {
	b.t.Helper()
	b.n++
	id := fmt.Sprint("r", b.n)
	start := uint32(1000 * b.n)
	prompt := func(length int) []uint32 {
		return slices.Concat(ids(32, start), slices.Repeat([]uint32{9}, length), ids(40, start+100))
	}
	tokens, media := prompt(40), []engine.Medium{imageAt(32, 40, id)}
	e := Expectation{ID: id, Slot: b.slots[o.worker], Worker: o.worker, Model: "m", Locals: locals(tokens, media),
		Form: block.Form{Size: size}, Prompt: &engine.Prompt{IDs: tokens, Media: media, Exact: true}, Class: b.class}
	if o.named {
		e.Session = id
	}
	if o.change != nil {
		o.change(&e)
	}
	b.a.Expect(e)
	if o.borrowed {
		b.a.Borrowed(e.ID)
	}
	stored, as := tokens, media
	switch o.stores {
	case "token":
		stored = slices.Clone(tokens)
		stored[20]++
	case "span":
		stored, as = prompt(56), []engine.Medium{imageAt(32, 56, id)}
	case "name":
		as = []engine.Medium{imageAt(32, 40, "other")}
	}
	event := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Session: e.Session, Tokens: stored, Locals: locals(stored, as)}
	for range event.Locals {
		b.engineHash++
		event.EngineHashes = append(event.EngineHashes, b.engineHash)
	}
	for i := range as {
		for k := as[i].Offset / size; k*size < as[i].Offset+as[i].Length; k++ {
			event.Media = append(event.Media, kvevent.MediaRef{Block: k, Offset: as[i].Offset - k*size, Paired: true, Name: []byte(as[i].Name)})
		}
	}
	b.a.Stored(e.Slot, &event)
	b.a.End(id, true)
	if !b.waits {
		b.now = b.now.Add(2 * grace)
		b.a.judge(b.now)
	}
}

// out lists for whom rules have stepped aside.
func (b *judges) out() string {
	var list []string
	for _, w := range []string{"a", "b", "c", "d"} {
		for r := range ruleCount {
			if b.class.Standing().Aside(w).Has(r) {
				list = append(list, w+" "+r.String())
			}
		}
	}
	return strings.Join(list, ", ")
}

const everyImage, everyText = "a images, b images, c images, d images", "a text, b text, c text, d text"

// TestEvidence checks what puts a rule out, and for whom.
func TestEvidence(t *testing.T) {
	fetched := func(e *Expectation) { e.Prompt.Media[0].Fetched = true }
	shaped := func(e *Expectation) { e.Shaped = true }
	for name, c := range map[string]struct {
		requests []one
		want     string
	}{
		"all agree":                               {[]one{{worker: "a", named: true}, {worker: "b"}}, ""},
		"an image's tokens":                       {[]one{{worker: "a", named: true, stores: "span"}}, everyImage},
		"an image's name":                         {[]one{{worker: "a", named: true, stores: "name"}}, everyImage},
		"a token of the text":                     {[]one{{worker: "a", named: true, stores: "token"}}, everyText},
		"not named, once":                         {[]one{{worker: "a", stores: "span"}}, ""},
		"not named, twice":                        {[]one{{worker: "a", stores: "span"}, {worker: "a", stores: "span"}}, everyImage},
		"not named, with one between that agrees": {[]one{{worker: "a", stores: "span"}, {worker: "a"}, {worker: "a", stores: "span"}}, ""},
		"not named, by two workers":               {[]one{{worker: "a", stores: "span"}, {worker: "b", stores: "name"}}, everyImage},
		"a worker that is another than the others": {[]one{{worker: "b", named: true}, {worker: "c"}, {worker: "a", named: true, stores: "token"},
			{worker: "a", named: true, stores: "token"}}, "a text"},
		"two workers, of which one agreed": {[]one{{worker: "b", named: true}, {worker: "c"}, {worker: "a", named: true, stores: "token"},
			{worker: "b", named: true, stores: "token"}}, "a text, b text"},
		"two workers that never agreed": {[]one{{worker: "b"}, {worker: "c"}, {worker: "a", named: true, stores: "token"},
			{worker: "d", named: true, stores: "token"}}, "a text, d text"},
		"a worker that agreed itself": {[]one{{worker: "b"}, {worker: "a"}, {worker: "a", named: true, stores: "span"}}, "a images"},
		"the only one that agreed":    {[]one{{worker: "a"}, {worker: "a", named: true, stores: "span"}}, everyImage},
		"not named, by two of three":  {[]one{{worker: "c"}, {worker: "a", stores: "span"}, {worker: "b", stores: "name"}}, ""},
		"an image's host": {[]one{{worker: "a", named: true, stores: "name", change: fetched},
			{worker: "a", named: true, stores: "span", change: fetched}}, ""},
		"text before an image's host": {[]one{{worker: "a", named: true, stores: "token", change: fetched}}, everyText},
		"parameters of its own": {[]one{{worker: "a", named: true, stores: "token", change: shaped},
			{worker: "b", named: true, stores: "span", change: shaped}}, strings.ReplaceAll(everyText, "text", "parameters")},
		"several prompts": {[]one{{worker: "a", named: true, stores: "token", change: func(e *Expectation) { e.Class = nil }}}, ""},
		"read before a reload": {[]one{{worker: "a", named: true, stores: "token", change: func(e *Expectation) {
			e.Prompts = new(engine.Model)
		}}}, ""},
		"an open request's session, in another request": {[]one{{worker: "a", named: true, stores: "token", borrowed: true}}, ""},
		"a session that a client chose": {[]one{{worker: "a", named: true, stores: "token",
			change: func(e *Expectation) { e.Session = "client's" }}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newJudges(t)
			for _, o := range c.requests {
				b.request(o)
			}
			if got := b.out(); got != c.want {
				t.Errorf("aside: %s; want %s", got, c.want)
			}
		})
	}
}

// TestRuleIsBack: so many agreeing requests bring a rule back, twice as many the next time, and none of another worker does it for one that
// has contradicted.
func TestRuleIsBack(t *testing.T) {
	b := newJudges(t)
	agree := func(worker string, n int) {
		for range n {
			b.request(one{worker: worker, named: true})
		}
	}
	contradict := func(worker string) { b.request(one{worker: worker, named: true, stores: "span"}) }
	check := func(what, want string) {
		t.Helper()
		if got := b.out(); got != want {
			t.Fatalf("%s: aside %s; want %s", what, got, want)
		}
	}
	contradict("a")
	agree("a", proof-1)
	check("one is missing", everyImage)
	agree("a", 1)
	check("all agreed", "")
	contradict("a")
	agree("a", 2*proof-1)
	check("one is missing, the second time", everyImage)
	if s := b.a.Aside()[0]; s.Agreed != 2*proof-1 || s.Needed != 2*proof || !s.All || !slices.Equal(s.Workers, []string{"a"}) {
		t.Errorf("got %+v, want Agreed %d, Needed %d, All true, Workers %q", s, 2*proof-1, 2*proof, []string{"a"})
	}
	contradict("a")
	agree("a", 1)
	check("a contradiction in between", everyImage)
	agree("b", 2*proof)
	check("the others agreed", "a images")
	contradict("a")
	check("a goes on", "a images")
	b.a.WorkerLeft("a")
	check("a has left", "")
	if n := len(b.a.Aside()); n != 0 {
		t.Errorf("%d rules aside, want 0", n)
	}

	contradict("a")
	contradict("c")
	check("two workers, of a class in which another has agreed", "a images, c images")
	agree("c", proof)
	check("c agreed again", "a images")
	if n, err := testutil.GatherAndCount(b.metrics, "sightline_rules_aside"); n != 1 || err != nil {
		t.Errorf("%d series, %v; want one for the class", n, err)
	}
	b.class = b.a.Serve([]ClassName{{Model: "m", Prompts: engine.NewUnloaded(engine.Server{})}})[0]
	check("a reload", "")

	contradict("a")
	agree("a", proof)
	check("all agreed, after the reload", "")
	agree("a", forgiven*proof)
	contradict("a")
	agree("a", proof)
	check("as many as the first time, since many have agreed in between", "")
}

// TestProbed: what a worker is found to be when it is asked ends what its contradictions did, without requests that agree.
func TestProbed(t *testing.T) {
	contradicts := func(worker string) one { return one{worker: worker, named: true, stores: "name"} }
	for name, c := range map[string]struct {
		before []one
		then   func(a *Auditor)
		want   string
	}{
		"nothing was found out":         {[]one{contradicts("a")}, func(*Auditor) {}, everyImage},
		"as configured":                 {[]one{contradicts("a")}, func(a *Auditor) { a.Probed("a", false) }, everyImage},
		"not as configured":             {[]one{contradicts("a")}, func(a *Auditor) { a.Probed("a", true) }, "a images"},
		"another worker is not":         {[]one{contradicts("a")}, func(a *Auditor) { a.Probed("b", true) }, everyImage},
		"not as configured, then it is": {[]one{contradicts("a")}, func(a *Auditor) { a.Probed("a", true); a.Probed("a", false) }, ""},
		"one of two":                    {[]one{contradicts("a"), contradicts("b")}, func(a *Auditor) { a.Probed("a", true) }, everyImage},
		"both of two": {[]one{contradicts("a"), contradicts("b")}, func(a *Auditor) { a.Probed("a", true); a.Probed("b", true) },
			"a images, b images"},
		"another process":            {[]one{contradicts("a")}, func(a *Auditor) { a.Mended("", "a") }, ""},
		"another process of another": {[]one{contradicts("a")}, func(a *Auditor) { a.Mended("", "b") }, everyImage},
	} {
		b := newJudges(t)
		var asked []string
		b.a.o.Contradicted = func(worker string) { asked = append(asked, worker) }
		var want []string
		for _, o := range c.before {
			b.request(o)
			want = append(want, o.worker)
		}
		c.then(b.a)
		if got := b.out(); got != c.want || !slices.Equal(asked, want) {
			t.Errorf("%s: aside: %s, asked %v; want %s, %v", name, got, asked, c.want, want)
		}
	}
	b := newJudges(t)
	b.waits = true
	b.request(contradicts("a"))
	b.a.Mended("", "a")
	b.waits = false
	b.request(one{worker: "b", named: true})
	if got := b.out(); got != "" || len(b.a.byID) > 0 {
		t.Errorf("a request that its former process has served: aside %s, %d are watched; want none", got, len(b.a.byID))
	}
	b = newJudges(t)
	b.request(contradicts("a"))
	b.a.Probed("a", true)
	b.request(contradicts("b"))
	b.request(one{worker: "c", named: true})
	if got := b.out(); got != everyImage {
		t.Errorf("a second one contradicts, as configured: aside %s; want %s", got, everyImage)
	}
}

// TestUnproven: requests are remembered beside a rule until it is proven, and not for ever. Asking alone counts none.
func TestUnproven(t *testing.T) {
	b := newJudges(t)
	text := &engine.Prompt{IDs: ids(64, 1), Exact: true}
	image := &engine.Prompt{IDs: ids(64, 1), Exact: true, Media: []engine.Medium{imageAt(16, 16, "n")}}
	unproven := func(p *engine.Prompt) bool { return b.class.Standing().Unproven(p, false, false) }
	for range proof {
		if !unproven(text) {
			t.Fatal("of a rule that no request has proved, want unproven(text)")
		}
		b.request(one{worker: "a"})
	}
	if unproven(text) || unproven(image) {
		t.Error("of rules that are proven, want !unproven(text), !unproven(image)")
	}
	b = newJudges(t)
	for i := range mostBeside {
		if !unproven(text) || !b.class.Standing().CountUnproven() {
			t.Fatalf("request %d of %d is not remembered, want unproven(text), b.class.Standing().CountUnproven()", i, mostBeside)
		}
	}
	if unproven(text) || b.class.Standing().CountUnproven() {
		t.Errorf("more than %d requests are remembered where nothing proves a rule, want !unproven(text), !b.class.Standing().CountUnproven()",
			mostBeside)
	}
}

// TestHeldBeginning: the first event of a request begins after blocks that were held before. They are the beginning of its prompt, and not
// what was computed.
func TestHeldBeginning(t *testing.T) {
	for name, differs := range map[string]bool{"another beginning": true, "the same beginning": false} {
		t.Run(name, func(t *testing.T) {
			b := newJudges(t)
			tokens := ids(96, 100)
			held := slices.Clone(tokens)
			if differs {
				held[40]++
			}
			blocks := locals(held, nil)
			if err := b.ix.Store(b.slots["a"], indexer.GPU, 0, false, []uint64{1, 2, 3, 4}, blocks[:4]); err != nil {
				t.Fatal(err)
			}
			b.a.Expect(Expectation{ID: "r", Session: "r", Slot: b.slots["a"], Worker: "a", Model: "m", Locals: locals(tokens, nil), From: 2,
				Form: block.Form{Size: size}, Prompt: &engine.Prompt{IDs: tokens, Exact: true}, Class: b.class})
			b.a.Stored(b.slots["a"], &kvevent.Event{Kind: kvevent.Stored, BlockSize: size, Session: "r", HasParent: true, Parent: 4,
				Tokens: held[64:], Locals: blocks[4:], EngineHashes: []uint64{5, 6}})
			b.a.End("r", true)
			b.now = b.now.Add(2 * grace)
			b.a.judge(b.now)
			want := map[bool]string{true: everyText}[differs]
			if got := b.out(); got != want {
				t.Errorf("aside: %s; want %s", got, want)
			}
			if list := b.a.Aside(); differs && list[0].First.Position != 32 {
				t.Errorf("got a first difference at token %d, want 32", list[0].First.Position)
			}
		})
	}
}
