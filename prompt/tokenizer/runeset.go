package tokenizer

import (
	"slices"
	"sort"
	"strings"
	"unicode"
)

// runeSet is a set of code points: sorted, disjoint, closed ranges, with a bitmap for ASCII.
type runeSet struct {
	ranges []runeRange
	ascii  [2]uint64
}

type runeRange struct{ lo, hi rune }

// newRuneSet sorts and joins ranges.
func newRuneSet(ranges []runeRange) *runeSet {
	sort.Slice(ranges, func(i, j int) bool { return ranges[i].lo < ranges[j].lo })
	s := &runeSet{}
	for _, r := range ranges {
		if n := len(s.ranges); n > 0 && r.lo <= s.ranges[n-1].hi+1 {
			s.ranges[n-1].hi = max(s.ranges[n-1].hi, r.hi)
		} else if r.lo <= r.hi {
			s.ranges = append(s.ranges, r)
		}
	}
	for _, r := range s.ranges {
		for c := r.lo; c <= min(r.hi, 127); c++ {
			s.ascii[c/64] |= 1 << (c % 64)
		}
	}
	return s
}

func (s *runeSet) has(r rune) bool {
	if r < 128 {
		return s.ascii[r/64]>>(r%64)&1 != 0
	}
	lo, hi := 0, len(s.ranges)
	for lo < hi {
		mid := (lo + hi) / 2
		if s.ranges[mid].hi < r {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(s.ranges) && s.ranges[lo].lo <= r
}

func (s *runeSet) not() *runeSet {
	var out []runeRange
	next := rune(0)
	for _, r := range s.ranges {
		if r.lo > next {
			out = append(out, runeRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= maxRune {
		out = append(out, runeRange{next, maxRune})
	}
	return newRuneSet(out)
}

func (s *runeSet) and(o *runeSet) *runeSet {
	return newRuneSet(append(slices.Clone(s.not().ranges), o.not().ranges...)).not()
}

// folded adds what differs only in case. As in the engine's patterns, one character stands for one.
func (s *runeSet) folded() *runeSet {
	out := slices.Clone(s.ranges)
	for _, r := range s.ranges {
		if r.hi-r.lo > 0x4000 {
			continue // a class so large has its cases in it
		}
		for c := r.lo; c <= r.hi; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				out = append(out, runeRange{f, f})
			}
		}
	}
	for _, r := range []runeRange{{0x1C89, 0x1C89}, {0xA7CB, 0xA7CC}, {0xA7DA, 0xA7DA}, {0xA7DC, 0xA7DC}, {0x10D50, 0x10D65}} {
		for upper := r.lo; upper <= r.hi; upper++ {
			if lower := newerLower(upper); s.has(upper) || s.has(lower) { // Unicode 16, which Go 1.26 does not know
				out = append(out, runeRange{upper, upper}, runeRange{lower, lower})
			}
		}
	}
	return newRuneSet(out)
}

// classSet gives the code points whose class record satisfies f.
func classSet(f func(record uint32) bool) *runeSet {
	cl := classes()
	var out []runeRange
	for c := rune(0); c <= maxRune; c++ {
		if !f(cl.at(c)) {
			continue
		}
		if n := len(out); n > 0 && out[n-1].hi == c-1 {
			out[n-1].hi = c
		} else {
			out = append(out, runeRange{c, c})
		}
	}
	return newRuneSet(out)
}

var categoryNames = strings.Fields("cn lu ll lt lm lo mn mc me nd nl no pc pd ps pe pi pf po sm sc sk so zs zl zp cc cf co")

var longCategories = map[string]string{
	"letter": "l", "mark": "m", "number": "n", "punctuation": "p", "symbol": "s", "separator": "z", "other": "c",
	"uppercaseletter": "lu", "lowercaseletter": "ll", "titlecaseletter": "lt", "modifierletter": "lm", "otherletter": "lo",
	"decimalnumber": "nd", "nonspacingmark": "mn", "spacingmark": "mc", "enclosingmark": "me",
}

// propertySet gives the set of \p{name}: a general category or its first letter, a POSIX class, or a script.
func propertySet(name string) (*runeSet, bool) {
	key := strings.NewReplacer("_", "", " ", "", "-", "").Replace(strings.ToLower(name))
	if short, ok := longCategories[key]; ok {
		key = short
	}
	var in [gcCount]bool
	found := false
	for n, c := range categoryNames {
		if c == key || len(key) == 1 && c[0] == key[0] {
			in[n], found = true, true
		}
	}
	if found {
		return classSet(func(c uint32) bool { return in[c&clCategory] }), true
	}
	if f, ok := map[string]uint32{"space": clOnigSpace, "whitespace": clOnigSpace, "word": clOnigWord, "upper": clOnigUpper, "uppercase": clOnigUpper,
		"lower": clOnigLower, "lowercase": clOnigLower, "alpha": clOnigAlpha, "alphabetic": clOnigAlpha}[key]; ok {
		return classSet(func(c uint32) bool { return c&f != 0 }), true
	}
	switch key {
	case "digit":
		return classSet(func(c uint32) bool { return c&clCategory == gcNd }), true
	case "cntrl":
		return classSet(func(c uint32) bool { return c&clCategory == gcCc }), true
	case "alnum":
		return classSet(func(c uint32) bool { return c&clOnigAlpha != 0 || c&clCategory == gcNd }), true
	case "punct":
		return classSet(func(c uint32) bool { return c&clCategory >= gcPc && c&clCategory <= gcSo }), true
	case "graph":
		return classSet(func(c uint32) bool { return c&clOnigSpace == 0 && c&clCategory != gcCc && c&clCategory != gcCn }), true
	case "print":
		return classSet(func(c uint32) bool {
			return (c&clOnigSpace == 0 || c&clCategory == gcZs) && c&clCategory != gcCc && c&clCategory != gcCn
		}), true
	case "ascii":
		return newRuneSet([]runeRange{{0, 127}}), true
	case "any":
		return newRuneSet([]runeRange{{0, maxRune}}), true
	case "xdigit":
		return newRuneSet([]runeRange{{'0', '9'}, {'a', 'f'}, {'A', 'F'}}), true
	case "blank":
		return newRuneSet(append(classSet(func(c uint32) bool { return c&clCategory == gcZs }).ranges, runeRange{'\t', '\t'})), true
	}
	for script, table := range unicode.Scripts {
		if strings.ReplaceAll(strings.ToLower(script), "_", "") == key {
			return newRuneSet(append(tableSet(table).ranges, newerScripts[key]...)), true
		}
	}
	return nil, false
}

// newerScripts is what Unicode 15.1 and 16 added to scripts that Go's tables know.
var newerScripts = map[string][]runeRange{
	"han":      {{0x2EBF0, 0x2EE5D}},
	"latin":    {{0xA7CB, 0xA7CD}, {0xA7DA, 0xA7DC}},
	"cyrillic": {{0x1C89, 0x1C8A}},
	"myanmar":  {{0x116D0, 0x116E3}},
	"common": {{0x2427, 0x2429}, {0x2FFC, 0x2FFF}, {0x31E4, 0x31E5}, {0x31EF, 0x31EF}, {0x1CC00, 0x1CCF9}, {0x1CD00, 0x1CEB3}, {0x1F8B2, 0x1F8BB},
		{0x1F8C0, 0x1F8C1}, {0x1FA89, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FABE, 0x1FABE}, {0x1FAC6, 0x1FAC6}, {0x1FADC, 0x1FADC}, {0x1FADF, 0x1FADF},
		{0x1FAE9, 0x1FAE9}, {0x1FBCB, 0x1FBEF}},
	"arabic": {{0x897, 0x897}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC}},
}

func tableSet(tables ...*unicode.RangeTable) *runeSet {
	var out []runeRange
	for _, t := range tables {
		for _, r := range t.R16 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				out = append(out, runeRange{c, c})
			}
		}
		for _, r := range t.R32 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				out = append(out, runeRange{c, c})
			}
		}
	}
	return newRuneSet(out)
}
