package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// result collects the results of a side's requests.
type result struct {
	mu                     sync.Mutex
	Requests, Failed       int
	Prompt, Cached, Output int // tokens
	Took                   time.Duration
	First, PerToken, End   times
	Reasons                map[string]int
	lastError              string
}

func (r *result) add(a Answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Requests++
	if err != nil {
		r.Failed++
		r.lastError = err.Error()
		return
	}
	r.Prompt += a.Prompt
	r.Cached += a.Cached
	r.Output += a.Output
	r.First = append(r.First, a.First)
	r.End = append(r.End, a.End)
	if a.Output > 1 {
		r.PerToken = append(r.PerToken, (a.End-a.First)/time.Duration(a.Output-1))
	}
	if a.Reason != "" {
		if r.Reasons == nil {
			r.Reasons = make(map[string]int)
		}
		r.Reasons[a.Reason]++
	}
}

// hits returns the share of the prompts that was found cached.
func (r *result) hits() float64 { return float64(r.Cached) / float64(max(1, r.Prompt)) }

// times are durations of one kind.
type times []time.Duration

// at returns a quantile of sorted t, 0 if t is empty.
func (t times) at(q float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	return t[min(len(t)-1, int(q*float64(len(t))))]
}

func (t times) mean() time.Duration {
	sum := time.Duration(0)
	for _, d := range t {
		sum += d
	}
	return sum / time.Duration(max(1, len(t)))
}

// summary returns the JSON of a kind of times, in milliseconds.
func (t times) summary() map[string]float64 {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return map[string]float64{"mean_ms": ms(t.mean()), "p50_ms": ms(t.at(0.5)), "p90_ms": ms(t.at(0.9)), "p99_ms": ms(t.at(0.99))}
}

// report prints the table, or one JSON object per side.
func report(out io.Writer, o *Options, sides []*side) error {
	for _, s := range sides {
		for _, t := range []times{s.First, s.PerToken, s.End} {
			slices.Sort(t)
		}
		if !o.JSON {
			continue
		}
		if err := json.NewEncoder(out).Encode(map[string]any{"side": s.Name, "requests": s.Requests, "failed": s.Failed, "error": s.lastError,
			"seconds": s.Took.Seconds(), "prompt_tokens": s.Prompt, "cached_tokens": s.Cached, "hit_rate": s.hits(), "completion_tokens": s.Output,
			"time_to_first_token": s.First.summary(), "time_per_output_token": s.PerToken.summary(), "end_to_end": s.End.summary(),
			"reasons": s.Reasons}); err != nil {
			return err
		}
	}
	if o.JSON {
		return nil
	}
	row := func(what string, of func(s *side) string) {
		fmt.Fprintf(out, "%-32s", what)
		for _, s := range sides {
			fmt.Fprintf(out, " %14s", of(s))
		}
		fmt.Fprintln(out)
	}
	line := func(what string, of func(s *side) time.Duration) {
		end := ""
		if len(sides) == 2 && of(sides[1]) > 0 {
			end = fmt.Sprintf("  %.2fx", float64(of(sides[0]))/float64(of(sides[1])))
		}
		fmt.Fprintf(out, "%-32s", what)
		for _, s := range sides {
			fmt.Fprintf(out, " %11.1f ms", float64(of(s).Microseconds())/1000)
		}
		fmt.Fprintln(out, end)
	}
	of := func(what string, kind func(s *side) times) {
		if len(kind(sides[0])) == 0 {
			return
		}
		line(what+", mean", func(s *side) time.Duration { return kind(s).mean() })
		for _, q := range []float64{0.5, 0.9, 0.99} {
			line(fmt.Sprintf("%*s  p%g", len(what), "", 100*q), func(s *side) time.Duration { return kind(s).at(q) })
		}
	}
	row("", func(s *side) string { return s.Name })
	row("requests", func(s *side) string { return fmt.Sprint(s.Requests) })
	row("failed", func(s *side) string { return fmt.Sprint(s.Failed) })
	row("requests a second", func(s *side) string { return fmt.Sprintf("%.1f", float64(s.Requests)/max(s.Took.Seconds(), 0.001)) })
	row("prompt tokens", func(s *side) string { return fmt.Sprint(s.Prompt) })
	if o.ExtProc != "" {
		row("predicted to be cached", func(s *side) string { return fmt.Sprintf("%.1f %%", 100*s.hits()) })
		of("decision", func(s *side) times { return s.First })
	} else {
		row("cached, as engines report", func(s *side) string { return fmt.Sprintf("%.1f %%", 100*s.hits()) })
		of("time to first token", func(s *side) times { return s.First })
		of("time per output token", func(s *side) times { return s.PerToken })
		of("end to end", func(s *side) times { return s.End })
	}
	for _, s := range sides {
		for _, reason := range slices.Sorted(maps.Keys(s.Reasons)) {
			fmt.Fprintf(out, "%s: %d decisions %s\n", s.Name, s.Reasons[reason], reason)
		}
		if s.Failed > 0 {
			fmt.Fprintf(out, "%s: the last of %d failures: %s\n", s.Name, s.Failed, s.lastError)
		}
	}
	return nil
}

// bar shows the progress of a round. A nil bar shows nothing.
type bar struct {
	out   *os.File
	what  string
	of    int
	mu    sync.Mutex
	done  int
	shown time.Time
}

// newBar returns nil unless out is a terminal.
func newBar(out *os.File, what string, of int) *bar {
	if out == nil {
		return nil
	}
	if i, err := out.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &bar{out: out, what: what, of: of}
}

func (b *bar) step(r *result) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	if b.done < b.of && time.Since(b.shown) < 100*time.Millisecond {
		return
	}
	b.shown = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	const width = 30
	full := width * b.done / b.of
	fmt.Fprintf(b.out, "\r\x1b[K%s [%s%s] %d of %d, %.0f %% cached, %d failed", b.what, strings.Repeat("=", full),
		strings.Repeat(" ", width-full),
		b.done, b.of, 100*r.hits(), r.Failed)
}

func (b *bar) end() {
	if b != nil {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}
