// Package tokenizer converts text to the token ids of an engine's own tokenizer, and back, for all byte-pair files. A token of
// prose costs some 20 ns, a byte of another script or of a repetition at most three times as much as one of prose, a byte in a
// megabyte of random letters without a space 30 to 90 times, all without allocation. Load refuses what it does not support, with the
// file and the reason; Encode returns no errors, see Options for where it ends early.
//
// A text passes five steps, each in its own file: added tokens are cut out (added.go), the text between them is normalized
// (normalize.go) and cut into words (pretokenize.go; scan.go and deepseek.go for the patterns of served models), each word becomes
// ids (bpe.go), and the template's tokens are put around (post.go). Decode reverses this (decode.go). The rules are those of Hugging
// Face's tokenizers 0.23.3, which vLLM, SGLang and TensorRT-LLM load, of sentencepiece 0.2.3 and of mistral-common 1.13; load.go
// selects the reader for a directory.
//
// A Tokenizer is immutable after loading and safe for concurrent use. Texts are expected to be valid UTF-8, as in a decoded JSON
// body; invalid bytes become U+FFFD, one for each maximal invalid part.
package tokenizer

import (
	"fmt"
	"runtime"
	"unicode/utf8"
	"unsafe"
)

// Tokenizer encodes and decodes text with one vocabulary.
type Tokenizer struct {
	unlike string // see Unlike

	vocab   *vocab
	model   *bpe
	added   []*AddedToken // in order of addition
	byID    map[uint32]*AddedToken
	byText  map[string]uint32
	special map[string]bool // texts of special tokens
	raw     *matcher        // tokens matched in the raw text
	normed  *matcher        // tokens matched in normalized text

	normalize normalizers
	words     wordCutter
	post      template
	decoders  []decoder
	asksFirst bool // whether the cut depends on whether a text is at the start of the input
	pool      pool
}

// Options control how Encode treats one text.
type Options struct {
	AddSpecial    bool // put the template's tokens (BOS, EOS) around, as add_special_tokens=true does
	PlainSpecials bool // special tokens' strings in the text stay text, as split_special_tokens=true does
	// Done, once closed, makes Encode return soon with the ids of a leading part of text; the caller must check Done afterwards.
	// nil: never.
	Done <-chan struct{}
	// Max makes Encode stop soon after dst has more than Max ids. It then returns more than Max, of which the first Max are final.
	// 0: no limit.
	Max int
	// Partial, if not nil, is set if the ids cover only a leading part of text, because it has more than 30 combining marks in a row
	// (see unicodeForm).
	Partial *bool
}

// Encode appends the ids of text to dst. It allocates nothing if dst is large enough and the pool is warm. Its time is linear in
// the length of text, for any text.
func (t *Tokenizer) Encode(dst []uint32, text string, opt Options) []uint32 {
	return t.encodeText(dst, text, opt, nil)
}

func (t *Tokenizer) encodeText(dst []uint32, text string, opt Options, cache *Cache) (out []uint32) {
	if !utf8.ValidString(text) {
		text = lossy([]byte(text))
	}
	s := t.pool.get()
	s.done, s.unseen, s.most = opt.Done, 0, opt.Max
	s.partial = false
	defer t.pool.put(s)
	defer func() {
		if s.stopped(recover()) {
			out = dst // up to the last stretch that was encoded completely
			if s.partial && opt.Partial != nil {
				*opt.Partial = true
			}
		}
	}()
	if opt.AddSpecial {
		dst = append(dst, t.post.before...)
	}
	for c := range t.raw.cut(unsafe.Slice(unsafe.StringData(text), len(text)), opt.PlainSpecials) {
		s.work(1 + len(c.part))
		if s.full(dst) {
			return dst
		}
		switch {
		case c.token != nil:
			dst = append(dst, c.token.ID)
		case cache != nil:
			dst = cache.encodePart(dst, s, c.part, c.start == 0, opt.PlainSpecials)
		default:
			dst = t.encodePart(dst, s, c.part, c.start == 0, opt.PlainSpecials)
		}
	}
	if opt.AddSpecial {
		dst = append(dst, t.post.after...)
	}
	return dst
}

// encodePart encodes text between two tokens of the first pass.
func (t *Tokenizer) encodePart(dst []uint32, s *scratch, part []byte, first, plain bool) []uint32 {
	if first && t.asksFirst && len(part) > 0 {
		// Metaspace needs to know where in the original a text begins, which changes if its first character was removed.
		_, n := utf8.DecodeRune(part)
		first = len(t.normalize.apply(s, part[:n])) > 0
	}
	part = t.normalize.apply(s, part)
	if t.normed == nil {
		return t.words.encode(dst, s, t.model, part, first)
	}
	s.pinned = s.turn + 1
	for c := range t.normed.cut(part, plain) {
		if s.full(dst) {
			break
		}
		s.work(1 + len(c.part))
		if c.token != nil {
			dst = append(dst, c.token.ID)
		} else {
			dst = t.words.encode(dst, s, t.model, c.part, first && c.start == 0)
		}
	}
	s.pinned = 0
	return dst
}

// ID returns the id of a token's text in the vocabulary file's spelling.
func (t *Tokenizer) ID(token string) (uint32, bool) {
	if id, ok := t.byText[token]; ok {
		return id, true
	}
	id := t.vocab.id([]byte(token))
	return id, id != noID
}

// IsSpecial reports whether an id is a special token, which Decode can skip.
func (t *Tokenizer) IsSpecial(id uint32) bool {
	a, ok := t.byID[id]
	return ok && t.special[a.Content]
}

// finish builds what every kind of tokenizer needs from its parts.
func (t *Tokenizer) finish() (err error) {
	var raw, normed []*AddedToken
	size := 0
	for _, a := range t.added {
		size += len(a.Content)
		if size > maxNodes/32 { // they may grow when normalized, and a trie must hold them
			return fmt.Errorf("added tokens: more than %d bytes", maxNodes/32)
		}
		if t.byID[a.ID] != a {
			continue
		}
		if a.Normalized {
			normed = append(normed, a)
		} else {
			raw = append(raw, a)
		}
	}
	t.raw = newMatcher(raw, func(a *AddedToken) string { return a.Content })
	if t.normed == nil {
		t.normed, err = t.normalizedTokens(normed)
	}
	m := t.model
	m.setAlphabet()
	m.setRegular()
	t.spacedPlan(m)
	m.setPairs()
	m.setJoins()
	m.setWhole()
	m.merges = nil
	if st, ok := t.words.(stages); ok {
		for _, one := range st {
			m, ok := one.(metaspace)
			t.asksFirst = t.asksFirst || ok && m.scheme == "first"
		}
	}
	t.pool = make(pool, 2*runtime.GOMAXPROCS(0))
	return err
}

// normalizedTokens returns the matcher of tokens that are matched in normalized text.
func (t *Tokenizer) normalizedTokens(tokens []*AddedToken) (m *matcher, err error) {
	seen := map[string]string{}
	m = newMatcher(tokens, func(a *AddedToken) string {
		text := t.normalized(a)
		if other, ok := seen[text]; (ok || text == "") && len(t.normalize) > 0 {
			err = fmt.Errorf("added tokens: %q becomes %q once normalised, as %q does: "+
				"what the reference then finds is not determined", a.Content, text, other)
		}
		seen[text] = a.Content
		return text
	})
	return m, err
}

// normalized returns the form of an added token that is matched and decoded if it is matched in normalized text.
func (t *Tokenizer) normalized(a *AddedToken) string {
	s := new(scratch)
	defer func() { s.stopped(recover()) }() // "" if a pattern takes too long
	return string(t.normalize.apply(s, []byte(a.Content)))
}

// add adds tokens as the reference does: a text that is in the vocabulary keeps its id, others get the next free id, whatever id
// the file names.
func (t *Tokenizer) add(tokens []AddedToken) {
	size := uint32(t.vocab.count)
	next := size
	for id := range t.byID {
		next = max(next, id+1)
	}
	for i := range tokens {
		a := &tokens[i]
		if a.Content == "" {
			continue
		}
		if id, ok := t.ID(a.Content); ok {
			a.ID = id
		} else {
			a.ID = next
			next++
		}
		t.byText[a.Content] = a.ID
		if a.Special {
			t.special[a.Content] = true
		}
		t.byID[a.ID] = a
		t.added = append(t.added, a)
	}
}
