package template

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Reading numbers from text as int() and float() do.

// plainDigits turns decimal digits of any script into ASCII and takes out white space around and underscores between
// digits; ok is false where an underscore stands elsewhere.
func plainDigits(text string, isDigit func(rune) bool) (string, bool) {
	var b strings.Builder
	last := rune(0)
	for _, r := range strings.TrimFunc(text, isPySpace) {
		if d, ok := decimalDigit(r); ok {
			r = rune('0' + d)
		}
		if r >= utf8.RuneSelf || r == '_' && !isDigit(last) || last == '_' && !isDigit(r) {
			return "", false
		}
		if r != '_' {
			b.WriteRune(r)
		}
		last = r
	}
	return b.String(), last != '_' && last != 0
}

func isAlnumASCII(r rune) bool {
	return r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z'
}

// parseInt is int(text, base); ok is false for ValueError.
func parseInt(text string, base int) (Value, bool) {
	t, ok := plainDigits(text, isAlnumASCII)
	if !ok || base < 0 || base == 1 || base > 36 {
		return Value{}, false
	}
	sign := ""
	if t[0] == '+' || t[0] == '-' {
		if sign, t = t[:1], t[1:]; t == "" {
			return Value{}, false
		}
	}
	if strings.ContainsAny(t, "+-") {
		return Value{}, false
	}
	if len(t) > 2 && t[0] == '0' {
		prefixed := map[byte]int{'b': 2, 'o': 8, 'x': 16}[t[1]|0x20]
		if prefixed != 0 && (base == 0 || base == prefixed) {
			t, base = t[2:], prefixed
		}
	}
	if base == 0 {
		if t[0] == '0' && strings.Trim(t, "0") != "" {
			return Value{}, false
		}
		base = 10
	}
	if len(t) > maxIntDigits && base&(base-1) != 0 || len(t) > maxIntBits/4 {
		return Value{}, false
	}
	n, ok := new(big.Int).SetString(sign+t, base)
	if !ok {
		return Value{}, false
	}
	return bigValue(n), true
}

// parseFloat is float(text); ok is false for ValueError.
func parseFloat(text string) (float64, bool) {
	t, ok := plainDigits(text, isDecimalRune)
	if !ok {
		return 0, false
	}
	switch strings.ToLower(strings.TrimLeft(t, "+-")) {
	case "inf", "infinity", "nan":
		if strings.Trim(t[1:], "+-") != t[1:] {
			return 0, false
		}
	default:
		for i := range len(t) {
			if c := t[i]; !isDecDigit(c) && c != '.' && c != '+' && c != '-' && c|0x20 != 'e' {
				return 0, false
			}
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil {
		if ne, ok := err.(*strconv.NumError); !ok || ne.Err != strconv.ErrRange {
			return 0, false
		}
	}
	return f, true
}
