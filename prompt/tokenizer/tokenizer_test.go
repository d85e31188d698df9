package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/sightline-router/sightline/lab/golden"
)

// LoadJSON reads only the text of a tokenizer.json, as tokenizers.Tokenizer.from_str does.
func LoadJSON(b []byte) (*Tokenizer, error) {
	t, added, err := readTokenizerJSON(b, new(directory))
	if err != nil {
		return nil, err
	}
	t.add(added)
	return t, t.finish()
}

// pipelineCase is a random tokenizer and the results of tokenizers==0.23.3 for texts with it (testdata/differential.py).
type pipelineCase struct {
	Tokenizer string
	Rows      []struct {
		Text                        string
		IDs, Special, Plain, Decode []uint32
		Decoded, Skipped            string
	}
}

// pipelines reads testdata/pipelines.jsonl.gz: python differential.py 11 90.
func pipelines(t testing.TB) []pipelineCase {
	return golden.Lines[pipelineCase](t, "testdata/pipelines.jsonl.gz")
}

// compare returns the first difference from the reference, "" if there is none.
func (c *pipelineCase) compare(tok *Tokenizer) string {
	for _, r := range c.Rows {
		for _, x := range []struct {
			what      string
			got, want any
		}{
			{"ids", tok.Encode(nil, r.Text, Options{}), r.IDs},
			{"ids with special tokens", tok.Encode(nil, r.Text, Options{AddSpecial: true}), r.Special},
			{"ids with plain special tokens", tok.Encode(nil, r.Text, Options{PlainSpecials: true}), r.Plain},
			{"text", tok.Decode(r.Decode, false), r.Decoded},
			{"text without special tokens", tok.Decode(r.Decode, true), r.Skipped},
		} {
			if got, want := fmt.Sprint(x.got), fmt.Sprint(x.want); got != want {
				return fmt.Sprintf("%s of %q %v:\n got %.400q\nwant %.400q", x.what, r.Text, r.Decode, got, want)
			}
		}
	}
	return ""
}

func TestPipelines(t *testing.T) {
	loaded, texts := 0, 0
	for i, c := range pipelines(t) {
		tok, err := LoadJSON([]byte(c.Tokenizer))
		if err != nil {
			if strings.Contains(err.Error(), "not determined") {
				continue
			}
			t.Errorf("tokenizer %d: got %v, want no error", i, err)
			continue
		}
		if diff := c.compare(tok); diff != "" {
			t.Errorf("tokenizer %d: %s\n%s", i, diff, summary(c.Tokenizer))
		}
		loaded, texts = loaded+1, texts+len(c.Rows)
	}
	if loaded < 80 {
		t.Errorf("only %d tokenizers loaded, want at least 80", loaded)
	}
	t.Logf("%d tokenizers, %d texts", loaded, texts)
}

// summary returns a tokenizer.json without its lists.
func summary(spec string) string {
	var v map[string]any
	if json.Unmarshal([]byte(spec), &v) != nil {
		return spec
	}
	m := v["model"].(map[string]any)
	delete(m, "vocab")
	delete(m, "merges")
	b, _ := json.Marshal(v)
	return strings.ReplaceAll(string(b), `\u003c`, "<")
}

// chatTokenizer returns a small byte-level tokenizer with turn markers and random merges.
func chatTokenizer(t testing.TB, merges int) *Tokenizer {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(merges)))
	vocab := map[string]int{}
	var list [][2]string
	texts := []string{}
	for _, c := range byteToRune {
		vocab[string(c)] = len(vocab)
		texts = append(texts, string(c))
	}
	common := []string{"a", "b", "e", "t", "h", "n", "Ġ", "o", "Ċ"}
	for _, c := range "中文字" {
		for _, b := range []byte(string(c)) {
			common = append(common, string(byteToRune[b]))
		}
	}
	for len(list) < merges {
		pick := func() string {
			if r.IntN(3) > 0 {
				return common[r.IntN(len(common))]
			}
			return texts[r.IntN(len(texts))]
		}
		a, b := pick(), pick()
		if _, ok := vocab[a+b]; ok && r.IntN(4) > 0 || len(a+b) > 40 {
			continue
		}
		if _, ok := vocab[a+b]; !ok {
			vocab[a+b] = len(vocab)
			texts, common = append(texts, a+b), append(common, a+b)
		}
		if pair := [2]string{a, b}; !slices.Contains(list, pair) {
			list = append(list, pair)
		}
	}
	spec := map[string]any{
		"added_tokens": []map[string]any{
			{"id": len(vocab), "content": "<|im_start|>", "special": true}, {"id": len(vocab) + 1, "content": "<|im_end|>", "special": true},
			{"id": len(vocab) + 2, "content": "<tool>", "special": false},
		},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []map[string]any{
			{"type": "Split", "pattern": map[string]string{"Regex": patternQwen}, "behavior": "Isolated", "invert": false},
			{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}},
		"decoder": map[string]any{"type": "ByteLevel"},
		"model":   map[string]any{"type": "BPE", "vocab": vocab, "merges": list},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := LoadJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestSearchEqualsMerging compares the search for long words with merging by heap, and that with merging pair by pair.
func TestSearchEqualsMerging(t *testing.T) {
	for _, merges := range []int{5, 30, 100, 400} {
		m := chatTokenizer(t, merges).model
		s := new(scratch)
		r := rand.New(rand.NewPCG(2, 3))
		for range 400 {
			var word []byte
			for n := 1 + r.IntN(120); len(word) < n; {
				word = append(word, []string{"a", "b", "e", "t", "h", "n", "o", " ", "中", "文", "字", "aaa", "the", "\xff", "\n"}[r.IntN(15)]...)
			}
			heap := m.symbols(nil, word)
			heap = heap[:m.mergeHeap(s, heap)]
			naive := mergeNaively(m, m.symbols(nil, word))
			if !slices.Equal(heap, naive) {
				t.Fatalf("%d merges, %q: heap %v, pair by pair %v, want %v", merges, word, heap, naive, naive)
			}
			if got, ok := m.encodeSearch(nil, s, word); !ok || !slices.Equal(got, naive) {
				t.Fatalf("%d merges, %q: search %v (%v), pair by pair %v, want true, %v", merges, word, got, ok, naive, naive)
			}
			if got := m.encode(nil, s, word, 0, len(word)); !slices.Equal(got, naive) {
				t.Fatalf("%d merges, %q: encode %v, pair by pair %v, want %v", merges, word, got, naive, naive)
			}
		}
	}
}

func mergeNaively(m *bpe, syms []uint32) []uint32 {
	for {
		best, at, id := noRank, -1, uint32(0)
		for i := 0; i+1 < len(syms); i++ {
			if rank, product := m.pairs.get(syms[i], syms[i+1]); rank < best {
				best, at, id = rank, i, product
			}
		}
		if at < 0 {
			return syms
		}
		syms[at] = id
		syms = slices.Delete(syms, at+1, at+2)
	}
}

// TestScannersEqualTheReference: each scanner, and DeepSeek's for three patterns in sequence, cuts texts where tokenizers 0.23.3 does.
func TestScannersEqualTheReference(t *testing.T) {
	var recorded struct {
		Texts []string
		Words []json.RawMessage // [patterns, for each text the words' ends in characters]
	}
	golden.JSON(t, &recorded, "testdata/words.json.gz")
	for _, raw := range recorded.Words {
		var patterns []string
		var ends [][]int
		if err := json.Unmarshal(raw, &[]any{&patterns, &ends}); err != nil {
			t.Fatal(err)
		}
		scan, err := newScanner(patterns[0])
		if len(patterns) > 1 {
			scan, err = newDeepSeekScanner(), nil
		}
		if err != nil {
			t.Error(err)
			continue
		}
		for i, text := range recorded.Texts {
			got := []int{}
			scan.each(nil, []byte(text), func(_, end int) { got = append(got, utf8.RuneCountInString(text[:end])) })
			if !slices.Equal(got, ends[i]) {
				t.Fatalf("%q\n%q: got %v, want %v", patterns, text, got, ends[i])
			}
		}
	}
	if len(recorded.Words) < 9 || len(recorded.Texts) < 1600 {
		t.Errorf("got %d patterns and %d texts, want 9 and 1600", len(recorded.Words), len(recorded.Texts))
	}
}

// TestUnsupportedPatterns: a pattern that no scanner knows is refused at load, and the error quotes it.
func TestUnsupportedPatterns(t *testing.T) {
	for _, pattern := range []string{``, `a`, `\d`, `\p{N}{1,3}`, `(?=\d)`, patternQwen + `|x`, `x(?=.*y)`, deepSeekPatterns[2]} {
		_, err := LoadJSON([]byte(fmt.Sprintf(`{"model":{"type":"BPE","vocab":%s,"merges":[]},"pre_tokenizer":{"type":"Sequence",`+
			`"pretokenizers":[{"type":"Split","pattern":{"Regex":%q},"behavior":"Isolated"},{"type":"ByteLevel","use_regex":false}]}}`,
			byteVocab(), pattern)))
		if want := fmt.Sprintf("the regular expression %q: no scanner knows it", pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", pattern, err, want)
		}
	}
}

func TestCache(t *testing.T) {
	tok := chatTokenizer(t, 200)
	cache := tok.NewCache(1<<20, 7)
	var conversation strings.Builder
	for turn := range 30 {
		fmt.Fprintf(&conversation, "<|im_start|>user\n%s turn %d<|im_end|>\n", strings.Repeat("the boat on the note ", 20), turn)
		text := conversation.String()
		for _, opt := range []Options{{}, {PlainSpecials: true}, {AddSpecial: true}} {
			got, want := cache.Encode(nil, text, opt), tok.Encode(nil, text, opt)
			if !slices.Equal(got, want) {
				t.Fatalf("turn %d, %+v: got %v, without cache %v, want %v", turn, opt, got, want, want)
			}
		}
	}
	n, most := cache.entries.Len(), 2*30+2
	if n > most { // with and without plain special tokens, and at the start of the text
		t.Errorf("%d stretches, want at most %d", n, most)
	}
	small := tok.NewCache(16*2000, 7)
	for i := range 2000 {
		small.Encode(nil, strings.Repeat(fmt.Sprint("text ", i, " "), 20), Options{})
	}
	held := 0
	for _, ids := range small.entries.Values() {
		held += costOf(ids)
	}
	if held == 0 || held > small.size || held+small.room != small.size {
		t.Errorf("%d bytes held, room for %d of %d, want held != 0, held <= small.size, held+small.room == small.size",
			held, small.room, small.size)
	}
}

// TestCacheEncodesOnce: callers wait for a stretch that is being encoded, and nothing is left pending.
func TestCacheEncodesOnce(t *testing.T) {
	tok := chatTokenizer(t, 200)
	text := strings.Repeat("the boat on the note ", 2000)
	want := tok.Encode(nil, text, Options{})
	counted := &countingWords{wordCutter: tok.words}
	tok.words = counted
	for round := range 20 {
		cache := tok.NewCache(64<<20, 7)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				if got := cache.Encode(nil, text, Options{}); !slices.Equal(got, want) {
					t.Errorf("%d ids, want %d", len(got), len(want))
				}
			})
		}
		readers.Wait()
		if n := int(counted.times.Load()); n != round+1 {
			t.Fatalf("encoded %d times in %d rounds, want %d", n, round+1, round+1)
		}
		if n := len(cache.pending); n > 0 {
			t.Errorf("%d stretches pending, want 0", n)
		}
	}
}

// countingWords counts the stretches that are encoded.
type countingWords struct {
	wordCutter
	times atomic.Int64
}

func (w *countingWords) encode(dst []uint32, s *scratch, m *bpe, b []byte, first bool) []uint32 {
	w.times.Add(1)
	return w.wordCutter.encode(dst, s, m, b, first)
}

func TestConcurrentEncode(t *testing.T) {
	tok := chatTokenizer(t, 300)
	text := strings.Repeat("<|im_start|>the note on a boat 中文字 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 20)
	want := tok.Encode(nil, text, Options{})
	if got := tok.Decode(want, false); got != text {
		t.Errorf("decoded %q, want %q", got, text)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if got := tok.Encode(nil, text, Options{}); !slices.Equal(got, want) {
					t.Errorf("ids differ between goroutines: got %v, want %v", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestEncodeAllocatesNothing(t *testing.T) {
	tok := chatTokenizer(t, 300)
	text := strings.Repeat("<|im_start|>the note on a boat 中文字 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 20)
	ids := tok.Encode(nil, text, Options{})
	if n := testing.AllocsPerRun(20, func() { ids = tok.Encode(ids[:0], text, Options{}) }); n > 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestInvalidUTF8(t *testing.T) {
	tok := chatTokenizer(t, 10)
	for in, same := range map[string]string{"a\xffb": "a\uFFFDb", "\xe4\xb8": "\uFFFD", "\xf0\x9f\x98x": "\uFFFDx",
		"\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD"} {
		got, want := tok.Encode(nil, in, Options{}), tok.Encode(nil, same, Options{})
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v as %q", in, got, want, same)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for in, want := range map[string]string{
		``:                                  "got the end",
		`[]`:                                "want '{'",
		`{"model":null}`:                    "model: missing",
		`{"model":{"type":"BPE"}}`:          "vocab: offset 0: missing",
		`{"model":{"type":"X","vocab":{}}}`: `type "X": not known`,
		`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}`:                                                                           "not in the vocabulary",
		`{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}}`:                                                                 "sum is not in the vocabulary",
		`{"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}}`:                                                                          "both have id 0",
		`{"model":{"type":"BPE","vocab":{"a":99999999},"merges":[]}}`:                                                                         "token id 99999999: want",
		`{"model":{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}}`:                                                                  "dropout",
		`{"normalizer":{"type":"Nope"},"model":{}}`:                                                                                           `normalizer: type "Nope"`,
		`{"pre_tokenizer":{"type":"Nope"},"model":{"type":"BPE","vocab":{},"merges":[]}}`:                                                     `type "Nope"`,
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a)\\1"},"behavior":"Isolated"},"model":{"type":"BPE","vocab":{},"merges":[]}}`: "no scanner knows it",
	} {
		_, err := LoadJSON([]byte(in))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", in, err, want)
		}
	}
}

// TestUnsupportedKinds: tokenizer parts that no served vision-language model was seen to use are refused at load: the error names
// the kind, the file, and what to do.
func TestUnsupportedKinds(t *testing.T) {
	bpe := `"model":{"type":"BPE","vocab":{"a":0},"merges":[]}`
	for kind, file := range map[string]string{
		"Unigram":                   `{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0]]}}`,
		"WordPiece":                 `{"model":{"type":"WordPiece","unk_token":"a","vocab":{"a":0}}}`,
		"WordLevel":                 `{"model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0}}}`,
		"Lowercase":                 `{"normalizer":{"type":"Lowercase"},` + bpe + `}`,
		"StripAccents":              `{"normalizer":{"type":"StripAccents"},` + bpe + `}`,
		"Nmt":                       `{"normalizer":{"type":"Nmt"},` + bpe + `}`,
		"Precompiled":               `{"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"},` + bpe + `}`,
		"BertNormalizer":            `{"normalizer":{"type":"Sequence","normalizers":[{"type":"BertNormalizer","clean_text":true}]},` + bpe + `}`,
		"CharDelimiterSplit":        `{"pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":"-"},` + bpe + `}`,
		"BertPreTokenizer":          `{"pre_tokenizer":{"type":"BertPreTokenizer"},` + bpe + `}`,
		"FixedLength":               `{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"FixedLength","length":3}]},` + bpe + `}`,
		"UnicodeScripts":            `{"pre_tokenizer":{"type":"UnicodeScripts"},` + bpe + `}`,
		"continuing_subword_prefix": `{"model":{"type":"BPE","continuing_subword_prefix":"##","vocab":{"a":0},"merges":[]}}`,
		"end_of_word_suffix":        `{"model":{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"a":0},"merges":[]}}`,
		"BPEDecoder":                `{"decoder":{"type":"BPEDecoder","suffix":"</w>"},` + bpe + `}`,
		"CTC":                       `{"decoder":{"type":"CTC","pad_token":"a"},` + bpe + `}`,
	} {
		_, err := Load(files("tokenizer.json", file), nil)
		for _, want := range []string{"tokenizer.json: ", `"` + kind + `" is not supported`, "docs/fidelity.md",
			"learned from its workers' events"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q in it", kind, err, want)
			}
		}
	}
	// older files do not name their model's type
	for _, file := range []string{`{"model":{"vocab":[["a",0]]}}`, `{"model":{"vocab":{"a":0}}}`} {
		if _, err := LoadJSON([]byte(file)); err == nil || !strings.Contains(err.Error(), `"a model without merges" is not supported`) {
			t.Errorf("%s: got %v, want an error, %q in it", file, err, `"a model without merges" is not supported`)
		}
	}
}

func FuzzLoadJSON(f *testing.F) {
	for i, c := range pipelines(f) {
		if i < 12 {
			f.Add([]byte(c.Tokenizer), c.Rows[0].Text)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tok, err := LoadJSON(file)
		if err != nil {
			return
		}
		ids := tok.Encode(nil, text, Options{AddSpecial: true})
		tok.Decode(ids, true)
	})
}

func FuzzLoadSentencePiece(f *testing.F) {
	f.Add([]byte("\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02\x0a\x08\x0a\x01a\x15\x00\x00\x80\xbf\x0a\x09\x0a\x02aa\x15\x00\x00\x00\xc0\x12\x02\x18\x02\x1a\x02\x20\x00"), "aaa b")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		if tok, err := LoadSentencePiece(file); err == nil {
			tok.Decode(tok.Encode(nil, text, Options{}), false)
		}
	})
}

func TestNormalShortCut(t *testing.T) {
	n := unicodeForm{norm.NFC}
	for r := rune(0); r <= maxRune; r++ {
		for _, text := range []string{string(r), "e" + string(r), string(r) + "\u0301", "\uAC00" + string(r)} {
			got, want := n.normal([]byte(text)), norm.NFC.IsNormalString(text)
			if got != want {
				t.Fatalf("%q (%U): %v, want %v", text, r, got, want)
			}
		}
	}
}

// TestNormalForms: how the reference's crate treats characters that are newer than its tables, and x/text's joiner between many
// marks.
func TestNormalForms(t *testing.T) {
	for in, want := range map[string][2]string{ // NFC, NFKD
		"e\u0301\u0323": {"\u1EB9\u0301", "e\u0323\u0301"}, "\u00A8\u0327": {"\u00A8\u0327", " \u0327\u0308"},
		"\u1100\u1161\u11A8": {"\uAC01", "\u1100\u1161\u11A8"},
		"e\U00011938\u0301":  {"e\U00011938\u0301", "e\U00011938\u0301"}, "\U00011935\U00011930": {"\U00011935\U00011930",
			"\U00011935\U00011930"},
		"e\u0301\u08D3\u0323": {"\u00E9\u08D3\u0323", "e\u0301\u08D3\u0323"}, // U+08D3 is of Unicode 11
		"e" + strings.Repeat("\u0301\u0323", 15): {"\u1EB9" + strings.Repeat("\u0323", 14) + strings.Repeat("\u0301", 15),
			"e" + strings.Repeat("\u0323", 15) + strings.Repeat("\u0301", 15)},
	} {
		for i, form := range []norm.Form{norm.NFC, norm.NFKD} {
			if got := string(unicodeForm{form}.apply(new(scratch), []byte(in))); got != want[i] {
				t.Errorf("%+q: %+q, want %+q", in, got, want[i])
			}
			times := 1 + 3*lookEvery/len(in) // normalized in parts
			if got := string(unicodeForm{form}.apply(new(scratch), []byte(strings.Repeat(in, times)))); got != strings.Repeat(want[i], times) {
				t.Errorf("%d times %+q: not %d times %+q", times, in, times, want[i])
			}
		}
	}
	tok, err := LoadJSON([]byte(`{"normalizer":{"type":"NFC"},"model":{"type":"BPE","vocab":{"e":0},"merges":[]},"added_tokens":[{"id":1,"content":"<|end|>"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	partial := false
	ids := tok.Encode(nil, "e<|end|>e"+strings.Repeat("\u0323", 31), Options{Partial: &partial})
	if !partial || !slices.Equal(ids, []uint32{0, 1}) {
		t.Errorf("31 marks: got %v, a leading part: %v, want true, %v", ids, partial, []uint32{0, 1})
	}
}
