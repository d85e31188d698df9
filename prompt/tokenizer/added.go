package tokenizer

import (
	"bytes"
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
	first  [256]bool
	trie   *trie // to the index in tokens
	length []int // by that index, in bytes
	tokens []*AddedToken
	only   int // the one first byte, or -1
}

func newMatcher(tokens []*AddedToken, text func(*AddedToken) string) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &matcher{trie: newTrie(len(tokens)), length: make([]int, len(tokens)), tokens: tokens, only: -1}
	for n, t := range tokens {
		content := text(t)
		if content == "" || !m.trie.add([]byte(content), uint32(n)) {
			continue
		}
		m.length[n] = len(content)
		m.first[content[0]] = true
	}
	count := 0
	for c, is := range m.first {
		if is {
			count, m.only = count+1, c
		}
	}
	if count != 1 {
		m.only = -1
	}
	return m
}

// find gives the next token in b at or behind i: where it starts and ends; n < 0 if there is none.
func (m *matcher) find(b []byte, i int) (start, end int, n int32) {
	for ; i < len(b); i++ {
		if m.only >= 0 {
			n := bytes.IndexByte(b[i:], byte(m.only))
			if n < 0 {
				break
			}
			i += n
		} else if !m.first[b[i]] {
			continue
		}
		if n, end := m.at(b, i); n >= 0 {
			return i, end, n
		}
	}
	return 0, 0, -1
}

// at gives the longest token that starts at b[i] and its end; n < 0 if there is none.
func (m *matcher) at(b []byte, i int) (n int32, end int) {
	id := m.trie.longest(b[i:])
	if id == noID {
		return -1, i
	}
	return int32(id), i + m.length[id]
}

// cutting walks over a text: stretches between tokens, and tokens, in order.
type cutting struct {
	m     *matcher // nil: no tokens
	b     []byte
	plain bool // special tokens stay text (split_special_tokens): they are passed over whole, as in the reference

	token *AddedToken // the token just met, or nil
	part  []byte      // else the text just met, which starts at b[start]
	start int

	done, at int
	pending  *AddedToken // met behind part
	end      int
}

// next steps to the next stretch or token; false at the end.
func (c *cutting) next() bool {
	if c.pending != nil {
		c.token, c.pending, c.done = c.pending, nil, c.end
		return true
	}
	c.token = nil
	for c.m != nil {
		start, end, n := c.m.find(c.b, c.at)
		if n < 0 {
			break
		}
		c.at = end
		t := c.m.tokens[n]
		if c.plain && t.Special || t.SingleWord && (endsInWord(c.b[:start]) || startsWithWord(c.b[end:])) {
			continue
		}
		if t.LStrip {
			start = max(trimSpaceRight(c.b[:start]), c.done)
		}
		if t.RStrip {
			end += leadingSpace(c.b[end:])
		}
		if start >= end { // all of it was taken by the token before
			c.done = end
			continue
		}
		if c.done < start {
			c.part, c.start = c.b[c.done:start], c.done
			c.pending, c.end = t, end
			return true
		}
		c.token, c.done = t, end
		return true
	}
	if c.at = len(c.b); c.done < len(c.b) {
		c.part, c.start = c.b[c.done:], c.done
		c.done = len(c.b)
		return true
	}
	return false
}

func endsInWord(b []byte) bool {
	r, n := utf8.DecodeLastRune(b)
	return n > 0 && isClass(r, clRustWord)
}

func startsWithWord(b []byte) bool {
	r, n := utf8.DecodeRune(b)
	return n > 0 && isClass(r, clRustWord)
}

// trimSpaceRight gives the length of b without the white space at its end.
func trimSpaceRight(b []byte) int {
	for len(b) > 0 {
		r, n := utf8.DecodeLastRune(b)
		if !isClass(r, clRustSpace) {
			break
		}
		b = b[:len(b)-n]
	}
	return len(b)
}

// leadingSpace gives the length of the white space at the start of b.
func leadingSpace(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if !isClass(r, clRustSpace) {
			return i
		}
		i += n
	}
	return len(b)
}
