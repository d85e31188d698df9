package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
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
		t.unlike = d.unlike
		return t, nil
	}
	return nil, errors.New("no tokenizer here: want tokenizer.json, tekken.json, tokenizer.model, " +
		"vocab.json with merges.txt, or a *.tiktoken file")
}

// directory is a model directory with the contents of the files beside its tokenizer.
type directory struct {
	dir     fs.FS
	classOf func(name string) Class
	form    *form // of the class; nil: the file is used as it is
	config  tokenizerConfig
	model   struct {
		Type    string `json:"model_type"`
		Class   string `json:"tokenizer_class"`
		Version string `json:"transformers_version"`
	} // config.json
	added         []AddedToken    // of the configuration's list or of added_tokens.json, by id
	names, extras []AddedToken    // special tokens
	marked        map[string]bool // contents that added_tokens.json makes special
	unk           string
	fixed         bool   // fix_mistral_regex takes effect
	unlike        string // see Unlike
}

type tokenizerConfig struct {
	Class          string                 `json:"tokenizer_class"`
	AddedTokens    map[string]configToken `json:"added_tokens_decoder"`
	AddPrefixSpace *bool                  `json:"add_prefix_space"`
	Legacy         bool                   `json:"legacy"`
	AddBOS         *bool                  `json:"add_bos_token"`
	AddEOS         *bool                  `json:"add_eos_token"`
	BOS            tokenName              `json:"bos_token"`
	EOS            tokenName              `json:"eos_token"`
	Pattern        string                 `json:"pretokenize_regex"`
	FixMistral     bool                   `json:"fix_mistral_regex"`
	Files          []string               `json:"fast_tokenizer_files"`
	AutoMap        json.RawMessage        `json:"auto_map"`
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

// loadTokenizerJSON reads a tokenizer.json as transformers reads it together with the files beside it.
func loadTokenizerJSON(d *directory, b []byte) (*Tokenizer, error) {
	d.checkFile()
	if space := d.config.AddPrefixSpace; d.classOf == nil && space != nil && (*space || strings.HasPrefix(d.config.Class, "Llama")) {
		d.end("tokenizer_config.json: add_prefix_space") // transformers 4 builds the tokenizer anew
	}
	t, file, err := readTokenizerJSON(b, d)
	if err != nil {
		return nil, err
	}
	t.addTokens(d, file)
	if d.fixed && t.vocab.count <= 100_000 {
		d.end("tokenizer_config.json: fix_mistral_regex")
	}
	return t, t.finish()
}

// hasAdded reports whether the same token was already added, under any id.
func (t *Tokenizer) hasAdded(a AddedToken) bool {
	id, known := t.byText[a.Content]
	old := t.byID[id]
	a.ID = id
	return known && old != nil && *old == a
}
