package tokenizer

import "slices"

// Class is what a tokenizer_class makes of a tokenizer.json. Most classes of transformers use the file as it is. Some build the tokenizer
// anew from the file's vocabulary and merges, with a normalizer and a pre-tokenizer of their own (transformers 5: every class with a
// constructor).
type Class uint8

// The classes that matter here. A file whose steps are those of its class is read as it is.
const (
	AsFile     Class = iota
	GPT2Class        // byte-level words of GPT-2's pattern
	Qwen2Class       // byte-level words of Qwen's pattern
	LlamaClass       // SentencePiece
)

// rebuild returns the pre-tokenizers that a class puts in place of the file's. unlike means that it builds a tokenizer that is not
// modelled here.
func (c Class) rebuild(steps []preSpec, prefixSpace bool) (own []preSpec, unlike bool) {
	isByteLevel := func(s preSpec) bool { return s.Type == "ByteLevel" }
	switch c {
	case GPT2Class:
		return []preSpec{{Type: "ByteLevel", AddPrefixSpace: &prefixSpace}}, false
	case Qwen2Class:
		return steps, len(steps) != 2 || steps[0].Pattern.Regex == nil || *steps[0].Pattern.Regex != patternQwen || !isByteLevel(steps[1])
	case LlamaClass:
		return steps, slices.ContainsFunc(steps, isByteLevel)
	}
	return steps, false
}

// Unlike reports whether the engine's tokenizer differs from this one in a way that is not modelled.
func (t *Tokenizer) Unlike() bool { return t.unlike }
