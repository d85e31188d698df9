package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
)

// paint writes in colours, on a terminal that wants them.
type paint bool

func (p paint) as(code, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p paint) bold(text string) string  { return p.as("1", text) }
func (p paint) green(text string) string { return p.as("32", text) }

func (p paint) head(out io.Writer) {
	fmt.Fprintf(out, "%s\n", p.bold(fmt.Sprintf("  #  %-29s %-9s %-9s %-16s %7s %9s %9s %7s", "request", "worker", "why",
		"cached", "prompt", "predicted", "reported", "ttft")))
}

// row prints a request's line: the reason for its worker, and how much of its prompt that concerns.
func (p paint) row(out io.Writer, i int, what string, a *answer) {
	share := 100 * a.decided.Cached / max(1, a.prompt)
	bar := strings.Repeat("■", (share+9)/10) + strings.Repeat("·", 10-(share+9)/10)
	reported := fmt.Sprintf("%9d", a.cached)
	if a.cached != a.decided.Cached {
		reported = p.as("31", reported)
	}
	held := fmt.Sprintf("%s %3d %%", bar, share)
	if share >= 50 {
		held = p.green(held)
	}
	fmt.Fprintf(out, "%3d  %-29s %-9s %-9s %s %7d %9d %s %4d ms\n", i+1, what, fmt.Sprint("worker-", a.worker+1), a.decided.Reason, held,
		a.prompt, a.decided.Cached, reported, a.first.Milliseconds())
}

// summary sums up one run.
type summary struct {
	requests, prompt, cached, encoded, equal int
	by                                       [3]int        // requests of each worker
	mean, p50, p99                           time.Duration // to the first token
}

func sum(list []answer, encoded int) summary {
	s := summary{requests: len(list), encoded: encoded}
	var ttft []time.Duration
	for _, a := range list {
		s.prompt += a.prompt
		s.cached += a.cached
		s.by[a.worker]++
		s.mean += a.first / time.Duration(len(list))
		ttft = append(ttft, a.first)
		if a.decided.Cached == a.cached {
			s.equal++
		}
	}
	slices.Sort(ttft)
	s.p50, s.p99 = ttft[len(ttft)/2], ttft[(len(ttft)*99-1)/100]
	return s
}

// compare prints the two runs side by side. Green marks what was better with Sightline.
func (p paint) compare(out io.Writer, a, b summary) {
	row := func(what, without, with string, better bool) {
		with = fmt.Sprintf("%16s", with)
		if better {
			with = p.green(with)
		}
		fmt.Fprintf(out, "%-28s %16s %s\n", what, without, with)
	}
	first := func(what string, a, b time.Duration) {
		row("time to first token, "+what, fmt.Sprintf("%d ms", a.Milliseconds()), fmt.Sprintf("%d ms", b.Milliseconds()), b < a)
	}
	cached := func(s summary) string { return fmt.Sprintf("%d (%d %%)", s.cached, 100*s.cached/max(1, s.prompt)) }
	by := func(s summary) string { return fmt.Sprintf("%d, %d, %d", s.by[0], s.by[1], s.by[2]) }
	fmt.Fprintf(out, "\n%-28s %16s %s\n", "", "round robin", p.bold(fmt.Sprintf("%16s", "Sightline")))
	row("cached tokens", cached(a), cached(b), b.cached > a.cached)
	row("images encoded", fmt.Sprint(a.encoded), fmt.Sprint(b.encoded), b.encoded < a.encoded)
	first("mean", a.mean, b.mean)
	first("p50", a.p50, b.p50)
	first("p99", a.p99, b.p99)
	row("requests by worker", by(a), by(b), false)
	fmt.Fprintf(out, "\npredicted cached tokens = the worker's own count in %d of %d requests\n", b.equal, b.requests)
}

// lost prints what prompts computed that none of them would have had to, by the causes that Sightline's decisions tell. Of each prompt the
// last, partial block is computed, and does not count.
func (p paint) lost(out io.Writer, l *lab.Lab, prompts int) error {
	var list []router.Recent
	for wait := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) { // the last ends may not have been reported
		text, err := lab.Get("http://" + l.Admin + "/decisions?n=1024")
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		told := 0
		for i := range list {
			if list[i].Account != nil {
				told++
			}
		}
		if err == nil && told < prompts && time.Now().After(wait) {
			err = fmt.Errorf("got %d accounts, want %d", told, prompts)
		}
		if err != nil || told >= prompts {
			p.causes(out, list)
			return err
		}
	}
}

func (p paint) causes(out io.Writer, list []router.Recent) {
	var tokens account.Sums
	with, lost, where := map[account.Cause]int{}, 0, ""
	for i := range list {
		if list[i].Account == nil {
			continue
		}
		one := list[i].Account.Uncached
		one[account.Block] = 0
		one.Each(func(c account.Cause, _ int) { with[c]++ })
		if c := list[i].Account.Change(); c != nil {
			where = ", such as: " + c.String()
		}
		tokens.Add(&one)
		if one.Total() > 0 {
			lost++
		}
	}
	fmt.Fprintf(out, "\n%s\n", p.bold(fmt.Sprintf("what %d of %d prompts lost, and why:", lost, len(list))))
	tokens.Each(func(c account.Cause, n int) {
		says := c.Says()
		if c == account.Changed {
			says += where
		}
		fmt.Fprintf(out, "  %-10s %6d tokens of %2d prompts, %s\n", c, n, with[c], says)
	})
}
