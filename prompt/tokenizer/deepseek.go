package tokenizer

import (
	"strings"
	"sync"
	"unicode/utf8"
)

// DeepSeek-V3 and its descendants (DeepSeek-VL2, DeepSeek-OCR, Step 3) cut a text with three patterns in sequence: into numbers and
// the text between them, that into runs of Han or kana and the text between, and each part by the third. One scanner does all three
// from left to right.

// deepSeekPatterns are these patterns. In the files the two line breaks are literal.
var deepSeekPatterns = [...]string{`\p{N}{1,3}`, "[一-龥぀-ゟ゠-ヿ]+",
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+` + altSpaces}

// isDeepSeek reports whether the first steps of a pre-tokenizer are these patterns.
func isDeepSeek(steps []preSpec) bool {
	if len(steps) < len(deepSeekPatterns) {
		return false
	}
	for i, want := range deepSeekPatterns {
		s := &steps[i]
		if s.Type != "Split" || s.Behavior != "Isolated" || s.Invert || s.Pattern.Regex == nil ||
			strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(*s.Pattern.Regex) != want {
			return false
		}
	}
	return true
}

// Flags of deepSeekFlags. Marks count as letters. A character of the second pattern has fHan and flags of its own, so that no run
// of letters or signs leaves its part.
const (
	fSign      = fUpper // \p{P} or \p{S}
	fHanLetter = fMark
	fHanSign   = fLower
)

var deepSeekFlags = sync.OnceValue(func() *runeTable[uint8] {
	flags, cl := scanFlags(), classes()
	return newRuneTable(func(r rune) uint8 {
		f := flags.at(r)
		letter, sign, rest := uint8(fLetter), uint8(fSign), f&(fNumber|fSpace|fBreak)
		if 0x4E00 <= r && r <= 0x9FA5 || 0x3040 <= r && r <= 0x30FF {
			letter, sign, rest = fHan|fHanLetter, fHan|fHanSign, fHan
		}
		switch c := cl.at(r) & clCategory; {
		case f&(fLetter|fMark) != 0:
			return letter
		case gcPc <= c && c <= gcSo:
			return sign
		}
		return rest
	})
})

func newDeepSeekScanner() *scanner {
	s := scannerOf(deepSeekFlags())
	s.digits, s.bounds = 3, fNumber|fHan
	return s
}

// nextDeepSeek returns the end of the word that begins at b[i]. Text that the third pattern does not match forms a word up to its
// next match.
func (s *scanner) nextDeepSeek(b []byte, i int, f uint8, size int) int {
	if f&fNumber != 0 {
		return s.number(b, i+size)
	}
	if end := s.matchDeepSeek(b, i, f, size); end > 0 {
		return end
	}
	han := f & fHan
	for i += size; i < len(b); i += size {
		f, size = s.at(b, i)
		if f&fNumber != 0 || f&fHan != han || s.matchDeepSeek(b, i, f, size) > 0 {
			break
		}
	}
	return i
}

// matchDeepSeek returns the end of the third pattern's match at b[i], 0 if there is none.
func (s *scanner) matchDeepSeek(b []byte, i int, f uint8, size int) int {
	letter, sign := uint8(fLetter), uint8(fSign)
	if f&fHan != 0 {
		letter, sign = fHanLetter, fHanSign
	}
	f2, size2 := s.at(b, i+size)
	switch {
	case f&sign != 0:
		if b[i] < utf8.RuneSelf && i+1 < len(b) && isLetterASCII(b[i+1]) {
			end := i + 2
			for end < len(b) && isLetterASCII(b[end]) {
				end++
			}
			return end
		}
		end := s.run(b, i+size, sign)
		if f&fHan == 0 { // a part of Han has no line breaks
			end = s.run(b, end, fBreak)
		}
		return end
	case f&letter != 0:
		return s.run(b, i+size, letter)
	case f&fBreak == 0 && f2&letter != 0:
		return s.run(b, i+size+size2, letter)
	case b[i] == ' ' && f2&sign != 0:
		return s.run(b, s.run(b, i+size+size2, sign), fBreak)
	case f&fSpace != 0:
		return s.spaces(b, i, true)
	}
	return 0
}

func isLetterASCII(c byte) bool { c = lowerASCII(c); return 'a' <= c && c <= 'z' }
