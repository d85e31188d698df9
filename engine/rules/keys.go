package rules

import (
	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/pixels"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt"
)

// Keys says how one class of workers names media and keys blocks. The zero value names nothing and keys blocks by mmhash/block's
// own rule. Any function may be nil; all are safe for concurrent use.
type Keys struct {
	// Name computes the name by which events call a medium, and fills in its results.
	Name func(m *Naming)
	// Ahead returns the recipes of the names of an image that was fetched for a client. The names of all classes are then computed in
	// one pass, before a request needs them.
	Ahead func(c fair.Client, f media.Facts, file []byte) []enginehash.Recipe
	// InEvents returns the part of a name that every form of the engine's events has; nil: all of it.
	InEvents func(name string) string
	// Locals appends the local hashes of a prompt's blocks to dst.
	Locals func(dst []uint64, p *Hashable) []uint64
	// Salt returns the cache salt in effect for a request, where ours is the one read from its body; nil: ours.
	Salt func(ours string, req *body.Request) string
	// UUID formats a content id as the uuid to put into requests; nil: the id itself.
	UUID func(id mmhash.ContentID) string
	// SawPad takes a pad value from an event of a worker. Pads reveal the fingerprint of the workers' image processor.
	SawPad func(worker string, pad uint64)
}

// KeysOptions are what Keys depend on besides the release.
type KeysOptions struct {
	Model       string // the engine's --model
	Revision    string // --revision; "": none
	Hasher      string // mm_hasher_algorithm
	MediaIO     string // media_io_kwargs, as JSON; "": none
	Fingerprint string // of the workers' image processor; "": unknown

	ModelType     string   // config.json's model_type
	Architectures []string // config.json's architectures
	Class         string   // Python class of the engine's processor, "" if names do not follow from the file, and
	Wrapper       string   // of the model's (vision.Facts)

	Store  *mmhash.Store // cache of computed names
	Pixels *pixels.Names // names that require decoding
	// Found is called with a fingerprint that events have revealed. It must return at once.
	Found func(fingerprint string)
}

// Naming is a medium to be named: inputs first, results below.
type Naming struct {
	enginehash.Item
	Client fair.Client // who sent it
	ID     mmhash.ContentID
	Pixels int64
	Source media.Source // its bytes; may be empty, and then only a cached name can be found
	In     *prompt.MediaPart
	Body   *body.Skeleton // the body that In belongs to
	Scheme string         // of its URL: data, http, file, or ""
	Edited bool           // the worker gets it under a URL of ours
	Inline bool           // names that require decoding are computed at once, not in the background

	// Results.
	Name  string
	Named bool
	Later bool   // the name is being computed in the background
	Key   uint64 // as it enters block hashes; 0: block.Key.Name of Name
}

// Hashable is a prompt as Keys.Locals hashes it.
type Hashable struct {
	IDs       []uint32 // those that can be hashed
	Media     []Span
	BlockSize int
	Adapter   string // a LoRA adapter's name as in requests, or ""
	Salt      string
	Pairs     bool // blocks are keyed by pairs of tokens (EAGLE)
	Key       *block.Key
}

// Span is the place of a medium in a prompt: Length tokens from Offset.
type Span struct {
	Offset, Length int
	Key            uint64
	Name           string
}
