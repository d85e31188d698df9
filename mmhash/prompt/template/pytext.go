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
func splitLines(s string, keepEnds bool) []string {
	var out []string
	for s != "" {
		end, next := len(s), len(s)
		if i := strings.IndexFunc(s, isLineEnd); i >= 0 {
			_, n := utf8.DecodeRuneInString(s[i:])
			end, next = i, i+n
			if s[i] == '\r' && next < len(s) && s[next] == '\n' {
				next++
			}
		}
		if keepEnds {
			out = append(out, s[:next])
		} else {
			out = append(out, s[:end])
		}
		s = s[next:]
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

// ideographNumbers are the letters that have a numeric value.
const ideographNumbers = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零" +
	"\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd\U00020001\U00020064\U000200e2\U00020121\U0002092a\U00020983\U0002098c\U0002099c" +
	"\U00020aea\U00020afd\U00020b19\U00022390\U00022998\U00023b1b\U0002626d\U0002f890"

func isDecimalRune(r rune) bool { return unicode.Is(unicode.Nd, r) }
func isDigitRune(r rune) bool   { return isDecimalRune(r) || unicode.Is(digitRunes, r) }
func isNumericRune(r rune) bool {
	return unicode.IsNumber(r) || strings.ContainsRune(ideographNumbers, r)
}
func isAlnumRune(r rune) bool { return unicode.IsLetter(r) || isNumericRune(r) }

// decimalDigit gives the value of a decimal digit of any script.
func decimalDigit(r rune) (int, bool) {
	if r >= '0' && r <= '9' {
		return int(r - '0'), true
	}
	if r < utf8.RuneSelf || !isDecimalRune(r) {
		return 0, false
	}
	// Decimal digits come in runs of ten; count back to the start of the run's ranges.
	n := 0
	for isDecimalRune(r - rune(n) - 1) {
		n++
	}
	return n % 10, true
}

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

func isTitleText(s string) bool {
	inWord, found := false, false
	for _, r := range s {
		switch {
		case isUpperRune(r) || unicode.IsTitle(r):
			if inWord {
				return false
			}
			inWord, found = true, true
		case isLowerRune(r):
			if !inWord {
				return false
			}
		default:
			inWord = false
		}
	}
	return found
}
