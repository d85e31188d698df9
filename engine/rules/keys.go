package rules

import (
	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/mmhash/pixels"
	"github.com/sightline-router/sightline/prompt"
)

// Keys is how one class of workers names media and keys blocks. The zero value names nothing and keys blocks by
// mmhash/block's own rule. A function that is nil is not had; all are safe for concurrent use.
type Keys struct {
	// Name finds out by which name events call a medium, and fills in what it has found.
	Name func(m *Medium)
	// Ahead is shown each picture that was fetched, and gives the recipes of its names, which are computed in one pass for
	// all classes, before a request asks.
	Ahead func(f mmhash.Facts, file []byte) []name.Recipe
	// Learns says which names are learned from events.
	Learns Learning
	// VideoOptions are the loader's options in force for a request's videos, by its media_io_kwargs; false where one is no
	// number. nil: which frames are taken is not known.
	VideoOptions func(request name.Fields) (options map[string]float64, ok bool)
	// Locals appends the local hashes of a prompt's blocks.
	Locals func(dst []uint64, p *Prompt) []uint64
	// Salt is the cache salt that counts for a request whose body has ours; nil: that one.
	Salt func(ours string, req *body.Request) string
	// UUID is a content id as a uuid that is put into requests; nil: the id itself.
	UUID func(id mmhash.ContentID) string
	// SawPad takes a pad of an event, from which the fingerprint of the workers' image processor is found out.
	SawPad func(pad uint64)
}

// Learning says which names are taken from events: see engine.Model.Learn.
type Learning uint8

// Names that are not computed are learned where events tell them as they enter block hashes. Where it is not known for sure
// by which rule a release names media, a learned name goes before a computed one.
const (
	LearnsNone Learning = iota
	LearnsMissing
	LearnsAll
)

// KeysOptions are what Keys depend on beside the release.
type KeysOptions struct {
	Model       string // the engine's --model
	Revision    string // --revision; "": none
	Hasher      string // mm_hasher_algorithm
	MediaIO     string // media_io_kwargs, as JSON; "": none
	Fingerprint string // of the workers' image processor; "": not known

	ModelType     string   // config.json's model_type
	Architectures []string // config.json's architectures
	Class         string   // Python class of the engine's processor, "" where names do not follow from the file, and
	Wrapper       string   // of the model's (vision.Facts)

	Store  *mmhash.Store // names that were computed
	Pixels *pixels.Names // those that take decoding
	// Found is told a fingerprint that events have shown. It must return at once.
	Found func(fingerprint string)
}

// Medium is a medium to be named.
type Medium struct {
	name.Item
	ID     mmhash.ContentID
	Source mmhash.Source // its bytes; may have none, for a name that is remembered
	In     *prompt.Medium
	Body   *body.Skeleton // that In is of
	Scheme string         // of its URL: data, http, file, or ""
	Edited bool           // the worker gets it by a URL of ours
	Inline bool           // names that take decoding are computed now

	// What is found out.
	Name  string
	Named bool
	Later bool   // the name is being computed beside the requests
	Key   uint64 // that enters block hashes; 0: block.NameHash of Name
}

// Prompt is what local hashes are made of.
type Prompt struct {
	IDs       []uint32 // as many as can be hashed
	Media     []Span
	BlockSize int
	Adapter   string // a LoRA adapter's name as requests have it, or ""
	Salt      string
	Pairs     bool // blocks are keyed by pairs of tokens (EAGLE)
}

// Span is a medium in a prompt: Length tokens from Offset on.
type Span struct {
	Offset, Length int
	Key            uint64
	Name           string
}
