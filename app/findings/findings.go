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

	kind    string        // what it is about, whoever has it
	after   time.Duration // it is a problem only after so long
	details []string      // one for each worker
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
	Audited       []audit.Finding // requests that were not stored as predicted, newest first
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
	Strays        []extproc.Stray   // requests that were not decided
	Refused       []extproc.RefusedCall
	Began         time.Time // when this Sightline started
}

// table collects findings; those of several workers become one.
type table []*Finding

// add adds a problem, or a worker to it. what follows the workers' names, if worker is not "".
func (l *table) add(p Finding, worker, detail string) {
	at := slices.IndexFunc(*l, func(o *Finding) bool { return o.kind == p.kind && o.Code == p.Code && worker != "" })
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
func (f *Facts) All() []Finding {
	var l table
	nameOf := make(map[string]string, len(f.Workers))
	for i := range f.Workers {
		nameOf[f.Workers[i].Addr] = f.Workers[i].Name
	}
	f.ofFailures(&l, nameOf)
	f.ofUndecided(&l, nameOf)
	f.ofSlowTokens(&l)
	if f.NATS != "" {
		l.add(Finding{Code: "SL0601", Severity: "error", kind: "nats", From: "events", Fix: FixNATS,
			What: "no agent's events come over NATS: " + f.NATS, after: 2 * time.Second}, "", "")
	}
	if len(f.Restart) > 0 {
		l.add(Finding{Code: "SL0501", Severity: "warning", kind: "restart", From: "configuration",
			What: "the configuration needs a restart: " + strings.Join(f.Restart, ", "),
			Fix:  "restart it when it suits; until then it works with the old values of these keys"}, "", "")
	}
	if f.Configuration != "" {
		l.add(Finding{Code: "SL0501", Severity: "error", kind: "configuration", From: "configuration", What: f.Configuration,
			Fix: "correct the keys that are named; the file is read again as soon as it changes"}, "", "")
	}
	if f.Silent != "" {
		l.add(Finding{Code: "SL0409", Severity: "error", kind: "silent", From: "access log", What: f.Silent, Since: f.SilentSince,
			Fix: FixAccessLog}, "", "")
	}
	if len(f.Unserved) > 0 {
		names := fmt.Sprintf("%q", f.Unserved[:min(len(f.Unserved), 8)])
		if more := len(f.Unserved) - 8; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		l.add(Finding{Code: "SL0103", Severity: "warning", kind: "unserved", From: "requests",
			What: "requests of the last hour name models that no worker serves: " + names,
			Fix:  fmt.Sprintf("aliases: [%q] of the intended model, or adapters", f.Unserved[0])}, "", "")
	}
	if f.Faults != nil {
		l.add(Finding{Code: "SL0501", Severity: "warning", kind: "files", From: "configuration",
			What: "requests are learned: " + f.Faults.Error(),
			Fix:  "the worker's own files at dir (sightline init --files-only fetches them), or no dir"}, "", "")
	}
	if len(f.LostReplicas) > 0 {
		l.add(Finding{Code: "SL0508", Severity: "warning", kind: "replicas", From: "replicas",
			What: "another replica hears nothing of this one: " + strings.Join(f.LostReplicas[:min(len(f.LostReplicas), named)], "; "),
			Fix:  "replicas.addresses, ca and api_key_file: as listen of the other wants them; the same release", after: 3 * time.Second}, "", "")
	}
	f.ofWorkers(&l)
	f.ofProbes(&l)
	f.ofRequests(&l)
	f.ofStreams(&l)
	f.ofAudit(&l)
	if f.DecisionLog != "" {
		l.add(Finding{Code: "SL0507", Severity: "error", kind: "decision log", From: "decision log",
			What: "the decision log cannot be written, its lines are dropped: " + f.DecisionLog,
			Fix:  "room on its disk, or decision_log: {file: …} where there is some"}, "", "")
	}
	f.ofHosts(&l)
	for _, e := range f.Certificates {
		l.add(Finding{Code: "SL0510", Severity: map[bool]string{true: "error", false: "warning"}[e.Ended], kind: "certificate " + e.Text,
			From: "configuration", What: e.Text, Fix: FixCertificates}, "", "")
	}
	if f.TakesOne {
		l.add(Finding{Code: "SL0408", Severity: "warning", kind: "one address", From: "requests",
			What: "the gateway took no list of workers and failed the first request: since then one address is named",
			Fix:  "route: {one_address: true}, or serve --pool --one-address, so that no request fails after the next start"}, "", "")
	}
	if f.NotReady != "" {
		l.add(Finding{Code: "SL0505", Severity: map[bool]string{true: "note", false: "error"}[f.Now.Sub(f.Began) <= starting],
			kind: "readiness", From: "workers", What: "Sightline is not ready: " + f.NotReady,
			Fix: FixNotReady}, "", "")
	}
	if f.Mode == "observe" {
		l.add(Finding{Code: "SL0506", Severity: "note", kind: "mode", From: "configuration",
			What: "mode is observe: Sightline decides, and Envoy's own balancing sends requests elsewhere",
			Fix:  "once /report shows a gain: enforce: 10%, then 100%, instead of mode: observe"}, "", "")
	}
	out := make([]Finding, len(l))
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
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
	return out
}

// sentence says what its workers have in common, and what a few of them show; whole reports whether that is all that they show.
func (p *Finding) sentence(all []Worker) (text string, whole bool) {
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
