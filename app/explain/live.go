package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/choose"
)

// ask asks a running Sightline's admin address.
func (o *Options) ask(ctx context.Context, method string, query url.Values, send []byte) ([]byte, error) {
	text, err := admin.Ask(ctx, admin.AdminRequest{Method: method, Base: o.Admin, Path: "/explain?" + query.Encode(), Body: send,
		Token: o.Token, MaxBytes: 64 << 20})
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	return text, nil
}

// showRoute prints where a running Sightline would send a request now.
func (o *Options) showRoute(ctx context.Context, w io.Writer, line []byte) error {
	_, endpoint, request := unwrap(line)
	text, err := o.ask(ctx, http.MethodPost, url.Values{"path": {endpoint}}, request)
	if err != nil {
		return err
	}
	return o.showExplained(w, text)
}

// showDecision prints a past decision of a running Sightline.
func (o *Options) showDecision(ctx context.Context, w io.Writer) error {
	if o.Admin == "" {
		return errors.New("--id names a running Sightline's decision (give --admin URL)")
	}
	text, err := o.ask(ctx, http.MethodGet, url.Values{"id": {o.ID}}, nil)
	if err != nil {
		return err
	}
	return o.showExplained(w, text)
}

func (o *Options) showExplained(w io.Writer, text []byte) error {
	if o.JSONL {
		_, err := w.Write(text)
		return err
	}
	var e admin.Explained
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	return Print(w, &e)
}

// Print prints a decision for people.
func Print(w io.Writer, e *admin.Explained) error {
	line := func(key, format string, args ...any) { fmt.Fprintf(w, "%-11s %s\n", key, fmt.Sprintf(format, args...)) }
	fmt.Fprintf(w, "── decision %s, %s\n", e.ID, e.At.Format(time.RFC3339))
	line("model", "%s", cmp.Or(e.Model, e.Asked, "none"))
	if e.Refused != "" {
		line("refused", "%s", e.Refused)
		return nil
	}
	line("goes to", "%s", cmp.Or(workerAndRank(e.Worker, e.Rank), "no worker"))
	line("reason", "%s%s", e.Reason, joinNonEmpty("; ", e.Why))
	for i := range e.RulesAside {
		line("rule", "%s", e.RulesAside[i].Text())
	}
	if e.Memory {
		line("read", "by rule as far as it goes, the rest is learned: %s", cmp.Or(e.Why, "not exact"))
	} else if e.PromptTokens > 0 {
		line("read", "by rule")
	}
	if e.PromptTokens > 0 {
		line("prompt", "%d tokens, %d of them predicted to be cached there; %d is the most that any worker holds%s",
			e.PromptTokens, e.CachedTokens,
			e.HeldTokens, joinNonEmpty(", not chosen for: ", e.Regret))
	}
	if o := e.Order; o != nil {
		line("due", "%.1f s after it came, with %d tokens of work; the worker serves those that wait: %s", o.Delay/1e3, o.Work, o.Serves)
	}
	if len(e.Ranked) > 0 {
		line("margin", "%.0f tokens %s than the next; %d of the others count as equal", math.Abs(e.Margin),
			map[bool]string{true: "dearer", false: "cheaper"}[e.Margin < 0], e.Ties)
		table(w, e)
	}
	if e.Used != "" || e.Code != 0 {
		line("went to", "%s%s%s", cmp.Or(e.Used, "no worker"), map[bool]string{true: ", the first choice"}[e.Used == e.Addr],
			map[bool]string{true: ", after an attempt that failed"}[e.Retried])
		line("ended", "status %d, first byte after %s", e.Code, e.FirstByte.Round(time.Millisecond))
		line("cached", "%s", reported(e))
		if e.Account != nil {
			line("tokens", "%d cached; %s", e.Account.Cached, strings.Join(e.Account.Says(), "; "))
		}
		line("stored", "%s", stored(e))
	}
	_, err := fmt.Fprintln(w)
	return err
}

// table prints the candidates, one per line: what they hold, their load, and their cost with each of its terms. It omits columns that
// are empty for all of them.
func table(w io.Writer, e *admin.Explained) {
	fmt.Fprintf(w, "\n%d candidates, in tokens; cost is the sum of the columns after it:\n", e.Considered)
	rows := [][]string{{"worker", "holds", "in lower tiers", "predicted", "to encode", "in flight", "queued", "tokens/s", "cost"}}
	for _, t := range admin.Terms(choose.Terms{}) {
		rows[0] = append(rows[0], t.Name)
	}
	number := func(n float64) string { return fmt.Sprintf("%.0f", n) }
	for i := range e.Ranked {
		c := &e.Ranked[i]
		row := []string{workerAndRank(c.Worker, c.Rank), strconv.Itoa(c.Exact), strconv.Itoa(c.Offloaded), strconv.Itoa(c.Predicted),
			strconv.Itoa(c.Encode), strconv.Itoa(c.Inflight),
			number(c.Backlog)}
		if c.Out != "" {
			row = append(row, "", map[string]string{"out": "out: it fails", "full": "full", "new": "new: it has had its share"}[c.Out])
		} else {
			row = append(row, number(c.Rate), number(c.Cost))
			for _, t := range admin.Terms(c.Terms) {
				row = append(row, number(t.Tokens))
			}
			row = append(row, note(c))
		}
		rows = append(rows, row)
	}
	t := tabwriter.NewWriter(w, 0, 1, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		for i, cell := range row {
			always := i < 2 || i == 8 || i >= len(rows[0]) // the worker, what it holds, its cost, the note
			if always || slices.ContainsFunc(rows[1:], func(r []string) bool { return i < len(r) && r[i] != "0" && r[i] != "" }) {
				fmt.Fprint(t, cell, "\t")
			}
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
	fmt.Fprintln(w)
}

func note(c *router.Considered) string {
	switch {
	case c.Trial:
		return "on trial"
	case c.Doubtful:
		return "its events are late"
	}
	return ""
}

// reported describes the engine's own count of cached tokens, compared with the prediction.
func reported(e *admin.Explained) string {
	if e.Reported < 0 {
		return "the engine's count was not reported (envoy.token_usage)"
	}
	return fmt.Sprintf("%d tokens as the engine counted, %d were predicted%s", e.Reported, e.CachedTokens,
		map[bool]string{true: ": as predicted"}[e.Reported == e.CachedTokens])
}

// stored describes the audit's finding.
func stored(e *admin.Explained) string {
	switch {
	case e.Finding != nil:
		return fmt.Sprintf("not as predicted (%s): %s", e.Finding.Verdict, e.Finding.Says)
	case e.Audit == "equal":
		return "as predicted"
	case e.Audit != "":
		return string(e.Audit)
	}
	return "nothing to compare: all of it was held already, or the audit is off or not there yet"
}

func workerAndRank(worker string, rank int) string {
	if rank >= 0 && worker != "" {
		return fmt.Sprintf("%s rank %d", worker, rank)
	}
	return worker
}

// joinNonEmpty returns sep and text, or "" if text is empty.
func joinNonEmpty(sep, text string) string {
	if text == "" {
		return ""
	}
	return sep + text
}
