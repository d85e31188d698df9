package tokenizer

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Class is the class of transformers 5 that an engine makes of a tokenizer.json. Most classes use the file as it is. Those with a
// constructor take vocabulary, merges and post-processor from it and build the rest anew, as forms says.
type Class string

const (
	AsFile   Class = ""
	Unlisted Class = "?" // a class with a constructor that forms does not have
)

// form is what a class builds: sections of a tokenizer.json, in which %t is add_prefix_space (%s: what follows from it), and the
// special tokens that it has without being configured.
type form struct {
	normalizer, pre string
	model           string // all options of the model
	prefixSpace     bool   // if add_prefix_space is missing or null
	defaults        map[string]string
	again, plain    bool // adds all special tokens once more, as they are or plain
	bare            bool // puts nothing around a text
}

const (
	byteModel  = `{"fuse_unk":false,"byte_fallback":false}`
	pieceModel = `{"fuse_unk":true,"byte_fallback":true}`
	gpt2Steps  = `{"type":"ByteLevel","add_prefix_space":%t}`
	nfc        = `{"type":"NFC"}`
)

var gpt2Defaults = map[string]string{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}

// forms are the constructors of transformers 5.19 to 5.23 (models/*/tokenization_*.py), by class.
var forms = map[Class]*form{
	"GPT2Tokenizer":    {pre: gpt2Steps, model: byteModel, defaults: gpt2Defaults},
	"CodeGenTokenizer": {pre: gpt2Steps, model: byteModel, defaults: gpt2Defaults},
	"GPTNeoXTokenizer": {normalizer: nfc, pre: gpt2Steps, model: byteModel, bare: true,
		defaults: map[string]string{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
			"pad_token": "<|padding|>"}},
	"CohereTokenizer": {normalizer: nfc, model: byteModel, again: true,
		pre: `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},` + gpt2Steps + `]}`,
		defaults: map[string]string{"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>",
			"sep_token": "<SEP>", "pad_token": "<PAD>", "cls_token": "<CLS>", "mask_token": "<MASK_TOKEN>"}},
	"Qwen2Tokenizer":   qwenForm(patternQwen, true),
	"Qwen3_5Tokenizer": qwenForm(patternQwen35, false),
	"LlamaTokenizer": {prefixSpace: true, model: pieceModel,
		pre:      `{"type":"Metaspace","replacement":"▁","prepend_scheme":"%s","split":false}`,
		defaults: map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}},
	"GemmaTokenizer": {normalizer: `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, model: pieceModel,
		pre: `{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`,
		defaults: map[string]string{"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
			"mask_token": "<mask>"}},
}

func qwenForm(pattern string, again bool) *form {
	p, _ := json.Marshal(pattern)
	return &form{normalizer: nfc, model: byteModel, again: again, plain: again,
		pre: `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + string(p) +
			`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":%t,"use_regex":false}]}`,
		defaults: map[string]string{"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}}
}

// rebuild replaces the sections of a tokenizer.json that the class does not take from it, and returns the options of its model.
func (f *form) rebuild(parts sections, d *directory) (model sections) {
	model, _ = readSections([]byte(f.model))
	if f == forms["GemmaTokenizer"] {
		model["unk_token"], _ = json.Marshal(d.unk)
	}
	space, scheme := f.prefixSpace, "first"
	if d.config.AddPrefixSpace != nil {
		space = *d.config.AddPrefixSpace
	}
	switch {
	case !space:
		scheme = "never"
	case d.config.Legacy:
		scheme = "always"
	}
	parts["pre_tokenizer"] = []byte(strings.NewReplacer("%t", strconv.FormatBool(space), "%s", scheme).Replace(f.pre))
	delete(parts, "normalizer")
	if f.normalizer != "" {
		parts["normalizer"] = []byte(f.normalizer)
	}
	if f.bare {
		delete(parts, "post_processor")
	}
	return model
}

// Listed reports whether forms has a class.
func Listed(c Class) bool { return forms[c] != nil }

// Unlike returns why the engine's tokenizer differs from this one in a way that is not read here; "" if it does not.
func (t *Tokenizer) Unlike() string { return t.unlike }
