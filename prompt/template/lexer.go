package template

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The lexer turns template source into tokens with the rules of Jinja2 3.1's lexer.py under
// trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False: the settings of
// transformers' chat templates. All white space control happens here; the parser sees only the text that is left.

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
	num  Value // integers and floats
}

// kindNames are the names of tokens in error messages.
var kindNames = map[tokenKind]string{tokEOF: "end of template", tokData: "template data / text", tokVarBegin: "begin of print statement",
	tokVarEnd: "end of print statement", tokBlockBegin: "begin of statement block", tokBlockEnd: "end of statement block",
	tokString: "string", tokInteger: "integer", tokFloat: "float"}

func (t token) describe() string { return cmp.Or(kindNames[t.kind], t.text) }

type lexer struct {
	src    string
	pos    int
	line   int
	starts bool // the last thing consumed ended in a newline, or nothing was consumed yet
	toks   []token
}

// lex splits src into tokens, ending with tokEOF. It fails (by raise) with a SyntaxError.
func lex(src string) []token {
	l := &lexer{src: normalizeSource(src), line: 1, starts: true}
	l.root()
	l.emit(tokEOF, "")
	return l.toks
}

// normalizeSource makes every line end "\n" and drops one line end at the end of the source.
func normalizeSource(src string) string {
	return strings.TrimSuffix(normalizeNewlines(src), "\n")
}

func normalizeNewlines(s string) string {
	if strings.IndexByte(s, '\r') < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

func (l *lexer) fail(format string, args ...any) {
	panic(syntaxErrorf(l.line, format, args...))
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.toks = append(l.toks, token{kind: kind, line: l.line, text: text})
}

// consume moves to position end, counting lines.
func (l *lexer) consume(end int) {
	part := l.src[l.pos:end]
	l.line += strings.Count(part, "\n")
	if part != "" {
		l.starts = part[len(part)-1] == '\n'
	}
	l.pos = end
}

// root reads template data and hands over to tags until the source ends.
func (l *lexer) root() {
	for l.pos < len(l.src) {
		at, raw, rawEnd := l.nextTag()
		if at < 0 {
			l.emit(tokData, l.src[l.pos:])
			l.consume(len(l.src))
			return
		}
		opener := l.src[at : at+2]
		sign, inside := l.sign(at + 2)
		l.data(l.src[l.pos:at], sign, opener == "{{")
		if raw {
			l.consume(rawEnd)
			l.raw()
			continue
		}
		l.consume(inside)
		switch opener {
		case "{#":
			l.comment()
		case "{{":
			l.emit(tokVarBegin, "")
			l.expression(true)
		default:
			l.emit(tokBlockBegin, "")
			l.expression(false)
		}
	}
}

// sign reads a white space sign, if there is one at i, and gives the position after it.
func (l *lexer) sign(i int) (byte, int) {
	if i < len(l.src) && (l.src[i] == '-' || l.src[i] == '+') {
		return l.src[i], i + 1
	}
	return 0, i
}

// data emits the text before a tag after the white space control of that tag's opener.
func (l *lexer) data(text string, sign byte, variable bool) {
	kept := text
	switch {
	case sign == '-':
		kept = trimRightSpace(text)
	case sign != '+' && !variable:
		from := strings.LastIndexByte(text, '\n') + 1
		if (from > 0 || l.starts) && from < len(text) && trimRightSpace(text[from:]) == "" {
			kept = text[:from]
		}
	}
	if kept != "" {
		l.emit(tokData, kept)
	}
	l.consume(l.pos + len(text))
}

// nextTag finds the next "{{", "{%" or "{#", and whether it opens a raw block (and where that opener ends).
func (l *lexer) nextTag() (at int, raw bool, rawEnd int) {
	for i := l.pos; ; i++ {
		j := strings.IndexByte(l.src[i:], '{')
		if j < 0 || i+j+1 >= len(l.src) {
			return -1, false, 0
		}
		i += j
		switch l.src[i+1] {
		case '{', '#':
			return i, false, 0
		case '%':
			end, ok := l.matchTag(i, "raw")
			if ok {
				// A raw opener takes the newline after it only with "-": trim_blocks does not apply here.
				if l.src[end-3] == '-' {
					end = l.skipSpace(end)
				}
				return i, true, end
			}
			return i, false, 0
		}
	}
}

// matchTag matches "{%", a sign, the word and "%}" (with a sign "-" before it, or "+" for endraw), giving the end of "%}".
func (l *lexer) matchTag(i int, word string) (int, bool) {
	_, i = l.sign(i + 2)
	i = l.skipSpace(i)
	if !strings.HasPrefix(l.src[i:], word) {
		return 0, false
	}
	i = l.skipSpace(i + len(word))
	sign, i := l.sign(i)
	return i + 2, strings.HasPrefix(l.src[i:], "%}") && (sign != '+' || word == "endraw")
}

func (l *lexer) raw() {
	for i := l.pos; ; i++ {
		j := strings.Index(l.src[i:], "{%")
		if j < 0 {
			l.fail("Missing end of raw directive")
		}
		i += j
		end, ok := l.matchTag(i, "endraw")
		if !ok {
			continue
		}
		sign, _ := l.sign(i + 2)
		l.data(l.src[l.pos:i], sign, false)
		l.consume(l.afterClose(end, l.src[end-3]))
		return
	}
}

// afterClose gives the position after a closing "%}" or "#}" that ends at end and had sign before it:
// "-" takes all white space, "+" nothing, and plain one newline (trim_blocks).
func (l *lexer) afterClose(end int, sign byte) int {
	switch {
	case sign == '-':
		return l.skipSpace(end)
	case sign != '+' && end < len(l.src) && l.src[end] == '\n':
		return end + 1
	}
	return end
}

func (l *lexer) comment() {
	j := strings.Index(l.src[l.pos:], "#}")
	if j < 0 {
		l.fail("Missing end of comment tag")
	}
	end := l.pos + j + 2
	sign := byte(0)
	if j > 0 {
		sign = l.src[end-3]
	}
	l.consume(l.afterClose(end, sign))
}

func (l *lexer) skipSpace(i int) int {
	for i < len(l.src) {
		r, n := utf8.DecodeRuneInString(l.src[i:])
		if !isPySpace(r) {
			break
		}
		i += n
	}
	return i
}

// tagEnd reports whether the tag closes here, and the position after its close.
func (l *lexer) tagEnd(variable bool) (int, bool) {
	sign, end := l.sign(l.pos)
	switch {
	case variable && strings.HasPrefix(l.src[end:], "}}") && sign != '+':
		if sign == 0 {
			sign = '+' // trim_blocks is for statements
		}
	case variable || !strings.HasPrefix(l.src[end:], "%}"):
		return 0, false
	}
	return l.afterClose(end+2, sign), true
}

// operators, longest first.
var operators = [...]string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
	">", "<", "=", ".", ":", "|", ",", ";"}

// expression reads the tokens inside one tag.
func (l *lexer) expression(variable bool) {
	var open []byte // closers that are still due
	for {
		if len(open) == 0 {
			if end, ok := l.tagEnd(variable); ok {
				if variable {
					l.emit(tokVarEnd, "")
				} else {
					l.emit(tokBlockEnd, "")
				}
				l.consume(end)
				return
			}
		}
		if l.pos >= len(l.src) {
			return // the parser reports what it misses
		}
		if end := l.skipSpace(l.pos); end > l.pos {
			l.consume(end)
			continue
		}
		c := l.src[l.pos]
		switch {
		case c >= '0' && c <= '9':
			l.number()
			continue
		case c == '\'' || c == '"':
			l.stringToken()
			continue
		}
		if end := l.wordEnd(); end > l.pos {
			l.emit(tokName, l.src[l.pos:end])
			l.consume(end)
			continue
		}
		op := ""
		for _, o := range operators {
			if strings.HasPrefix(l.src[l.pos:], o) {
				op = o
				break
			}
		}
		switch op {
		case "":
			r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
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
		l.consume(l.pos + len(op))
	}
}

// wordEnd matches a name.
func (l *lexer) wordEnd() int {
	i := l.pos
	for i < len(l.src) {
		r, n := utf8.DecodeRuneInString(l.src[i:])
		if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
			break
		}
		i += n
	}
	return i
}

func isDecDigit(c byte) bool { return c >= '0' && c <= '9' }

// The numbers of Jinja2's lexer: digits may have single underscores between them, and "1." is an integer and a dot.
var (
	floatPattern   = regexp.MustCompile(`^\d+(_\d+)*((\.\d+(_\d+)*)?[eE][+-]?\d+(_\d+)*|\.\d+(_\d+)*)`)
	integerPattern = regexp.MustCompile(`^(0[bB](_?[01])+|0[oO](_?[0-7])+|0[xX](_?[0-9a-fA-F])+|[1-9](_?\d)*|0(_?0)*)`)
)

func (l *lexer) number() {
	rest := l.src[l.pos:]
	tok := token{kind: tokFloat, line: l.line, text: floatPattern.FindString(rest)}
	if tok.text != "" && (l.pos == 0 || l.src[l.pos-1] != '.') { // a number after a dot is never a float (x.1.2)
		f, err := strconv.ParseFloat(strings.ReplaceAll(tok.text, "_", ""), 64)
		if err != nil && f == 0 {
			l.fail("bad number %q", tok.text)
		}
		tok.num = Float(f)
	} else {
		tok.kind, tok.text = tokInteger, integerPattern.FindString(rest)
		n, err := strconv.ParseInt(tok.text, 0, 64)
		if err != nil {
			panic(&SyntaxError{Line: l.line, Msg: "an integer of more than 64 bits is not supported in chat templates", Unsupported: true})
		}
		tok.num = Int(n)
	}
	l.toks = append(l.toks, tok)
	l.consume(l.pos + len(tok.text))
}

func (l *lexer) stringToken() {
	quote := l.src[l.pos]
	i := l.pos + 1
	for ; i < len(l.src) && l.src[i] != quote; i++ {
		if l.src[i] == '\\' {
			i++
		}
	}
	if i >= len(l.src) {
		l.fail("unexpected char %q at %d", string(quote), l.pos)
	}
	l.emit(tokString, l.unescape(l.src[l.pos+1:i]))
	l.consume(i + 1)
}

// unescape applies Python's unicode-escape rules. Unknown escapes keep their backslash.
func (l *lexer) unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		c := s[i]
		if c != '\\' {
			b.WriteByte(c)
			i++
			continue
		}
		i++
		if i >= len(s) {
			l.fail("\\ at end of string")
		}
		c = s[i]
		i++
		switch c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a', 'b', 'f', 'n', 'r', 't', 'v':
			b.WriteByte("\a\b\f\n\r\t\v"[strings.IndexByte("abfnrtv", c)])
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := rune(c - '0')
			for k := 0; k < 2 && i < len(s) && s[i] >= '0' && s[i] <= '7'; k++ {
				n = n*8 + rune(s[i]-'0')
				i++
			}
			b.WriteRune(n)
		case 'x', 'u', 'U':
			digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+digits > len(s) {
				l.fail("truncated \\%c escape", c)
			}
			n, err := strconv.ParseUint(s[i:i+digits], 16, 32)
			if err != nil || n > unicode.MaxRune {
				l.fail("bad \\%c escape", c)
			}
			i += digits
			if n >= 0xD800 && n < 0xE000 {
				l.fail("the lone surrogate \\%c%04x cannot be part of a prompt", c, n)
			}
			b.WriteRune(rune(n))
		case 'N':
			l.fail("\\N{...} escapes are not supported: write the character itself")
		default:
			b.WriteByte('\\')
			if c < utf8.RuneSelf {
				b.WriteByte(c)
				continue
			}
			// Jinja2 escapes other characters first, so a backslash before one eats the escape's own backslash.
			r, n := utf8.DecodeRuneInString(s[i-1:])
			b.WriteString(pyHexEscape(r)[1:])
			i += n - 1
		}
	}
	return b.String()
}
