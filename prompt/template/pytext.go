package template

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Python's view of text: what is white space, a digit, a cased letter, and how case changes.
// ASCII goes a short way; the full Unicode mappings ("ß" becomes "SS") come from golang.org/x/text.

func isPySpace(r rune) bool {
	if r < 0x80 {
		return r >= 9 && r <= 13 || r >= 0x1c && r <= 0x20
	}
	return r == 0x85 || r == 0xa0 || r == 0x1680 || r >= 0x2000 && r <= 0x200a || r == 0x2028 || r == 0x2029 ||
		r == 0x202f || r == 0x205f || r == 0x3000
}

func trimRightSpace(s string) string { return strings.TrimRightFunc(s, isPySpace) }
func trimLeftSpace(s string) string  { return strings.TrimLeftFunc(s, isPySpace) }

// isLineEnd reports the line boundaries of str.splitlines.
func isLineEnd(r rune) bool {
	return r >= 0x0a && r <= 0x0d || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

// splitLines is str.splitlines.
func splitLines(s string) []string {
	var out []string
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			return append(out, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		out = append(out, s[:i])
		s = s[i+n:]
	}
	return out
}

func upperText(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

// lowerText is str.lower, with the final sigma rule.
func lowerText(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func isLowerRune(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) }
func isUpperRune(r rune) bool { return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r) }
func isCased(r rune) bool     { return isLowerRune(r) || isUpperRune(r) || unicode.IsTitle(r) }

func titleRune(b *strings.Builder, r rune) {
	if r < utf8.RuneSelf {
		b.WriteRune(unicode.ToUpper(r))
		return
	}
	b.WriteString(cases.Title(language.Und, cases.NoLower).String(string(r)))
}

// capitalizeText is str.capitalize: the first character in title case, the rest in lower case.
func capitalizeText(s string) string {
	return titleWhere(s, func(i int, _ rune) bool { return i == 0 })
}

// titleText is str.title: a letter after a letter in lower case, any other in title case.
func titleText(s string) string {
	inWord := false
	return titleWhere(s, func(_ int, r rune) bool {
		start := !inWord
		inWord = isCased(r)
		return start
	})
}

// titleWhere puts the characters that starts picks in title case and the others in lower case.
func titleWhere(s string, starts func(i int, r rune) bool) string {
	var b strings.Builder
	lower := lowerText(s) // as a whole: the form of a sigma depends on its neighbours, but not its length
	for i, r := range s {
		_, n := utf8.DecodeRuneInString(lower)
		if r == 'İ' { // the one that becomes two
			n = min(len("i̇"), len(lower))
		}
		if starts(i, r) {
			titleRune(&b, r)
		} else {
			b.WriteString(lower[:n])
		}
		lower = lower[n:]
	}
	return b.String()
}

// digitRunes are the characters with Numeric_Type=Digit that are no decimal digits.
var digitRunes = &unicode.RangeTable{
	R16: []unicode.Range16{{0xb2, 0xb3, 1}, {0xb9, 0xb9, 1}, {0x1369, 0x1371, 1}, {0x19da, 0x19da, 1}, {0x2070, 0x2070, 1},
		{0x2074, 0x2079, 1}, {0x2080, 0x2089, 1}, {0x2460, 0x2468, 1}, {0x2474, 0x247c, 1}, {0x2488, 0x2490, 1}, {0x24ea, 0x24ea, 1},
		{0x24f5, 0x24fd, 1}, {0x24ff, 0x24ff, 1}, {0x2776, 0x277e, 1}, {0x2780, 0x2788, 1}, {0x278a, 0x2792, 1}},
	R32: []unicode.Range32{{0x10a40, 0x10a43, 1}, {0x10e60, 0x10e68, 1}, {0x11052, 0x1105a, 1}, {0x1f100, 0x1f10a, 1}},
}

func unicodeDigit(r rune) bool { return unicode.Is(unicode.Nd, r) }
func isDigitRune(r rune) bool  { return unicodeDigit(r) || unicode.Is(digitRunes, r) }

// all reports whether s is not empty and every character satisfies is.
func all(s string, is func(rune) bool) bool {
	for _, r := range s {
		if !is(r) {
			return false
		}
	}
	return s != ""
}

// caseOf reports whether s has cased characters and all of them satisfy is.
func caseOf(s string, is func(rune) bool) bool {
	found := false
	for _, r := range s {
		if isCased(r) {
			if !is(r) {
				return false
			}
			found = true
		}
	}
	return found
}
