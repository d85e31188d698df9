package template

import (
	"fmt"
	"strings"
	"time"
)

// strftimeNow is transformers' datetime.now().strftime(format): C's strftime of glibc in the C locale, over a naive local time.
func strftimeNow(s *state, a *callArgs) Value {
	format := text(bind1(s, a, "format", "strftime_now"))
	if s.now.IsZero() {
		s.now = s.t.opts.Now().In(s.t.opts.Location)
	}
	return s.str(strftime(s.now, format))
}

// strftime formats t. Flags (- no padding, _ blanks, 0 zeros, ^ upper case, # other case) and widths are glibc's.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		start := i
		i++
		flag, upper, swap := byte(0), false, false
		for i < len(format) && strings.IndexByte("-_0^#", format[i]) >= 0 {
			switch format[i] {
			case '^':
				upper = true
			case '#':
				swap = true
			default:
				flag = format[i]
			}
			i++
		}
		width := 0
		for i < len(format) && isDecDigit(format[i]) {
			width = min(width*10+int(format[i]-'0'), 1024)
			i++
		}
		if i < len(format) && (format[i] == 'E' || format[i] == 'O') && i+1 < len(format) {
			i++
		}
		if i == len(format) {
			b.WriteString(format[start:])
			break
		}
		text, ok := timeField(t, format[i], flag, width)
		switch {
		case format[i] == 'f' && i == start+1: // Python's own, without flags
			text = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case !ok && upper:
			text = strings.ToUpper(format[start : i+1])
		case !ok:
			text = format[start : i+1]
		case format[i] == 'P': // always in lower case
		case upper:
			text = strings.ToUpper(text)
		case swap && format[i] == 'p':
			text = strings.ToLower(text)
		case swap && strings.IndexByte("aAbBh", format[i]) >= 0:
			text = strings.ToUpper(text)
		}
		if n := width - len(text); n > 0 && format[i] != 'z' {
			fill := " "
			if flag == '0' {
				fill = "0"
			}
			text = strings.Repeat(fill, n) + text
		}
		b.WriteString(text)
	}
	return b.String()
}

// timeField gives one conversion of strftime; ok is false for an unknown one.
func timeField(t time.Time, c, flag byte, width int) (text string, ok bool) {
	num := func(n, digits int, pad byte) (string, bool) {
		if flag == '-' {
			return fmt.Sprint(n), true
		}
		if flag == '_' {
			pad = ' '
		} else if flag == '0' {
			pad = '0'
		}
		digits = max(digits, width)
		if pad == ' ' {
			return fmt.Sprintf("%*d", digits, n), true
		}
		return fmt.Sprintf("%0*d", digits, n), true
	}
	hour12 := (t.Hour()+11)%12 + 1
	isoYear, isoWeek := t.ISOWeek()
	switch c {
	case 'a':
		return t.Weekday().String()[:3], true
	case 'A':
		return t.Weekday().String(), true
	case 'b', 'h':
		return t.Month().String()[:3], true
	case 'B':
		return t.Month().String(), true
	case 'c':
		return strftime(t, "%a %b %e %H:%M:%S %Y"), true
	case 'C':
		return num(t.Year()/100, 2, '0')
	case 'd':
		return num(t.Day(), 2, '0')
	case 'D', 'x':
		return strftime(t, "%m/%d/%y"), true
	case 'e':
		return num(t.Day(), 2, ' ')
	case 'F':
		return strftime(t, "%Y-%m-%d"), true
	case 'g':
		return num(isoYear%100, 2, '0')
	case 'G':
		return num(isoYear, 1, '0')
	case 'H':
		return num(t.Hour(), 2, '0')
	case 'I':
		return num(hour12, 2, '0')
	case 'j':
		return num(t.YearDay(), 3, '0')
	case 'k':
		return num(t.Hour(), 2, ' ')
	case 'l':
		return num(hour12, 2, ' ')
	case 'm':
		return num(int(t.Month()), 2, '0')
	case 'M':
		return num(t.Minute(), 2, '0')
	case 'n':
		return "\n", true
	case 'p':
		return t.Format("PM"), true
	case 'P':
		return t.Format("pm"), true
	case 'r':
		return strftime(t, "%I:%M:%S %p"), true
	case 'R':
		return strftime(t, "%H:%M"), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'S':
		return num(t.Second(), 2, '0')
	case 't':
		return "\t", true
	case 'T', 'X':
		return strftime(t, "%H:%M:%S"), true
	case 'u':
		return num((int(t.Weekday())+6)%7+1, 1, '0')
	case 'U':
		return num((t.YearDay()+6-int(t.Weekday()))/7, 2, '0')
	case 'V':
		return num(isoWeek, 2, '0')
	case 'w':
		return num(int(t.Weekday()), 1, '0')
	case 'W':
		return num((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2, '0')
	case 'y':
		return num(t.Year()%100, 2, '0')
	case 'Y':
		return num(t.Year(), 1, '0')
	case 'z', 'Z':
		return "", true // a naive datetime has no zone
	case '%':
		return "%", true
	}
	return "", false
}
