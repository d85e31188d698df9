package peers

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// hall is a Line within the process: what is sent is received by all others, or by one, unless it is away.
type hall struct {
	mu      sync.Mutex
	all     []*replica
	away    atomic.Bool
	less    atomic.Pointer[replica]         // receives nothing
	prepare func(*replica)                  // if set, called before a replica runs
	secret  *block.Secret                   // of routers that join from now on, and not to be replaced; nil: the fixed one
	also    func(to string, message []byte) // if set, receives everything
}

func (h *hall) Send(to string, message []byte) error {
	if h.away.Load() {
		return errors.New("away")
	}
	h.mu.Lock()
	all := h.all
	h.mu.Unlock()
	if h.also != nil {
		h.also(to, message)
	}
	from, _, _ := sender(message)
	for _, r := range all {
		if (to == "" && r.own != from || to == r.own) && r != h.less.Load() {
			r.Receive(message)
		}
	}
	return nil
}

// replica is a router with simulated workers and its Exchange.
type replica struct {
	*Exchange
	router *router.Router
	fleet  *fleet.Fleet
	ledger *ledger.Ledger
	index  *indexer.Index
	stop   context.CancelFunc
	done   chan struct{}
}

const workers = 8

// join starts a replica.
func (h *hall) join(t *testing.T) *replica {
	own := Instance()
	r := &replica{Exchange: New(own, zap.NewNop(), prometheus.NewRegistry()), fleet: fleet.New(nil), done: make(chan struct{})}
	r.ledger = ledger.New(r.fleet, nil)
	index := indexer.New(indexer.Options{})
	r.index = index
	var list []*fleet.Worker
	for i := range workers {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000)
		list = append(list, fleet.NewWorker(fmt.Sprint("w", i), addr, "m", 0, func(int) indexer.SlotID {
			return index.Join(indexer.SlotOptions{})
		}))
	}
	r.fleet.Set(list)
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	prompts, err := engine.LoadLive("m", "", engine.DefaultServer(), media) // without files
	if err != nil {
		t.Fatal(err)
	}
	r.router = router.New(router.Options{Models: []router.Model{{Name: "m", Prompts: prompts}},
		Fleet: r.fleet, Ledger: r.ledger, Index: index, PredictedTTL: 10 * time.Second, Share: r.Share,
		LearnedBytes: 1 << 20, ShareLearned: r.ShareLearned, Secret: h.secret})
	r.Exchange.Secret = Secret{Secret: h.secret, Fixed: true}
	r.Held = func(_ context.Context, worker string, _ int) ([]byte, error) {
		if worker == "" {
			return r.router.Replicas().LearnedSnapshot(MostHeld), nil
		}
		return nil, nil
	}
	r.Start(r.router, r.router.Observe)
	if h.prepare != nil {
		h.prepare(r)
	}
	h.mu.Lock()
	h.all = append(h.all[:len(h.all):len(h.all)], r)
	h.mu.Unlock()
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { defer close(r.done); r.Run(ctx, h) }()
	t.Cleanup(func() { stop(); <-r.done })
	return r
}

// decide places a prompt, identified by a number, and returns the decision.
func (r *replica) decide(prompt uint32, tokens int) router.Decision {
	return r.router.DecidePrompt(r.own+Instance(), "m", 0, &engine.Prompt{IDs: ids(prompt, tokens), HashableIDs: tokens, Exact: true})
}

func ids(prompt uint32, tokens int) []uint32 {
	list := make([]uint32, tokens)
	for i := range list {
		list[i] = prompt<<16 | uint32(i)
	}
	return list
}

func (r *replica) load() (inflight int) {
	for _, w := range r.fleet.Workers() {
		inflight += w.Slots[0].Load(time.Now()).Inflight
	}
	return inflight
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got no end of the wait, want %s", what)
		}
	}
}

func known(n int, of ...*replica) func() bool {
	return func() bool {
		for _, r := range of {
			if int(r.peerCount.Load()) != n {
				return false
			}
		}
		return true
	}
}

// TestPeersAreBounded checks the limits of replicas and of entries that wait to be sent.
func TestPeersAreBounded(t *testing.T) {
	x := New("AAAAAAAA", zap.NewNop(), prometheus.NewRegistry())
	if _, _, err := x.handleEntries("0", nil); err != nil || len(x.peers) != 0 {
		t.Errorf("a replica is known that has said nothing: got %v, %d, want no error, 0", err, len(x.peers))
	}
	for i := range maxPeers + 3 {
		if _, _, err := x.handleEntries(fmt.Sprint(i), []byte{kindAskKey}); err != nil {
			t.Fatal(err)
		}
	}
	for range queueEntries + 5 {
		x.Share(&router.SharedBooking{Number: 1})
	}
	if n := testutil.ToFloat64(x.entries.WithLabelValues("too many replicas")); n != 3 || len(x.peers) != maxPeers {
		t.Errorf("%v messages not taken, %d replicas, want 3, %d", n, len(x.peers), maxPeers)
	}
	if n := testutil.ToFloat64(x.entries.WithLabelValues("dropped")); n != 5 || len(x.out) != queueEntries {
		t.Errorf("%v dropped, %d wait, want 5, %d", n, len(x.out), queueEntries)
	}
}

// TestNothingIsBookedAfterBye checks that a replica that says bye has nothing open, not even what follows in the same message.
func TestNothingIsBookedAfterBye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		r := h.join(t)
		given := func(n uint64) *router.SharedBooking {
			return &router.SharedBooking{Kind: router.BookingOpened, Number: n, Worker: "w1", Rank: -1, DecoderRank: -1, Tokens: 1 << 30, Context: 1}
		}
		m := appendShared(messageHead("HOSTILE1"), given(1))
		r.Receive(m)
		if r.router.Replicas().Bookings() != 1 || r.load() != 1 {
			t.Fatalf("%d requests, load %d, want 1, 1", r.router.Replicas().Bookings(), r.load())
		}
		r.Receive(appendShared(append(m, kindBye), given(2)))
		eventually(t, "no request of the replica that left", func() bool {
			return r.router.Replicas().Bookings() == 0 && r.load() == 0 && r.peerCount.Load() == 0
		})
	})
}

// TestTwoAgree checks that one replica's decision affects the other's next request: by its prediction and its work.
func TestTwoAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		a, b := h.join(t), h.join(t)
		eventually(t, "they know each other", known(1, a, b))
		for i := range 20 {
			first := a.decide(uint32(i), 800)
			eventually(t, "it is told", func() bool { return b.load() == i+1 })
			if c := b.router; c.Replicas().Bookings() != i+1 {
				t.Fatalf("%d of theirs, want %d", c.Replicas().Bookings(), i+1)
			}
			d := b.decide(uint32(i), 800)
			if d.Targets[0].Worker != first.Targets[0].Worker || d.CachedTokens == 0 {
				t.Fatalf("prompt %d: got %v with %d cached, want %v, with some", i, d.Targets[0], d.CachedTokens, first.Targets[0])
			}
			b.router.Observe(router.Outcome{ID: d.ID, Phase: router.Ended, Code: 200, CachedTokens: -1})
		}
	})
}

// TestAnswersAndTenantsTravel checks that a request for several answers counts as many at all replicas, for its tenant too, until
// it ends.
func TestAnswersAndTenantsTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		a, b := h.join(t), h.join(t)
		eventually(t, "they know each other", known(1, a, b))
		for range 3 {
			a.Share(&router.SharedBooking{Number: 5, Worker: "w1", Rank: -1, Tokens: 10, Answers: 4, Model: "m", Tenant: "much"})
		}
		a.Share(&router.SharedBooking{Number: 6, Worker: "w1", Rank: -1, Tokens: 10, Answers: 1 << 30})
		eventually(t, "both are known", func() bool { return b.router.Replicas().Bookings() == 2 && b.load() == 4+128 })
		if own, tenants, all := b.ledger.InFlightOf("m", "much"); own != 4 || tenants != 1 || all != 4 {
			t.Errorf("it has %d of %d, %d tenants; want 4 of 4, 1 tenant", own, all, tenants)
		}
		a.Share(&router.SharedBooking{Kind: router.BookingEnded, Number: 5})
		a.Share(&router.SharedBooking{Kind: router.BookingEnded, Number: 6})
		eventually(t, "nothing is in flight", func() bool { return b.load() == 0 })
		if _, _, all := b.ledger.InFlightOf("m", "much"); all != 0 {
			t.Errorf("%d are counted for tenants in the end, want 0", all)
		}
	})
}

// TestNoHerd sends a burst to each of sixteen replicas with one worker that looks best to all: without sharing each would begin
// with it.
func TestNoHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		var all []*replica
		for range 16 {
			all = append(all, h.join(t))
		}
		eventually(t, "they know each other", known(15, all...))
		got := map[string]int{}
		decide := func(i, tokens int) {
			t.Helper()
			got[all[i%16].decide(uint32(i), tokens).Targets[0].Worker]++
			// However slow the machine: the next one decides when all see this, and nobody is considered gone.
			eventually(t, "all see each worker's requests", func() bool {
				for _, r := range all {
					for _, w := range r.fleet.Workers() {
						if w.Slots[0].Load(time.Now()).Inflight != got[w.Name] {
							return false
						}
					}
				}
				return true
			})
		}
		for i := range workers - 1 { // all but one have work
			decide(i, 3000)
		}
		if len(got) != workers-1 {
			t.Fatalf("%v: want one each", got)
		}
		for i := range 64 {
			decide(100+i, 1000)
		}
		for w, n := range got {
			if n > 16 { // of 71 among eight
				t.Errorf("%s got %d of 71: %v", w, n, got)
			}
		}
	})
}

// TestAwayAndBack checks that, after the line was away for longer than a replica is considered alive, what began and ended
// meanwhile is corrected, and that a replica that leaves takes its requests with it, with or without a good-bye.
func TestAwayAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		a, b := h.join(t), h.join(t)
		eventually(t, "they know each other", known(1, a, b))
		gone := a.decide(1, 800)
		eventually(t, "it is told", func() bool { return b.load() == 1 })
		h.away.Store(true)
		eventually(t, "the other is given up", func() bool { return known(0, a, b)() && b.load() == 0 })
		a.router.Observe(router.Outcome{ID: gone.ID, Phase: router.Ended, Code: 200, CachedTokens: -1})
		for i := range 5 {
			a.decide(uint32(2+i), 800)
		}
		h.away.Store(false)
		eventually(t, "all of it is told", func() bool { return known(1, a, b)() && b.load() == 5 })
		a.stop()
		<-a.done
		eventually(t, "good-bye", func() bool { return known(0, b)() && b.load() == 0 })
	})
}

// TestLostRequestsStillCount checks that the requests of a replica that is gone count for as long as their worker reports them, so
// that max_in_flight is kept.
func TestLostRequestsStillCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		a, b := h.join(t), h.join(t)
		eventually(t, "they know each other", known(1, a, b))
		for n := range uint64(3) {
			a.Share(&router.SharedBooking{Number: n + 1, Worker: "w1", Rank: -1, DecoderRank: -1, Tokens: 10})
		}
		slot := b.fleet.Find("w1", -1)
		places := func() int { l := slot.Load(time.Now()); return l.Places() }
		report := func(running int) (counted int) {
			slot.SetReport(fleet.LoadReport{Running: running, Usage: -1, MaxAge: time.Hour, ValidFor: time.Minute}, time.Now())
			return places()
		}
		eventually(t, "its requests are booked", func() bool { return b.load() == 3 })
		if n := report(4); n != 3 || b.load() != 4 { // one is of another sender, and takes no place
			t.Fatalf("%d count of 3, %d in flight, want 3, 4", n, b.load())
		}
		a.stop()
		<-a.done
		eventually(t, "good-bye", func() bool { return known(0, b)() && b.router.Replicas().Bookings() == 0 })
		before, same, fewer, none := places(), report(4), report(1), report(0)
		if before != 3 || same != 3 || fewer != 1 || none != 0 {
			t.Errorf("%d count before a report, then %d of 4, %d of 1, %d of 0, want 3, 3, 1, 0", before, same, fewer, none)
		}
	})
}

// TestForward checks that Envoy's report on another replica's request goes to that replica, and nowhere if nobody has that name.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		a, b := h.join(t), h.join(t)
		eventually(t, "they know each other", known(1, a, b))
		d := a.decide(1, 800)
		if b.Forward("NOBODY22", router.Outcome{ID: d.ID, Phase: router.Ended}) {
			t.Error(`forwarded to nobody, want !b.Forward("NOBODY22", router.Outcome{ID: d.ID, Phase: router.Ended})`)
		}
		if InstanceOf(d.ID) != a.own || !b.Forward(a.own, router.Outcome{ID: d.ID, Phase: router.Started, Addr: "10.0.0.1:8000",
			Source: 7, CachedTokens: -1}) {
			t.Fatalf(`not forwarded to the decider, want InstanceOf(d.ID) == %v, b.Forward(a.own, router.Outcome{ID: d.ID, Phase: `+
				`router.Started, Addr: "10.0.0.1:8000", Source: 7, CachedTokens: -1})`, a.own)
		}
		eventually(t, "it moves to the worker that got it", func() bool { return a.fleet.Find("w1", -1).Load(time.Now()).Inflight == 1 })
		eventually(t, "there too", func() bool { return b.fleet.Find("w1", -1).Load(time.Now()).Inflight == 1 })
		b.Forward(a.own, router.Outcome{ID: d.ID, Phase: router.Ended, Code: 200, Source: 7, CachedTokens: -1})
		eventually(t, "it ends in both", func() bool { return a.load() == 0 && b.load() == 0 })
	})
}

// wireEntries are an entry of every kind, as readWire gives them.
func wireEntries() []any {
	guess := lessonOf(3)
	guess.Taught.Guess, guess.Path.Steps[2].Untold = true, true
	return []any{
		&router.SharedBooking{Number: 7, Worker: "w1", Rank: -1, Decoder: "w2", DecoderRank: 3, Tokens: 500,
			Context: 800, From: 2, EventsExpected: true, Proven: 1,
			Locals: []uint64{1, 1 << 63, 3}, Media: []router.SharedMedium{{Key: 9, Alias: 8, Tokens: 1000}}},
		&router.SharedBooking{Number: 9, Worker: "w1", Rank: -1, DecoderRank: -1, Answers: 4, Fetch: 256, Pull: 512,
			Model: "m", Tenant: "t", Locals: []uint64{}, Path: []uint64{1, 1 << 63}, Media: []router.SharedMedium{}},
		&router.SharedBooking{Kind: router.BookingEnded, Number: 5},
		&router.SharedBooking{Kind: router.BookingBroken, Number: 6},
		router.Outcome{ID: "A", Phase: router.Ended, Addr: "10.0.0.1:1", Fault: "reset", Source: 1 << 60, Code: 200,
			Answered: true, Cut: true, FirstByte: time.Second, CachedTokens: -1, PromptTokens: 7, OutputTokens: 8},
		[]router.SharedBooking{{Number: 1, Worker: "w1", Decoder: "w2", DecoderRank: 3, Tokens: 5, Context: 6, Answers: 2},
			{Number: 2, Worker: "w2", Rank: -1, DecoderRank: -1}},
		key{1 << 62, flagFixed, 5 * time.Second}, "asks for the key", [block.SecretBytes]byte{1, 2, 31: 3},
		heldRequest{number: 4, worker: "w1", rank: -1}, &piece{4, 3, 9, []byte("abc")}, uint64(1 << 63), guess, "bye"}
}

// readWire reads a message, its sender first.
func readWire(m []byte) (got []any, err error) {
	from, entries, err := sender(m)
	if err != nil {
		return nil, err
	}
	got = append(got, from)
	return got, eachEntry(entries, &entryHandlers{key: func(k key) { got = append(got, k) },
		askKey: func() { got = append(got, "asks for the key") }, secret: func(s [block.SecretBytes]byte) { got = append(got, s) },
		shared: func(s *router.SharedBooking) { got = append(got, s) }, report: func(o router.Outcome) { got = append(got, o) },
		state: func(open []router.SharedBooking) { got = append(got, open) }, bye: func() { got = append(got, "bye") },
		lesson:  func(key uint64, l *learned.Lesson, bytes int) { got = append(got, key, l) },
		ordered: func(o Order) { got = append(got, o) },
		askHeld: func(q heldRequest) { got = append(got, q) }, piece: func(p *piece) { got = append(got, p) }})
}

// TestReleasesRead: what replicas of earlier releases send is read for as long as this one reads their version: the names of the streams,
// the first message of one, and a message with every kind of entry. testdata/v2.txt was made by the code of 28 November 2026 (version 2).
func TestReleasesRead(t *testing.T) {
	text, err := os.ReadFile("testdata/v2.txt")
	if err != nil {
		t.Fatal(err)
	}
	was := map[string]string{}
	for line := range strings.Lines(string(text)) {
		what, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		was[what] = value
	}
	if got := fmt.Sprint("/", serviceName, "/", methodName, " /", serviceName, "/", askMethod, " ", nameHeader); got != was["streams"] {
		t.Errorf("streams: got %q, want %q", got, was["streams"])
	}
	first, _ := hex.DecodeString(was["first"])
	if from, token, err := sender(first); err != nil || from != "AAAAAAAA" || string(token) != "THE7TOKEN" {
		t.Errorf("first message of a stream: got %q, %q, %v, want AAAAAAAA and THE7TOKEN", from, token, err)
	}
	message, _ := hex.DecodeString(was["message"])
	if got, err := readWire(message); err != nil || !reflect.DeepEqual(got, append([]any{"AAAAAAAA"}, wireEntries()...)) {
		t.Errorf("message: got %+v, %v, want %+v", got, err, wireEntries())
	}
}

// TestWire checks that all that is written is read back unchanged, and that truncated or changed messages are refused or read,
// without exceeding their content.
func TestWire(t *testing.T) {
	all, m := wireEntries(), messageHead("AAAAAAAA")
	given := all[0].(*router.SharedBooking)
	given.Fetches, given.Moved = true, true
	for _, e := range all[:4] {
		m = appendShared(m, e.(*router.SharedBooking))
	}
	report, asks := all[4].(router.Outcome), all[9].(heldRequest)
	report.Retried = true
	all[4] = report
	m = appendState(appendReport(m, &report), all[5].([]router.SharedBooking), true)
	k, secret := all[6].(key), all[8].([block.SecretBytes]byte)
	m = appendNumber(append(binary.LittleEndian.AppendUint64(append(m, kindKey), k.id), k.flags), int(k.age.Milliseconds()))
	m = append(append(m, kindAskKey, kindSecret), secret[:]...)
	m = append(appendLesson(appendPiece(appendHeldRequest(m, &asks), all[10].(*piece)), 1<<63, all[12].(*learned.Lesson)), kindBye)
	read, want := readWire, append([]any{"AAAAAAAA"}, all...)
	if got, err := read(m); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	// A count that others do not read, as of a worker that lies, costs nothing else of the message.
	lied := appendReport(messageHead("AAAAAAAA"), &router.Outcome{Phase: router.Ended, PromptTokens: 1 << 60, FirstByte: time.Hour})
	if got, err := read(appendShared(lied, given)); err != nil || len(got) != 3 || !reflect.DeepEqual(got[2], given) {
		t.Errorf("behind a count that is too large: got %v, %+v, want no error, 3 of them, [2] %+v", err, got, given)
	}
	for n := range len(m) {
		_, _ = read(m[:n])
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		bad := append([]byte(nil), m...)
		for range 1 + rng.IntN(4) {
			bad[headBytes+rng.IntN(len(bad)-headBytes)] = byte(rng.Uint32())
		}
		_, _ = read(bad)
	}
}

func FuzzTake(f *testing.F) {
	f.Add(appendShared(messageHead("AAAAAAAA"), &router.SharedBooking{Answers: 2, Tenant: "t", Number: 7, Worker: "w1",
		Rank: -1, Locals: []uint64{1}, Path: []uint64{2}}))
	f.Add(appendLesson(messageHead("AAAAAAAA"), 5, lessonOf(2)))
	f.Add(appendPiece(appendHeldRequest(messageHead("AAAAAAAA"), &heldRequest{number: 4, worker: "w1"}), &piece{4, 3, 9, []byte("abc")}))
	f.Fuzz(func(_ *testing.T, m []byte) {
		if _, entries, err := sender(m); err == nil {
			_ = eachEntry(entries, &entryHandlers{key: func(key) {}, askKey: func() {}, secret: func([block.SecretBytes]byte) {},
				shared: func(*router.SharedBooking) {}, report: func(router.Outcome) {}, state: func([]router.SharedBooking) {}, bye: func() {},
				lesson:  func(uint64, *learned.Lesson, int) {},
				ordered: func(Order) {},
				askHeld: func(heldRequest) {}, piece: func(*piece) {}})
		}
	})
}

// TestOneSecret: replicas that start with random secrets agree on one; one that joins later takes over theirs, although its key's ID is
// smaller and they are hardly older; a configured secret wins, and is never replaced; and nobody replaces a secret without having asked.
func TestOneSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var replaced atomic.Int64
		fixed := false
		h := &hall{prepare: func(r *replica) {
			r.Exchange.Secret = Secret{Secret: block.NewSecret(), Fixed: fixed, Replaced: func() { replaced.Add(1) }}
		}}
		id := func(r *replica) uint64 { return r.Exchange.Secret.Key().ID }
		a, b := h.join(t), h.join(t)
		eventually(t, "one secret", func() bool { return id(a) == id(b) && replaced.Load() == 1 })
		all := id(a)
		for _, r := range []*replica{a, b} { // they are a second older than the next, and one has just replaced its own
			r.mu.Lock()
			r.startedAt, r.secrets.bornAt, r.secrets.replacedAt = time.Now().Add(-time.Second), time.Time{}, time.Now()
			r.mu.Unlock()
		}
		late := h.prepare
		h.prepare = func(r *replica) {
			for late(r); id(r) > all; {
				late(r)
			}
		}
		c := h.join(t)
		eventually(t, "a late replica's secret", func() bool { return id(c) == all && replaced.Load() == 2 })
		if id(a) != all || id(b) != all {
			t.Errorf("got the others' secret replaced by a replica that had just started, want theirs")
		}
		other := block.NewSecret().Bytes()
		a.Receive(append(append(messageHead(b.own), kindSecret), other[:]...))
		if id(a) != all {
			t.Errorf("got a secret taken that was not asked for, want the one before")
		}
		fixed = true
		h.prepare = late
		d := h.join(t)
		want := id(d)
		eventually(t, "the configured secret", func() bool { return id(a) == want && id(b) == want && id(c) == want })
		if id(d) != want || want == all {
			t.Errorf("got a configured secret replaced, want it kept, and not the others'")
		}
	})
}
