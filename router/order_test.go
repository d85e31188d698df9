package router

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// due returns the number that a request's worker is sent.
func due(t *testing.T, d Decision) int64 {
	t.Helper()
	if len(d.Targets) == 0 || d.Targets[0].Due.Header != "x-vllm-priority" {
		t.Fatalf("got targets %+v, want one with x-vllm-priority", d.Targets)
	}
	n, err := strconv.ParseInt(d.Targets[0].Due.Value, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDue checks when requests are due, from their arrival on, in milliseconds.
func TestDue(t *testing.T) {
	w := newWorld(t, 2)
	long := chatBody("m", fmt.Sprintf("%q", text(300, 1)))
	first := w.decide(long)
	second := w.decide(long)
	now, left := w.now.UnixMilli(), first.PromptTokens-second.CachedTokens
	for _, c := range []struct {
		name string
		d    Decision
		want int64
	}{
		{"a new prompt", first, int64(first.PromptTokens) / 4},
		{"the same again", second, int64(left) / 4},
	} {
		if got := due(t, c.d) - now; got != c.want {
			t.Errorf("%s: got due %d ms after its arrival, want %d", c.name, got, c.want)
		}
	}
	if o := second.Order; o == nil || o.Work != left || o.Serves != rules.Unsaid.String() {
		t.Errorf("got order %+v, want %d tokens of work and a worker that has not said how it serves", second.Order, left)
	}
	retry, want := second.Targets[1].Due, fmt.Sprint(now+int64(second.PromptTokens)/4)
	if retry.Value != want || !retry.Ahead {
		t.Errorf("at the second worker, which holds nothing: got %+v, want %s", retry, want)
	}
	if told, _ := w.Decision(second.ID); told.Order == nil || *told.Order != *second.Order {
		t.Errorf("of the past decision: got %+v, want %+v", told.Order, second.Order)
	}
}

// TestBands checks how far priorities and a client's wishes move a request: a client can only put itself back, and nothing moves it
// further than the bounds.
func TestBands(t *testing.T) {
	const step, most = 10_000, 60_000
	for _, c := range []struct {
		name     string
		change   func(*Request)
		min, max int64 // ms after the arrival
	}{
		{"none", func(*Request) {}, 0, 500},
		{"above", func(r *Request) { r.Priority = 1 }, -step, -step + 500},
		{"below", func(r *Request) { r.Priority = -2 }, 2 * step, 2*step + 500},
		{"highest", func(r *Request) { r.Priority = math.MaxInt }, -most, -most + 500},
		{"lowest", func(r *Request) { r.Priority = math.MinInt }, most, most + 500},
		{"soon", func(r *Request) { r.FirstToken = time.Millisecond }, 0, 500},
		{"late", func(r *Request) { r.FirstToken = 5 * time.Second }, 5000, 5000},
		{"never", func(r *Request) { r.FirstToken = 4 * time.Hour }, 30_000, 30_000},
		{"flex", func(r *Request) { r.Body = [][]byte{[]byte(`{"service_tier":"flex",` + string(r.Body[0][1:]))} }, step, step + 500},
		{"flex, lowest", func(r *Request) {
			r.Priority, r.Body = math.MinInt, [][]byte{[]byte(`{"service_tier":"flex",` + string(r.Body[0][1:]))}
		}, most, most + 500},
		{"the client's own number", func(r *Request) {
			r.Body = [][]byte{[]byte(`{"priority":-9223372036854775808,` + string(r.Body[0][1:]))}
		}, 0, 500},
		{"unreadable", func(r *Request) { r.Body = nil }, 0, 500},
		{"long", func(r *Request) { r.Body = [][]byte{[]byte(chatBody("m", fmt.Sprintf("%q", text(80_000, 1))))} }, 30_000, 30_000},
	} {
		w := newWorld(t, 1)
		req := Request{ID: "d", Path: "/v1/chat/completions", Body: [][]byte{[]byte(chatBody("m", `"hello"`))}}
		c.change(&req)
		d := w.Decide(t.Context(), &req)
		if got := due(t, d) - w.now.UnixMilli(); got < c.min || got > c.max {
			t.Errorf("%s: got due %d ms after its arrival, want %d to %d", c.name, got, c.min, c.max)
		}
	}
}

// TestTenantsWorkAges checks that a tenant's next request is due later by the work that it was given more than others, at most by a step of
// priority, until that is long ago; and that one alone is not put back, nor anybody without fair shares.
func TestTenantsWorkAges(t *testing.T) {
	for _, fair := range []bool{true, false} {
		w, n := newWorld(t, 1), 0
		w.opt.Fair = fair
		ask := func(tenant string, words int) time.Duration {
			n++
			d := w.Decide(t.Context(), &Request{ID: fmt.Sprint("r", n), Path: "/v1/chat/completions", Tenant: tenant,
				Body: [][]byte{[]byte(chatBody("m", fmt.Sprintf("%q", text(words, uint64(n)))))}})
			own := time.Duration(d.Order.Work) * 250 * time.Microsecond
			return time.Duration(due(t, d)-w.now.UnixMilli())*time.Millisecond - own
		}
		late := func(what, tenant string, least, most time.Duration) {
			t.Helper()
			if !fair {
				least, most = 0, 0
			}
			if got := ask(tenant, 20); got < least-time.Millisecond || got > most+time.Millisecond {
				t.Errorf("fair shares %v, %s: got due %v later than by its own work, want %v to %v", fair, what, got, least, most)
			}
		}
		for range 10 {
			ask("a", 2000)
		}
		late("a tenant alone", "a", 0, 0)
		late("the first of another", "b", 0, 0)
		late("the tenant that had more", "a", priorityStep/10, priorityStep)
		late("the one that had less", "b", 0, 0)
		for range 40 {
			ask("a", 2000)
		}
		late("the tenant that had much more", "a", priorityStep, priorityStep)
		w.now = w.now.Add(10 * time.Minute)
		late("long ago", "a", 0, 0)
	}
}

// TestClocksDiffer checks that a replica whose clock is ahead puts its requests back by that, and no further.
func TestClocksDiffer(t *testing.T) {
	a, b := newWorld(t, 1), newWorld(t, 1)
	b.now = b.now.Add(5 * time.Second)
	body := chatBody("m", `"hello"`)
	if got := due(t, b.decide(body)) - due(t, a.decide(body)); got != 5000 {
		t.Errorf("clocks 5 s apart: got requests due %d ms apart, want 5000", got)
	}
}

// TestNumberFits checks that numbers stay within an int64 for longer than anybody needs, and exact for readers that take them for floats.
func TestNumberFits(t *testing.T) {
	at := time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() + 90_000
	for serves, want := range map[rules.Serving]string{rules.LowFirst: "10413792090000", rules.HighFirst: "-10413792090000",
		rules.AsTheyCome: "", rules.Unsaid: ""} {
		if got := serves.Number(at); got != want {
			t.Errorf("%v: got %q, want %q", serves, got, want)
		}
	}
	if at > 1<<53 {
		t.Errorf("got %d, want less than 2^53", at)
	}
}

// TestWhoIsTold checks which workers are sent the number, by their engine and by what they say.
func TestWhoIsTold(t *testing.T) {
	for _, c := range []struct {
		engine, release string
		serves          rules.Serving
		off             bool
		want            string // header and sign
	}{
		{"vllm", "0.32.0", rules.Unsaid, false, "x-vllm-priority +"},
		{"vllm", "0.32.0", rules.LowFirst, false, "x-vllm-priority +"},
		{"vllm", "0.32.0", rules.AsTheyCome, false, ""},
		{"vllm", "0.32.0", rules.LowFirst, true, ""},
		{"vllm", "0.29.0", rules.LowFirst, false, ""},
		{"sglang", "0.5.23", rules.Unsaid, false, ""},
		{"sglang", "0.5.23", rules.AsTheyCome, false, ""},
		{"sglang", "0.5.23", rules.HighFirst, false, "x-override-priority -"},
		{"sglang", "0.5.23", rules.LowFirst, false, "x-override-priority +"},
		{"sglang", "0.5.22", rules.HighFirst, false, ""},
		{"trtllm", "1.3.0", rules.LowFirst, false, ""},
	} {
		w := newWorld(t, 2)
		for _, slot := range w.slots {
			slot.Worker.SetServing(c.serves)
		}
		m := w.serving.Load().names["m"].model
		m.classes[0].rules, m.NoOrder = engine.RulesOf(c.engine, c.release), c.off
		due, got := w.decide(chatBody("m", `"hello"`)).Targets[0].Due, ""
		if due.Value != "" {
			got = due.Header + " +"
			if due.Value[0] == '-' {
				got = due.Header + " -"
			}
		}
		if got != c.want {
			t.Errorf("%s %s, served %v, off %t: got %q, want %q", c.engine, c.release, c.serves, c.off, got, c.want)
		}
	}
}

// TestUnsteeredIsDue checks that a request that Envoy places is due by the work that it makes on average, so that it neither overtakes
// those that are steered nor waits for them.
func TestUnsteeredIsDue(t *testing.T) {
	w := newWorld(t, 2)
	long := chatBody("m", fmt.Sprintf("%q", text(300, 1)))
	cached := w.decide(long)
	w.SetUnsteered(1)
	d := w.decide(long)
	got, err := strconv.ParseInt(d.UnsteeredChoice.Due.Value, 10, 64)
	off := got - w.now.UnixMilli() // of two workers one holds what is cached
	if want := int64(2*cached.PromptTokens-d.CachedTokens) / 8; err != nil || len(d.Targets) > 0 || off < want-1 || off > want+1 {
		t.Errorf("got %+v, want no target, and due %d ms after its arrival", d.UnsteeredChoice, want)
	}
}

// Without sessions in events, blocks are learned of the request with which the worker begins: at one that serves by when requests are due,
// a short one that came behind a long one, also where Envoy has picked it.
func TestLearnedByTurn(t *testing.T) {
	type by struct {
		serves rules.Serving
		share  float64 // of requests that are not steered
	}
	for c, reversed := range map[by]bool{{rules.AsTheyCome, 0}: false, {rules.LowFirst, 0}: true, {rules.HighFirst, 0}: true,
		{rules.AsTheyCome, 1}: false, {rules.LowFirst, 1}: true} {
		w := newWorld(t, 1)
		w.withoutFiles(nil)
		w.SetUnsteered(c.share)
		serves, addr := c.serves, w.slots[0].Worker.Addr
		w.slots[0].Worker.SetServing(serves)
		long, short := chatBody("m", fmt.Sprintf("%q", text(600, 1))), chatBody("m", fmt.Sprintf("%q", text(40, 2)))
		blocks := map[string]int{long: 60, short: 8}
		first, second := w.decide(long), w.decide(short)
		for _, d := range []Decision{first, second} {
			w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: addr})
		}
		order := []string{long, short}
		if reversed {
			slices.Reverse(order)
		}
		for _, one := range order {
			var locals []uint64
			for i := range blocks[one] {
				locals = append(locals, uint64(1000*blocks[one]+i))
			}
			hashes := block.Fixed().Chain(nil, locals)
			w.Learner().Stored(w.slots[0].ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals,
				EngineHashes: hashes})
			if err := w.index.Store(w.slots[0].ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range []Decision{first, second} {
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: addr, Code: 200, PromptTokens: -1, CachedTokens: -1})
		}
		w.now = w.now.Add(time.Minute)
		w.Learner().Settle(w.now)
		w.SetUnsteered(0)
		for _, one := range order {
			if d := w.decide(one); d.Reason != Predicted || d.CachedTokens > 16*blocks[one] || d.CachedTokens < 16*(blocks[one]-1) {
				t.Errorf("served %s, %.0f unsteered: of a prompt of %d blocks %d tokens are %s, want it predicted but for its last block",
					serves, c.share, blocks[one], d.CachedTokens, d.Reason)
			}
		}
	}
}
