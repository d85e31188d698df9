package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A pattern is read in the dialect that Hugging Face's tokenizers give to Oniguruma (Ruby's): ^ and $ stand at lines,
// classes nest and intersect (&&), {n,m}+ repeats, ++ and its like are possessive, (?m) lets the dot match a line break.
// Back references, conditions, calls, \G, \K and \X do not occur in tokenizers and are refused.

type nodeKind uint8

const (
	nodeEmpty nodeKind = iota
	nodeSet
	nodeConcat
	nodeAlternate
	nodeRepeat
	nodeLook   // (?=…) (?!…) (?<=…) (?<!…)
	nodeAtomic // (?>…)
	nodeAssert
)

type node struct {
	kind     nodeKind
	set      *runeSet
	subs     []*node
	min, max int // max < 0: no bound
	lazy     bool
	behind   bool
	negative bool
	assert   assertion
}

type assertion uint8

const (
	lineStart assertion = iota
	lineEnd
	textStart
	textEnd
	textEndBreak // \Z: at the end or before the last line break
	wordEdge
	noWordEdge
)

type regexParser struct {
	s     string
	i     int
	fold  bool
	dot   bool // (?m): the dot matches line breaks
	wide  bool // (?x)
	depth int
}

const maxRegexDepth = 100

func parseRegex(pattern string) (n *node, err error) {
	p := &regexParser{s: pattern}
	if n, err = p.alternation(); err == nil && p.i < len(p.s) {
		err = fmt.Errorf("unmatched )")
	}
	if err != nil {
		return nil, fmt.Errorf("regular expression %q, offset %d: %w", pattern, p.i, err)
	}
	return n, nil
}

func (p *regexParser) more() bool { return p.i < len(p.s) }

func (p *regexParser) take(prefix string) bool {
	if strings.HasPrefix(p.s[p.i:], prefix) {
		p.i += len(prefix)
		return true
	}
	return false
}

func (p *regexParser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.s[p.i:])
	p.i += n
	return r
}

func (p *regexParser) alternation() (*node, error) {
	if p.depth++; p.depth > maxRegexDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxRegexDepth)
	}
	defer func() { p.depth-- }()
	alt := &node{kind: nodeAlternate}
	for {
		n, err := p.concatenation()
		if err != nil {
			return nil, err
		}
		alt.subs = append(alt.subs, n)
		if !p.take("|") {
			break
		}
	}
	if len(alt.subs) == 1 {
		return alt.subs[0], nil
	}
	return alt, nil
}

func (p *regexParser) concatenation() (*node, error) {
	seq := &node{kind: nodeConcat}
	for p.more() && p.s[p.i] != '|' && p.s[p.i] != ')' {
		if p.wide && strings.IndexByte(" \t\n\r\f\v", p.s[p.i]) >= 0 {
			p.i++
			continue
		}
		n, err := p.atom()
		if err != nil {
			return nil, err
		}
		if n, err = p.quantified(n); err != nil {
			return nil, err
		}
		seq.subs = append(seq.subs, n)
	}
	return seq, nil
}

// quantified reads the quantifiers behind n.
func (p *regexParser) quantified(n *node) (*node, error) {
	for p.more() {
		low, high, braces := 0, -1, false
		switch p.s[p.i] {
		case '*':
		case '+':
			low = 1
		case '?':
			high = 1
		case '{':
			end := strings.IndexByte(p.s[p.i:], '}')
			if end < 0 {
				return n, nil
			}
			a, b, comma := strings.Cut(p.s[p.i+1:p.i+end], ",")
			var err1, err2 error
			if low, err1 = strconv.Atoi(a); a == "" && comma {
				low, err1 = 0, nil
			}
			if high = low; comma {
				high = -1
				if b != "" {
					high, err2 = strconv.Atoi(b)
				}
			}
			if err1 != nil || err2 != nil || a == "" && b == "" {
				return n, nil // a literal brace
			}
			if low > 1000 || high > 1000 || high >= 0 && high < low {
				return nil, fmt.Errorf("repetition {%s,%s}: want at most 1000, low before high", a, b)
			}
			braces = true
			p.i += end
		default:
			return n, nil
		}
		p.i++
		n = &node{kind: nodeRepeat, subs: []*node{n}, min: low, max: high}
		if p.take("?") {
			n.lazy = true
		} else if !braces && p.take("+") {
			n = &node{kind: nodeAtomic, subs: []*node{n}}
		}
	}
	return n, nil
}

func (p *regexParser) literal(s *runeSet) *node {
	if p.fold {
		s = s.folded()
	}
	return &node{kind: nodeSet, set: s}
}

// wordSet is \w. Oniguruma asks a Latin-1 table about it, but Unicode's inside a class: ² ³ ¹ ¼ ½ ¾ are in the first only.
func wordSet(inClass bool) *runeSet {
	set, _ := propertySet("word")
	if inClass {
		set = set.and(newRuneSet([]runeRange{{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}}).not())
	}
	return set
}

func oneRune(r rune) *runeSet { return newRuneSet([]runeRange{{r, r}}) }

func (p *regexParser) atom() (*node, error) {
	switch c := p.s[p.i]; c {
	case '(':
		return p.group()
	case '[':
		set, err := p.class()
		if err != nil {
			return nil, err
		}
		return &node{kind: nodeSet, set: set}, nil
	case '.':
		p.i++
		if p.dot {
			return &node{kind: nodeSet, set: newRuneSet([]runeRange{{0, maxRune}})}, nil
		}
		return &node{kind: nodeSet, set: oneRune('\n').not()}, nil
	case '^', '$':
		p.i++
		kind := lineStart
		if c == '$' {
			kind = lineEnd
		}
		return &node{kind: nodeAssert, assert: kind}, nil
	case '\\':
		for text, kind := range map[string]assertion{`\A`: textStart, `\z`: textEnd, `\Z`: textEndBreak, `\b`: wordEdge, `\B`: noWordEdge} {
			if p.take(text) {
				return &node{kind: nodeAssert, assert: kind}, nil
			}
		}
		if p.take(`\R`) {
			crlf := &node{kind: nodeConcat, subs: []*node{{kind: nodeSet, set: oneRune('\r')}, {kind: nodeSet, set: oneRune('\n')}}}
			one := &node{kind: nodeSet, set: newRuneSet([]runeRange{{'\n', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}})}
			return &node{kind: nodeAtomic, subs: []*node{{kind: nodeAlternate, subs: []*node{crlf, one}}}}, nil
		}
		set, err := p.escape(false)
		if err == nil && len(set.ranges) == 1 && set.ranges[0].lo == set.ranges[0].hi {
			return p.literal(set), nil
		}
		return &node{kind: nodeSet, set: set}, err // (?i) does not reach \p{Lu} outside a class
	case '*', '+', '?':
		return nil, fmt.Errorf("nothing to repeat")
	}
	return p.literal(oneRune(p.rune())), nil
}

func (p *regexParser) group() (*node, error) {
	p.i++
	fold, dot, wide := p.fold, p.dot, p.wide
	restore := func() { p.fold, p.dot, p.wide = fold, dot, wide }
	wrap := (*node)(nil)
	switch {
	case p.take("?:"):
	case p.take("?>"):
		wrap = &node{kind: nodeAtomic}
	case p.take("?="):
		wrap = &node{kind: nodeLook}
	case p.take("?!"):
		wrap = &node{kind: nodeLook, negative: true}
	case p.take("?<="):
		wrap = &node{kind: nodeLook, behind: true}
	case p.take("?<!"):
		wrap = &node{kind: nodeLook, behind: true, negative: true}
	case p.take("?#"):
		end := strings.IndexByte(p.s[p.i:], ')')
		if end < 0 {
			return nil, fmt.Errorf("comment without )")
		}
		p.i += end + 1
		return &node{kind: nodeEmpty}, nil
	case p.take("?<"):
		end := strings.IndexByte(p.s[p.i:], '>')
		if end < 0 {
			return nil, fmt.Errorf("group name without >")
		}
		p.i += end + 1
	case p.take("?"):
		on := true
		for p.more() && p.s[p.i] != ':' && p.s[p.i] != ')' {
			switch p.s[p.i] {
			case '-':
				on = false
			case 'i':
				p.fold = on
			case 'm':
				p.dot = on
			case 'x':
				p.wide = on
			default:
				return nil, fmt.Errorf("unknown group (?%c", p.s[p.i])
			}
			p.i++
		}
		if p.take(")") {
			// An option alone holds to the end of the group around it.
			n, err := p.alternation()
			restore()
			return n, err
		}
		p.take(":")
	}
	n, err := p.alternation()
	restore()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, fmt.Errorf("want )")
	}
	if wrap != nil {
		wrap.subs = []*node{n}
		return wrap, nil
	}
	return n, nil
}

// escape reads \x inside or outside a class.
func (p *regexParser) escape(inClass bool) (*runeSet, error) {
	p.i++
	if !p.more() {
		return nil, fmt.Errorf("\\ at the end")
	}
	flag := func(f uint32, not bool) (*runeSet, error) {
		return classSet(func(c uint32) bool { return c&f != 0 != not }), nil
	}
	switch r := p.rune(); r {
	case 's', 'S':
		return flag(clOnigSpace, r == 'S')
	case 'w', 'W':
		set := wordSet(inClass)
		if r == 'W' {
			set = set.not()
		}
		return set, nil
	case 'd', 'D':
		return classSet(func(c uint32) bool { return (c&clCategory == gcNd) != (r == 'D') }), nil
	case 'h', 'H':
		set, _ := propertySet("xdigit")
		if r == 'H' {
			set = set.not()
		}
		return set, nil
	case 'p', 'P':
		name := ""
		if p.take("{") {
			end := strings.IndexByte(p.s[p.i:], '}')
			if end < 0 {
				return nil, fmt.Errorf("\\p{ without }")
			}
			name = p.s[p.i : p.i+end]
			p.i += end + 1
		} else if p.more() {
			name = string(p.rune())
		}
		not := r == 'P'
		if strings.HasPrefix(name, "^") {
			not, name = !not, name[1:]
		}
		set, ok := propertySet(name)
		switch key := strings.ToLower(name); {
		case key == "word":
			set = wordSet(inClass)
		case key == "punct": // [[:punct:]] has the symbols too
			set, _ = propertySet("p")
		}
		if !ok {
			return nil, fmt.Errorf("unknown property %q", name)
		}
		if not {
			set = set.not()
		}
		return set, nil
	case 'n', 'r', 't', 'f', 'v', 'a', 'e', '0':
		return oneRune(rune("\n\r\t\f\v\a\x1B\x00"[strings.IndexRune("nrtfvae0", r)])), nil
	case 'u', 'x':
		digits, width := "", 4
		if r == 'x' {
			width = 2
			if p.take("{") {
				end := strings.IndexByte(p.s[p.i:], '}')
				if end < 0 {
					return nil, fmt.Errorf("\\x{ without }")
				}
				digits = p.s[p.i : p.i+end]
				p.i += end + 1
			}
		}
		if digits == "" {
			for len(digits) < width && p.more() && strings.IndexByte("0123456789abcdefABCDEF", p.s[p.i]) >= 0 {
				digits += p.s[p.i : p.i+1]
				p.i++
			}
		}
		v, err := strconv.ParseUint(digits, 16, 32)
		if err != nil || v > maxRune {
			return nil, fmt.Errorf("bad code point %q", digits)
		}
		return oneRune(rune(v)), nil
	case 'b':
		if inClass {
			return oneRune('\b'), nil
		}
		return nil, fmt.Errorf("\\b here is not supported")
	default:
		if '1' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return nil, fmt.Errorf("\\%c is not supported", r)
		}
		return oneRune(r), nil
	}
}

// class reads […], with nested classes, intersections and POSIX names.
func (p *regexParser) class() (*runeSet, error) {
	if p.depth++; p.depth > maxRegexDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxRegexDepth)
	}
	defer func() { p.depth-- }()
	p.i++
	not := p.take("^")
	var ranges []runeRange
	var left *runeSet // what stands before &&
	start := true
	operand := func() *runeSet {
		set := newRuneSet(ranges)
		if p.fold {
			set = set.folded()
		}
		if left != nil {
			set = left.and(set)
		}
		return set
	}
	for ; ; start = false {
		if !p.more() {
			return nil, fmt.Errorf("class without ]")
		}
		if p.s[p.i] == ']' && !start {
			p.i++
			break
		}
		if p.take("&&") {
			left, ranges = operand(), nil
			continue
		}
		if p.take("[:") {
			end := strings.Index(p.s[p.i:], ":]")
			if end < 0 {
				return nil, fmt.Errorf("[: without :]")
			}
			name := p.s[p.i : p.i+end]
			p.i += end + 2
			set, ok := propertySet(strings.TrimPrefix(name, "^"))
			if strings.TrimPrefix(name, "^") == "word" {
				set = wordSet(true)
			}
			if !ok {
				return nil, fmt.Errorf("unknown class [:%s:]", name)
			}
			if strings.HasPrefix(name, "^") {
				set = set.not()
			}
			ranges = append(ranges, set.ranges...)
			continue
		}
		if p.s[p.i] == '[' {
			set, err := p.class()
			if err != nil {
				return nil, err
			}
			ranges = append(ranges, set.ranges...)
			continue
		}
		set, err := p.classItem()
		if err != nil {
			return nil, err
		}
		single := len(set.ranges) == 1 && set.ranges[0].lo == set.ranges[0].hi
		if single && strings.HasPrefix(p.s[p.i:], "-") && !strings.HasPrefix(p.s[p.i:], "-]") && p.i+1 < len(p.s) {
			p.i++
			high, err := p.classItem()
			if err != nil {
				return nil, err
			}
			if len(high.ranges) != 1 || high.ranges[0].lo != high.ranges[0].hi || high.ranges[0].lo < set.ranges[0].lo {
				return nil, fmt.Errorf("bad range in a class")
			}
			ranges = append(ranges, runeRange{set.ranges[0].lo, high.ranges[0].lo})
			continue
		}
		ranges = append(ranges, set.ranges...)
	}
	set := operand()
	if not {
		set = set.not()
	}
	return set, nil
}

func (p *regexParser) classItem() (*runeSet, error) {
	if p.s[p.i] == '\\' {
		return p.escape(true)
	}
	return oneRune(p.rune()), nil
}
