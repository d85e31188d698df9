package tokenizer

import (
	"testing"
	"testing/fstest"
)

// FuzzLoadRanked loads tiktoken files, and vocab.json with merges.txt, with a tokenizer_config.json and an added_tokens.json.
func FuzzLoadRanked(f *testing.F) {
	const config,
		added = `{"tokenizer_class":"Qwen2Tokenizer","added_tokens_decoder":{"7":{"content":"<x>","special":true}},"bos_token":{"content":"<x>"},"add_bos_token":true}`, `{"<y>":9}`
	f.Add(true, "YQ== 0\nYg== 1\nYWI= 2\n", "", config, added, "ab<x>a")
	f.Add(false, `{"a":0,"b":1,"ab":2}`, "#version: 0.2\na b\n", config, added, "ab<y> a")
	f.Add(true, "YQ== 8388608", "", `{"pretokenize_regex":"(?=a)+"}`, "{}", "")
	f.Fuzz(func(t *testing.T, tiktoken bool, vocab, merges, config, added, text string) {
		dir := fstest.MapFS{"tokenizer_config.json": {Data: []byte(config)}, "added_tokens.json": {Data: []byte(added)}}
		if tiktoken {
			dir["qwen.tiktoken"] = &fstest.MapFile{Data: []byte(vocab)}
		} else {
			dir["vocab.json"], dir["merges.txt"] = &fstest.MapFile{Data: []byte(vocab)}, &fstest.MapFile{Data: []byte(merges)}
		}
		if tok, err := Load(dir, nil); err == nil {
			tok.Decode(tok.Encode(nil, text, Options{AddSpecial: true}), false)
		}
	})
}
