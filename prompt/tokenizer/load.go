package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/sightline-router/sightline/body/jsonread"
)

// Load reads the tokenizer of a model directory. The first of these files that exists decides its kind: tokenizer.json,
// tekken.json, tokenizer.model (SentencePiece, or a tiktoken file), vocab.json with merges.txt, *.tiktoken. A file of 7 MB takes
// about 80 ms and 15 MB of memory. The error names the file and what is wrong with it.
//
// classOf is for an engine whose Python class makes something else of a tokenizer.json: it returns what, by the class that
// tokenizer_config.json names (nil: nothing else).
func Load(dir fs.FS, classOf func(name string) Class) (*Tokenizer, error) {
	d := &directory{dir: dir, classOf: classOf}
	if err := d.readConfig(); err != nil {
		return nil, err
	}
	tekken := func(_ *directory, b []byte) (*Tokenizer, error) { return LoadTekken(b) }
	pieces := func(_ *directory, b []byte) (*Tokenizer, error) { return LoadSentencePiece(b) }
	for _, kind := range []struct {
		files string // the last match is used
		load  func(d *directory, b []byte) (*Tokenizer, error)
	}{
		{"tokenizer.json", loadTokenizerJSON}, {"tekken.json", tekken}, {"tokenizer.model", loadTokenizerModel},
		{"vocab.json", loadVocabMerges}, {"*.tiktoken", loadTiktoken}, {"tiktoken.model", loadTiktoken},
		{"tokenizer.model.v*", pieces}, {"tekken*.json", tekken},
	} {
		names, err := fs.Glob(dir, kind.files)
		if err != nil || len(names) == 0 {
			continue
		}
		name := slices.Max(names)
		var t *Tokenizer
		b, err := fs.ReadFile(dir, name)
		if err == nil {
			t, err = kind.load(d, b)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return t, nil
	}
	return nil, errors.New("no tokenizer here: want tokenizer.json, tekken.json, tokenizer.model, " +
		"vocab.json with merges.txt, or a *.tiktoken file")
}

// directory is a model directory with the contents of its tokenizer_config.json and added_tokens.json.
type directory struct {
	dir     fs.FS
	classOf func(name string) Class
	config  tokenizerConfig
	added   []AddedToken // of both files, by id
}

type tokenizerConfig struct {
	Class          string                `json:"tokenizer_class"`
	AddedTokens    map[string]AddedToken `json:"added_tokens_decoder"`
	AddPrefixSpace bool                  `json:"add_prefix_space"`
	AddBOS         *bool                 `json:"add_bos_token"`
	AddEOS         *bool                 `json:"add_eos_token"`
	BOS            tokenName             `json:"bos_token"`
	EOS            tokenName             `json:"eos_token"`
	Pattern        string                `json:"pretokenize_regex"`
}

// tokenName is a token given as text or as an object with its content.
type tokenName string

func (n *tokenName) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '{' {
		return json.Unmarshal(b, (*string)(n))
	}
	var o struct{ Content string }
	err := json.Unmarshal(b, &o)
	*n = tokenName(o.Content)
	return err
}

func (d *directory) readConfig() error {
	if err := jsonread.File(d.dir, "tokenizer_config.json", &d.config); err != nil {
		return err
	}
	byID := map[uint32]AddedToken{}
	var extra map[string]uint32
	if err := jsonread.File(d.dir, "added_tokens.json", &extra); err != nil {
		return err
	}
	for text, id := range extra {
		byID[id] = AddedToken{ID: id, Content: text}
	}
	for key, a := range d.config.AddedTokens {
		var id uint32
		if _, err := fmt.Sscanf(key, "%d", &id); err != nil || id > maxID {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %q is not a token id up to %d", key, maxID)
		}
		a.ID = id
		byID[id] = a
	}
	for _, a := range byID {
		d.added = append(d.added, a)
	}
	slices.SortFunc(d.added, func(a, b AddedToken) int { return int(a.ID) - int(b.ID) })
	return nil
}

// loadTokenizerJSON reads a tokenizer.json and adds what transformers adds from tokenizer_config.json: the added tokens that differ
// from those of the file, in the order of their ids.
func loadTokenizerJSON(d *directory, b []byte) (*Tokenizer, error) {
	class := AsFile
	if d.classOf != nil {
		class = d.classOf(d.config.Class)
	}
	t, err := readTokenizerJSON(b, class, d.config.AddPrefixSpace)
	if err != nil {
		return nil, err
	}
	var more []AddedToken
	for _, a := range d.added {
		if _, configured := d.config.AddedTokens[fmt.Sprint(a.ID)]; configured && !t.hasAdded(a) {
			more = append(more, a)
		}
	}
	t.add(more)
	return t, t.finish()
}

// hasAdded reports whether the same token was already added, under any id.
func (t *Tokenizer) hasAdded(a AddedToken) bool {
	id, known := t.byText[a.Content]
	old := t.byID[id]
	a.ID = id
	return known && old != nil && *old == a
}
