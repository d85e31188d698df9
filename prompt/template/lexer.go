package template

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The lexer splits template source into tokens by the rules of Jinja2 3.1's lexer.py, with the same regular expressions, under
// trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False: the settings of transformers' chat templates. All white space
// control happens here; the parser sees only the remaining text.

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInteger
	tokFloat
	tokOperator
)

// token is one lexical element. text holds template data, the name, the operator or the unescaped string.
type token struct {
	kind tokenKind
	line int
	text string
	num  Value  // integers and floats
	lack string // what of a string or an integer this package does not read; "": nothing
}

// kindNames are the names of tokens in error messages.
var kindNames = map[tokenKind]string{tokEOF: "end of template", tokData: "template data / text",
	tokVarBegin: "begin of print statement", tokVarEnd: "end of print statement", tokBlockBegin: "begin of statement block",
	tokBlockEnd: "end of statement block", tokString: "string", tokInteger: "integer", tokFloat: "float"}

func (t token) describe() string { return cmp.Or(kindNames[t.kind], t.text) }

// space is Python's \s, the characters of isPySpace.
const space = `[\t-\r\x1c- \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]`

// Between tags: what opens a tag, and what ends a comment or a raw block. A tag's sign is the second group. The end of a statement
// consumes one newline (trim_blocks), with "-" all white space, with "+" nothing; the opener of a raw block consumes white space
// only with "-".
var (
	opener     = regexp.MustCompile(`\{(?:%([-+]?)` + space + `*(raw)` + space + `*(?:-%\}` + space + `*|%\})|([{%#])([-+]?))`)
	commentEnd = regexp.MustCompile(`\+#\}|-#\}` + space + `*|#\}\n?`)
	rawEnd     = regexp.MustCompile(`\{%([-+]?)` + space + `*endraw` + space + `*(?:\+%\}|-%\}` + space + `*|%\}\n?)`)
)

// Inside a tag. "1." is an integer and a dot; digits may be separated by single underscores.
var (
	variableEnd    = regexp.MustCompile(`^(?:-\}\}` + space + `*|\}\})`)
	blockEnd       = regexp.MustCompile(`^(?:\+%\}|-%\}` + space + `*|%\}\n?)`)
	floatPattern   = regexp.MustCompile(`^\d+(_\d+)*((\.\d+(_\d+)*)?[eE][+-]?\d+(_\d+)*|\.\d+(_\d+)*)`)
	integerPattern = regexp.MustCompile(`^(0[bB](_?[01])+|0[oO](_?[0-7])+|0[xX](_?[0-9a-fA-F])+|[1-9](_?\d)*|0(_?0)*)`)
	stringPattern  = regexp.MustCompile(`(?s)^(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")`)
	operator       = regexp.MustCompile(`^(?://|\*\*|[=!<>]=|[-+/*%~\[\](){}<>=.:|,;])`)
)

type lexer struct {
	src    string
	pos    int
	line   int
	starts bool // the last thing consumed ended in a newline, or nothing was consumed yet
	toks   []token
}

// lex splits src into tokens, ending with tokEOF. It fails (by panic) with a *SyntaxError.
func lex(src string) []token {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, starts: true}
	for l.pos < len(l.src) {
		l.untilTag()
	}
	l.emit(tokEOF, "")
	return l.toks
}

func (l *lexer) fail(format string, args ...any) {
	panic(syntaxErrorf(l.line, format, args...))
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.toks = append(l.toks, token{kind: kind, line: l.line, text: text})
}

func (l *lexer) rest() string { return l.src[l.pos:] }

// consume advances by n bytes and counts lines.
func (l *lexer) consume(n int) {
	part := l.src[l.pos : l.pos+n]
	l.line += strings.Count(part, "\n")
	if part != "" {
		l.starts = part[len(part)-1] == '\n'
	}
	l.pos += n
}

// untilTag reads template data and the tag after it.
func (l *lexer) untilTag() {
	m := opener.FindStringSubmatchIndex(l.rest())
	if m == nil {
		l.emit(tokData, l.rest())
		l.consume(len(l.rest()))
		return
	}
	group := func(i int) string {
		if m[2*i] < 0 {
			return ""
		}
		return l.src[l.pos+m[2*i] : l.pos+m[2*i+1]]
	}
	sign, raw, kind, width := group(1)+group(4), group(2) != "", group(3), m[1]-m[0]
	l.data(m[0], sign, kind == "{")
	l.consume(width)
	switch {
	case raw:
		end := l.find(rawEnd, "Missing end of raw directive")
		l.data(end[0], l.rest()[end[2]:end[3]], false)
		l.consume(end[1] - end[0])
	case kind == "#":
		l.consume(l.find(commentEnd, "Missing end of comment tag")[1])
	case kind == "{":
		l.emit(tokVarBegin, "")
		l.tag(variableEnd, tokVarEnd)
	default:
		l.emit(tokBlockBegin, "")
		l.tag(blockEnd, tokBlockEnd)
	}
}

// find searches for the end of a comment or a raw block.
func (l *lexer) find(end *regexp.Regexp, missing string) []int {
	m := end.FindStringSubmatchIndex(l.rest())
	if m == nil {
		l.fail("%s", missing)
	}
	return m
}

// data emits the n bytes of text before a tag, after applying the white space control of the tag's opener.
func (l *lexer) data(n int, sign string, variable bool) {
	text := l.rest()[:n]
	kept := text
	switch {
	case sign == "-":
		kept = trimRightSpace(text)
	case sign == "" && !variable:
		from := strings.LastIndexByte(text, '\n') + 1
		if (from > 0 || l.starts) && trimRightSpace(text[from:]) == "" {
			kept = text[:from]
		}
	}
	if kept != "" {
		l.emit(tokData, kept)
	}
	l.consume(n)
}

// tag reads the tokens inside one tag, up to its end.
func (l *lexer) tag(end *regexp.Regexp, endKind tokenKind) {
	var open []byte // closing brackets still expected
	for {
		l.consume(len(l.rest()) - len(trimLeftSpace(l.rest())))
		if l.pos == len(l.src) {
			return // the parser reports what is missing
		}
		c, word := l.src[l.pos], len(l.rest())-len(strings.TrimLeftFunc(l.rest(), inName))
		closing := ""
		if strings.IndexByte("-+%}", c) >= 0 && len(open) == 0 {
			closing = end.FindString(l.rest())
		}
		switch {
		case closing != "":
			l.emit(endKind, "")
			l.consume(len(closing))
			return
		case c >= '0' && c <= '9':
			l.number()
		case c == '\'' || c == '"':
			m := stringPattern.FindStringSubmatch(l.rest())
			if m == nil {
				l.fail("unexpected char %q at %d", string(c), l.pos)
			}
			l.emit(tokString, "")
			str := &l.toks[len(l.toks)-1]
			str.text, str.lack = unescape(m[1] + m[2])
			l.consume(len(m[0]))
		case word > 0:
			l.emit(tokName, l.rest()[:word])
			l.consume(word)
		default:
			open = l.operator(open)
		}
	}
}

func inName(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r)
}

// operator reads one operator and updates the list of open brackets.
func (l *lexer) operator(open []byte) []byte {
	op := operator.FindString(l.rest())
	switch op {
	case "":
		r := []rune(l.rest()[:min(4, len(l.rest()))])[0]
		l.fail("unexpected char %q at %d", string(r), l.pos)
	case "{":
		open = append(open, '}')
	case "(":
		open = append(open, ')')
	case "[":
		open = append(open, ']')
	case "}", ")", "]":
		if len(open) == 0 {
			l.fail("unexpected '%s'", op)
		}
		want := open[len(open)-1]
		open = open[:len(open)-1]
		if want != op[0] {
			l.fail("unexpected '%s', expected '%c'", op, want)
		}
	}
	l.emit(tokOperator, op)
	l.consume(len(op))
	return open
}

func (l *lexer) number() {
	tok := token{kind: tokFloat, line: l.line, text: floatPattern.FindString(l.rest())}
	if tok.text != "" && l.src[l.pos-1] != '.' { // a number after a dot is never a float (x.1.2)
		f, _ := strconv.ParseFloat(strings.ReplaceAll(tok.text, "_", ""), 64) // infinite if it is too large, as in Python
		tok.num = Float(f)
	} else {
		tok.kind, tok.text = tokInteger, integerPattern.FindString(l.rest())
		n, err := strconv.ParseInt(tok.text, 0, 64)
		tok.num = Int(n)
		if err != nil {
			tok.num, tok.lack = longInteger(tok.text)
		}
	}
	l.toks = append(l.toks, tok)
	l.consume(len(tok.text))
}

// longInteger returns an integer beyond 64 bits, or what of it is not read: Python itself prints no more digits.
func longInteger(text string) (v Value, lack string) {
	n, _ := new(big.Int).SetString(text, 0)
	if n.BitLen() > maxIntDigits*3 {
		return v, "an integer of so many digits"
	}
	return Value{kind: KindBig, str: n.String()}, ""
}

// escape is one of Python's escapes in a string.
var escape = regexp.MustCompile(`(?s)\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{1,3}|.)`)

// unescape applies Python's unicode-escape rules, by which unknown escapes keep their backslash. lack names one that is not read.
func unescape(s string) (text, lack string) {
	text = escape.ReplaceAllStringFunc(s, func(e string) string {
		switch c := e[1]; c {
		case '\n':
			return ""
		case '\\', '\'', '"':
			return e[1:]
		case 'a', 'b', 'f', 'n', 'r', 't', 'v':
			at := strings.IndexByte("abfnrtv", c)
			return "\a\b\f\n\r\t\v"[at : at+1]
		case 'x', 'u', 'U', '0', '1', '2', '3', '4', '5', '6', '7':
			digits, base := e[2:], 16
			if c <= '7' {
				digits, base = e[1:], 8
			}
			n, err := strconv.ParseUint(digits, base, 32)
			if err == nil && utf8.ValidRune(rune(n)) {
				return string(rune(n))
			}
			lack = "the escape " + e
		case 'N':
			lack = "the escape " + e
		default:
			switch r, _ := utf8.DecodeRuneInString(e[1:]); { // Jinja2 escapes the character first
			case r >= 1<<16:
				return fmt.Sprintf(`\U%08x`, r)
			case r >= 1<<8:
				return fmt.Sprintf(`\u%04x`, r)
			case r >= utf8.RuneSelf:
				return fmt.Sprintf(`\x%02x`, r)
			}
		}
		return e
	})
	return text, lack
}
