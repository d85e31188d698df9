package tokenizer

import (
	"bytes"
	"iter"
	"unicode"
	"unicode/utf8"
)

// Added tokens are found in the text before anything else is done to it, in two passes as Hugging Face's tokenizers do
// it: first those that are matched in the text as it came, then, in what lies between and after normalising it, those
// that are matched in normalised text. Leftmost first, longest among those that start there.

// AddedToken is one entry of added_tokens (tokenizer.json) or added_tokens_decoder (tokenizer_config.json).
type AddedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character stands beside it
	LStrip     bool   `json:"lstrip"`      // takes the white space before it along
	RStrip     bool   `json:"rstrip"`      // takes the white space behind it along
	Normalized bool   `json:"normalized"`  // matched in normalised text
	Special    bool   `json:"special"`
}

// matcher finds added tokens: a trie, with a filter on the first byte.
type matcher struct {
	first  [256]bool // by byte: whether a token begins with it
	trie   *trie     // to the index in tokens
	length []int     // by that index, in bytes
	tokens []*AddedToken
	starts []byte // those of first
}

func newMatcher(tokens []*AddedToken, text func(*AddedToken) string) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &matcher{trie: newTrie(len(tokens)), length: make([]int, len(tokens)), tokens: tokens}
	for n, t := range tokens {
		content := text(t)
		if content == "" || !m.trie.add([]byte(content), uint32(n)) {
			continue
		}
		m.length[n] = len(content)
		if c := content[0]; !m.first[c] {
			m.first[c], m.starts = true, append(m.starts, c)
		}
	}
	return m
}

// find gives the next token in b at or behind i, and where it starts and ends; nil if there is none.
func (m *matcher) find(b []byte, i int) (start, end int, t *AddedToken) {
	for ; i < len(b); i++ {
		if len(m.starts) == 1 {
			n := bytes.IndexByte(b[i:], m.starts[0])
			if n < 0 {
				break
			}
			i += n
		} else if !m.first[b[i]] {
			continue
		}
		if n := m.trie.longest(b[i:]); n != noID {
			return i, i + m.length[n], m.tokens[n]
		}
	}
	return 0, 0, nil
}

// stretch is an added token, or the text between two of them, which begins at start.
type stretch struct {
	token *AddedToken // nil: text
	part  []byte
	start int
}

// cut gives the tokens in b and the texts between them, in order; with plain special tokens are text, and passed over whole, as
// the reference does for split_special_tokens. A nil matcher has no tokens.
func (m *matcher) cut(b []byte, plain bool) iter.Seq[stretch] {
	return func(yield func(stretch) bool) { m.walk(b, plain, yield) }
}

// walk is what cut gives, as a function that cut can be inlined without: then it allocates nothing.
func (m *matcher) walk(b []byte, plain bool, yield func(stretch) bool) {
	done := 0 // given so far
	for at := 0; m != nil; {
		start, end, t := m.find(b, at)
		if t == nil {
			break
		}
		at = end
		if plain && t.Special || t.SingleWord && (endsInWord(b[:start]) || startsWithWord(b[end:])) {
			continue
		}
		if t.LStrip {
			start = max(len(trimRight(b[:start])), done)
		}
		if t.RStrip {
			end = len(b) - len(trimLeft(b[end:]))
		}
		if done < start && start < end && !yield(stretch{part: b[done:start], start: done}) {
			return
		}
		done = end
		if start < end && !yield(stretch{token: t}) { // else the token before took all of it
			return
		}
	}
	if done < len(b) {
		yield(stretch{part: b[done:], start: done})
	}
}

// endsInWord and startsWithWord tell whether a token with single_word beside b is a part of a word.
func endsInWord(b []byte) bool {
	r, n := utf8.DecodeLastRune(b)
	return n > 0 && isClass(r, clRustWord)
}

func startsWithWord(b []byte) bool {
	r, n := utf8.DecodeRune(b)
	return n > 0 && isClass(r, clRustWord)
}

func trimLeft(b []byte) []byte  { return bytes.TrimLeftFunc(b, unicode.IsSpace) }
func trimRight(b []byte) []byte { return bytes.TrimRightFunc(b, unicode.IsSpace) }
