// Package vision decides what an image becomes in the prompt: how many placeholder tokens, which ids, in which layout, and where.
// A Model is made once from a model directory; an expansion is one pass over the prompt, allocations by request and picture.
// Errors: what a rule needs and the directory lacks at Load; then a *RefusedError (the engine's) or an *UndecidableError.
//
// It is the only place that knows these rules, for every vision-language family and every way in which engines read (Reading).
// Nothing is fetched and no image is decoded: [Load] reads the JSON files beside the weights. One entry of the table
// (families_*.go) describes one family: which files name it, the placeholder that the chat template prints, the rule that turns
// a picture's size into a count, and the layout of the tokens around it. A new checkpoint of a known family works from its
// directory alone. A wrong count would make every block behind the picture miss, silently: so nothing is guessed.
//
// Sources of the rules: vLLM 0.32.0, transformers 5.19 and 5.23, mistral-common 1.13.
package vision

import (
	"cmp"
	"sync"
)

// Tokens is what this package needs from the model's tokenizer.
type Tokens interface {
	// ID gives the id of one vocabulary entry or added token, written as the vocabulary writes it.
	ID(token string) (uint32, bool)
	// EncodeText appends the ids of text; added tokens in the text become their ids, no BOS or EOS is added.
	EncodeText(dst []uint32, text string) []uint32
	// DecodeText is the engine's decode with special tokens kept.
	DecodeText(ids []uint32) string
}

// Reading is how an engine puts media into a prompt. The zero value replaces placeholders among the token ids, with vLLM's own
// rules where they differ from the Hugging Face processor's.
type Reading struct {
	// Processor: the Hugging Face processor replaces placeholders in the text, before it is tokenised (SGLang, TensorRT-LLM).
	Processor bool
	// Always: the processor also reads prompts without media (transformers by itself; the engines do not ask it then).
	Always bool
	// OutOfVocab: vocab_size + 1 stands at the embedding positions, in the families that say so (TensorRT-LLM).
	OutOfVocab bool
}

// Options say how the server was started, as far as the tokens of media depend on it.
type Options struct {
	Reading Reading
	// Family names the family of a directory whose files do not, such as a fine-tune of a model type of its own; "": found out.
	Family string
	// ProcessorKwargs mirrors the server's --mm-processor-kwargs. A request's kwargs override it key by key.
	ProcessorKwargs Kwargs
	// MistralFormat is vLLM's --tokenizer-mode mistral: params.json rules and mistral-common's rounding count, config.json is
	// ignored. A directory with params.json and without config.json is read like this anyway.
	MistralFormat bool
}

// Media is one picture, video or audio clip of a request.
type Media struct {
	Modality string // "image", "video" or "audio"; "" means image
	// Width and Height in pixels, as the engine sees them: swapped for EXIF orientations 5 to 8 where it turns pictures first
	// (vLLM does, SGLang and TensorRT-LLM do not).
	Width, Height int
	Turned        bool // EXIF swapped the two

	Tokens int   // of embeddings that take a picture's place: their number
	Clip   *Clip // of a video, see Model.Sample; nil where its frames are not known
}

// Span is where one medium's replacement lies in the expanded prompt. The whole replacement counts (wrapper, separator and
// newline tokens too): it is the range that the engine keys with the medium's identity.
type Span struct {
	Index  int // which entry of the media slice
	Offset int // first token
	// Length in tokens. Gemma 3 merges a newline token of the replacement with its neighbour; as in vLLM the length stays that
	// of the unmerged replacement and two spans may share a token.
	Length int
}

// MaxTokens bounds the tokens of one picture. No served model comes near it; settings or sizes that ask for more are refused
// instead of allocated.
const MaxTokens = 1 << 20

// Model is the placeholder rule of one model directory for one way of reading. It is immutable after Load and safe for concurrent use.
type Model struct {
	fam      *family
	settings *settings
	tok      Tokens
	warnings []string
	rules    []*rule // one per modality that the family knows
	names    map[string]string

	outOfVocab uint32 // id at the embedding positions, see Reading; 0: the rule's own
	newlines   [4]uint32

	literals *literals
	most     int // tokens of a prompt's media
}

// literals are the tokenised texts of the layouts, see builder.flush.
type literals struct {
	tok Tokens
	sync.RWMutex
	ids map[string][]uint32
}

// With is the model for one prompt: with another view of its tokenizer for the prompt's own texts, one that stops when a
// request's time is over, say; and with media that give no more than most tokens in all. Beyond that Expand and ExpandText
// fail before they write them.
func (m *Model) With(tok Tokens, most int) *Model {
	own := *m
	own.tok, own.most = tok, most
	return &own
}

// Family is the family's name in docs/families.md, or "" for a text model.
func (m *Model) Family() string {
	if m.fam == nil {
		return ""
	}
	return m.fam.name
}

// Multimodal reports whether the model takes media at all.
func (m *Model) Multimodal() bool { return m.fam != nil }

// Warnings are oddities of the directory that do not change a count, such as a config id that the tokenizer contradicts and the
// engine ignores.
func (m *Model) Warnings() []string { return m.warnings }

// Count gives the tokens of one medium: embed is the number of embedding positions, total the length of the whole replacement.
// The error is a *RefusedError where the engine refuses the medium and an *UndecidableError where the count cannot be known.
// Families whose count depends on the other pictures of a request are counted as if this was the only one.
func (m *Model) Count(media Media, kw Kwargs) (embed, total int, err error) {
	b, err := m.builder(kw, 1)
	if err != nil {
		return 0, 0, err
	}
	if err := b.item(media, 0); err != nil {
		return 0, 0, err
	}
	for _, id := range b.out {
		if b.rule.hasID && id == b.rule.id {
			embed++
		}
	}
	return embed, len(b.out), nil
}

// EmbedID is the id that stands at the embedding positions of a modality in the engine's token stream, after Expand. For SGLang
// it is the id before the engine overwrites it with an image-dependent one, see OpaqueEmbeds.
func (m *Model) EmbedID(modality string) (uint32, bool) {
	r := m.rule(modality)
	if r == nil || !r.hasID {
		return 0, false
	}
	if m.outOfVocab != 0 {
		return m.outOfVocab, true
	}
	return r.id, true
}

// ReadsText reports that placeholders are replaced in the text, before it is tokenised (Reading.Processor): prefer ExpandText
// there. Otherwise the token ids are worked on.
func (m *Model) ReadsText() bool { return m.settings.reading.Processor }

func (m *Model) rule(modality string) *rule {
	for _, r := range m.rules {
		if r.modality == orImage(modality) {
			return r
		}
	}
	return nil
}

func orImage(modality string) string { return cmp.Or(modality, "image") }
