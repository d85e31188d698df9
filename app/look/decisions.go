package look

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/explain"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
)

// Choice says which decisions are shown; without any, all are.
type Choice struct {
	Follow bool   // until ctx ends, each once its request has ended
	Filter string // failed, inexact, slow; "": all
	Lost   string // some tokens were not cached for this cause
	Model  string
	Worker string
	ID     string // this one, with its candidates and costs
}

// shown is how many decisions are shown at first, kept how many a Sightline keeps.
const shown, kept = 20, 1024

// Decisions shows the last decisions, the latest at the end.
func Decisions(ctx context.Context, v View, c Choice) error {
	if c.ID != "" {
		return v.show(ctx, func(ctx context.Context, a Asked) (any, func(*page), error) { return c.one(ctx, a) })
	}
	a, err := v.Open(ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	follow := c.Follow || v.Watch
	v.Watch = follow
	of, n := follower{said: map[string]time.Time{}, waits: map[string]router.Recent{}}, shown
	widths := map[string]int{}
	for since := (time.Time{}); ; {
		asked := time.Now()
		list, err := get[[]router.Recent](ctx, a, "/decisions?"+c.query(n, since))
		if err != nil && (v.pages == 0 || ctx.Err() != nil) {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if v.pages == 0 {
			tell(&v, list)
		}
		decided := joinDecisions(list)
		if follow {
			missing := slices.ContainsFunc(list, func(one answer[[]router.Recent]) bool { return one.err != nil })
			decided = of.news(decided, asked, len(list) > 0 && !missing)
		}
		if err := v.decisions(decided, widths, follow); err != nil || !follow {
			return err
		}
		v.pages++
		n = kept
		if err == nil { // else what was missed is asked for again
			since = of.since(asked)
		}
		if !retry.Sleep(ctx, time.Second) {
			return nil
		}
	}
}

// decisions prints what is new.
func (v *View) decisions(decided []router.Recent, widths map[string]int, follow bool) error {
	switch {
	case v.structured() != "" && follow:
		for i := range decided {
			if err := v.write(&decided[i]); err != nil {
				return err
			}
		}
		return nil
	case v.structured() != "":
		return v.write(decided)
	}
	p := v.page()
	p.least = widths
	switch {
	case len(decided) > 0 || v.pages == 0 && follow:
		p.decisions(decided, v.pages == 0)
	case v.pages == 0:
		p.line("no decision")
	}
	_, err := p.WriteTo(v.Out)
	return err
}

func (c *Choice) query(n int, since time.Time) string {
	q := url.Values{"n": {strconv.Itoa(n)}}
	for key, value := range map[string]string{"filter": c.Filter, "lost": c.Lost, "model": c.Model, "worker": c.Worker} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if !since.IsZero() {
		q.Set("since", since.UTC().Format(time.RFC3339Nano))
	}
	return q.Encode()
}

// one shows a decision as explain does; any of the Sightlines may have made it.
func (c *Choice) one(ctx context.Context, a Asked) (any, func(*page), error) {
	list, err := get[admin.Explained](ctx, a, "/explain?"+url.Values{"id": {c.ID}}.Encode())
	if err != nil {
		return nil, nil, err
	}
	found := list[slices.IndexFunc(list, func(one answer[admin.Explained]) bool { return one.err == nil })]
	return json.RawMessage(found.text), func(p *page) { _ = explain.Print(printable.Writer(p), &found.T) }, nil
}

// joinDecisions returns the decisions of all that answered, the latest last.
func joinDecisions(list []answer[[]router.Recent]) []router.Recent {
	out := []router.Recent{}
	for i := range list {
		if list[i].err == nil {
			out = append(out, list[i].T...)
		}
	}
	slices.SortStableFunc(out, func(a, b router.Recent) int { return a.At.Compare(b.At) })
	return out
}

// follower tells which decisions are to be shown now: those whose requests have ended, or of which nothing more is to be heard.
type follower struct {
	said  map[string]time.Time     // by id, when they were shown
	waits map[string]router.Recent // not ended when last seen
}

// longestWait is how long an end is waited for.
const longestWait = 10 * time.Minute

// since returns from when on decisions are asked for next: some seconds before, by the clock here, as an overlap covers what the
// Sightlines' clocks differ; earlier if one still waits for its end.
func (f *follower) since(asked time.Time) time.Time {
	since := asked.Add(-period)
	for _, d := range f.waits {
		if d.At.Before(since) && d.At.After(asked.Add(-longestWait)) {
			since = d.At
		}
	}
	return since
}

// news returns what is new in an answer of Sightlines, which has all that were made or have ended since the time that since returned.
// complete: all of them answered.
func (f *follower) news(all []router.Recent, now time.Time, complete bool) (out []router.Recent) {
	waits := map[string]router.Recent{}
	for i := range all {
		d := &all[i]
		_, said := f.said[d.ID]
		switch {
		case said:
			f.said[d.ID] = now
		case d.Lasted > 0 || d.Reason == router.RefusedByUs:
			out, f.said[d.ID] = append(out, *d), now
		default:
			waits[d.ID] = *d
		}
	}
	for id, d := range f.waits {
		if _, still := waits[id]; still || !f.said[id].IsZero() {
			continue
		}
		if !complete && now.Sub(d.At) < longestWait { // its Sightline may not have answered
			waits[id] = d
		} else { // a Sightline has forgotten it before its end
			out, f.said[id] = append(out, d), now
		}
	}
	f.waits = waits
	for id, at := range f.said {
		if now.Sub(at) > time.Minute {
			delete(f.said, id)
		}
	}
	slices.SortStableFunc(out, func(a, b router.Recent) int { return a.At.Compare(b.At) })
	return out
}

// decisions prints a table.
func (p *page) decisions(list []router.Recent, header bool) {
	columns := []column{{"TIME", false, 0}, {"WORKER", false, 0}, {"REASON", false, 0}, {"PROMPT", true, 0}, {"CACHED", true, 0},
		{"NOT CACHED", false, 2}, {"1ST BYTE", true, 0}, {"STATUS", true, 0}, {"ID", false, 4}, {"MODEL", false, 5}, {"WHY", false, 6},
		{"DECIDED IN", true, wideOnly}, {"LASTED", true, wideOnly}, {"USED", false, wideOnly}}
	var cells [][]string
	for i := range list {
		d := &list[i]
		status, cached := "–", thousands(d.CachedTokens)
		switch {
		case d.Code >= 400:
			status = p.bad(strings.TrimSpace(fmt.Sprint(d.Code, " ", said(d.Flags))))
		case d.Code > 0:
			status = fmt.Sprint(d.Code)
		case d.Lasted > 0:
			status = p.warn(cmp.Or(said(d.Flags), "left"))
		}
		if d.Reported >= 0 && d.Used == d.Addr && d.Code > 0 {
			cached = thousands(d.Reported)
		}
		worker := orDash(said(d.Worker))
		if d.Rank >= 0 {
			worker += fmt.Sprintf(" rank %d", d.Rank)
		}
		reason := said(string(d.Reason))
		if d.Reason == router.RefusedByUs {
			reason = p.bad(reason)
		}
		why := d.Why
		if d.Asked != "" {
			why = strings.TrimSpace(fmt.Sprintf("%s %q", d.Why, d.Asked))
		}
		cells = append(cells, []string{d.At.Local().Format(time.TimeOnly), worker, reason, thousands(d.PromptTokens), cached, lost(d.Account),
			millis(d.FirstByte.Seconds() * 1e3), status, said(d.ID), orDash(said(d.Model)), orDash(said(why)),
			millis(d.Took.Seconds() * 1e3), millis(d.Lasted.Seconds() * 1e3), orDash(said(d.Used))})
	}
	p.table(header, columns, cells)
}

// lost is why most of the tokens were not cached.
func lost(a *account.Account) string {
	if a == nil {
		return "–"
	}
	text := "–"
	a.Uncached.Each(func(c account.Cause, n int) {
		if text == "–" {
			text = fmt.Sprintf("%s %s", thousands(n), c)
		}
	})
	return text
}
