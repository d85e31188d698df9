package header

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/sightline-router/sightline/mmhash/isobox"
)

// The meta box of a HEIF file (ISO 23008-12): items, their properties, where their bytes are, and their references to each other.
// What is kept of it is no larger than a few times the box.

const maxItems = 4096

// heifItem is one item. The byte slices are contents of properties, nil for those that it lacks.
type heifItem struct {
	kind, mime                         string
	size, config, rotate, mirror, role []byte // ispe, av1C, irot, imir, auxC
	tiles                              []uint32
	auxiliary, describes               uint32 // of which item; 0: none

	off, length uint64 // of its first piece
	pieces      int    // number of non-empty ones; libavif skips an item without data
	inside      bool   // in the idat box
}

// heifMeta is a meta box.
type heifMeta struct {
	primary uint32
	items   map[uint32]*heifItem
	alpha   map[uint32]bool // items that have an alpha plane
	idat    []byte
}

// transparent reports whether a picture has an alpha plane: its own, or one for each tile of a grid.
func (m *heifMeta) transparent(id uint32) bool {
	tiles := m.items[id].tiles
	return m.alpha[id] || len(tiles) > 0 && !slices.ContainsFunc(tiles, func(id uint32) bool { return !m.alpha[id] })
}

// about returns the last item of a kind that describes another one; nil: none.
func (m *heifMeta) about(id uint32, kind, mime string) (found *heifItem) {
	last := uint32(0)
	for i, it := range m.items {
		if i >= last && it.describes == id && it.kind == kind && it.mime == mime && it.pieces > 0 {
			found, last = it, i
		}
	}
	return found
}

// readHEIF reads a meta box's content. ok is false if it is broken or libavif would not accept it.
func readHEIF(b []byte) (*heifMeta, bool) {
	m := &heifMeta{items: map[uint32]*heifItem{}, alpha: map[uint32]bool{}}
	parts := map[string][]byte{}
	c := cursor{b: b}
	c.take(4) // version and flags
	ok := eachBox(c.b, func(kind string, body []byte) bool {
		switch kind {
		case "pitm", "iinf", "iloc", "iprp", "iref", "idat":
			_, twice := parts[kind]
			parts[kind] = body
			return !twice
		}
		return true
	})
	c = cursor{b: parts["pitm"]}
	m.primary = uint32(c.uint(c.itemIDSize()))
	m.idat = parts["idat"]
	ok = ok && !c.short && m.entries(cursor{b: parts["iinf"]}) && m.locate(cursor{b: parts["iloc"]}) && m.associate(parts["iprp"])
	if refs, some := parts["iref"]; some {
		ok = ok && m.refer(cursor{b: refs})
	}
	for _, it := range m.items {
		if len(it.role) > 4 && it.auxiliary != 0 && it.pieces > 0 {
			urn, _, _ := bytes.Cut(it.role[4:], []byte{0})
			if s := string(urn); s == "urn:mpeg:mpegB:cicp:systems:auxiliary:alpha" || s == "urn:mpeg:hevc:2015:auxid:1" {
				m.alpha[it.auxiliary] = true
			}
		}
	}
	return m, ok
}

// entries reads an iinf box.
func (m *heifMeta) entries(c cursor) bool {
	c.uint(c.itemIDSize())
	count := 0
	return !c.short && eachBox(c.b, func(kind string, body []byte) bool {
		c := cursor{b: body}
		v := c.version()
		count++
		if kind != "infe" || v != 2 && v != 3 || count > maxItems {
			return false
		}
		id, it := uint32(c.uint(2*(v-1))), &heifItem{}
		c.uint(2) // protection
		it.kind = string(c.take(4))
		if it.kind == "mime" {
			_, rest, _ := bytes.Cut(c.b, []byte{0}) // its name
			content, _, _ := bytes.Cut(rest, []byte{0})
			it.mime = string(content)
		}
		m.items[id] = it
		return !c.short
	})
}

// locate reads an iloc box.
func (m *heifMeta) locate(c cursor) bool {
	v := c.version()
	sizes := c.uint(2)
	offset, length, base, index := int(sizes>>12), int(sizes>>8&15), int(sizes>>4&15), int(sizes&15)
	if v == 0 {
		index = 0
	}
	idSize := 2
	if v == 2 {
		idSize = 4
	}
	for n := c.uint(idSize); n > 0 && !c.short; n-- {
		it, method := m.items[uint32(c.uint(idSize))], uint64(0)
		if v > 0 {
			method = c.uint(2) & 15
		}
		c.uint(2) // data reference
		from := c.uint(base)
		pieces := int(c.uint(2))
		list := cursor{b: c.take(min(pieces*(index+offset+length), len(c.b)+1))}
		if length == 0 || it == nil {
			continue
		}
		for ; pieces > 0 && len(list.b) > 0; pieces-- {
			list.uint(index)
			off, n := from+list.uint(offset), list.uint(length)
			if n == 0 {
				continue
			}
			it.pieces++
			if it.pieces == 1 {
				it.off, it.length, it.inside = off, n, method == 1
			}
		}
	}
	return !c.short
}

// associate reads an iprp box: the properties, and which item has which.
func (m *heifMeta) associate(b []byte) bool {
	var props []struct {
		kind string
		body []byte
	}
	var c cursor
	ok := eachBox(b, func(kind string, body []byte) bool {
		switch kind {
		case "ipco":
			return eachBox(body, func(kind string, body []byte) bool {
				props = append(props, struct {
					kind string
					body []byte
				}{kind, body})
				return len(props) <= maxItems
			})
		case "ipma":
			c = cursor{b: body}
		}
		return true
	})
	idSize, large := c.itemIDSize(), c.flags&1 != 0
	for n := c.uint(4); n > 0 && !c.short; n-- {
		it := m.items[uint32(c.uint(idSize))]
		for n := c.uint(1); n > 0 && !c.short; n-- {
			i := c.uint(1) & 0x7F
			if large {
				i = i<<8 | c.uint(1)
			}
			switch {
			case i > uint64(len(props)):
				return false
			case i > 0 && it != nil:
				it.has(props[i-1].kind, props[i-1].body)
			}
		}
	}
	return ok && !c.short
}

// has stores a property; only the first of a kind counts.
func (it *heifItem) has(kind string, body []byte) {
	place := map[string]*[]byte{"ispe": &it.size, "av1C": &it.config, "irot": &it.rotate, "imir": &it.mirror, "auxC": &it.role}[kind]
	if place != nil && *place == nil {
		*place = body
	}
}

// refer reads an iref box.
func (m *heifMeta) refer(c cursor) bool {
	idSize := c.itemIDSize()
	return !c.short && eachBox(c.b, func(kind string, body []byte) bool {
		c := cursor{b: body}
		it := m.items[uint32(c.uint(idSize))]
		for n := c.uint(2); n > 0 && !c.short; n-- {
			switch to := uint32(c.uint(idSize)); {
			case it == nil:
			case kind == "dimg":
				it.tiles = append(it.tiles, to)
			case kind == "auxl":
				it.auxiliary = to
			case kind == "cdsc":
				it.describes = to
			}
		}
		return !c.short
	})
}

// boxHead reads the 8-byte header of a box of the file, and the extended length of a large one. Then it calls over with the box's
// total length and how much of it was read.
func (r *Reader) boxHead(b []byte, over func(r *Reader, kind string, n, head uint64)) {
	n, kind := binary.BigEndian.Uint32(b), string(b[4:])
	if n != 1 {
		over(r, kind, uint64(n), 8)
		return
	}
	r.next(8, func(r *Reader, b []byte) { over(r, kind, binary.BigEndian.Uint64(b), 16) })
}

// eachBox calls do for each box of a list until it returns false.
func eachBox(b []byte, do func(kind string, body []byte) bool) bool {
	return nil == isobox.Each(b, false, func(kind string, body []byte) error {
		if !do(kind, body) {
			return isobox.ErrBroken
		}
		return nil
	})
}

// cursor reads big-endian numbers; short is set once bytes are missing.
type cursor struct {
	b     []byte
	flags byte // the last flags byte of a full box
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

// itemIDSize reads the header of a full box and returns the size of item ids in its version.
func (c *cursor) itemIDSize() int {
	if c.version() == 0 {
		return 2
	}
	return 4
}

// version reads the header of a full box.
func (c *cursor) version() int {
	h := c.take(4)
	c.flags = h[3]
	return int(h[0])
}
