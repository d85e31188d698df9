package bus

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"

	"github.com/sightline-router/sightline/mmhash/block"
)

// TestAgentRestarts ends an agent, with or without a good-bye, and starts another, while the engine goes on, or not. Routers keep
// what they know if the engine can still say what came meanwhile; otherwise they forget; and they never end up with anything but
// what the engine reported to the second agent.
func TestAgentRestarts(t *testing.T) {
	payloads, prompts := recording(t)
	end := len(payloads)
	half := end - 20
	life := func(s string) func(context.Context) string { return func(context.Context) string { return s } }
	for _, c := range []struct {
		name    string
		kept    uint64                          // messages that the engine can replay; 0: it has no replay
		killed  bool                            // without a good-bye
		every   time.Duration                   // between snapshots
		asked   bool                            // for a snapshot, 15 messages before the end
		missed  int                             // messages while no agent is there
		lives   [2]func(context.Context) string // ids of the engine's process
		restart bool                            // the engine restarts meanwhile
		resumed bool                            // the second agent takes over what the first held
		keeps   bool                            // routers get only what came meanwhile
		partial bool                            // the replay window had passed: only what came after it is known
	}{
		{name: "ended", kept: 20, missed: 15, resumed: true, keeps: true},
		{name: "ended, nothing came meanwhile", kept: 20, resumed: true, keeps: true},
		{name: "killed behind its first message's snapshot", kept: 20, killed: true, missed: 15, every: time.Hour, resumed: true, keeps: true},
		{name: "killed after a snapshot", kept: 20, killed: true, missed: 15, every: 200 * time.Millisecond, resumed: true},
		{name: "killed behind a snapshot, and the engine keeps nothing of that", kept: 1, killed: true, every: time.Hour,
			asked: true, resumed: true, keeps: true},
		{name: "away for longer than the engine keeps", kept: 5, missed: 15, resumed: true, partial: true},
		{name: "the engine restarted", kept: 20, restart: true, resumed: true},
		{name: "the engine restarted, and its metrics say so", kept: 20, restart: true,
			lives: [2]func(context.Context) string{life("a"), life("b")}},
		{name: "no replay", missed: 15, partial: true},
		{name: "no replay, nothing came, and it is the same engine", lives: [2]func(context.Context) string{life("a"), life("a")},
			resumed: true, keeps: true},
		{name: "no replay, something came", missed: 1, lives: [2]func(context.Context) string{life("a"), life("a")},
			resumed: true, partial: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := runServer(t, t.TempDir(), -1)
			makeStream(t, connect(t, s.ClientURL()), 64<<20)
			early := listen(t, connect(t, s.ClientURL()))
			early.listener.silence = time.Hour
			h := &hand{ready: make(chan *stream.Feed, 1), kept: c.kept}
			o := PublisherOptions{Worker: "w", Replays: c.kept > 0, ProcessID: c.lives[0], every: c.every}
			nc := connect(t, s.ClientURL())
			o.NATS = nc
			first := h.agent(t, o)
			if c.kept == 0 {
				first.onLink(nil, true)
			}
			if c.asked {
				h.give(payloads[:half-15]...)
				early.follow("w")
				early.same("w", payloads[:half-15], prompts)
				l, err := newRankLine(connect(t, s.ClientURL()), first.rankLine.suffix)
				if err == nil {
					err = l.requestSnapshot(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			h.give(payloads[len(h.told):half]...)
			if !c.asked {
				early.follow("w")
			}
			early.same("w", payloads[:half], prompts)
			if c.killed {
				until(t, "a snapshot", func() bool { return first.Stats().Snapshots > 0 })
			}
			before := early.feeds["w"].Stats()
			if c.killed {
				nc.Close()
			}
			h.f.Close()
			h.f = nil
			if st := first.Stats(); !c.killed && (st.Snapshots == 0 || st.SnapshotErrors > 0) {
				t.Errorf("the first: %+v", st)
			}
			if held := early.index.HeldBlocks(early.slots["w"]); held == 0 {
				t.Errorf("nothing is known while no agent is there: got %d, want some", held)
			}
			if c.restart {
				h.told = nil
			}
			told := len(h.told)
			h.give(payloads[told : told+c.missed]...)
			o.NATS, o.ProcessID = connect(t, s.ClientURL()), c.lives[1]
			second := h.agent(t, o)
			if c.kept == 0 {
				second.onLink(nil, true)
			}
			h.give(payloads[told+c.missed : end]...)
			until(t, "the second agent's batches", func() bool { st := h.f.Stats(); return st.LastSeq == uint64(end-1) })
			if got := second.Stats().Resumed; got != c.resumed {
				t.Errorf("resumed %v, want %v", got, c.resumed)
			}
			if c.partial { // what the engine reported before is lost: routers have what the agent has
				until(t, "the same as the agent's", func() bool {
					st := second.Stats()
					return st.Blocks > 0 && early.index.HeldBlocks(early.slots["w"]) == st.Blocks && early.index.Partial(early.slots["w"])
				})
			} else {
				early.same("w", payloads[:end], prompts)
			}
			st := early.feeds["w"].Stats()
			if kept := st.Restarts == before.Restarts && st.Epoch == before.Epoch && st.Events-before.Events < 50; c.keeps && !kept {
				t.Errorf("routers keep what they know: %v, want %v: %+v, before %+v", kept, c.keeps, st, before)
			}
			late := listen(t, connect(t, s.ClientURL()))
			late.follow("w")
			until(t, "a router that joins knows as much", func() bool {
				return late.index.HeldBlocks(late.slots["w"]) == early.index.HeldBlocks(early.slots["w"])
			})
		})
	}
}

// TestMuchBehindASnapshot checks that a router that joins reads all messages after a snapshot, if they are more than is fetched
// ahead, and as large as agents write them.
func TestMuchBehindASnapshot(t *testing.T) {
	s := runServer(t, t.TempDir(), -1)
	nc := connect(t, s.ClientURL())
	makeStream(t, nc, 64<<20)
	l, err := newRankLine(nc, subjectSuffix("w", 0))
	if err != nil {
		t.Fatal(err)
	}
	const messages = 3*maxAhead/maxQueued + 1
	blocks := 0
	for seq := range uint64(messages) {
		b := (&head{key: block.Fixed().ID, epoch: 1, agent: 1, seq: seq}).append(nil)
		for len(b) < maxQueued-64<<10 {
			e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
			for range 2048 {
				blocks++
				e.EngineHashes, e.Locals = append(e.EngineHashes, uint64(blocks)<<20), append(e.Locals, uint64(blocks)<<20)
			}
			b = appendEvent(b, &e, false)
		}
		if _, err := l.js.Publish(t.Context(), l.subject(), b); err != nil {
			t.Fatal(err)
		}
	}
	r := listen(t, connect(t, s.ClientURL()))
	r.follow("w")
	until(t, "all of it", func() bool { return r.index.HeldBlocks(r.slots["w"]) == blocks })
}

// Behind a message that it cannot read an agent begins the line anew, under a later epoch, and routers follow.
func TestLineBegunAnew(t *testing.T) {
	payloads, prompts := recording(t)
	s := runServer(t, t.TempDir(), -1)
	nc := connect(t, s.ClientURL())
	makeStream(t, nc, 64<<20)
	r := listen(t, connect(t, s.ClientURL()))
	l, err := newRankLine(nc, subjectSuffix("w", 0))
	if err != nil {
		t.Fatal(err)
	}
	h, p := agent(t, nc, "w")
	h.give(payloads[:20]...)
	r.follow("w")
	r.same("w", payloads[:20], prompts)
	was := p.Stats().Epoch
	h.f.Close()
	if _, err := l.js.Publish(t.Context(), l.subject(), []byte("S\x09 of a release to come")); err != nil {
		t.Fatal(err)
	}
	h, p = agent(t, connect(t, s.ClientURL()), "w")
	h.give(payloads...)
	r.same("w", payloads, prompts)
	if now := p.Stats().Epoch; now <= was {
		t.Errorf("epoch %d again, after %d, want more than %d", now, was, was)
	}
}

// If another agent or the stream's limits replaced or deleted parts of a snapshot, it is written again when a router needs it, even if
// the worker publishes nothing.
func TestDamagedSnapshot(t *testing.T) {
	payloads, prompts := recording(t)
	s := runServer(t, t.TempDir(), -1)
	nc := connect(t, s.ClientURL())
	makeStream(t, nc, 64<<20)
	h, p := agent(t, nc, "w")
	h.give(payloads...)
	there := listen(t, connect(t, s.ClientURL()))
	there.follow("w")
	there.same("w", payloads, prompts)
	l, err := newRankLine(nc, subjectSuffix("w", 0))
	if err != nil {
		t.Fatal(err)
	}
	state, err := l.js.Stream(t.Context(), StateStream)
	if err != nil {
		t.Fatal(err)
	}
	for i, damage := range []func(part string) error{
		func(part string) error { _, err := l.js.Publish(t.Context(), part, []byte("another's")); return err },
		func(part string) error { return state.Purge(t.Context(), jetstream.WithPurgeSubject(part)) },
	} {
		until(t, "a snapshot", func() bool { return p.Stats().Snapshots > uint64(i) })
		written, err := l.tag(t.Context())
		if err != nil || written.Parts == 0 {
			t.Fatalf("got %+v, %v, want no error, Parts some", written, err)
		}
		if err := damage(stateSubjects + l.suffix + "." + written.part(0)); err != nil {
			t.Fatal(err)
		}
		late := listen(t, connect(t, s.ClientURL()))
		late.follow("w")
		late.same("w", payloads, prompts)
	}
}

// A snapshot is never read beyond its bound, whatever its tag says, and one of too many parts is not read at all.
func TestSnapshotIsBounded(t *testing.T) {
	s := runServer(t, t.TempDir(), -1)
	nc := connect(t, s.ClientURL())
	makeStream(t, nc, 64<<20)
	l, err := newRankLine(nc, subjectSuffix("w", 0))
	if err != nil {
		t.Fatal(err)
	}
	given := make([]byte, 3*partBytes+7)
	if err := l.save(t.Context(), snapshotTag{Epoch: 1}, given); err != nil {
		t.Fatal(err)
	}
	written, err := l.tag(t.Context())
	if err != nil || written.Parts != 4 {
		t.Fatalf("got %+v, %v, want no error, Parts 4", written, err)
	}
	for most, want := range map[int]string{len(given): "", len(given) - 1: "a snapshot of more than 1572870 bytes",
		partBytes: "a snapshot of more than 524288 bytes"} {
		got, err := l.snapshot(t.Context(), written, most)
		if want == "" && (err != nil || len(got) != len(given)) || want != "" && (err == nil || err.Error() != want || got != nil) {
			t.Errorf("at most %d: %d bytes, %v", most, len(got), err)
		}
	}
	text := fmt.Appendf(nil, `{"Epoch":1,"Parts":%d}`, maxParts+1)
	if _, err := l.js.Publish(t.Context(), stateSubjects+l.suffix+".tag", text); err != nil {
		t.Fatal(err)
	}
	if got, err := l.tag(t.Context()); err != nil || got != (snapshotTag{}) {
		t.Errorf("got %+v, %v, want no error, %+v", got, err, snapshotTag{})
	}
}
