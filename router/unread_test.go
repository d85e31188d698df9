package router

import (
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Media that are not read: a prompt is exact up to the first, and from the second sighting on by what the worker's events have taught.
// Another medium of the same kind, with the same texts, has no more than the exact part.
func TestUnreadMedia(t *testing.T) {
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	live, err := engine.LoadLive("m", shippedModel, engine.DefaultServer(), media)
	if err != nil {
		t.Fatal(err)
	}
	part := func(kind, url string) string { return fmt.Sprintf(`{"type":%q,%q:{"url":%q}}`, kind, kind, url) }
	data := func(begin string, i int) string {
		return "data:x/x;base64," + base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s and what follows, of number %d", begin, i))
	}
	const avif = "\x00\x00\x00\x20ftypavif"
	calls := 0
	for name, medium := range map[string]func(i int) string{
		"a video":       func(i int) string { return part("video_url", data("\x00\x00\x00\x18ftypmp42", i)) },
		"frames":        func(i int) string { return part("video_url", fmt.Sprintf("data:video/jpeg;base64,AAAA,AAA%d", i)) },
		"a video's URL": func(i int) string { return part("video_url", fmt.Sprintf("https://example.com/%d.mp4", i)) },
		"an AVIF image": func(i int) string { return part("image_url", data(avif, i)) },
		"a large AVIF image, under another type each time": func(i int) string {
			calls++
			return part("image_url", fmt.Sprintf("data:x/x%d;base64,%s", calls, base64.StdEncoding.EncodeToString(avifOf(1<<16+i))))
		},
		"a TIFF image":     func(i int) string { return part("image_url", data("II*\x00\x08\x00\x00\x00", i)) },
		"a BMP image":      func(i int) string { return part("image_url", data("BM", i)) },
		"image embeddings": func(i int) string { return fmt.Sprintf(`{"type":"image_embeds","image_embeds":"AAAAAAA%d"}`, i) },
		"a read image before it": func(i int) string {
			first := part("image_url", "data:image/png;base64,"+base64.StdEncoding.EncodeToString(png(7, 640, 480)))
			return first + "," + part("image_url", data(avif, i))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			o := w.opt
			o.Models, o.LearnedBytes, o.Metrics = []Model{{Name: "m", Prompts: live}}, 1<<20, nil
			w.Router = New(o)
			chat := func(i int) string {
				return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},`+
					`{"role":"user","content":[{"type":"text","text":"What is it?"},%s]}]}`, text(200, 3), medium(i))
			}
			var skeleton body.Skeleton
			var req body.Request
			if err := body.Read([][]byte{[]byte(chat(1))}, &skeleton, &req); err != nil {
				t.Fatal(err)
			}
			ps, err := live.Model().Read(t.Context(), "/v1/chat/completions", "", &req)
			if err != nil || ps.List[0].Exact {
				t.Fatalf("read by a rule, or not at all: %v, want no error, !ps.List[0].Exact", err)
			}
			size := live.Model().Server.BlockSize
			known := ps.List[0].Locals(nil, block.Form{Size: size}, "")
			if len(known) < 12 {
				t.Fatalf("got %d blocks known before it, want at least 12", len(known))
			}
			locals := known // what the engine makes of it: these blocks, and others for the medium and what follows
			for i := range 30 {
				locals = append(locals[:len(locals):len(locals)], uint64(1000+i))
			}
			hashes := block.Fixed().Chain(nil, locals)
			first := w.decide(chat(1))
			if len(first.Targets) == 0 {
				t.Fatalf("got no target: %s (%s), want one", first.Reason, first.Why)
			}
			for _, slot := range w.slots {
				if slot.Worker.Addr == first.Targets[0].Addr {
					w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: size, Locals: locals,
						EngineHashes: hashes})
					if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.Observe(Outcome{ID: first.ID, Phase: Ended, Addr: first.Targets[0].Addr, Code: 200, CachedTokens: 0,
				PromptTokens: len(locals)*size + 3, OutputTokens: 1})
			w.now = w.now.Add(time.Minute) // what was on its way is forgotten
			w.Learner().Settle(w.now)
			again := w.decide(chat(1))
			if again.Reason != Learned || again.CachedTokens != len(locals)*size || again.Targets[0].Addr != first.Targets[0].Addr {
				t.Errorf("second sighting: %s, %d tokens, want %d at the same worker (%s)", again.Reason, again.CachedTokens,
					len(locals)*size, again.Why)
			}
			other := w.decide(chat(2))
			if other.Reason == Learned || other.CachedTokens > len(known)*size {
				t.Errorf("another medium: got %s, %d tokens, want the %d of the exact part at most, and not learned",
					other.Reason, other.CachedTokens, len(known)*size)
			}
		})
	}
}

// avifOf returns an AVIF image's first bytes and as many others.
func avifOf(bytes int) []byte {
	return append([]byte("\x00\x00\x00\x20ftypavif"), make([]byte, bytes)...)
}

// BenchmarkDecideAVIF measures the processor time of a request with a 2.8 MB image that no rule reads, over that of one with a PNG as long.
func BenchmarkDecideAVIF(b *testing.B) {
	const bytes = 2_760_000
	var took [2]time.Duration
	var bodies [2][][]byte
	for i, file := range [][]byte{append(png(1, 1280, 720), make([]byte, bytes)...), avifOf(bytes)} {
		text := chatBody("m", fmt.Sprintf(`[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":"What?"}]`,
			base64.StdEncoding.EncodeToString(file)))
		bodies[i] = slices.Collect(slices.Chunk([]byte(text), 16384))
	}
	w := newWorld(b, 8)
	o := w.opt
	o.LearnedBytes, o.Metrics = 1<<20, nil
	w.Router = New(o)
	for b.Loop() {
		for i := range bodies {
			w.now = w.now.Add(10 * time.Millisecond)
			w.ids++
			id, before := fmt.Sprint(w.ids), cpu()
			w.Decide(b.Context(), &Request{ID: id, Path: "/v1/chat/completions", Body: bodies[i]})
			took[i] += cpu() - before
			w.Observe(Outcome{ID: id, Phase: Ended, Code: 200, CachedTokens: -1})
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "×PNG")
}

// Of a prompt with audio that was not seen before, no more is predicted on its way than its text may be: how long the audio is, nobody
// knows.
func TestUnreadAudioOnItsWay(t *testing.T) {
	w := newWorld(t, 1)
	w.withoutFiles(nil)
	system := text(100, 1)
	ask := func(question int) Decision {
		return w.decide(fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":[`+
			`{"type":"audio_url","audio_url":{"url":"data:audio/wav;base64,UklGRg=="}},{"type":"text","text":"%d?"}]}]}`, system, question))
	}
	ask(1)
	if d, most := ask(2), len(system)/bytesPerToken; d.Reason != Predicted || d.CachedTokens == 0 || d.CachedTokens > most {
		t.Errorf("behind the same audio: got %d tokens, %s, want 1 to %d, predicted", d.CachedTokens, d.Reason, most)
	}
}

// What no rule reads is encoded once: a medium is known again behind other texts, and a request that goes on like another one follows it,
// even if only their common beginning is remembered.
func TestUnreadMediaOnTheirWay(t *testing.T) {
	w := newWorld(t, 4)
	w.withoutFiles(nil)
	ask := func(system uint64, images ...int) Decision {
		parts := ""
		for _, i := range images {
			parts += fmt.Sprintf(`{"type":"image_url","image_url":{"url":"https://example.com/%d.png"}},`, i)
		}
		return w.decide(fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":[%s`+
			`{"type":"text","text":%q}]}]}`, text(100, system), parts, text(8, uint64(w.ids))))
	}
	served := func(d Decision, blocks int) { // locals of the system prompt, and of the rest
		locals := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
		for i := len(locals); i < blocks; i++ {
			locals = append(locals, uint64(1000*w.ids+i))
		}
		hashes := block.Fixed().Chain(nil, locals)
		for _, slot := range w.slots {
			if slot.Worker.Addr == d.Targets[0].Addr {
				w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals,
					EngineHashes: hashes})
				if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, PromptTokens: blocks*16 + 3, OutputTokens: 1})
		w.now = w.now.Add(3 * time.Minute) // what was on its way is forgotten
		w.Learner().Settle(w.now)
	}
	end := func(d Decision) { w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200}) }
	first := ask(1, 1)
	end(first)
	for i := range 5 {
		d := ask(uint64(10+i), 1)
		if d.Reason != Affinity || d.Targets[0].Addr != first.Targets[0].Addr {
			t.Errorf("behind another text: %s to %s, want the worker that encodes the image, %s", d.Reason, d.Targets[0].Addr, first.Targets[0].Addr)
		}
		end(d)
	}
	w.now = w.now.Add(time.Minute)
	w.Learner().Settle(w.now)
	for range 3 {
		served(ask(7), 20)
	}
	if d := ask(7); d.Reason != Learned || d.CachedTokens < 12*16 {
		t.Errorf("the system prompt: got %s, %d tokens, want it learned, at least %d", d.Reason, d.CachedTokens, 12*16)
	}
	one, two := ask(7, 3), ask(7, 3)
	if two.Targets[0].Addr != one.Targets[0].Addr || two.Reason != Predicted || two.CachedTokens < 400 {
		t.Errorf("a sibling: got %s at %s, %d tokens cached, want at least 400 predicted at %s",
			two.Reason, two.Targets[0].Addr, two.CachedTokens, one.Targets[0].Addr)
	}
}

// A request for whose prompt's log probabilities the engine computes all of it finds nothing cached, and teaches what its prompt becomes.
func TestUnreadRecomputed(t *testing.T) {
	w := newWorld(t, 2)
	w.withoutFiles(nil)
	const blocks = 20
	var locals []uint64
	for i := range blocks {
		locals = append(locals, uint64(1000+i))
	}
	hashes := block.Fixed().Chain(nil, locals)
	ask := func(field string) Decision {
		t.Helper()
		d := w.decide(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]%s}`, text(200, 1), field))
		for _, slot := range w.slots {
			if slot.Worker.Addr == d.Targets[0].Addr {
				w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals,
					EngineHashes: hashes, Session: d.Session})
				if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, PromptTokens: blocks*16 + 3, OutputTokens: 1})
		w.now = w.now.Add(time.Minute)
		w.Learner().Settle(w.now)
		return d
	}
	for _, field := range []string{`,"prompt_logprobs":1`, `,"prompt_logprobs":0`, `,"echo":true`} {
		if d := ask(field); d.CachedTokens != 0 || d.Why != "the engine bypasses its cache for this request" {
			t.Errorf("with %s: got %d tokens predicted, %s (%s), want none", field, d.CachedTokens, d.Reason, d.Why)
		}
	}
	if d := ask(`,"logprobs":true`); d.Reason != Learned || d.CachedTokens != blocks*16 {
		t.Errorf("without: got %d tokens %s (%s), want %d learned", d.CachedTokens, d.Reason, d.Why, blocks*16)
	}
}

// withoutFiles makes the router one of a model without files, which shares what it books by share.
func (w *world) withoutFiles(share func(*SharedBooking), change ...func(*engine.Server)) {
	w.t.Helper()
	media, err := engine.NewMedia(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(media.Close)
	server := engine.DefaultServer()
	for _, do := range change {
		do(&server)
	}
	live, err := engine.LoadLive("m", "", server, media)
	if err != nil {
		w.t.Fatal(err)
	}
	o := w.opt
	o.Models, o.LearnedBytes, o.Metrics, o.Share = []Model{{Name: "m", Prompts: live}}, 1<<20, nil, share
	w.Router = New(o)
}

// Two requests that begin alike and of which nothing is known go to one worker, whichever replica decides each; unless the first was
// refused there, or went elsewhere.
func TestUnreadSiblingsOfReplicas(t *testing.T) {
	for name, then := range map[string]func(w *world, first Decision) (follows string){
		"on its way": func(_ *world, first Decision) string { return first.Targets[0].Addr },
		"served": func(w *world, first Decision) string {
			w.Observe(Outcome{ID: first.ID, Phase: Ended, Addr: first.Targets[0].Addr, Code: 200, PromptTokens: -1, CachedTokens: -1})
			return first.Targets[0].Addr
		},
		"refused": func(w *world, first Decision) string {
			w.Observe(Outcome{ID: first.ID, Phase: Ended, Addr: first.Targets[0].Addr, Code: 503, PromptTokens: -1, CachedTokens: -1})
			return ""
		},
		"moved": func(w *world, first Decision) string {
			other := w.slots[0].Worker.Addr
			if other == first.Targets[0].Addr {
				other = w.slots[1].Worker.Addr
			}
			w.Observe(Outcome{ID: first.ID, Phase: Started, Addr: other})
			return other
		},
	} {
		for _, replicas := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " ", replicas), func(t *testing.T) {
				one := newWorld(t, 4)
				two := one
				if replicas == 1 {
					one.withoutFiles(nil)
				} else {
					two = newWorld(t, 4)
					two.withoutFiles(nil)
					one.withoutFiles(func(s *SharedBooking) { two.Replicas().Apply("one", s) })
				}
				for i := range 12 {
					chat := func(question string) string {
						return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`,
							text(400, uint64(i)), question)
					}
					first := one.decide(chat("What?"))
					follows := then(one, first)
					second := two.decide(chat("Why?"))
					if follows == "" && second.CachedTokens > 0 || follows != "" && (second.Targets[0].Addr != follows ||
						second.Reason != Predicted || second.CachedTokens < 200 || second.CachedTokens > 300) {
						t.Errorf("pair %d: the second went to %s, %s with %d tokens; want %q, and half of about 480", i, second.Targets[0].Addr,
							second.Reason, second.CachedTokens, follows)
					}
					for _, d := range []Decision{first, second} { // of one of them each knows
						one.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, PromptTokens: -1, CachedTokens: -1})
						two.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, PromptTokens: -1, CachedTokens: -1})
					}
				}
			})
		}
	}
}

// Where events name no sessions, the blocks of another replica's request are taken for no request of this one, and show how much of it
// the worker has computed.
func TestUnreadOfAnotherReplica(t *testing.T) {
	one, two := newWorld(t, 1), newWorld(t, 1)
	two.withoutFiles(nil)
	one.withoutFiles(func(s *SharedBooking) { two.Replicas().Apply("one", s) })
	begun := uint64(0)
	stores := func(blocks int) (locals []uint64) {
		begun += 1000
		for i := range blocks {
			locals = append(locals, begun+uint64(i))
		}
		hashes, slot := block.Fixed().Chain(nil, locals), two.slots[0]
		two.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Locals: locals, EngineHashes: hashes})
		if err := two.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
			t.Fatal(err)
		}
		two.now = two.now.Add(time.Millisecond)
		slot.Progress(func([]uint64) int { return 0 }, two.now)
		return locals
	}
	ends := func(w *world, d Decision, tokens int) {
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1, PromptTokens: tokens, OutputTokens: 1})
	}
	load := func() float64 { return two.slots[0].Load(two.now).Backlog }
	theirs, chat := one.decide(chatBody("m", fmt.Sprintf("%q", text(300, 5)))), chatBody("m", fmt.Sprintf("%q", text(200, 3)))
	booked := load()
	ours := two.decide(chat)
	both := load()
	stores(30)
	if got, want := load(), both-booked; booked == 0 || math.Abs(got-want) > 0.1*want {
		t.Errorf("%.0f tokens are queued, %.0f of the other replica's before; want %.0f", got, booked, want)
	}
	locals := stores(20)
	ends(two, ours, len(locals)*16+3)
	ends(one, theirs, 30*16+3)
	two.now = two.now.Add(time.Minute)
	two.Learner().Settle(two.now)
	if again := two.decide(chat); again.CachedTokens != len(locals)*16 {
		t.Errorf("second sighting: got %d tokens cached (%s), want %d", again.CachedTokens, again.Reason, len(locals)*16)
	}
}

// A prompt of which no event is seen stays queued, unless it may be that another replica's request has got its blocks.
func TestUnreadWithoutEvents(t *testing.T) {
	for _, c := range []struct{ replicas, named, stays bool }{
		{false, true, true}, {false, false, true}, {true, true, true}, {true, false, false},
	} {
		w, share := newWorld(t, 1), (func(*SharedBooking))(nil)
		if c.replicas {
			share = func(*SharedBooking) {}
		}
		w.withoutFiles(share, func(s *engine.Server) { s.NoSessionIDs = !c.named })
		w.decide(chatBody("m", fmt.Sprintf("%q", text(2000, 3))))
		booked := w.slots[0].Load(w.now).Backlog
		for range 30 {
			w.now = w.now.Add(50 * time.Millisecond)
			w.slots[0].Progress(func([]uint64) int { return 0 }, w.now)
		}
		want := booked
		if !c.stays {
			want = 0
		}
		if got := w.slots[0].Load(w.now).Backlog; booked == 0 || got != want {
			t.Errorf("%+v: %.0f of %.0f tokens are queued after 1.5 s without events, want %.0f", c, got, booked, want)
		}
	}
}

// Of a prompt that is the beginning of a longer one, no more is predicted than it nearly always has: half of what is expected of it.
func TestUnreadBeginning(t *testing.T) {
	w := newWorld(t, 1)
	w.withoutFiles(nil)
	whole := text(400, 3)
	chat := func(text string) string { return chatBody("m", fmt.Sprintf("%q", text)) }
	first := w.decide(chat(whole))
	expected := len(whole) / bytesPerToken
	locals := make([]uint64, expected/16)
	for i := range locals {
		locals[i] = uint64(1000 + i)
	}
	hashes, slot := block.Fixed().Chain(nil, locals), w.slots[0]
	w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, Locals: locals, EngineHashes: hashes})
	if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
		t.Fatal(err)
	}
	w.Observe(Outcome{ID: first.ID, Phase: Ended, Addr: first.Targets[0].Addr, Code: 200, CachedTokens: -1, PromptTokens: expected,
		OutputTokens: 1})
	w.now = w.now.Add(time.Minute)
	w.Learner().Settle(w.now)
	part, most := w.decide(chat(whole[:len(whole)*9/10])), expected*9/20
	if part.Reason != Predicted || part.CachedTokens == 0 || part.CachedTokens > most {
		t.Errorf("of nine tenths of %d tokens: got %d, %s; want 1 to %d, predicted", expected, part.CachedTokens, part.Reason, most)
	}
}

// A prompt that takes longer to read than there is time for is known by memory at its second sighting.
func TestUnreadInTime(t *testing.T) {
	w := newWorld(t, 3)
	o := w.opt
	o.LearnedBytes, o.Metrics = 1<<20, nil
	w.Router = New(o)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	chat := chatBody("m", fmt.Sprintf("%q", text(400, 5)))
	locals := make([]uint64, 30)
	for i := range locals {
		locals[i] = uint64(7000 + i)
	}
	for i := range 2 {
		d := w.Decide(over, &Request{ID: fmt.Sprint(i), Path: "/v1/chat/completions", Body: [][]byte{[]byte(chat)}})
		if d.Why != "no time left to read all of the prompt" || len(d.Targets) == 0 {
			t.Fatalf(`%s (%s), targets %v, want d.Why == "no time left to read all of the prompt", len(d.Targets) != 0`,
				d.Reason, d.Why, d.Targets)
		}
		if i == 1 && (d.Reason != Learned || d.CachedTokens != len(locals)*16) {
			t.Errorf("second sighting: got %s, %d tokens (%s), want %d learned", d.Reason, d.CachedTokens, d.Why, len(locals)*16)
		}
		for _, slot := range w.slots {
			if i == 0 && slot.Worker.Addr == d.Targets[0].Addr {
				hashes := block.Fixed().Chain(nil, locals)
				w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals,
					EngineHashes: hashes})
				if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1, PromptTokens: len(locals)*16 + 3,
			OutputTokens: 1})
	}
}

// Where a conversation was sent counts only until it is learned: a worker that has evicted it since has none of it.
func TestUnreadAndEvicted(t *testing.T) {
	w := newWorld(t, 3)
	w.withoutFiles(nil)
	locals := make([]uint64, 60)
	for i := range locals {
		locals[i] = uint64(9000 + i)
	}
	hashes := block.Fixed().Chain(nil, locals)
	turn := fmt.Sprintf(`{"role":"user","content":%q}`, text(800, 7))
	first := w.decide(`{"model":"m","messages":[` + turn + `]}`)
	var slot *fleet.Slot
	for _, s := range w.slots {
		if s.Worker.Addr == first.Targets[0].Addr {
			slot = s
		}
	}
	w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals, EngineHashes: hashes})
	if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
		t.Fatal(err)
	}
	w.Observe(Outcome{ID: first.ID, Phase: Ended, Addr: first.Targets[0].Addr, Code: 200, PromptTokens: 55 * 16, OutputTokens: 5 * 16})
	w.now = w.now.Add(w.opt.PredictedTTL + time.Second)
	if _, err := w.index.Remove(slot.ID, kvevent.GPU, hashes); err != nil {
		t.Fatal(err)
	}
	next := `{"model":"m","messages":[` + turn + `,{"role":"assistant","content":"No."},{"role":"user","content":"Why?"}]}`
	if d := w.decide(next); d.CachedTokens > 0 {
		t.Errorf("got %s, %d tokens (%s), want none", d.Reason, d.CachedTokens, d.Why)
	}
}

// TestUnreadOddWorker: a worker that is started otherwise than the others, such as with another template, lowers nothing of what is known
// of the others' prompts, while it is so and after it was put right.
func TestUnreadOddWorker(t *testing.T) {
	w := newWorld(t, 4)
	w.withoutFiles(nil)
	const shared = 12 // blocks; at the odd worker two less
	questions := 0
	ask := func() Decision {
		questions++
		return w.decide(fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`, text(100, 7),
			text(8, uint64(1000+questions))))
	}
	serve := func(worker int, odd bool) {
		d, slot := ask(), w.slots[worker]
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: slot.Worker.Addr})
		var locals []uint64
		for i := range shared + 4 {
			local := uint64(i + 1)
			switch {
			case i >= shared:
				local = uint64(questions*100 + i)
			case odd && i >= shared-2:
				local += 50
			}
			locals = append(locals, local)
		}
		hashes := block.Fixed().Chain(nil, locals)
		w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals,
			EngineHashes: hashes})
		if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
			t.Fatal(err)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: slot.Worker.Addr, Code: 200, PromptTokens: len(locals)*16 + 3, OutputTokens: 1})
		w.now = w.now.Add(3 * time.Minute) // what was on its way is forgotten
		w.Learner().Settle(w.now)
	}
	want := func(when string, odd bool) {
		t.Helper()
		others := 0
		for range 12 {
			d, blocks := ask(), shared
			if odd && d.Targets[0].Addr == w.slots[0].Worker.Addr {
				blocks -= 2 // of the others' blocks it has no more
			} else {
				others++
			}
			if d.Reason != Learned || d.CachedTokens != blocks*16 {
				t.Errorf("%s: got %s, %d tokens, want learned, %d", when, d.Reason, d.CachedTokens, blocks*16)
			}
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, PromptTokens: -1, CachedTokens: -1})
			w.now = w.now.Add(3 * time.Minute)
			w.Learner().Settle(w.now)
		}
		if others == 0 {
			t.Errorf("%s: got no request for the others, want some", when)
		}
	}
	for i := range 12 {
		serve(1+i%3, false)
	}
	want("before", false)
	for i := range 40 {
		serve(i%4, i%4 == 0)
	}
	want("one of four workers is odd", true)
	for i := range 60 {
		serve(i%4, false)
	}
	want("it is as the others", false)
}

// The memory of a decision is used again, and nothing that was recalled for one request is seen by the next.
func TestRecalledIsOfOneRequest(t *testing.T) {
	var o overlap
	class, r := new(servedClass), &reading{byEngine: make([]engineReading, 1)}
	o.add(r, class, block.Form{Size: 16}, nil, 0)
	o.lookups[0].recalled = recalled{Recalled: learned.Recalled{Blocks: []uint64{1, 2}, Learned: 2, Tokens: 40, Estimate: true},
		used: true, class: 7, tokens: 40}
	o.release()
	o.add(r, class, block.Form{Size: 16}, nil, 0)
	if r := &o.lookups[0].recalled; len(r.Blocks) > 0 || r.Learned+r.Tokens+r.tokens > 0 || r.Estimate || r.used || r.class != 0 {
		t.Errorf("got %+v, want nothing of the request before", r)
	}
}

// What is remembered under a URL is not used for a request whose image, as it was fetched, makes other blocks.
func TestRecalledAgreesWithRules(t *testing.T) {
	r := &recalled{Recalled: learned.Recalled{Blocks: []uint64{1, 2, 3}}}
	for _, c := range []struct {
		computed []uint64
		want     bool
	}{{nil, true}, {[]uint64{1, 2}, true}, {[]uint64{1, 2, 3, 4}, true}, {[]uint64{1, 9}, false}, {[]uint64{9}, false}} {
		if got := r.agrees(c.computed); got != c.want {
			t.Errorf("%v beside computed %v: got %v, want %v", r.Blocks, c.computed, got, c.want)
		}
	}
}
