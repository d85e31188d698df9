package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// recorder is a Sink that is a plain map: what the worker holds by the feed.
type recorder struct {
	mu      sync.Mutex
	held    map[held]int // copies
	known   map[uint64]int
	partial bool
	left    bool
	clears  int
}

type held struct {
	tier              kvevent.Tier
	engineHash, local uint64
}

func newRecorder() *recorder { return &recorder{held: map[held]int{}, known: map[uint64]int{}} }

func (r *recorder) Store(e *kvevent.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.HasParent && r.known[e.Parent] == 0 {
		return fmt.Errorf("%w: %d", indexer.ErrUnknownParent, e.Parent)
	}
	for i, h := range e.EngineHashes {
		r.held[held{e.Tier, h, e.Locals[i]}]++
		r.known[h]++
	}
	return nil
}

func (r *recorder) Copy(tier kvevent.Tier, engineHashes []uint64) (unknown int) {
	r.mu.Lock()
	defer r.mu.Unlock()
next:
	for _, h := range engineHashes {
		for k := range r.held {
			if k.engineHash == h {
				r.held[held{tier, h, k.local}]++
				r.known[h]++
				continue next
			}
		}
		unknown++
	}
	return unknown
}

func (r *recorder) Remove(tier kvevent.Tier, engineHashes []uint64) (unknown int) {
	r.mu.Lock()
	defer r.mu.Unlock()
next:
	for _, h := range engineHashes {
		for k := range r.held {
			if k.tier == tier && k.engineHash == h {
				r.held[k]--
				if r.held[k] == 0 {
					delete(r.held, k)
				}
				r.known[h]--
				if r.known[h] == 0 {
					delete(r.known, h)
				}
				continue next
			}
		}
		unknown++
	}
	return unknown
}

func (r *recorder) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.held)
	clear(r.known)
	r.clears++
}

func (r *recorder) Done(partial, _ bool) {
	r.mu.Lock()
	r.partial = partial
	r.mu.Unlock()
}

func (r *recorder) Held() (*indexer.Index, indexer.SlotID) { return nil, 0 }

func (r *recorder) Leave() { r.left = true }

func (r *recorder) state() (map[held]int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.held), r.partial
}

// worker is a publisher with a cache that tests can compare with.
type worker struct {
	mu      sync.Mutex
	rng     *rand.Rand
	truth   map[held]int
	chains  [][]uint64 // engine hashes, parent first
	salt    uint32
	sent    []Message // in this incarnation
	keep    int       // size of the replay buffer, in messages
	noClear bool
	failing atomic.Bool // replays fail
	replays bool
	epoch   uint64
	feed    *Feed // set by Run
	ready   chan struct{}
}

func newWorker(seed uint64, replays bool) *worker {
	return &worker{rng: rand.New(rand.NewPCG(seed, 1)), truth: map[held]int{}, keep: 1 << 30, replays: replays, ready: make(chan struct{})}
}

func (w *worker) Run(ctx context.Context, f *Feed) error {
	w.feed = f
	close(w.ready)
	<-ctx.Done()
	return ctx.Err()
}

func (w *worker) Replay(ctx context.Context, from uint64, each func(Message) error) error {
	if !w.replays {
		return errors.ErrUnsupported
	}
	if w.failing.Load() {
		return errors.New("nobody answers")
	}
	w.mu.Lock()
	list := append([]Message(nil), w.sent[max(0, len(w.sent)-w.keep):]...)
	w.mu.Unlock()
	for _, m := range list {
		if m.Seq >= from {
			if err := each(m); err != nil {
				return err
			}
		}
	}
	return nil
}

const size = 2 // tokens in a block here

// step changes the cache and returns the message that reports it.
func (w *worker) step() Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.rng.IntN(3) + 1
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, float64(len(w.sent)))
	b = msgp.AppendArrayHeader(b, uint32(events))
	for range events {
		b = w.change(b)
	}
	b = msgp.AppendInt(b, 0)
	m := Message{Epoch: w.epoch, Seq: uint64(len(w.sent)), Payload: b}
	w.sent = append(w.sent, m)
	return m
}

func (w *worker) change(b []byte) []byte {
	r := w.rng.IntN(20)
	switch {
	case r == 0 && !w.noClear: // everything is removed
		clear(w.truth)
		w.chains = nil
		return msgp.AppendString(msgp.AppendArrayHeader(b, 1), "AllBlocksCleared")
	case r < 7 && len(w.chains) > 0: // the last block of a chain is removed
		i := w.rng.IntN(len(w.chains))
		c := w.chains[i]
		h := c[len(c)-1]
		w.chains[i] = c[:len(c)-1]
		if len(c) == 1 {
			w.chains = append(w.chains[:i], w.chains[i+1:]...)
		}
		for k := range w.truth {
			if k.engineHash == h {
				delete(w.truth, k)
			}
		}
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 3), "BlockRemoved")
		b = msgp.AppendUint64(msgp.AppendArrayHeader(b, 1), h)
		return msgp.AppendString(b, "GPU")
	}
	var parent []uint64
	at := len(w.chains)
	if len(w.chains) > 0 && r < 14 { // a chain grows
		at = w.rng.IntN(len(w.chains))
		parent = w.chains[at]
	} else {
		w.chains = append(w.chains, nil)
	}
	n := w.rng.IntN(4) + 1
	var hashes []uint64
	var tokens []uint32
	for range n {
		h := w.rng.Uint64()
		hashes = append(hashes, h)
		w.salt++
		tokens = append(tokens, w.salt, 7)
		w.truth[held{kvevent.GPU, h, block.Fixed().Local(tokens[len(tokens)-2:], nil, 0)}] = 1
	}
	w.chains[at] = append(w.chains[at], hashes...)
	return appendStored(b, parent, hashes, tokens)
}

// appendStored writes a stored event; parent ends with the first block's parent, if it has one.
func appendStored(b []byte, parent, hashes []uint64, tokens []uint32) []byte {
	b = msgp.AppendString(msgp.AppendArrayHeader(b, 9), "BlockStored")
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendUint64(b, h)
	}
	if parent == nil {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendUint64(b, parent[len(parent)-1])
	}
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = msgp.AppendUint32(b, t)
	}
	b = msgp.AppendInt(b, size)
	b = msgp.AppendNil(b) // lora_id
	b = msgp.AppendString(b, "GPU")
	b = msgp.AppendNil(b) // lora_name
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for range hashes {
		b = msgp.AppendNil(b)
	}
	return b
}

// stray returns a message with a block whose parent is unknown.
func (w *worker) stray() Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 0)
	b = appendStored(msgp.AppendArrayHeader(b, 1), []uint64{1}, []uint64{2}, []uint32{1, 1})
	m := Message{Epoch: w.epoch, Seq: uint64(len(w.sent)), Payload: msgp.AppendInt(b, 0)}
	w.sent = append(w.sent, m)
	return m
}

// restart begins a new incarnation with an empty cache.
func (w *worker) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.truth)
	w.chains, w.sent = nil, nil
}

func start(t *testing.T, w *worker, o Options) (*Feed, *recorder) {
	r := newRecorder()
	o.Source, o.Decoder, o.Sink = w, &vllm.Decoder{}, r
	f := Start(o)
	<-w.ready
	t.Cleanup(func() {
		f.Close()
		if !r.left {
			t.Error("the sink was not left")
		}
	})
	return f, r
}

// settle waits until the feed's state equals what the worker holds.
func settle(t *testing.T, w *worker, r *recorder, f *Feed) {
	t.Helper()
	var got map[held]int
	var partial bool
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Microsecond) {
		w.mu.Lock()
		truth := maps.Clone(w.truth)
		w.mu.Unlock()
		got, partial = r.state()
		if maps.Equal(got, truth) && !partial {
			return
		}
	}
	t.Fatalf("the feed holds %d blocks (partial %v), the worker %d\n%+v", len(got), partial, len(w.truth), f.Stats())
}

// applied waits until the feed's queue is empty and a condition holds.
func applied(t *testing.T, f *Feed, what string, ok func(Stats) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Microsecond) {
		if s := f.Stats(); ok(s) {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%s did not come: %+v", what, s)
		}
	}
}

// drained waits until the feed has taken all that was offered, so that its replays do not run ahead of the stream.
func drained(f *Feed) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		f.mu.Lock()
		n := len(f.queue.items)
		f.mu.Unlock()
		if n == 0 {
			return
		}
	}
}

// TestTroubledStream loses, repeats, reorders and truncates messages, with a replay: the feed must end with the worker's state.
func TestTroubledStream(t *testing.T) {
	var total Stats
	for seed := range uint64(40) {
		w := newWorker(seed, true)
		f, r := start(t, w, Options{Idle: 5 * time.Millisecond})
		f.Up()
		var late *Message
		for range 300 {
			m := w.step()
			switch w.rng.IntN(12) {
			case 0: // lost
			case 1: // twice
				f.Offer(m)
				f.Offer(m)
			case 2: // late
				if late == nil {
					late = &m
					continue
				}
				f.Offer(m)
			case 3: // truncated
				f.Offer(Message{Seq: m.Seq, Payload: m.Payload[:w.rng.IntN(len(m.Payload))]})
			case 4: // an old one again
				f.Offer(w.sent[w.rng.IntN(len(w.sent))])
			case 5: // the connection breaks
				f.Down(nil)
				f.Up()
				f.Offer(m)
			default:
				f.Offer(m)
			}
			if w.rng.IntN(2) == 0 {
				drained(f)
			}
			if late != nil && w.rng.IntN(4) == 0 {
				f.Offer(*late)
				late = nil
			}
		}
		settle(t, w, r, f)
		s := f.Stats()
		total.Gaps += s.Gaps
		total.Duplicates += s.Duplicates
		total.DecodeErrors += s.DecodeErrors
		total.Restarts += s.Restarts
		if s.Restarts > 0 || s.UnknownParents > 0 || s.UnknownBlocks > 0 {
			t.Errorf("seed %d: got %+v, want Restarts 0, UnknownParents 0, UnknownBlocks 0", seed, s)
		}
	}
	if total.Gaps == 0 || total.Duplicates == 0 || total.DecodeErrors == 0 {
		t.Errorf("the stream was not troubled: got %+v, want Gaps some, Duplicates some, DecodeErrors some", total)
	}
}

// TestTroubledStreamWithoutReplay checks that the feed never has more than the worker, and has all of it again after the worker
// has cleared or restarted.
func TestTroubledStreamWithoutReplay(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorker(seed, false)
		f, r := start(t, w, Options{})
		f.Up()
		sent := 0
		for range 200 {
			if m := w.step(); w.rng.IntN(20) > 0 || m.Seq == 0 {
				f.Offer(m)
				sent++
			}
		}
		last := w.step()
		f.Offer(last)
		applied(t, f, "the last message", func(s Stats) bool { return s.LastSeq == last.Seq && s.Batches > 0 })
		got, _ := r.state()
		for k, n := range got {
			if w.truth[k] != n {
				t.Fatalf("seed %d: the feed holds %+v ×%d, the worker ×%d, want %d", seed, k, n, w.truth[k], n)
			}
		}
		w.restart()
		for range 20 {
			f.Offer(w.step())
		}
		settle(t, w, r, f)
		if s := f.Stats(); s.Restarts != 1 {
			t.Errorf("seed %d: got %d restarts, want 1", seed, s.Restarts)
		}
	}
}

// TestRestart checks that a restart is noticed by the falling number, by a replay with another message under our number (the new
// incarnation has passed us while we were away), and by a replay that has nothing yet.
func TestRestart(t *testing.T) {
	for name, c := range map[string]struct{ before, after, offered int }{
		"number falls":             {30, 5, 5},
		"passed while away":        {10, 40, 1},
		"nothing published yet":    {10, 0, 0},
		"one message, not offered": {10, 1, 0},
	} {
		w := newWorker(7, true)
		f, r := start(t, w, Options{})
		f.Up()
		for range c.before {
			f.Offer(w.step())
		}
		settle(t, w, r, f)
		w.restart()
		var fresh []Message
		for range c.after {
			fresh = append(fresh, w.step())
		}
		f.Down(errors.New("gone"))
		f.Up()
		for _, m := range fresh[len(fresh)-c.offered:] {
			f.Offer(m)
		}
		settle(t, w, r, f)
		if s := f.Stats(); s.Restarts != 1 {
			t.Errorf("%s: got %d restarts: %+v, want 1", name, s.Restarts, s)
		}
	}
}

// TestRestartAtTheSameNumber restarts at the number where the feed is, when nobody could be asked before.
func TestRestartAtTheSameNumber(t *testing.T) {
	w := newWorker(7, true)
	f, r := start(t, w, Options{})
	f.Up()
	for range 10 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	w.restart()
	for range 10 {
		w.step()
	}
	w.failing.Store(true)
	f.Down(errors.New("gone"))
	f.Up()
	applied(t, f, "the failed replay", func(s Stats) bool { return s.ReplayErrors > 0 })
	f.Offer(w.step())
	applied(t, f, "the message", func(s Stats) bool { return s.LastSeq == 10 })
	w.failing.Store(false)
	settle(t, w, r, f)
}

// TestReplayTooShort checks that a replay that does not reach back far enough leaves a lower bound, marked partial, until the
// worker clears.
func TestReplayTooShort(t *testing.T) {
	w := newWorker(3, true)
	w.keep, w.noClear = 5, true
	f, r := start(t, w, Options{})
	for range 50 {
		w.step()
	}
	f.Up()
	applied(t, f, "the replay", func(s Stats) bool { return s.LastSeq == 49 && s.Batches == 5 })
	got, partial := r.state()
	if !partial || !f.Stats().Partial {
		t.Error("not marked partial")
	}
	for k := range got {
		if w.truth[k] == 0 {
			t.Errorf("%+v is not held: got %d, want some", k, w.truth[k])
		}
	}
	w.noClear = false
	for partial { // the worker clears sooner or later
		m := w.step()
		f.Offer(m)
		applied(t, f, "the message", func(s Stats) bool { return s.LastSeq == m.Seq })
		_, partial = r.state()
	}
	settle(t, w, r, f)
}

// TestReplayFailsAtFirst checks that a failed replay is retried, and then brings what was missing, before the first message or in
// a gap.
func TestReplayFailsAtFirst(t *testing.T) {
	for name, before := range map[string]int{"at the join": 0, "in a gap": 5} {
		w := newWorker(3, true)
		w.noClear = true
		f, r := start(t, w, Options{})
		if before > 0 {
			f.Up()
			for range before {
				f.Offer(w.step())
			}
			settle(t, w, r, f)
		}
		w.failing.Store(true)
		for range 20 {
			w.step()
		}
		f.Up()
		f.Offer(w.step())
		applied(t, f, "the live message", func(s Stats) bool { return s.LastSeq == uint64(before)+20 && s.ReplayErrors > 0 })
		if _, partial := r.state(); !partial {
			t.Errorf("%s: not partial", name)
		}
		w.failing.Store(false)
		for n := f.Stats().Replays; f.Stats().Replays == n; time.Sleep(time.Millisecond) { // the stream never pauses
			f.Offer(w.step())
		}
		settle(t, w, r, f)
	}
}

// TestOverflow checks that a queue overflow is counted and corrected by a replay, even if no further message comes.
func TestOverflow(t *testing.T) {
	w := newWorker(5, true)
	stop := make(chan struct{})
	f, r := start(t, w, Options{Stored: func(*kvevent.Event) { <-stop }})
	f.Up()
	for range queueMessages + 500 {
		f.Offer(w.step())
	}
	if f.Stats().Drops == 0 {
		t.Error("nothing was dropped")
	}
	close(stop)
	settle(t, w, r, f)
}

// A message that is being read counts until it was.
func TestQueueCountsWhatIsRead(t *testing.T) {
	q, half := new(queue), Message{Payload: make([]byte, queueBytes/2)}
	for _, room := range []bool{true, true, false} {
		if q.push(half) != room {
			t.Error("want room for two halves")
		}
	}
	if m, _, _ := q.pop(); m == nil || q.push(half) {
		t.Error("one that is being read makes no room")
	}
	if m, _, _ := q.pop(); m == nil || !q.push(half) {
		t.Error("one that was read makes room")
	}
}

// Two publishers for one worker: the newer one is followed, the older one's messages change nothing.
func TestTwoEpochs(t *testing.T) {
	old, young := newWorker(1, false), newWorker(2, true)
	old.epoch, young.epoch = 100, 200
	f, r := start(t, young, Options{})
	for range 10 {
		f.Offer(old.step())
	}
	for range 50 {
		f.Offer(young.step())
		f.Offer(old.step())
	}
	settle(t, young, r, f) // a replay may have brought all before the last message is read
	applied(t, f, "the older one's messages", func(s Stats) bool { return s.Stale >= 50 })
	if s := f.Stats(); s.Restarts > 1 || s.Epoch != 200 {
		t.Errorf("got %+v, want Restarts at most 1, Epoch 200", s)
	}
}

// TestBlockSize checks that the block size is that of the events, whatever is configured: the first one's, a larger one's later, and
// any if nothing is held. Blocks smaller than those held are ignored.
func TestBlockSize(t *testing.T) {
	stored := func(size int, hash uint64) kvevent.Event {
		return kvevent.Event{Kind: kvevent.Stored, BlockSize: size, EngineHashes: []uint64{hash}, Locals: []uint64{hash}}
	}
	for _, c := range []struct {
		name         string
		events       []kvevent.Event
		size, blocks int
		ignored      uint64
		other        int
	}{
		{"as configured", []kvevent.Event{stored(16, 1), stored(16, 2)}, 16, 2, 0, 0},
		{"others", []kvevent.Event{stored(32, 1), stored(32, 2)}, 32, 2, 0, 32},
		{"parts of blocks", []kvevent.Event{stored(32, 1), stored(16, 2)}, 32, 1, 1, 32},
		{"a part of a block", []kvevent.Event{stored(8, 1)}, 8, 1, 0, 0},
		{"two smaller ones", []kvevent.Event{{Kind: kvevent.Stored, BlockSize: 8, EngineHashes: []uint64{1, 2}, Locals: []uint64{1, 2}}},
			8, 2, 0, 8},
		{"parts of blocks first", []kvevent.Event{stored(16, 1), stored(32, 2)}, 32, 1, 0, 32},
		{"of a lower tier", []kvevent.Event{stored(16, 1), {Kind: kvevent.Stored, Tier: kvevent.CPU, BlockSize: 64,
			EngineHashes: []uint64{2}, Locals: []uint64{2}}}, 16, 1, 1, 0},
		{"after a clear", []kvevent.Event{stored(32, 1), {Kind: kvevent.Cleared}, stored(16, 2)}, 16, 1, 0, 0},
		{"after the last was removed", []kvevent.Event{stored(32, 1), {Kind: kvevent.Removed, EngineHashes: []uint64{1}},
			stored(16, 2)}, 16, 1, 0, 0},
	} {
		index := indexer.New(indexer.Options{})
		sink := Join(index, indexer.SlotOptions{CountCopies: true})
		f := &Feed{content: content{o: Options{Source: newWorker(0, false), Decoder: plain{map[string][]kvevent.Event{"x": c.events}},
			Sink: sink, BlockSize: 16}}}
		f.takeMessage(t.Context(), Message{Payload: []byte("x")})
		got := index.Form(sink.Slot())
		if s := f.Stats(); got.Size != c.size || index.HeldBlocks(sink.Slot()) != c.blocks || s.OtherBlockSize != c.ignored ||
			s.OtherSize != c.other {
			t.Errorf("%s: blocks of %d, %d held, %+v, want %d, %d, %d ignored, other size %d", c.name, got.Size,
				index.HeldBlocks(sink.Slot()), s, c.size, c.blocks, c.ignored, c.other)
		}
	}
}

type plain struct{ events map[string][]kvevent.Event }

func (p plain) Decode(b []byte) (kvevent.Batch, error) {
	return kvevent.Batch{Events: p.events[string(b)]}, nil
}

// TestOffload checks that offloaded blocks that are reported by engine hash, or without their media, have the content that they
// had on the GPU.
func TestOffload(t *testing.T) {
	w := newWorker(1, false)
	r := newRecorder()
	cpu := func(k kvevent.Kind, engineHashes ...uint64) kvevent.Event {
		e := kvevent.Event{Kind: k, Tier: kvevent.CPU, EngineHashes: engineHashes, BlockSize: size, MediaUnknown: true}
		if k == kvevent.Stored {
			e.Locals = make([]uint64, len(engineHashes)) // not what they were on the GPU
		}
		return e
	}
	gpu := kvevent.Event{Kind: kvevent.Stored, BlockSize: size, EngineHashes: []uint64{1, 2, 3}, Locals: []uint64{11, 12, 13}}
	f := Start(Options{Source: w, Sink: r, Decoder: plain{map[string][]kvevent.Event{
		"a": {cpu(kvevent.Copied, 9)}, // before anything is known about it
		"b": {gpu, cpu(kvevent.Copied, 1), cpu(kvevent.Stored, 2, 3), cpu(kvevent.Stored, 8)},
		"c": {{Kind: kvevent.Removed, EngineHashes: []uint64{1, 2, 3}}, cpu(kvevent.Removed, 3)},
	}}})
	defer f.Close()
	for i, payload := range []string{"a", "b", "c"} {
		f.Offer(Message{Seq: uint64(i), Payload: []byte(payload)})
	}
	applied(t, f, "the last message", func(s Stats) bool { return s.Batches == 3 })
	got, _ := r.state()
	if want := (map[held]int{{kvevent.CPU, 1, 11}: 1, {kvevent.CPU, 2, 12}: 1}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if s := f.Stats(); s.Unresolved != 2 || s.UnknownBlocks != 0 {
		t.Errorf("got %+v, want Unresolved 2, UnknownBlocks 0", s)
	}
}
