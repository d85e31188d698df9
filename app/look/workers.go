package look

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router/account"
)

// Workers shows the workers, of a model if one is named, or all that is known of one worker.
func Workers(ctx context.Context, v View, name, model string) error {
	return v.show(ctx, func(ctx context.Context, a Asked) (any, func(*page), error) {
		list, err := get[[]admin.WorkerRow](ctx, a, "/workers")
		if err != nil {
			return nil, nil, err
		}
		tell(&v, list)
		rows := slices.DeleteFunc(joinWorkers(list), func(r admin.WorkerRow) bool {
			return name != "" && r.Name != name && r.Addr != name || model != "" && r.Model != model
		})
		if name != "" && len(rows) == 0 {
			return nil, nil, fmt.Errorf("no worker %q (sightline workers lists them)", said(name))
		}
		if name == "" {
			return rows, func(p *page) { p.workers(rows) }, nil
		}
		problems, err := get[[]findings.Finding](ctx, a, "/problems")
		if err != nil {
			return nil, nil, err
		}
		about := slices.DeleteFunc(joined(problems), func(f findings.Finding) bool { return !slices.Contains(f.Workers, rows[0].Name) })
		return rows, func(p *page) {
			for i := range rows {
				p.worker(&rows[i])
			}
			p.problems(about)
		}, nil
	})
}

// Problems shows what is wrong, worst first, or what a code means and whether there is such a problem. It returns ErrBroken as Status
// does.
func Problems(ctx context.Context, v View, code string) error {
	code = strings.ToUpper(code)
	means := findings.Means(code)
	if code != "" && means == "" {
		return fmt.Errorf("no code %q (want one such as %s)", said(code), findings.Codes()[0])
	}
	explain := func(p *page) {
		if code != "" {
			p.under(code, "want: "+means, p.bold)
			p.under("  See", findings.Link(code), plain)
		}
	}
	broken := false
	err := v.show(ctx, func(ctx context.Context, a Asked) (any, func(*page), error) {
		list, err := get[admin.Status](ctx, a, "/status")
		if err != nil {
			if p := v.page(); v.structured() == "" && v.pages == 0 {
				explain(p) // without a running Sightline too
				_, _ = p.WriteTo(v.Out)
			}
			return nil, nil, err
		}
		tell(&v, list)
		s := joinStatus(list)
		broken = s.Broken
		if code != "" {
			s.Problems = slices.DeleteFunc(s.Problems, func(f findings.Finding) bool { return f.Code != code })
			broken = len(s.Problems) > 0 && s.Problems[0].Severity == "error"
		}
		return s.Problems, func(p *page) {
			explain(p)
			p.problems(s.Problems)
			if len(s.Problems) == 0 {
				p.line(p.good("√"), strings.TrimSpace("no problems "+map[bool]string{true: "of this code"}[code != ""]))
			}
		}, nil
	})
	if err == nil && broken && !v.Watch {
		return ErrBroken
	}
	return err
}

// joinWorkers returns each worker once: as the Sightline sees it that is the least content with it, with the decisions of all.
func joinWorkers(list []answer[[]admin.WorkerRow]) []admin.WorkerRow {
	type key struct {
		name string
		rank int
	}
	at, out := map[key]int{}, []admin.WorkerRow{}
	for i := range list {
		for _, row := range list[i].T {
			k := key{row.Name, row.Rank}
			j, known := at[k]
			if !known {
				at[k], out = len(out), append(out, row)
				continue
			}
			sum := admin.Recent{Requests: out[j].Recent.Requests + row.Recent.Requests, Prompt: out[j].Recent.Prompt + row.Recent.Prompt,
				Cached: out[j].Recent.Cached + row.Recent.Cached}
			if row.Bad > out[j].Bad {
				out[j] = row
			}
			out[j].Recent = sum
		}
	}
	slices.SortStableFunc(out, func(a, b admin.WorkerRow) int {
		return cmp.Or(b.Bad-a.Bad, b.Inflight-a.Inflight, cmp.Compare(b.Backlog, a.Backlog), strings.Compare(a.Name, b.Name), a.Rank-b.Rank)
	})
	return out
}

func joined(list []answer[[]findings.Finding]) []findings.Finding {
	var all [][]findings.Finding
	for i := range list {
		all = append(all, list[i].T)
	}
	return joinProblems(all)
}

// joinProblems returns what several Sightlines find, each finding once, as the first has it.
func joinProblems(lists [][]findings.Finding) []findings.Finding {
	out, seen := []findings.Finding{}, map[string]bool{}
	for _, list := range lists {
		for _, f := range list {
			if key := f.Code + "\x00" + f.What; !seen[key] {
				seen[key], out = true, append(out, f)
			}
		}
	}
	slices.SortStableFunc(out, findings.Worse)
	return out
}

// workers prints the workers' table.
func (p *page) workers(rows []admin.WorkerRow) {
	if len(rows) == 0 {
		p.line("no workers")
		return
	}
	columns := []column{{"WORKER", false, 0}, {"STATE", false, 0}, {"IN FLIGHT", true, 0}, {"QUEUED", true, 0}, {"TOKENS/S", true, 4},
		{"HITS", true, 0}, {"CACHE", true, 2}, {"EVENTS", true, 3}, {"BLOCKS", true, 6}, {"MODEL", false, 5}, {"ADDRESS", false, 7},
		{"REQUESTS", true, wideOnly}, {"ENGINE", false, wideOnly},
		{"CLASS", false, wideOnly}, {"ROLE", false, wideOnly}, {"LAST EVENT", false, wideOnly}}
	var cells [][]string
	for i := range rows {
		r := &rows[i]
		cache, rate, events := "–", "–", "–"
		if r.Report != nil {
			cache = orDash(narrow(r.Report.Percent()))
		}
		if r.Rate > 0 {
			rate = short(r.Rate)
		}
		if r.Events != "none" {
			events = millis(1e3 * r.EventAge)
			if r.EventAge == 0 {
				events = "0s"
			}
		}
		cells = append(cells, []string{name(r), p.state(r.State, stateSince(r)), fmt.Sprint(r.Inflight), short(r.Backlog), rate,
			percent(r.Recent.Cached, r.Recent.Prompt), cache, events, short(float64(r.Blocks)), said(r.Model), said(r.Addr),
			fmt.Sprint(r.Recent.Requests), orDash(said(r.Release)), orDash(said(r.Class)), orDash(said(r.Role)), orDash(said(r.LastEvent))})
	}
	p.table(true, columns, cells)
}

// stateSince is a worker's state, with how long it has been out of service.
func stateSince(r *admin.WorkerRow) string {
	if r.ServiceSince.IsZero() {
		return said(r.State)
	}
	return said(r.State) + " " + ago(time.Since(r.ServiceSince))
}

func name(r *admin.WorkerRow) string {
	if r.Rank >= 0 {
		return fmt.Sprintf("%s rank %d", said(r.Name), r.Rank)
	}
	return said(r.Name)
}

// worker prints all that is known of a worker: what /workers has, by its names there.
func (p *page) worker(r *admin.WorkerRow) {
	p.line(p.bold(name(r)), p.state(r.State, stateSince(r)))
	text, _ := json.Marshal(r) // it came as JSON
	if r.Service != nil && r.Removal != nil {
		p.line("  it alone holds", short(r.Removal.Alone), "prompt tokens, of which", short(r.Removal.Again),
			"are expected to be asked for again")
	}
	p.facts("", gjson.ParseBytes(text))
	p.line()
}

// facts prints the values of a JSON object, each behind the names that lead to it.
func (p *page) facts(within string, object gjson.Result) {
	of := object.Map()
	for _, key := range slices.Sorted(maps.Keys(of)) {
		name, value := within+strings.ReplaceAll(key, "_", " "), of[key]
		switch {
		case name == "name" || name == "state" || name == "bad":
		case value.IsObject():
			p.facts(name+" ", value)
		case value.Type == gjson.Number:
			p.line(fmt.Sprintf("  %-28s", name), figure(value.Num))
		default:
			p.line(fmt.Sprintf("  %-28s", name), said(value.String()))
		}
	}
}

// figure writes a number: whole, or small with two places.
func figure(n float64) string {
	if n == math.Trunc(n) || n >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.2f", n)
}

// problems prints findings with their fixes.
func (p *page) problems(list []findings.Finding) {
	for i := range list {
		f := &list[i]
		head := map[string]string{"error": p.bad("× error"), "warning": p.warn("‼ warning"), "note": "· note"}[f.Severity]
		p.line(cmp.Or(head, said(f.Severity)), p.bold(said(f.Code)), p.dim("for "+ago(time.Since(f.Since))))
		p.under("", said(f.What), plain)
		p.under("  Fix", said(f.Fix), plain)
	}
}

// Names returns names for completion: codes, causes, and of running Sightlines workers or models. Those that a shell would read are left
// out.
func Names(ctx context.Context, kind string) (list []string) {
	switch kind {
	case "codes":
		return findings.Codes()
	case "causes":
		for c := range account.Causes() {
			list = append(list, strings.ReplaceAll(c.String(), " ", "-"))
		}
		return list
	}
	a, err := From{}.Open(ctx)
	if err != nil {
		return nil
	}
	defer a.Close()
	rows, _ := get[[]admin.WorkerRow](ctx, a, "/workers")
	for _, r := range joinWorkers(rows) {
		name := map[string]string{"workers": r.Name, "models": r.Model}[kind]
		if wordOnly.MatchString(name) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

var wordOnly = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`)
