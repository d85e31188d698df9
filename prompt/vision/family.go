package vision

import (
	"slices"
	"strings"
)

// family is one entry of the table: all checkpoints that share a processor. The entries are data; what they cannot say in data
// is a named Go function.
type family struct {
	name  string
	title string // models, for people

	// What a directory must say to be of this family. Architectures are compared first, then model types, then the classes in
	// the processor's files (for directories without config.json).
	archs      []string
	types      []string
	processors []string
	when       func(*settings) bool // further condition, nil = none
	priority   int                  // of several matches the highest wins

	names map[string]name // tokens that the layouts write as {key}

	image, video, audio *entry

	// outOfVocab: see Reading.
	outOfVocab bool
	// newlineMerge is Gemma's pass over the expanded ids (vLLM).
	newlineMerge bool
	// accepts checks a request's kwargs where vLLM is stricter than the rule.
	accepts func(*Model, Kwargs) error
	// prepareIDs changes the prompt before vLLM looks for placeholders.
	prepareIDs func(*Model, []uint32) []uint32
	// prepareText is what the Hugging Face processor does to the text before, finishText after it put the replacements in.
	prepareText, finishText func(*Model, string) string
	// viaPieces: vLLM encodes text and replacements one by one when it has to go through text, instead of all at once.
	viaPieces bool

	note string // what is known to be inexact, for docs/families.md
}

// name says how a token's string is found: an attribute of the tokenizer or processor files, else a fixed string. The id in
// config.json must agree, unless the engine ignores it.
type name struct {
	attr string // key in processor_config.json and tokenizer_config.json
	text string // the usual string
	id   string // keys in config.json holding the id, separated by spaces
	// loose: the engine takes the tokenizer's id whatever config.json says.
	loose bool
}

// entry is one modality of a family.
type entry struct {
	// target is the placeholder in the prompt; {k} is the item's number from 1. "" means that the tokens are inserted behind
	// prefix.
	target   string
	targetHF string // where the Hugging Face processor looks for another one
	prefix   string

	id       string // the token at the embedding positions
	count    kind
	layout   layout
	layoutHF *layout // where it differs
	arrange  func(*builder, grid)

	// put is what vLLM inserts into "string" content; {k} as above. "-" means that nothing is inserted.
	put string

	frames clipKind // counts a video's frames, instead of count
	loader string   // transformers' video processor for the type, where the directory names none

	undecidable string // why the tokens cannot be computed, if so
}

// Why video and audio cannot be counted from a request.
const (
	noFrames = "the engine's frame sampling is not in the request"
	noTimes  = "each frame carries its time, which needs the sampled frames"
	noLength = "the clip's length after resampling is not in the request"
)

// kind is a count rule before its settings are known. bind reads them; problems go to s.err.
type kind interface{ bind(s *settings) counter }

// counter turns a picture's size into a grid. items is the number of pictures in the request.
type counter func(width, height, items int) (grid, error)

// grid is what a count rule yields. Families without tiles use main only.
type grid struct {
	main       int // tokens of the main run: the picture, its thumbnail or overview
	rows, cols int // tiles, 0 = none
	tile       int // tokens of one tile
	mainCols   int // for layouts that break the main run into rows

	bare   bool  // without the layout's begin
	frames []int // of a video, as shown to the model
}

// families is the table, in the order of docs/families.md.
func families() []*family {
	var all []*family
	for _, part := range [][]family{qwenFamilies, gridFamilies, tileFamilies, llavaFamilies, otherFamilies} {
		for i := range part {
			all = append(all, &part[i])
		}
	}
	return all
}

// match finds the family of a directory, nil if there is none. By says what was matched.
func match(s *settings) (f *family, by string) {
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
	for _, try := range []struct {
		by   string
		have []string
		want func(*family) []string
	}{
		{"architecture", arch, func(f *family) []string { return f.archs }},
		{"model_type", []string{typ}, func(f *family) []string { return f.types }},
		{"processor class", classes, func(f *family) []string { return f.processors }},
	} {
		if try.by == "processor class" && typ != "" {
			break // the config's word counts; an alias must be added to the table
		}
		for _, have := range try.have {
			for _, c := range families() {
				if have != "" && slices.Contains(try.want(c), have) && (c.when == nil || c.when(s)) &&
					(f == nil || c.priority > f.priority) {
					f, by = c, try.by+" "+have
				}
			}
			if f != nil {
				return f, by
			}
		}
	}
	return nil, ""
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
