package tokenizer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// regex is a pattern that no scanner knows, run by regexp2, a backtracking engine. Some patterns take quadratic or exponential time
// on some texts, so it gets no text of more than maxPatternText bytes, and one Encode may spend no more time in it than patternBase
// plus patternByte for each byte of its text. Beyond that, Encode ends with the ids of a leading part; see Options.Partial.
// Ordinary patterns take a thirtieth of a microsecond per byte; the rest is slack for a busy machine.
type regex struct{ *regexp2.Regexp }

const (
	maxPatternText = 1 << 20
	patternBase    = 200 * time.Millisecond
	patternByte    = 4 * time.Microsecond
	matchTime      = 250 * time.Millisecond // for one match; regexp2's clock ticks ten times a second
)

// each calls fn for every match in b as the reference's find_iter does, without an empty match right after another match.
func (re *regex) each(s *scratch, b []byte, fn func(start, end int)) {
	if len(b) > maxPatternText {
		s.giveUp()
	}
	runes := s.runes[:0]
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		runes = append(runes, r)
		i += n
	}
	s.runes = runes
	began, matches := time.Now(), 0
	allowed := patternBase + time.Duration(s.size)*patternByte - s.inPatterns
	at, offset, last := 0, 0, -1 // a rune index, its byte offset in b, and the rune index after the last match
	offsetOf := func(to int) int {
		for ; at < to; at++ {
			_, n := utf8.DecodeRune(b[offset:])
			offset += n
		}
		return offset
	}
	err := re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		matches++
		if matches%16 == 0 && time.Since(began) > allowed {
			s.giveUp()
		}
		from, n, _ := m.GroupRange(0)
		if n > 0 || from != last {
			start := offsetOf(from)
			fn(start, offsetOf(from+n))
		}
		last = from + n
		return true
	})
	s.inPatterns += time.Since(began)
	if err != nil {
		s.giveUp()
	}
}

// compileRegex compiles a pattern that the reference gives to Oniguruma, in Ruby's syntax. Constructs that both engines read alike
// are passed on. Character classes are expanded by Oniguruma's own tables, because regexp2's are those of an older Unicode. The
// rest is refused: anchors, word boundaries, options, named groups, back references, nested classes.
func compileRegex(expr string) (*regex, error) {
	text, err := translate(expr)
	if err != nil {
		return nil, fmt.Errorf("regular expression %.200q: %w", expr, err)
	}
	re, err := regexp2.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("regular expression %.200q: %w", expr, err)
	}
	re.MatchTimeout = matchTime
	return &regex{re}, nil
}

// foldGroups are the option groups that both engines read alike: none of their letters folds to another character.
var foldGroups = []string{altFold, `(?i:[sdmt]|ll|ve|re)`}

// groupHeads are the supported beginnings of a group.
var groupHeads = []string{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}

// translate converts a pattern to regexp2's syntax.
func translate(expr string) (string, error) {
	var out strings.Builder
	for rest := expr; rest != ""; {
		size := 1
		switch c := rest[0]; c {
		case '[':
			n, err := class(&out, rest)
			if err != nil {
				return "", err
			}
			size = n
		case '(':
			if fold := slices.IndexFunc(foldGroups, func(g string) bool { return strings.HasPrefix(rest, g) }); fold >= 0 {
				size = len(foldGroups[fold])
				out.WriteString(foldGroups[fold])
				break
			}
			head := slices.IndexFunc(groupHeads, func(h string) bool { return strings.HasPrefix(rest, h) })
			switch {
			case head >= 0:
				size = len(groupHeads[head])
				out.WriteString(groupHeads[head])
			case strings.HasPrefix(rest, "(?"):
				return "", fmt.Errorf("the group %.10q… is not supported", rest)
			default:
				out.WriteString("(?:")
			}
		case '{':
			repeat, n, err := repetition(rest)
			if err != nil {
				return "", err
			}
			out.WriteString(repeat)
			size = n
		case ')', '|', '.', '*', '+', '?':
			out.WriteByte(c)
		case '^', '$':
			return "", fmt.Errorf("the anchor %q is not supported", c)
		default:
			r, set, n, err := item(rest, false)
			if err != nil {
				return "", err
			}
			size = n
			if set != "" {
				out.WriteString("[" + set + "]")
			} else {
				literal(&out, r)
			}
		}
		rest = rest[size:]
	}
	return out.String(), nil
}

// repetition reads {n}, {n,} or {n,m} at the start of text, and returns its length.
func repetition(text string) (string, int, error) {
	end := strings.IndexByte(text, '}')
	low, high, comma := strings.Cut(text[1:max(end, 1)], ",")
	a, err := strconv.ParseUint(low, 10, 10)
	b := a
	if err == nil && high != "" {
		b, err = strconv.ParseUint(high, 10, 10)
	}
	after := text[end+1:] // {n}? and {n,m}+ are additional repetitions in Ruby's syntax
	if err != nil || b < a || strings.HasPrefix(after, "+") || !comma && strings.HasPrefix(after, "?") {
		return "", 0, fmt.Errorf("the repetition %.12q… is not supported", text)
	}
	return text[:end+1], end + 1, nil
}

// class writes the class […] at the start of text and returns its length.
func class(out *strings.Builder, text string) (int, error) {
	i := 1
	out.WriteByte('[')
	if strings.HasPrefix(text[i:], "^") {
		out.WriteByte('^')
		i++
	}
	for first, single := true, false; ; first = false { // single: the last item was a character, which may begin a range
		rest := text[i:]
		switch {
		case rest == "":
			return 0, fmt.Errorf("class without ]")
		case rest[0] == ']' && !first:
			out.WriteByte(']')
			return i + 1, nil
		case rest[0] == ']' || rest[0] == '[' || strings.HasPrefix(rest, "&&"):
			return 0, fmt.Errorf("the class %.20q… is not supported: empty, or with a class in it", text)
		case rest[0] == '-' && !first && len(rest) > 1 && rest[1] != ']':
			high, set, n, err := item(rest[1:], true)
			if err != nil || !single || set != "" || rest[1] == '[' {
				return 0, fmt.Errorf("the range in the class %.20q… is not supported", text)
			}
			out.WriteByte('-')
			literal(out, high)
			i, single = i+1+n, false
		default:
			r, set, n, err := item(rest, true)
			if err != nil {
				return 0, err
			}
			out.WriteString(set)
			if set == "" {
				literal(out, r)
			}
			i, single = i+n, set == ""
		}
	}
}

// literal writes one character.
func literal(out *strings.Builder, r rune) {
	if r > 0xFFFF {
		out.WriteRune(r)
		return
	}
	fmt.Fprintf(out, `\u%04X`, r)
}

// item reads a character or an escape at the start of text. It returns the character, or the ranges of a class, and its length.
func item(text string, inClass bool) (r rune, set string, size int, err error) {
	r, size = utf8.DecodeRuneInString(text)
	if r != '\\' {
		return r, "", size, nil
	}
	r, size = utf8.DecodeRuneInString(text[1:])
	size++
	switch {
	case r == 's' || r == 'S':
		return 0, ranges(func(_ rune, c uint32) bool { return c&clOnigSpace != 0 != (r == 'S') }), size, nil
	case r == 'd' || r == 'D':
		return 0, ranges(func(_ rune, c uint32) bool { return c&clCategory == gcNd != (r == 'D') }), size, nil
	case r == 'w' || r == 'W':
		return 0, ranges(func(x rune, c uint32) bool {
			// Oniguruma uses a Latin-1 table here, but Unicode's inside a class: ² ³ ¹ ¼ ½ ¾ are only in the former.
			return (c&clOnigWord != 0 && !(inClass && strings.ContainsRune("²³¹¼½¾", x))) != (r == 'W')
		}), size, nil
	case r == 'p' || r == 'P':
		name, _, found := strings.Cut(text[size:], "}")
		inside, not := strings.CutPrefix(strings.TrimPrefix(name, "{"), "^")
		in := categories(inside)
		if !found || name[:min(1, len(name))] != "{" || in == 0 {
			return 0, "", 0, fmt.Errorf("the property %.20q is not supported: general categories such as L or Lu are", text)
		}
		not = not != (r == 'P')
		return 0, ranges(func(_ rune, c uint32) bool { return in>>(c&clCategory)&1 != 0 != not }), size + len(name) + 1, nil
	case r == 'u' && len(text) >= 6:
		v, err := strconv.ParseUint(text[2:6], 16, 32)
		return rune(v), "", 6, err
	case strings.ContainsRune("nrtfvae", r):
		return rune("\n\r\t\f\v\a\x1B"[strings.IndexRune("nrtfvae", r)]), "", size, nil
	case '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~' || r == ' ':
		return r, "", size, nil
	}
	return 0, "", 0, fmt.Errorf("the escape %.2q is not supported", text)
}

// categories returns the general categories that a name such as L or Lu stands for, one bit each; 0 if there are none.
func categories(name string) (in uint32) {
	for n, c := range strings.Fields("cn lu ll lt lm lo mn mc me nd nl no pc pd ps pe pi pf po sm sc sk so zs zl zp cc cf co") {
		if len(name) > 0 && len(name) <= 2 && strings.HasPrefix(c, strings.ToLower(name)) {
			in |= 1 << n
		}
	}
	return in
}

// ranges writes the characters whose class record satisfies in, as the inside of a class.
func ranges(in func(r rune, record uint32) bool) string {
	var out strings.Builder
	cl := classes()
	for r := rune(0); r <= maxRune; r++ {
		if !in(r, cl.at(r)) {
			continue
		}
		first := r
		for r < maxRune && in(r+1, cl.at(r+1)) {
			r++
		}
		literal(&out, first)
		if r > first {
			out.WriteByte('-')
			literal(&out, r)
		}
	}
	return out.String()
}
