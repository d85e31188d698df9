// Package rules holds what differs by engine and release, as plain facts. Each engine's package fills in Rules for a release, and
// engine.RulesOf picks the package. How requests are read is one of these rules, a prompt.Dialect.
package rules

import (
	"context"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
)

// Rules describe one release of an engine. The zero value is an engine of which nothing is known.
type Rules struct {
	Release   string // default if the configuration names none; "": the configuration's own default
	BlockSize int    // likewise, tokens per KV block; 0: the configuration's own default
	Adapters  int    // LoRA adapters that a worker has loaded at once, for an engine that does not report it; 0: one
	VLLMKeys  bool   // its servers have the flags that are otherwise vLLM's alone, such as mm_hasher_algorithm

	Oldest Version // the first release whose requests are read by rule
	// TooOld says that the release is older, and what to do; "": it is not. All its requests are learned, and its events are taken to
	// tell neither media, salts nor adapters.
	TooOld string

	// Uncompared means that how this release reads requests was compared neither with its own code (make contract) nor with a running
	// server: what is read of them is predicted, never exact.
	Uncompared bool

	// Requests.
	Dialect             prompt.Dialect // how requests are read and rendered
	TakesSalt           bool           // a request's cache_salt separates its blocks from all others, and events carry it
	TakesExtraKey       bool           // a request's extra_key separates caches; no event carries it
	TakesUUID           bool           // a content part may carry a uuid, which becomes the medium's name
	TakesSessionID      bool           // events carry the session id that a request sends as X-Session-ID
	NumbersRanksInBody  bool           // the body's routed_dp_rank selects a data-parallel rank, not a header
	ZeroCachedAmbiguous bool           // 0 cached tokens in a response may mean that the server was not told to count them
	RefusesLocal        bool           // a file:// URL without allowed_local_media_path is answered with 500
	TakesPaths          bool           // an image's URL may be a bare path
	TakesEmbeddingFiles bool           // a file of embeddings is accepted in place of an image

	// NewKeys returns how a class of workers names media and keys blocks.
	NewKeys      func(KeysOptions) (Keys, error)
	HasProcessor bool // names depend on the worker's image processor (processor_fingerprint)

	// Events.
	EventsIncludeMedia   bool // blocks with different media or salts differ in events
	EventsIncludeAdapter bool // likewise for LoRA adapters
	EventsOfOneCache     bool // of a model's several KV caches, events are of the one that sees all tokens
	// KV cache groups of one model may have blocks of different sizes; events have those of the one that sees all tokens
	BlocksByGroup  bool
	CountsCopies   bool // events report each physical copy of a block; otherwise one block may be reported more than once
	EventsOverHTTP bool // events are drained over HTTP (POST /kv_cache_events)
	StoredEarly    bool // over ZeroMQ, a stored block is reported when the step that computes it begins, if another step ran before
	AnswersAtEnd   bool // an answer's blocks are stored when it ends, with one event, not as they fill
	PublishesLoad  bool // NVIDIA's standalone example of this engine publishes its workers' load beside their events

	// Decoder returns a decoder of events as they come over ZeroMQ.
	Decoder func(Decoding) kvevent.Decoder
	// FindEvents asks a server at addr (host:port) where its ranks publish, and returns what can be dialled on host, rank by rank, of ranks
	// ranks if the server does not say how many it has; nil: servers do not tell. One that publishes nothing is an ErrNoEvents.
	FindEvents func(ctx context.Context, client *http.Client, addr, host string, ranks int) ([]EventSource, error)

	// What servers report when they are asked.
	Owner           string // owned_by in /v1/models
	ReportsSettings bool   // /v1/models gives --model as root, /version the release, /metrics the block size
	HasTokenize     bool   // it has POST /tokenize
	TokenizesChats  bool   // which takes messages too, not only text
	TokenizesImages bool   // and expands images in them

	// Describe fills in what a server reports besides /v1/models, /version and its page of Load, which is passed in.
	Describe func(ctx context.Context, client *http.Client, page []byte, f *Facts)

	Flags Flags

	// What servers report while they serve.
	Health string // the path that answers 2xx while the server can serve and 503 while it cannot; "": none
	Load   Load
	Order  Order
}

// Flags are the command-line arguments that make a server report what the router needs, as users type them; "": none is needed, or
// there is none.
type Flags struct {
	Events  string // KV events, with a replay socket if the engine has one
	Counts  string // cached tokens in the usage of responses
	Metrics string // running and waiting requests on its metrics page
	Blocks  string // blocks of more than one token
	Order   string // waiting requests are served by Order.Header
}

// Load says where a server reports its load: gauges on a page in Prometheus' text form.
type Load struct {
	Path             string // "": it does not report load
	Running, Waiting string // requests
	Usage            string // share of the KV cache in use, 0 to 1
	Rank             string // the label that holds the data-parallel rank; "": none
	// the gauge that is the size of its KV cache in tokens, or whose labels block_size and CacheBlocks are; "": not reported
	Cache, CacheBlocks string
	// the gauge whose labels name the LoRA adapters of running and waiting requests and the most it holds at once; its value is a timestamp
	Adapters  string
	StartTime string // the start time of the server's process in Unix seconds; "": not reported
	// counters of media that were looked up in its cache of processed media, and of those found; "": not reported
	MediaQueries, MediaHits string
	// MaxAge is the age that the gauges may have while the engine works. KeepsLastValue means that they may stay unchanged for longer when it
	// is idle: gauges that report requests and do not change are not believed after MaxAge.
	MaxAge         time.Duration
	KeepsLastValue bool
}

// Decoding holds the options of a Decoder.
type Decoding struct {
	KeepTokens bool            // stored events carry tokens and media names, for the audit
	Standalone bool            // events come from a worker of NVIDIA's standalone router example
	Pad        func(id uint64) // if set, called with the pads in stored events (Keys.SawPad)
	Secret     *block.Secret   // keys the blocks' hashes
}

// EventSource is where one rank of a server publishes its events.
type EventSource struct {
	Pub, Replay string // ZeroMQ endpoints; Replay is "" if there is none
}
