package template

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// strftimeNow is transformers' datetime.now().strftime(format): glibc's strftime in the C locale, for a naive
// local time. The worker's zone is taken to be UTC.
func strftimeNow(s *state, _ Value, a []Value) Value {
	if s.now.IsZero() {
		s.now = s.t.opts.Now().UTC()
	}
	return String(strftime(s, s.now, text(a[0])))
}

// goLayouts are the conversions that package time also has. A naive datetime has no zone.
var goLayouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'p': "PM",
	'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04", 'S': "05", 'y': "06", 'Y': "2006",
	'c': "Mon Jan _2 15:04:05 2006", 'D': "01/02/06", 'x': "01/02/06", 'F': "2006-01-02",
	'r': "03:04:05 PM", 'R': "15:04", 'T': "15:04:05", 'X': "15:04:05", 'z': "", 'Z': "", '%': "%", 'n': "\n", 't': "\t",
}

// strftime formats t. The flag - removes the padding of a number; glibc's other flags, widths and rarer conversions are not
// supported. An unknown conversion is copied.
func strftime(s *state, t time.Time, format string) string {
	b := builder{s: s}
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.add(format[i : i+1])
			continue
		}
		i++
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		c := format[i]
		shown, ok := "", true
		if layout, plain := goLayouts[c]; plain {
			shown = t.Format(layout)
		} else {
			shown, ok = rareConversion(t, c)
		}
		switch {
		case strings.IndexByte("-_0^#EO123456789CgPsWw+", c) >= 0, unpadded && strings.IndexByte("deHIjmMSykl", c) < 0:
			unsupported("strftime_now(%s)", quotePython(format))
		case !ok:
			shown = "%" + string(c)
		case unpadded:
			shown = cmp.Or(strings.TrimLeft(shown, "0 "), "0")
		}
		b.add(shown)
	}
	return b.text()
}

// rareConversion formats the numbers for which package time has no layout; ok is false for an unknown conversion.
func rareConversion(t time.Time, c byte) (shown string, ok bool) {
	isoYear, isoWeek := t.ISOWeek()
	switch c {
	case 'f': // Python's own
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'G':
		return fmt.Sprint(isoYear), true
	case 'V':
		return fmt.Sprintf("%02d", isoWeek), true
	case 'k':
		return fmt.Sprintf("%2d", t.Hour()), true
	case 'l':
		return fmt.Sprintf("%2d", (t.Hour()+11)%12+1), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	case 'U':
		return fmt.Sprintf("%02d", (t.YearDay()+6-int(t.Weekday()))/7), true
	}
	return "", false
}
