package admin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/probe"
)

// Problem is something that keeps requests from answers or from cache hits right now.
type Problem struct {
	Code     string    `json:"code"`     // a section of docs/doctor.md, such as SL0109
	Severity string    `json:"severity"` // error, warning, or note: intended, and still good to know
	What     string    `json:"what"`
	Workers  []string  `json:"workers,omitempty"` // those that it is about
	Since    time.Time `json:"since"`             // when it was first seen; seconds old at least
	Fix      string    `json:"fix"`
	Link     string    `json:"link"`
	From     string    `json:"from"` // what showed it: workers, events, audit, probe, requests, access log, configuration
	// Details are what each of Workers shows, in their order, if What does not say all of it.
	Details []string `json:"details,omitempty"`

	kind    string        // what it is about, whoever has it
	after   time.Duration // it is a problem only after so long
	details []string      // one for each worker
}

// Lines are what it says: one line if all its workers show the same, else one for each worker.
func (p *Problem) Lines() (lines []string) {
	if len(p.Details) != len(p.Workers) || len(p.Details) == 0 {
		return []string{p.What}
	}
	for i, worker := range p.Workers {
		lines = append(lines, worker+": "+p.Details[i])
	}
	return lines
}

// Clock is when it began, as the page shows it.
func (p Problem) Clock() string { return p.Since.Local().Format("15:04:05") }

// Ago is how long it has been there, as the page shows it.
func (p Problem) Ago() string { return rough(time.Since(p.Since)) }

// The severities, worst first.
var severities = []string{"error", "warning", "note"}

const (
	docs = "https://github.com/sightline-router/sightline/blob/main/docs/doctor.md#"
	// auditAge is how long a finding of the audit counts: what it was about may have been mended since.
	auditAge = 15 * time.Minute
	// lateEvents is from when on late events take from the choice what they would show.
	lateEvents = 10 * time.Second
	named      = 3 // workers that a sentence names
)

// Facts is what problems are found in.
type Facts struct {
	Now           time.Time
	NotReady      string   // "": it is ready
	Configuration string   // "": it is as the file says
	Restart       []string // or but for these keys
	Workers       []Worker
	Silent        string // what Envoy's access log lacks; "": nothing
	SilentSince   time.Time
	Unserved      []string
	Findings      []audit.Finding // newest first
	Misplaced     []audit.Misplaced
	Late          []audit.Late
	Probes        []probe.Result
	Mode          string // as in /report: observe, 10%, 100%
	TakesOne      bool   // a gateway has refused a list of addresses
	DecisionLog   string // why it is not written; "": it is, or there is none
	Hosts         []fetch.HostState
	Certificates  []secure.Expiry
	LostReplicas  []string
	Unresolved    map[string]string // why, by worker
	NATS          string            // why there is no connection to it
	Faults        error             // what of the models' files does not load
	Recent        []router.Recent   // decisions of the last recentAge, by Router.RecentSince
}

// problemList collects problems; those of several workers become one.
type problemList []*Problem

// add adds a problem, or a worker to it. what follows the workers' names, if worker is not "".
func (l *problemList) add(p Problem, worker, detail string) {
	at := slices.IndexFunc(*l, func(o *Problem) bool { return o.kind == p.kind && o.Code == p.Code && worker != "" })
	if at < 0 {
		*l = append(*l, &p)
		at = len(*l) - 1
	}
	one := (*l)[at]
	if worker != "" && !slices.Contains(one.Workers, worker) {
		one.Workers, one.details = append(one.Workers, worker), append(one.details, detail)
	}
}

// Problems returns what is wrong, worst first. Since is that of the fact if it tells it, else now.
func (f *Facts) Problems() []Problem {
	var l problemList
	if f.NATS != "" {
		l.add(Problem{Code: "SL0601", Severity: "error", kind: "nats", From: "events", Fix: FixNATS,
			What: "NATS is not connected, so no agent's events come: " + f.NATS, after: 2 * time.Second}, "", "")
	}
	if len(f.Restart) > 0 {
		l.add(Problem{Code: "SL0501", Severity: "warning", kind: "restart", From: "configuration",
			What: "the configuration needs a restart: " + strings.Join(f.Restart, ", "),
			Fix:  "restart it when it suits; until then it works with the old values of these keys"}, "", "")
	}
	if f.Configuration != "" {
		l.add(Problem{Code: "SL0501", Severity: "error", kind: "configuration", From: "configuration", What: f.Configuration,
			Fix: "correct the keys that are named; the file is read again as soon as it changes"}, "", "")
	}
	if f.Silent != "" {
		l.add(Problem{Code: "SL0409", Severity: "error", kind: "silent", From: "access log", What: f.Silent, Since: f.SilentSince,
			Fix: FixAccessLog}, "", "")
	}
	if len(f.Unserved) > 0 {
		names := fmt.Sprintf("%q", f.Unserved[:min(len(f.Unserved), 8)])
		if more := len(f.Unserved) - 8; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		l.add(Problem{Code: "SL0103", Severity: "warning", kind: "unserved", From: "requests",
			What: "requests of the last hour name models that no worker serves: " + names,
			Fix:  fmt.Sprintf("aliases: [%q] of the intended model, or adapters", f.Unserved[0])}, "", "")
	}
	if f.Faults != nil {
		l.add(Problem{Code: "SL0501", Severity: "warning", kind: "files", From: "configuration",
			What: "requests are learned: " + f.Faults.Error(),
			Fix:  "the worker's own files at dir (sightline init --files-only fetches them), or no dir"}, "", "")
	}
	if len(f.LostReplicas) > 0 {
		l.add(Problem{Code: "SL0508", Severity: "warning", kind: "replicas", From: "replicas",
			What: "another replica hears nothing of this one: " + strings.Join(f.LostReplicas[:min(len(f.LostReplicas), named)], "; "),
			Fix:  "replicas.addresses, ca and api_key_file: as listen of the other wants them; the same release", after: 3 * time.Second}, "", "")
	}
	f.ofWorkers(&l)
	f.ofProbes(&l)
	f.ofRequests(&l)
	f.ofStreams(&l)
	f.ofAudit(&l)
	if f.DecisionLog != "" {
		l.add(Problem{Code: "SL0507", Severity: "error", kind: "decision log", From: "decision log",
			What: "the decision log cannot be written, its lines are dropped: " + f.DecisionLog,
			Fix:  "room on its disk, or decision_log: {file: …} where there is some"}, "", "")
	}
	f.ofHosts(&l)
	for _, e := range f.Certificates {
		l.add(Problem{Code: "SL0510", Severity: map[bool]string{true: "error", false: "warning"}[e.Ended], kind: "certificate " + e.Text,
			From: "configuration", What: e.Text, Fix: FixCertificates}, "", "")
	}
	if f.TakesOne {
		l.add(Problem{Code: "SL0408", Severity: "warning", kind: "one address", From: "requests",
			What: "the gateway took no list of workers and failed the first request: since then one address is named",
			Fix:  "route: {one_address: true}, or serve --pool --one-address, so that no request fails after the next start"}, "", "")
	}
	if f.NotReady != "" {
		l.add(Problem{Code: "SL0505", Severity: "error", kind: "readiness", From: "workers", What: "Sightline is not ready: " + f.NotReady,
			Fix: FixNotReady}, "", "")
	}
	if f.Mode == "observe" {
		l.add(Problem{Code: "SL0506", Severity: "note", kind: "mode", From: "configuration",
			What: "mode is observe: Sightline decides, and Envoy's own balancing sends requests elsewhere",
			Fix:  "once /report shows a gain: enforce: 10%, then 100%, instead of mode: observe"}, "", "")
	}
	out := make([]Problem, len(l))
	for i, p := range l {
		if len(p.Workers) > 0 {
			what, whole := p.sentence(f.Workers)
			p.What = what
			if !whole {
				p.Details = p.details
			}
		}
		if p.Since.IsZero() {
			p.Since = f.Now
		}
		p.Link = docs + strings.ToLower(p.Code)
		out[i] = *p
	}
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
	return out
}

// sentence says what its workers have in common, and what a few of them show; whole reports whether that is all that they show.
func (p *Problem) sentence(all []Worker) (text string, whole bool) {
	text = strings.Join(p.Workers[:min(len(p.Workers), named)], ", ")
	if more := len(p.Workers) - named; more > 0 {
		known := map[string]bool{}
		for i := range all {
			known[all[i].Name] = true
		}
		text = fmt.Sprintf("%d of %d workers (%s and %d more)", len(p.Workers), max(len(known), len(p.Workers)), text, more)
	}
	text += ": " + p.What
	var says []string
	for _, d := range p.details {
		if d != "" && !slices.Contains(says, d) {
			says = append(says, d)
		}
	}
	if len(says) > 0 {
		text += ": " + strings.Join(says[:min(len(says), named)], "; ")
	}
	return text, len(says) <= 1
}

// sign is a problem that a worker's row may show.
type sign struct {
	Problem
	shows func(w *Worker) (detail string, is bool)
}

func newSign(code, severity, kind string, shows func(*Worker) (string, bool), what, fix string, after time.Duration) sign {
	return sign{Problem{Code: code, Severity: severity, kind: kind, What: what, Fix: fix, From: "events", after: after}, shows}
}

// inState is shown by a worker whose events are in a state, with the error.
func inState(state string) func(*Worker) (string, bool) {
	return func(w *Worker) (string, bool) { return w.EventsError.Text, w.Events == state }
}

// silent reports whether a worker has said that it publishes no events.
func (w *Worker) silent() bool { return errors.Is(w.EventsError.Cause, rules.ErrNoEvents) }

var signs = []sign{
	newSign("SL0301", "error", "no events", func(w *Worker) (string, bool) { return "", w.Events == "waiting" && w.silent() },
		rules.ErrNoEvents.Error(), FixNoEvents, 0),
	newSign("SL0303", "error", "waiting", func(w *Worker) (string, bool) { return w.EventsError.Text, w.Events == "waiting" && !w.silent() },
		"no connection to the KV events", "events.zmq: where the worker publishes; there publish at tcp://*:PORT (not at localhost), open the "+
			"port, name the pod's address; events.nats needs the agent (SL0602)", 5*time.Second),
	newSign("SL0309", "error", "unreadable", inState("unreadable"), "events that cannot be read", FixUnreadable, 0),
	newSign("SL0303", "warning", "catching up", func(w *Worker) (string, bool) {
		return "", w.Events == "catching up" && w.EventsError.Text == ""
	}, "not all of the cache's contents are known yet",
		"see its log: a replay that does not end, or an agent without a connection", time.Minute),
	newSign("SL0304", "error", "no replay", func(w *Worker) (string, bool) {
		return w.EventsError.Text, w.Events == "catching up" && w.EventsError.Text != ""
	}, "what it has stored before cannot be had",
		"events: {replay: …} where the worker has its replay_endpoint; with agents: SL0601, SL0602", 3*time.Second),
	newSign("SL0502", "warning", "none", inState("none"), "no KV events: the cache's contents are guessed from the requests sent there",
		"events: {auto: true} of its group, or {zmq: …, replay: …}", 0),
	newSign("SL0109", "warning", "not ready", inState("not ready"), "not ready, by worker discovery", "see its readiness probe", time.Minute),
	newSign("SL0303", "warning", "late", func(w *Worker) (string, bool) {
		return "", w.Events == "live" && w.EventAge >= lateEvents.Seconds()
	}, "no events for long: the cache's contents are doubtful", "see the network to its event socket, and whether its process is stopped", 0),
	newSign("SL0306", "warning", "medium", func(w *Worker) (string, bool) { return kvevent.UnknownMedium(w.UnknownKey) },
		"blocks in an unknown storage medium", "a newer Sightline: until then the medium counts as a shared store, the lowest tier", 0),
	newSign("SL0309", "warning", "key", func(w *Worker) (string, bool) {
		_, medium := kvevent.UnknownMedium(w.UnknownKey)
		return w.UnknownKey, w.UnknownKey != "" && !medium
	}, "events with an unknown key", "a newer Sightline: the engine's events have keys that this one does not know", 0),
	newSign("SL0309", "warning", "lost", func(w *Worker) (string, bool) { return fmt.Sprint(w.Unfilled, " times"), w.Unfilled > 0 },
		"lost events could not be replayed from anywhere", "events: {replay: …}, or an agent beside the worker", 0),
	newSign("SL0308", "error", "same", func(w *Worker) (string, bool) { return w.SameEvents, w.SameEvents != "" },
		"the same events as another worker", FixShared, 0),
	newSign("SL0101", "warning", "size", func(w *Worker) (string, bool) { return fmt.Sprint(w.OtherSize, " tokens"), w.OtherSize > 0 },
		"blocks of another size than block_size", "block_size: its own, of its model or of a class for it; or leave it out", 0),
}

// What to do, where the doctor finds the same by itself.
const (
	FixNATS     = "start it with JetStream, correct nats.url, and give Sightline the permissions of \"sightline credentials\""
	FixNoEvents = `--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", ` +
		`"replay_endpoint": "tcp://*:5657"}'`
	FixCaching = "start it with --enable-prefix-caching (vLLM; hybrid models have it off), without --disable-radix-cache " +
		"(SGLang), with enable_block_reuse (TensorRT-LLM)"
	FixUnreadable = "start the engine in a release that docs/engines.md lists, without a proxy or a publisher of another form before its " +
		"socket"
	FixShared    = "events: {zmq: …} of each worker's own socket"
	FixMisplaced = "exchange events.zmq and events.replay of these workers (with agents: --worker, or --zmq and --replay): each the address " +
		"and port of its own worker's --kv-events-config"
	FixAccessLog    = "the access loggers that \"sightline envoy\" prints, to all Sightlines"
	FixCertificates = "renew the file; the next connection uses it"
	FixNotReady     = "see what it waits for: an event stream, or worker discovery"
)

// ofWorkers adds what the workers' rows show.
func (f *Facts) ofWorkers(l *problemList) {
	well, served, unasked := map[string]int{}, map[string]int{}, map[string]*probe.Finding{}
	for i := range f.Probes {
		unasked[f.Probes[i].Worker] = f.Probes[i].NotAsked()
	}
	for _, worker := range slices.Sorted(maps.Keys(f.Unresolved)) {
		l.add(Problem{Code: "SL0109", Severity: "warning", kind: "unresolved", From: "workers", What: rules.Unresolved.Error(),
			Fix: rules.Unresolved.Fix()}, worker, f.Unresolved[worker])
	}
	for i := range f.Workers {
		w := &f.Workers[i]
		served[w.Model]++
		if w.Health == nil && w.Events != "not ready" {
			well[w.Model]++
		}
		if w.Health != nil {
			p := Problem{Code: "SL0109", Severity: "warning", kind: "out", From: "workers", What: "no requests are sent there",
				Fix: "see its log; it gets requests again once it answers"}
			if fix := w.Health.Fault.Fix(); fix != "" {
				p.kind, p.Fix = "out "+string(w.Health.Fault), fix
			}
			l.add(p, w.Name, w.Health.Why)
			continue // its events fail for the same reason
		}
		found := unasked[w.Name]
		if found != nil {
			l.add(Problem{Code: "SL0109", Severity: "warning", kind: "not asked " + string(found.Fault), From: "probe",
				What: "it cannot be asked what it serves", Fix: cmp.Or(found.Fault.Fix(), "see its log, and the network to its addr"),
				after: 2 * time.Second}, w.Name, found.Detail)
		}
		for k := range signs {
			sign := &signs[k]
			sameReason := sign.kind == "waiting" && found != nil && errors.Is(w.EventsError.Cause, rules.ErrNotAsked)
			if detail, shows := sign.shows(w); shows && !sameReason {
				l.add(sign.Problem, w.Name, detail)
			}
		}
		if slow := &w.Slow; slow.Times > 0 {
			l.add(Problem{Code: "SL0110", Severity: "warning", kind: "pace", From: "events", Since: slow.Since,
				What: "computes prompts much slower than others of its class, and gets fewer", Fix: "see its GPU (clocks, temperature), and what " +
					"else runs there; if its hardware is another one on purpose: a class of its own"}, w.Name,
				fmt.Sprintf("%.1f times as long", slow.Times))
		}
		for k := range w.RulesAside {
			aside := &w.RulesAside[k]
			l.add(Problem{Code: "SL0206", Severity: "warning", From: "audit", Since: aside.Since,
				kind: "rule " + strings.Join([]string{aside.Model, aside.Class, aside.Rule}, "\x00"),
				What: "the rule for " + aside.Rule + " has stepped aside, and such prompts are learned", Fix: ruleFix(aside.Rule)}, w.Name,
				aside.First.Worker+" contradicts it: "+aside.First.Says)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(served)) {
		if well[model] == 0 {
			l.add(Problem{Code: "SL0105", Severity: "error", kind: "nobody " + model, From: "workers",
				What: fmt.Sprintf("%s: no worker gets requests, of %d", model, served[model]), Fix: "see why they are out: SL0109"}, "", "")
		}
	}
}

// failingHost is how many downloads from a host fail in a row before it is a problem.
const failingHost = 3

// ofHosts adds image hosts whose downloads fail. Any client can name such a host, so this is a note.
func (f *Facts) ofHosts(l *problemList) {
	var list []string
	for _, h := range f.Hosts {
		if h.InARow >= failingHost && f.Now.Sub(h.At) <= 2*recentAge {
			list = append(list, fmt.Sprintf("%q: %s, %d times in a row", h.Host, h.Last, h.InARow))
		}
	}
	if len(list) == 0 {
		return
	}
	text := strings.Join(list[:min(len(list), named)], "; ")
	if more := len(list) - named; more > 0 {
		text += fmt.Sprintf("; and %d more (/hosts)", more)
	}
	l.add(Problem{Code: "SL0509", Severity: "note", kind: "hosts", From: "requests",
		What: "images cannot be downloaded, and are known by their URLs alone: " + text,
		Fix:  "see whether Sightline reaches the host: its name, a network policy, HTTPS_PROXY"}, "", "")
}

// ruleFix says what to do about a rule that has stepped aside.
func ruleFix(rule string) string {
	settings := "what SL0204 names"
	switch rule {
	case audit.RuleText.String(), audit.RuleParameters.String():
		settings = "what SL0201 and SL0202 name"
	case audit.RuleKeys.String():
		settings = "adapters and cache_salt"
	}
	return settings + ": as the worker has it, then reload. If it is so already, the rule is wrong for this model or release: " +
		"report the first difference"
}

// recentAge is how long a request counts.
const recentAge = time.Minute

// ofRequests adds what the last requests show: refusals for lack of room, and workers whose clients leave without an answer.
func (f *Facts) ofRequests(l *problemList) {
	refused, left, answered := 0, map[string]int{}, map[string]bool{}
	longest := map[string]time.Duration{}
	var ends []router.Recent
	for i := range f.Recent {
		switch r := &f.Recent[i]; {
		case r.Code == http.StatusTooManyRequests && r.Used == "":
			refused++
		case r.LeftAfter >= longWait && !answered[r.Used]:
			left[r.Used]++
			longest[r.Used] = max(longest[r.Used], r.LeftAfter)
		case r.Code != 0:
			answered[r.Used] = true
			if r.FirstByte > 0 && r.Used != "" {
				ends = append(ends, *r)
			}
		}
	}
	if refused > 0 {
		l.add(Problem{Code: "SL0110", Severity: "warning", kind: "full", From: "requests",
			What: fmt.Sprintf("%d of the last requests got 429: all workers had reached max_in_flight", refused),
			Fix:  "more workers, or a larger max_in_flight"}, "", "")
	}
	for i := range f.Workers {
		if n := left[f.Workers[i].Addr]; n >= fewLeft {
			l.add(Problem{Code: "SL0110", Severity: "warning", kind: "no answers", From: "requests", What: "clients leave without an answer",
				Fix: "see its log: it may hang; requests go on to it as long as it answers health checks"}, f.Workers[i].Name,
				fmt.Sprintf("the last %d, after up to %v", n, longest[f.Workers[i].Addr].Round(time.Second)))
		}
		if times, first := slower(ends, &f.Workers[i]); times > 0 {
			l.add(Problem{Code: "SL0110", Severity: "warning", kind: "slow", From: "requests", What: "answers begin late there",
				Fix: "see its GPU, and what else runs beside it"}, f.Workers[i].Name,
				fmt.Sprintf("%.0f times later than elsewhere, after %v", times, first.Round(100*time.Millisecond)))
		}
	}
}

// slower returns by how much later a worker's answers begin than those of other workers of its model, for each token to compute; 0: not
// much, or they are too few to tell.
func slower(ends []router.Recent, w *Worker) (times float64, first time.Duration) {
	var mine, others []float64
	var waits []time.Duration
	for i := range ends {
		r := &ends[i]
		each := r.FirstByte.Seconds() / float64(max(r.PromptTokens-r.CachedTokens, usualTokens))
		switch {
		case r.Used == w.Addr:
			mine, waits = append(mine, each), append(waits, r.FirstByte)
		case r.Model == w.Model:
			others = append(others, each)
		}
	}
	if len(mine) < fewAnswers || len(others) < fewAnswers {
		return 0, 0
	}
	slices.Sort(mine)
	slices.Sort(others)
	slices.Sort(waits)
	times, first = mine[len(mine)/2]/others[len(others)/2], waits[len(waits)/2]
	if times < muchSlower || first < longFirst {
		return 0, 0
	}
	return times, first
}

// What makes a worker slow, or suspected of hanging.
const (
	fewAnswers  = 8           // answers of it, and of others, that are enough for a median
	muchSlower  = 5           // times as long as the others' median, for each token to compute
	longFirst   = time.Second // to the first byte, at least
	usualTokens = 512         // that a request with fewer tokens to compute counts as

	fewLeft  = 3               // requests, one after another, whose clients left without an answer
	longWait = 2 * time.Second // of these clients
)

const ownFiles = "the worker's own model files, chat_template, its content format and arguments; see SL0202 and " +
	"\"sightline explain --against\""

// auditCauses are where a verdict of the audit leads.
var auditCauses = map[audit.Verdict]struct{ code, severity, fix string }{
	audit.Nothing: {"SL0301", "warning", "see SL0303, SL0309 and the worker's event flags"},
	audit.Token:   {"SL0201", "error", ownFiles},
	audit.Block:   {"SL0201", "error", ownFiles},
	audit.Keys:    {"SL0201", "error", "adapters, cache_salt and media_names: as the worker reads them"},
	audit.Span:    {"SL0204", "error", "mm_processor_kwargs, media_io_kwargs and engine_version: as the worker was started"},
	audit.MediaName: {"SL0204", "error", "mm_hasher_algorithm, engine_model, media_io_kwargs and engine_version: as the worker was " +
		"started"},
	audit.BlockSize: {"SL0101", "error", "start the worker with one block size; other blocks are not kept"},
}

// ofStreams adds workers whose events come late, or over another worker's socket.
func (f *Facts) ofStreams(l *problemList) {
	for i := range f.Late {
		late := &f.Late[i]
		l.add(Problem{Code: "SL0303", Severity: "warning", kind: "behind", From: "audit", Since: late.Since,
			What: "KV events come late, so what its cache holds is known late", Fix: "see the network to its event socket, how busy its " +
				"publisher and agent are; until then index.predicted_ttl: longer than that"}, late.Worker,
			fmt.Sprintf("%v after the requests' ends", late.By))
	}
	for i := range f.Misplaced {
		m := &f.Misplaced[i]
		l.add(Problem{Code: "SL0308", Severity: "error", kind: "misplaced", From: "audit", Since: m.Since, Fix: FixMisplaced,
			What: "its requests are reported by another worker's event socket, so hits are predicted at the wrong worker"}, m.Worker,
			fmt.Sprintf("%d of its last requests came over the socket of %s", m.Requests, m.Over))
	}
}

// streamTold reports whether a worker's stream is a problem of its own, so that what is compared there says nothing else.
func (f *Facts) streamTold(worker string, v audit.Verdict) bool {
	return slices.ContainsFunc(f.Misplaced, func(m audit.Misplaced) bool { return m.Worker == worker || m.Over == worker }) ||
		v == audit.Nothing && slices.ContainsFunc(f.Late, func(l audit.Late) bool { return l.Worker == worker })
}

// ofAudit adds the requests that were stored otherwise than predicted, by verdict.
func (f *Facts) ofAudit(l *problemList) {
	for _, c := range Causes(f.Findings, f.Now.Add(-auditAge)) {
		verdict := c.Verdict
		if verdict == audit.Block && c.InMedium {
			verdict = audit.MediaName
		}
		cause, ok := auditCauses[verdict]
		if !ok || f.streamTold(c.Worker, c.Verdict) {
			continue
		}
		after := time.Duration(0)
		if c.Verdict == audit.Nothing {
			after = 8 * time.Second // until it shows whether they only come late
		}
		l.add(Problem{Code: cause.code, Severity: cause.severity, kind: "audit " + string(c.Verdict), From: "audit", Fix: cause.fix,
			Since: c.First, after: after, What: fmt.Sprintf("requests are stored otherwise than predicted (%s)", c.Verdict)}, c.Worker, c.text())
	}
}

// Cause is what several findings of the audit have in common: the worker and the verdict.
type Cause struct {
	audit.Finding           // the newest
	Count         int       `json:"count"`
	First         time.Time `json:"first"`
}

func (c *Cause) text() string {
	if c.Count > 1 {
		return fmt.Sprintf("%s (%d requests)", c.Says, c.Count)
	}
	return c.Says
}

// Causes returns the causes of findings since a time, those of the newest findings first.
func Causes(findings []audit.Finding, since time.Time) (list []Cause) {
	for _, f := range findings {
		if !f.At.IsZero() && f.At.Before(since) {
			continue
		}
		at := slices.IndexFunc(list, func(c Cause) bool { return c.Worker == f.Worker && c.Model == f.Model && c.Verdict == f.Verdict })
		if at < 0 {
			list = append(list, Cause{Finding: f})
			at = len(list) - 1
		}
		list[at].Count++
		list[at].First = f.At
	}
	return list
}

// ofProbes adds what a worker says of itself and that is not as configured.
func (f *Facts) ofProbes(l *problemList) {
	for _, r := range f.Probes {
		texts := slices.ContainsFunc(r.Findings, func(f probe.Finding) bool { return f.What == "one turn" && f.Verdict == probe.Differs })
		for _, found := range r.Findings {
			if found.Verdict != probe.Differs && found.Verdict != probe.Configuration {
				continue
			}
			if texts && (found.What == probe.Image || found.What == probe.LargeImage) {
				continue // for the same reason
			}
			asked := func(p *Problem) bool { return p.kind == "no events" && slices.Contains(p.Workers, r.Worker) }
			if found.What == probe.Events && slices.ContainsFunc(*l, asked) {
				continue // its events' finder says so already
			}
			code, severity, fix := OfProbe(found.What)
			detail := found.Detail
			if d := found.Difference; d != nil {
				detail = "first difference " + d.String()
			}
			l.add(Problem{Code: code, Severity: severity, kind: "probe " + found.What, From: "probe", Since: r.At, Fix: fix,
				What: fmt.Sprintf("not as configured (%s)", found.What)}, r.Worker, detail)
		}
	}
}

// OfProbe returns where a subject of the probe leads if a worker differs in it.
func OfProbe(what string) (code, severity, fix string) {
	switch what {
	case "name", "engine_model":
		return "SL0103", "error", "--served-model-name of the worker, or name and engine_model of its model"
	case "engine":
		return "SL0107", "error", "engine: the worker's, of its model or of a class for it"
	case probe.Events:
		return "SL0301", "error", FixNoEvents
	case probe.PrefixCaching:
		return "SL0102", "error", FixCaching
	case "ranks":
		return "SL0303", "error", "ranks: as many as the worker has"
	case "engine_version":
		return "SL0107", "warning", "engine_version: the worker's, of its model or of a class for it"
	case "adapters":
		return "SL0108", "warning", "adapters: as every worker of the model lists them; load the same ones on all"
	case "max_model_len":
		return "SL0502", "warning", "max_model_len: the worker's, or leave it out: only the beginning of longer prompts is known"
	case "text":
		return "SL0202", "error", "dir: the very files that the worker loaded, of the same commit (pin revision on both sides)"
	case probe.Image, probe.LargeImage:
		return "SL0204", "error", "mm_processor_kwargs, media_io_kwargs, mm_hasher_algorithm, engine_model and engine_version: as the " +
			"worker was started"
	}
	return "SL0201", "error", "chat_template, chat_template_content_format and default_chat_template_kwargs: as the worker was started"
}

// sinceWhen keeps since when problems are there, from one look to the next.
type sinceWhen map[string]time.Time

// take returns the problems that have been there for long enough, with the time when each was first seen.
func (s sinceWhen) take(now time.Time, list []Problem) []Problem {
	there := make(map[string]bool, len(list))
	out := list[:0]
	for _, p := range list {
		key := p.Code + " " + p.kind
		there[key] = true
		if first, ok := s[key]; !ok {
			s[key] = p.Since
		} else if first.Before(p.Since) {
			p.Since = first
		}
		if now.Sub(p.Since) >= p.after {
			out = append(out, p)
		}
	}
	for key := range s {
		if !there[key] {
			delete(s, key)
		}
	}
	return out
}

// problems returns what is wrong now.
func (c *livePage) problems(now time.Time, workers []Worker) []Problem {
	s := &c.state
	f := Facts{Now: now, Workers: workers, Unserved: s.Router.Unserved(), Findings: s.Audit.Findings(),
		Misplaced: s.Audit.Misplaced(), Late: s.Audit.Late()}
	f.Configuration, f.Restart = s.Configuration()
	if s.Probe != nil {
		f.Probes = s.Probe.Results()
	}
	if _, err := s.Ready(); err != nil {
		f.NotReady = err.Error()
	}
	f.Silent, f.SilentSince = s.Router.Silent()
	if s.Report != nil {
		f.Mode = s.Report(report.Range{}).Mode
	}
	if s.LostReplicas != nil {
		f.LostReplicas = s.LostReplicas()
	}
	if s.Unresolved != nil {
		f.Unresolved = s.Unresolved()
	}
	if s.NATS != nil {
		f.NATS = s.NATS()
	}
	if s.Faults != nil {
		f.Faults = s.Faults()
	}
	f.Recent = s.Router.RecentSince(now.Add(-recentAge), 256)
	f.TakesOne = s.TakesOne != nil && s.TakesOne()
	if s.DecisionLog != nil {
		f.DecisionLog = s.DecisionLog()
	}
	if s.Hosts != nil {
		f.Hosts = s.Hosts()
	}
	if s.Certificates != nil {
		f.Certificates = s.Certificates(now)
	}
	return c.since.take(now, f.Problems())
}

func (c *livePage) showProblems(w http.ResponseWriter, _ *http.Request) {
	workers := c.state.Workers()
	c.mu.Lock()
	list := c.problems(time.Now(), workers)
	c.mu.Unlock()
	answer(w, append([]Problem{}, list...))
}
