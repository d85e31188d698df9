package fleetsim

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/config"
)

// Replay plays a decision log on the virtual clock three times: as it was, as another configuration would route it, and round
// robin.
//
//	log ─▶ requests, at the times they came ─┬─ to the workers that the log names ── how accurate the simulation is
//	                                         ├─ to those that the router chooses, set up by the configuration
//	                                         └─ in turn
//
// The three differ only in the choice, so their differences show its effect. What a log does not contain is assumed, and stated
// with the result: cache sizes, equality of prompts below 512 tokens, when clients would have sent the next turn.
type Replay struct {
	Config config.Config
	Name   string // the configuration's name in the tables
	Log    io.Reader
	Cache  int // capacity of a worker's KV cache in tokens; 0: that of Engine
}

// logged holds a decision log's fields besides those of a trace.
type logged struct {
	ID       string  `json:"id"`
	Model    string  `json:"model"`
	Worker   string  `json:"worker"`
	Used     string  `json:"used"`
	Rank     int     `json:"rank"`
	Reported *int    `json:"reported_cached_tokens"`
	First    float64 `json:"first_byte_ms"`
	Ranked   []struct {
		Rate float64 `json:"rate"`
	} `json:"ranked"`
}

// server returns the worker, or rank, that served the request; if unknown, the chosen one.
func (l *logged) server() string {
	name := cmp.Or(l.Used, l.Worker)
	if name == l.Worker && l.Rank >= 0 {
		name = fmt.Sprint(name, "/", l.Rank)
	}
	return name
}

const (
	maxReplayed = 50000 // requests of a log
	noticed     = 5 * time.Millisecond
)

// Run writes the result for each model that both log and configuration have. Errors name the log's line.
func (o Replay) Run(w io.Writer) error {
	trace, err := ReadTrace(o.Log, 1, maxReplayed)
	if err != nil {
		return err
	}
	models := make(map[string][]*Request)
	for _, r := range trace {
		models[r.logged.Model] = append(models[r.logged.Model], r)
	}
	played := false
	for _, name := range slices.Sorted(maps.Keys(models)) {
		at := slices.IndexFunc(o.Config.Models, func(m config.Model) bool { return m.Name == name })
		if at < 0 {
			fmt.Fprintf(w, "%q: %d requests, and no such model in %s\n", name, len(models[name]), o.Name)
			continue
		}
		o.model(w, &o.Config.Models[at], models[name])
		played = true
	}
	if !played {
		return fmt.Errorf("no request with a prompt of a model of %s: is it a decision log (decision_log.file)?", o.Name)
	}
	if len(trace) == maxReplayed {
		fmt.Fprintf(w, "Only the first %d requests of the log were played.\n", maxReplayed)
	}
	fmt.Fprint(w,
		"Assumed, since a log does not contain it: the size of the caches, that decoding is as in docs/choice.md, that "+
			"clients would have sent the same at the same\n"+
			"times, and that prompts differ from where a block of 512 tokens does. Health, limits (max_in_flight, hold) and "+
			"events' losses are not played.\n")
	return nil
}

// model plays one model's requests.
func (o Replay) model(w io.Writer, m *config.Model, requests []*Request) {
	var servers, rates = make(map[string]int), []float64(nil)
	for _, r := range requests {
		servers[r.logged.server()] = 0
		if len(r.logged.Ranked) > 0 && r.logged.Ranked[0].Rate > 0 {
			rates = append(rates, r.logged.Ranked[0].Rate)
		}
	}
	for i, name := range slices.Sorted(maps.Keys(servers)) {
		servers[name] = i
	}
	workers := 0
	for _, c := range o.Config.Workers {
		if cmp.Or(c.Model, m.Name) == m.Name {
			workers += max(1, c.Ranks)
		}
	}
	workers = cmp.Or(workers, len(servers))
	setup := Setup{Workers: len(servers), Engine: defaultEngine(), Delays: defaultDelays(), Seed: 1, PredictedTTL: o.Config.Fixed.PredictedTTL}
	e := &setup.Engine
	cache := cmp.Or(o.Cache, e.Blocks*e.BlockSize)
	rate := 10000.0
	if len(rates) > 0 {
		slices.Sort(rates)
		rate = rates[len(rates)/2]
	}
	e.BlockSize, e.Blocks, e.Prefill, e.Pair = m.BlockSize, cache/m.BlockSize, 1/rate, 0
	unsteered, mode := o.Config.Unsteered()
	ready := prepare(requests, m.BlockSize)
	play := func(picker func(*View) Picker) map[*Request]*Served {
		served := make(map[*Request]*Served, len(requests))
		result := Run(setup, ready, picker)
		for i := range result.Served {
			served[result.Served[i].Req] = &result.Served[i]
		}
		return served
	}
	was := play(func(*View) Picker {
		return pickBy{pick: func(_ *View, r *run) int { return servers[r.req.logged.server()] }}
	})
	setup.Workers = workers
	other := play(func(v *View) Picker { return &split{newSightline(v), roundRobin(v), unsteered} })
	turns := play(roundRobin)

	fmt.Fprintf(w,
		"%s: %d requests in %v, of %d workers; %s has %d. mode %s, block_size %d; %.0f tokens a second, "+
			"caches of %d tokens\n\n", m.Name, len(requests),
		(requests[len(requests)-1].At - requests[0].At).Round(time.Second), len(servers), o.Name, workers, mode, m.BlockSize,
		rate, cache)
	fmt.Fprintf(w, "%-22s %18s %18s %18s\n", "", "as logged", o.Name, "round robin")
	row := func(what string, of func(map[*Request]*Served) string) {
		fmt.Fprintf(w, "%-22s %18s %18s %18s\n", what, of(was), of(other), of(turns))
	}
	prompt := 0
	for _, r := range requests {
		prompt += r.Input()
	}
	row("prompt tokens", func(map[*Request]*Served) string { return fmt.Sprint(prompt) })
	row("cached of them", func(p map[*Request]*Served) string {
		return fmt.Sprintf("%d (%.0f %%)", cachedOf(p), 100*float64(cachedOf(p))/float64(prompt))
	})
	for i, what := range []string{"first token, median", "  p90", "  p99"} {
		row(what, func(p map[*Request]*Served) string {
			var all []time.Duration
			for _, s := range p {
				all = append(all, s.TTFT)
			}
			q := quantiles(all)
			return fmt.Sprintf("%d ms", ms([...]time.Duration{q.P50, q.P90, q.P99}[i]))
		})
	}
	compare(w, "what was logged", requests, was, other)
	compare(w, "round robin", requests, turns, other)
	compareHits(w, requests, was)
}

func cachedOf(p map[*Request]*Served) (n int) {
	for _, s := range p {
		n += s.Cached
	}
	return n
}

// compare writes the configuration's effect against another way of routing, and which requests it makes worse.
func compare(w io.Writer, what string, requests []*Request, before, after map[*Request]*Served) {
	var sum, later time.Duration
	var worse [classes]int
	var worst *Served
	for _, r := range requests {
		d := after[r].TTFT - before[r].TTFT
		sum += d
		if d < noticed {
			continue
		}
		worse[classOf(after[r])]++
		later += d
		if worst == nil || d > worst.TTFT-before[worst.Req].TTFT {
			worst = after[r]
		}
	}
	n := len(requests)
	fmt.Fprintf(w, "\nAgainst %s: %+d tokens cached, %+.1f ms a request to the first token.\n", what,
		cachedOf(after)-cachedOf(before), 1e3*sum.Seconds()/float64(n))
	if worst == nil {
		fmt.Fprintf(w, "No request would have waited %v longer.\n", noticed)
		return
	}
	var kinds []string
	all := 0
	for c, count := range worse {
		all += count
		kinds = append(kinds, fmt.Sprintf("%d %s", count, class(c)))
	}
	fmt.Fprintf(w, "Later by %v or more: %d requests (%.0f %%; %s), by %d ms on average, %d ms at most (%s).\n", noticed,
		all, 100*float64(all)/float64(n),
		strings.Join(kinds, ", "), ms(later)/int64(all), ms(worst.TTFT-before[worst.Req].TTFT), worst.Req.logged.ID)
}

// compareHits compares the hits that engines reported with those of the simulation.
func compareHits(w io.Writer, requests []*Request, was map[*Request]*Served) {
	known, prompt, told, simulated := 0, 0, 0, 0
	for _, r := range requests {
		if c := r.logged.Reported; c != nil && *c >= 0 {
			known, prompt, told, simulated = known+1, prompt+r.Input(), told+*c, simulated+was[r].Cached
		}
	}
	if known == 0 {
		fmt.Fprint(w, "\nThe log has no engine's count of cached tokens to compare this with (envoy.token_usage).\n\n")
		return
	}
	of := func(n int) float64 { return 100 * float64(n) / float64(prompt) }
	fmt.Fprintf(w, "\nFor %d requests engines reported cached tokens: %.0f %%; the same requests in the simulation: %.0f %%.",
		known, of(told), of(simulated))
	if off := of(told) - of(simulated); off > 10 || off < -10 {
		fmt.Fprint(w, " The difference is large: do not trust the tables (is --cache-tokens right?).")
	}
	fmt.Fprint(w, "\n\n")
}

// split leaves a share of the conversations to another picker, as enforce does.
type split struct {
	steered, alone Picker
	unsteered      float64
}

func (s *split) of(r *run) Picker {
	if float64(mix(r.req.Session, 21)>>11)/(1<<53) < s.unsteered {
		return s.alone
	}
	return s.steered
}

func (s *split) Pick(v *View, r *run) int                { return s.of(r).Pick(v, r) }
func (s *split) Began(v *View, r *run)                   { s.of(r).Began(v, r) }
func (s *split) Ended(v *View, r *run, failed bool)      { s.of(r).Ended(v, r, failed) }
func (s *split) Heard(v *View, worker int, out []change) { s.steered.(listener).Heard(v, worker, out) }
func (s *split) Lost(v *View, worker int)                { s.steered.(listener).Lost(v, worker) }
