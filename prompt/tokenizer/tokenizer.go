// Package tokenizer turns text into the token ids that an engine's own tokenizer gives, and back, for all byte-pair files.
// A token of prose costs some 20 ns, a byte of any other text at most three times as much as one of prose, and no allocation.
// Load refuses what it does not know, with the file and the reason; Encode has no errors, see Options for where it ends early.
//
// A text passes five steps, each in its own file: added tokens are cut out (added.go), what lies between is normalised
// (normalize.go), cut into words (pretokenize.go; scan.go and deepseek.go for the patterns of served models, regex.go for
// others), each word becomes ids (bpe.go), and the template's tokens are put around (post.go). Decode goes back (decode.go).
// The rules are those of Hugging Face's tokenizers 0.23.3, which vLLM, SGLang and TensorRT-LLM load, of sentencepiece 0.2.3
// and of mistral-common 1.13; load.go picks the reader for a directory.
//
// A Tokenizer is immutable after loading and safe for concurrent use. Texts are expected to be valid UTF-8, as a JSON body
// is after decoding; bytes that are not become U+FFFD, one for each maximal invalid part.
package tokenizer

import (
	"fmt"
	"runtime"
	"unicode/utf8"
	"unsafe"
)

// Tokenizer encodes and decodes text with one vocabulary.
type Tokenizer struct {
	vocab   *vocab
	model   *bpe
	added   []*AddedToken // in order of addition
	byID    map[uint32]*AddedToken
	byText  map[string]uint32
	special map[string]bool // texts of special tokens
	raw     *matcher        // tokens matched in the text as it came
	normed  *matcher        // tokens matched in normalised text

	normalize normalizers
	words     wordCutter
	post      template
	decoders  []decoder
	asksFirst bool // words depends on whether a text begins where the input begins
	pool      pool
}

// Options say how Encode treats one text.
type Options struct {
	AddSpecial    bool // put the template's tokens around (BOS, EOS), as add_special_tokens=true does
	PlainSpecials bool // special tokens' strings in the text stay text, as split_special_tokens=true does
	// Done, once closed, has Encode come back soon with the ids of a leading part of text: whoever gives it looks at it
	// afterwards. nil: never.
	Done <-chan struct{}
	// Max has Encode come back soon once dst has more ids than that, with more than that, of which the first Max are final.
	// 0: never.
	Max int
	// Partial, where given, is set where the ids are those of a leading part of text only, because a pattern that regexp2
	// runs takes too long on it (see regex), or it has more than 30 combining marks in a row (see unicodeForm).
	Partial *bool
}

// Encode appends the ids of text to dst. It allocates nothing once dst is large enough and the pool is warm, and its time
// is linear in the length of text, whatever it says.
func (t *Tokenizer) Encode(dst []uint32, text string, opt Options) []uint32 {
	return t.encodeText(dst, text, opt, nil)
}

func (t *Tokenizer) encodeText(dst []uint32, text string, opt Options, cache *Cache) (out []uint32) {
	if !utf8.ValidString(text) {
		text = lossy([]byte(text))
	}
	s := t.pool.get()
	s.done, s.unseen, s.most = opt.Done, 0, opt.Max
	s.size, s.inPatterns, s.partial = len(text), 0, false
	defer t.pool.put(s)
	defer func() {
		if s.stopped(recover()) {
			out = dst // up to the last stretch that was encoded whole
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
		// Metaspace asks where in the original a text begins; it begins later if its first character vanished.
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

// ID gives the id of a token's text, as the vocabulary file writes it.
func (t *Tokenizer) ID(token string) (uint32, bool) {
	if id, ok := t.byText[token]; ok {
		return id, true
	}
	id := t.vocab.id([]byte(token))
	return id, id != noID
}

// IsSpecial tells whether an id is a special token, which Decode can skip.
func (t *Tokenizer) IsSpecial(id uint32) bool {
	a, ok := t.byID[id]
	return ok && t.special[a.Content]
}

// finish sets what every kind of tokenizer needs once its parts are there.
func (t *Tokenizer) finish() (err error) {
	var raw, normed []*AddedToken
	size := 0
	for _, a := range t.added {
		if size += len(a.Content); size > maxNodes/32 { // normalised they may be longer, and a trie must hold them
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

// normalizedTokens is the matcher of tokens that are matched in normalised text.
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

// normalized is the text of an added token as it is matched and decoded where it is matched in normalised text.
func (t *Tokenizer) normalized(a *AddedToken) string {
	s := new(scratch)
	defer func() { s.stopped(recover()) }() // "" where a pattern takes too long
	return string(t.normalize.apply(s, []byte(a.Content)))
}

// add adds tokens as the reference does: a text that the vocabulary has keeps its id there, others get the next free id,
// whatever id the file names.
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
