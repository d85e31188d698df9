package vitals

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sightline-router/sightline/engine/rules"
)

// Bounds of a page. vLLM's has some 200 KB for each data-parallel rank, nearly all of it histograms; only the lines of the gauges
// that are wanted are kept and parsed.
const (
	maxPage  = 16 << 20
	maxLine  = 64 << 10
	maxKept  = 1 << 20
	maxRank  = 1 << 10
	maxCount = 1 << 16 // requests
	maxTime  = 1 << 40 // Unix seconds
)

// gauges are what one rank tells.
type gauges struct {
	running, waiting int
	usage            float64 // below 0: not told
}

// read takes the gauges off a page, by rank; those without one are rank 0's; and when the worker's process began, 0 if that is not told. Of several series of a rank (tensor-parallel ranks,
// priorities beside their sum) the largest counts. It is an error if one of them has a value that it cannot have; a page without
// any of them gives none.
func read(l *rules.Load, page io.Reader) (out map[int]gauges, began float64, err error) {
	kept, err := lines(l, page)
	if err != nil || len(kept) == 0 {
		return nil, 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(kept))
	if err != nil {
		return nil, 0, errUnreadable
	}
	out = make(map[int]gauges)
	usage := slices.IndexFunc(l.Usage, func(name string) bool { return families[name] != nil })
	for name, family := range families {
		for _, m := range family.Metric {
			if name == l.Began {
				if began = m.GetUntyped().GetValue(); !(began > 0 && began < maxTime) {
					return nil, 0, errUnreadable
				}
				continue
			}
			rank := 0
			for _, label := range m.Label {
				if label.GetName() == l.Rank && l.Rank != "" {
					if rank, err = strconv.Atoi(label.GetValue()); err != nil || rank < 0 || rank >= maxRank {
						return nil, 0, errUnreadable
					}
				}
			}
			g, known := out[rank]
			if !known {
				g.usage = -1
			}
			v := m.GetUntyped().GetValue()
			switch name {
			case l.Running, l.Waiting:
				if !(v >= 0 && v <= maxCount) {
					return nil, 0, errUnreadable
				}
				if name == l.Running {
					g.running = max(g.running, int(v))
				} else {
					g.waiting = max(g.waiting, int(v))
				}
			default:
				if !(v >= 0 && v <= 1) {
					return nil, 0, errUnreadable
				}
				if name == l.Usage[usage] {
					g.usage = max(g.usage, v)
				}
			}
			out[rank] = g
		}
	}
	return out, began, nil
}

// Requests are those that a page tells to run and to wait on all ranks; false where it does not tell, or tells nonsense.
func Requests(l *rules.Load, page []byte) (n int, ok bool) {
	ranks, _, err := read(l, bytes.NewReader(page))
	all := sum(ranks)
	return all.running + all.waiting, err == nil && len(ranks) > 0
}

// lines are those of a page that tell the wanted gauges.
func lines(l *rules.Load, page io.Reader) (kept []byte, err error) {
	names := append([]string{l.Running, l.Waiting, l.Began}, l.Usage...)
	rest := &io.LimitedReader{R: page, N: maxPage}
	sc := bufio.NewScanner(rest)
	sc.Buffer(make([]byte, 0, 16<<10), maxLine)
	for sc.Scan() {
		line := sc.Bytes()
		if !slices.ContainsFunc(names, func(n string) bool {
			return n != "" && len(line) > len(n) && string(line[:len(n)]) == n && strings.IndexByte("{ \t", line[len(n)]) >= 0
		}) {
			continue
		}
		if kept = append(append(kept, line...), '\n'); len(kept) > maxKept {
			return nil, errUnreadable
		}
	}
	if sc.Err() == bufio.ErrTooLong || rest.N == 0 {
		return nil, errUnreadable
	}
	return kept, sc.Err()
}

// sum is all ranks' as one: the requests of all, and the mean use of those that tell it.
func sum(page map[int]gauges) (all gauges) {
	tell := 0
	for _, rank := range slices.Sorted(maps.Keys(page)) { // in one order: sums of fractions differ by it
		g := page[rank]
		all.running, all.waiting = all.running+g.running, all.waiting+g.waiting
		if g.usage >= 0 {
			all.usage += g.usage
			tell++
		}
	}
	if all.usage /= float64(max(1, tell)); tell == 0 {
		all.usage = -1
	}
	return all
}
