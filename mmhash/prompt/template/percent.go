package template

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// The % operator on str: printf-style formatting with Python's rules.

// percent is one formatting in progress.
type percent struct {
	s      *state
	format string
	escape bool // the format is Markup
	args   []Value
	next   int
	named  Value // the mapping behind %(name)s, or the zero Value
	out    strings.Builder
}

func percentFormat(s *state, format, arg Value) Value {
	p := &percent{s: s, format: format.str, escape: format.kind == KindMarkup}
	switch {
	case arg.kind == KindTuple:
		p.args = arg.Items()
	default:
		p.args = []Value{arg}
		if isMapping(arg) {
			p.named = arg
		}
	}
	p.run()
	if p.next < len(p.args) && !p.named.valid() {
		raise(typeError, "not all arguments converted during string formatting")
	}
	return made(s, format, p.out.String())
}

// isMapping is C's PyMapping_Check for anything but str and tuple: it has items.
func isMapping(v Value) bool {
	switch v.kind {
	case KindDict, KindList, KindRange, KindUndefined, KindBytes:
		return true
	}
	return false
}

func (p *percent) arg() Value {
	if p.next >= len(p.args) {
		raise(typeError, "not enough arguments for format string")
	}
	p.next++
	return p.args[p.next-1]
}

// verb is one conversion: %[(name)][flags][width][.precision]type.
type verb struct {
	minus, plus, blank, zero, alt bool
	width, precision              int // precision is -1 for none
}

func (p *percent) run() {
	f := p.format
	for f != "" {
		i := strings.IndexByte(f, '%')
		if i < 0 {
			p.out.WriteString(f)
			return
		}
		p.out.WriteString(f[:i])
		f = p.convert(f[i+1:])
	}
}

// convert writes one conversion and gives the rest of the format.
func (p *percent) convert(f string) string {
	var named Value
	if strings.HasPrefix(f, "(") {
		if !p.named.valid() {
			raise(typeError, "format requires a mapping")
		}
		depth, end := 1, 1
		for ; end < len(f) && depth > 0; end++ {
			switch f[end] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		if depth > 0 {
			raise(valueError, "incomplete format key")
		}
		key := f[1 : end-1]
		f = f[end:]
		v, ok := subscript(p.s, p.named, String(key))
		if !ok {
			raise(keyError, "%s", quotePython(key))
		}
		named = v
		p.args, p.next = []Value{v}, 0
	}
	v := verb{precision: -1}
flags:
	for f != "" {
		switch f[0] {
		case '-':
			v.minus = true
		case '+':
			v.plus = true
		case ' ':
			v.blank = true
		case '#':
			v.alt = true
		case '0':
			v.zero = true
		default:
			break flags
		}
		f = f[1:]
	}
	v.width, f = p.count(f)
	if v.width < 0 {
		v.minus, v.width = true, -v.width
	}
	if strings.HasPrefix(f, ".") {
		v.precision, f = p.count(f[1:])
		v.precision = max(v.precision, 0)
	}
	if f != "" && strings.IndexByte("hlL", f[0]) >= 0 {
		f = f[1:]
	}
	if f == "" {
		raise(valueError, "incomplete format")
	}
	c, n := utf8.DecodeRuneInString(f)
	if c == '%' {
		p.out.WriteByte('%')
		return f[1:]
	}
	arg := named
	if !named.valid() {
		arg = p.arg()
	} else {
		p.next = 1
	}
	p.write(v, c, arg)
	return f[n:]
}

// count reads a number or takes it from the arguments for "*".
func (p *percent) count(f string) (int, string) {
	if strings.HasPrefix(f, "*") {
		arg := p.arg()
		if !arg.isInteger() {
			raise(typeError, "* wants int")
		}
		return integer(arg), f[1:]
	}
	n := 0
	for f != "" && isDecDigit(f[0]) {
		if n = n*10 + int(f[0]-'0'); n > math.MaxInt32 {
			raise(valueError, "width too big")
		}
		f = f[1:]
	}
	return n, f
}

func (p *percent) write(v verb, c rune, arg Value) {
	switch c {
	case 's', 'r', 'a':
		var text string
		switch c {
		case 's':
			text = toStr(p.s, arg)
			if p.escape {
				text = escapeValue(p.s, arg).str
			}
		case 'r':
			text = string(p.s.appendRepr(nil, arg))
		case 'a':
			text = asciiRepr(p.s, arg)
		}
		if p.escape && c != 's' {
			text = escapeHTML(text)
		}
		if v.precision >= 0 {
			text = runeSlice(text, 0, min(v.precision, utf8.RuneCountInString(text)))
		}
		p.pad(v, "", text, false)
	case 'c':
		var text string
		switch {
		case arg.IsString() && !p.escape && utf8.RuneCountInString(arg.str) == 1:
			text = arg.str
		case arg.isSmallInt() && !p.escape:
			if arg.int() < 0 || arg.int() > utf8.MaxRune {
				raise(overflowError, "%%c arg not in range(0x110000)")
			}
			text = string(rune(arg.int()))
		default:
			raise(typeError, "%%c requires int or char")
		}
		p.pad(v, "", text, false)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		p.integer(v, byte(c), arg)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if !arg.isNumber() {
			if arg.kind == KindUndefined {
				failUndefined(arg)
			}
			if !p.escape || !arg.IsString() {
				raise(typeError, "must be real number, not %s", arg.typeName())
			}
			f, ok := parseFloat(arg.str)
			if !ok {
				raise(valueError, "could not convert string to float: %s", quotePython(arg.str))
			}
			arg = Float(f)
		}
		if v.precision > maxPrecision {
			raise(valueError, "precision too big")
		}
		x := toFloat(arg)
		text := floatText(math.Abs(x), byte(c), v.precision, v.alt)
		p.pad(v, v.sign(math.Signbit(x) && !math.IsNaN(x)), text, true)
	default:
		raise(valueError, "unsupported format character '%c'", c)
	}
}

func (p *percent) integer(v verb, c byte, arg Value) {
	switch {
	case arg.kind == KindUndefined:
		failUndefined(arg)
	case arg.kind == KindFloat && (c == 'd' || c == 'i' || c == 'u'):
		arg = floatToInt(arg.float())
	case !arg.isInteger():
		// Inside Markup the argument is wrapped in an object that turns into an int, a str's digits too.
		if n, ok := parseInt(arg.Text(), 10); ok && p.escape && arg.IsString() && c < 'o' {
			arg = n
			break
		}
		raise(typeError, "%%%c format: an integer is required, not %s", c, arg.typeName())
	case p.escape && (c == 'x' || c == 'X' || c == 'o'):
		raise(typeError, "%%%c format: an integer is required, not _MarkupEscapeHelper", c)
	}
	n := arg.bigInt()
	abs := new(big.Int).Abs(n)
	var digits, prefix string
	switch c {
	case 'x', 'X':
		digits, prefix = abs.Text(16), "0"+string(c)
		if c == 'X' {
			digits = strings.ToUpper(digits)
		}
	case 'o':
		digits, prefix = abs.Text(8), "0o"
	default:
		digits = bigText(abs)
	}
	if missing := v.precision - len(digits); missing > 0 {
		p.s.grow(missing)
		digits = strings.Repeat("0", missing) + digits
	}
	head := v.sign(n.Sign() < 0)
	if v.alt {
		head += prefix
	}
	p.pad(v, head, digits, true)
}

func (v verb) sign(negative bool) string {
	switch {
	case negative:
		return "-"
	case v.plus:
		return "+"
	case v.blank:
		return " "
	}
	return ""
}

func (p *percent) pad(v verb, head, text string, number bool) {
	missing := max(0, v.width-utf8.RuneCountInString(head)-utf8.RuneCountInString(text))
	p.s.grow(missing + len(text))
	switch {
	case v.minus:
		p.out.WriteString(head + text + strings.Repeat(" ", missing))
	case v.zero && number:
		p.out.WriteString(head + strings.Repeat("0", missing) + text)
	default:
		p.out.WriteString(strings.Repeat(" ", missing) + head + text)
	}
}
