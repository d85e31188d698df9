package header

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// The meta box of a HEIF file (ISO 23008-12): items, what describes them, where their bytes lie, and how they refer to
// each other.

// avifItem is one item of the meta box.
type avifItem struct {
	id         uint32
	kind, mime string
	props      []avifProp
	extents    []avifExtent
}

type avifProp struct {
	kind string
	body []byte
}

type avifExtent struct {
	off, length uint64
	inside      bool // of the idat box
}

// avifRef is one reference between items.
type avifRef struct {
	kind     string
	from, to uint32
}

// avifFile is a meta box.
type avifFile struct {
	primary uint32
	items   map[uint32]*avifItem
	refs    []avifRef
	idat    []byte
}

func (it *avifItem) prop(kind string) []byte {
	for _, p := range it.props {
		if p.kind == kind {
			return p.body
		}
	}
	return nil
}

// skipped reports that libavif passes an item over: it has no data.
func (it *avifItem) skipped() bool {
	for _, e := range it.extents {
		if e.length > 0 {
			return false
		}
	}
	return true
}

// from lists the items that one refers to.
func (m *avifFile) from(kind string, id uint32) (to []uint32) {
	for _, ref := range m.refs {
		if ref.kind == kind && ref.from == id {
			to = append(to, ref.to)
		}
	}
	return to
}

// about lists the items that describe one.
func (m *avifFile) about(id uint32) (list []*avifItem) {
	for _, ref := range m.refs {
		if it := m.items[ref.from]; ref.kind == "cdsc" && ref.to == id && it != nil && !it.skipped() {
			list = append(list, it)
		}
	}
	return list
}

// transparent reports whether a picture has an alpha plane: its own, or one for each tile of a grid.
func (m *avifFile) transparent(it *avifItem) bool {
	if m.alphaOf(it.id) || it.kind != "grid" {
		return m.alphaOf(it.id)
	}
	tiles := m.from("dimg", it.id)
	return len(tiles) > 0 && !slices.ContainsFunc(tiles, func(id uint32) bool { return !m.alphaOf(id) })
}

func (m *avifFile) alphaOf(id uint32) bool {
	for _, ref := range m.refs {
		if it := m.items[ref.from]; ref.kind == "auxl" && ref.to == id && it != nil && !it.skipped() {
			if p := it.prop("auxC"); len(p) > 4 {
				urn, _, _ := bytes.Cut(p[4:], []byte{0})
				if s := string(urn); s == "urn:mpeg:mpegB:cicp:systems:auxiliary:alpha" || s == "urn:mpeg:hevc:2015:auxid:1" {
					return true
				}
			}
		}
	}
	return false
}

// readAVIF reads a meta box's content.
func readAVIF(b []byte) (*avifFile, bool) {
	m := &avifFile{items: map[uint32]*avifItem{}}
	var assoc []byte
	var props []avifProp
	c := cursor{b: b}
	c.take(4) // version and flags
	ok := eachBox(c.b, func(kind string, body []byte) bool {
		c := cursor{b: body}
		switch kind {
		case "pitm":
			m.primary = uint32(c.uint(2 + 2*min(c.version(), 1)))
		case "iinf":
			c.uint(2 + 2*min(c.version(), 1))
			return !c.short && eachBox(c.b, m.entry)
		case "iref":
			wide := 2 + 2*min(c.version(), 1)
			return !c.short && eachBox(c.b, func(kind string, body []byte) bool {
				c := cursor{b: body}
				from := uint32(c.uint(wide))
				for n := c.uint(2); n > 0 && !c.short; n-- {
					m.refs = append(m.refs, avifRef{kind, from, uint32(c.uint(wide))})
				}
				return !c.short
			})
		case "iprp":
			return eachBox(body, func(kind string, body []byte) bool {
				switch kind {
				case "ipco":
					return eachBox(body, func(kind string, body []byte) bool {
						props = append(props, avifProp{kind, body})
						return true
					})
				case "ipma":
					assoc = body
				}
				return true
			})
		case "idat":
			m.idat = body
		case "iloc":
			return m.locate(c)
		}
		return !c.short
	})
	return m, ok && m.associate(cursor{b: assoc}, props)
}

func (m *avifFile) item(id uint32) *avifItem {
	it := m.items[id]
	if it == nil {
		it = &avifItem{id: id}
		m.items[id] = it
	}
	return it
}

// entry reads an infe box.
func (m *avifFile) entry(kind string, body []byte) bool {
	c := cursor{b: body}
	v := c.version()
	if kind != "infe" || v != 2 && v != 3 {
		return false
	}
	it := m.item(uint32(c.uint(2 * (v - 1))))
	c.uint(2) // protection
	it.kind = string(c.take(4))
	if it.kind == "mime" {
		_, rest, _ := bytes.Cut(c.b, []byte{0}) // its name
		content, _, _ := bytes.Cut(rest, []byte{0})
		it.mime = string(content)
	}
	return !c.short
}

// locate reads an iloc box.
func (m *avifFile) locate(c cursor) bool {
	v := c.version()
	sizes := c.uint(2)
	offset, length, base, index := int(sizes>>12), int(sizes>>8&15), int(sizes>>4&15), int(sizes&15)
	if v == 0 {
		index = 0
	}
	wide := 2
	if v == 2 {
		wide = 4
	}
	for n := c.uint(wide); n > 0 && !c.short; n-- {
		it := m.item(uint32(c.uint(wide)))
		method := uint64(0)
		if v > 0 {
			method = c.uint(2) & 15
		}
		c.uint(2) // data reference
		from := c.uint(base)
		for n := c.uint(2); n > 0 && !c.short; n-- {
			c.uint(index)
			off := from + c.uint(offset)
			it.extents = append(it.extents, avifExtent{off, c.uint(length), method == 1})
		}
	}
	return !c.short
}

// associate reads an ipma box.
func (m *avifFile) associate(c cursor, props []avifProp) bool {
	wide := 2 + 2*min(c.version(), 1)
	large := c.flags&1 != 0
	for n := c.uint(4); n > 0 && !c.short; n-- {
		it := m.item(uint32(c.uint(wide)))
		for n := c.uint(1); n > 0 && !c.short; n-- {
			i := c.uint(1) & 0x7F
			if large {
				i = i<<8 | c.uint(1)
			}
			if i > uint64(len(props)) {
				return false
			}
			if i > 0 {
				it.props = append(it.props, props[i-1])
			}
		}
	}
	return !c.short
}

// box cuts the first box of a list (ISO 14496-12 and 15444-1): its type and its content.
func box(b []byte) (kind string, body, rest []byte, ok bool) {
	if len(b) < 8 {
		return "", nil, nil, false
	}
	n, head := uint64(binary.BigEndian.Uint32(b)), uint64(8)
	if n == 1 && len(b) >= 16 {
		n, head = binary.BigEndian.Uint64(b[8:]), 16
	}
	if n < head || n > uint64(len(b)) {
		return "", nil, nil, false
	}
	return string(b[4:8]), b[head:n], b[n:], true
}

// eachBox calls do for each box of a list, until it says no.
func eachBox(b []byte, do func(kind string, body []byte) bool) bool {
	for len(b) > 0 {
		kind, body, rest, ok := box(b)
		if !ok || !do(kind, body) {
			return false
		}
		b = rest
	}
	return true
}

// cursor reads big-endian numbers; short is set once there were too few bytes.
type cursor struct {
	b     []byte
	flags byte // the last of a full box's
	short bool
}

func (c *cursor) take(n int) []byte {
	if n > len(c.b) {
		c.short = true
		return make([]byte, n)
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) uint(n int) (v uint64) {
	for _, d := range c.take(n) {
		v = v<<8 | uint64(d)
	}
	return v
}

// version reads the head of a full box.
func (c *cursor) version() int {
	h := c.take(4)
	c.flags = h[3]
	return int(h[0])
}
