package template

import (
	"strings"
	"unicode/utf8"
)

// wordwrap and pprint: the line breaking of Python's textwrap and pprint modules.

func wordWrapFilter(s *state, v Value, a []Value) Value {
	if !v.IsString() {
		if v.kind == KindUndefined {
			failUndefined(v)
		}
		raise(attributeError, "'%s' object has no attribute 'splitlines'", v.typeName())
	}
	width, sep := optInt(a[0], 79), "\n"
	if given(a[2]) {
		sep = text(a[2])
	}
	w := wrapper{s: s, width: width, breakWords: flag(a[1], true), breakHyphens: flag(a[3], true)}
	var paragraphs []string
	for _, line := range splitLines(v.str, false) {
		paragraphs = append(paragraphs, strings.Join(w.wrap(line), sep))
	}
	return s.str(strings.Join(paragraphs, sep))
}

// wrapper is textwrap.TextWrapper with white space kept as it is.
type wrapper struct {
	s                        *state
	width                    int
	breakWords, breakHyphens bool
}

// isWrapSpace is textwrap's notion of white space: ASCII only.
func isWrapSpace(r rune) bool { return r == ' ' || r >= '\t' && r <= '\r' }

func isWord(r rune) bool       { return r == '_' || isAlnumRune(r) }
func isWordLetter(r rune) bool { return isWord(r) && !isDecimalRune(r) }
func isWordPunct(r rune) bool  { return isWord(r) || strings.ContainsRune(`!"'&.,?`, r) }

// chunks splits a line into runs of white space and pieces of words that stay together.
func (w *wrapper) chunks(line string) [][]rune {
	text := []rune(line)
	w.s.grow(4 * len(text))
	at := func(i int) rune {
		if i < 0 || i >= len(text) {
			return 0
		}
		return text[i]
	}
	in := func(i int, is func(rune) bool) bool { return i >= 0 && i < len(text) && is(text[i]) }
	dashes := func(i int) int { // length of the run of "-" at i
		n := 0
		for at(i+n) == '-' {
			n++
		}
		return n
	}
	// dashAhead: two or more dashes and a word character begin at i (the run may be cut short for the match).
	dashAhead := func(i int) bool {
		n := dashes(i)
		return n >= 2 && in(i+n, isWord)
	}
	var out [][]rune
	for i := 0; i < len(text); {
		j := i
		switch {
		case isWrapSpace(text[i]):
			for in(j, isWrapSpace) {
				j++
			}
		case !w.breakHyphens:
			for j < len(text) && !isWrapSpace(text[j]) {
				j++
			}
		case in(i-1, isWordPunct) && dashAhead(i):
			j = i + dashes(i)
		default:
			for j++; ; j++ {
				// After at least one character: a hyphen inside a word, the end of the word, or a dash.
				if at(j) == '-' &&
					(in(j-2, isWordLetter) && in(j-1, isWordLetter) ||
						in(j-3, isWordLetter) && at(j-2) == '-' && in(j-1, isWordPunct)) &&
					in(j+1, isWordLetter) &&
					(in(j+2, isWordLetter) || at(j+2) == '-' && in(j+3, isWordLetter)) {
					j++
					break
				}
				if j >= len(text) || isWrapSpace(text[j]) || in(j-1, isWordPunct) && dashAhead(j) {
					break
				}
			}
		}
		out = append(out, text[i:j])
		i = j
	}
	return out
}

// wrap is textwrap.wrap of one line.
func (w *wrapper) wrap(line string) []string {
	if w.width <= 0 {
		raise(valueError, "invalid width %d (must be > 0)", w.width)
	}
	chunks := w.chunks(line)
	blank := func(c []rune) bool {
		for _, r := range c {
			if !isPySpace(r) {
				return false
			}
		}
		return true
	}
	var lines []string
	for len(chunks) > 0 {
		if len(lines) > 0 && blank(chunks[0]) {
			chunks = chunks[1:]
		}
		var cur [][]rune
		n := 0
		for len(chunks) > 0 && n+len(chunks[0]) <= w.width {
			cur, n, chunks = append(cur, chunks[0]), n+len(chunks[0]), chunks[1:]
		}
		if len(chunks) > 0 && len(chunks[0]) > w.width {
			long := chunks[0]
			switch room := w.width - n; {
			case w.breakWords:
				end := room
				if w.breakHyphens && len(long) > room {
					// Break after a hyphen that has something else than hyphens before it.
					h := -1
					for i := 0; i < room; i++ {
						if long[i] == '-' {
							h = i
						}
					}
					if h > 0 && strings.Trim(string(long[:h]), "-") != "" {
						end = h + 1
					}
				}
				cur, chunks[0] = append(cur, long[:end]), long[end:]
			case len(cur) == 0:
				cur, chunks = append(cur, long), chunks[1:]
			}
		}
		if len(cur) > 0 && blank(cur[len(cur)-1]) {
			cur = cur[:len(cur)-1]
		}
		if len(cur) > 0 {
			var b strings.Builder
			for _, c := range cur {
				b.WriteString(string(c))
			}
			w.s.step(1)
			lines = append(lines, b.String())
		}
	}
	return lines
}

func pprintFilter(s *state, v Value, _ []Value) Value {
	p := printer{s: s}
	p.format(v, 0, 0, 0)
	return s.str(p.out.String())
}

// printer is pprint.PrettyPrinter with a width of 80: what does not fit on a line is broken up by element.
type printer struct {
	s   *state
	out strings.Builder
}

const pprintWidth = 80

// repr is repr(v) with dicts sorted by key.
func (p *printer) repr(v Value) string {
	return string(p.s.appendRepr(nil, p.sortDicts(v)))
}

func (p *printer) sortDicts(v Value) Value {
	p.s.deeper()
	defer func() { p.s.depth-- }()
	switch {
	case v.isSeq():
		items := make([]Value, len(v.Items()))
		for i, e := range v.Items() {
			items[i] = p.sortDicts(e)
		}
		return Value{kind: v.kind, ref: &List{items: items}}
	case v.kind == KindDict:
		d := NewDict(v.Dict().Len())
		for _, e := range p.sorted(v.Dict()) {
			d.add(e.Key, p.sortDicts(e.Value))
		}
		return d.Value()
	}
	return v
}

// sorted gives the entries by key; keys that have no order are ordered by type name.
func (p *printer) sorted(d *Dict) []Entry {
	entries := append([]Entry(nil), d.entries...)
	for i := 1; i < len(entries); i++ {
		for j := i; j > 0 && p.less(entries[j].Key, entries[j-1].Key); j-- {
			entries[j], entries[j-1] = entries[j-1], entries[j]
		}
	}
	return entries
}

func (p *printer) less(a, b Value) bool {
	p.s.step(1)
	if a.isNumber() && b.isNumber() || a.IsString() && b.IsString() || a.isSeq() && a.kind == b.kind {
		return ordered(p.s, "<", a, b) == -1
	}
	return a.typeName() < b.typeName()
}

func (p *printer) format(v Value, indent, allowance, level int) {
	rep := p.repr(v)
	if utf8.RuneCountInString(rep) <= pprintWidth-indent-allowance {
		p.out.WriteString(rep)
		return
	}
	level++
	switch v.kind {
	case KindDict:
		p.out.WriteByte('{')
		for i, e := range p.sorted(v.Dict()) {
			p.newLine(i, indent+1)
			key := p.repr(e.Key)
			p.out.WriteString(key + ": ")
			p.format(e.Value, indent+1+utf8.RuneCountInString(key)+2, p.room(i, v.Dict().Len(), allowance+1), level)
		}
		p.out.WriteByte('}')
	case KindList, KindTuple:
		open, end := "[", "]"
		if v.kind == KindTuple {
			open, end = "(", ")"
			if len(v.Items()) == 1 {
				end = ",)"
			}
		}
		p.out.WriteString(open)
		for i, e := range v.Items() {
			p.newLine(i, indent+1)
			p.format(e, indent+1, p.room(i, len(v.Items()), allowance+len(end)), level)
		}
		p.out.WriteString(end)
	case KindString:
		p.text(v.str, rep, indent, allowance, level)
	default:
		p.out.WriteString(rep)
	}
}

func (p *printer) newLine(i, indent int) {
	if i > 0 {
		p.out.WriteString(",\n" + strings.Repeat(" ", indent))
	}
}

// room is what must stay free after element i of n.
func (p *printer) room(i, n, allowance int) int {
	if i == n-1 {
		return allowance
	}
	return 1
}

// text breaks a long str at line ends and white space.
func (p *printer) text(text, rep string, indent, allowance, level int) {
	if level == 1 {
		indent++
		allowance++
	}
	quoted := func(s string) (string, int) {
		q := quotePython(s)
		return q, utf8.RuneCountInString(q)
	}
	width := pprintWidth - indent
	var chunks []string
	lines := splitLines(text, true)
	for i, line := range lines {
		room := width
		if i == len(lines)-1 {
			room -= allowance
		}
		q, n := quoted(line)
		rep = q
		if n <= room {
			chunks = append(chunks, q)
			continue
		}
		parts := wordsWithSpace(line)
		cur := ""
		max := width
		for j, part := range parts {
			if j == len(parts)-1 && i == len(lines)-1 {
				max -= allowance
			}
			p.s.step(1)
			if _, n := quoted(cur + part); n <= max {
				cur += part
				continue
			}
			if cur != "" {
				q, _ := quoted(cur)
				chunks = append(chunks, q)
			}
			cur = part
		}
		if cur != "" {
			q, _ := quoted(cur)
			chunks = append(chunks, q)
		}
	}
	if len(chunks) == 1 {
		p.out.WriteString(rep)
		return
	}
	joined := strings.Join(chunks, "\n"+strings.Repeat(" ", indent))
	if level == 1 {
		joined = "(" + joined + ")"
	}
	p.out.WriteString(joined)
}

// wordsWithSpace splits text into words with the white space after them.
func wordsWithSpace(text string) []string {
	var parts []string
	for text != "" {
		end := strings.IndexFunc(text, isPySpace)
		if end < 0 {
			end = len(text)
		}
		n := strings.IndexFunc(text[end:], func(r rune) bool { return !isPySpace(r) })
		if n < 0 {
			n = len(text) - end
		}
		parts = append(parts, text[:end+n])
		text = text[end+n:]
	}
	return parts
}
