package tokenizer

import (
	"cmp"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// wordCutter cuts normalized text into words and passes them to the model. first means that the text is at the start of the whole
// input.
type wordCutter interface {
	encode(dst []uint32, s *scratch, m *bpe, b []byte, first bool) []uint32
}

// scanWords is the hot path: words of a known pattern, bytes as symbols.
type scanWords struct{ scan *scanner }

func (w scanWords) encode(dst []uint32, s *scratch, m *bpe, b []byte, _ bool) []uint32 {
	for i, look := 0, lookEvery; i < len(b) && !s.full(dst); {
		if i > look {
			s.look()
			look = i + lookEvery
		}
		end := w.scan.next(b, i)
		dst = m.encode(dst, s, b, i, end)
		i = end
	}
	return dst
}

// stages is the general path: each stage refines the list of words, and may rewrite their text.
type stages []stage

// words is a text and the words in it. A word records whether it is at the start of the whole input.
type words struct {
	b    []byte
	list []word
}

type word struct {
	start, end int32
	first      bool
}

// stage reads in and fills out, which is empty on entry. Empty words are dropped between stages.
type stage interface {
	cut(s *scratch, in, out *words)
}

func (st stages) encode(dst []uint32, s *scratch, m *bpe, b []byte, first bool) []uint32 {
	if len(b) == 0 {
		return dst
	}
	in, out := &s.in, &s.out
	in.b, in.list = b, append(in.list[:0], word{0, int32(len(b)), first})
	for _, one := range st {
		s.look()
		out.b, out.list = nil, out.list[:0]
		one.cut(s, in, out)
		in, out = out, in
	}
	for _, w := range in.list {
		if s.full(dst) {
			break
		}
		s.work(int(w.end - w.start))
		dst = m.encode(dst, s, in.b, int(w.start), int(w.end))
	}
	in.b, out.b = nil, nil
	return dst
}

func (w *words) add(start, end int, first bool) {
	if start < end {
		w.list = append(w.list, word{int32(start), int32(end), first})
	}
}

// behavior says what happens to the matches of a Split.
type behavior uint8

const (
	isolated behavior = iota
	removed
	contiguous
	mergedWithPrevious
	mergedWithNext
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "Contiguous": contiguous,
	"MergedWithPrevious": mergedWithPrevious, "MergedWithNext": mergedWithNext,
}

// split cuts every word at the matches of a pattern.
type split struct {
	pattern pattern
	how     behavior
	invert  bool
}

func (p split) cut(s *scratch, in, out *words) {
	out.b = in.b
	for _, w := range in.list {
		p.cutWord(s, in.b, w, out)
	}
}

// cutWord cuts b[w.start:w.end] and adds the parts to out, whose text is b.
func (p split) cutWord(s *scratch, b []byte, w word, out *words) {
	text := b[w.start:w.end]
	// The pending part, if have is set, may be merged with what follows; before says whether it ends in a match.
	from, end, have, before := 0, 0, false, false
	emit := func() {
		if p.how != removed || !before {
			out.add(int(w.start)+from, int(w.start)+end, w.first && from == 0)
		}
	}
	next := func(start, to int, match bool) {
		join := have
		switch p.how {
		case isolated, removed:
			join = false
		case contiguous:
			join = join && match == before
		case mergedWithPrevious:
			join = join && match && !before
		case mergedWithNext:
			join = join && !match && before
		}
		if !join {
			emit()
			from = start
		}
		end, have, before = to, true, match
	}
	done := 0
	p.pattern.each(s, text, func(start, end int) {
		s.work(end - done)
		if done < start {
			next(done, start, p.invert)
		}
		next(start, end, !p.invert)
		done = end
	})
	if done < len(text) {
		next(done, len(text), p.invert)
	}
	emit()
}

// byteLevel writes every word in the byte-level alphabet.
type byteLevel struct {
	prefixSpace bool
	scan        *scanner // nil: use_regex false
	raw         bool     // keep the bytes, because the model works on bytes
}

func (p byteLevel) cut(s *scratch, in, out *words) {
	text := s.buffer(len(in.b))
	for _, w := range in.list {
		word := in.b[w.start:w.end]
		from := len(text)
		if p.prefixSpace && word[0] != ' ' {
			text = append(text, ' ')
		}
		text = append(text, word...)
		if p.scan == nil {
			out.add(from, len(text), w.first)
			continue
		}
		for i, piece := 0, text[from:]; i < len(piece); {
			end := p.scan.next(piece, i)
			out.add(from+i, from+end, w.first && i == 0)
			i = end
		}
	}
	out.b = s.keep(text)
	if !p.raw {
		mapped := s.buffer(len(text))
		for i, w := range out.list {
			from := len(mapped)
			for _, c := range text[w.start:w.end] {
				mapped = utf8.AppendRune(mapped, byteToRune[c])
			}
			out.list[i].start, out.list[i].end = int32(from), int32(len(mapped))
		}
		out.b = s.keep(mapped)
	}
}

// metaspace replaces spaces by another character, and inserts one in front if its scheme says so.
type metaspace struct {
	with   string
	scheme string // "first", "always", "never"
}

func (p metaspace) cut(s *scratch, in, out *words) {
	text := s.buffer(len(in.b))
	r, _ := utf8.DecodeRuneInString(p.with)
	for _, w := range in.list {
		word := in.b[w.start:w.end]
		from := len(text)
		lead, _ := utf8.DecodeRune(word)
		if (p.scheme == "always" || p.scheme == "first" && w.first) && lead != r && lead != ' ' {
			text = append(text, p.with...)
		}
		for _, c := range word {
			if c == ' ' {
				text = append(text, p.with...)
			} else {
				text = append(text, c)
			}
		}
		out.add(from, len(text), w.first)
	}
	out.b = s.keep(text)
}

// preSpec is a pre_tokenizer section of a tokenizer.json.
type preSpec struct {
	Type             string
	Pretokenizers    []preSpec
	Pattern          patternSpec
	Behavior         string
	Invert           bool
	AddPrefixSpace   *bool `json:"add_prefix_space"`
	UseRegex         *bool `json:"use_regex"`
	Replacement      string
	PrependScheme    string `json:"prepend_scheme"`
	Split            *bool
	IndividualDigits bool `json:"individual_digits"`
}

// flat appends the pre-tokenizers in order, with sequences expanded.
func (c preSpec) flat(out []preSpec) []preSpec {
	if c.Type != "Sequence" {
		if c.Type != "" {
			out = append(out, c)
		}
		return out
	}
	for _, sub := range c.Pretokenizers {
		out = sub.flat(out)
	}
	return out
}

// stage builds one pre-tokenizer, of no, one or two steps. With raw, the model works on bytes instead of the byte-level alphabet.
func (c preSpec) stage(raw bool) ([]stage, error) {
	class := func(flags uint32) pattern {
		cl := classes()
		return runePattern(func(r rune) bool { return cl.at(r)&flags != 0 })
	}
	how, known := behaviors[c.Behavior]
	if c.Behavior == "" {
		how, known = isolated, true
	}
	if !known {
		return nil, fmt.Errorf("behavior %q: not known", c.Behavior)
	}
	switch c.Type {
	case "Split":
		p, err := c.Pattern.compile()
		return []stage{split{p, how, c.Invert}}, err
	case "ByteLevel":
		b := byteLevel{prefixSpace: c.AddPrefixSpace == nil || *c.AddPrefixSpace, raw: raw}
		if c.UseRegex == nil || *c.UseRegex {
			b.scan = scan(patternGPT2)
		} else if raw && !b.prefixSpace {
			return nil, nil // the words stay as they are
		}
		return []stage{b}, nil
	case "Metaspace":
		m := metaspace{c.Replacement, cmp.Or(c.PrependScheme, "always")}
		if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
			m.scheme = "never"
		}
		if utf8.RuneCountInString(m.with) != 1 {
			return nil, fmt.Errorf("replacement %q: want one character", m.with)
		}
		if c.Split != nil && !*c.Split {
			return []stage{m}, nil
		}
		return []stage{m, split{pattern: literalPattern(m.with), how: mergedWithNext}}, nil
	case "Whitespace":
		// \w+|[^\w\s]+ of the crate regex, whose \w includes the joiners and excludes superscript digits
		return []stage{split{runePattern(unicode.IsSpace), removed, false}, split{class(clRustWord), contiguous, false}}, nil
	case "WhitespaceSplit":
		return []stage{split{runePattern(unicode.IsSpace), removed, false}}, nil
	case "Punctuation":
		return []stage{split{class(clOldPunct), how, false}}, nil
	case "Digits":
		if c.IndividualDigits {
			return []stage{split{class(clRustNumeric), isolated, false}}, nil
		}
		return []stage{split{class(clRustNumeric), contiguous, false}}, nil
	case "CharDelimiterSplit", "BertPreTokenizer", "FixedLength", "UnicodeScripts":
		return nil, unsupported(c.Type)
	}
	return nil, fmt.Errorf("type %q: not known", c.Type)
}
