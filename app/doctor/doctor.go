// Package doctor looks for what keeps requests from cache hits: in the files, at the workers, in Envoy and in the running
// Sightline.
//
//	look      the state, collected once: look.go (files, workers, Envoy, the admin page, NATS, agents), canary.go (requests
//	          of its own, and the events that they cause)
//	checks    the table below, each a function of that state: workers.go, tokens.go, events.go, outside.go (Envoy,
//	          Sightline, NATS, agents)
//	verdicts  print.go, as text and as JSON
//
// It changes nothing, except that the canary makes each worker compute a few tokens. A check that lacks its inputs says so and does
// not guess. Each code has a section in docs/doctor.md.
package doctor

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/internal/retry"
)

// Options are the flags of `sightline doctor`: what is looked at.
type Options struct {
	Config   string        `short:"c" required:"" help:"Sightline's configuration."`
	Envoy    string        `placeholder:"FILE|URL" help:"An envoy.yaml, a saved config dump, or an Envoy's admin page such as http://127.0.0.1:9901; default: that of envoy.admin, if it answers."`
	Cluster  []string      `placeholder:"NAME,…" help:"The workers' clusters in Envoy, if other clusters serve the same paths."`
	Admin    string        `placeholder:"URL" help:"A running Sightline's admin page; default: that of the configuration's admin, if it answers."`
	URL      string        `name:"url" placeholder:"URL" help:"Where clients reach Envoy; default: http:// at envoy.listen."`
	Host     string        `placeholder:"NAME" help:"The Host header and the certificate's name, if it is not that of --url."`
	Header   []string      `sep:"none" placeholder:"NAME: VALUE" help:"A header of requests through Envoy; not printed. Repeatable."`
	CA       string        `name:"ca" placeholder:"FILE" help:"PEM file of the authority of Envoy's certificate; default: the system's."`
	Agent    []string      `placeholder:"URL,…" help:"Agents' admin pages."`
	Pre      bool          `help:"Check only files, before anything runs."`
	Canary   bool          `negatable:"" default:"true" help:"Send each worker a small prompt twice; and Envoy, if it answers, another pair, forged headers and a body of body_limit."`
	Patience time.Duration `default:"3s" help:"How long to wait for an answer or an event."`
	Watch    time.Duration `placeholder:"EVERY" help:"Repeat at this interval until interrupted and print changes."`
	JSON     bool          `help:"Print one JSON object: status, and a list of code, category, title, verdict, evidence, fix, link."`

	Out   io.Writer `kong:"-"`
	Color bool      `kong:"-"`
}

// Verdict is the result of a check. The worst of the first three determines the exit status.
type Verdict string

// The verdicts. Unchecked means that an input of the check was missing; the evidence says which.
const (
	OK        Verdict = "ok"
	Warning   Verdict = "warning"
	Error     Verdict = "error"
	Unchecked Verdict = "not checked"
)

// Result is the result of one check.
type Result struct {
	Code     string   `json:"code"` // stable, such as SL0101
	Category string   `json:"category"`
	Title    string   `json:"title"`
	Verdict  Verdict  `json:"verdict"`
	Evidence []string `json:"evidence,omitempty"`
	Fix      string   `json:"fix,omitempty"`
	Note     string   `json:"note,omitempty"` // what is intended, and still good to know
	Link     string   `json:"link,omitempty"` // a section of docs/doctor.md, for a warning or an error
}

// categories maps the first two digits of a code to the category's name.
var categories = map[string]string{"00": "requests", "01": "workers", "02": "tokens", "03": "events", "04": "envoy", "05": "sightline",
	"06": "nats and agents"}

// checks are all checks, by category. A title states what holds if all is well.
var checks = []struct {
	code, title string
	look        func(*collected, *report)
}{
	{"SL0001", "requests are answered", asks},
	{"SL0002", "answers begin soon", asks},
	{"SL0003", "every request is decided before it reaches a worker", asks},
	{"SL0004", "no caller is refused at listen", asks},
	{"SL0501", "the configuration is good, its files are there", configuration},
	{"SL0109", "every worker answers", answers},
	{"SL0107", "every worker is the engine and release that is configured", engines},
	{"SL0103", "workers serve the model under its configured names", names},
	{"SL0108", "adapters are the same on all workers of a model", adapters},
	{"SL0101", "block sizes are those configured", blockSizes},
	{"SL0102", "prefix caching is on: the same prompt again is found cached", prefixCaching},
	{"SL0104", "answers count cached tokens", countsCached},
	{"SL0105", "every model and role has a worker that gets requests", roles},
	{"SL0106", "workers report their load", loads},
	{"SL0110", "workers keep up: they answer their clients, and have room", asks},
	{"SL0202", "plain text has the same tokens in Sightline and at the worker", tokenizers},
	{"SL0201", "conversations have the same tokens in Sightline and at the worker", templates},
	{"SL0204", "images have the same tokens and hashes in Sightline and at the worker", images},
	{"SL0206", "what workers store agrees with the rules by which prompts are read", readings},
	{"SL0203", "prompts are longer than a block", shortPrompts},
	{"SL0205", "requests hit what was computed before", hits},
	{"SL0301", "workers publish KV events", published},
	{"SL0303", "event sockets are reached where they are configured", sockets},
	{"SL0304", "missed events can be replayed", replays},
	{"SL0308", "every worker has an event socket of its own", oneSocketEach},
	{"SL0305", "events of offloaded blocks carry the blocks' tokens", offloaded},
	{"SL0306", "storage media of events are known", media},
	{"SL0309", "events are read whole: no unknown keys, nothing lost", eventStreams},
	{"SL0310", "events say all that a hit needs", bounds},
	{"SL0302", "workers give equal blocks the same hash", hashes},
	{"SL0307", "workers' clocks agree with ours", clocks},
	{"SL0401", "Envoy takes bodies as large as Sightline does", bodies},
	{"SL0402", "messages between Envoy and Sightline may be as large as bodies", ofEnvoy("SL0402")},
	{"SL0403", "Envoy waits for Sightline as long as configured", waits},
	{"SL0404", "requests go on while Sightline is down", ofEnvoy("SL0404")},
	{"SL0405", "bodies are read and streamed by one filter", ofEnvoy("SL0405")},
	{"SL0406", "circuit breakers leave room for a batch", ofEnvoy("SL0406")},
	{"SL0407", "clients cannot choose a worker", steered},
	{"SL0408", "Envoy sends requests where Sightline chose", obeyed},
	{"SL0409", "Envoy's access log tells Sightline how requests end", accessLog},
	{"SL0410", "nothing else in Envoy's configuration breaks Sightline", ofEnvoy("SL0410")},
	{"SL0502", "the index is fed by events and covers the length of prompts", feeds},
	{"SL0503", "the index has room for what the workers' caches hold", room},
	{"SL0504", "several Sightlines do not compete for what only one may use", replicas},
	{"SL0505", "the running Sightline is ready", ready},
	{"SL0506", "requests are sent where Sightline chooses", asks},
	{"SL0507", "the decision log is written", asks},
	{"SL0508", "the other replicas hear this one", asks},
	{"SL0509", "images of requests' URLs can be downloaded", asks},
	{"SL0510", "certificates are valid for another week", certificates},
	{"SL0601", "NATS is reachable and its streams exist", reachNATS},
	{"SL0602", "agents receive their engines' events and publish them", agents},
}

// report is a check's result under construction.
type report struct {
	Result
	bads int  // how many of Evidence are findings; they come first
	told bool // Fix is the running Sightline's
}

// bad records a finding and its fix. The fix of the worst finding is kept, and that finding is the first; the doctor's own comes before
// the running Sightline's, since it has asked the worker.
func (r *report) bad(v Verdict, fix, format string, args ...any) {
	at := r.bads
	if r.Verdict != Error && (v == Error || r.Verdict != Warning) || r.told && v == r.Verdict {
		r.Verdict, r.Fix, r.told = v, fix, false
		at = 0
	}
	r.Evidence = slices.Insert(r.Evidence, at, fmt.Sprintf(format, args...))
	r.bads++
}

// ofSightline records the problems of a code that the running Sightline tells of, except for those that the doctor has looked for
// itself a moment ago.
func (s *collected) ofSightline(r *report) {
	if s.running == nil {
		return
	}
	for _, p := range s.running.problems {
		if p.Code != r.Code || p.From == "probe" || p.Code == "SL0409" || p.Code == "SL0502" || p.Code == "SL0105" {
			continue
		}
		for _, what := range p.Lines() {
			says := fmt.Sprintf("%s, as the running Sightline sees it since %s", what, p.Since.Local().Format(time.DateTime))
			switch p.Severity {
			case "error":
				r.bad(Error, p.Fix, "%s", says)
			case "warning":
				r.bad(Warning, p.Fix, "%s", says)
			default:
				r.ok("%s", says)
				r.Note = says
			}
		}
	}
}

// counted makes equal lines one, with their number.
func counted(lines []string) (out []string) {
	count := map[string]int{}
	for _, line := range lines {
		count[line]++
		if count[line] == 1 {
			out = append(out, line)
		}
	}
	for i, line := range out {
		if count[line] > 1 {
			out[i] += fmt.Sprintf(" (%d times)", count[line])
		}
	}
	return out
}

// ok records something that was checked and is well.
func (r *report) ok(format string, args ...any) {
	if r.Verdict == "" || r.Verdict == Unchecked {
		r.Verdict = OK
	}
	r.Evidence = append(r.Evidence, fmt.Sprintf(format, args...))
}

// notChecked begins the evidence of what was not checked.
const notChecked = "not checked: "

// unchecked records something that was not checked, and why.
func (r *report) unchecked(format string, args ...any) {
	if r.Verdict == "" {
		r.Verdict = Unchecked
	}
	if why := notChecked + fmt.Sprintf(format, args...); !slices.Contains(r.Evidence, why) {
		r.Evidence = append(r.Evidence, why)
	}
}

// Examine runs all checks once.
func Examine(ctx context.Context, o Options) []Result {
	o.Canary = o.Canary && !o.Pre
	if o.Patience <= 0 {
		o.Patience = 3 * time.Second
	}
	s := collect(ctx, o)
	list := make([]Result, 0, len(checks))
	for _, c := range checks {
		r := report{Result: Result{Code: c.code, Category: categories[c.code[2:4]], Title: c.title}}
		if s.configErr != nil && c.code != "SL0501" {
			r.unchecked("the configuration is not good (SL0501)")
		} else {
			s.ofSightline(&r)
			r.told = true
			c.look(s, &r)
		}
		r.Evidence = counted(r.Evidence)
		if r.Verdict == "" {
			r.Verdict = Unchecked
		}
		if r.Verdict == Warning || r.Verdict == Error {
			r.Link = "docs/doctor.md#" + strings.ToLower(r.Code)
		}
		list = append(list, r.Result)
	}
	slices.SortStableFunc(list, func(a, b Result) int { return strings.Compare(a.Code[:4], b.Code[:4]) })
	return list
}

// Status returns the process's exit status: 0 all is well, 1 an error, 2 a warning and no error, 3 neither, and something was
// not checked, unless only files were to be (pre).
func Status(list []Result, pre bool) (status int) {
	for _, r := range list {
		switch {
		case r.Verdict == Error:
			return 1
		case r.Verdict == Warning:
			status = 2
		case r.Verdict == Unchecked && status == 0 && !pre:
			status = 3
		}
	}
	return status
}

// Run examines, prints the results and returns the exit status. With Watch it repeats this and prints only changes.
func Run(ctx context.Context, o Options) (status int, err error) {
	list := Examine(ctx, o)
	if err := o.print(list); err != nil || o.Watch <= 0 {
		return Status(list, o.Pre), err
	}
	for retry.Sleep(ctx, o.Watch) {
		before := maps.Collect(func(yield func(string, Verdict) bool) {
			for _, r := range list {
				if !yield(r.Code, r.Verdict) {
					return
				}
			}
		})
		now := Examine(ctx, o)
		if ctx.Err() != nil {
			break
		}
		list = now
		for _, r := range list {
			if r.Verdict == before[r.Code] {
				continue
			}
			if err := o.printOne(r, fmt.Sprintf("%s, was %s: ", time.Now().Format(time.TimeOnly), before[r.Code])); err != nil {
				return Status(list, o.Pre), err
			}
		}
	}
	return Status(list, o.Pre), nil
}
