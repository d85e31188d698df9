package tokenizer

// normalizer changes a text before it is cut into words. It returns either its input or one of the scratch's buffers, never
// the one that its input lies in.
type normalizer interface {
	apply(s *scratch, in []byte) []byte
}
