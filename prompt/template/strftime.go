package template

import (
	"fmt"
	"strings"
	"time"
)

// strftimeNow is transformers' datetime.now().strftime(format): C's strftime of glibc in the C locale, over a naive local time.
func strftimeNow(s *state, _ Value, a []Value) Value {
	if s.now.IsZero() {
		s.now = s.t.opts.Now().In(s.t.opts.Location)
	}
	out := strftime(s.now, text(a[0]))
	s.grow(len(out))
	return String(out)
}

// goLayouts are the conversions that package time has as well; composed those that stand for several others.
var (
	goLayouts = map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'p': "PM", 'P': "pm"}
	composed  = map[byte]string{'c': "%a %b %e %H:%M:%S %Y", 'D': "%m/%d/%y", 'x': "%m/%d/%y", 'F': "%Y-%m-%d", 'r': "%I:%M:%S %p", 'R': "%H:%M",
		'T': "%H:%M:%S", 'X': "%H:%M:%S", 'n': "\n", 't': "\t", 'z': "", 'Z': "", '%': "%%"} // a naive datetime has no zone
)

// strftime formats t. The flags are glibc's: - (no padding), _ (blanks) and 0 (zeros); its other flags and its widths
// are not supported. An unknown conversion stays as it is.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		start := i
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		flag := byte(0)
		if strings.IndexByte("-_0", format[i]) >= 0 && i+1 < len(format) {
			flag = format[i]
			i++
		}
		c := format[i]
		if strings.IndexByte("-_0^#EO123456789", c) >= 0 {
			unsupported("strftime_now(%s)", quotePython(format))
		}
		layout, plain := goLayouts[c]
		whole, isComposed := composed[c]
		switch n, width, blank := timeNumber(t, c); {
		case plain:
			b.WriteString(t.Format(layout))
		case c == '%':
			b.WriteByte('%')
		case isComposed:
			b.WriteString(strftime(t, whole))
		case c == 'f' && flag == 0: // Python's own
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		case width == 0:
			b.WriteString(format[start : i+1])
		case flag == '-':
			fmt.Fprint(&b, n)
		case flag == '_' || blank && flag == 0:
			fmt.Fprintf(&b, "%*d", width, n)
		default:
			fmt.Fprintf(&b, "%0*d", width, n)
		}
	}
	return b.String()
}

// timeNumber gives the number of a conversion, its width (0 for an unknown conversion) and whether blanks pad it.
func timeNumber(t time.Time, c byte) (n, width int, blank bool) {
	hour12, weekday := (t.Hour()+11)%12+1, int(t.Weekday())
	isoYear, isoWeek := t.ISOWeek()
	switch c {
	case 'C':
		return t.Year() / 100, 2, false
	case 'd', 'e':
		return t.Day(), 2, c == 'e'
	case 'g':
		return isoYear % 100, 2, false
	case 'G':
		return isoYear, 1, false
	case 'H', 'k':
		return t.Hour(), 2, c == 'k'
	case 'I', 'l':
		return hour12, 2, c == 'l'
	case 'j':
		return t.YearDay(), 3, false
	case 'm':
		return int(t.Month()), 2, false
	case 'M':
		return t.Minute(), 2, false
	case 's':
		return int(t.Unix()), 1, false
	case 'S':
		return t.Second(), 2, false
	case 'u':
		return (weekday+6)%7 + 1, 1, false
	case 'U':
		return (t.YearDay() + 6 - weekday) / 7, 2, false
	case 'V':
		return isoWeek, 2, false
	case 'w':
		return weekday, 1, false
	case 'W':
		return (t.YearDay() + 6 - (weekday+6)%7) / 7, 2, false
	case 'y':
		return t.Year() % 100, 2, false
	case 'Y':
		return t.Year(), 1, false
	}
	return 0, 0, false
}
