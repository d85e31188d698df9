package tensor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// Values of the unpickler: nil, bool, int64, huge, string, tuple, *list, *dict, global, shape, other.
type (
	huge   string // an integer beyond 64 bits, its bytes in hexadecimal, lowest first
	tuple  []any
	list   []any
	dict   map[string]any // entries whose keys are not strings are dropped
	global string         // module and name, with a space between
	shape  []int64        // of a tensor
	other  struct{}       // a storage, a float
	mark   struct{}
)

const (
	maxSteps = 1 << 16
	maxStack = 1 << 12
	maxMemo  = 1 << 14
)

// machine executes one program.
type machine struct {
	b     []byte
	at    int
	stack []any
	memo  map[uint64]any
	bad   bool // a read beyond the program, or an invalid operand
}

// load executes a program up to its end and returns its length in bytes.
func load(b []byte) (any, int, error) {
	m := machine{b: b, memo: map[uint64]any{}}
	for range maxSteps {
		op := byte(m.uint(1))
		if op == '.' {
			if v := m.pop(); !m.bad {
				return v, m.at, nil
			}
			return nil, 0, ErrFormat
		}
		m.step(op)
		if m.bad || len(m.stack) > maxStack || len(m.memo) > maxMemo {
			return nil, 0, ErrFormat
		}
	}
	return nil, 0, ErrFormat
}

// bytes reads n bytes of the program; nil beyond its end.
func (m *machine) bytes(n uint64) []byte {
	if n > uint64(len(m.b)-m.at) {
		m.bad = true
		return nil
	}
	m.at += int(n)
	return m.b[m.at-int(n) : m.at]
}

// uint reads a little-endian number of n bytes.
func (m *machine) uint(n uint64) uint64 {
	var full [8]byte
	copy(full[:], m.bytes(n))
	return binary.LittleEndian.Uint64(full[:])
}

func (m *machine) line() string {
	i := bytes.IndexByte(m.b[m.at:], '\n')
	if i < 0 {
		m.bad = true
		return ""
	}
	return string(m.bytes(uint64(i) + 1)[:i])
}

func (m *machine) push(v any) { m.stack = append(m.stack, v) }

func (m *machine) pop() any {
	if len(m.stack) == 0 {
		m.bad = true
		return nil
	}
	v := m.stack[len(m.stack)-1]
	m.stack = m.stack[:len(m.stack)-1]
	return v
}

func (m *machine) top() any {
	v := m.pop()
	m.push(v)
	return v
}

// marked pops the values above the last mark, and the mark.
func (m *machine) marked() []any {
	for i, v := range slices.Backward(m.stack) {
		if v == any(mark{}) {
			items := append([]any(nil), m.stack[i+1:]...)
			m.stack = m.stack[:i]
			return items
		}
	}
	m.bad = true
	return nil
}

func (m *machine) take(n int) tuple {
	if len(m.stack) < n {
		m.bad = true
		return nil
	}
	items := append(tuple(nil), m.stack[len(m.stack)-n:]...)
	m.stack = m.stack[:len(m.stack)-n]
	return items
}

// step executes one of the opcodes that torch writes (pickle protocol 2) and its own unpickler accepts.
func (m *machine) step(op byte) {
	switch op {
	case 0x80: // PROTO
		m.uint(1)
	case '(':
		m.push(mark{})
	case 'N':
		m.push(nil)
	case 0x88, 0x89:
		m.push(op == 0x88)
	case 'K':
		m.push(int64(m.uint(1)))
	case 'M':
		m.push(int64(m.uint(2)))
	case 'J':
		m.push(int64(int32(m.uint(4))))
	case 0x8a: // LONG1
		m.long(m.bytes(m.uint(1)))
	case 'G':
		m.uint(8)
		m.push(other{})
	case 'U':
		m.push(string(m.bytes(m.uint(1))))
	case 'X':
		m.push(string(m.bytes(m.uint(4))))
	case ')':
		m.push(tuple{})
	case 't':
		m.push(tuple(m.marked()))
	case 0x85, 0x86, 0x87:
		m.push(m.take(int(op - 0x84)))
	case ']':
		m.push(&list{})
	case '}':
		m.push(&dict{})
	case 'a':
		m.extend(m.take(1))
	case 'e':
		m.extend(m.marked())
	case 's':
		m.set(m.take(2))
	case 'u':
		m.set(m.marked())
	case 'q':
		m.memo[m.uint(1)] = m.top()
	case 'r':
		m.memo[m.uint(4)] = m.top()
	case 'h':
		m.recall(m.uint(1))
	case 'j':
		m.recall(m.uint(4))
	case 'c':
		module := m.line()
		m.push(global(module + " " + m.line()))
	case 'Q': // a storage, by name
		m.pop()
		m.push(other{})
	case 'b': // the state of an object, which is not needed
		m.pop()
		_, ok := m.top().(*dict)
		m.bad = m.bad || !ok
	case 'R':
		m.call()
	default:
		m.bad = true
	}
}

func (m *machine) long(b []byte) {
	if len(b) > 8 {
		m.push(huge(hex.EncodeToString(b)))
		return
	}
	var v int64
	if n := len(b); n > 0 {
		v = int64(int8(b[n-1])) // with the sign
		for i := n - 2; i >= 0; i-- {
			v = v<<8 | int64(b[i])
		}
	}
	m.push(v)
}

func (m *machine) recall(i uint64) {
	v, ok := m.memo[i]
	m.bad = m.bad || !ok
	m.push(v)
}

func (m *machine) extend(items []any) {
	l, ok := m.top().(*list)
	m.bad = m.bad || !ok
	if ok {
		*l = append(*l, items...)
	}
}

func (m *machine) set(items []any) {
	d, ok := m.top().(*dict)
	m.bad = m.bad || !ok || len(items)%2 != 0
	if m.bad {
		return
	}
	for i := 0; i < len(items); i += 2 {
		if key, ok := items[i].(string); ok {
			(*d)[key] = items[i+1]
		}
	}
}

// call is REDUCE, for the few functions whose results are known here.
func (m *machine) call() {
	args, ok := m.pop().(tuple)
	f, ok2 := m.pop().(global)
	m.bad = m.bad || !ok || !ok2
	if m.bad {
		return
	}
	switch f {
	case "collections OrderedDict":
		m.push(&dict{})
	case "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2": // storage, offset, size, stride, …
		var size tuple
		if len(args) > 2 {
			size, ok = args[2].(tuple)
		}
		m.bad = len(args) < 4 || !ok || len(size) > 8
		if m.bad {
			return
		}
		s := make(shape, len(size))
		for i, n := range size {
			s[i], ok = n.(int64)
			m.bad = m.bad || !ok
		}
		m.push(s)
	case "torch._utils _rebuild_parameter":
		m.bad = len(args) < 1
		if !m.bad {
			m.push(args[0])
		}
	default:
		m.bad = true
	}
}
