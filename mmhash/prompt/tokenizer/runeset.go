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
	return newRuneSet(out)
}

// classSet gives the code points whose class record satisfies f.
func classSet(f func(record uint16) bool) *runeSet {
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
		return classSet(func(c uint16) bool { return in[c&clCategory] }), true
	}
	switch key {
	case "space", "whitespace":
		return classSet(func(c uint16) bool { return c&clOnigSpace != 0 }), true
	case "word":
		return classSet(func(c uint16) bool { return c&clOnigWord != 0 }), true
	case "digit":
		return classSet(func(c uint16) bool { return c&clCategory == gcNd }), true
	case "cntrl":
		return classSet(func(c uint16) bool { return c&clCategory == gcCc }), true
	case "upper", "uppercase":
		return tableSet(unicode.Upper, unicode.Other_Uppercase), true
	case "lower", "lowercase":
		return tableSet(unicode.Lower, unicode.Other_Lowercase), true
	case "alpha", "alphabetic":
		return tableSet(unicode.L, unicode.Nl, unicode.Other_Alphabetic), true
	case "alnum":
		return tableSet(unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.Nd), true
	case "punct":
		in := func(c uint16) bool { return c&clCategory >= gcPc && c&clCategory <= gcPo }
		ascii := newRuneSet([]runeRange{{'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'}, {'`', '`'}, {'|', '|'}, {'~', '~'}})
		return newRuneSet(append(classSet(in).ranges, ascii.ranges...)), true
	case "ascii":
		return newRuneSet([]runeRange{{0, 127}}), true
	case "any":
		return newRuneSet([]runeRange{{0, maxRune}}), true
	case "xdigit":
		return newRuneSet([]runeRange{{'0', '9'}, {'a', 'f'}, {'A', 'F'}}), true
	case "blank":
		return newRuneSet(append(classSet(func(c uint16) bool { return c&clCategory == gcZs }).ranges, runeRange{'\t', '\t'})), true
	}
	for script, table := range unicode.Scripts {
		if strings.ReplaceAll(strings.ToLower(script), "_", "") == key {
			return tableSet(table), true
		}
	}
	return nil, false
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
