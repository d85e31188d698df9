package admin

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/router"
)

// The history is recorded whether anybody looks or not, in two rings: a sample per second for five minutes, one per ten seconds for
// an hour.
const (
	seconds, tens = 300, 360
	perTen        = 10
	maxMarks      = 64 // events shown in the plots
	narrowest     = 30 // minimum width of a plot in samples; while its ring fills it widens with it
)

// sample is what arrived in one time step, and the state at its end.
type sample struct {
	router.Totals         // of this step
	Median, Tail  float64 // time to the first byte, seconds; NaN: no samples
	Mean, Most    float64 // requests in flight, by slot
	Age           float64 // of the latest events of the worker that lags most, seconds
}

type history struct {
	minutes, hour []sample // oldest first
	ten           []sample // the samples of the current ten seconds
	before        router.Totals
	reloaded      time.Time
	marks         []event         // oldest first
	out           map[string]bool // workers that got no requests at the last sample
}

// event is something that the plots mark.
type event struct {
	at   time.Time
	what string
}

// note marks workers that went out or came back since the last sample, and a configuration taken up at a time.
func (h *history) note(now time.Time, rows []findings.Worker, reloaded time.Time) {
	mark := func(at time.Time, what string) { h.marks = appendBounded(h.marks, event{at, what}, maxMarks) }
	if !reloaded.IsZero() && reloaded.After(h.reloaded) {
		if !h.reloaded.IsZero() {
			mark(reloaded, "configuration applied")
		}
		h.reloaded = reloaded
	}
	out := make(map[string]bool)
	for i := range rows {
		r := &rows[i]
		was, known := h.out[r.Name]
		out[r.Name] = r.Health != nil || out[r.Name]
		if known && was != out[r.Name] {
			mark(now, r.Name+map[bool]string{true: " is out", false: " is back"}[out[r.Name]])
		}
	}
	h.out = out
}

// add records a second's sample.
func (h *history) add(now router.Totals, rows []findings.Worker, first []time.Duration) {
	s := sample{Totals: now.Less(h.before), Median: math.NaN(), Tail: math.NaN()}
	h.before = now
	if len(first) > 0 {
		s.Median, s.Tail = quantile(first, 0.5).Seconds(), quantile(first, 0.95).Seconds()
	}
	for i := range rows {
		r := &rows[i]
		s.Mean += float64(r.Inflight) / float64(len(rows))
		s.Most, s.Age = max(s.Most, float64(r.Inflight)), max(s.Age, r.EventAge)
	}
	h.minutes = appendBounded(h.minutes, s, seconds)
	h.ten = append(h.ten, s)
	if len(h.ten) == perTen {
		h.hour, h.ten = appendBounded(h.hour, merged(h.ten), tens), h.ten[:0]
	}
}

// appendBounded appends one and drops the oldest if the ring is full.
func appendBounded[T any](ring []T, one T, most int) []T {
	if len(ring) == most {
		ring = slices.Delete(ring, 0, 1)
	}
	return append(ring, one)
}

// merged combines several samples into one.
func merged(list []sample) (m sample) {
	m.Median, m.Tail = math.NaN(), math.NaN()
	for _, s := range list {
		m.Totals = m.Totals.Plus(s.Totals)
		m.Mean += s.Mean / float64(len(list))
		m.Most, m.Age = max(m.Most, s.Most), max(m.Age, s.Age)
		if !math.IsNaN(s.Median) { // the last known ones
			m.Median, m.Tail = s.Median, s.Tail
		}
	}
	return m
}

func quantile(list []time.Duration, q float64) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// plot is a plot of the page.
type plot struct {
	Title, Top string
	Seconds    int    // that it covers, up to now
	From       string // where its axis begins, as time before now
	Series     []series
	Marks      []mark
}

// mark is an event at its place in a plot.
type mark struct{ X, What string }

type series struct {
	Name, Class, D, Last string
	of                   func(*sample) float64
}

// plots returns the plots of a ring, whose samples cover step seconds each, up to now.
func plots(ring []sample, step float64, events []event, now time.Time) []plot {
	most := max(narrowest, len(ring))
	share := func(part, whole uint64) float64 {
		if whole == 0 {
			return math.NaN() // what is cached of prompts that no rule reads has no whole
		}
		return 100 * float64(part) / float64(whole)
	}
	span := time.Duration(most) * time.Duration(step) * time.Second
	var marks []mark
	for _, e := range events {
		if ago := now.Sub(e.at); ago < span {
			marks = append(marks, mark{fmt.Sprintf("%.1f", 300*(1-ago.Seconds()/span.Seconds())), e.what + " " + printable.Rough(ago) + " ago"})
		}
	}
	list := []plot{
		{Title: "Prompt tokens cached, %", Top: "100", Series: []series{
			{Name: "predicted", of: func(s *sample) float64 { return share(s.Cached, s.Prompt) }},
			{Name: "reported", of: func(s *sample) float64 { return share(s.EngineCached, s.EnginePrompt) }}}},
		{Title: "Time to the first byte, ms", Series: []series{
			{Name: "median", of: func(s *sample) float64 {
				return 1000 * s.Median
			}}, {Name: "95 %", of: func(s *sample) float64 { return 1000 * s.Tail }}}},
		{Title: "Requests a second", Series: []series{{Name: "decided", of: func(s *sample) float64 { return float64(s.Decisions) / step }}}},
		{Title: "Requests in flight, by worker", Series: []series{
			{Name: "mean", of: func(s *sample) float64 { return s.Mean }}, {Name: "most", of: func(s *sample) float64 { return s.Most }}}},
		{Title: "Regret: cached tokens given up a second", Series: []series{{Name: "regret", of: func(s *sample) float64 {
			return float64(s.Held-s.Cached) / step
		}}}},
		{Title: "Event delay, s", Series: []series{{Name: "worst worker", of: func(s *sample) float64 { return s.Age }}}},
	}
	for i := range list {
		p, top := &list[i], 0.0
		p.Seconds, p.From, p.Marks = int(span.Seconds()), printable.Rough(span), marks
		if p.Top != "" {
			top = 100
		}
		for _, s := range p.Series {
			for j := range ring {
				if v := s.of(&ring[j]); v > top {
					top = v
				}
			}
		}
		p.Top = printable.Amount(top)
		for j := range p.Series {
			s := &p.Series[j]
			s.Class, s.Last = "c"+strconv.Itoa(j+1), "–"
			values := make([]float64, len(ring))
			for k := range ring {
				values[k] = s.of(&ring[k])
			}
			if n := len(values); n > 0 && !math.IsNaN(values[n-1]) {
				s.Last = printable.Amount(values[n-1])
			}
			s.D = line(values, most, 300, 65, 60, top)
		}
	}
	return list
}

// line returns an SVG path through values, the last at the right, y upwards from foot. An unknown value interrupts it.
func line(values []float64, most int, width, foot, height, top float64) string {
	var d strings.Builder
	down := false
	for i, v := range values {
		if math.IsNaN(v) {
			down = false
			continue
		}
		x := width * float64(most-len(values)+i) / float64(most-1)
		fmt.Fprintf(&d, "%c%.1f %.1f", map[bool]rune{true: 'L', false: 'M'}[down], x, foot-height*min(1, v/max(top, 1e-9)))
		if !down && (i+1 == len(values) || math.IsNaN(values[i+1])) {
			fmt.Fprintf(&d, "h.8") // a single point is a dot
		}
		down = true
	}
	return d.String()
}
