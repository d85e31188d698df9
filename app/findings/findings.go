package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/probe"
)

// Finding is something that keeps requests from answers or from cache hits right now.
type Finding struct {
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
	Common  string   `json:"-"` // What without its workers and Details; "": it has none

	kind    string        // what it is about, whoever has it
	after   time.Duration // it is a problem only after so long
	details []string      // one for each worker
	told    bool          // by a running Sightline, to the doctor
}

// Lines are what it says: one line if all its workers show the same, else one for each worker.
func (p *Finding) Lines() (lines []string) {
	if len(p.Details) != len(p.Workers) || len(p.Details) == 0 {
		return []string{p.What}
	}
	for i, worker := range p.Workers {
		lines = append(lines, worker+": "+p.Details[i])
	}
	return lines
}

// Told reports whether a running Sightline has told it to the doctor.
func (p *Finding) Told() bool { return p.told }

// Clock is when it began, as the page shows it.
func (p Finding) Clock() string { return p.Since.Local().Format("15:04:05") }

// The severities, worst first.
var severities = []string{"error", "warning", "note"}

const (
	docs = "https://github.com/sightline-router/sightline/blob/main/docs/doctor.md#"
	// auditAge is how long a finding of the audit counts: what it was about may have been mended since.
	auditAge = 15 * time.Minute
	// LateEvents is from when on late events take from the choice what they would show.
	LateEvents = 10 * time.Second
	starting   = 30 * time.Second // a start may take so long until every event stream has caught up
	named      = 3                // workers that a sentence names
)

// Facts is what is known. A fact that is missing is zero; Seen says why.
type Facts struct {
	Now           time.Time
	NotReady      string   // "": it is ready
	Configuration string   // "": it is as the file says
	Restart       []string // or but for these keys
	Workers       []Worker
	Silent        string // what Envoy's access log lacks; "": nothing
	SilentSince   time.Time
	Unserved      []string
	Audited       []audit.Finding // requests that were not stored as predicted, newest first
	Misplaced     []audit.Misplaced
	Late          []audit.Late
	SomeLate      []string // workers of whose last requests some came late
	Probes        []probe.Result
	Mode          string // as in /report: 0%, 10%, 100%
	TakesOne      bool   // a gateway has refused a list of addresses
	DecisionLog   string // why it is not written; "": it is, or there is none
	Hosts         []fetch.HostState
	Certificates  []secure.Expiry
	LostReplicas  []string
	Unresolved    map[string]string // why, by worker
	NATS          string            // why there is no connection to it
	Costs         string            // why pods' deletion costs are not written; "": they are, or need not be
	Faults        error             // what of the models' files does not load
	Recent        []router.Recent   // decisions of the last recentAge, by Router.RecentSince
	Last          []router.Recent   // the last decisions, however old
	BlockSizes    map[string]int    // of workers that are not in Workers
	Strays        []extproc.Stray   // requests that were not decided
	TooLate       int               // the part of them of the last minutes for which Envoy did not wait long enough
	Refused       []extproc.RefusedCall
	Began         time.Time // when this Sightline started
	Models        []string  // that are configured
	Lost          uint64    // blocks that the index had no room for
	NATSRefused   uint64    // times that NATS denied access
	Garbled       uint64    // messages of Dynamo's event plane that cannot be read
	Seen          *Seen     // what the doctor finds out by itself; nil: a running Sightline judges
}

// GrowthAge is how long a counter counts after it has grown: of Lost, NATSRefused, Garbled and those of Workers, Facts have the growth.
const GrowthAge = 5 * time.Minute

// All returns what is wrong, worst first. Since is that of the fact if it tells it, else now.
func (f *Facts) All() []Finding { return f.evaluate(new(list)) }

func (f *Facts) evaluate(l *list) []Finding {
	nameOf := make(map[string]string, len(f.Workers))
	for i := range f.Workers {
		nameOf[f.Workers[i].Addr] = f.Workers[i].Name
	}
	f.ofFailures(l, nameOf)
	f.ofUndecided(l, nameOf)
	f.ofSlowTokens(l)
	f.ofSightline(l)
	f.ofWorkers(l)
	f.ofProbes(l)
	f.ofRequests(l)
	f.ofDepartures(l)
	f.ofStreams(l)
	f.ofAudit(l)
	f.ofHosts(l)
	f.ofCaches(l)
	if f.Seen != nil {
		f.Seen.judge(l)
	}
	f.ofChoices(l)
	out := make([]Finding, len(l.found))
	for i, p := range l.found {
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
		p.Link = Link(p.Code)
		out[i] = *p
	}
	slices.SortStableFunc(out, Worse)
	return out
}

// Worse orders findings, the worst first.
func Worse(a, b Finding) int {
	return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
}

// ofSightline adds what is wrong with Sightline itself, its configuration and what it is connected to.
func (f *Facts) ofSightline(l *list) {
	one := func(wrong bool, p Finding, format string, args ...any) {
		if wrong {
			p.What = fmt.Sprintf(format, args...)
			p.kind = cmp.Or(p.kind, format)
			l.add(p, "", "")
		}
	}
	one(f.NATS != "", Finding{Code: "SL0601", Severity: "error", From: "events", after: 2 * time.Second,
		Fix: "start nats-server 2.10 or newer with JetStream, correct the key that is named or nats.url, and give Sightline the " +
			"permissions of \"sightline credentials\"; it makes the streams when it starts"},
		"no events come over NATS: %s", f.NATS)
	one(f.NATSRefused > 0 && f.NATS == "", Finding{Code: "SL0601", Severity: "warning", From: "events",
		Fix: "use the credentials that \"sightline credentials\" makes, on both sides; the log has its messages"},
		"NATS denied Sightline or an agent access %d times", f.NATSRefused)
	one(f.Configuration != "", Finding{Code: "SL0501", Severity: "error", From: "configuration",
		Fix: "correct the keys that are named (docs/configuration.md lists all), or the path of what is not there; the file is read again " +
			"as soon as it changes"}, "%s", f.Configuration)
	one(len(f.Restart) > 0, Finding{Code: "SL0501", Severity: "warning", From: "configuration",
		Fix: "restart it when it suits; until then it works with the old values of these keys"},
		"the configuration needs a restart: %s", strings.Join(f.Restart, ", "))
	one(f.Faults != nil, Finding{Code: "SL0501", Severity: "error", From: "configuration",
		Fix: "copy those files again from where the workers have them (sightline init --files-only fetches them; git lfs pull, if one is a " +
			"pointer), or give no dir"}, "requests are learned: %v", f.Faults)
	one(f.DecisionLog != "", Finding{Code: "SL0501", Severity: "error", From: "decision log",
		Fix: "room on its disk, or decision_log: {file: …} where there is some"},
		"the decision log cannot be written, its lines are dropped: %s", f.DecisionLog)
	one(f.Costs != "", Finding{Code: "SL0501", Severity: "warning", From: "configuration",
		Fix: "its Role needs the verb patch on pods (examples/kubernetes/inference-pool/rbac.yaml); or leave kubernetes.deletion_cost out"},
		"pods cannot be told what their removal costs: %s", f.Costs)
	for _, e := range f.Certificates {
		one(true, Finding{Code: "SL0501", Severity: map[bool]string{true: "error", false: "warning"}[e.Ended], kind: "certificate " + e.Text,
			From: "configuration", Fix: "renew the file, or put certificate and key there that belong together; the next connection uses it"},
			"%s", e.Text)
	}
	one(f.Silent != "" && f.TooLate == 0, Finding{Code: "SL0409", Severity: "error", From: "access log", Since: f.SilentSince,
		Fix: "the access loggers that \"sightline envoy\" prints, to all Sightlines: upstream_log where requests go, the connection " +
			"manager's for their ends"}, "%s", f.Silent)
	if n := len(f.Unserved); n > 0 {
		names := fmt.Sprintf("%q", f.Unserved[:min(n, 8)])
		if n > 8 {
			names += fmt.Sprintf(" and %d more", n-8)
		}
		one(true, Finding{Code: "SL0103", Severity: "warning", From: "requests",
			Fix: fmt.Sprintf("aliases: [%q] of the intended model, or adapters", f.Unserved[0])},
			"requests of the last hour name models that no worker serves: %s", names)
	}
	one(len(f.LostReplicas) > 0, Finding{Code: "SL0504", Severity: "warning", From: "replicas", after: 3 * time.Second,
		Fix: "replicas.addresses and ca, and the first token of listen_token_file: as listen of the other wants them; the same release"},
		"another replica hears nothing of this one: %s", strings.Join(f.LostReplicas[:min(len(f.LostReplicas), named)], "; "))
	one(f.Lost > 0, Finding{Code: "SL0503", Severity: "warning", From: "events", Fix: "index: {max_bytes: …}, larger"},
		"%d blocks had no room in the index", f.Lost)
	one(f.Garbled > 0, Finding{Code: "SL0309", Severity: "error", From: "events", Fix: fixUnreadable},
		"%d of Dynamo's event messages cannot be read; the log names where the first came from", f.Garbled)
	one(f.TakesOne, Finding{Code: "SL0408", Severity: "warning", From: "requests",
		Fix: "route: {one_address: true}, or serve --pool --one-address, so that no request fails after the next start"},
		"the gateway took no list of workers and failed the first request: since then one address is named")
	one(f.Mode == "0%", Finding{Code: "SL0408", Severity: "note", From: "configuration",
		Fix: "once /report shows a gain: enforce: 10%, then 100%, instead of 0%"},
		"enforce is 0%%: Sightline decides, and Envoy's own balancing sends requests elsewhere")
	if f.NotReady != "" {
		one(true, Finding{Code: "SL0505", Severity: map[bool]string{true: "note", false: "error"}[f.Now.Sub(f.Began) <= starting],
			From: "workers", Fix: fixNotReady}, "Sightline is not ready: %s", f.NotReady)
	}
}

// sentence says what its workers have in common, and what they show, each with those that show it; whole reports whether they all
// show the same.
func (p *Finding) sentence(all []Worker) (text string, whole bool) {
	p.Common = p.What
	text = listed(p.Workers)
	if len(p.Workers) > named {
		known := map[string]bool{}
		for i := range all {
			known[all[i].Name] = true
		}
		text = fmt.Sprintf("%d of %d workers (%s)", len(p.Workers), max(len(known), len(p.Workers)), text)
	}
	text += ": " + p.What
	var says []string
	of := map[string][]string{}
	for i, d := range p.details {
		if of[d] == nil && d != "" {
			says = append(says, d)
		}
		of[d] = append(of[d], p.Workers[i])
	}
	whole = len(of) <= 1
	if whole && len(says) == 1 {
		p.Common += ": " + says[0]
		return text + ": " + says[0], true
	}
	for i, d := range says[:min(len(says), named)] {
		text += map[bool]string{true: ": ", false: "; "}[i == 0] + d + " (" + listed(of[d]) + ")"
	}
	return text, whole
}

// listed names a few workers, and says how many more there are.
func listed(workers []string) string {
	text := strings.Join(workers[:min(len(workers), named)], ", ")
	if more := len(workers) - named; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
