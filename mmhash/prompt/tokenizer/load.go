package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/text/unicode/norm"
)

// Load reads the tokenizer of a model directory.
func Load(dir string) (*Tokenizer, error) { return LoadFS(os.DirFS(dir)) }

// LoadFS is Load for a file system whose root is the model directory.
func LoadFS(dir fs.FS) (*Tokenizer, error) {
	b, err := fs.ReadFile(dir, "tokenizer.json")
	if err != nil {
		return nil, err
	}
	t, err := LoadJSON(b)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// LoadJSON reads the text of a tokenizer.json.
func LoadJSON(b []byte) (*Tokenizer, error) {
	t := &Tokenizer{byID: map[uint32]*AddedToken{}, byText: map[string]uint32{}, special: map[string]bool{}}
	parts := map[string][]byte{}
	r := &jsonReader{b: b}
	err := r.object(func(key []byte) (err error) {
		parts[string(key)], err = r.raw()
		return err
	})
	if err != nil {
		return nil, err
	}
	var pre pipeline
	for key, into := range map[string]any{"pre_tokenizer": &pre} {
		if raw := parts[key]; raw != nil {
			if err := json.Unmarshal(raw, into); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	var normal struct{ Type string }
	if raw := parts["normalizer"]; raw != nil {
		if err := json.Unmarshal(raw, &normal); err != nil {
			return nil, fmt.Errorf("normalizer: %w", err)
		}
		if normal.Type == "NFC" {
			t.normalize = unicodeForm{norm.NFC}
		} else if normal.Type != "" {
			return nil, fmt.Errorf("normalizer %q: not known", normal.Type)
		}
	}
	pattern := ""
	if len(pre.Pretokenizers) == 2 && pre.Pretokenizers[0].Type == "Split" {
		pattern = pre.Pretokenizers[0].Pattern.Regex
	}
	scan := newScanner(pattern)
	if scan == nil {
		return nil, fmt.Errorf("pre_tokenizer: pattern %q is not known", pattern)
	}
	t.words = scanWords{scan}
	m, err := readBPE(parts["model"], true)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t.vocab, t.model = m.vocab, m
	var added []AddedToken
	if raw := parts["added_tokens"]; raw != nil {
		if err := json.Unmarshal(raw, &added); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
	}
	t.add(added)
	t.finish()
	return t, nil
}

type pipeline struct {
	Type          string
	Pattern       struct{ String, Regex string }
	Pretokenizers []pipeline
}

// readBPE reads the model part of a tokenizer.json.
func readBPE(b []byte, raw bool) (*bpe, error) {
	m := &bpe{unk: noID, raw: raw}
	r := &jsonReader{b: b}
	parts := map[string][]byte{}
	err := r.object(func(key []byte) (err error) {
		parts[string(key)], err = r.raw()
		return err
	})
	if err != nil {
		return nil, err
	}
	if m.vocab, err = readVocab(parts["vocab"]); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	m.ignoreMerges = string(parts["ignore_merges"]) == "true"
	m.setAlphabet()
	if err := m.readMerges(parts["merges"]); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	m.setWhole(new(scratch))
	return m, nil
}

// readVocab reads a JSON object of texts and ids.
func readVocab(b []byte) (*vocab, error) {
	if b == nil {
		return nil, errors.New("missing")
	}
	v := newVocab(len(b) / 28)
	r := &jsonReader{b: b}
	err := r.object(func(key []byte) error {
		id, err := r.id()
		if err == nil {
			v.add(key, id)
		}
		return err
	})
	return v, err
}

// readMerges reads a list of "a b" or ["a", "b"], the lowest rank first.
func (m *bpe) readMerges(b []byte) error {
	if b == nil {
		return errors.New("missing")
	}
	m.pairs = newPairTable(len(b) / 14)
	r := &jsonReader{b: b}
	rank := uint32(0)
	var left []byte
	return r.list(func() error {
		var a, c []byte
		if r.peek() == '[' {
			n := 0
			err := r.list(func() error {
				text, err := r.str()
				if n++; n == 1 {
					left = append(left[:0], text...)
				} else {
					c = text
				}
				return err
			})
			if err != nil {
				return err
			}
			if n != 2 {
				return fmt.Errorf("merge %d: want two texts, got %d", rank, n)
			}
			a = left
		} else {
			text, err := r.str()
			if err != nil {
				return err
			}
			space := indexByteFrom(text, 0, ' ')
			if space < 0 {
				return fmt.Errorf("merge %d: want two texts with a space between, got %q", rank, text)
			}
			left = append(left[:0], text[:space]...)
			a, c = left, text[space+1:]
		}
		err := m.addMerge(a, c, rank)
		rank++
		return err
	})
}

// addMerge stores a merge of two texts. a may have room behind it and is written over there.
func (m *bpe) addMerge(a, b []byte, rank uint32) error {
	left, right := m.vocab.id(a), m.vocab.id(b)
	product := m.vocab.id(append(a, b[len(m.prefix):]...))
	if left == noID || right == noID || product == noID {
		return fmt.Errorf("merge %d (%q, %q): not in the vocabulary, or their sum is not", rank, a, b)
	}
	m.pairs.put(left, right, rank, product)
	return nil
}
