package tokenizer

import "golang.org/x/text/unicode/norm"

type unicodeForm struct{ form norm.Form }

func (n unicodeForm) apply(s *scratch, in []byte) []byte {
	if n.form.IsNormal(in) {
		return in
	}
	return s.keep(n.form.Append(s.buffer(), in...))
}
