package changes

import (
	"encoding/binary"
	"unsafe"
)

// A chunk is a run of tokens whose end its last tokens alone decide, but for its least and greatest length: so a text has the same chunks
// wherever it stands, from a few behind the place on where two prompts differ. A medium is one of its own.
type chunk struct {
	from, to int
	hash     uint64
	before   uint32 // hash of all tokens before it
	known    bool   // an earlier prompt had it
	same     bool   // behind the same tokens
}

const (
	leastChunk = 16
	mostChunk  = 160
)

// chunks returns the chunks from a token on, to the end of the prompt; the first may begin before it.
func (p *Input) chunks(from int) []chunk {
	at, media := max(0, from-lead), p.Media
	for len(media) > 0 && media[0].Offset+media[0].Length <= at {
		media = media[1:]
	}
	if len(media) > 0 {
		at = min(at, media[0].Offset)
	}
	whole, list := at == 0, make([]chunk, 0, (len(p.IDs)-at)/40+4)
	for at < len(p.IDs) {
		c := chunk{from: at, to: len(p.IDs)}
		for len(media) > 0 && (media[0].Offset < at || media[0].Length <= 0) {
			media = media[1:]
		}
		if len(media) > 0 && media[0].Offset == at {
			c.to = at + media[0].Length
			if c.to > len(p.IDs) {
				break
			}
			c.hash = p.Key.Bytes(binary.LittleEndian.AppendUint64(nil, media[0].Key), p.Space+uint64(media[0].Length))
			whole = true
		} else {
			if len(media) > 0 {
				c.to = min(c.to, media[0].Offset)
			}
			c.to = min(p.boundary(at, c.to), c.to)
			c.hash = p.Key.Bytes(bytesOf(p.IDs[at:c.to]), p.Space)
		}
		if whole && c.to > from {
			c.before = p.before(at)
			list = append(list, c)
		}
		at, whole = c.to, true
	}
	return list
}

// boundary returns where a chunk ends that begins at a token.
func (p *Input) boundary(at, end int) int {
	const odd1, odd2, odd3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
	end = min(end, at+mostChunk)
	for i := at + leastChunk; i <= end; i++ {
		a, b, c := p.IDs[i-1], p.IDs[i-2], p.IDs[i-3]
		if h := (a*odd1 + b) * odd2; (h^h>>15+c)*odd3>>27 == 0 {
			return i
		}
	}
	return end
}

// before returns a hash of all tokens before one.
func (p *Input) before(at int) uint32 {
	blocks, after := p.blocksBefore(at)
	return uint32(p.Key.Bytes(bytesOf(p.IDs[blocks*p.Size:at]), after))
}

// blocksBefore returns how many whole blocks there are before a token, and the hash of them all.
func (p *Input) blocksBefore(at int) (n int, hash uint64) {
	n = min(at/p.Size, len(p.Chain))
	if n == 0 {
		return 0, p.Space
	}
	return n, p.Chain[n-1]
}

func bytesOf(ids []uint32) []byte {
	if len(ids) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&ids[0])), 4*len(ids))
}

// salted returns how many of the prompt's first tokens were another's, under another salt or adapter or for another tenant, as last seen.
// It remembers them as this one's.
func (m *Memory) salted(p *Input) (end int) {
	const step = 256
	hash, space, media := p.Class, uint32(p.Space), p.Media
	for at := 0; at+step <= len(p.IDs); at += step {
		hash = p.Key.Bytes(bytesOf(p.IDs[at:at+step]), hash)
		for len(media) > 0 && media[0].Offset < at+step {
			hash, media = p.Key.Bytes(nil, hash^media[0].Key), media[1:]
		}
		one := m.begins.Find(hash)
		if one == nil {
			m.begins.Put(p.Client, hash, seen{before: space})
			continue
		}
		if one.before != space && end == at {
			end = at + step
		}
		one.before = space
		one.Use()
	}
	m.begins.Fit()
	return end
}

// findRuns returns the runs of known chunks between two tokens.
func findRuns(list []chunk, from, to int) (runs []Run) {
	var now Run
	known, end := 0, from // known tokens of the run; where the one before it ended
	flush := func() {
		if known >= leastRun {
			now.seen = now.From
			if gap := now.From - end; now.Had == Behind && gap <= min(mostGap, known) {
				now.From = end
			}
			runs, end = append(runs, now), now.To
		}
		known = 0
	}
	for _, c := range list {
		if c.to <= from || c.from >= to || !c.known {
			continue
		}
		c.from, c.to = max(c.from, from), min(c.to, to)
		had := Behind
		if c.same {
			had = Same
		}
		if known > 0 && (now.Had != had || c.from-now.To > mostGap) {
			flush()
			if len(runs) == mostRuns {
				break
			}
		}
		if known == 0 {
			now = Run{From: c.from, Had: had}
		}
		now.To, known = c.to, known+c.to-c.from
	}
	flush()
	return runs
}
