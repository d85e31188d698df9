package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/sightline-router/sightline/body/jsonread"
)

// Empty returns a tokenizer without tokens.
func Empty() *Tokenizer { return newTokenizer() }

func newTokenizer() *Tokenizer {
	return &Tokenizer{byID: map[uint32]*AddedToken{}, byText: map[string]uint32{}, special: map[string]bool{}}
}

// readTokenizerJSON reads a tokenizer.json, or what the directory's class makes of it. The caller adds its tokens before it calls
// finish.
func readTokenizerJSON(b []byte, d *directory) (t *Tokenizer, added []AddedToken, err error) {
	t = newTokenizer()
	parts, err := readSections(b)
	if err != nil {
		return nil, nil, err
	}
	var model sections
	if d.form != nil {
		model = d.form.rebuild(parts, d)
	}
	var normalizer *normalizerSpec
	var pre preSpec
	var post *postSpec
	var decoder *decoderSpec
	if err := parts.read(map[string]any{"normalizer": &normalizer, "pre_tokenizer": &pre, "post_processor": &post, "decoder": &decoder,
		"added_tokens": &added}); err != nil {
		return nil, nil, err
	}
	t.normalize, err = normalizer.build()
	if err != nil {
		return nil, nil, fmt.Errorf("normalizer: %w", err)
	}
	t.decoders, err = decoder.build()
	if err != nil {
		return nil, nil, fmt.Errorf("decoder: %w", err)
	}
	t.post, err = post.build()
	if err != nil {
		return nil, nil, fmt.Errorf("post_processor: %w", err)
	}
	steps := d.fixMistral(pre)
	// The model can work on raw bytes if only its last pre-tokenizer writes the byte-level alphabet.
	raw := len(steps) > 0 && steps[len(steps)-1].Type == "ByteLevel"
	for _, step := range steps[:max(0, len(steps)-1)] {
		raw = raw && step.Type != "ByteLevel"
	}
	if parts["model"] == nil {
		return nil, nil, errors.New("model: missing")
	}
	if err := t.readModel(parts["model"], raw, model); err != nil {
		return nil, nil, fmt.Errorf("model: %w", err)
	}
	if err := t.setWords(steps, raw); err != nil {
		return nil, nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	return t, added, nil
}

// unsupported returns the error for a part of a tokenizer that Hugging Face's tokenizers or SentencePiece support but no served
// vision-language model was seen to use. Its text says what to do; callers prefix the file's name.
func unsupported(kind string) error {
	return fmt.Errorf("%q is not supported: byte-pair encoding is, with the parts that docs/fidelity.md lists; "+
		"the model's prompts are learned from its workers' events instead", kind)
}

// sections holds an object's values as raw text by key, without nulls. A tokenizer.json is one small description and two long
// lists, the vocabulary and the merges, which are read in place; the small parts are given to encoding/json.
type sections map[string][]byte

// read decodes sections by name. What belongs to one that is missing stays unchanged.
func (s sections) read(into map[string]any) error {
	for name, v := range into {
		if s[name] == nil {
			continue
		}
		if err := json.Unmarshal(s[name], v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func readSections(b []byte) (sections, error) {
	parts := sections{}
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

// readerOf returns a reader of b, which must not change meanwhile.
func readerOf(b []byte) jsonread.Reader {
	r := jsonread.New(unsafe.String(unsafe.SliceData(b), len(b)))
	if b == nil {
		r.Fail(errors.New("missing"))
	}
	return r
}

// maxID bounds token ids, because tables are as long as the largest id. A file with a larger one is refused.
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

// setWords selects the fastest word cutter that does what the steps say.
func (t *Tokenizer) setWords(steps []preSpec, raw bool) error {
	var all stages
	if isDeepSeek(steps) {
		all, steps = stages{split{pattern: newDeepSeekScanner()}}, steps[len(deepSeekPatterns):]
	}
	for i, step := range steps {
		st, err := step.stage(raw)
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		all = append(all, st...)
	}
	t.words = all
	if raw && len(all) == 1 {
		switch only := all[0].(type) {
		case byteLevel:
			if !only.prefixSpace {
				t.words = scanWords{only.scan}
			}
		case split:
			if scan, ok := only.pattern.(*scanner); ok && (only.how == isolated || only.how == removed && only.invert) {
				t.words = scanWords{scan}
			}
		}
	}
	return nil
}

// readModel reads the model section. raw means that the model works on bytes. Options that are not nil take the place of the file's.
func (t *Tokenizer) readModel(b []byte, raw bool, options sections) error {
	parts, err := readSections(b)
	if err != nil {
		return err
	}
	if options != nil {
		options["vocab"], options["merges"], options["type"] = parts["vocab"], parts["merges"], parts["type"]
		parts = options
	}
	var c struct {
		Type, Prefix, Suffix                string
		UnkToken                            *string
		FuseUnk, ByteFallback, IgnoreMerges bool
		Dropout                             *float64
	}
	if err := parts.read(map[string]any{
		"type": &c.Type, "unk_token": &c.UnkToken, "continuing_subword_prefix": &c.Prefix, "end_of_word_suffix": &c.Suffix,
		"fuse_unk": &c.FuseUnk, "byte_fallback": &c.ByteFallback, "ignore_merges": &c.IgnoreMerges, "dropout": &c.Dropout,
	}); err != nil {
		return err
	}
	switch {
	case slices.Contains([]string{"Unigram", "WordPiece", "WordLevel"}, c.Type):
		return unsupported(c.Type)
	case c.Type == "" && parts["merges"] == nil: // older files do not name their model's type
		return unsupported("a model without merges")
	case c.Type != "" && c.Type != "BPE":
		return fmt.Errorf("type %q: not known", c.Type)
	case c.Prefix != "":
		return unsupported("continuing_subword_prefix")
	case c.Suffix != "":
		return unsupported("end_of_word_suffix")
	case c.Dropout != nil && *c.Dropout != 0:
		return fmt.Errorf("dropout %v: merges left out by chance cannot be foretold", *c.Dropout)
	}
	var texts *mergeTexts
	var badMerges error
	var wg sync.WaitGroup
	wg.Go(func() { texts, badMerges = readMergeTexts(parts["merges"]) })
	v, err := readVocab(parts["vocab"])
	wg.Wait()
	if err != nil {
		return fmt.Errorf("vocab: %w", err)
	}
	t.vocab = v
	unk := noID // also if unk_token is not in the vocabulary: the reference then fails at an unknown character, which is dropped here
	if c.UnkToken != nil {
		unk = v.id([]byte(*c.UnkToken))
	}
	m := &bpe{vocab: v, raw: raw, unk: unk, fuseUnk: c.FuseUnk, byteFallback: c.ByteFallback, ignoreMerges: c.IgnoreMerges}
	if badMerges == nil {
		badMerges = m.resolve(texts)
	}
	if badMerges != nil {
		return fmt.Errorf("merges: %w", badMerges)
	}
	t.model = m
	return nil
}

// readVocab reads a JSON object of texts and ids.
func readVocab(b []byte) (*vocab, error) {
	v := newVocab(min(bytes.Count(b, []byte(",")), len(b)/6) + 1) // `"a":1,` is the shortest entry
	r := readerOf(b)
	r.Object(func(key string) { r.Fail(v.add(key, readID(&r))) })
	return v, r.Err()
}
