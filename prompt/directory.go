package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// templates are the chat templates of a model directory. Order of precedence as in transformers 5 (processing_utils,
// tokenization_utils_base): chat_template.jinja, then chat_template.json for a processor, then tokenizer_config.json.
// vLLM takes the processor's template, but the tokenizer's for a request with tools.
type templates struct {
	plain     string // for requests without tools
	tools     string // for requests with tools
	tokenizer string // the tokenizer's own: SGLang and TensorRT-LLM render by it
}

// directory is what of a model directory concerns the conversation.
type directory struct {
	templates templates
	special   map[string]string // bos_token, eos_token, … as templates see them
	modelType string            // of config.json
	archs     []string          // of config.json
}

func (t *templates) missing() bool { return t.plain == "" && t.tools == "" }

func readDirectory(dir string) (d directory, err error) {
	var config struct {
		ModelType     string   `json:"model_type"`
		Architectures []string `json:"architectures"`
	}
	if err := readJSON(dir, "config.json", &config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	d.modelType, d.archs = config.ModelType, config.Architectures
	var cfg map[string]json.RawMessage
	if err := readJSON(dir, "tokenizer_config.json", &cfg); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	d.special = specialTokens(cfg)
	var smap map[string]json.RawMessage
	if err := readJSON(dir, "special_tokens_map.json", &smap); err == nil {
		for k, v := range specialTokens(smap) {
			if _, ok := d.special[k]; !ok {
				d.special[k] = v
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	plain, tools := named(cfg["chat_template"])
	tokenizer := plain
	var proc struct {
		Template json.RawMessage `json:"chat_template"`
	}
	for _, file := range []string{"processor_config.json", "chat_template.json"} {
		proc.Template = nil
		if err := readJSON(dir, file, &proc); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d, err
		}
		if p, _ := named(proc.Template); p != "" {
			plain = p
			if tools == "" {
				tools = p
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja")); err == nil {
		plain, tools, tokenizer = string(text), string(text), string(text)
		if text, err := os.ReadFile(filepath.Join(dir, "additional_chat_templates", "tool_use.jinja")); err == nil {
			tools = string(text)
		}
	}
	if tokenizer == "" {
		tokenizer = plain
	}
	d.templates = templates{plain: plain, tools: tools, tokenizer: tokenizer}
	return d, nil
}

// named reads a chat_template value: one text, or named ones, as a list or an object, of which default and tool_use matter.
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
	plain, tools = byName["default"], byName["tool_use"]
	if tools == "" {
		tools = plain
	}
	return plain, tools
}

// specialTokens reads the names that templates know, such as bos_token; a value is a text or an object with content.
func specialTokens(cfg map[string]json.RawMessage) map[string]string {
	out := make(map[string]string)
	for _, key := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token", "boi_token", "eoi_token", "audio_token", "video_token"} {
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

func readJSON(dir, name string, v any) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	return nil
}
