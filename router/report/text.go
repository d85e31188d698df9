package report

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/decisionlog"
)

// maxLine limits a line of a decision log, in bytes: for a prompt of a million tokens it has 40 KB.
const maxLine = 4 << 20

// ReadLog sums up the lines of a decision log, or of several concatenated ones. Lines that are cut off (a full disk, a killed process)
// are counted and left out. It is an error if no line can be read, or one is too long.
func ReadLog(r io.Reader, of Range) (Report, error) {
	t := New("", time.Time{})
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLine)
	n, readable, unreadable, unknownArm := 0, 0, 0, 0
	var first error
	for scan.Scan() {
		n++
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		l := decisionlog.Line{ReportedCached: -1}
		if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
			unreadable, first = unreadable+1, cmp.Or(first, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		readable++
		at := time.UnixMilli(l.Timestamp)
		if !of.Since.IsZero() && at.Before(of.Since) || !of.Until.IsZero() && !at.Before(of.Until) || of.Model != "" && of.Model != l.Model {
			continue
		}
		if one, ok := Of(&l); ok {
			t.all.add(&one, at)
		} else if arm := Arm(l.Arm); arm != "" && arm != Steered && arm != Unsteered && l.Outcome == decisionlog.Ended {
			unknownArm++
		}
	}
	if err := scan.Err(); err != nil {
		return Report{}, fmt.Errorf("line %d: %w", n+1, err)
	}
	if readable == 0 && first != nil {
		return Report{}, first
	}
	out := t.Report()
	out.Unreadable, out.UnknownArm = unreadable, unknownArm
	return out, nil
}

// String returns the report for people. It omits numbers from too few requests.
func (r Report) String() string {
	var out strings.Builder
	r.writeCauses(&out)
	fmt.Fprintf(&out, "%s to %s", minute(r.Since), minute(r.Until))
	if r.Mode != "" {
		fmt.Fprintf(&out, ", enforce: %s", r.Mode)
	}
	if r.Replicas > 0 {
		fmt.Fprintf(&out, ", %d replicas", r.Replicas)
	}
	if r.Silent > 0 {
		fmt.Fprintf(&out, " (%d more did not answer)", r.Silent)
	}
	out.WriteString("\n\n")
	row := func(what string, of func(s *Side) string) {
		fmt.Fprintf(&out, "%-22s %18s %18s\n", what, of(&r.Steered), of(&r.Unsteered))
	}
	fmt.Fprintf(&out, "%-22s %18s %18s\n", "", "steered", "unsteered")
	row("requests", func(s *Side) string { return fmt.Sprint(s.Requests) })
	row("failed", func(s *Side) string { return fmt.Sprint(s.Failed) })
	row("prompt tokens", func(s *Side) string { return fmt.Sprint(s.Prompt) })
	row("cached of them", func(s *Side) string { return fmt.Sprintf("%d (%s)", s.Cached, printable.Percent(s.Cached, s.Prompt)) })
	row("  requests measured", func(s *Side) string { return fmt.Sprint(s.Known) })
	row("  by the engine's count", func(s *Side) string { return fmt.Sprint(s.Counted) })
	row("first byte, median", func(s *Side) string { return millis(s.FirstByte.P50, s.FirstByte.N) })
	row("  p95", func(s *Side) string { return millis(s.FirstByte.P95, s.FirstByte.N) })
	row("end, median", func(s *Side) string { return millis(s.End.P50, s.End.N) })
	row("  p95", func(s *Side) string { return millis(s.End.P95, s.End.N) })
	r.writeWaited(&out)
	r.Would.write(&out)
	out.WriteString(r.LeftOut())
	return out.String()
}

// writeWaited writes how long requests waited at workers, the urgent first.
func (r *Report) writeWaited(w io.Writer) {
	sep := "\nBefore they were computed at their workers, "
	for i, band := range []string{"urgent", "usual", "low"} {
		if t := &r.Waited[bands-1-i]; t.N > 0 {
			fmt.Fprintf(w, "%s%d %s requests waited a median of %s (p95 %s)", sep, t.N, band, millis(t.P50, t.N), millis(t.P95, t.N))
			sep = ", "
		}
	}
	if sep == ", " {
		fmt.Fprintln(w, ".")
	}
}

// LeftOut says which lines of a decision log are not counted; "": all are.
func (r Report) LeftOut() (text string) {
	if r.Unreadable > 0 {
		text = fmt.Sprintf("\n%d lines are cut off and left out, as after a full disk or a killed process.\n", r.Unreadable)
	}
	if r.UnknownArm > 0 {
		text += fmt.Sprintf("\n%d lines are left out: want the arm %s or %s (0.1.0 wrote \"left\" for the second).\n", r.UnknownArm,
			Steered, Unsteered)
	}
	return text
}

// writeCauses writes why prompt tokens were not cached, in points of all prompt tokens.
func (r *Report) writeCauses(w io.Writer) {
	if r.Accounted == 0 {
		return
	}
	points := func(n int) float64 { return 100 * float64(n) / float64(r.Accounted) }
	type line struct {
		tokens int
		says   string
	}
	var lines []line
	rest := 0
	add := func(tokens int, says string) {
		if points(tokens) < 0.5 {
			rest += tokens
		} else {
			lines = append(lines, line{tokens, says})
		}
	}
	for c, tokens := range r.Uncached {
		if c := account.Cause(c); c == account.Changed {
			for i := range r.Departures {
				if p := &r.Departures[i]; p.Tokens <= tokens && points(p.Tokens) >= 0.5 {
					add(p.Tokens, p.String())
					tokens -= p.Tokens
				}
			}
		}
		says := account.Cause(c).Says()
		if account.Cause(c) == account.Evicted && r.Kept > 0 {
			says = fmt.Sprintf("evicted (a fifth more cache would keep at least %s of them)", short(points(r.Kept)))
		}
		add(tokens, says)
	}
	slices.SortStableFunc(lines, func(a, b line) int { return b.tokens - a.tokens })
	fmt.Fprintf(w, "Of %.0f %% uncached", points(r.Uncached.Total()))
	sep := ": "
	for _, l := range lines {
		fmt.Fprintf(w, "%s%.0f points %s", sep, points(l.tokens), l.says)
		sep = "; "
	}
	if rest > 0 {
		fmt.Fprintf(w, "%s%.1f points of other causes", sep, points(rest))
	}
	fmt.Fprint(w, ".")
	if all := r.Seconds.Total(); all > 0 {
		fmt.Fprintf(w, " Workers took %s of prefill for them", seconds(all))
		sep := ": "
		for i := range r.Departures {
			if p := &r.Departures[i]; i < 3 && p.Seconds >= all/200 {
				fmt.Fprintf(w, "%s%s for %s in %s", sep, seconds(p.Seconds), cmp.Or(p.Kind, "a change"), p.Part)
				sep = ", "
			}
		}
		if n := r.Seconds[account.Evicted]; n >= all/200 {
			fmt.Fprintf(w, "%s%s for what was evicted", sep, seconds(n))
		}
		fmt.Fprint(w, ".")
	}
	fmt.Fprint(w, "\n\n")
}

// short writes points without a fraction, unless there is less than one.
func short(points float64) string {
	if points < 0.95 {
		return fmt.Sprintf("%.1f", points)
	}
	return fmt.Sprintf("%.0f", points)
}

// seconds writes a duration that may be short or of days.
func seconds(s float64) string {
	if s < 90 {
		return fmt.Sprintf("%.1f s", s)
	} else if s < 7200 {
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

func (x *Savings) write(w io.Writer) {
	if x.Requests == 0 {
		fmt.Fprint(w, "\nNo request was not steered of which it is known what the choice would have been.\n")
		return
	}
	of := func(n int) string { return fmt.Sprintf("%d (%s)", n, printable.Percent(n, x.Requests)) }
	fmt.Fprintf(w, "\nOf %d unsteered requests, each as its workers stood when it was decided, the choice would have found\n", x.Requests)
	fmt.Fprintf(w, "  more cached   %s: %d tokens more\n", of(x.Better), x.Spared)
	fmt.Fprintf(w, "  as much       %s\n", of(x.Requests-x.Better-x.Worse))
	fmt.Fprintf(w, "  less          %s: %d tokens less\n", of(x.Worse), x.Cost)
	fmt.Fprintf(w, "In all %+d tokens (%s of their prompts)", x.Spared-x.Cost, printable.Percent(x.Spared-x.Cost, x.Prompt))
	if x.Uncertainty > 0 {
		fmt.Fprintf(w, ", %.0f ± %.0f a request", x.Mean, x.Uncertainty)
	} else if x.Requests < fewForMean {
		fmt.Fprintf(w, "; too few for a mean: %d", x.Requests)
	}
	fmt.Fprintf(w, ", and %+d tokens of images not encoded.\n", x.Encode)
	if x.Timed > 0 {
		fmt.Fprintf(w, "At the rates that workers have shown that is %+.1f s of prefill, %+.0f ms a request", x.Millis/1e3,
			x.Millis/float64(x.Timed))
		if x.Timed < x.Requests {
			fmt.Fprintf(w, ", of %d requests", x.Timed)
		}
		fmt.Fprint(w, ".\n")
	} else {
		fmt.Fprint(w, "No worker has shown yet how fast it prefills.\n")
	}
}

func minute(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.Format("2006-01-02 15:04")
}

func millis(ms float64, n int) string {
	if ms == 0 {
		return fmt.Sprintf("too few: %d", n)
	}
	return fmt.Sprintf("%.0f ms", ms)
}
