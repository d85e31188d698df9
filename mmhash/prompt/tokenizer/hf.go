package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"unsafe"

	"github.com/sightline-router/sightline/mmhash/jsonread"
)

// LoadJSON reads the text of a tokenizer.json alone, as tokenizers.Tokenizer.from_str does.
func LoadJSON(b []byte) (*Tokenizer, error) {
	t, err := readTokenizerJSON(b)
	if err != nil {
		return nil, err
	}
	return t, t.finish()
}

func newTokenizer() *Tokenizer {
	return &Tokenizer{byID: map[uint32]*AddedToken{}, byText: map[string]uint32{}, special: map[string]bool{}}
}

// readTokenizerJSON reads a tokenizer.json; more tokens may be added before finish.
func readTokenizerJSON(b []byte) (*Tokenizer, error) {
	t := newTokenizer()
	parts, err := sections(b)
	if err != nil {
		return nil, err
	}
	if t.normalize, err = newNormalizer(parts["normalizer"]); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.decoders, err = newDecoders(parts["decoder"]); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	if t.post, err = newTemplate(parts["post_processor"]); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	var pre preSpec
	if raw := parts["pre_tokenizer"]; raw != nil {
		if err := json.Unmarshal(raw, &pre); err != nil {
			return nil, fmt.Errorf("pre_tokenizer: %w", err)
		}
	}
	var added []addedEntry
	if raw := parts["added_tokens"]; raw != nil {
		if err := json.Unmarshal(raw, &added); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
	}
	steps := pre.flat(nil)
	// The model can take bytes where nothing but its last pre-tokenizer writes the byte-level alphabet.
	raw := len(steps) > 0 && steps[len(steps)-1].Type == "ByteLevel"
	for _, step := range steps[:max(0, len(steps)-1)] {
		raw = raw && step.Type != "ByteLevel"
	}
	if parts["model"] == nil {
		return nil, errors.New("model: missing")
	}
	if err := t.readModel(parts["model"], &raw); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := t.setWords(steps, raw); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	tokens := make([]AddedToken, len(added))
	for i, a := range added {
		tokens[i] = AddedToken(a)
	}
	t.add(tokens)
	return t, nil
}

type addedEntry AddedToken

// sections gives the values of an object's keys as raw text, nulls left out. A tokenizer.json is one small description around two
// long lists, the vocabulary and the merges, which are read in place; the small parts are given to encoding/json.
func sections(b []byte) (map[string][]byte, error) {
	parts := map[string][]byte{}
	r := readerOf(b)
	r.Object(func(key string) {
		if raw := r.Skip(); raw == "null" {
			delete(parts, key)
		} else {
			parts[key] = unsafe.Slice(unsafe.StringData(raw), len(raw))
		}
	})
	return parts, r.Err()
}

// readerOf reads b, which must not change meanwhile.
func readerOf(b []byte) jsonread.Reader {
	r := jsonread.New(unsafe.String(unsafe.SliceData(b), len(b)))
	if b == nil {
		r.Fail(errors.New("missing"))
	}
	return r
}

// maxID bounds token ids: a file that names a larger one is refused, because tables are as long as the largest id.
const maxID = 1 << 23

// readID reads a token id.
func readID(r *jsonread.Reader) uint32 {
	lit, _ := r.Number()
	id, err := strconv.ParseUint(lit, 10, 32)
	if err != nil || id > maxID {
		r.Fail(fmt.Errorf("token id %.20s: want 0 to %d", lit, maxID))
	}
	return uint32(id)
}

// setWords picks the fastest way to cut words that does what the steps say.
func (t *Tokenizer) setWords(steps []preSpec, raw bool) error {
	var all stages
	for i, step := range steps {
		st, err := step.stage(raw)
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		all = append(all, st...)
	}
	t.words = all
	m, ok := t.model.(*bpe)
	if !ok || !raw {
		return nil
	}
	last := all[len(all)-1].(byteLevel)
	switch {
	case last.prefixSpace:
	case len(all) == 1 && last.scan != nil:
		t.words = scanWords{last.scan, m}
	case len(all) == 2 && last.scan == nil:
		if s, ok := all[0].(split); ok {
			if scan, ok := s.pattern.(*scanner); ok && (s.how == isolated || s.how == removed && s.invert) {
				t.words = scanWords{scan, m}
			}
		}
	}
	return nil
}

// readModel reads the model section. raw says that a BPE model could take bytes; it is cleared for any other.
func (t *Tokenizer) readModel(b []byte, raw *bool) error {
	parts, err := sections(b)
	if err != nil {
		return err
	}
	var c modelSpec
	for name, into := range map[string]any{
		"type": &c.Type, "unk_token": &c.UnkToken, "continuing_subword_prefix": &c.Prefix, "end_of_word_suffix": &c.Suffix,
		"fuse_unk": &c.FuseUnk, "byte_fallback": &c.ByteFallback, "ignore_merges": &c.IgnoreMerges, "dropout": &c.Dropout,
		"unk_id": &c.UnkID, "max_input_chars_per_word": &c.MaxChars,
	} {
		if part := parts[name]; part != nil {
			if err := json.Unmarshal(part, into); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if c.Type == "" {
		// Older files do not say; the reference tries the models in this order.
		switch {
		case parts["merges"] != nil:
			c.Type = "BPE"
		case parts["max_input_chars_per_word"] != nil:
			c.Type = "WordPiece"
		case len(parts["vocab"]) > 0 && parts["vocab"][0] == '[':
			c.Type = "Unigram"
		default:
			c.Type = "WordLevel"
		}
	}
	if c.Type == "Unigram" {
		*raw = false
		v, scores, err := readScores(parts["vocab"])
		if err != nil {
			return fmt.Errorf("vocab: %w", err)
		}
		unk := noID
		if c.UnkID != nil {
			unk = *c.UnkID
		}
		t.vocab = v
		t.model, err = newUnigram(v, scores, unk, c.ByteFallback)
		return err
	}
	var texts *mergeTexts
	var badMerges error
	var wg sync.WaitGroup
	if c.Type == "BPE" {
		wg.Go(func() { texts, badMerges = readMergeTexts(parts["merges"]) })
	}
	v, err := readVocab(parts["vocab"])
	wg.Wait()
	if err != nil {
		return fmt.Errorf("vocab: %w", err)
	}
	t.vocab = v
	unk := noID
	if c.UnkToken != nil {
		unk = v.id([]byte(*c.UnkToken))
	}
	switch c.Type {
	case "BPE":
		if c.Dropout != nil && *c.Dropout != 0 {
			return fmt.Errorf("dropout %v: merges left out by chance cannot be foretold", *c.Dropout)
		}
		if c.UnkToken != nil && unk == noID && *c.UnkToken != "" {
			// The reference fails at the first unknown character; it drops it here.
			unk = noID
		}
		m := &bpe{vocab: v, raw: *raw && c.Prefix == "" && c.Suffix == "", unk: unk, fuseUnk: c.FuseUnk, byteFallback: c.ByteFallback,
			ignoreMerges: c.IgnoreMerges, prefix: c.Prefix, suffix: c.Suffix}
		*raw = m.raw
		if badMerges == nil {
			badMerges = m.resolve(texts)
		}
		if badMerges != nil {
			return fmt.Errorf("merges: %w", badMerges)
		}
		t.model = m
	case "WordPiece", "WordLevel":
		*raw = false
		if c.Type == "WordLevel" {
			t.model = &wordLevel{v, unk}
			break
		}
		if parts["continuing_subword_prefix"] == nil {
			c.Prefix = "##"
		}
		if c.MaxChars == 0 {
			c.MaxChars = 100
		}
		t.model = newWordPiece(v, c.Prefix, unk, c.MaxChars)
	default:
		return fmt.Errorf("type %q: not known", c.Type)
	}
	return nil
}

type modelSpec struct {
	Type         string
	UnkToken     *string
	UnkID        *uint32
	Prefix       string
	Suffix       string
	FuseUnk      bool
	ByteFallback bool
	IgnoreMerges bool
	Dropout      *float64
	MaxChars     int
}

// readVocab reads a JSON object of texts and ids.
func readVocab(b []byte) (*vocab, error) {
	v := newVocab(min(bytes.Count(b, []byte(",")), len(b)/6) + 1) // `"a":1,` is the shortest entry
	r := readerOf(b)
	r.Object(func(key string) { r.Fail(v.add(key, readID(&r))) })
	return v, r.Err()
}

// readScores reads a JSON list of texts and scores; the place in the list is the id.
func readScores(b []byte) (*vocab, []float64, error) {
	v := newVocab(len(b) / 30)
	var scores []float64
	r := readerOf(b)
	r.List(func() {
		n := 0
		r.List(func() {
			switch n++; n {
			case 1:
				r.Fail(v.add(r.Text(), uint32(len(scores))))
			case 2:
				lit, _ := r.Number()
				score, _ := strconv.ParseFloat(lit, 64)
				scores = append(scores, score)
			default:
				r.Want("a text and a score")
			}
		})
		if len(scores) != int(v.span()) {
			r.Want("a text and a score")
		}
	})
	return v, scores, r.Err()
}
