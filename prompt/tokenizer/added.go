package tokenizer

import (
	"bytes"
	"iter"
	"unicode"
	"unicode/utf8"
)

// Added tokens are found in the text before anything else is done to it, in two passes as Hugging Face's tokenizers do it: first
// the tokens matched in the raw text, then, after the text between them is normalized, the tokens matched in normalized text. The
// leftmost match wins, the longest among those that start there.

// AddedToken is one entry of added_tokens (tokenizer.json) or added_tokens_decoder (tokenizer_config.json).
type AddedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only if no word character is next to it
	LStrip     bool   `json:"lstrip"`      // includes the white space before it
	RStrip     bool   `json:"rstrip"`      // includes the white space after it
	Normalized bool   `json:"normalized"`  // matched in normalized text
	Special    bool   `json:"special"`
}

// matcher finds added tokens with a trie, and a filter on the first byte.
type matcher struct {
	first  [256]bool // by byte: whether a token begins with it
	trie   *trie     // token text → index in tokens
	length []int     // in bytes, by the same index
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

// find returns the next token in b at or after i, and where it starts and ends; nil if there is none.
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

// stretch is an added token, or the text between two of them. It begins at start.
type stretch struct {
	token *AddedToken // nil: text
	part  []byte
	start int
}

// cut returns the tokens in b and the texts between them, in order. With plain, special tokens count as text and are skipped as a
// whole, as the reference does for split_special_tokens. A nil matcher has no tokens.
func (m *matcher) cut(b []byte, plain bool) iter.Seq[stretch] {
	return func(yield func(stretch) bool) { m.walk(b, plain, yield) }
}

// walk is the body of cut, a separate function so that cut can be inlined and its closure does not escape: no allocation.
func (m *matcher) walk(b []byte, plain bool, yield func(stretch) bool) {
	done := 0 // yielded so far
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
		if start < end && !yield(stretch{token: t}) { // otherwise the previous token has taken all of it
			return
		}
	}
	if done < len(b) {
		yield(stretch{part: b[done:], start: done})
	}
}

// endsInWord and startsWithWord report whether a token with single_word next to b would be part of a word.
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
