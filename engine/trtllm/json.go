package trtllm

import (
	"bytes"
	"math"

	"github.com/tidwall/gjson"
)

// cursor walks over JSON that is known to be valid, without allocating. Each reading method takes exactly one value,
// whatever it is; ok is false if it is not of the wanted kind.
type cursor struct {
	b []byte
	i int
}

// peek passes over white space and gives the next character, 0 at the end.
func (c *cursor) peek() byte {
	for ; c.i < len(c.b); c.i++ {
		switch c.b[c.i] {
		case ' ', '\t', '\n', '\r':
		default:
			return c.b[c.i]
		}
	}
	return 0
}

// enter begins an array or object; if the next value is none, it is passed over.
func (c *cursor) enter(open byte) bool {
	if c.peek() != open {
		c.skip()
		return false
	}
	c.i++
	return true
}

// more is asked before each element; false has taken the closing bracket.
func (c *cursor) more() bool {
	switch c.peek() {
	case ',':
		c.i++
		return c.peek() != 0
	case ']', '}', 0:
		c.i++
		return false
	}
	return true
}

// key reads a member's name and the colon.
func (c *cursor) key() []byte {
	k, _ := c.text()
	if c.peek() == ':' {
		c.i++
	}
	return k
}

// text reads a string; one with escapes is copied.
func (c *cursor) text() (s []byte, ok bool) {
	if c.peek() != '"' {
		c.skip()
		return nil, false
	}
	start := c.i
	c.skip()
	s = c.b[start:min(c.i, len(c.b))]
	if len(s) < 2 {
		return nil, false
	}
	if bytes.IndexByte(s, '\\') >= 0 {
		return []byte(gjson.ParseBytes(s).String()), true
	}
	return s[1 : len(s)-1], true
}

// number reads an integer; a negative one as its two's complement.
func (c *cursor) number() (n uint64, ok bool) {
	ch := c.peek()
	if ch != '-' && (ch < '0' || ch > '9') {
		c.skip()
		return 0, false
	}
	negative := ch == '-'
	if negative {
		c.i++
	}
	ok = true
	for ; c.i < len(c.b); c.i++ {
		d := c.b[c.i] - '0'
		if d > 9 {
			break
		}
		ok = ok && (n < math.MaxUint64/10 || n == math.MaxUint64/10 && uint64(d) <= math.MaxUint64%10)
		n = n*10 + uint64(d)
	}
	if c.i < len(c.b) && (c.b[c.i] == '.' || c.b[c.i]|0x20 == 'e') {
		c.skip()
		return 0, false
	}
	if negative {
		return -n, ok && n <= 1<<63
	}
	return n, ok
}

// whole reads an integer that fits an int.
func (c *cursor) whole() (n int, ok bool) {
	v, ok := c.number()
	return int(v), ok && int64(v) >= 0
}

// raw gives the next value's text.
func (c *cursor) raw() []byte {
	c.peek()
	start := min(c.i, len(c.b))
	c.skip()
	return c.b[start:min(c.i, len(c.b))]
}

// skip passes over one value.
func (c *cursor) skip() {
	c.peek()
	depth := 0
	for c.i < len(c.b) {
		switch ch := c.b[c.i]; ch {
		case '"':
			c.i++
			for c.i < len(c.b) && c.b[c.i] != '"' {
				if c.b[c.i] == '\\' {
					c.i++
				}
				c.i++
			}
			c.i++
			if depth == 0 {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return
			}
			if depth--; depth == 0 {
				c.i++
				return
			}
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return
			}
		}
		c.i++
	}
}
