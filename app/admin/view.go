package admin

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/probe"
)

// view is the page's data.
type view struct {
	Version, Instance, Mode string
	Since                   string // its start, and how long ago that was
	Title                   string // the worker, image or decision of the page; "": the page of everything
	Worker                  bool   // it is a worker's page
	Image                   *imagePage
	Decision                *decided
	Problems                []findings.Finding
	Others                  string // the other replicas; "": it shares with none
	Report                  string // the effect of steering, as text; "" while all requests are steered

	Failed           failed
	Saved            saved
	First, FirstTail string // time to the first byte
	FirstCount       int
	Live, Slots      int
	Inflight         int
	Reasons          []share
	Where            []bar     // prompt tokens: cached, and by cause
	Changed          []changed // where prompts have changed, the dearest first
	Kept             int       // decisions that are kept
	Window           string    // what those cover
	Reported         int       // of them, those whose worker has reported its cached tokens
	AsPredicted      int       // of those, the ones predicted correctly

	Minutes, Hour []plot
	Forecasts     []curve
	Rows          []*row
	Decisions     []decision
	Filter, Find  string // what they are chosen by
	Shown         int    // the most decisions listed
	Probes        []probed
	Findings      []findings.Cause
	Hosts         []fetch.HostState
}

// Refetch reports whether the page shows a part, which is not updated live.
func (v *view) Refetch() bool { return v.Title != "" }

// Many reports whether there are too many workers to give each more than a line.
func (v *view) Many() bool { return len(v.Rows) > fewWorkers }

// Long reports whether workers' names need wider strips.
func (v *view) Long() bool {
	return slices.ContainsFunc(v.Rows, func(r *row) bool { return len(r.Name) > 12 })
}

// Filters are those of the page.
func (v *view) Filters() []string { return filters }

// fewWorkers is the most that are shown with all that is known of them.
const fewWorkers = 16

// failed is the share of the last minutes' requests without a good answer.
type failed struct {
	Share, Of string
	Some      bool
}

func failedOf(s *Status, now time.Time) failed {
	if s.Requests+s.Refused+s.Undecided == 0 {
		return failed{Share: "–", Of: "no request has ended"}
	}
	share := 100 * float64(s.Failed) / float64(max(1, s.Requests))
	f := failed{Share: fmt.Sprintf("%.0f %%", share), Some: s.Failed > 0, Of: fmt.Sprintf("%d of %d in %s; %d refused, %d undecided",
		s.Failed, s.Requests, printable.Rough(now.Sub(s.Since)), s.Refused, s.Undecided)}
	if f.Some && share < 10 {
		f.Share = fmt.Sprintf("%.2g %%", share)
	}
	return f
}

// saved is what caches have saved since the start.
type saved struct{ Share, Of, Hours, Unit, How string }

// row is a worker's.
type row struct {
	WorkerRow
	Hits       string // share of the prompt tokens cached, of the kept decisions
	HitShare   int
	Load, Late int // lengths, of 100
}

// State is how it is, in a word or two.
func (r *row) State() string {
	if r.WorkerRow.State == "late" {
		return fmt.Sprintf("late %.0f s", r.EventAge)
	}
	return r.WorkerRow.State
}

// RemovalCost is what the others would compute again if it left; "": not known.
func (r *row) RemovalCost() string {
	if r.Removal == nil {
		return ""
	}
	return printable.Amount(r.Removal.Cost()) + " tokens"
}

// Find is what it is looked for by.
func (r *row) Find() string {
	return fmt.Sprintf("%s rank %d %s %s %s %s", r.Name, r.Rank, r.Model, r.Role, r.Addr, r.State())
}

// problem is a finding with its workers, grouped by what they show.
type problem struct {
	findings.Finding
	Head  string
	Alike []alike
	More  int // workers that are in none of them
}

// Sign stands before the severity, for those who see no colours.
func (p problem) Sign() string {
	return map[string]string{"error": "×", "warning": "‼", "note": "·"}[p.Severity]
}

// alike are the first workers of those that show the same.
type alike struct {
	Workers []string
	More    int
	Detail  string
}

// fewNames is the most workers of those alike, and the most such lists of a problem.
const fewNames = 8

// Banners are the problems as the page shows them.
func (v *view) Banners() (list []problem) {
	for _, f := range v.Problems {
		p := problem{Finding: f, Head: cmp.Or(f.Common, f.What)}
		for i, worker := range f.Workers {
			detail := ""
			if i < len(f.Details) {
				detail = f.Details[i]
			}
			at := slices.IndexFunc(p.Alike, func(g alike) bool { return g.Detail == detail })
			if at < 0 && len(p.Alike) < fewNames {
				at, p.Alike = len(p.Alike), append(p.Alike, alike{Detail: detail})
			}
			if at < 0 {
				p.More++
			} else if g := &p.Alike[at]; len(g.Workers) < fewNames {
				g.Workers = append(g.Workers, worker)
			} else {
				g.More++
			}
		}
		list = append(list, p)
	}
	return list
}

// LateFrom is where the bar of late events begins.
func (r *row) LateFrom() int { return 100 - r.Late }

// imagePage is what is known of an image by the kept decisions.
type imagePage struct {
	Tokens, Requests, Saved int
	Holders                 []string // workers that were sent it, the latest first
}

type decision struct {
	router.Recent
	Ago, Took, First string
}

// probed is one worker's row: its verdict, and the differences.
type probed struct {
	probe.Result
	Ago  string
	News []probe.Finding
}

type share struct {
	Name    string
	Count   int
	Percent int
}

// shown is the most decisions that the page lists, and shownOf the most on the page of a worker or an image, which has little else.
const shown, shownOf = 25, 100

// view collects the page's data, or that of the worker or image that the query names.
func (c *livePage) view(now time.Time, workers []findings.Worker, query url.Values) *view {
	s := &c.state
	worker, image := query.Get("worker"), query.Get("image")
	v := &view{Version: s.Version, Instance: s.Instance, Problems: c.state.Problems(now), Shown: shown, Filter: query.Get("filter"),
		Find: query.Get("q")}
	if s.Report != nil {
		r := s.Report(report.Range{}, false)
		if r.Unsteered.Requests > 0 || r.Mode != "100%" {
			v.Report = r.String()
		}
		v.Mode = r.Mode
		v.Where, v.Changed = where(&r), changedAt(&r)
	}
	if !s.Began.IsZero() {
		v.Since = s.Began.Local().Format("2 Jan 15:04") + " (" + printable.Rough(now.Sub(s.Began)) + ")"
	}
	if s.Others != nil {
		v.Others = "no other replica is connected"
		if n, ago := s.Others(); n > 0 {
			v.Others = fmt.Sprintf("shared with %d other replicas; last messages at most %.1f s old", n, math.Ceil(ago.Seconds()*10)/10)
		}
	}
	all := s.Router.Recent(1024)
	v.Kept = len(all)
	if len(all) > 0 {
		v.Window = printable.Rough(now.Sub(all[len(all)-1].At))
	}
	c.fleet(v, workers, all)
	v.judge(all)
	var lately Status
	s.ended(&lately, new(Sightline), all, now)
	v.Failed = failedOf(&lately, now)
	of := all
	switch {
	case worker != "":
		v.Title, v.Worker, v.Shown = "worker "+worker, true, shownOf
		v.Rows = slices.DeleteFunc(v.Rows, func(r *row) bool { return r.Name != worker })
		of = slices.DeleteFunc(all, func(d router.Recent) bool { return d.Worker != worker })
	case image != "":
		v.Title, v.Shown = "image "+image, shownOf
		of = slices.DeleteFunc(all, func(d router.Recent) bool { return !slices.Contains(d.Images, image) })
		v.Image = newImage(image, workers, of)
	}
	of = (&choice{filter: v.Filter, word: v.Find}).chosen(of, of)
	of = of[:min(len(of), v.Shown)]
	for i := range of {
		v.Decisions = append(v.Decisions, newDecision(&of[i]))
	}
	if image == "" {
		v.checks(s, worker)
	}
	v.Forecasts = curves(s.Router.Forecasts())
	v.Minutes, v.Hour = plots(c.history.minutes, 1, c.history.marks, now), plots(c.history.hour, perTen, c.history.marks, now)
	return v
}

// filters are the choices of decisions.
var filters = []string{"failed", "inexact", "slow", "differing"}

// chosen returns the decisions that a choice names; word is a part of an id, a model or a worker.
func (c *choice) chosen(all, kept []router.Recent) []router.Recent {
	slow := time.Duration(0)
	if c.filter == "slow" {
		if first := firstBytes(kept); len(first) > 0 {
			slow = quantile(first, 0.95)
		}
	}
	word := strings.ToLower(c.word)
	return slices.DeleteFunc(slices.Clone(all), func(d router.Recent) bool {
		is := true
		switch c.filter {
		case "failed":
			is = d.Code >= 400 || d.Lasted > 0 && d.Code == 0 || d.Reason == router.RefusedByUs
		case "inexact":
			is = d.Reason != router.Exact
		case "slow":
			is = d.FirstByte > 0 && d.FirstByte >= slow
		case "differing":
			is = d.Audit != "" && d.Audit != audit.Equal && d.Audit != audit.Unattributed || reported(&d) && !asPredicted(&d)
		}
		is = is && (c.model == "" || c.model == d.Model) && (c.worker == "" || c.worker == d.Worker || c.worker == d.Used) &&
			(c.lost == nil || d.Account != nil && d.Account.Uncached[*c.lost] > 0)
		return !is || word != "" && !strings.Contains(strings.ToLower(d.ID+" "+d.Model+" "+d.Worker+" "+d.Used+" "+d.Asked), word)
	})
}

// newImage sums up the decisions of one image. A worker encodes it once, unless it forgets it meanwhile.
func newImage(image string, workers []findings.Worker, of []router.Recent) *imagePage {
	p := &imagePage{}
	names := map[string]string{}
	for _, w := range workers {
		names[w.Addr] = w.Name
	}
	for i := range of {
		d := &of[i]
		if at := slices.Index(d.Images, image); at < len(d.ImageTokens) {
			p.Tokens = d.ImageTokens[at]
		}
		if d.Used == "" || d.Code >= 400 {
			continue
		}
		p.Requests++
		name := cmp.Or(names[d.Used], d.Used)
		if slices.Contains(p.Holders, name) {
			p.Saved++
		} else {
			p.Holders = append(p.Holders, name)
		}
	}
	return p
}

// fleet fills in what is known of the workers, the worst first, and what they saved.
func (c *livePage) fleet(v *view, workers []findings.Worker, all []router.Recent) {
	rate, known, most := 0.0, 0, 4
	for _, w := range rows(workers, all) {
		r := row{WorkerRow: w, Hits: "–", HitShare: -1, Late: int(min(100, 100*w.EventAge/60))}
		if h := w.Recent; h.Prompt > 0 {
			r.HitShare = 100 * h.Cached / h.Prompt
			r.Hits = fmt.Sprintf("%d %%", r.HitShare)
		}
		v.Rows = append(v.Rows, &r)
		v.Slots++
		v.Inflight += w.Inflight
		most = max(most, w.Inflight)
		if w.Health == nil && (w.Events == "live" || w.Events == "none") {
			v.Live++
		}
		if w.Rate > 0 {
			rate += w.Rate
			known++
		}
	}
	for i := range v.Rows {
		v.Rows[i].Load = 100 * v.Rows[i].Inflight / most
	}
	slices.SortStableFunc(v.Rows, func(a, b *row) int { return b.Bad - a.Bad })
	v.Saved = savedOf(c.state.Router.Totals(), rate/float64(max(1, known)))
}

// savedOf computes what caches have saved, by the engines' counts if they report them, else as predicted. It converts tokens to
// hours by one worker's rate in tokens per second.
func savedOf(t router.Totals, rate float64) saved {
	part, whole, how := t.EngineCached, t.EnginePrompt, "as counted by the engines"
	if whole == 0 {
		part, whole, how = t.Cached, t.Prompt, "predicted; no engine has reported its count"
	}
	if whole == 0 {
		return saved{Share: "–", Of: "no requests yet", Hours: "–", Unit: "GPU-hours", How: "no requests yet"}
	}
	s := saved{Share: printable.Percent(int(part), int(whole)), Of: fmt.Sprintf("%s of %s, %s",
		printable.Amount(float64(part)), printable.Amount(float64(whole)), how),
		Hours: "–", Unit: "GPU-hours", How: "no prefill rate has been measured yet"}
	if rate > 0 {
		if spent := float64(part) / rate; spent >= 360 {
			s.Hours = rounded(spent/3600, 3)
		} else {
			s.Hours, s.Unit = rounded(spent, 2), "GPU-seconds"
		}
		s.How = fmt.Sprintf("estimated at %s tokens/s, as measured, and one GPU per worker", printable.Amount(rate))
	}
	return s
}

// rounded writes a number with the given number of digits, or more before the point, and without an exponent.
func rounded(v float64, digits int) string {
	if v >= math.Pow10(digits)-0.5 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', digits, 64)
}

// checks fills in probes, findings and hosts, of one worker if it is named.
func (v *view) checks(s *State, worker string) {
	if s.Probe != nil {
		for _, r := range s.Probe.Results() {
			row := probed{Result: r}
			if !r.At.IsZero() {
				row.Ago = printable.Rough(time.Since(r.At))
			}
			for _, f := range r.Findings {
				if f.Verdict != probe.Equal {
					row.News = append(row.News, f)
				}
			}
			if worker == "" || r.Worker == worker {
				v.Probes = append(v.Probes, row)
			}
		}
	}
	v.Findings = findings.Causes(s.Audit.Findings(), time.Time{})
	v.Findings = slices.DeleteFunc(v.Findings, func(c findings.Cause) bool { return worker != "" && c.Worker != worker })
	v.Findings = v.Findings[:min(len(v.Findings), 10)]
	if s.Hosts != nil && worker == "" {
		v.Hosts = s.Hosts()
	}
}

// judge summarizes decisions.
func (v *view) judge(all []router.Recent) {
	count := map[router.Reason]int{}
	for _, d := range all {
		count[d.Reason]++
		if reported(&d) {
			v.Reported++
			if asPredicted(&d) {
				v.AsPredicted++
			}
		}
	}
	for _, r := range router.Reasons() {
		if len(all) > 0 && (r != router.RefusedByUs || count[r] > 0) {
			v.Reasons = append(v.Reasons, share{string(r), count[r], (100*count[r] + len(all)/2) / len(all)})
		}
	}
	if first := firstBytes(all); len(first) > 0 {
		v.First, v.FirstTail = printable.Brief(quantile(first, 0.5)), printable.Brief(quantile(first, 0.95))
		v.FirstCount = len(first)
	} else {
		v.First = "–"
	}
}

// reported says whether the chosen worker has counted the cached tokens of a request.
func reported(d *router.Recent) bool {
	return d.Code == http.StatusOK && d.Reported >= 0 && d.Used == d.Addr
}

// asPredicted reports whether a count is as predicted, or within the prediction's bound.
func asPredicted(d *router.Recent) bool {
	return d.Reported == d.CachedTokens || d.Partial && d.Reported > d.CachedTokens || d.UpperBound && d.Reported < d.CachedTokens
}

// firstBytes returns the decisions' times to the first byte.
func firstBytes(all []router.Recent) (list []time.Duration) {
	for i := range all {
		if all[i].FirstByte > 0 {
			list = append(list, all[i].FirstByte)
		}
	}
	return list
}

func newDecision(d *router.Recent) decision {
	row := decision{Recent: *d, Ago: printable.Rough(time.Since(d.At)), Took: printable.Brief(d.Took)}
	if d.FirstByte > 0 {
		row.First = printable.Brief(d.FirstByte)
	}
	return row
}

// decided is the page of one decision.
type decided struct {
	Explained
	FirstByte  string
	Candidates []candidate
}

// candidate is a worker, with its costs as bars relative to the highest one.
type candidate struct {
	router.Considered
	Bars []bar
}

type bar struct{ Name, Class, X, Width, Tokens string }

// where returns where prompt tokens went, as one bar in percent.
func where(r *report.Report) (list []bar) {
	if r.Accounted == 0 {
		return nil
	}
	at := 0.0
	add := func(name, class string, tokens int) {
		share := float64(tokens) / float64(r.Accounted)
		list = append(list, bar{name, class, fmt.Sprintf("%.1f", 300*at), fmt.Sprintf("%.1f", 300*share),
			fmt.Sprintf("%.1f %%", 100*share)})
		at += share
	}
	add("cached", "c4", r.Accounted-r.Uncached.Total())
	r.Uncached.Each(func(c account.Cause, tokens int) { add(c.String(), causeClass[c], tokens) })
	return list
}

// changed is where prompts depart from earlier ones, and its share of all prompt tokens.
type changed struct {
	report.Departure
	Share, Took string
}

func changedAt(r *report.Report) (list []changed) {
	for _, p := range r.Departures {
		one := changed{p, fmt.Sprintf("%.1f %%", 100*float64(p.Tokens)/float64(max(1, r.Accounted))), ""}
		if p.Seconds > 0 {
			one.Took = printable.Brief(time.Duration(p.Seconds * float64(time.Second)))
		}
		list = append(list, one)
	}
	return list
}

var causeClass = map[account.Cause]string{account.Block: "c5", account.KeptShort: "c7", account.NotRead: "c9", account.Elsewhere: "c2",
	account.Computing: "c8", account.Evicted: "c6", account.Lost: "c3", account.New: "c1", account.Unknown: "late",
	account.Changed: "c10", account.Salt: "c11"}

func newDecided(e Explained) *decided {
	d := &decided{Explained: e}
	if e.Recent.FirstByte > 0 {
		d.FirstByte = printable.Brief(e.Recent.FirstByte)
	}
	most := 1.0
	for i := range e.Ranked {
		most = max(most, e.Ranked[i].Cost)
	}
	for _, c := range e.Ranked {
		at := 0.0
		one := candidate{Considered: c}
		for i, t := range Terms(c.Terms) {
			if t.Tokens == 0 {
				continue
			}
			width := 300 * t.Tokens / most
			one.Bars = append(one.Bars, bar{t.Name, "c" + strconv.Itoa(i+1), fmt.Sprintf("%.1f", at), fmt.Sprintf("%.1f", width),
				printable.Amount(t.Tokens)})
			at += width
		}
		d.Candidates = append(d.Candidates, one)
	}
	return d
}

// Term is one part of a candidate's cost, with its displayed name.
type Term struct {
	Name   string
	Tokens float64
}

// Terms returns the terms of a cost, always in this order.
func Terms(t choose.Terms) []Term {
	return []Term{{"prefill", t.Prefill}, {"queue", t.Queue}, {"others' delay", t.Delay}, {"requests", t.Requests}, {"context", t.Context},
		{"fetch", t.Fetch}, {"elsewhere", t.Elsewhere}, {"distance", t.Distance}, {"junction", t.Junction}}
}
