package serve

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/workers/fleet"
)

// publisher is a worker that is connected (up) or refuses connections (down), and replays when the test lets it.
type publisher struct {
	refuses bool
	replay  chan struct{}
}

func (p *publisher) Run(ctx context.Context, f *stream.Feed) error {
	if p.refuses {
		f.Down(errors.New("connection refused"))
	} else {
		f.Up()
	}
	<-ctx.Done()
	return ctx.Err()
}

func (p *publisher) Replay(ctx context.Context, _ uint64, _ func(stream.Message) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.replay:
		return nil
	}
}

// started returns a gate over one finder's workers, by name.
func started(t *testing.T, workers map[string]*publisher) *readyGate {
	s := &sources{followers: []*runningFinder{{number: 1}}}
	s.set = registry.New(registry.Options{Index: indexer.New(indexer.Options{}), Fleet: fleet.New(nil), Log: zap.NewNop(),
		Metrics: prometheus.NewRegistry(),
		Changed: func([]*fleet.Worker) {}})
	t.Cleanup(s.set.Close)
	g := &readyGate{sources: s, after: time.Minute, began: time.Now(), ctx: t.Context()}
	if _, err := g.look(g.began); err == nil {
		t.Fatalf("ready before any worker was found: got %v, want an error", err)
	}
	var found []registry.Spec
	for name, p := range workers {
		spec := registry.Spec{ID: name, Name: name, Ready: true, Model: "m",
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(len(found))}), 8000)}
		spec.Listen = func(_ *fleet.Slot, _ int, o *stream.Options) (bool, error) {
			o.Source, o.Decoder = p, &vllm.Decoder{}
			return p != nil, nil
		}
		found = append(found, spec)
	}
	s.update(s.followers[0], found)
	for _, slot := range s.set.Slots() {
		for slot.Feed != nil && !slot.Feed.Stats().Connected && slot.Feed.Stats().LastError == "" {
			time.Sleep(time.Millisecond)
		}
	}
	return g
}

// TestReadyWhenCaughtUp checks that a start is ready when what can be reached has caught up, says so, and stays ready.
func TestReadyWhenCaughtUp(t *testing.T) {
	replay := make(chan struct{})
	g := started(t, map[string]*publisher{"a": {replay: replay}, "refusing": {refuses: true}, "silent": nil})
	if how, err := g.look(g.began.Add(reachTime)); err == nil || !strings.Contains(err.Error(), "0 of 2 event streams have caught up") {
		t.Fatalf("while a replay is under way: %q, %v, want an error, %q in it", how, err, "0 of 2 event streams have caught up")
	}
	close(replay)
	how := ""
	for err := errors.New("shut"); err != nil; time.Sleep(time.Millisecond) {
		if _, early := g.look(g.began.Add(reachTime - 1)); early == nil {
			t.Fatalf("a worker that refuses connections was not waited for: got %v, want an error", early)
		}
		how, err = g.look(g.began.Add(reachTime))
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	if want := "1 of 2 event streams have caught up; not refusing/0, which cannot be reached"; how != want {
		t.Errorf("%q, want %q", how, want)
	}
	g.sources.update(g.sources.followers[0], nil)
	if again, err := g.look(g.began); again != how || err != nil {
		t.Errorf("later: got %q, %v, want %q, no error", again, err, how)
	}
}

// TestReadyAfter checks that a replay that does not come delays a start for its time and no longer.
func TestReadyAfter(t *testing.T) {
	g := started(t, map[string]*publisher{"a": {}})
	if _, err := g.look(g.began.Add(g.after - 1)); err == nil {
		t.Fatalf("ready without the replay: got %v, want an error", err)
	}
	opened := false
	g.began = g.began.Add(-g.after)
	g.await(t.Context(), zap.NewNop(), func() { opened = true })
	if how, err := g.look(time.Now()); !opened || err != nil || !strings.HasPrefix(how, "1m0s have passed: 0 of 1") {
		t.Errorf("got %v, %q, %v, want true, no error, %q first", opened, how, err, "1m0s have passed: 0 of 1")
	}
}

// TestReadyWithoutEvents checks that nothing is waited for if there are no events.
func TestReadyWithoutEvents(t *testing.T) {
	for name, workers := range map[string]map[string]*publisher{"no workers": nil, "no events": {"a": nil}} {
		if how, err := started(t, workers).look(time.Now()); err != nil || how != "no worker sends events" {
			t.Errorf("%s: got %q, %v, want no error, %q", name, how, err, "no worker sends events")
		}
	}
}

// TestPublisherOf checks who may connect to a listening socket: the worker alone.
func TestPublisherOf(t *testing.T) {
	for _, c := range []struct{ addr, want string }{
		{"10.0.0.5:8000", "10.0.0.5/32"}, {"[fd00::5]:8000", "fd00::5/128"}, {"[::ffff:10.0.0.5]:8000", "10.0.0.5/32"},
	} {
		if got := publisherOf(netip.MustParseAddrPort(c.addr)).String(); got != c.want {
			t.Errorf("%+v: got %s, want %q", c, got, c.want)
		}
	}
}

// TestSnapshotsShareTurns checks that all ranks whose agents send snapshots share the turns.
func TestSnapshotsShareTurns(t *testing.T) {
	s := &sources{log: zap.NewNop(), nats: &bus.Link{}, turns: make(chan struct{}, 1),
		now: &served(config.Config{Models: []config.Model{{Name: "m"}}}).now}
	w := fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.5:8000"), "m", 0, func(int) indexer.SlotID { return 0 })
	var o stream.Options
	if _, err := s.listen(&config.Worker{Model: "m", Events: config.Events{NATS: true}}, allRanks{}, w.Slots[0], 0, &o); err != nil ||
		o.ReplaySlots != s.turns {
		t.Errorf("got %v, %v, want no error, %v", o.ReplaySlots, err, s.turns)
	}
}
