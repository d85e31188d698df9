package tokenizer

// wordCutter cuts normalised text into words and hands them to the model.
type wordCutter interface {
	encode(dst []uint32, s *scratch, m model, b []byte, first bool) []uint32
}

// scanWords is the hot way: words of a known pattern, bytes as symbols.
type scanWords struct {
	scan *scanner
}

func (w scanWords) encode(dst []uint32, s *scratch, m model, b []byte, _ bool) []uint32 {
	bpe := m.(*bpe)
	for i := 0; i < len(b); {
		end := w.scan.next(b, i)
		dst = bpe.encode(dst, s, b, i, end)
		i = end
	}
	return dst
}
