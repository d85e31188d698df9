package template

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Python's view of text: white space, digits, cased letters, and case conversion. ASCII has a fast path; the full Unicode mappings
// ("ß" becomes "SS") come from golang.org/x/text.

func isPySpace(r rune) bool {
	if r < 0x80 {
		return r >= 9 && r <= 13 || r >= 0x1c && r <= 0x20
	}
	return r == 0x85 || r == 0xa0 || r == 0x1680 || r >= 0x2000 && r <= 0x200a || r == 0x2028 || r == 0x2029 ||
		r == 0x202f || r == 0x205f || r == 0x3000
}

func trimRightSpace(s string) string { return strings.TrimRightFunc(s, isPySpace) }
func trimLeftSpace(s string) string  { return strings.TrimLeftFunc(s, isPySpace) }

// lineEnd are the line boundaries of str.splitlines.
var lineEnd = regexp.MustCompile(`\r\n|[\n-\r\x1c-\x1e\x{85}\x{2028}\x{2029}]`)

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

// isCased reports whether a character is in a case or has another one.
func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) || unicode.Is(unicode.Other_Lowercase, r) ||
		unicode.Is(unicode.Other_Uppercase, r)
}

// capitalizeText is str.capitalize: the first character in title case, the rest in lower case.
func capitalizeText(s string) string {
	first := true
	return titleWhere(s, func(rune) bool {
		was := first
		first = false
		return was
	})
}

// titleText is str.title: a letter after a letter in lower case, any other in title case.
func titleText(s string) string {
	inWord := false
	return titleWhere(s, func(r rune) bool {
		start := !inWord
		inWord = isCased(r)
		return start
	})
}

// titleWhere puts the characters for which starts is true in title case and the others in lower case. Non-ASCII letters, whose case
// depends on their neighbours, are not supported.
func titleWhere(s string, starts func(r rune) bool) string {
	return strings.Map(func(r rune) rune {
		switch start := starts(r); {
		case r >= utf8.RuneSelf && isCased(r):
			unsupported("the title case of %s", quotePython(string(r)))
		case r >= utf8.RuneSelf:
			return r
		case start:
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, s)
}

// isDigitRune reports whether r is a digit. Unicode's other numbers (², ①), some of which are digits to Python, are not supported.
func isDigitRune(r rune) bool {
	if unicode.Is(unicode.No, r) {
		unsupported("isdigit of %s", quotePython(string(r)))
	}
	return unicode.Is(unicode.Nd, r)
}

// allRunes reports whether s is not empty and every character satisfies is.
func allRunes(s string, is func(rune) bool) bool {
	for _, r := range s {
		if !is(r) {
			return false
		}
	}
	return s != ""
}
