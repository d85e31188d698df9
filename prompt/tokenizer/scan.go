package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Nearly all byte-level tokenizers cut words with patterns of one family: contractions, words with one leading character, short
// runs of digits, punctuation with its line breaks, white space. A pattern of that family is split at its top-level bars, each
// alternative is looked up by its exact text, and the result is a scanner with a few switches that needs no regular expression. A
// tokenizer with another pattern does not load.
//
// Every scanner of the family covers a text without gaps: the alternatives for words, numbers, other signs and white space match
// every character between them.

// Flags of a character that the scanners use.
const (
	fLetter = 1 << iota // \p{L}
	fNumber             // \p{N}
	fSpace              // \s
	fMark               // \p{M}
	fUpper              // Lu Lt Lm Lo M: the first half of a cased word
	fLower              // Ll Lm Lo M: the second half
	fBreak              // \r \n
	fWide               // in the byte table: first byte of a longer character
	fHan    = fWide     // in kimiFlags: \p{Han}
)

var scanFlags = sync.OnceValue(func() *runeTable[uint8] {
	cl := classes()
	return newRuneTable(func(r rune) uint8 {
		c := cl.at(r)
		var f uint8
		switch c & clCategory {
		case gcLu, gcLt:
			f = fLetter | fUpper
		case gcLl:
			f = fLetter | fLower
		case gcLm, gcLo:
			f = fLetter | fUpper | fLower
		case gcMn, gcMc, gcMe:
			f = fMark | fUpper | fLower
		case gcNd, gcNl, gcNo:
			f = fNumber
		}
		if c&clOnigSpace != 0 {
			f |= fSpace
		}
		if r == '\r' || r == '\n' {
			f |= fBreak
		}
		return f
	})
})

// kimiFlags are scanFlags except for Han characters, which form words of their own and belong to no cased one. Go's table is
// Unicode 15's; the reference's adds only the ideographs of 15.1.
var kimiFlags = sync.OnceValue(func() *runeTable[uint8] {
	flags := scanFlags()
	return newRuneTable(func(r rune) uint8 {
		if unicode.Is(unicode.Han, r) || 0x2EBF0 <= r && r <= 0x2EE5D {
			return flags.at(r)&^(fUpper|fLower) | fHan
		}
		return flags.at(r)
	})
})

type contractionRule uint8

const (
	noContraction    contractionRule = iota
	plainContraction                 // 's|'t|'re|'ve|'m|'ll|'d
	foldContraction                  // the same under (?i:…): ſ (U+017F) counts as s
)

// scanner cuts a text into the words of one pattern of the family.
type scanner struct {
	flags *runeTable[uint8]
	ascii [256]uint8

	cased       bool            // words are upper* lower+ | upper+ lower* (o200k, Tekken)
	gpt2        bool            // only a space may lead a word or number, line breaks are plain white space
	letters     uint8           // flags of a word's characters
	contraction contractionRule // as an alternative of its own, or after a cased word
	digits      int             // most characters of one number; 0: no bound
	slash       bool            // a slash may follow signs, as line breaks may: [\r\n/]*
	bounds      uint8           // DeepSeek: flags of characters that earlier patterns have cut out, so that the text ends there
}

const (
	altFold     = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	altFold2    = `'(?i:[sdmt]|ll|ve|re)`
	altPlain    = `'s|'t|'re|'ve|'m|'ll|'d`
	altWord     = `[^\r\n\p{L}\p{N}]?\p{L}+`
	altWordPoss = `[^\r\n\p{L}\p{N}]?+\p{L}+`
	altWordMark = `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`
	altCased1   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	altCased2   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	altSign     = ` ?[^\s\p{L}\p{N}]+[\r\n]*`
	altSignPoss = ` ?[^\s\p{L}\p{N}]++[\r\n]*`
	altSlash    = ` ?[^\s\p{L}\p{N}]+[\r\n/]*`
	altSignMark = ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`
	altSpaces   = `|\s+(?!\S)|\s+`
	altHan      = `[\p{Han}]+`
	notHan      = `&&[^\p{Han}]]`

	patternGPT2   = altPlain + `| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+` + altSpaces
	patternQwen   = altFold + "|" + altWord + `|\p{N}|` + altSign + `|\s*[\r\n]+` + altSpaces
	patternQwen35 = altFold + "|" + altWordMark + `|\p{N}|` + altSignMark + `|\s*[\r\n]+` + altSpaces
	patternTekken = altCased1 + "|" + altCased2 + `|\p{N}|` + altSlash + `|\s*[\r\n]+` + altSpaces
	patternLlama3 = altFold + "|" + altWord + `|\p{N}{1,3}|` + altSign + `|\s*[\r\n]+` + altSpaces
	patternKimi   = altHan + `|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}` + notHan + `*[\p{Ll}\p{Lm}\p{Lo}\p{M}` + notHan + `+` + altFold + `?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}` + notHan + `+[\p{Ll}\p{Lm}\p{Lo}\p{M}` + notHan + `*` + altFold + `?|` +
		`\p{N}{1,3}|` + altSign + `|\s*[\r\n]+` + altSpaces
)

func scannerOf(flags *runeTable[uint8]) *scanner {
	s := &scanner{flags: flags, letters: fLetter}
	for b := range s.ascii {
		s.ascii[b] = fWide
		if b < utf8.RuneSelf {
			s.ascii[b] = flags.at(rune(b))
		}
	}
	return s
}

// newScanner returns the scanner of a pattern. It is an error if the pattern is not of the family.
func newScanner(pattern string) (*scanner, error) {
	s := scan(pattern)
	if s == nil {
		return nil, fmt.Errorf("the regular expression %.200q: no scanner knows it", pattern)
	}
	return s, nil
}

// scan is newScanner, with nil for an error.
func scan(pattern string) *scanner {
	s := scannerOf(scanFlags())
	if pattern == patternGPT2 {
		s.gpt2, s.contraction = true, plainContraction
		return s
	}
	rest := pattern
	if pattern == patternKimi {
		s = scannerOf(kimiFlags())
		rest = strings.ReplaceAll(strings.TrimPrefix(pattern, altHan+"|"), notHan, "]")
	}
	// take removes the first of the texts that rest begins with, and returns its index; -1: none.
	take := func(texts ...string) int {
		n := slices.IndexFunc(texts, func(text string) bool { return strings.HasPrefix(rest, text+"|") })
		if n >= 0 {
			rest = rest[len(texts[n])+1:]
		}
		return n
	}
	sign := []string{altSign, altSlash, altSignPoss}
	switch take(altCased1+altFold+"?|"+altCased2+altFold+"?", altCased1+"|"+altCased2) {
	case 0:
		s.cased, s.contraction = true, foldContraction
	case 1:
		s.cased = true
	default:
		switch take(altPlain, altFold, altFold2) {
		case 0:
			s.contraction = plainContraction
		case 1, 2:
			s.contraction = foldContraction
		}
		switch take(altWordMark, altWord, altWordPoss) {
		case -1:
			return nil
		case 0:
			s.letters = fLetter | fMark
			sign = []string{altSignMark}
		}
	}
	s.digits = take(`\p{N}+`, `\p{N}`, `\p{N}{1,2}`, `\p{N}{1,3}`)
	after := take(sign...)
	s.slash = after == 1
	if s.digits < 0 || after < 0 || rest != `\s*[\r\n]+`+altSpaces && rest != `\s*[\r\n]`+altSpaces {
		return nil
	}
	return s
}

// at returns the flags of the character at b[i] and its length; 0, 1 past the end.
func (s *scanner) at(b []byte, i int) (flags uint8, size int) {
	if i >= len(b) {
		return 0, 1
	}
	if f := s.ascii[b[i]]; f != fWide {
		return f, 1
	}
	return s.wide(b, i)
}

// wide is at for a character of two bytes or more.
func (s *scanner) wide(b []byte, i int) (uint8, int) {
	if c := b[i]; c >= 0xE1 && c <= 0xEC && i+2 < len(b) {
		c1, c2 := b[i+1], b[i+2]
		if c1&0xC0 == 0x80 && c2&0xC0 == 0x80 {
			return s.flags.at(rune(c&0xF)<<12 | rune(c1&0x3F)<<6 | rune(c2&0x3F)), 3
		}
	}
	r, size := utf8.DecodeRune(b[i:])
	return s.flags.at(r), size
}

// run returns the end of the run of characters from i that have one of the flags in mask.
func (s *scanner) run(b []byte, i int, mask uint8) int {
	for i < len(b) {
		f, size := s.ascii[b[i]], 1
		if f == fWide {
			f, size = s.wide(b, i)
		}
		if f&mask == 0 {
			break
		}
		i += size
	}
	return i
}

// until returns the end of the run of characters from i that have none of the flags in mask.
func (s *scanner) until(b []byte, i int, mask uint8) int {
	for i < len(b) {
		f, size := s.at(b, i)
		if f&mask != 0 {
			break
		}
		i += size
	}
	return i
}

// next returns the end of the word that begins at b[i]; i must be inside b.
func (s *scanner) next(b []byte, i int) int {
	f, size := s.at(b, i)
	switch {
	case s.gpt2:
		return s.nextGPT2(b, i, f, size)
	case s.bounds != 0:
		return s.nextDeepSeek(b, i, f, size)
	}
	if s.cased {
		if f&fHan != 0 {
			return s.run(b, i+size, fHan)
		}
		if f&(fNumber|fBreak) == 0 {
			if end := s.casedWord(b, i, f, size); end > 0 {
				if s.contraction != noContraction {
					end += contractionLen(b[end:], true)
				}
				return end
			}
		}
	} else {
		if f&s.letters != 0 {
			return s.run(b, i+size, s.letters)
		}
		if b[i] == '\'' && s.contraction != noContraction {
			if n := contractionLen(b[i:], s.contraction == foldContraction); n > 0 {
				return i + n
			}
		}
		if f&(fNumber|fBreak) == 0 {
			if f2, size2 := s.at(b, i+size); f2&s.letters != 0 {
				return s.run(b, i+size+size2, s.letters)
			}
		}
	}
	if f&fNumber != 0 {
		return s.number(b, i+size)
	}
	start, fs, ns := i, f, size
	if b[i] == ' ' && i+1 < len(b) {
		start = i + 1
		fs, ns = s.at(b, start)
	}
	if notSign := fLetter | fNumber | fSpace | s.letters; fs&notSign == 0 && start < len(b) {
		end := s.until(b, start+ns, notSign)
		for end < len(b) && (b[end] == '\r' || b[end] == '\n' || s.slash && b[end] == '/') {
			end++
		}
		return end
	}
	return s.spaces(b, i, true)
}

// number returns the end of a number, given the end i of its first digit.
func (s *scanner) number(b []byte, i int) int {
	for n := 1; n != s.digits; n++ {
		f, size := s.at(b, i)
		if f&fNumber == 0 {
			break
		}
		i += size
	}
	return i
}

// spaces matches \s*[\r\n]+|\s+(?!\S)|\s+ at b[i], which is white space; without breaks the first alternative is missing.
func (s *scanner) spaces(b []byte, i int, breaks bool) int {
	end, last, lastBreak, behind := i, i, -1, uint8(0)
	for end < len(b) {
		f, size := s.at(b, end)
		if f&fSpace == 0 {
			behind = f
			break
		}
		last = end
		end += size
		if f&fBreak != 0 {
			lastBreak = end
		}
	}
	switch {
	case breaks && lastBreak >= 0:
		return lastBreak
	case end == len(b) || last == i || behind&s.bounds != 0:
		return end
	}
	return last
}

func (s *scanner) nextGPT2(b []byte, i int, f uint8, size int) int {
	if b[i] == '\'' {
		if n := contractionLen(b[i:], false); n > 0 {
			return i + n
		}
	}
	start := i
	if b[i] == ' ' && i+1 < len(b) {
		start = i + 1
		f, size = s.at(b, start)
	}
	switch {
	case f&fSpace != 0:
		return s.spaces(b, i, false)
	case f&fLetter != 0:
		return s.run(b, start+size, fLetter)
	case f&fNumber != 0:
		return s.run(b, start+size, fNumber)
	}
	return s.until(b, start+size, fSpace|fLetter|fNumber)
}

// casedWord matches P?U*L+|P?U+L* at b[i] and returns its end, 0 if there is no match. P is any sign or space (marks too), U the
// first half of a cased word, L the second; letters without case and marks are in both.
func (s *scanner) casedWord(b []byte, i int, f uint8, size int) int {
	if f&fLetter != 0 {
		end, upper := s.casedBody(b, i)
		return max(end, upper)
	}
	end, upper := s.casedBody(b, i+size)
	switch {
	case end > 0:
		return end
	case f&fMark != 0:
		end, _ = s.casedBody(b, i)
		return end
	}
	return upper
}

// casedBody returns the end of U*L+ from i, 0 if there is none, and the end of U+ if there is no U*L+.
func (s *scanner) casedBody(b []byte, i int) (end, upper int) {
	j, both := i, 0
	for j < len(b) {
		f, size := s.at(b, j)
		if f&fUpper == 0 {
			if f&fLower != 0 {
				return s.run(b, j+size, fLower), 0
			}
			break
		}
		j += size
		if f&fLower != 0 {
			both = j
		}
	}
	if both > 0 {
		return both, 0
	}
	if j == i {
		return 0, 0
	}
	return 0, j
}

// contractionLen returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of b, 0 if there is none.
func contractionLen(b []byte, fold bool) int {
	if len(b) < 2 || b[0] != '\'' {
		return 0
	}
	c, d := b[1], byte(0)
	if len(b) > 2 {
		d = b[2]
	}
	if fold {
		if c == 0xC5 && d == 0xBF { // ſ
			return 3
		}
		c, d = lowerASCII(c), lowerASCII(d)
	}
	switch c {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if d == 'e' {
			return 3
		}
	case 'l':
		if d == 'l' {
			return 3
		}
	}
	return 0
}

func lowerASCII(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
