package tokenizer

import "unicode/utf8"

// spacedWords is the hot path for models without a pre-tokenizer whose tokens write a space as ▁: the text keeps its spaces, and is
// split where no merge can cross.
type spacedWords struct {
	// When a space is put in front: "always", "unless" there is one, "first" (at the very start, unless there is one), "never".
	scheme string
}

func (w spacedWords) encode(dst []uint32, s *scratch, m *bpe, b []byte, first bool) []uint32 {
	if len(b) == 0 {
		return dst
	}
	lead, _ := utf8.DecodeRune(b)
	has := lead == ' ' || lead == lowerBarRune
	if w.scheme == "always" || w.scheme == "unless" && !has || w.scheme == "first" && first && !has {
		b = s.keep(append(append(s.buffer(len(b)+1), ' '), b...))
	}
	return m.encodePieces(dst, s, b, 0, len(b))
}

// spacedPlan recognizes a pipeline that only writes spaces as ▁, puts one in front and, perhaps, splits before each one. It then
// sets the model up for texts with plain spaces. It is called once, before the model's tables are built.
func (t *Tokenizer) spacedPlan(m *bpe) {
	if !m.regular || m.raw || m.ignoreMerges || !m.byteFallback || t.normed != nil || m.vocab.id([]byte(lowerBar)) == noID {
		return
	}
	scheme, bars := "never", false
	for i, step := range t.normalize {
		switch n := step.(type) {
		case prepend:
			if n != lowerBar && n != " " || i != 0 || len(t.normalize) < 2 {
				return
			}
			scheme = "always"
		case replace:
			if p, ok := n.pattern.(literalPattern); !ok || p != " " || string(n.with) != lowerBar {
				return
			}
			bars = true
		default:
			return
		}
	}
	cut := false
	words, ok := t.words.(stages)
	if !ok {
		return
	}
	for _, st := range words {
		switch st := st.(type) {
		case metaspace:
			if st.with != lowerBar || scheme != "never" || cut {
				return
			}
			scheme, bars = map[string]string{"always": "unless", "first": "first", "never": "never"}[st.scheme], true
		case split:
			p, ok := st.pattern.(literalPattern)
			cut = cut || p == lowerBar
			// Once spaces are written as ▁ there is no space left to split at.
			if !ok || !bars || st.invert || p != " " && (p != lowerBar || st.how != mergedWithNext) {
				return
			}
		default:
			return
		}
	}
	if !bars {
		return
	}
	m.spaced, m.cutSpaces = true, cut
	m.runeSym.put(' ', m.runeSym.at(lowerBarRune))
	t.normalize, t.words = nil, spacedWords{scheme}
}
