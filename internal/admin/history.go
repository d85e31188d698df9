package admin

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/router"
)

// The history is recorded whether anybody looks or not, in two rings: a sample per second for five minutes, one per ten seconds for
// an hour.
const (
	seconds, tens = 300, 360
	perTen        = 10
	sparks        = 256 // slots whose requests in flight are recorded for a minute
	sparkSeconds  = 60
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
	sparks        map[string][]uint16 // by slot, oldest first
}

// add records a second's sample.
func (h *history) add(now router.Totals, rows []Worker, first []time.Duration) {
	s := sample{Totals: now.Less(h.before), Median: math.NaN(), Tail: math.NaN()}
	h.before = now
	if len(first) > 0 {
		s.Median, s.Tail = quantile(first, 0.5).Seconds(), quantile(first, 0.95).Seconds()
	}
	seen := make(map[string][]uint16, min(len(rows), sparks))
	for i := range rows {
		r := &rows[i]
		s.Mean += float64(r.Inflight) / float64(len(rows))
		s.Most, s.Age = max(s.Most, float64(r.Inflight)), max(s.Age, r.EventAge)
		if len(seen) < sparks {
			seen[slotName(r)] = appendBounded(h.sparks[slotName(r)], uint16(min(r.Inflight, math.MaxUint16)), sparkSeconds)
		}
	}
	h.sparks = seen
	h.minutes = appendBounded(h.minutes, s, seconds)
	h.ten = append(h.ten, s)
	if len(h.ten) == perTen {
		h.hour, h.ten = appendBounded(h.hour, merged(h.ten), tens), h.ten[:0]
	}
}

func slotName(r *Worker) string { return r.Name + "\n" + strconv.Itoa(r.Rank) }

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
	Title, Top, Span string
	Series           []series
}

type series struct {
	Name, Class, D, Last string
	of                   func(*sample) float64
}

// plots returns the plots of a ring, whose samples cover step seconds each.
func plots(ring []sample, step float64) []plot {
	most := max(narrowest, len(ring))
	share := func(part, whole uint64) float64 { return 100 * float64(part) / float64(whole) } // NaN if whole is 0
	span := "the last " + rough(time.Duration(most)*time.Duration(step)*time.Second)
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
		{Title: "Regret, tokens a second held elsewhere", Series: []series{{Name: "given up", of: func(s *sample) float64 {
			return float64(s.Held-s.Cached) / step
		}}}},
		{Title: "Events late, s", Series: []series{{Name: "the latest worker's", of: func(s *sample) float64 { return s.Age }}}},
	}
	for i := range list {
		p, top := &list[i], 0.0
		p.Span = span
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
		p.Top = formatShort(top)
		for j := range p.Series {
			s := &p.Series[j]
			s.Class, s.Last = "c"+strconv.Itoa(j+1), "–"
			values := make([]float64, len(ring))
			for k := range ring {
				values[k] = s.of(&ring[k])
			}
			if n := len(values); n > 0 && !math.IsNaN(values[n-1]) {
				s.Last = formatShort(values[n-1])
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

// spark returns the path of a slot's last minute.
func (h *history) spark(r *Worker) string {
	kept := h.sparks[slotName(r)]
	values, top := make([]float64, len(kept)), 4.0
	for i, n := range kept {
		values[i] = float64(n)
		top = max(top, values[i])
	}
	return line(values, sparkSeconds, 60, 19, 18, top)
}

// formatShort formats a number with about three digits.
func formatShort(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.1f M", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.0f k", v/1e3)
	case v >= 10 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}
