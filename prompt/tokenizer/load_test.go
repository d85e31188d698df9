package tokenizer

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sightline-router/sightline/lab/golden"
)

func byteVocab(more ...string) string {
	vocab := map[string]int{}
	for _, r := range byteToRune {
		vocab[string(r)] = len(vocab)
	}
	for _, text := range more {
		vocab[text] = len(vocab)
	}
	b, _ := json.Marshal(vocab)
	return string(b)
}

func files(pairs ...string) fstest.MapFS {
	dir := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		dir[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return dir
}

func TestLoadDirectories(t *testing.T) {
	vocab := byteVocab("th", "the", "Ġthe")
	merges := "#version: 0.2\nt h\nth e\nĠ the\n"
	added := `"added_tokens_decoder":{"259":{"content":"<|end|>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false}}`
	for _, c := range []struct {
		name string
		dir  fstest.MapFS
		text string
		opt  Options
		want string
	}{
		{"GPT-2", files("vocab.json", vocab, "merges.txt", merges, "tokenizer_config.json", `{"tokenizer_class":"GPT2Tokenizer",`+added+`}`),
			"the the<|end|>", Options{}, "[257 258 259]"},
		{"prefix space", files("vocab.json", vocab, "merges.txt", merges, "tokenizer_config.json", `{"add_prefix_space":true}`),
			"the", Options{}, "[258]"},
		{"Qwen2 with bos", files("vocab.json", vocab, "merges.txt", merges, "tokenizer_config.json",
			`{"tokenizer_class":"Qwen2Tokenizer","add_bos_token":true,"bos_token":{"content":"<|end|>"},`+added+`}`),
			"the the", Options{AddSpecial: true}, "[259 257 258]"},
		{"tokenizer.json and its configuration",
			files("tokenizer.json",
				`{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[],"unk_token":"b"},"pre_tokenizer":{"type":"Whitespace"}}`,
				"tokenizer_config.json", strings.Replace(`{`+added+`}`, "259", "2", 1)), "a<|end|>x", Options{}, "[0 2 1]"},
		{"Tekken", files("tekken.json", string(tekkenFile(t, nil))), "the", Options{AddSpecial: true}, "[1 278]"},
	} {
		tok, err := Load(c.dir, nil)
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
			continue
		}
		if got := fmt.Sprint(tok.Encode(nil, c.text, c.opt)); got != c.want {
			t.Errorf("%s: %q gives %s, want %s", c.name, c.text, got, c.want)
		}
	}
	for _, c := range []struct {
		dir  fstest.MapFS
		want string
	}{
		{files(), "no tokenizer here"},
		{files("vocab.json", vocab), "merges.txt"},
		{files("vocab.json", vocab, "merges.txt", "x"), "merges.txt: line 1"},
		{files("vocab.json", vocab, "merges.txt", merges, "tokenizer_config.json", `{"tokenizer_class":"CLIPTokenizer"}`), "CLIPTokenizer"},
		{files("tokenizer.json", "{", "tokenizer_config.json", "{}"), "tokenizer.json: "},
		{files("tokenizer_config.json", `{"added_tokens_decoder":{"x":{}}}`), "not a token id"},
		{files("qwen.tiktoken", "IQ== 0\n"), "tokenizer_class"},
	} {
		if _, err := Load(c.dir, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

func TestTiktoken(t *testing.T) {
	var b strings.Builder
	for i := range 256 {
		text, _ := json.Marshal([]byte{byte(i)})
		fmt.Fprintf(&b, "%s %d\n", strings.Trim(string(text), `"`), i)
	}
	b.WriteString("dGg= 256\ndGhl 257\n") // th, the
	tok, err := Load(files("tiktoken.model", b.String(), "tokenizer_config.json",
		`{"tokenizer_class":"TikTokenTokenizer","added_tokens_decoder":{"300":{"content":"<|end|>","special":true}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"the<|end|>th": "[257 300 256]", "athe": "[97 257]",
		"<|reserved_token_299|>th": "[299 256]", "中the": "[228 184 173 257]"} {
		if got := fmt.Sprint(tok.Encode(nil, text, Options{})); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestConformanceLoad prints what a tokenizer.json takes to load and to hold, and fails where one of 7 MB holds more than 40 MB
// with all its tables built, or takes three seconds: the goal on a quiet machine is 150 ms.
func TestConformanceLoad(t *testing.T) {
	models := golden.Models(t)
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / 1e6
	}
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1", "gemma3"} {
		file := golden.Read(t, models, model, "tokenizer.json")
		before, best := heap(), time.Hour
		var tok *Tokenizer
		var err error
		for range 3 {
			start := time.Now()
			tok, err = LoadJSON(file)
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		ready := heap() - before
		tok.Encode(nil, strings.Repeat("a", 100)+strings.Repeat("中文", 50), Options{})
		full := heap() - before
		t.Logf("%s: %.1f MB of file; %v, %.1f MB when ready, %.1f MB with the tables for long words", model,
			float64(len(file))/1e6, best.Round(time.Millisecond), ready, full)
		if len(file) < 8e6 && (full > 40 || best > 3*time.Second) {
			t.Error("too much")
		}
		runtime.KeepAlive(tok)
		runtime.KeepAlive(file)
	}
}
