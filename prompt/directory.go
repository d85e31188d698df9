package prompt

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"strings"

	"github.com/sightline-router/sightline/body/jsonread"
)

// templates are the chat templates of a model directory. Order of precedence as in transformers 5 (processing_utils,
// tokenization_utils_base): chat_template.jinja, then chat_template.json for a processor, then tokenizer_config.json. vLLM uses the
// processor's template, but the tokenizer's for a request with tools.
type templates struct {
	plain     string // for requests without tools
	tools     string // for requests with tools
	tokenizer string // the tokenizer's own, which SGLang and TensorRT-LLM render by
}

// directory holds the files of a model directory that concern chats.
type directory struct {
	templates templates
	special   map[string]string // bos_token, eos_token, … as templates see them
	modelType string            // of config.json
	archs     []string          // of config.json
}

func (t *templates) missing() bool { return t.plain == "" && t.tools == "" }

func readDirectory(dir fs.FS) (d directory, err error) {
	var config struct {
		ModelType     string   `json:"model_type"`
		Architectures []string `json:"architectures"`
	}
	var tokenizer, special, processor, template map[string]json.RawMessage
	if err := cmp.Or(jsonread.File(dir, "config.json", &config), jsonread.File(dir, "tokenizer_config.json", &tokenizer),
		jsonread.File(dir, "special_tokens_map.json", &special), jsonread.File(dir, "processor_config.json", &processor),
		jsonread.File(dir, "chat_template.json", &template)); err != nil {
		return d, err
	}
	d.modelType, d.archs = config.ModelType, config.Architectures
	d.special = specialTokens(special)
	maps.Copy(d.special, specialTokens(tokenizer))
	plain, tools := named(tokenizer["chat_template"])
	own := plain
	for _, file := range []map[string]json.RawMessage{processor, template} {
		if p, _ := named(file["chat_template"]); p != "" {
			plain, tools = p, cmp.Or(tools, p)
		}
	}
	text, err := fs.ReadFile(dir, "chat_template.jinja")
	if err == nil {
		plain, tools, own = string(text), string(text), string(text)
		text, err = fs.ReadFile(dir, "additional_chat_templates/tool_use.jinja")
		if err == nil {
			tools = string(text)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	d.templates = templates{plain: plain, tools: tools, tokenizer: cmp.Or(own, plain)}
	return d, nil
}

// named reads a chat_template value: one text, or a list or object of named ones, of which default and tool_use are used.
func named(raw json.RawMessage) (plain, tools string) {
	if json.Unmarshal(raw, &plain) == nil {
		return plain, plain
	}
	byName := make(map[string]string)
	var list []struct{ Name, Template string }
	if json.Unmarshal(raw, &list) == nil {
		for _, t := range list {
			byName[t.Name] = t.Template
		}
	} else if json.Unmarshal(raw, &byName) != nil {
		return "", ""
	}
	plain = byName["default"]
	return plain, cmp.Or(byName["tool_use"], plain)
}

// specialTokens reads the tokens that templates see, such as bos_token. A value is a text or an object with content.
func specialTokens(cfg map[string]json.RawMessage) map[string]string {
	out := make(map[string]string)
	for key := range strings.FieldsSeq("bos_token eos_token unk_token sep_token pad_token cls_token mask_token " +
		"image_token boi_token eoi_token audio_token video_token") {
		var text string
		var object struct{ Content string }
		if json.Unmarshal(cfg[key], &text) == nil && text != "" {
			out[key] = text
		} else if json.Unmarshal(cfg[key], &object) == nil && object.Content != "" {
			out[key] = object.Content
		}
	}
	return out
}
