package findings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/probe"
)

// sign is a problem that a worker's row may show.
type sign struct {
	Finding
	shows func(w *Worker) (detail string, is bool)
}

// ofAbsence reports whether the sign is that events do not come. A worker that is out sends none: there the sign says nothing new.
func (s *sign) ofAbsence() bool {
	return slices.Contains([]string{"SL0109", "SL0301", "SL0303", "SL0304"}, s.Code)
}

func newSign(code, severity, kind string, shows func(*Worker) (string, bool), what, fix string, after time.Duration) sign {
	return sign{Finding{Code: code, Severity: severity, kind: kind, What: what, Fix: fix, From: "events", after: after}, shows}
}

// inState is shown by a worker whose events are in a state, with the error.
func inState(state string) func(*Worker) (string, bool) {
	return func(w *Worker) (string, bool) { return w.EventsError.Text, w.Events == state }
}

// silent reports whether a worker has said that it publishes no events.
func (w *Worker) silent() bool { return errors.Is(w.EventsError.Cause, rules.ErrNoEvents) }

var signs = []sign{
	newSign("SL0301", "error", "no events", func(w *Worker) (string, bool) { return "", w.Events == "waiting" && w.silent() },
		rules.ErrNoEvents.Error(), "", 0),
	newSign("SL0303", "error", "waiting", func(w *Worker) (string, bool) { return w.EventsError.Text, w.Events == "waiting" && !w.silent() },
		"no connection to the KV events", fixSocket, 5*time.Second),
	newSign("SL0309", "error", "unreadable", inState("unreadable"), "events that cannot be read", fixUnreadable, 0),
	newSign("SL0303", "warning", "catching up", func(w *Worker) (string, bool) {
		return "", w.Events == "catching up" && w.EventsError.Text == ""
	}, "not all of the cache's contents are known yet",
		"see its log: a replay that does not end, or an agent without a connection", time.Minute),
	newSign("SL0304", "error", "no replay", func(w *Worker) (string, bool) {
		return w.EventsError.Text, w.Events == "catching up" && w.EventsError.Text != ""
	}, "what it has stored before cannot be had",
		fixReplay, 3*time.Second),
	{noEvents, inState("none")},
	newSign("SL0109", "warning", "not ready", func(w *Worker) (string, bool) {
		return w.EventsError.Text, w.Events == "not ready" && w.Service == nil
	}, "not ready, by worker discovery", "see its readiness probe", time.Minute),
	newSign("SL0303", "warning", "late", func(w *Worker) (string, bool) {
		return "", w.Events == "live" && w.EventAge >= LateEvents.Seconds()
	}, "no events for long: the cache's contents are doubtful", fixLate, 0),
	newSign("SL0309", "warning", "medium", func(w *Worker) (string, bool) { return kvevent.UnknownMedium(w.UnknownKey) },
		"blocks in an unknown storage medium", "a newer Sightline: until then the medium counts as a shared store, the lowest tier", 0),
	newSign("SL0309", "warning", "key", func(w *Worker) (string, bool) {
		_, medium := kvevent.UnknownMedium(w.UnknownKey)
		return w.UnknownKey, w.UnknownKey != "" && !medium
	}, "events with an unknown key", "a newer Sightline: the engine's events have keys that this one does not know", 0),
	newSign("SL0309", "warning", "lost", func(w *Worker) (string, bool) { return fmt.Sprint(w.Unfilled, " times"), w.Unfilled > 0 },
		"lost events could not be replayed from anywhere", "events: {replay: …}, or an agent beside the worker", 0),
	newSign("SL0309", "warning", "garbled", func(w *Worker) (string, bool) { return fmt.Sprint(w.Garbled, " messages"), w.Garbled > 0 },
		"events that cannot be read, among others that can", fixUnreadable, 0),
	newSign("SL0309", "note", "bound", func(w *Worker) (string, bool) { return w.UpperBound, w.UpperBound != "" },
		"a predicted hit is an upper bound", "docs/engines.md#several-kv-cache-groups says when events suffice", 0),
	newSign("SL0305", "warning", "offloaded", func(w *Worker) (string, bool) { return fmt.Sprint(w.Unresolved), w.Unresolved > 0 },
		"offloaded blocks were reported without their tokens: they are ignored",
		`"self_describing_kv_events": true in the connector's kv_connector_extra_config (vLLM)`, 0),
	newSign("SL0308", "error", "same", func(w *Worker) (string, bool) { return w.SameEvents, w.SameEvents != "" },
		"the same events as another worker", fixShared, 0),
	{otherSize, func(w *Worker) (string, bool) { return fmt.Sprint(w.OtherSize, " tokens"), w.OtherSize > 0 }},
}

// Findings that the doctor sees by itself, too.
var (
	noEvents = Finding{Code: "SL0301", Severity: "warning", kind: "none", From: "events",
		What: "no KV events: the cache's contents are guessed from the requests sent there",
		Fix:  "events: {auto: true} of it or its group, {zmq: …, replay: …}, {nats: true} or {http: …}"}
	otherSize = Finding{Code: "SL0107", Severity: "warning", kind: "size", From: "events",
		What: "blocks of another size than block_size; its own are used", Fix: "block_size: its own" + ofClass + "; or leave it out"}
)

// ReplayPort is the port of replay sockets in advice, far enough from the events' 5557 for a worker's ranks.
const ReplayPort = "5657"

// What to do, where more than one fact shows it.
const (
	fixCaching = "start it with --enable-prefix-caching (vLLM; hybrid models have it off), without --disable-radix-cache " +
		"(SGLang), with enable_block_reuse (TensorRT-LLM)"
	fixUnreadable = "start the engine in a release that docs/engines.md lists, without a proxy or a publisher of another form before its " +
		"socket"
	fixShared = "events: {zmq: …} of each worker's own socket"
	fixSocket = "events.zmq: where the worker publishes; there publish at tcp://*:PORT (not at localhost), open the port, name the pod's " +
		"address (not a Service's)" + ofRank
	fixReplay   = "events: {replay: …} where the worker has its replay_endpoint" + ofRank
	fixLate     = "see the network to its event socket, whether its process is stopped, and how busy its publisher and agent are"
	ofRank      = "; rank r is at port + r; with agents: SL0601"
	ofClass     = ", of its model or of a class for it"
	fixNotReady = "see what it waits for: an event stream, or worker discovery"
)

// startEvents says how an engine is started to publish its events.
func startEvents(of string) string {
	return "start it with " + engine.RulesOf(cmp.Or(of, engine.DefaultServer().Engine), "").Flags.Events
}

// ofWorkers adds what the workers' rows show.
func (f *Facts) ofWorkers(l *list) {
	unasked := map[string]*probe.Finding{}
	for i := range f.Probes {
		unasked[f.Probes[i].Worker] = f.Probes[i].NotAsked()
	}
	for _, worker := range slices.Sorted(maps.Keys(f.Unresolved)) {
		l.add(Finding{Code: "SL0109", Severity: "warning", kind: "unresolved", From: "workers", What: rules.Unresolved.Error(),
			Fix: rules.Unresolved.Fix()}, worker, f.Unresolved[worker])
	}
	for i := range f.Workers {
		w := &f.Workers[i]
		if w.Service != nil {
			detail := w.Service.String()
			if *w.Service == fleet.Draining {
				detail = fmt.Sprintf("draining, %d requests left", w.Inflight)
			}
			l.add(Finding{Code: "SL0109", Severity: "note", kind: "service", From: "workers", What: "taken out of service",
				Fix: "sightline uncordon WORKER, once it may have requests again; a pod that is being deleted ends by itself"}, w.Name, detail)
		}
		if w.Health != nil {
			p := Finding{Code: "SL0109", Severity: "warning", kind: "out", From: "workers", What: "no requests are sent there",
				Fix: "see its log; it gets requests again once it answers"}
			if fix := w.Health.Fault.Fix(); fix != "" {
				p.kind, p.Fix = "out "+string(w.Health.Fault), fix
			}
			if w.Health.Fault == "" {
				p.From, p.kind = "requests", "failed requests"
			}
			l.add(p, w.Name, w.Health.Why)
		}
		found := unasked[w.Name]
		if found != nil && w.Health == nil {
			l.add(Finding{Code: "SL0109", Severity: "warning", kind: "not asked " + string(found.Fault), From: "probe",
				What: "it cannot be asked what it serves", Fix: cmp.Or(found.Fault.Fix(), "see its log, and the network to its addr"),
				after: 2 * time.Second}, w.Name, found.Detail)
		}
		for k := range signs {
			sign := &signs[k]
			sameReason := w.Health != nil && sign.ofAbsence() ||
				sign.kind == "waiting" && found != nil && errors.Is(w.EventsError.Cause, rules.ErrNotAsked) ||
				f.NATS != "" && errors.Is(w.EventsError.Cause, bus.ErrSilent)
			if detail, shows := sign.shows(w); shows && !sameReason {
				p := sign.Finding
				if p.Fix == "" { // each engine has its own flags
					p.kind, p.Fix = p.kind+" "+w.Engine, startEvents(w.Engine)
				}
				l.add(p, w.Name, detail)
			}
		}
		if w.Health != nil {
			continue
		}
		if slow := &w.Slow; slow.Times > 0 {
			l.add(Finding{Code: "SL0110", Severity: "warning", kind: "pace", From: "events", Since: slow.Since,
				What: "computes prompts much slower than others of its class, and gets fewer", Fix: "see its GPU (clocks, temperature), and what " +
					"else runs there; if its hardware is another one on purpose: a class of its own"}, w.Name,
				fmt.Sprintf("%.1f times as long", slow.Times))
		}
		if flag := engine.RulesOf(cmp.Or(w.Engine, engine.DefaultServer().Engine), "").Flags.Order; w.Unordered && flag != "" {
			l.add(Finding{Code: "SL0110", Severity: "note", kind: "order " + w.Engine, From: "events",
				What: "short requests wait for long ones that came before them", Fix: "start it with " + flag +
					": bursts then wait less on average, and Sightline says when each request is due"}, w.Name, "")
		}
		for k := range w.RulesAside {
			aside := &w.RulesAside[k]
			l.add(Finding{Code: "SL0206", Severity: "warning", From: "audit", Since: aside.Since,
				kind: "rule " + strings.Join([]string{aside.Model, aside.Class, aside.Rule}, "\x00"),
				What: "the rule for " + aside.Rule + " has stepped aside, and such prompts are learned", Fix: ruleFix(aside.Rule)}, w.Name,
				aside.First.Worker+" contradicts it: "+aside.First.Says)
		}
	}
	f.ofRoles(l)
}
