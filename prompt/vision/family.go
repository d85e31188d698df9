package vision

import (
	"fmt"
	"slices"
	"strings"
)

// family is one entry of the table: all checkpoints that share a processor. The entries are data; what data cannot express is a
// named Go function.
type family struct {
	name  string
	title string // the models' names for users

	// What identifies a directory of this family. Architectures are compared first, then model types, then the classes in the
	// processor's files (for directories without config.json).
	archs      []string
	types      []string
	processors []string
	when       func(*settings) bool // an additional condition, nil = none
	priority   int                  // among several matches the highest wins

	names map[string]tokenName // tokens that the layouts write as {key}

	image, video, audio *entry

	// outOfVocab: see Reading.
	outOfVocab bool
	// newlineMerge is Gemma's pass over the expanded ids (vLLM).
	newlineMerge bool
	// accepts checks a request's kwargs where vLLM is stricter than the rule.
	accepts func(*Expander, Kwargs) error
	// prepareIDs changes the prompt before vLLM searches for placeholders.
	prepareIDs func(*Expander, []uint32) []uint32
	// prepareText is what the Hugging Face processor does to the text before it puts the replacements in, finishText after.
	prepareText, finishText func(*Expander, string) string
	// viaPieces: when vLLM expands in the text, it encodes text and replacements one by one instead of all at once.
	viaPieces bool

	facts   Facts            // of all its model types
	factsOf map[string]Facts // except for these

	note string // what is known to be inexact, for docs/families.md
	// unbacked: testdata has no case; the rule was read in an engine's source.
	unbacked bool
}

// Facts are what engines do for a model type besides the tokens of its media.
type Facts struct {
	// PlaceholdersFirst: missing placeholders are put before a string content, not after it. PlaceholdersTouch: with nothing
	// between them and the text, instead of a new line (TensorRT-LLM 1.3, serve/chat_utils.py and inputs/utils.py).
	PlaceholdersFirst, PlaceholdersTouch bool
	// NamedFormat: chats are written in a named format instead of by the chat template (SGLang 0.5.23, parser/conversation.py).
	NamedFormat bool
	// ProcessorClass and WrapperClass are the Python classes that enter images' names, besides the bytes of their files; "" if
	// images are named by their pixels (SGLang 0.5.23).
	ProcessorClass, WrapperClass string
}

// tokenName says where a token's text comes from: an attribute of the tokenizer or processor files, else a fixed text. The id in
// config.json must agree, unless the engine ignores it.
type tokenName struct {
	attr string // key in processor_config.json and tokenizer_config.json
	text string // the usual string
	id   string // keys in config.json holding the id, separated by spaces
	// loose: the engine uses the tokenizer's id whatever config.json says.
	loose bool
}

// entry is one modality of a family.
type entry struct {
	// target is the placeholder in the prompt; {k} is the item's number from 1. "" means that the tokens are inserted after prefix.
	target   string
	targetHF string // if the Hugging Face processor uses another one
	prefix   string

	id      string               // the token at the embedding positions
	count   countRule            // nil: what the medium becomes is not computed, and the prompt is known up to it
	layout  layout               // what replaces target: all of it is in the span
	arrange func(*builder, grid) // instead of the layout's own order

	// put is what vLLM inserts into "string" content: target with what the chat template prints around it; {k} as above. "" means target,
	// "-" that nothing is inserted. What the processor writes around the tokens belongs in layout.
	put string
}

// countRule counts a medium's tokens before its settings are known. bind reads them; errors go to s.err.
type countRule interface{ bind(s *settings) counter }

// counter turns an image's size into a grid. items is the number of images in the request.
type counter func(width, height, items int) (grid, error)

// grid is the result of a count rule. Families without tiles use main only.
type grid struct {
	main       int // tokens of the main run: the image, its thumbnail or overview
	rows, cols int // of tiles; 0 = none
	tile       int // tokens of one tile
	mainCols   int // for arrange functions that break the main run into rows

	bare bool // omit the layout's begin
}

// table is the list of families that a directory is matched against.
type table []*family

// families returns the table, in the order of docs/families.md.
func families() table {
	var all table
	for _, part := range [][]family{qwenFamilies, gridFamilies, tileFamilies, llavaFamilies, otherFamilies} {
		for i := range part {
			all = append(all, &part[i])
		}
	}
	return all
}

// FactsOf returns the facts of a model type or, if a family is named, of that family's model of the type. An unknown type has none.
func FactsOf(modelType, family string) Facts { return families().facts(modelType, family) }

func (t table) facts(modelType, named string) Facts {
	for _, f := range t {
		if f.name == named || named == "" && slices.Contains(f.types, modelType) {
			if own, ok := f.factsOf[modelType]; ok {
				return own
			}
			return f.facts
		}
	}
	return Facts{}
}

// CheckFamily returns an error that lists the families if name is not one of them; "" is valid.
func CheckFamily(name string) error {
	_, err := families().named(name)
	return err
}

// named returns a family by its name, nil for "".
func (t table) named(name string) (*family, error) {
	if name == "" {
		return nil, nil
	}
	known := make([]string, len(t))
	for i, f := range t {
		if f.name == name {
			return f, nil
		}
		known[i] = f.name
	}
	return nil, fmt.Errorf("%q is not known (want one of %s)", name, strings.Join(known, ", "))
}

// match returns the family of a directory by what its files say, nil if there is none.
func (t table) match(s *settings) (f *family) {
	arch := list(s.config["architectures"])
	typ, _ := s.config["model_type"].(string)
	var classes []string
	for _, m := range []map[string]any{s.processor, s.image, s.tokenizer} {
		for _, key := range []string{"processor_class", "image_processor_type"} {
			if c, ok := m[key].(string); ok {
				classes = append(classes, strings.TrimSuffix(c, "Fast"))
			}
		}
	}
	if typ != "" {
		classes = nil // the config decides; an alias must be added to the table
	}
	for _, try := range []struct {
		have []string
		want func(*family) []string
	}{
		{arch, func(f *family) []string { return f.archs }},
		{[]string{typ}, func(f *family) []string { return f.types }},
		{classes, func(f *family) []string { return f.processors }},
	} {
		for _, have := range try.have {
			for _, c := range t {
				if have != "" && slices.Contains(try.want(c), have) && (c.when == nil || c.when(s)) &&
					(f == nil || c.priority > f.priority) {
					f = c
				}
			}
			if f != nil {
				return f
			}
		}
	}
	return nil
}

func list(v any) []string {
	var out []string
	l, _ := v.([]any)
	for _, e := range l {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
