package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// Tekken and tiktoken files only list byte sequences by rank: two neighbours merge if their joined bytes are in the list, the
// lowest rank first, and a whole word that is in the list is that token at once. So every split of a listed sequence into two
// listed ones is a merge.

// LoadTekken reads a tekken.json (mistral-common 1.13: special tokens first, then the sequences by rank). Special tokens' strings
// in a text stay text, as in Tekkenizer.encode; AddSpecial puts <s> in front.
func LoadTekken(b []byte) (*Tokenizer, error) {
	parts, err := readSections(b)
	if err != nil {
		return nil, err
	}
	var config struct {
		Pattern     string
		Vocabulary  uint32 `json:"default_vocab_size"`
		SpecialsLen uint32 `json:"default_num_special_tokens"`
		Version     string
	}
	var listed []tekkenSpecial
	if err := parts.read(map[string]any{"config": &config, "special_tokens": &listed}); err != nil {
		return nil, err
	}
	n, total := config.SpecialsLen, config.Vocabulary
	if n >= total || total > maxID {
		return nil, fmt.Errorf("config: default_vocab_size %d and default_num_special_tokens %d do not fit", total, n)
	}
	specials, err := tekkenSpecials(listed, n, config.Version)
	if err != nil {
		return nil, err
	}
	v, err := readTekkenVocab(parts["vocab"], n, total-n)
	if err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	t, err := newRanked(v, n, config.Pattern)
	if err != nil {
		return nil, err
	}
	if uint32(v.count) != total-n {
		return nil, fmt.Errorf("vocab: want the ranks 0 to %d, got %d of them", total-n-1, v.count)
	}
	for id, text := range specials {
		t.setSpecial(uint32(id), text)
		if text == "<s>" {
			t.post.before = []uint32{uint32(id)}
		}
	}
	return t, t.finish()
}

type tekkenSpecial struct {
	Rank uint32
	Text string `json:"token_str"`
}

// tekkenSpecials returns the names of the n special tokens, which older versions do not list.
func tekkenSpecials(listed []tekkenSpecial, n uint32, version string) ([]string, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("<SPECIAL_%d>", i)
	}
	if listed == nil {
		if !slices.Contains([]string{"v1", "v2", "v3", "v7"}, version) {
			return nil, fmt.Errorf("special_tokens: missing, and version %q has no usual ones", version)
		}
		copy(names, oldTekkenSpecials)
	}
	for _, s := range listed {
		if s.Rank >= n {
			return nil, fmt.Errorf("special_tokens: rank %d is not below %d", s.Rank, n)
		}
		names[s.Rank] = s.Text
	}
	return names, nil
}

// readTekkenVocab reads the first count entries of the list. An entry's id is its rank plus first.
func readTekkenVocab(b []byte, first, count uint32) (*vocab, error) {
	v := newVocab(int(count))
	var text []byte
	r := readerOf(b)
	r.List(func() {
		rank, seen := noID, false
		text = text[:0]
		r.Object(func(key string) {
			switch key {
			case "rank":
				rank = readID(&r)
			case "token_bytes":
				var err error
				text, err = base64.StdEncoding.AppendDecode(text, []byte(r.Text()))
				r.Fail(err)
				seen = true
			default:
				r.Skip()
			}
		})
		if rank == noID || !seen {
			r.Want("an entry with rank and token_bytes")
		} else if rank < count {
			r.Fail(v.add(string(text), first+rank))
		}
	})
	return v, r.Err()
}

var oldTekkenSpecials = strings.Fields("<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] " +
	"[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] " +
	"[/SYSTEM_PROMPT] [TOOL_CONTENT]")

// setSpecial adds a token that no text can produce.
func (t *Tokenizer) setSpecial(id uint32, text string) {
	t.byID[id] = &AddedToken{ID: id, Content: text, Special: true}
	t.byText[text] = id
	t.special[text] = true
}

// readTiktoken reads a tiktoken file: one line per token with its bytes in base64 and its rank, which is its id.
func readTiktoken(b []byte) (*vocab, error) {
	v := newVocab(len(b) / 16)
	var text []byte
	for number, line := range bytes.Split(b, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		encoded, rank, ok := bytes.Cut(line, []byte(" "))
		id, err := strconv.ParseUint(string(rank), 10, 32)
		if !ok || err != nil || id > maxID {
			return nil, fmt.Errorf("line %d: want base64 and a rank, got %.60q", number+1, line)
		}
		text, err = base64.StdEncoding.AppendDecode(text[:0], encoded)
		if err == nil {
			err = v.add(string(text), uint32(id))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	return v, nil
}

// newRanked builds a tokenizer of byte sequences whose ranks are their ids minus first.
func newRanked(v *vocab, first uint32, expr string) (*Tokenizer, error) {
	for b := range 256 {
		if v.id([]byte{byte(b)}) == noID {
			return nil, fmt.Errorf("vocab: the byte %#02x is missing", b)
		}
	}
	words, err := newScanner(expr)
	if err != nil {
		return nil, err
	}
	m := &bpe{vocab: v, raw: true, plainBytes: true, ignoreMerges: true, unk: noID}
	m.allSplits(func(id uint32) uint32 { return id - first }, v.has)
	t := newTokenizer()
	t.vocab, t.model = v, m
	t.words = scanWords{words}
	t.decoders = []decoder{func(tokens []string) []string { return []string{lossy([]byte(strings.Join(tokens, "")))} }}
	return t, nil
}

// loadTiktoken reads a tiktoken file. The file does not contain the pattern that cuts words, which follows from the tokenizer's
// class, nor the special tokens, which come from the configuration and are matched in the text.
func loadTiktoken(d *directory, b []byte) (*Tokenizer, error) {
	pattern := d.config.Pattern
	if pattern == "" {
		switch d.config.Class {
		case "QWenTokenizer", "Qwen2Tokenizer":
			pattern = patternQwen
		case "TikTokenTokenizer": // Kimi
			pattern = patternKimi
		case "LlamaTokenizer", "PreTrainedTokenizerFast", "Llama3Tokenizer":
			pattern = patternLlama3
		default:
			return nil, fmt.Errorf("tokenizer_config.json: the pattern of tokenizer_class %q is not known "+
				"(known: QWenTokenizer, TikTokenTokenizer, LlamaTokenizer)", d.config.Class)
		}
	}
	v, err := readTiktoken(b)
	if err != nil {
		return nil, err
	}
	t, err := newRanked(v, 0, pattern)
	if err != nil {
		return nil, err
	}
	d.checkNamed()
	special := func(id uint32, text string) {
		t.setSpecial(id, text)
		t.added = append(t.added, t.byID[id])
	}
	for _, a := range d.added {
		special(a.ID, a.Content)
	}
	if d.config.Class == "TikTokenTokenizer" { // Kimi names 256 ids after the ranks, except those that are configured
		for id := v.span(); id < v.span()+256; id++ {
			if _, ok := t.byID[id]; !ok {
				special(id, fmt.Sprintf("<|reserved_token_%d|>", id))
			}
		}
	}
	return t, t.finish()
}

// loadVocabMerges reads vocab.json and merges.txt as transformers 5 builds a fast tokenizer from them.
func loadVocabMerges(d *directory, b []byte) (*Tokenizer, error) {
	v, err := readVocab(b)
	if err != nil {
		return nil, err
	}
	merges, err := fs.ReadFile(d.dir, "merges.txt")
	if err != nil {
		return nil, err
	}
	m := &bpe{vocab: v, raw: true, unk: noID}
	texts, err := readMergesTxt(merges)
	if err == nil {
		err = m.resolve(texts)
	}
	if err != nil {
		return nil, fmt.Errorf("merges.txt: %w", err)
	}
	t := newTokenizer()
	t.vocab, t.model = v, m
	t.decoders = []decoder{decodeByteLevel}
	prefix := d.config.AddPrefixSpace != nil && *d.config.AddPrefixSpace
	class := strings.TrimSuffix(d.config.Class, "Fast")
	steps := []preSpec{{Type: "ByteLevel", AddPrefixSpace: &prefix}}
	switch class {
	case "Qwen2Tokenizer", "Qwen3Tokenizer", "Qwen2_5Tokenizer":
		t.normalize = normalizers{unicodeForm{norm.NFC}}
		pattern, no := cmp.Or(d.config.Pattern, patternQwen), false
		steps = []preSpec{
			{Type: "Split", Pattern: patternSpec{Regex: &pattern}},
			{Type: "ByteLevel", AddPrefixSpace: &prefix, UseRegex: &no},
		}
	case "", "GPT2Tokenizer", "PreTrainedTokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer":
	default:
		return nil, fmt.Errorf("tokenizer_config.json: how tokenizer_class %q cuts words is not known "+
			"(known with vocab.json: Qwen2Tokenizer, GPT2Tokenizer)", d.config.Class)
	}
	if err := t.setWords(steps, true); err != nil {
		return nil, err
	}
	t.addTokens(d, nil)
	t.addEnds(d)
	return t, t.finish()
}

// addEnds sets BOS and EOS as the configuration says.
func (t *Tokenizer) addEnds(d *directory) {
	if id, ok := t.ID(string(d.config.BOS)); ok && d.config.AddBOS != nil && *d.config.AddBOS {
		t.post.before = []uint32{id}
	}
	if id, ok := t.ID(string(d.config.EOS)); ok && d.config.AddEOS != nil && *d.config.AddEOS {
		t.post.after = []uint32{id}
	}
}
