// Package doctor looks for what keeps requests from cache hits: in the files, at the workers, in Envoy and in the running
// Sightline.
//
//	look      the state, collected once: look.go (files, workers, Envoy, the admin page, NATS, agents), canary.go (requests
//	          of its own, and the events that they cause)
//	judge     package findings, by the same table as a running Sightline
//	print     print.go, as text and as JSON
//
// It changes nothing, except that the canary makes each worker compute a few tokens. A check that lacks its inputs says so and does
// not guess. Each code has a section in docs/doctor.md.
package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/findings"
)

// Options are the flags of `sightline doctor`: what is looked at.
type Options struct {
	Codes  []string `arg:"" optional:"" name:"code" names:"codes" help:"Only these checks, such as SL0301; default: all."`
	Config string   `kong:"-"` // the configuration's file
	Pre    bool     `help:"Check only files, before anything runs."`
	Admin  string   `kong:"-"` // a running Sightline's page; "": the configuration's
	Envoy  string   `placeholder:"FILE|URL" help:"envoy.yaml, dump or admin page; default: of -c."`
	// Cluster: as in check.Want.
	Cluster []string `placeholder:"NAME,…" help:"Its clusters of workers, if not clear."`
	Agent   []string `placeholder:"URL,…" help:"Agents' admin pages."`
	Canary  bool     `negatable:"" default:"true" help:"Send workers, and Envoy, small requests."`
	URL     string   `name:"url" placeholder:"URL" help:"Where clients reach Envoy; default: of -c."`
	Header  []string `sep:"none" placeholder:"NAME: VALUE" help:"Of requests there; not printed. Repeatable."`
	CA      string   `name:"ca" placeholder:"FILE" help:"PEM file of its certificate's authority."`
	JSON    bool     `kong:"-"` // print one object
	// Failures leaves out what is well.
	Failures bool `help:"Print only warnings and errors."`
	// Patience is how long to wait for an answer or an event; 0: 3 s.
	Patience time.Duration `kong:"-"`

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
	Code     string   `json:"code"` // stable, such as SL0109
	Category string   `json:"category"`
	Title    string   `json:"title"`
	Verdict  Verdict  `json:"verdict"`
	Evidence []string `json:"evidence,omitempty"`
	Fix      string   `json:"fix,omitempty"`
	Note     string   `json:"note,omitempty"` // what is intended, and still good to know
	Link     string   `json:"link,omitempty"` // a section of docs/doctor.md, for a warning or an error

	early bool // it was not checked only because there were no requests yet
}

// categories maps the first two digits of a code to the category's name.
var categories = map[string]string{"00": "requests", "01": "workers", "02": "tokens", "03": "events", "04": "envoy", "05": "sightline",
	"06": "nats and agents"}

// notChecked begins the evidence of what was not checked.
const notChecked = "not checked: "

// Examine runs all checks once.
func Examine(ctx context.Context, o Options) []Result {
	o.Canary = o.Canary && !o.Pre
	if o.Patience <= 0 {
		o.Patience = 3 * time.Second
	}
	c := collect(ctx, o)
	list := make([]Result, 0, 32)
	for _, one := range c.facts.Checks(c.told) {
		list = append(list, verdict(&one))
	}
	return list
}

// verdict returns the result of a check: the worst finding's, with its fix.
func verdict(c *findings.Check) Result {
	r := Result{Code: c.Code, Category: categories[c.Code[2:4]], Title: c.Title, Verdict: Unchecked}
	r.early = len(c.Lacks) > 0 && !slices.ContainsFunc(c.Lacks, func(why string) bool { return why != findings.NoTraffic })
	if c.Checked {
		r.Verdict = OK
	}
	for i := range c.Findings {
		f := &c.Findings[i]
		for _, what := range f.Lines() {
			if f.Told() {
				what = fmt.Sprintf("%s, as the running Sightline sees it since %s", what, f.Since.Local().Format(time.DateTime))
			}
			r.Evidence = append(r.Evidence, what)
			if f.Severity == "note" && r.Note == "" {
				r.Note = what
			}
		}
		if bad := Verdict(f.Severity); i == 0 && bad != "note" {
			r.Verdict, r.Fix, r.Link = bad, f.Fix, "docs/doctor.md#"+strings.ToLower(c.Code)
		}
	}
	if r.Verdict == Unchecked && r.Note != "" {
		r.Verdict = OK
	}
	r.Evidence = append(r.Evidence, c.Well...)
	for _, why := range c.Lacks {
		r.Evidence = append(r.Evidence, notChecked+why)
	}
	return r
}

// Status returns the process's exit status: 0 all is well, 1 an error, 2 a warning and no error, 3 neither, and something was
// not checked, unless only files were to be (pre) or it takes requests and there were none yet.
func Status(list []Result, pre bool) (status int) {
	for _, r := range list {
		switch {
		case r.Verdict == Error:
			return 1
		case r.Verdict == Warning:
			status = 2
		case r.Verdict == Unchecked && status == 0 && !pre && !r.early:
			status = 3
		}
	}
	return status
}

// Run examines, prints the results and returns the exit status.
func Run(ctx context.Context, o Options) (status int, err error) {
	for i, code := range o.Codes {
		o.Codes[i] = strings.ToUpper(code)
		if !slices.Contains(findings.Codes(), o.Codes[i]) {
			return 0, fmt.Errorf("%s is no check (want one such as SL0301; docs/doctor.md has all)", code)
		}
	}
	list := slices.DeleteFunc(Examine(ctx, o), func(r Result) bool {
		return len(o.Codes) > 0 && !slices.Contains(o.Codes, r.Code) || o.Failures && r.Verdict != Error && r.Verdict != Warning
	})
	return Status(list, o.Pre), o.print(list)
}
