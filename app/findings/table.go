package findings

import (
	"fmt"
	"slices"
	"strings"
)

// Source is where facts come from.
type Source int

// The sources. A running Sightline has the first two; the doctor asks for the others.
const (
	FromRunning  Source = iota // what a running Sightline tells of itself
	FromTraffic                // the requests that it has decided
	FromWorkers                // workers' answers about themselves
	FromCanary                 // small prompts that workers compute
	FromEnvoy                  // Envoy's configuration
	FromRequests               // requests through Envoy
	sources
)

// NoTraffic is why FromTraffic says nothing shortly after a start.
const NoTraffic = "the running Sightline has decided nothing yet"

// codes are all codes, in their order, with what holds if there is no finding, and the sources that can tell.
var codes = []struct {
	code, title string
	from        []Source
}{
	{"SL0001", "requests are answered", []Source{FromTraffic}},
	{"SL0002", "answers begin soon", []Source{FromTraffic}},
	{"SL0003", "every request is decided before it reaches a worker", []Source{FromTraffic}},
	{"SL0004", "no caller is refused at listen", []Source{FromRunning}},
	{"SL0102", "prefix caching is on: the same prompt again is found cached", []Source{FromWorkers, FromCanary}},
	{"SL0103", "workers serve the configured names and adapters", []Source{FromWorkers, FromRunning}},
	{"SL0106", "workers report their load, and answers count cached tokens", []Source{FromWorkers, FromCanary}},
	{"SL0107", "workers are as configured: engine, release, sizes", []Source{FromWorkers}},
	{"SL0109", "every worker answers, and every model and role has one", []Source{FromWorkers, FromRunning}},
	{"SL0110", "workers keep up: they answer their clients, and have room", []Source{FromRunning}},
	{"SL0201", "texts have the same tokens in Sightline and at the worker", []Source{FromWorkers}},
	{"SL0204", "images have the same tokens and hashes in both", []Source{FromWorkers}},
	{"SL0205", "requests hit what was computed before", []Source{FromTraffic}},
	{"SL0206", "what workers store agrees with the rules by which prompts are read", []Source{FromRunning}},
	{"SL0301", "workers publish KV events, and Sightline reads them", []Source{FromWorkers, FromCanary}},
	{"SL0303", "event sockets are reached where they are configured, in time", []Source{FromWorkers, FromCanary, FromRunning}},
	{"SL0304", "missed events can be replayed", []Source{FromWorkers, FromCanary, FromRunning}},
	{"SL0305", "workers that share blocks can find them", []Source{FromRunning, FromCanary}},
	{"SL0308", "every worker has an event socket of its own", []Source{FromCanary, FromRunning}},
	{"SL0309", "events are read whole, and say all that a hit needs", []Source{FromRunning, FromCanary}},
	{"SL0401", "bodies of body_limit pass Envoy, read by one filter", []Source{FromEnvoy, FromRequests}},
	{"SL0404", "requests go on while Sightline is down or slow", []Source{FromEnvoy}},
	{"SL0407", "clients cannot choose a worker", []Source{FromEnvoy, FromRequests}},
	{"SL0408", "Envoy sends requests where Sightline chose", []Source{FromRequests, FromTraffic}},
	{"SL0409", "Envoy's access log tells Sightline how requests end", []Source{FromEnvoy, FromRunning}},
	{"SL0410", "nothing else in Envoy's configuration breaks Sightline", []Source{FromEnvoy}},
	{"SL0501", "the configuration is good, and so is what it names", nil},
	{"SL0503", "the index and the workers' caches have room", []Source{FromWorkers, FromRunning}},
	{"SL0504", "replicas compete for nothing and hear each other", nil},
	{"SL0505", "Sightline runs and is ready", []Source{FromRunning}},
	{"SL0509", "images of requests' URLs can be downloaded", []Source{FromRunning}},
	{"SL0601", "NATS is reachable, and agents publish over it", nil},
}

// Codes returns all codes, in their order.
func Codes() (list []string) {
	for i := range codes {
		list = append(list, codes[i].code)
	}
	return list
}

// Means returns what holds if a code has no finding; "": there is no such code.
func Means(code string) string {
	for i := range codes {
		if codes[i].code == code {
			return codes[i].title
		}
	}
	return ""
}

// Link returns the address of a code's section of docs/doctor.md.
func Link(code string) string { return docs + strings.ToLower(code) }

// list collects findings; those of several workers become one.
type list struct {
	found       []*Finding
	well, lacks map[string][]string // by code: what was checked and is well; what was not checked, and why
}

// add adds a finding, or a worker to it. What follows the workers' names, if worker is not "".
func (l *list) add(p Finding, worker, detail string) {
	at := slices.IndexFunc(l.found, func(o *Finding) bool { return o.kind == p.kind && o.Code == p.Code && worker != "" })
	if at < 0 {
		l.found = append(l.found, &p)
		at = len(l.found) - 1
	}
	one := l.found[at]
	if worker != "" && !slices.Contains(one.Workers, worker) {
		one.Workers, one.details = append(one.Workers, worker), append(one.details, detail)
	}
}

// has reports whether a worker has a finding.
func (l *list) has(code, kind, worker string) bool {
	return slices.ContainsFunc(l.found, func(p *Finding) bool {
		return p.Code == code && strings.HasPrefix(p.kind, kind) && slices.Contains(p.Workers, worker)
	})
}

func (l *list) ok(code, format string, args ...any) {
	if l.well == nil {
		l.well = map[string][]string{}
	}
	l.well[code] = append(l.well[code], fmt.Sprintf(format, args...))
}

func (l *list) unchecked(code, format string, args ...any) {
	if l.lacks == nil {
		l.lacks = map[string][]string{}
	}
	l.lacks[code] = append(l.lacks[code], fmt.Sprintf(format, args...))
}

// Check is what is known of one code.
type Check struct {
	Code, Title string
	Findings    []Finding // worst first
	Checked     bool      // whether something could tell; without Findings, all is well then
	Well        []string  // what is well
	Lacks       []string  // what was not checked, and why
}

// Checks evaluates the table on everything that the doctor knows: its own facts and what a running Sightline has told it. A finding of
// the same worker under the same code counts once, as the doctor sees it, unless requests showed it, of which the doctor knows nothing.
func (f *Facts) Checks(told []Finding) (out []Check) {
	var l list
	own := f.evaluate(&l)
	bad := f.Seen.ConfigErr != nil
	for _, c := range codes {
		one := Check{Code: c.code, Title: c.title, Well: l.well[c.code], Lacks: l.lacks[c.code]}
		of := func(p Finding) bool { return p.Code != c.code }
		one.Findings = slices.DeleteFunc(slices.Clone(own), of)
		for _, p := range told {
			if !of(p) && (p.From != "probe" || f.Seen.Missing[FromWorkers] != "") && (p.From == "requests" || p.without(one.Findings)) {
				p.told = true
				one.Findings = append(one.Findings, p)
			}
		}
		slices.SortStableFunc(one.Findings, Worse)
		if bad && c.code != "SL0501" {
			one.Lacks = []string{"the configuration is not good (SL0501)"}
			out = append(out, one)
			continue
		}
		all := len(one.Lacks) == 0
		one.Checked = len(one.Well) > 0 || len(c.from) == 0 && all
		for _, s := range c.from {
			if why := f.Seen.Missing[s]; why == "" {
				one.Checked = one.Checked || all
			} else if !slices.Contains(one.Lacks, why) {
				one.Lacks = append(one.Lacks, why)
			}
		}
		out = append(out, one)
	}
	return out
}

// without drops the workers that other findings are about; it reports whether any is left, or the finding is about none.
func (p *Finding) without(others []Finding) bool {
	if len(p.Workers) == 0 {
		return !slices.ContainsFunc(others, func(o Finding) bool { return o.What == p.What })
	}
	var workers, details []string
	for i, w := range p.Workers {
		if slices.ContainsFunc(others, func(o Finding) bool { return slices.Contains(o.Workers, w) }) {
			continue
		}
		workers = append(workers, w)
		if len(p.Details) == len(p.Workers) {
			details = append(details, p.Details[i])
		}
	}
	if len(workers) < len(p.Workers) {
		p.Workers, p.Details = workers, details
	}
	return len(workers) > 0
}
