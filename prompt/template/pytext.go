package template

import (
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

// cutLine splits a text behind its first line, at the line boundaries of str.splitlines; found is false if there is none.
func cutLine(text string) (line, rest string, found bool) {
	for i, r := range text {
		switch {
		case r == '\r' && strings.HasPrefix(text[i:], "\r\n"):
			return text[:i], text[i+2:], true
		case r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029:
			return text[:i], text[i+utf8.RuneLen(r):], true
		}
	}
	return text, "", false
}

// upperText is str.upper.
func upperText(s *state, text string) string {
	return mapPieces(s, text, strings.ToUpper, cases.Upper(language.Und).String)
}

// lowerText is str.lower, with the final sigma rule.
func lowerText(s *state, text string) string {
	return mapPieces(s, text, strings.ToLower, cases.Lower(language.Und).String)
}

// mapPieces changes the case of a text piece by piece, so that it can be stopped. Only a final sigma depends on what stands around it
// in its word.
func mapPieces(s *state, text string, ascii, other func(string) string) string {
	if isASCII(text) {
		s.grow(len(text))
		return ascii(text)
	}
	const longestWord = 16 * pieceBytes
	b, words := builder{s: s}, strings.Contains(text, "Σ")
	for text != "" {
		n := piece(text)
		if words && n < len(text) {
			more := strings.IndexAny(text[n:min(len(text), n+longestWord)], " \t\n")
			if more < 0 && len(text) > n+longestWord {
				limit("a word of more than %d bytes", longestWord)
			} else if more < 0 {
				more = len(text) - n
			}
			n += more
		}
		b.add(other(text[:n]))
		text = text[n:]
	}
	return b.text()
}

// isCased reports whether a character is in a case or has another one.
func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) || unicode.Is(unicode.Other_Lowercase, r) ||
		unicode.Is(unicode.Other_Uppercase, r)
}

// capitalizeText is str.capitalize: the first character in title case, the rest in lower case.
func capitalizeText(s *state, text string) string {
	first := true
	return titleWhere(s, text, func(rune) bool {
		was := first
		first = false
		return was
	})
}

// titleText is str.title: a letter after a letter in lower case, any other in title case.
func titleText(s *state, text string) string {
	inWord := false
	return titleWhere(s, text, func(r rune) bool {
		start := !inWord
		inWord = isCased(r)
		return start
	})
}

// titleWhere puts the characters for which starts is true in title case and the others in lower case. Non-ASCII letters, whose case
// depends on their neighbours, are not supported.
func titleWhere(s *state, text string, starts func(r rune) bool) string {
	s.grow(len(text))
	return strings.Map(func(r rune) rune {
		s.work(1)
		switch start := starts(r); {
		case r >= utf8.RuneSelf && isCased(r):
			unsupported("the title case of %s", quotePython(string(r)))
		case r >= utf8.RuneSelf:
			return r
		case start:
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, text)
}

// isDigitRune reports whether r is a digit. Unicode's other numbers (², ①), some of which are digits to Python, are not supported.
func isDigitRune(r rune) bool {
	if unicode.Is(unicode.No, r) {
		unsupported("isdigit of %s", quotePython(string(r)))
	}
	return unicode.Is(unicode.Nd, r)
}

// isNumericRune reports whether r is a number. Ideographs, of which some are, are not supported.
func isNumericRune(r rune) bool {
	if unicode.Is(unicode.Han, r) {
		unsupported("isnumeric of %s", quotePython(string(r)))
	}
	return unicode.IsNumber(r)
}

// allRunes reports whether text is not empty and every character satisfies is.
func allRunes(s *state, text string, is func(rune) bool) bool {
	for _, r := range text {
		s.work(1)
		if !is(r) {
			return false
		}
	}
	return text != ""
}
