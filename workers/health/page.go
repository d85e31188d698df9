package health

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sightline-router/sightline/engine/rules"
)

// Limits of a page. vLLM's has some 200 KB for each data-parallel rank, nearly all of it histograms; only the lines of the wanted
// gauges are kept and parsed.
const (
	maxPage  = 16 << 20
	maxLine  = 64 << 10
	maxKept  = 1 << 20
	maxRank  = 1 << 10
	maxCount = 1 << 16 // requests
	maxTime  = 1 << 40 // Unix seconds
	maxCache = 1 << 40 // tokens
)

// gauges are one rank's values.
type gauges struct {
	running, waiting int
	usage            float64 // below 0: not reported
	cache            int     // tokens that its KV cache has room for; 0: not reported
}

// loadPage is what a worker's page reports.
type loadPage struct {
	ranks     map[int]gauges
	startTime float64 // start time of its process in Unix seconds; 0: not reported
	// usedAdapters are the adapters of requests that run or wait, room how many adapters it has loaded at once; 0: not reported.
	usedAdapters    []string
	adapterCapacity int
	// of all ranks, since the process started
	mediaQueries, mediaHits float64
}

// parsePage parses the gauges of a page, by rank; those without a rank are rank 0's. Among several series of a rank (tensor-parallel
// ranks, priorities beside their sum) the largest counts. An impossible value is an error; a page without any of the gauges gives
// none.
func parsePage(l *rules.Load, page io.Reader) (t loadPage, err error) {
	kept, err := filterLines(l, page)
	if err != nil || len(kept) == 0 {
		return t, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(kept))
	if err != nil {
		return loadPage{}, rules.Unreadable
	}
	t.ranks = make(map[int]gauges)
	set := 0.0 // time of using
	caches := make(map[int]int)
	for name, family := range families {
		for _, m := range family.Metric {
			if name == l.StartTime {
				t.startTime = m.GetUntyped().GetValue()
				if !(t.startTime > 0 && t.startTime < maxTime) {
					return loadPage{}, rules.Unreadable
				}
				continue
			}
			if name == l.Adapters { // a series for each set of names, of which the last is current
				if v := m.GetUntyped().GetValue(); v > set {
					set = v
					t.adapters(m.Label)
				}
				continue
			}
			rank := 0
			for _, label := range m.Label {
				if label.GetName() == l.Rank && l.Rank != "" {
					rank, err = strconv.Atoi(label.GetValue())
					if err != nil || rank < 0 || rank >= maxRank {
						return loadPage{}, rules.Unreadable
					}
				}
			}
			v := m.GetUntyped().GetValue()
			if name == l.MediaQueries || name == l.MediaHits {
				switch {
				case !(v >= 0 && v <= maxTime):
					return loadPage{}, rules.Unreadable
				case name == l.MediaQueries:
					t.mediaQueries += v
				default:
					t.mediaHits += v
				}
				continue
			}
			if name == l.Cache {
				caches[rank] = max(caches[rank], cacheTokens(l, v, m.Label))
				continue
			}
			g, known := t.ranks[rank]
			if !known {
				g.usage = -1
			}
			switch name {
			case l.Running, l.Waiting:
				if !(v >= 0 && v <= maxCount) {
					return loadPage{}, rules.Unreadable
				}
				if name == l.Running {
					g.running = max(g.running, int(v))
				} else {
					g.waiting = max(g.waiting, int(v))
				}
			default:
				if !(v >= 0 && v <= 1) {
					return loadPage{}, rules.Unreadable
				}
				g.usage = max(g.usage, v)
			}
			t.ranks[rank] = g
		}
	}
	for rank, g := range t.ranks {
		g.cache = caches[rank]
		t.ranks[rank] = g
	}
	return t, nil
}

// cacheTokens returns the size of a KV cache by the gauge rules.Load.Cache; 0: it does not tell.
func cacheTokens(l *rules.Load, v float64, labels []*dto.LabelPair) int {
	if l.CacheBlocks != "" {
		v = 1
		for _, name := range []string{l.CacheBlocks, "block_size"} {
			at := slices.IndexFunc(labels, func(p *dto.LabelPair) bool { return p.GetName() == name })
			if at < 0 {
				return 0
			}
			n, _ := strconv.Atoi(labels[at].GetValue())
			v *= float64(max(0, n))
		}
	}
	if !(v >= 0 && v <= maxCache) {
		return 0
	}
	return int(v)
}

// ownRanks returns the gauges of a server with n ranks by its own ranks, which begin with 0. A vLLM labels them by the ranks among all
// nodes (--data-parallel-start-rank; engine_ranks_managed in v1/metrics/loggers.py, 0.33). Labels that are neither are an error.
func ownRanks(page map[int]gauges, n int) (map[int]gauges, error) {
	first, last := maxRank, -1
	for rank := range page {
		first, last = min(first, rank), max(last, rank)
	}
	switch {
	case last < n || first == 0:
		return page, nil
	case last-first+1 != n || len(page) != n:
		return nil, rules.OtherRanks
	}
	own := make(map[int]gauges, n)
	for rank, g := range page {
		own[rank-first] = g
	}
	return own, nil
}

// adapters parses the labels of rules.Load.Adapters: names separated by commas.
func (t *loadPage) adapters(labels []*dto.LabelPair) {
	t.usedAdapters = nil
	for _, l := range labels {
		switch l.GetName() {
		case "running_lora_adapters", "waiting_lora_adapters":
			if names := rules.CleanText(l.GetValue()); names != "" {
				for name := range strings.SplitSeq(names, ",") {
					t.usedAdapters = append(t.usedAdapters, strings.TrimSpace(name))
				}
			}
		case "max_lora":
			n, _ := strconv.Atoi(l.GetValue())
			t.adapterCapacity = max(0, min(n, maxAdapters))
		}
	}
}

// Requests returns how many requests run and wait on all ranks by a page; false if the page does not report that or is invalid.
func Requests(l *rules.Load, page []byte) (n int, ok bool) {
	t, err := parsePage(l, bytes.NewReader(page))
	all := sumRanks(t.ranks)
	return all.running + all.waiting, err == nil && len(t.ranks) > 0
}

// filterLines returns the lines of a page with the wanted gauges.
func filterLines(l *rules.Load, page io.Reader) (kept []byte, err error) {
	names := []string{l.Running, l.Waiting, l.StartTime, l.Adapters, l.MediaQueries, l.MediaHits, l.Usage, l.Cache}
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
		kept = append(append(kept, line...), '\n')
		if len(kept) > maxKept {
			return nil, rules.Unreadable
		}
	}
	if sc.Err() == bufio.ErrTooLong || rest.N == 0 {
		return nil, rules.Unreadable
	}
	return kept, sc.Err()
}

// sumRanks combines all ranks: the sum of the requests, and the mean usage of the ranks that report it.
func sumRanks(page map[int]gauges) (all gauges) {
	tell := 0
	for _, rank := range slices.Sorted(maps.Keys(page)) { // in a fixed order, since sums of fractions depend on it
		g := page[rank]
		all.running, all.waiting, all.cache = all.running+g.running, all.waiting+g.waiting, all.cache+g.cache
		if g.usage >= 0 {
			all.usage += g.usage
			tell++
		}
	}
	all.usage /= float64(max(1, tell))
	if tell == 0 {
		all.usage = -1
	}
	return all
}
