package fair

import "math/bits"

// Memory remembers values under keyed hashes, most of them at most. When it is full, the oldest value of the client with most values is
// forgotten, unless it was used since it was remembered, so no client can push out what is another's fair share. Clients are counted in
// 256 groups.
//
// Values embed Kept. An entry takes 8 bytes, the value, a fifth of that, and 8 bytes for its turn: a Go map takes twice the memory where
// entries come and go. Looking one up costs 30 to 80 ns, remembering one 100 to 200 ns. Not safe for concurrent use.
type Memory[V any, P value[V]] struct {
	most   int
	parts  [256]part[V, P]
	count  int
	queues [256]turns
}

// Kept is what a Memory notes with a value.
type Kept struct {
	queue uint8 // that it counts in
	Marks uint8 // bits of the owner's, but for the highest
}

const again = 1 << 7 // it was used again since it came to its place in the queue

func (k *Kept) kept() *Kept { return k }

// Use notes that a value was used again.
func (k *Kept) Use() { k.Marks |= again }

type value[V any] interface {
	*V
	kept() *Kept
}

// NewMemory returns an empty memory for most values.
func NewMemory[V any, P value[V]](most int) *Memory[V, P] { return &Memory[V, P]{most: most} }

// Len returns how many values are remembered.
func (m *Memory[V, P]) Len() int { return m.count }

// Full reports whether it has no more room.
func (m *Memory[V, P]) Full() bool { return m.count >= m.most }

// Find returns the value of a hash; nil: there is none. It is valid until the next Put or Fit.
func (m *Memory[V, P]) Find(hash uint64) P {
	p := &m.parts[uint8(hash)]
	if at, ok := p.seek(hash); ok && hash != 0 {
		return &p.entries[at].value
	}
	return nil
}

// Put adds a client's value under a hash that has none. Nothing is remembered under 0.
func (m *Memory[V, P]) Put(c Client, hash uint64, v V) {
	if hash == 0 {
		return
	}
	P(&v).kept().queue = uint8(c)
	m.queues[uint8(c)].push(hash)
	m.parts[uint8(hash)].put(hash, v)
	m.count++
}

// Fit forgets values until no more than most are left.
func (m *Memory[V, P]) Fit() {
	const atOnce = 64 // of one client, before it is looked for the next
	for m.count > m.most {
		longest := &m.queues[0]
		for i := range m.queues {
			if m.queues[i].length > longest.length {
				longest = &m.queues[i]
			}
		}
		for range min(atOnce, m.count-m.most, longest.length) {
			m.forget(longest)
		}
	}
}

// Clear forgets all.
func (m *Memory[V, P]) Clear() { *m = Memory[V, P]{most: m.most} }

// forget forgets the oldest value that was not used again, of the first eight.
func (m *Memory[V, P]) forget(q *turns) {
	for tries := 1; ; tries++ {
		hash := q.pop()
		one := m.Find(hash).kept()
		if one.Marks&again == 0 || tries == 8 {
			m.parts[uint8(hash)].remove(hash)
			m.count--
			return
		}
		one.Marks &^= again
		q.push(hash)
	}
}

// part is a hash table with linear probing: an entry lies at its home or, without a gap, behind it. The hashes are keyed, so their high
// bits serve as the place in the table.
type part[V any, P value[V]] struct {
	entries []entry[V]
	count   int
}

type entry[V any] struct {
	hash  uint64 // 0: free
	value V
}

func (p *part[V, P]) put(hash uint64, v V) {
	if 8*(p.count+1) > 7*len(p.entries) {
		old := p.entries
		p.entries = make([]entry[V], max(16, len(old)+len(old)/8))
		for _, e := range old {
			if e.hash != 0 {
				at, _ := p.seek(e.hash)
				p.entries[at] = e
			}
		}
	}
	at, _ := p.seek(hash)
	p.entries[at] = entry[V]{hash, v}
	p.count++
}

func (p *part[V, P]) remove(hash uint64) {
	at, ok := p.seek(hash)
	if !ok {
		return
	}
	n := len(p.entries)
	for next := at; ; { // close the gap with an entry whose home is not behind it
		next = (next + 1) % n
		e := p.entries[next]
		if e.hash == 0 {
			break
		}
		if home := p.home(e.hash); (next-home+n)%n >= (next-at+n)%n {
			p.entries[at], at = e, next
		}
	}
	p.entries[at] = entry[V]{}
	p.count--
}

// seek returns where a hash is, or where it belongs.
func (p *part[V, P]) seek(hash uint64) (at int, ok bool) {
	if len(p.entries) == 0 {
		return 0, false
	}
	for at = p.home(hash); ; at++ {
		if at == len(p.entries) {
			at = 0
		}
		switch p.entries[at].hash {
		case hash:
			return at, true
		case 0:
			return at, false
		}
	}
}

func (p *part[V, P]) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(p.entries)))
	return int(hi)
}

// turns has hashes in the order in which they came.
type turns struct {
	parts  []*[turnsPart]uint64
	first  int // in parts[0]
	length int
}

const turnsPart = 512

func (q *turns) push(hash uint64) {
	at := q.first + q.length
	if at/turnsPart == len(q.parts) {
		q.parts = append(q.parts, new([turnsPart]uint64))
	}
	q.parts[at/turnsPart][at%turnsPart] = hash
	q.length++
}

func (q *turns) pop() uint64 {
	hash := q.parts[0][q.first]
	q.first, q.length = q.first+1, q.length-1
	if q.first == turnsPart {
		q.parts, q.first = q.parts[1:], 0
	}
	return hash
}
