package mistral

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// FuzzLoad: no tekken.json and no SentencePiece file makes the reader of Mistral's tokenizers panic, and every tokenizer that loads
// encodes a text.
func FuzzLoad(f *testing.F) {
	f.Add("tekken.json", tekken(f, 3, nil))
	f.Add("tekken.json", tekken(f, 15, nil))
	f.Add("tekken.json", []byte(`{"config":{"version":"v3","pattern":".","default_vocab_size":8388608,"default_num_special_tokens":8388607}}`))
	f.Add("tokenizer.model.v3",
		[]byte("\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02\x0a\x08\x0a\x01a\x15\x00\x00\x80\xbf\x0a\x09\x0a\x02aa\x15\x00\x00\x00\xc0\x12\x02\x18\x02\x1a\x02\x20\x00"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if name != tekkenFile && !strings.HasPrefix(name, "tokenizer.model") || strings.Contains(name, "/") {
			return
		}
		tok, err := Load(fstest.MapFS{name: {Data: data}})
		if err != nil {
			return
		}
		tok.Text().Decode(tok.Text().Encode(nil, "aa b [IMG]\n", tokenizer.Options{AddSpecial: true}), false)
	})
}
