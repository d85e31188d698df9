package tokenizer

// origin is how merging a token's text alone produces the token: by the merge of left and right or, with made 0, as an initial
// symbol of a word. If every merge in it comes after those of its parts, its rank is a time: the token's merges happen in the order
// of their ranks, whatever surrounds it. The zero value is a token that merging never produces.
type origin struct {
	left, right uint32
	made        uint32 // rank plus one; the high bit says whether the rank is a time
}

const timed = 1 << 31

func (o *origin) exists() bool { return o.made != 0 }
func (o *origin) timed() bool  { return o.made&timed != 0 }
func (o *origin) born() uint32 { return o.made &^ timed }

// setPairs builds the table of all merges' pairs and determines the origin of each token.
//
// In rank order, a merge of two tokens that exist by then is a token's own if nothing merges across their border earlier. If ranks
// are not times, or the model is not regular, the token's text is merged instead, which takes ten times as long and is spread over
// all processors.
//
// At most one merge of each token can ever happen: when two symbols meet whose merge gives the token, the text under them was
// merged independently, so these two are what merging that text ends with. The other merges are dropped if there are many: a
// vocabulary that came from SentencePiece lists every split of a token in two (Gemma 3 keeps half).
func (m *bpe) setPairs() {
	m.pairs = newPairTable(m.merges)
	n := int(m.vocab.span())
	m.origin = make([]origin, n)
	if m.regular {
		m.setTimed()
	}
	_ = inParts(n, func(from, to int) error {
		s := new(scratch)
		var text []byte
		for id := uint32(from); id < uint32(to); id++ {
			if m.origin[id].exists() || !m.vocab.has(id) {
				continue
			}
			var ok bool
			text, ok = m.textOf(text[:0], id)
			if !ok || len(text) == 0 {
				continue
			}
			s.syms = m.symbols(s.syms[:0], text)
			symbols := len(s.syms)
			if m.merge(s, s.syms) != 1 || s.syms[0] != id {
				continue
			}
			if symbols == 1 {
				m.origin[id].made = timed
			} else {
				rank, _ := m.pairs.get(s.last[0], s.last[1])
				m.origin[id] = origin{s.last[0], s.last[1], rank + 1}
			}
		}
		return nil
	})
	if !m.regular {
		return
	}
	kept := m.merges[:0]
	for _, c := range m.merges {
		if o := m.origin[c.id]; o.left == c.a && o.right == c.b && o.born() == c.rank+1 {
			kept = append(kept, c)
		}
	}
	if len(kept)*4 < len(m.merges)*3 {
		m.pairs = newPairTable(kept)
	}
}

// setTimed determines the origins of the tokens whose ranks are times.
func (m *bpe) setTimed() {
	if m.raw {
		for _, id := range m.byteSym {
			m.origin[id].made = timed
		}
	} else {
		for _, id := range m.runeSym.values {
			if id != noID {
				m.origin[id].made = timed
			}
		}
	}
	for _, c := range m.merges {
		o, l, r := &m.origin[c.id], &m.origin[c.a], &m.origin[c.b]
		if l.timed() && r.timed() && l.born() <= c.rank && r.born() <= c.rank && !o.exists() && m.holdsTimed(c.a, c.b, c.rank+1) {
			if rank, _ := m.pairs.get(c.a, c.b); rank == c.rank { // otherwise the pair occurs again later, and that rank is used
				*o = origin{c.a, c.b, (c.rank + 1) | timed}
			}
		}
	}
}

// holdsTimed reports whether two neighbouring tokens whose ranks are times come into being and survive until the given time. It
// goes back in time from the two along their touching edges, and checks whether the symbols that touch at some time merge with each
// other before one of them is merged away. Among equal ranks the left one is first.
func (m *bpe) holdsTimed(a, b, until uint32) bool {
	goneA, goneB := until, until // when a and b, in their current form, are merged away
	for {
		if rank, _ := m.pairs.get(a, b); rank != noRank && rank+1 < goneA && rank+1 <= goneB {
			return false
		}
		oa, ob := &m.origin[a], &m.origin[b]
		switch {
		case oa.born() > ob.born():
			goneA, a = oa.born(), oa.right
		case ob.born() > 0:
			goneB, b = ob.born(), ob.left
		default:
			return true
		}
	}
}
