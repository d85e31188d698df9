package doctor

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/findings"
)

// published checks that workers publish KV events (SL0301).
func published(s *collected, r *report) {
	const fix = "start the worker with " + findings.FixNoEvents
	s.asked(r, func(w *worker) {
		c := &w.canary
		switch p := w.facts.Publishes; {
		case p != nil && !*p:
			r.bad(Error, fix, "%s says that it publishes no KV events", w.Name)
		case len(c.sockets) > 0 && c.sent && c.err == nil && c.heard():
			r.ok("%s: the canary's event came", w.Name)
		case c.unread() != "":
			r.unchecked("%s: events came that cannot be read (SL0309)", w.Name)
		case len(c.sockets) > 0 && c.sent && c.err == nil && allAre(c.sockets, func(o *socket) bool { return o.up && o.ours }):
			topic := ""
			for _, e := range w.facts.Events {
				if !strings.HasPrefix(e.Topic, w.Events.Topic) {
					topic = fmt.Sprintf(" (its topic is %q, subscribed to is %q)", e.Topic, w.Events.Topic)
				}
			}
			r.bad(Error, fix, "%s: no event came within %v of a prompt that it computed%s", w.Name, s.o.Patience, topic)
		case s.running != nil && c.sent && c.err == nil && s.batches(w, s.running.later) > s.batches(w, s.running.rows):
			r.ok("%s: events of the canary came to the running Sightline", w.Name)
		case p != nil:
			r.ok("%s says that it publishes", w.Name)
		default:
			r.unchecked("%s does not report it, and Sightline does not listen to its sockets", w.Name)
		}
	})
}

// batches returns how many of a worker's event batches the running Sightline has received.
func (s *collected) batches(w *worker, rows []findings.Worker) (n uint64) {
	for _, row := range rows {
		if row.Name == w.Name {
			n += row.Batches
		}
	}
	return n
}

// sockets checks that event sockets are reachable where they are configured (SL0303).
func sockets(s *collected, r *report) {
	s.asked(r, func(w *worker) {
		for _, o := range w.canary.sockets {
			said := ""
			if o.rank < len(w.facts.Events) {
				said = w.facts.Events[o.rank].Pub
			}
			switch {
			case o.up && said != "" && port(said) != port(o.Pub) && !w.heardAt(o): // a mapped port is heard all the same
				r.bad(Error, "events: {zmq: \""+said+"\"}", "%s, rank %d: configured is %s, the worker says %s", w.Name, o.rank, o.Pub, said)
			case o.up:
				r.ok("%s, rank %d: %s", w.Name, o.rank, o.Pub)
			case o.ours:
				fix := "publish at tcp://*:PORT (not at localhost), open the port, and name the pod's address (not a Service's); rank r is at port + r"
				if said != "" && port(said) != port(o.Pub) {
					fix = "events: {zmq: \"" + said + "\"}"
				}
				r.bad(Error, fix, "%s, rank %d: %s: %v", w.Name, o.rank, o.Pub, o.err)
			}
		}
		if ranks := w.facts.Ranks; ranks > 1 && ranks != w.Ranks {
			r.bad(Error, fmt.Sprintf("ranks: %d", ranks), "%s has %d data-parallel ranks, configured are %d", w.Name, ranks, w.Ranks)
		}
		for _, row := range w.of(s.rows()) {
			if row.Events == "live" {
				r.ok("%s, rank %d: the running Sightline reads it", w.Name, max(row.Rank, 0))
			}
		}
	})
	if r.Verdict == "" {
		r.unchecked("no event socket is configured that can be listened to here")
	}
}

// heardAt reports whether events of stored blocks came over a socket, or, as one rank computes the canary, over another rank's.
func (w *worker) heardAt(o *socket) bool {
	return !allAre([]*socket{o}, func(o *socket) bool { return len(o.frames) == 0 }) || w.Ranks > 1 && w.canary.heard()
}

func port(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Port()
}

// replays checks that missed events can be replayed (SL0304).
func replays(s *collected, r *report) {
	s.asked(r, func(w *worker) {
		if w.Events.ZMQ != "" && w.Events.Replay == "" && w.Events.Load == "" {
			fix := findings.FixNoEvents + ", and here events: {replay: \"tcp://" + hostOf(w.Addr) + ":" + findings.ReplayPort + "\"}"
			if len(w.facts.Events) > 0 && w.facts.Events[0].Replay != "" {
				fix = "events: {replay: \"" + w.facts.Events[0].Replay + "\"}"
			}
			r.bad(Warning, fix, "%s: no replay is configured: blocks stored before Sightline starts, and missed events, are never known", w.Name)
		}
		for _, o := range w.canary.sockets {
			if distance := number(o.Replay) - number(o.Pub); o.Replay != "" && o.rank == 0 && max(distance, -distance) < max(1,
				w.Ranks, w.facts.Ranks) && hostOf(plain(o.Replay)) == hostOf(plain(o.Pub)) {
				r.bad(Error, "move replay_endpoint away by the number of ranks, such as events at 5557 and replay at "+findings.ReplayPort,
					"%s: events at %s and replay at %s overlap: each rank takes its port plus its number", w.Name, o.Pub, o.Replay)
			} else if o.replayed != nil && o.ours {
				r.bad(Error, "events: {replay: …} where the worker has its replay_endpoint; rank r is at port + r", "%s, rank %d: %v",
					w.Name, o.rank, o.replayed)
			} else if o.Replay != "" && o.ours {
				r.ok("%s, rank %d: %s", w.Name, o.rank, o.Replay)
			}
		}
	})
	if r.Verdict == "" {
		r.unchecked("no replay socket is configured that can be asked from here")
	}
}

func plain(endpoint string) string { return strings.TrimPrefix(endpoint, "tcp://") }

func number(endpoint string) (n int) {
	_, _ = fmt.Sscan(port(endpoint), &n)
	return n
}

// bounds names workers whose predicted hits are upper bounds, and why (SL0310).
func bounds(s *collected, r *report) {
	if s.running == nil {
		r.unchecked("no running Sightline was asked")
	}
	for _, row := range s.rows() {
		if row.UpperBound != "" {
			r.bad(Warning, "docs/engines.md#several-kv-cache-groups says when events suffice; hits may be fewer than predicted, and correct nothing",
				"%s, rank %d: a predicted hit is an upper bound: %s", row.Name, max(row.Rank, 0), row.UpperBound)
		} else if row.LowerBound != "" {
			r.ok("%s, rank %d: a predicted hit is a lower bound: %s", row.Name, max(row.Rank, 0), row.LowerBound)
		} else if row.Events == "live" {
			r.ok("%s, rank %d: its events say all", row.Name, max(row.Rank, 0))
		}
	}
	if r.Verdict == "" {
		r.unchecked("no worker's events are live")
	}
}

// oneSocketEach finds workers that send the same event messages, time stamps included, because they share a socket (SL0308).
func oneSocketEach(s *collected, r *report) {
	whose := map[[32]byte]string{}
	for _, w := range s.workers {
		for _, o := range w.canary.sockets {
			for _, f := range o.frames {
				if other, ok := whose[f.payload]; ok && other != w.Name && !f.stamped.IsZero() {
					r.bad(Error, findings.FixShared, "%s and %s: the same events come under both names", other, w.Name)
					return
				}
				whose[f.payload] = w.Name
			}
		}
	}
	s.canaries(r, func(w *worker, c *canary) {
		if c.heard() {
			r.ok("%s: events of its own", w.Name)
		}
	})
}

// tally returns how many events of a kind the running Sightline and the agents have counted.
func (s *collected) tally(what string, heard func(*agent) uint64) (n float64, asked bool) {
	n = s.count("sightline_events_total", "what="+what)
	for i := range s.agents {
		n += float64(heard(&s.agents[i]))
	}
	return n, s.running != nil || len(s.agents) > 0
}

// offloaded checks that events of offloaded blocks carry the blocks' tokens (SL0305).
func offloaded(s *collected, r *report) {
	n, asked := s.tally("unresolved", func(a *agent) (n uint64) {
		for _, one := range a.state.Ranks {
			n += one.Heard.Unresolved
		}
		return n
	})
	switch {
	case !asked:
		r.unchecked("%s, and no agent is given (--agent URL)", s.notFoundReason)
	case n > 0:
		r.bad(Warning, `"self_describing_kv_events": true in the connector's kv_connector_extra_config (vLLM)`,
			"%g offloaded blocks were reported without their tokens: they are ignored", n)
	default:
		r.ok("none was reported without its tokens")
	}
}

// media checks that the storage media named in events are known (SL0306).
func media(s *collected, r *report) {
	if s.running == nil {
		r.unchecked("%s", s.notFoundReason)
	} else if r.Verdict == "" {
		r.ok("all media so far are known")
	}
}

// eventStreams checks for unknown keys and lost events (SL0309).
func eventStreams(s *collected, r *report) {
	const fix = findings.FixUnreadable
	for _, w := range s.workers {
		if why := w.canary.unread(); why != "" {
			r.bad(Error, fix, "%s: its events cannot be read: %s", w.Name, why)
		}
	}
	for i := range s.agents {
		for _, rank := range s.agents[i].state.Ranks {
			if why := rank.Heard.Unreadable; why != "" {
				r.bad(Error, fix, "%s, of worker %s, rank %d: the engine's events cannot be read: %s",
					s.agents[i].at, s.agents[i].state.Worker, rank.Rank, why)
			}
		}
	}
	if s.running == nil {
		r.unchecked("%s", s.notFoundReason)
		return
	}
	if n := s.count("sightline_dynamo_events_unreadable_total"); n > 0 {
		r.bad(Error, fix, "%g messages of Dynamo's event plane cannot be read; the log names where the first came from", n)
	}
	for _, what := range []string{"decode_errors", "unreadable", "malformed", "panics"} {
		if n := s.count("sightline_events_total", "what="+what); n > 0 {
			r.bad(Warning, "is this the socket of a worker, of a supported release (README.md)?", "%s: %g", what, n)
		}
	}
	if r.Verdict == "" {
		r.ok("%g messages", s.count("sightline_events_total", "what=batches"))
	}
}

// hashes checks that workers give equal blocks equal names (SL0302). Sightline itself does not use the engine's names, but stores
// shared by workers, and transfers between workers, do.
func hashes(s *collected, r *report) {
	type name struct{ engine, model, begins string }
	first, algo := map[name]*worker{}, map[string]*worker{}
	named := map[name]uint64{}
	heard := 0
	s.canaries(r, func(w *worker, c *canary) {
		if a := w.facts.HashAlgo; a != "" {
			at := w.Model + "\x00" + w.Worker.Class
			if other := algo[at]; other != nil && other.facts.HashAlgo != a {
				r.bad(Warning, "--prefix-caching-hash-algo: the same for all workers", "%s hashes with %s, %s with %s", other.Name,
					other.facts.HashAlgo, w.Name, a)
			}
			algo[at] = w
		}
		for _, o := range c.sockets {
			for _, f := range o.frames {
				if f.begins == "" || w.class.Engine != "vllm" {
					continue
				}
				heard++
				at := name{w.facts.Version, w.Model + w.Worker.Class, f.begins}
				if other := first[at]; other != nil && other != w && named[at] != f.hash {
					r.bad(Warning, "PYTHONHASHSEED=0, the same for all workers (vLLM before 0.29), and the same --prefix-caching-hash-algo",
						"%s and %s give the same block different hashes: they find nothing in a store that they share (Sightline's choice is not affected)",
						other.Name, w.Name)
					return
				}
				first[at], named[at] = w, f.hash
			}
		}
	})
	if r.Verdict == "" && heard > 0 {
		r.ok("%d first blocks", heard)
	}
	if r.Verdict == "" {
		r.unchecked("no first block of a vLLM worker was received")
	}
}

// maxSkew is the tolerated clock difference. An event arrives milliseconds after its step.
const maxSkew = 30 * time.Second

// clocks checks that the workers' clocks agree with ours (SL0307). Sightline orders events by number and uses no clock; correlating
// logs and metrics of several machines does.
func clocks(s *collected, r *report) {
	s.canaries(r, func(w *worker, c *canary) {
		for _, o := range c.sockets {
			for _, f := range o.frames {
				if f.stamped.IsZero() {
					continue
				}
				if skew := f.came.Sub(f.stamped); max(skew, -skew) > maxSkew {
					r.bad(Warning, "run NTP (chrony, systemd-timesyncd) on the worker's machine and here",
						"%s: its events' timestamps are %v off this machine's clock", w.Name, skew.Round(time.Second))
				} else {
					r.ok("%s: %v", w.Name, skew.Round(time.Millisecond))
				}
				return
			}
		}
	})
	if r.Verdict == "" {
		r.unchecked("no event with a timestamp was received")
	}
}
