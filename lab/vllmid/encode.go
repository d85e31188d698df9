package vllmid

// The two byte forms under a block hash: Python's pickle, protocol 5, of (parent, tokens, keys), and canonical CBOR of
// the same tuple. Both were checked byte by byte against CPython 3.11 and cbor2.

import "encoding/binary"

// Pickle opcodes, as in CPython's pickletools.
const (
	opMark        = '('
	opNone        = 'N'
	opStop        = '.'
	opMemoize     = 0x94
	opFrame       = 0x95
	opProto       = 0x80
	opBytes8      = 'C'
	opBytes32     = 'B'
	opText8       = 0x8c
	opText32      = 'X'
	opInt8        = 'K'
	opInt16       = 'M'
	opInt32       = 'J'
	opTuple       = 't'
	opTuple1      = 0x85 // and 0x86, 0x87 for two and three elements
	opEmptyTuple  = ')'
	opMemoRef8    = 'h'
	opMemoRef32   = 'j'
	pickleHeader  = 11 // PROTO 5, FRAME, eight bytes of length
	maxShortTuple = 3
)

// pickler writes one frame. memo counts memoised objects, as Python numbers them.
type pickler struct {
	b    []byte
	memo int
	// shared maps texts that are one Python object wherever they occur to their place in the memo. Python's pickle
	// refers to an object that it has already written; all other texts are separate objects, even when equal.
	shared map[string]int
}

func newPickler(size int) *pickler {
	p := &pickler{b: make([]byte, pickleHeader, pickleHeader+size)}
	p.b[0], p.b[1], p.b[2] = opProto, 5, opFrame
	return p
}

func (p *pickler) finish() []byte {
	p.b = append(p.b, opStop)
	binary.LittleEndian.PutUint64(p.b[3:], uint64(len(p.b)-pickleHeader))
	return p.b
}

func (p *pickler) memoize() {
	p.b = append(p.b, opMemoize)
	p.memo++
}

func (p *pickler) bytes(s string) {
	if len(s) < 256 {
		p.b = append(p.b, opBytes8, byte(len(s)))
	} else {
		p.b = binary.LittleEndian.AppendUint32(append(p.b, opBytes32), uint32(len(s)))
	}
	p.b = append(p.b, s...)
	p.memoize()
}

func (p *pickler) text(s string) {
	if s == "" { // CPython has one empty string
		p.sharedText(s)
		return
	}
	p.freshText(s)
}

func (p *pickler) freshText(s string) {
	if len(s) < 256 {
		p.b = append(p.b, opText8, byte(len(s)))
	} else {
		p.b = binary.LittleEndian.AppendUint32(append(p.b, opText32), uint32(len(s)))
	}
	p.b = append(p.b, s...)
	p.memoize()
}

func (p *pickler) sharedText(s string) {
	if at, ok := p.shared[s]; ok {
		if at < 256 {
			p.b = append(p.b, opMemoRef8, byte(at))
		} else {
			p.b = binary.LittleEndian.AppendUint32(append(p.b, opMemoRef32), uint32(at))
		}
		return
	}
	if p.shared == nil {
		p.shared = make(map[string]int, 2)
	}
	p.shared[s] = p.memo
	p.freshText(s)
}

func (p *pickler) int(v int64) {
	switch {
	case v >= 0 && v < 1<<8:
		p.b = append(p.b, opInt8, byte(v))
	case v >= 0 && v < 1<<16:
		p.b = binary.LittleEndian.AppendUint16(append(p.b, opInt16), uint16(v))
	case v >= -1<<31 && v < 1<<31:
		p.b = binary.LittleEndian.AppendUint32(append(p.b, opInt32), uint32(int32(v)))
	default: // LONG1: the fewest little-endian bytes that keep the sign
		var le [8]byte
		binary.LittleEndian.PutUint64(le[:], uint64(v))
		n := 5
		for n < 8 && v>>(8*n-1) != 0 && v>>(8*n-1) != -1 {
			n++
		}
		p.b = append(append(p.b, 0x8a, byte(n)), le[:n]...)
	}
}

// tuple writes n elements by each, in Python's short forms where they exist.
func (p *pickler) tuple(n int, each func(i int)) {
	if n == 0 {
		p.b = append(p.b, opEmptyTuple)
		return
	}
	if n > maxShortTuple {
		p.b = append(p.b, opMark)
	}
	for i := range n {
		each(i)
	}
	if n > maxShortTuple {
		p.b = append(p.b, opTuple)
	} else {
		p.b = append(p.b, opTuple1+byte(n-1))
	}
	p.memoize()
}

func (p *pickler) key(k Key, tagged bool) {
	switch {
	case !tagged && k.Kind == KeyMedia:
		p.tuple(2, func(i int) {
			if i == 0 {
				p.text(k.Text)
			} else {
				p.int(int64(k.Rel))
			}
		})
	case !tagged:
		p.text(k.Text)
	case k.Kind == KeyMedia:
		p.tuple(3, func(i int) {
			switch i {
			case 0:
				p.sharedText("mm")
			case 1:
				p.text(k.Text)
			default:
				p.int(int64(k.Rel))
			}
		})
	case k.Kind == KeyLoRA:
		texts := [3]string{"lora", k.Text, k.Path}
		p.tuple(3, func(i int) { p.text(texts[i]) })
	default:
		texts := [2]string{"cache_salt", k.Text}
		p.tuple(2, func(i int) { p.text(texts[i]) })
	}
}

func pickleBlock(parent Digest, tokens []uint32, keys []Key, tagged bool) []byte {
	p := newPickler(64 + 5*len(tokens) + 96*len(keys))
	p.tuple(3, func(i int) {
		switch {
		case i == 0:
			p.bytes(string(parent))
		case i == 1:
			p.tuple(len(tokens), func(j int) { p.int(int64(tokens[j])) })
		case len(keys) == 0:
			p.b = append(p.b, opNone)
		default:
			p.tuple(len(keys), func(j int) { p.key(keys[j], tagged) })
		}
	})
	return p.finish()
}

func pickleText(s string) []byte {
	p := newPickler(len(s) + 8)
	p.text(s)
	return p.finish()
}

// CBOR major types.
const (
	cborUint  = 0 << 5
	cborNint  = 1 << 5
	cborByteS = 2 << 5
	cborTextS = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

func cborHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

func cborText(b []byte, s string) []byte {
	return append(cborHead(b, cborTextS, uint64(len(s))), s...)
}

func cborInt(b []byte, v int) []byte {
	if v < 0 {
		return cborHead(b, cborNint, uint64(-1-v))
	}
	return cborHead(b, cborUint, uint64(v))
}

func cborBlock(parent Digest, tokens []uint32, keys []Key, tagged bool) []byte {
	b := make([]byte, 0, 64+5*len(tokens)+96*len(keys))
	b = cborHead(b, cborArray, 3)
	b = append(cborHead(b, cborByteS, uint64(len(parent))), parent...)
	b = cborHead(b, cborArray, uint64(len(tokens)))
	for _, t := range tokens {
		b = cborHead(b, cborUint, uint64(t))
	}
	if len(keys) == 0 {
		return append(b, cborNull)
	}
	b = cborHead(b, cborArray, uint64(len(keys)))
	for _, k := range keys {
		switch {
		case !tagged && k.Kind == KeyMedia:
			b = cborInt(cborText(cborHead(b, cborArray, 2), k.Text), k.Rel)
		case !tagged:
			b = cborText(b, k.Text)
		case k.Kind == KeyMedia:
			b = cborInt(cborText(cborText(cborHead(b, cborArray, 3), "mm"), k.Text), k.Rel)
		case k.Kind == KeyLoRA:
			b = cborText(cborText(cborText(cborHead(b, cborArray, 3), "lora"), k.Text), k.Path)
		default:
			b = cborText(cborText(cborHead(b, cborArray, 2), "cache_salt"), k.Text)
		}
	}
	return b
}
