package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/sightline-router/sightline/internal/admin"
	"github.com/sightline-router/sightline/router"
)

// showRoute prints where a running Sightline would send a request now.
func (o *Options) showRoute(ctx context.Context, w io.Writer, line []byte) error {
	_, endpoint, request := unwrap(line)
	text, err := o.ask(ctx, http.MethodPost, o.Admin, "/explain", url.Values{"path": {endpoint}}, request)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	return o.showExplained(w, text)
}

// showDecision prints a past decision of a running Sightline.
func (o *Options) showDecision(ctx context.Context, w io.Writer) error {
	if o.Admin == "" {
		return errors.New("--id is of a running Sightline's decision (give --admin URL)")
	}
	text, err := o.ask(ctx, http.MethodGet, o.Admin, "/explain", url.Values{"id": {o.ID}}, nil)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
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
	line := func(key, format string, args ...any) { fmt.Fprintf(w, "%-11s %s\n", key, fmt.Sprintf(format, args...)) }
	fmt.Fprintf(w, "── decision %s, %s\n", e.ID, e.At.Format(time.RFC3339))
	line("model", "%s", cmp.Or(e.Model, e.Asked, "none"))
	if e.Refused != "" {
		line("refused", "%s", e.Refused)
		return nil
	}
	line("goes to", "%s", cmp.Or(place(e.Worker, e.Rank), "nobody"))
	line("reason", "%s%s", e.Reason, behind("; ", e.Why))
	if e.PromptTokens > 0 {
		line("prompt", "%d tokens, %d of them predicted to be cached there; %d is the most that any worker holds%s", e.PromptTokens, e.CachedTokens,
			e.HeldTokens, behind(", not chosen for: ", e.Regret))
	}
	if len(e.Ranked) > 0 {
		line("margin", "%.0f tokens before the next; %d others cost as much", e.Margin, e.Ties)
		table(w, &e)
	}
	if e.Used != "" || e.Code != 0 {
		line("went to", "%s%s", cmp.Or(e.Used, "nobody"), map[bool]string{true: ", the first choice"}[e.Used == e.Addr])
		line("ended", "status %d, first byte after %s", e.Code, e.FirstByte.Round(time.Millisecond))
		line("cached", "%s", reported(&e))
		line("stored", "%s", stored(&e))
	}
	_, err := fmt.Fprintln(w)
	return err
}

// table prints the candidates, one per line: what they hold, their load, and each term of their cost.
func table(w io.Writer, e *admin.Explained) {
	fmt.Fprintf(w, "\n%d candidates, in tokens; cost is the sum of what stands behind it:\n", e.Considered)
	t := tabwriter.NewWriter(w, 0, 1, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "worker\tholds\tin lower tiers\tpredicted\tto encode\tin flight\tqueued\ttokens/s\tcost\tprefill\tqueue\ttail\tstall\trequests\tcontext\tcache\tfetch\telsewhere\tdistance\t")
	for i := range e.Ranked {
		c, k := &e.Ranked[i], &e.Ranked[i].Terms
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%.0f\t", place(c.Worker, c.Rank), c.Exact, c.Offloaded, c.Predicted, c.Encode, c.Inflight, c.Backlog)
		if c.Out != "" {
			fmt.Fprintf(t, "\t%s\t\t\t\t\t\t\t\t\t\t\t\n", map[string]string{"out": "out: it fails", "full": "full", "new": "new: it has its share"}[c.Out])
			continue
		}
		fmt.Fprintf(t, "%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t", c.Rate, c.Cost, k.Prefill, k.Queue, k.Tail, k.Stall, k.Requests, k.Context, k.Cache, k.Fetch, k.Elsewhere, k.Distance)
		fmt.Fprintln(t, behind("", note(c)))
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
		return "the engine's count was not told (envoy.token_usage)"
	}
	return fmt.Sprintf("%d tokens as the engine counted, %d were predicted%s", e.Reported, e.CachedTokens,
		map[bool]string{true: ": as predicted"}[e.Reported == e.CachedTokens])
}

// stored describes the audit's finding.
func stored(e *admin.Explained) string {
	switch {
	case e.Finding != nil:
		return fmt.Sprintf("otherwise than predicted (%s): %s", e.Finding.Verdict, e.Finding.Says)
	case e.Audit == "equal":
		return "as predicted"
	case e.Audit != "":
		return string(e.Audit)
	}
	return "nothing to compare: all of it was held already, or the audit is off or not there yet"
}

func place(worker string, rank int) string {
	if rank >= 0 && worker != "" {
		return fmt.Sprintf("%s rank %d", worker, rank)
	}
	return worker
}

// behind returns sep and text, or "" if text is empty.
func behind(sep, text string) string {
	if text == "" {
		return ""
	}
	return sep + text
}
