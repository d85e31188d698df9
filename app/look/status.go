package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router/account"
)

// ErrBroken says that something is broken, after it has been shown.
var ErrBroken = errors.New("something is broken")

// Status shows what is broken, what requests get and how workers are. It returns ErrBroken if something is broken now.
func Status(ctx context.Context, v View) error {
	broken := false
	err := v.show(ctx, func(ctx context.Context, a Asked) (any, func(*page), error) {
		list, err := get[admin.Status](ctx, a, "/status")
		if err != nil {
			return nil, nil, err
		}
		s := joinStatus(list)
		broken = s.Broken
		return s, func(p *page) { p.status(&s) }, nil
	})
	if err == nil && broken && !v.Watch {
		return ErrBroken
	}
	return err
}

// Top shows the same with all workers, those first that have most to say.
func Top(ctx context.Context, v View) error {
	v.Watch = v.Watch || v.isTerminal() && v.structured() == ""
	return v.show(ctx, func(ctx context.Context, a Asked) (any, func(*page), error) {
		list, err := get[admin.Status](ctx, a, "/status")
		if err != nil {
			return nil, nil, err
		}
		rows, err := get[[]admin.WorkerRow](ctx, a, "/workers")
		if err != nil {
			return nil, nil, err
		}
		s, workers := joinStatus(list), joinWorkers(rows)
		shape := struct {
			Status  admin.Status      `json:"status"`
			Workers []admin.WorkerRow `json:"workers"`
		}{s, workers}
		return shape, func(p *page) {
			p.summary(&s)
			for i := range s.Problems[:min(3, len(s.Problems))] { // worst first
				p.under("problem", said(s.Problems[i].Code+" "+s.Problems[i].What), p.warn)
			}
			if more := len(s.Problems) - 3; more > 0 {
				p.fact("", plural(more, "more problem")+": sightline problems")
			}
			p.line()
			p.workers(workers)
		}, nil
	})
}

// joinStatus adds what several Sightlines answer. Replicas see the same workers, with the requests of all; each has ended its own requests.
// One without a request of late counts those since its start: they are left out if another has later ones.
func joinStatus(list []answer[admin.Status]) (s admin.Status) {
	s = admin.Status{Problems: []findings.Finding{}, Sightlines: []admin.Sightline{}, Workers: map[string]int{}, Releases: map[string]int{}}
	var problems [][]findings.Finding
	idle := func(one *admin.Status) bool { return time.Since(one.Since) > 2*admin.Lately }
	busy := slices.ContainsFunc(list, func(one answer[admin.Status]) bool { return one.T.Requests > 0 && !idle(&one.T) })
	for i := range list {
		one := &list[i].T
		if list[i].err != nil {
			s.Sightlines = append(s.Sightlines, admin.Sightline{Address: list[i].at, Error: list[i].err.Error()})
			s.Broken = true
			continue
		}
		for j := range one.Sightlines {
			one.Sightlines[j].Address = cmp.Or(one.Sightlines[j].Address, list[i].at)
		}
		s.Sightlines = append(s.Sightlines, one.Sightlines...)
		s.Broken = s.Broken || one.Broken
		problems = append(problems, one.Problems)
		if n := total(one.Workers) - total(s.Workers); n > 0 || n == 0 && one.Workers["live"] < s.Workers["live"] { // one may know more
			s.Workers = one.Workers
		}
		if total(one.Releases) > total(s.Releases) {
			s.Releases = one.Releases
		}
		s.Inflight, s.Backlog = max(s.Inflight, one.Inflight), max(s.Backlog, one.Backlog)
		if one.EventAge > s.EventAge {
			s.EventAge, s.Latest = one.EventAge, one.Latest
		}
		if busy && idle(one) {
			continue
		}
		if s.Since.IsZero() || one.Since.Before(s.Since) {
			s.Since = one.Since
		}
		s.Requests, s.Failed, s.Refused = s.Requests+one.Requests, s.Failed+one.Failed, s.Refused+one.Refused
		s.Undecided, s.Accounted = s.Undecided+one.Undecided, s.Accounted+one.Accounted // each is logged to one of them
		s.Uncached.Add(&one.Uncached)
	}
	s.Problems = joinProblems(problems)
	return s
}

func total(of map[string]int) (n int) {
	for _, one := range of {
		n += one
	}
	return n
}

// status prints all of it.
func (p *page) status(s *admin.Status) {
	p.summary(s)
	p.line()
	if len(s.Problems) == 0 {
		p.line(p.good("√"), "no problems")
		return
	}
	p.problems(s.Problems)
}

// summary prints what fits into a few lines.
func (p *page) summary(s *admin.Status) {
	now := time.Now()
	for i := range s.Sightlines {
		one := &s.Sightlines[i]
		if one.Error != "" && one.Version == "" {
			p.line(p.bad("× Sightline"), said(one.Address)+":", said(one.Error))
			continue
		}
		words := []string{p.good("√ Sightline")}
		if one.Error != "" {
			words[0] = p.bad("× Sightline")
		}
		words = append(words, p.bold(said(one.Version)), "at", said(strings.TrimPrefix(one.Address, "http://")))
		if one.Error != "" {
			words = append(words, p.bad("not ready: "+said(one.Error)))
		}
		tail := fmt.Sprintf("%.1f requests/s", one.Rate)
		if one.Mode != "" && one.Mode != "100%" {
			tail = "steering " + said(one.Mode) + ", " + tail
		}
		if !one.Began.IsZero() {
			tail = "up " + ago(now.Sub(one.Began)) + ", " + tail
		}
		p.line(append(words, p.dim("("+tail+")"))...)
	}
	p.line()
	if s.Requests+s.Refused+s.Undecided == 0 {
		p.fact("requests", "none has ended yet")
	} else {
		count := func(n int, of string) string {
			if text := fmt.Sprintf("%s %s", thousands(n), of); n > 0 {
				return p.bad(text)
			}
			return "0 " + of
		}
		p.fact("requests", fmt.Sprintf("%s in the last %s: %s, %s, %s", thousands(s.Requests), ago(now.Sub(s.Since)),
			count(s.Failed, "failed"), count(s.Refused, "refused"), count(s.Undecided, "undecided")))
	}
	if s.Accounted > 0 {
		p.fact("hit rate", fmt.Sprintf("%s of %s prompt tokens were cached", p.bold(percent(s.Accounted-s.Uncached.Total(), s.Accounted)),
			short(float64(s.Accounted))))
		var lost []string
		s.Uncached.Each(func(c account.Cause, n int) {
			if 200*n >= s.Accounted { // the others are in the JSON
				lost = append(lost, fmt.Sprintf("%s %s", percent(n, s.Accounted), c))
			}
		})
		if len(lost) > 0 {
			p.under("not cached", strings.Join(lost, ", "), plain)
		}
	}
	for i := range s.Sightlines {
		one := &s.Sightlines[i]
		if f := one.FirstByte; f.P50 > 0 {
			text, name := "p50 "+millis(f.P50), ""
			switch {
			case f.P99 > 0:
				text += ", p99 " + millis(f.P99)
			case f.P95 > 0:
				text += ", p95 " + millis(f.P95)
			}
			if len(s.Sightlines) > 1 {
				name = " at " + said(cmp.Or(one.Instance, one.Address))
			}
			p.fact("first byte", text+p.dim(fmt.Sprintf(" (%s%s)", plural(f.N, "answer"), name)))
		}
	}
	var states, releases []string
	for _, state := range mostFirst(s.Workers) {
		states = append(states, p.state(state, fmt.Sprintf("%d %s", s.Workers[state], said(state))))
	}
	if len(states) == 0 {
		states = []string{p.bad("none")}
	}
	p.fact("workers", fmt.Sprintf("%s; %s in flight, %s tokens queued", strings.Join(states, ", "), plural(s.Inflight, "request"),
		short(s.Backlog)))
	for _, of := range mostFirst(s.Releases) {
		releases = append(releases, fmt.Sprintf("%d %s", s.Releases[of], said(of)))
	}
	if len(releases) > 0 {
		p.under("engines", strings.Join(releases, ", "), plain)
	}
	if s.Latest != "" {
		p.fact("events", fmt.Sprintf("%s late at most (%s)", millis(1e3*s.EventAge), said(s.Latest)))
	}
	for i := range s.Sightlines {
		if one := &s.Sightlines[i]; one.Others > 0 {
			p.fact("replicas", fmt.Sprintf("%s shares with %d others, heard %.1fs ago", said(cmp.Or(one.Instance, one.Address)),
				one.Others, one.Silent))
		}
	}
}

// mostFirst returns the keys of counts.
func mostFirst(of map[string]int) []string {
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(of[b]-of[a], strings.Compare(a, b)) })
}

func (p *page) fact(name, text string) { p.line(fmt.Sprintf("%-10s", name), text) }

// state colours a worker's state.
func (p *page) state(state, shown string) string {
	switch state {
	case "live":
		return p.good(shown)
	case "out":
		return p.bad(shown)
	}
	return p.warn(shown)
}
