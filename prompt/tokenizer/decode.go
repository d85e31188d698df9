package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding/unicode"
)

// Decode returns the text of ids as the reference does with clean_up_tokenization_spaces=false. It skips unknown ids and, with
// skipSpecial, special tokens. It allocates a string per token.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		a, added := t.byID[id]
		switch {
		case !added && t.vocab.has(id):
			tokens = append(tokens, string(t.vocab.bytes(id)))
		case !added:
		default:
			text := a.Content
			if a.Normalized { // matched in normalized text, and decoded in that form
				text = t.normalized(a)
			}
			if !skipSpecial || !t.special[text] {
				tokens = append(tokens, text)
			}
		}
	}
	if t.decoders == nil {
		return strings.Join(tokens, " ")
	}
	for _, d := range t.decoders {
		tokens = d(tokens)
	}
	return strings.Join(tokens, "")
}

// decoder transforms the list of the tokens' texts; a chain of decoders ends with one text.
type decoder func(tokens []string) []string

// decoderSpec is the decoder section of a tokenizer.json; nil: there is none.
type decoderSpec struct {
	Type           string
	Decoders       []*decoderSpec
	Pattern        patternSpec
	Content        string
	Start, Stop    int
	Replacement    string
	PrependScheme  string `json:"prepend_scheme"`
	AddPrefixSpace *bool  `json:"add_prefix_space"`
}

func (c *decoderSpec) build() ([]decoder, error) {
	if c == nil {
		return nil, nil
	}
	switch c.Type {
	case "Sequence":
		all := []decoder{}
		for i, one := range c.Decoders {
			d, err := one.build()
			if err != nil {
				return nil, fmt.Errorf("decoders[%d]: %w", i, err)
			}
			all = append(all, d...)
		}
		return all, nil
	case "ByteLevel":
		return []decoder{decodeByteLevel}, nil
	case "ByteFallback":
		return []decoder{decodeByteFallback}, nil
	case "Fuse":
		return []decoder{func(tokens []string) []string { return []string{strings.Join(tokens, "")} }}, nil
	case "Replace":
		p := c.Pattern.String
		if p == nil || *p == "" {
			return nil, fmt.Errorf("Replace: only a pattern that is a String is supported")
		}
		return eachToken(func(_ int, token string) string { return strings.ReplaceAll(token, *p, c.Content) }), nil
	case "Strip":
		return eachToken(func(_ int, token string) string { return stripped(token, c.Content, c.Start, c.Stop) }), nil
	case "Metaspace":
		drops := c.PrependScheme != "never" && (c.AddPrefixSpace == nil || *c.AddPrefixSpace)
		return eachToken(func(i int, token string) string {
			if i == 0 && drops {
				return strings.ReplaceAll(token, c.Replacement, "")
			}
			return strings.ReplaceAll(token, c.Replacement, " ")
		}), nil
	case "BPEDecoder", "WordPiece", "CTC":
		return nil, unsupported(c.Type)
	}
	return nil, fmt.Errorf("type %q: not known", c.Type)
}

// stripped returns a token with up to start copies of text removed in front, and up to stop copies at the end.
func stripped(token, text string, start, stop int) string {
	for ; start > 0 && strings.HasPrefix(token, text); start-- {
		token = token[len(text):]
	}
	for ; stop > 0 && strings.HasSuffix(token, text); stop-- {
		token = token[:len(token)-len(text)]
	}
	return token
}

// eachToken returns a decoder that transforms each token by itself.
func eachToken(fn func(i int, token string) string) []decoder {
	return []decoder{func(tokens []string) []string {
		for i, token := range tokens {
			tokens[i] = fn(i, token)
		}
		return tokens
	}}
}

// decodeByteLevel joins the bytes of all tokens. A token with a character outside the alphabet yields its own text.
func decodeByteLevel(tokens []string) []string {
	var out []byte
	for _, token := range tokens {
		from, whole := len(out), true
		for _, r := range token {
			b, ok := runeToByte(r)
			if !ok {
				whole = false
				break
			}
			out = append(out, b)
		}
		if !whole {
			out = append(out[:from], token...)
		}
	}
	return []string{lossy(out)}
}

// lossy converts bytes to text with one U+FFFD for each maximal invalid part, as Rust's from_utf8_lossy.
func lossy(b []byte) string {
	out, _ := unicode.UTF8.NewDecoder().Bytes(b)
	return string(out)
}

// decodeByteFallback turns runs of <0xXX> tokens into the text of their bytes, or into one U+FFFD each.
func decodeByteFallback(tokens []string) []string {
	var out []string
	var pending []byte
	flush := func() {
		if utf8.Valid(pending) {
			if len(pending) > 0 {
				out = append(out, string(pending))
			}
		} else {
			for range pending {
				out = append(out, "\uFFFD")
			}
		}
		pending = pending[:0]
	}
	for _, token := range tokens {
		if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			if v, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
				pending = append(pending, byte(v))
				continue
			}
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
}
