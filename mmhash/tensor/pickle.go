package tensor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
)

// Values of the unpickler: nil, bool, int64, huge, string, tuple, *list, *dict, global, shape, other.
type (
	huge   string // an integer beyond 64 bits, its bytes in hexadecimal, the lowest first
	tuple  []any
	list   []any
	dict   map[string]any // what lies under other keys than texts is of no use here
	global string         // module and name, with a space between
	shape  []int64        // of a tensor
	other  struct{}       // a storage, a number, bytes
	mark   struct{}
)

const (
	maxSteps = 1 << 16
	maxStack = 1 << 12
	maxMemo  = 1 << 14
)

// machine runs one program.
type machine struct {
	b     []byte
	at    int
	stack []any
	memo  map[uint32]any
	bad   bool // a read beyond the program, or a wrong operand
}

// load runs a program up to its end and says how many bytes it had.
func load(b []byte) (any, int, error) {
	m := machine{b: b, memo: map[uint32]any{}}
	for range maxSteps {
		op := m.bytes(1)
		if m.bad {
			return nil, 0, ErrFormat
		}
		if op[0] == '.' {
			v := m.pop()
			if m.bad {
				return nil, 0, ErrFormat
			}
			return v, m.at, nil
		}
		if m.step(op[0]); m.bad || len(m.stack) > maxStack || len(m.memo) > maxMemo {
			return nil, 0, ErrFormat
		}
	}
	return nil, 0, ErrFormat
}

// bytes takes n bytes of the program; on its end they are zeros.
func (m *machine) bytes(n uint64) []byte {
	if n > uint64(len(m.b)-m.at) {
		m.bad = true
		return make([]byte, min(n, 8))
	}
	m.at += int(n)
	return m.b[m.at-int(n) : m.at]
}

func (m *machine) u8() uint64  { return uint64(m.bytes(1)[0]) }
func (m *machine) u16() uint64 { return uint64(binary.LittleEndian.Uint16(m.bytes(2))) }
func (m *machine) u32() uint64 { return uint64(binary.LittleEndian.Uint32(m.bytes(4))) }
func (m *machine) u64() uint64 { return binary.LittleEndian.Uint64(m.bytes(8)) }

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

// marked takes what lies above the last mark, and the mark.
func (m *machine) marked() []any {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if m.stack[i] == any(mark{}) {
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

func (m *machine) step(op byte) {
	switch op {
	case 0x80: // PROTO
		m.u8()
	case 0x95: // FRAME
		m.u64()
	case '(':
		m.push(mark{})
	case '0':
		m.pop()
	case 'N':
		m.push(nil)
	case 0x88, 0x89:
		m.push(op == 0x88)
	case 'K':
		m.push(int64(m.u8()))
	case 'M':
		m.push(int64(m.u16()))
	case 'J':
		m.push(int64(int32(m.u32())))
	case 0x8a: // LONG1
		m.long(m.bytes(m.u8()))
	case 'G':
		m.u64()
		m.push(other{})
	case 'U', 0x8c:
		m.push(string(m.bytes(m.u8())))
	case 'T', 'X':
		m.push(string(m.bytes(m.u32())))
	case 0x8d:
		m.push(string(m.bytes(m.u64())))
	case 'C':
		m.bytes(m.u8())
		m.push(other{})
	case 'B':
		m.bytes(m.u32())
		m.push(other{})
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
		v := m.pop()
		m.extend([]any{v})
	case 'e':
		m.extend(m.marked())
	case 's':
		m.set(m.take(2))
	case 'u':
		m.set(m.marked())
	case 'q':
		m.memo[uint32(m.u8())] = m.top()
	case 'r':
		m.memo[uint32(m.u32())] = m.top()
	case 0x94:
		m.memo[uint32(len(m.memo))] = m.top()
	case 'h':
		m.recall(m.u8())
	case 'j':
		m.recall(m.u32())
	case 'c':
		module := m.line()
		m.push(global(module + " " + m.line()))
	case 0x93:
		names := m.take(2)
		if m.bad {
			return
		}
		module, ok := names[0].(string)
		name, ok2 := names[1].(string)
		m.bad = !ok || !ok2
		m.push(global(module + " " + name))
	case 'Q': // a storage, by its name
		m.pop()
		m.push(other{})
	case 'b': // state of what is no plain value: of no use
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
	var full [8]byte
	if len(b) > 0 && b[len(b)-1]&0x80 != 0 {
		full = [8]byte{255, 255, 255, 255, 255, 255, 255, 255}
	}
	copy(full[:], b)
	m.push(int64(binary.LittleEndian.Uint64(full[:])))
}

func (m *machine) recall(i uint64) {
	v, ok := m.memo[uint32(i)]
	m.bad = m.bad || !ok
	m.push(v)
}

func (m *machine) extend(items []any) {
	l, ok := m.top().(*list)
	if m.bad = m.bad || !ok; ok {
		*l = append(*l, items...)
	}
}

func (m *machine) set(items []any) {
	d, ok := m.top().(*dict)
	if m.bad = m.bad || !ok || len(items)%2 != 0; m.bad {
		return
	}
	for i := 0; i < len(items); i += 2 {
		if key, ok := items[i].(string); ok {
			(*d)[key] = items[i+1]
		}
	}
}

// call is REDUCE: the few functions whose results are plain here.
func (m *machine) call() {
	args, ok := m.pop().(tuple)
	f, ok2 := m.pop().(global)
	if m.bad = m.bad || !ok || !ok2; m.bad {
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
		if m.bad = len(args) < 4 || !ok || len(size) > 8; m.bad {
			return
		}
		s := make(shape, len(size))
		for i, n := range size {
			s[i], ok = n.(int64)
			m.bad = m.bad || !ok
		}
		m.push(s)
	case "torch._utils _rebuild_parameter":
		if m.bad = len(args) < 1; !m.bad {
			m.push(args[0])
		}
	default:
		m.bad = true
	}
}
