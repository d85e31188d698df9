package router

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestPrefillIsPickedByItsCache checks that the prefill worker that holds the prompt is named beside another that decodes,
// repeatedly and at each of the front ends, and that the decode worker's count of cached tokens is not held against the prefill
// worker.
func TestPrefillIsPickedByItsCache(t *testing.T) {
	w := newWorld(t, 0)
	var all []*fleet.Worker
	for _, prefill := range []bool{true, true, false, false} {
		id := fmt.Sprint(len(all) + 1)
		fw := fleet.NewWorker("dynamo-"+id, netip.MustParseAddrPort("10.0.0.9:8000"), "m", 0, func(int) indexer.SlotID {
			return w.index.Join(indexer.SlotOptions{})
		})
		fw.Instance, fw.Frontends = id, []string{"10.0.0.9:8000", "10.0.0.8:8000"}
		if prefill {
			fw.Role = fleet.Prefill
		}
		all = append(all, fw)
		w.slots = append(w.slots, fw.Slots...)
	}
	w.opt.Fleet.Set(all)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 7)))
	w.stores(1, body)
	decode := map[string]bool{}
	w.opt.Seed = 0x5EED5EED5EED5EED
	for range 8 {
		d := w.decide(body)
		if d.Reason != Exact || len(d.Targets) != 2 || d.Targets[0].Worker != "dynamo-2" || d.CachedTokens == 0 {
			t.Fatalf("%+v: got %d, want Reason %q, 2, Targets[0].Worker %q, CachedTokens some", d, len(d.Targets), Exact, "dynamo-2")
		}
		for _, at := range d.Targets {
			if at.Prefill != "2" || at.PrefillRank != -1 || at.Instance != d.Targets[0].Instance || at.Rank != -1 {
				t.Errorf(`got %+v, want at.Prefill == "2", at.PrefillRank == -1, at.Instance == d.Targets[0].Instance, at.Rank == -1`, at)
			}
		}
		decode[d.Targets[0].Instance] = true
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr})
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 0, PromptTokens: -1})
	}
	if len(decode) != 1 || !decode["3"] && !decode["4"] {
		t.Errorf("decoded by %v, want the one of 3 and 4 that has fetched it", decode)
	}
	if d := w.decide(`{"model":"m"}`); len(d.Targets) == 0 || d.Targets[0].Prefill == "" || d.Targets[0].Instance == "" {
		t.Errorf("by load: %+v; got %d, want some, Targets[0].Prefill some, Targets[0].Instance some", d, len(d.Targets))
	}
	if d := w.decide(body); d.Reason != Exact {
		t.Errorf("after the decode worker's report: got %+v, want Reason %q", d, Exact)
	}
}

// asRoles sets the workers' roles by their first letters: p, d, e.
func (w *world) asRoles(roles string) {
	all := slices.Clone(w.opt.Fleet.Workers())
	for i, r := range roles {
		all[i].Role = map[rune]fleet.Role{'p': fleet.Prefill, 'd': fleet.Decode, 'e': fleet.Encode}[r]
	}
	w.opt.Fleet.Set(all)
}

// load gives a worker so many requests of other senders, of 1,000 tokens.
func (w *world) load(worker, requests int) {
	for i := range requests {
		w.opt.Ledger.Book(fmt.Sprint(worker, " other ", i), ledger.Booking{Slot: w.slots[worker], Work: fleet.Work{Context: 1000},
			Note: &bookingRecord{cachedTokens: -1}})
	}
}

// TestPairs checks that behind llm-d's sidecar a request goes to a decode worker and names a prefill worker, each chosen
// separately; that what the decode worker holds is not prefilled elsewhere; and that, if one kind is missing, the other does it
// all or nothing is served.
func TestPairs(t *testing.T) {
	long, short := chatBody("m", fmt.Sprintf("%q", text(4000, 7))), chatBody("m", `"hi"`)
	for _, c := range []struct {
		name, roles string
		most        int // requests in flight that a worker may have
		before      func(w *world)
		body        string
		want        string // decode worker ← prefill worker
		missing     string
	}{
		{"a long prompt", "pd", 0, nil, long, "w1←w0", ""},
		{"the prefill worker that holds it", "ppd", 0, func(w *world) { w.stores(1, long) }, long, "w2←w1", ""},
		{"the decode worker that holds it", "pdd", 0, func(w *world) { w.stores(2, long) }, long, "w2", ""},
		{"a short prompt is not worth it", "pd", 0, nil, short, "w1", ""},
		{"nobody decodes, so prefill there holds up nobody", "pd", 0, func(w *world) { w.opt.Ledger.End("1 other 0", 0) }, long, "w1", ""},
		{"the decode worker with fewer requests", "pdd", 0, func(w *world) { w.fill(1) }, long, "w2←w0", ""},
		{"one that decodes has no place left", "pdd", 2, func(w *world) { w.fill(2) }, long, "w1←w0", ""},
		{"none has", "pd", 1, nil, long, "429", ""},
		{"the prefill worker fails", "pd", 0, func(w *world) { w.fails(0) }, long, "w1", "prefill"},
		{"none prefills", "dd", 0, func(w *world) { w.stores(1, long) }, long, "w1", "prefill"},
		{"none decodes", "pp", 0, nil, long, "no worker known", ""},
		{"one of each and one that does all", "p-", 0, nil, long, "w1←w0", ""},
	} {
		w := newWorld(t, len(c.roles))
		w.asRoles(c.roles)
		w.limit(c.most)
		for i, role := range c.roles {
			if role != 'p' {
				w.load(i, 1)
			}
		}
		if c.before != nil {
			c.before(w)
		}
		d := w.decide(c.body)
		got := chosenPair(w, &d)
		if got != c.want {
			t.Errorf("%s: %s, want %s (%+v)", c.name, got, c.want, d)
		}
		if missing := w.labels(t, "sightline_role_missing_total", 1); missing != c.missing {
			t.Errorf("%s: missing %q, want %q", c.name, missing, c.missing)
		}
	}
}

// chosenPair names the workers of a decision: who decodes, and who prefills for it.
func chosenPair(w *world, d *Decision) string {
	switch {
	case d.Refuse != nil:
		return fmt.Sprint(d.Refuse.Status)
	case len(d.Targets) == 0:
		return d.Why
	case d.Targets[0].Prefill == "":
		return w.opt.Fleet.ByAddr(d.Targets[0].Addr).Name
	}
	return w.opt.Fleet.ByAddr(d.Targets[0].Addr).Name + "←" + w.opt.Fleet.ByAddr(d.Targets[0].Prefill).Name
}

// TestOnlyPrefillersAllowed: a gateway's hint, or the answer that a request names, may leave workers that only prefill. Then there is no
// target, whether the request is read or not, and nothing is booked.
func TestOnlyPrefillersAllowed(t *testing.T) {
	for _, body := range []string{chatBody("m", `"hi"`), `{"model":"m"}`} {
		w := newWorld(t, 2)
		w.asRoles("pd")
		d := w.Decide(t.Context(), &Request{ID: "d", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}, Only: []string{"10.0.0.1"}})
		if len(d.Targets) != 0 || d.Why != noWorker || d.Refuse != nil || w.opt.Ledger.Open() != 0 {
			t.Errorf("%s: got %+v, want no target, %q", body, d, noWorker)
		}
	}
}

// TestPairsOfOneRevision: while a rollout runs, a pair and the workers that it is retried at are of one revision, whatever is cached or
// idle elsewhere. Where no revision has both roles, the workers that decode prefill too.
func TestPairsOfOneRevision(t *testing.T) {
	long := chatBody("m", fmt.Sprintf("%q", text(3000, 7)))
	for _, c := range []struct {
		name, roles, revisions string
		busy, holds            int // workers; -1: none
		want                   string
		targets                int
		missing                string
	}{
		{"the new one's decode worker is idle", "pdd", "oon", 1, -1, "w1←w0", 1, ""},
		{"the new one's prefill worker holds the prompt", "ppd", "ono", -1, 1, "w2←w0", 1, ""},
		{"both are whole", "ppdd", "onon", 2, -1, "w3←w1", 1, ""},
		{"the one whose prefill worker holds the prompt", "ppdd", "onon", -1, 0, "w2←w0", 1, ""},
		{"no revision is whole", "pd", "on", -1, -1, "w1", 1, "prefill"},
		{"no rollout", "pdd", "ooo", 1, -1, "w2←w0", 2, ""},
		{"without labels", "pdd", "", 1, -1, "w2←w0", 2, ""},
	} {
		w := newWorld(t, len(c.roles))
		for i, r := range c.revisions {
			w.slots[i].Worker.Revision = string(r)
		}
		w.asRoles(c.roles)
		for i, role := range c.roles {
			if role == 'd' {
				w.load(i, 1)
			}
		}
		if c.busy >= 0 {
			w.fill(c.busy)
		}
		if c.holds >= 0 {
			w.stores(c.holds, long)
		}
		d := w.decide(long)
		if got := chosenPair(w, &d); got != c.want || len(d.Targets) != c.targets {
			t.Errorf("%s: %s of %d, want %s of %d (%+v)", c.name, got, len(d.Targets), c.want, c.targets, d)
		}
		if missing := w.labels(t, "sightline_role_missing_total", 1); missing != c.missing {
			t.Errorf("%s: missing %q, want %q", c.name, missing, c.missing)
		}
	}
}

// TestPairsAreRemembered checks that a worker that decoded what another prefilled holds the prompt, without events too, and has
// its adapter; and that other senders' waiting requests at a prefill worker are known.
func TestPairsAreRemembered(t *testing.T) {
	w := newWorld(t, 4)
	w.asRoles("ppdd")
	models := w.opt.Models
	models[0].Adapters = []string{"a"}
	w.Serve(models, 0, w.opt.PredictedTTL)
	w.load(2, 20) // which a prefill would hold up
	w.load(3, 20)
	ask := func(model, text string) (prefill string, decode Target) {
		d := w.decide(chatBody(model, fmt.Sprintf("%q", text)))
		at := d.Targets[0]
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: at.Addr, Code: 200, CachedTokens: -1})
		return at.Prefill, at
	}
	long := text(4000, 7)
	if _, first := ask("m", long); first.Prefill == "" {
		t.Fatalf("got %+v, want Prefill some", first)
	} else if again, at := ask("m", long); again != "" || at.Addr != first.Addr {
		t.Errorf(`first %+v, then %+v, want again == "", at.Addr == %v`, first, at, first.Addr)
	}
	_, first := ask("a", text(4000, 100))
	for i := range 20 { // more than elsewhere, but less than loading costs
		w.opt.Ledger.Book(fmt.Sprint("more ", i), ledger.Booking{Slot: w.opt.Fleet.ByAddr(first.Addr).Slots[0],
			Note: &bookingRecord{cachedTokens: -1}})
	}
	for i := range 6 {
		if prefill, at := ask("a", text(4000, uint64(101+i))); at.Addr != first.Addr || prefill == "" {
			t.Errorf("an adapter: %+v, before %+v; got %q, want Addr %q, some", at, first, prefill, first.Addr)
		}
	}
	w.slots[0].SetReport(fleet.LoadReport{Running: 1, Waiting: 4, ValidFor: time.Minute}, w.now)
	for i := range 6 {
		if at, _ := ask("m", text(4000, uint64(200+i))); at != "10.0.0.2:8000" {
			t.Errorf("prefilled at %s, where others wait, want %q", at, "10.0.0.2:8000")
		}
	}
}

// TestPairIsRetried checks that a retry goes to another decode worker, that the prefill stays where it was, and that the new
// decode worker is charged.
func TestPairIsRetried(t *testing.T) {
	w := newWorld(t, 3)
	w.asRoles("pdd")
	w.load(1, 1)
	w.load(2, 1)
	var told []SharedBooking
	w.opt.Share = func(s *SharedBooking) { told = append(told, *s) }
	d := w.decide(chatBody("m", fmt.Sprintf("%q", text(4000, 7))))
	if len(d.Targets) != 2 || d.Targets[1].Prefill != "10.0.0.1:8000" || d.Targets[0].Addr == d.Targets[1].Addr {
		t.Fatalf(`got %+v, want len(d.Targets) == 2, d.Targets[1].Prefill == "10.0.0.1:8000", d.Targets[0].Addr != d.Targets[1].Addr`, d.Targets)
	}
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[1].Addr})
	for i, s := range w.slots {
		want := 1
		if s.Worker.Addr == d.Targets[1].Addr {
			want = 2
		}
		if l := s.Load(w.now); l.Inflight != want || (l.Backlog > 0) != (i == 0) {
			t.Errorf("got %s: %+v, want %d in flight, and a backlog at the first slot alone", s.Worker.Name, l, want)
		}
	}
	// Another replica hears of it by the booking, or by the state.
	decodes := w.opt.Fleet.ByAddr(d.Targets[1].Addr)
	for _, list := range []bool{false, true} {
		o := newWorld(t, 3)
		o.asRoles("pdd")
		if open, _ := w.Replicas().Open(9); list {
			o.Replicas().Reconcile("other", open)
		} else {
			for i := range told {
				o.Replicas().Apply("other", &told[i])
			}
		}
		for i, s := range o.slots {
			want := 1
			if i > 0 && s.Worker.Name != decodes.Name {
				want = 0
			}
			if l := s.Load(o.now); l.Inflight != want || (l.Backlog > 0) != (i == 0) {
				t.Errorf("another replica, of a list: %v: got %s: %+v, want %d in flight, and a backlog at the first slot alone",
					list, s.Worker.Name, l, want)
			}
		}
	}
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[1].Addr, Code: 200, CachedTokens: -1})
	if n := w.inflight(); n != 2 {
		t.Errorf("%d in flight at the end, want 2", n)
	}
}

// TestEncoderByName checks that an image is encoded by the same worker each time, whichever router decides, alone or among
// others, however many images came in between; that only the images of a lost worker move; and that they return with it.
func TestEncoderByName(t *testing.T) {
	const images = 60
	home := make([]string, images)
	several := func(w *world, seeds ...int) []string {
		w.now = w.now.Add(time.Second) // nothing waits any more
		var parts []string
		for _, seed := range seeds {
			parts = append(parts, fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`,
				base64.StdEncoding.EncodeToString(png(uint64(seed), 1120, 1120))))
		}
		return strings.Split(w.decide(chatBody("m", "["+strings.Join(parts, ",")+"]")).Encoder, ",")
	}
	counts := map[string]int{}
	for router := range 2 {
		w := newWorld(t, 6)
		w.asRoles("--eeee")
		for i := range images {
			at := several(w, i)[0]
			if at == "" || router == 1 && at != home[i] {
				t.Errorf(`image %d: at %q, before at %q, want at != "", router != 1 or at == home[i]`, i, at, home[i])
			}
			home[i] = at
			counts[at]++
		}
		w.fails(2)
		moved := 0
		for i := range images {
			if at := several(w, 1000+i, i); len(at) != 2 || at[1] == "10.0.0.3:8000" || at[1] != home[i] && home[i] != "10.0.0.3:8000" {
				t.Errorf(`image %d with another: at %q, before at %q, want len(at) == 2, at[1] != "10.0.0.3:8000", at[1] == `+
					`home[i] or home[i] == "10.0.0.3:8000"`, i, at, home[i])
			} else if at[1] != home[i] {
				moved++
			}
		}
		if n := counts["10.0.0.3:8000"] / (router + 1); moved != n {
			t.Errorf("%d images moved, %d were at the lost one, want %d", moved, n, n)
		}
		once, twice := several(w, 2000, 2001), several(w, 2000, 2002, 2000)
		if !slices.Equal(twice, once[:1]) {
			t.Errorf("images of which one is there twice: at %q, the first one before at %q, want %q", twice, once, once[:1])
		}
	}
	for addr, n := range counts {
		if len(counts) != 4 || n < images/4 {
			t.Errorf("%s: %d of %d images; got %d, want 4, at least %d", addr, n, 2*images, len(counts), images/4)
		}
	}
}

// TestSource checks that with fetch_kv a worker is told who holds what it lacks, if that is much, and that its cost is lower for
// it, since it need not compute what it fetches.
func TestSource(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 7)))
	for _, fetch := range []bool{true, false} {
		w := newWorld(t, 2)
		models := w.opt.Models
		models[0].FetchKV = fetch
		w.Serve(models, 0, w.opt.PredictedTTL)
		w.stores(0, body)
		w.load(0, 900)
		d := w.decide(body)
		if want := map[bool]string{true: "10.0.0.1:8000"}[fetch]; d.Targets[0].Worker != "w1" || d.Source != want {
			t.Errorf("%s from %q, want w1 from %q", d.Targets[0].Worker, d.Source, want)
		}
		booked := w.slots[1].Load(w.now).Backlog
		told, _ := w.Decision(d.ID)
		if least := float64(d.PromptTokens) / 2; fetch != (booked < least) || fetch != (told.Ranked[0].Terms.Fetch > 0) ||
			fetch != (told.Ranked[0].Terms.Prefill < least) {
			t.Errorf("got %v tokens booked of %d, cost %+v, want most of them fetched: %v", booked, d.PromptTokens, told.Ranked[0].Terms, fetch)
		}
		w.slots[1].Worker.Revision = "new"
		if d := w.decide(body); d.Source != "" {
			t.Errorf("blocks of another revision are fetched from %s, want %q", d.Source, "")
		}
		w = newWorld(t, 2) // if the holder has a longer queue, the other worker is chosen, since it can fetch
		models = w.opt.Models
		models[0].FetchKV = fetch
		w.Serve(models, 0, w.opt.PredictedTTL)
		w.stores(0, body)
		w.load(0, 30)
		if d := w.decide(body); (d.Targets[0].Worker == "w1") != fetch {
			t.Errorf(`fetches %v: %s is chosen, want (d.Targets[0].Worker == "w1") == %v`, fetch, d.Targets[0].Worker, fetch)
		}
		w.now = w.now.Add(time.Hour)
		w.slots[0].EventAge = func(time.Time) time.Duration { return time.Minute }
		w.load(0, 900)
		if d := w.decide(body); d.Targets[0].Worker != "w1" || d.Source != "" {
			t.Errorf("%s from %q, whose events have not come for long, want %q, %q", d.Targets[0].Worker, d.Source, "w1", "")
		}
	}
}
