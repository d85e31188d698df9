// Package rules says what differs by engine and release, as plain facts: each engine's folder fills in Rules for a
// release, and package engine's RulesOf picks the folder. How requests are read is one of them, a prompt.Dialect.
package rules

import (
	"context"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/prompt"
)

// Rules are what holds of one release of an engine. The zero value is an engine of which nothing is known.
type Rules struct {
	Release   string // where the configuration names none; "": the configuration's own default
	BlockSize int    // likewise: tokens a KV block; 0: the configuration's own default
	VLLMKeys  bool   // its servers have the flags that the configuration has from vLLM alone, such as mm_hasher_algorithm

	// Requests.
	Dialect             prompt.Dialect // how they are read and written as prompts
	TakesSalt           bool           // a request's cache_salt keeps its blocks apart from all of another one, and events tell it
	TakesExtraKey       bool           // a request's extra_key sets caches apart; no event tells it
	TakesUUID           bool           // a content part may carry a uuid, which becomes the medium's name
	TakesSessionID      bool           // events name the session that a request carries as X-Session-ID
	NumbersRanksInBody  bool           // a data-parallel rank is asked for by the body's routed_dp_rank, not by a header
	MuteCached          bool           // an answer's 0 cached tokens may mean that the server was not told to count them
	RefusesLocal        bool           // a file:// URL without allowed_local_media_path is answered with 500
	TakesPaths          bool           // a picture's URL may be a bare path
	TakesEmbeddingFiles bool           // where a picture is taken, a file of its embeddings is too

	// NewKeys says how a class of workers names media and keys blocks.
	NewKeys      func(KeysOptions) (Keys, error)
	HasProcessor bool // names depend on the worker's image processor, which processor_fingerprint names

	// Events.
	EventsTellMedia   bool // blocks with different media or salts differ in events
	EventsTellSalt    bool // blocks with different cache salts do
	EventsTellAdapter bool // blocks of different LoRA adapters do
	CountsCopies      bool // each physical copy of a block is told, stored and removed; otherwise a block may be told again
	EventsOverHTTP    bool // events are drained over HTTP (POST /kv_cache_events)
	StoredEarly       bool // over ZeroMQ, stored blocks are told when the step that computes them begins, if one ran before
	TellsLoad         bool // NVIDIA's standalone example of this engine publishes its workers' load beside their events

	// Decoder reads events as they come over ZeroMQ.
	Decoder func(Decoding) Decoder
	// FindEvents asks a server at addr (host:port) where one of its ranks publishes, in endpoints that can be dialled on
	// host; nil: servers do not tell. One that publishes nothing is an ErrNoEvents.
	FindEvents func(ctx context.Context, client *http.Client, addr, host string, rank int) (EventSource, error)

	// What its servers tell when they are asked.
	Owner             string // what /v1/models calls owned_by
	CacheInfo         string // on the page of Load, a gauge whose labels are the KV cache's settings, block_size one of them
	TellsSettings     bool   // /v1/models gives --model as root, /version the release, /metrics the block size
	HasTokenize       bool   // POST /tokenize
	TokenizesChats    bool   // it takes messages too, not only text
	TokenizesPictures bool   // and expands pictures in them

	// Describe fills in what a server tells of itself beside /v1/models, /version and its page of Load, which is given.
	Describe func(ctx context.Context, client *http.Client, page []byte, f *Facts)

	Flags Flags

	// What they tell of themselves while they serve.
	Health string // the path that answers 2xx while the server can serve, and 503 while it cannot; "": none
	Load   Load
}

// Flags are the arguments by which a server is started so that it tells what is worth knowing, as people type them; "": it needs
// none, or has none.
type Flags struct {
	Events  string // KV events, with a replay socket where it has one
	Caching string // the prefix cache
	Counts  string // cached tokens in answers' usage
	Metrics string // requests running and waiting, on its page of metrics
	Blocks  string // blocks of more than one token
}

// Load says where a server tells its load: gauges on a page in Prometheus' text form.
type Load struct {
	Path             string   // "": it does not tell
	Running, Waiting string   // requests
	Usage            []string // share of the KV cache in use, 0 to 1: the name that it has now, then those that it had
	Rank             string   // the label with the number of a data-parallel rank; "": it has none
	Adapters         string   // whose labels name the LoRA adapters of requests that run and wait, and how many it holds at once; its value is when that was so
	Began            string   // when the server's process began, in Unix seconds; "": not told
	// Old is how long ago the gauges may have been set while the engine works. Stands are those that may stand still for
	// longer when it has nothing to do: unchanged, they are not believed after Old if they tell of requests.
	Old    time.Duration
	Stands bool
}

// Decoding is how events are read.
type Decoding struct {
	Keep       bool            // stored events carry tokens, media names and session ids, for audit and learning
	Standalone bool            // they are of a worker of NVIDIA's standalone router example
	Pad        func(id uint64) // if set, is told the pads in stored events (Keys.SawPad)
}

// Decoder reads one payload of events into their normal form (it is a stream.Decoder).
type Decoder interface {
	Decode(payload []byte) (kvevent.Batch, error)
}

// EventSource is what a server tells of one rank's events.
type EventSource struct {
	Pub, Replay, Topic string // ZeroMQ endpoints; Replay "": it has none
	BlockSize, Ranks   int    // of the server; 0: not told
}
