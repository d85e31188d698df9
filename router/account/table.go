package account

import "math/bits"

// table maps blocks to who had them. A Go map takes twice the memory where entries come and go: 18 to 21 bytes an entry here, and 40.
// Blocks are keyed hashes, so their high bits serve as the place in the table. The zero value is empty.
type table struct {
	parts [256]part
	count int
}

// part is a hash table with linear probing: an entry lies at its home or, without a gap, behind it.
type part struct {
	entries []entry
	count   int
}

type entry struct {
	block uint64 // 0: free
	had
}

func (t *table) of(block uint64) *part { return &t.parts[uint8(block)] }

// find returns a block's entry; nil: there is none. It is valid until the next put or remove.
func (t *table) find(block uint64) *had {
	p := t.of(block)
	if at, ok := p.seek(block); ok {
		return &p.entries[at].had
	}
	return nil
}

// put adds a block that the table does not have.
func (t *table) put(block uint64, h had) {
	p := t.of(block)
	if 8*(p.count+1) > 7*len(p.entries) {
		old := p.entries
		p.entries = make([]entry, max(16, len(old)+len(old)/8))
		for _, e := range old {
			if e.block != 0 {
				at, _ := p.seek(e.block)
				p.entries[at] = e
			}
		}
	}
	at, _ := p.seek(block)
	p.entries[at] = entry{block, h}
	p.count++
	t.count++
}

// remove removes a block that the table has.
func (t *table) remove(block uint64) {
	p := t.of(block)
	at, ok := p.seek(block)
	if !ok {
		return
	}
	n := len(p.entries)
	for next := at; ; { // close the gap with an entry whose home is not behind it
		next = (next + 1) % n
		e := p.entries[next]
		if e.block == 0 {
			break
		}
		if home := p.home(e.block); (next-home+n)%n >= (next-at+n)%n {
			p.entries[at], at = e, next
		}
	}
	p.entries[at] = entry{}
	p.count--
	t.count--
}

// seek returns where a block is, or where it belongs.
func (p *part) seek(block uint64) (at int, ok bool) {
	if len(p.entries) == 0 {
		return 0, false
	}
	for at = p.home(block); ; at++ {
		if at == len(p.entries) {
			at = 0
		}
		switch p.entries[at].block {
		case block:
			return at, true
		case 0:
			return at, false
		}
	}
}

func (p *part) home(block uint64) int {
	hi, _ := bits.Mul64(block, uint64(len(p.entries)))
	return int(hi)
}
