package router

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestDoubtedWorkerIsAskedAnew checks that a worker that repeatedly finds less than it reported is resynced, and not again for a
// while.
func TestDoubtedWorkerIsAskedAnew(t *testing.T) {
	w := newWorld(t, 2)
	var asked []string
	w.opt.Resync = func(s *fleet.Slot) { asked = append(asked, s.Worker.Name) }
	seed := uint64(0)
	less := func(worker, times int, apart time.Duration) {
		t.Helper()
		for range times {
			seed++
			body := chatBody("m", fmt.Sprintf("%q", text(100, 1000+seed)))
			w.stores(worker, body)
			d := w.decide(body)
			if d.Reason != Exact || d.Targets[0].Worker != fmt.Sprint("w", worker) {
				t.Fatalf("got %+v, want Reason %q, Targets[0].Worker %q", d, Exact, fmt.Sprint("w", worker))
			}
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 0})
			w.now = w.now.Add(apart)
		}
	}
	less(0, 2, time.Second)
	less(1, 2, time.Second)
	if len(asked) > 0 {
		t.Errorf("%v asked after two answers each, want 0 of them", asked)
	}
	less(1, 1, time.Second)
	if fmt.Sprint(asked) != "[w1]" {
		t.Errorf("%v asked, want w1", asked)
	}
	less(1, 9, time.Second)
	if len(asked) != 1 {
		t.Errorf("%v asked: the second time within ten minutes, want 1 of them", asked)
	}
	w.now = w.now.Add(resyncRest)
	less(0, 6, 31*time.Second)
	if len(asked) != 1 {
		t.Errorf("%v asked: three answers within a minute never came, want 1 of them", asked)
	}
	less(1, 3, time.Second)
	if fmt.Sprint(asked) != "[w1 w1]" {
		t.Errorf("%v asked, want w1 once more after ten minutes", asked)
	}
}

// TestPartialWorkerIsALowerBound checks that the prediction for a partially known worker is a lower bound, and that a better
// answer is expected.
func TestPartialWorkerIsALowerBound(t *testing.T) {
	w := newWorld(t, 1)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
	w.stores(0, body)
	w.index.Mark(w.slots[0].ID, true, false)
	d := w.decide(body)
	if d.Reason != Exact || !d.Partial || d.Why != "a lower bound: the worker is known in part" {
		t.Errorf("got %+v, want Reason %q, Partial true, Why %q", d, Exact, "a lower bound: the worker is known in part")
	}
	if r, _ := w.Decision(d.ID); !r.Partial {
		t.Errorf("got %+v, want r.Partial", r)
	}
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: d.CachedTokens + 16})
	if got := w.labels(t, "sightline_cached_tokens_reported_total", 1); got != "more_than_bound" {
		t.Errorf("counted as %s, want %q", got, "more_than_bound")
	}
}

// TestUpperBound checks that, if a hit needs more than the events say, finding less does not mean a wrong index, and that the decision
// says so: by what a decoder says, by groups that the index does not follow, and by a model of which SGLang reports one cache only.
func TestUpperBound(t *testing.T) {
	for name, begin := range map[string]func(w *world){
		"events": func(w *world) { w.index.Mark(w.slots[0].ID, false, true) },
		"groups": func(w *world) {
			for size := range 2 {
				e := kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 1, BlockSize: size + 1}}
				if _, err := w.index.StoreGroup(w.slots[0].ID, 16, &e); err != nil {
					t.Fatal(err)
				}
			}
		},
		"model": func(w *world) {
			dir := unzipped(t, shippedModel)
			file := filepath.Join(dir, "config.json")
			config, err := os.ReadFile(file)
			windows := bytes.Replace(config, []byte("{"), []byte(`{"sliding_window": 1024,`), 1)
			if err != nil || bytes.Equal(windows, config) || os.WriteFile(file, windows, 0o644) != nil {
				t.Fatal(err)
			}
			media, err := engine.NewMedia(nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(media.Close)
			s := engine.DefaultServer()
			s.Engine, s.EngineVersion = "sglang", "0.5.23"
			w.opt.Models[0].Prompts, err = engine.LoadLive("m", dir, s, media)
			if err != nil {
				t.Fatal(err)
			}
			w.limit(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.opt.Resync = func(*fleet.Slot) { t.Error("got a resync, want none") }
			begin(w)
			body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
			w.stores(0, body)
			held := w.index.HeldBlocks(w.slots[0].ID)
			for range 2 * missesForResync {
				d := w.decide(body)
				if d.Reason != Exact || !d.UpperBound || d.Why != "an upper bound: the events do not say all that a hit needs" {
					t.Fatalf("got %+v, want Reason %q, UpperBound true, Why %q", d, Exact, "an upper bound: the events do not say all that a hit needs")
				}
				w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 16})
			}
			if n := w.index.HeldBlocks(w.slots[0].ID); n != held || held == 0 {
				t.Errorf("%d blocks known of %d, want %d, some", n, held, held)
			}
			if got := w.labels(t, "sightline_cached_tokens_reported_total", 1); got != "fewer_than_bound" {
				t.Errorf("counted as %s, want %q", got, "fewer_than_bound")
			}
		})
	}
}

// An image host may give a worker another image than us. A miss of the worker then does not disprove that it holds the blocks.
func TestImageHostCannotUnmakeBlocks(t *testing.T) {
	file := png(7, 640, 480)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(file) }))
	t.Cleanup(host.Close)
	media, err := engine.NewMedia(&fetch.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Budget: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	s := engine.DefaultServer()
	s.EngineModel = "m"
	live, err := engine.LoadLive("m", shippedModel, s, media)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 2)
	w.opt.Models[0].Prompts = live
	w.limit(0)
	w.opt.Resync = func(s *fleet.Slot) { t.Errorf("got a resync of %s, want none", s.Worker.Name) }
	before := fmt.Sprintf(`{"type":"text","text":%q}`, text(100, 5))
	ask := func(link string) string {
		return chatBody("m", fmt.Sprintf(`[%s,{"type":"image_url","image_url":{"url":%q}},{"type":"text","text":"What is it?"}]`, before, link))
	}
	inBody := ask("data:image/png;base64," + base64.StdEncoding.EncodeToString(file))
	w.stores(1, inBody)
	held := w.index.HeldBlocks(w.slots[1].ID)
	text := w.decide(chatBody("m", "["+before+"]"))
	w.Observe(Outcome{ID: text.ID, Phase: Ended, Code: 400, CachedTokens: -1})
	words := text.CachedTokens
	for range 2 * missesForResync {
		d := w.decide(ask(host.URL + "/a.png"))
		if d.Reason != Exact || d.Targets[0].Worker != "w1" || words == 0 || d.CachedTokens <= words {
			t.Fatalf("%d tokens before the image, %+v, want Reason %q, Targets[0].Worker %q, some, CachedTokens more than %d",
				words, d, Exact, "w1", words)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: words})
	}
	if n := w.index.HeldBlocks(w.slots[1].ID); n != held {
		t.Errorf("%d blocks known of %d, want %d", n, held, held)
	}
	if d := w.decide(ask(host.URL + "/a.png")); d.Targets[0].Worker == "w1" {
		w.opt.Resync = nil
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: words - 64}) // a miss within what no image host can have changed
	}
	if n := w.index.HeldBlocks(w.slots[1].ID); n >= held {
		t.Errorf("%d blocks known of %d, though the worker found less of the text before the image, want less than %d", n, held, held)
	}
}

// TestOneClientCorrectsLittle: of the answers that find less, those of one client take only so many blocks out of the index, and cause
// one resync an hour unless others' find less too.
func TestOneClientCorrectsLittle(t *testing.T) {
	w := newWorld(t, 2)
	asked := 0
	w.opt.Resync = func(*fleet.Slot) { asked++ }
	seed := uint64(0)
	less := func(client fair.Client) (corrected bool) {
		t.Helper()
		seed++
		body := chatBody("m", fmt.Sprintf("%q", text(100, 5000+seed)))
		w.stores(1, body)
		w.client = client
		held := w.index.HeldBlocks(w.slots[1].ID)
		d := w.decide(body)
		if d.Reason != Exact {
			t.Fatalf("got %+v, want Reason %q", d, Exact)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 0})
		w.now = w.now.Add(time.Second)
		return w.index.HeldBlocks(w.slots[1].ID) < held
	}
	for i := range 2 * correctionsOfOne {
		if got, want := less(7), i < correctionsOfOne; got != want {
			t.Fatalf("answer %d of one client: corrected %v, want %v", i, got, want)
		}
	}
	if !less(8) {
		t.Error("another client's answer corrects nothing, want less(8)")
	}
	if got := w.counted(t, "sightline_corrections_refused_total"); got != fmt.Sprintf("=%d ", correctionsOfOne) {
		t.Errorf("counted %s, want %q", got, fmt.Sprintf("=%d ", correctionsOfOne))
	}
	if asked != 1 {
		t.Errorf("%d resyncs, want 1", asked)
	}
	w.now = w.now.Add(resyncRest + missWindow)
	for range missesForResync {
		less(7)
	}
	if asked != 1 {
		t.Errorf("%d resyncs, the second for one client alone, want 1", asked)
	}
	less(7)
	less(8)
	less(9)
	if asked != 2 {
		t.Errorf("%d resyncs, want one more for three clients", asked)
	}
	w.now = w.now.Add(2 * resyncsOfOneRest)
	for range missesForResync {
		less(7)
	}
	if asked != 3 {
		t.Errorf("%d resyncs, want one more an hour later", asked)
	}
}

// TestCraftedBlockIsNotAnothers: two blocks with one XXH3-64 hash under the seed 1337, by which blocks were known before, are two blocks.
// Under XXH3-64 a product whose one factor is 0 hides the other one: here the block's first 8 bytes are the factor, and the next
// ones differ.
func TestCraftedBlockIsNotAnothers(t *testing.T) {
	w := newWorld(t, 2)
	secret := uint64(0xbe4ba423396cfeb8) + 1337 // the first word of XXH3's own secret
	ids := make([]uint32, 64)
	ids[0], ids[1] = uint32(secret), uint32(secret>>32)
	crafted := slices.Clone(ids)
	crafted[2], crafted[3] = 17, 4711
	hash := func(ids []uint32) uint64 {
		var b []byte
		for _, id := range ids[:16] {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		return xxh3.HashSeed(b, 1337)
	}
	if hash(ids) != hash(crafted) {
		t.Fatal("got two hashes of this test's blocks, want one")
	}
	w.opt.Secret = block.NewSecret()
	decide := func(ids []uint32) Decision {
		return w.DecidePrompt(fmt.Sprint("p", w.ids), "m", 0, &engine.Prompt{IDs: ids, HashableIDs: len(ids), Exact: true})
	}
	locals := (&engine.Prompt{IDs: ids, HashableIDs: len(ids)}).Locals(nil, block.Form{Size: 16}, "")
	if err := w.index.Store(w.slots[1].ID, indexer.GPU, 0, false, []uint64{1, 2, 3, 4}, locals); err != nil {
		t.Fatal(err)
	}
	if d := decide(ids); d.Reason != Exact {
		t.Fatalf("the prompt itself: got %+v, want Reason %q", d, Exact)
	}
	w.ids++
	if d := decide(crafted); d.Reason == Exact || d.Reason == Predicted {
		t.Errorf("another prompt: got %+v, want Reason other than %q, Reason other than %q", d, Exact, Predicted)
	}
}

// TestWithheld checks that three contradicting answers in a row count, and that workers that have left are forgotten.
func TestWithheld(t *testing.T) {
	now := time.Unix(1000, 0)
	one := fleet.NewWorker("one", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	two := fleet.NewWorker("two", netip.MustParseAddrPort("10.0.0.2:80"), "m", 0, func(int) indexer.SlotID { return 1 })
	f := fleet.New(func() time.Time { return now })
	f.Set([]*fleet.Worker{one, two})
	var w withheld
	for i, a := range []struct{ contradicts, enough bool }{{true, false}, {true, false}, {false, false}, {true, false}, {true, false},
		{true, true}, {true, false}, {true, false}, {true, true}, {false, false}} {
		if enough := w.count(one.Slots[0], a.contradicts); enough != a.enough {
			t.Errorf("answer %d: enough %t, want %v", i, enough, a.enough)
		}
	}
	if len(w.bySlot) != 0 {
		t.Errorf("%d slots, want none", len(w.bySlot))
	}
	w.count(one.Slots[0], true)
	f.Set([]*fleet.Worker{two})
	w.count(two.Slots[0], true)
	if len(w.bySlot) != 1 {
		t.Errorf("%d slots, want only that of the worker that is still there", len(w.bySlot))
	}
}
