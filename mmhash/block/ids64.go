package block

import (
	"encoding/binary"
	"slices"
)

// SGLang has no names besides a block's tokens. Before its prefix lookup it overwrites an image's placeholder tokens with the
// image's pads, numbers of up to 63 bits derived from its identity, and its events contain these. So its blocks are hashed by
// their ids as sent:
//
//	local64(i) = local(i)                                             if every id fits 32 bits: text, and pads before 0.5.23
//	           = F of another kind ( u64le(id) × B, root(i) )         else
//
// where local(i) and F are those of block.go, without media. That each page's own ids decide its form is SGLang's own rule (0.5.23);
// so a text page has the same hash for every engine.
//
// With EAGLE speculation SGLang caches pairs, each token with the next: B pairs are B+1 consecutive ids, and are hashed as those.

// Run is a run of placeholder tokens [Offset, Offset+Length) that SGLang overwrites: position k by Pads[k mod 4].
type Run struct {
	Offset, Length int
	Pads           [4]uint64
}

// Local64 hashes one block of token ids of up to 64 bits. root is of its place in its sequence. It writes to scratch, and allocates
// only if that has no room for 4 bytes per id. About 1 ns per id.
func (k *Key) Local64(scratch []byte, ids []uint64, root uint64) uint64 {
	var all uint64
	for _, id := range ids {
		all |= id
	}
	if all>>32 != 0 {
		return k.sum(kindBlock64, bytesOf(ids), nil, root)
	}
	scratch = scratch[:0]
	for _, id := range ids {
		scratch = binary.LittleEndian.AppendUint32(scratch, uint32(id))
	}
	return k.sum(kindBlock, scratch, nil, root)
}

// Locals64 appends the Local64 hash of every full block of tokens to dst, as Locals does for other engines. runs must be
// sorted by Offset and not overlap; pairs is for EAGLE. It allocates to grow dst, and once for blocks of over 64 tokens.
func (k *Key) Locals64(dst []uint64, tokens []uint32, size int, runs []Run, root Root, pairs bool) []uint64 {
	if size <= 0 {
		return dst
	}
	width := size
	if pairs {
		width++
	}
	var fewIDs [65]uint64
	var fewBytes [65 * 4]byte
	ids, scratch := fewIDs[:0], fewBytes[:0]
	if width > len(fewIDs) {
		ids, scratch = make([]uint64, 0, width), make([]byte, 0, 4*width)
	}
	dst = slices.Grow(dst, len(tokens)/size)
	at := root.First
	for start := 0; start+width <= len(tokens); start += size {
		end := start + width
		for len(runs) > 0 && runs[0].Offset+runs[0].Length <= start {
			runs = runs[1:]
		}
		if len(runs) == 0 || runs[0].Offset >= end {
			dst = append(dst, k.Local(tokens[start:end], nil, at))
			at = root.Rest
			continue
		}
		ids = ids[:0]
		for _, t := range tokens[start:end] {
			ids = append(ids, uint64(t))
		}
		for _, r := range runs {
			if r.Offset >= end {
				break
			}
			for i := max(r.Offset, start); i < min(r.Offset+r.Length, end); i++ {
				ids[i-start] = r.Pads[(i-r.Offset)&3]
			}
		}
		dst = append(dst, k.Local64(scratch, ids, at))
		at = root.Rest
	}
	return dst
}
