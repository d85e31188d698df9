// Package vision decides what an image becomes in the prompt: how many placeholder tokens, which ids, in which layout, and where. A
// Expander is built once from a model directory. An expansion is one pass over the prompt and allocates per request and image. Load
// reports what a rule needs and the directory lacks; later errors are a *RefusedError (the engine would refuse) or an
// *UndecidableError.
//
// Only this package knows these rules, for every vision-language family and every engine's way of reading (Reading). Nothing is
// fetched and no image is decoded: [Load] reads the JSON files beside the weights. One entry of the table (families_*.go) describes
// one family: the files that identify it, the placeholder that the chat template prints, the rule from an image's size to a count,
// and the layout of the tokens around it. A new checkpoint of a known family works from its directory alone. A wrong count would
// silently make every block after the image miss, so nothing is guessed.
//
// Sources of the rules: vLLM 0.32.0, transformers 5.19 and 5.23, mistral-common 1.13.
package vision

import (
	"cmp"
	"sync"
)

// Tokens is what this package needs from the model's tokenizer.
type Tokens interface {
	// ID returns the id of one vocabulary entry or added token, in the vocabulary's spelling.
	ID(token string) (uint32, bool)
	// EncodeText appends the ids of text. Added tokens in the text become their ids; no BOS or EOS is added.
	EncodeText(dst []uint32, text string) []uint32
	// DecodeText is the engine's decode with special tokens kept.
	DecodeText(ids []uint32) string
}

// Reading is how an engine inserts media into a prompt. The zero value replaces placeholders among the token ids, with vLLM's own
// rules where they differ from the Hugging Face processor's.
type Reading struct {
	// Processor: the Hugging Face processor replaces placeholders in the text, before tokenization (SGLang, TensorRT-LLM).
	Processor bool
	// Always: the processor also reads prompts without media (transformers itself; the engines then skip it).
	Always bool
	// OutOfVocab: the embedding positions hold vocab_size + 1, in the families that say so (TensorRT-LLM).
	OutOfVocab bool
}

// Options say how the server was started, as far as the tokens of media depend on it.
type Options struct {
	Reading Reading
	// Family names the family of a directory whose files do not, such as a fine-tune with a model type of its own; "": detected.
	Family string
	// ProcessorKwargs mirrors the server's --mm-processor-kwargs. A request's kwargs override it key by key.
	ProcessorKwargs Kwargs
	// MistralFormat is vLLM's --tokenizer-mode mistral: params.json and mistral-common's rounding are used, config.json is ignored.
	// A directory with params.json and without config.json is read like this in any case.
	MistralFormat bool
}

// Media is one image, video or audio clip of a request.
type Media struct {
	Modality string // "image", "video" or "audio"; "" means image
	// Width and Height in pixels, as the engine sees them: swapped for EXIF orientations 5 to 8 if it rotates images first (vLLM
	// does, SGLang and TensorRT-LLM do not).
	Width, Height int
	SidesSwapped  bool // width and height were swapped for EXIF
}

// Span is the place of one medium's replacement in the expanded prompt. It covers the whole replacement (wrapper, separator and
// newline tokens too), which is the range that the engine keys with the medium's identity.
type Span struct {
	Index  int // into the media slice
	Offset int // first token
	// Length in tokens. Gemma 3 merges a newline token of the replacement with its neighbour; as in vLLM, the length is that of the
	// unmerged replacement, so two spans may share a token.
	Length int
}

// MaxTokens bounds the tokens of one image. No served model comes near it; settings or sizes that need more are refused before
// anything is allocated.
const MaxTokens = 1 << 20

// Expander holds the placeholder rules of one model directory for one Reading. It is immutable after Load and safe for concurrent use.
type Expander struct {
	loaded
	tok          Tokens
	placeholders []*placeholder // one per modality that the family knows

	outOfVocab uint32 // id at the embedding positions, see Reading; 0: the rule's own
	newlines   [4]uint32

	literals *literals
	most     int // bound of the tokens of a prompt's media; see With
}

// loaded is what a model directory's files say of the family.
type loaded struct {
	fam      *family
	settings *settings
	warnings []string
	names    map[string]string
}

// literals caches the tokenized texts of the layouts, see builder.flush.
type literals struct {
	tok Tokens
	sync.RWMutex
	ids map[string][]uint32
}

// With returns the model for one prompt. tok replaces its tokenizer for the prompt's own texts, for example by one that stops when
// the request's time is over. most bounds the tokens of all media together; if they exceed it, Expand and ExpandText fail before
// they write them.
func (m *Expander) With(tok Tokens, most int) *Expander {
	own := *m
	own.tok, own.most = tok, most
	return &own
}

// Family returns the family's name in docs/families.md, or "" for a text model.
func (m *loaded) Family() string {
	if m.fam == nil {
		return ""
	}
	return m.fam.name
}

// Multimodal reports whether the model takes media at all.
func (m *loaded) Multimodal() bool { return m.fam != nil }

// Warnings returns oddities of the directory that do not change a count, such as a config id that the tokenizer contradicts and the
// engine ignores.
func (m *loaded) Warnings() []string { return m.warnings }

// Count returns the tokens of one medium: embed is the number of embedding positions, total the length of the whole replacement.
// The error is a *RefusedError if the engine refuses the medium and an *UndecidableError if the count cannot be known. If the count
// depends on the other images of a request, this one is counted as if it were the only one.
func (m *Expander) Count(media Media, kw Kwargs) (embed, total int, err error) {
	b, err := m.builder(kw, 1)
	if err != nil {
		return 0, 0, err
	}
	if err := b.item(media, 0); err != nil {
		return 0, 0, err
	}
	for _, id := range b.out {
		if b.placeholder.hasID && id == b.placeholder.id {
			embed++
		}
	}
	return embed, len(b.out), nil
}

// EmbedID returns the id at the embedding positions of a modality in the engine's token stream, after Expand. For SGLang it is the
// id before the engine overwrites it with an image-dependent one.
func (m *Expander) EmbedID(modality string) (uint32, bool) {
	r := placeholderOf(m.placeholders, modality)
	if r == nil || !r.hasID {
		return 0, false
	}
	if m.outOfVocab != 0 {
		return m.outOfVocab, true
	}
	return r.id, true
}

// ReadsText reports whether placeholders are replaced in the text, before tokenization (Reading.Processor). If so, prefer
// ExpandText; otherwise the token ids are worked on.
func (m *loaded) ReadsText() bool { return m.settings.reading.Processor }

// placeholderOf returns that of a modality, nil if there is none.
func placeholderOf(list []*placeholder, modality string) *placeholder {
	for _, r := range list {
		if r.modality == orImage(modality) {
			return r
		}
	}
	return nil
}

func orImage(modality string) string { return cmp.Or(modality, "image") }
