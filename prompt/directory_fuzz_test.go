package prompt

import (
	"testing"
	"testing/fstest"
)

// FuzzDirectory: no file of a model directory makes the reader of the files that concern chats panic.
func FuzzDirectory(f *testing.F) {
	f.Add(`{"model_type":"a","architectures":["B"]}`,
		`{"bos_token":{"content":"<s>"},"chat_template":[{"name":"default","template":"x"},{"name":"tool_use","template":"y"}]}`,
		`{"pad_token":"p"}`, `{"chat_template":{"default":"z"}}`)
	f.Add(`[]`, `{"bos_token":7,"chat_template":{"a":1}}`, `{"eos_token":null}`, `{"chat_template":"{{ x }}"}`)
	f.Fuzz(func(t *testing.T, config, tokenizer, special, template string) {
		d, err := readDirectory(fstest.MapFS{"config.json": {Data: []byte(config)}, "tokenizer_config.json": {Data: []byte(tokenizer)},
			"special_tokens_map.json": {Data: []byte(special)}, "chat_template.json": {Data: []byte(template)}})
		if err == nil && d.special == nil {
			t.Fatal("no map of special tokens")
		}
	})
}
