package fleetsim

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Missed is the goals that missed.md lists: the figures measured with seed 1, by scenario, load and goal.
type Missed map[string]string

const (
	missedAsStated = "missed, as stated"
	missedNoise    = 0.1 // share by which a figure may differ from the stated one
)

var missedFigures = regexp.MustCompile(`\d+\.\d+`)

// ReadMissed reads the list of a page such as missed.md: - goal → scenario, load: measured; scenario, …
// Without a page it returns nil.
func ReadMissed(page string) (Missed, error) {
	if page == "" {
		return nil, nil
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	m := Missed{}
	for line := range strings.Lines(string(text)) {
		line, listed := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if !listed {
			continue
		}
		about, missed, _ := strings.Cut(line, " → ")
		for one := range strings.SplitSeq(missed, "; ") {
			if run, measured, ok := strings.Cut(one, " %: "); ok {
				m[run+" % | "+about] = measured
			}
		}
	}
	if len(m) == 0 {
		return nil, fmt.Errorf("%s lists no missed goal (want - goal → scenario, load: measured)", page)
	}
	return m, nil
}

// verdict says how a missed goal stands to the page.
func (m Missed) verdict(scenario string, load float64, about, measured string) string {
	stated, ok := m[fmt.Sprintf("%s, %.0f %% | %s", scenario, 100*load, about)]
	if !ok {
		return "MISSED"
	}
	was, is := missedFigures.FindAllString(stated, -1), missedFigures.FindAllString(measured, -1)
	same := len(was) == len(is)
	for i := range min(len(was), len(is)) {
		a, _ := strconv.ParseFloat(was[i], 64)
		b, _ := strconv.ParseFloat(is[i], 64)
		same = same && math.Abs(a-b) <= max(missedNoise*a, 0.01)
	}
	if !same {
		return "MISSED, stated: " + stated
	}
	return missedAsStated
}
