package router

import (
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/router/report"
)

// Request is what the router needs to know of one HTTP request. Everything in it is hostile input.
type Request struct {
	// ID is our own id of the decision, ASCII and 64 bytes at most; it travels in a request header and comes back in Envoy's access log.
	ID string
	// Path is the request path without its query, such as /v1/chat/completions.
	Path string
	// Pool limits the choice to the workers of the model of this name; empty: by the model that the body names.
	Pool string
	// MustPick: Envoy cannot pick by itself (the endpoint-picker protocol). A request that is left alone gets the worker that one
	// gets of which nothing is known.
	MustPick bool
	// Only limits the choice to these addresses, each an ip:port or an ip for all its ports. nil: no limit; empty: none.
	Only []string
	// Stored is the id of the answer that a request without a prompt is about (GET /v1/responses/ID); empty: none.
	Stored string
	// Source numbers Envoy's connection that asks; 0: not known.
	Source uint64
	// Session is the client's X-Session-ID, if any.
	Session string
	// FirstToken is within which time the client wants its first token; 0: it did not say. It orders workers, no more.
	FirstToken time.Duration
	// Tenant is whose the request is and Priority how urgent, as a trusted header says, with Options.Fair.
	Tenant   string
	Priority int
	// Salt, if not nil, takes the place of the body's cache_salt, whatever that is: ASCII letters and digits; "" for none.
	Salt *string
	// Body is the whole request body in pieces, in order. The router reads it during Decide and keeps nothing of it.
	Body [][]byte
	// Arrived is when the body was complete here; budgets count from it.
	Arrived time.Time
}

// Reason is the ladder step that a decision was taken on, in one word.
type Reason string

// The ladder, best step first. Every decision is counted under exactly one of them.
const (
	Exact     Reason = "exact"     // a worker's own events say that it holds a prefix
	Predicted Reason = "predicted" // we routed the prefix there, its events have not told yet
	Affinity  Reason = "affinity"  // the worker has seen this media; its encoder cache is warm
	Load      Reason = "load"      // nobody holds anything, or the request could not be read

	RefusedByUs Reason = "refused" // no step: the client is answered at once
)

// Target is one place that may take the request.
type Target struct {
	Worker string // the configured name, for people and metrics
	Addr   string // ip:port, what Envoy dials
	Rank   int    // data-parallel rank; -1: the worker has no ranks
	// Instance is what the front end at Addr picks the worker by (NVIDIA Dynamo); "": Addr is the worker's own. Then all
	// targets of a decision have the same: a request can name one.
	Instance string
	// Prefill and PrefillRank name who prefills, where that is another worker, which Worker then is: the place that decodes asks it.
	// With an Instance it is named in the same way; else by its ip:port (llm-d's sidecar at Addr).
	Prefill     string
	PrefillRank int
}

// Decision is the router's answer. Targets is empty only if no worker is known or the request is left alone (Envoy's fallback
// then takes the request) or Refuse is set.
type Decision struct {
	ID      string
	Arm     report.Arm // steered or left alone; "" for neither
	WouldBe Target     // of a request that is left alone: the choice. What is said of Targets[0] below is said of it
	Model   string     // the pool's model name, never client text
	Targets []Target   // ranked, best first, at most three
	Reason  Reason
	// Why names what kept the decision from the step above, such as "model unknown"; for Exact only what keeps it from being
	// certain. Never holds client text.
	Why string
	// Asked is the model that a request names where none of that name is known: the client's words, cleaned and cut by
	// shown, for people alone. It is no label of a metric.
	Asked         string
	PromptTokens  int // 0: not known
	CachedTokens  int // predicted to be cached on Targets[0]
	MatchedBlocks int
	// OffloadedTokens of CachedTokens have to be fetched from a lower tier of Targets[0].
	OffloadedTokens int
	// HeldTokens is the most that any worker which may get the request is known to hold of the prompt. Where it is more than
	// CachedTokens, Regret says in a word why that worker was not chosen.
	HeldTokens int
	Regret     string
	// Begins is a number for the first 16 tokens of a prompt of which nothing was held: equal numbers began alike, until the next
	// start. 0: it is shorter, or was not read.
	Begins uint32
	// Partial: the index does not know all that Targets[0] holds. CachedTokens is a lower bound.
	Partial bool
	// Recurrent: Targets[0] needs states of layers beside the KV blocks for a hit. CachedTokens is an upper bound.
	Recurrent bool
	// Encoder and Source, if not empty, are the ip:port,ip:port of who encodes the request's first picture, its second one and so on, or
	// all of them, and the ip:port of who has KV blocks of it that the worker which prefills it should fetch.
	Encoder, Source string
	// Session, if not empty, is to be the request's X-Session-ID.
	Session string
	Refuse  *Refusal
	Edits   []Edit

	source        uint64  // the request's
	regretSeconds float64 // that Targets[0] takes to prefill what Regret costs; 0: its rate has not shown yet
}

// Refusal answers the client at once instead of routing.
type Refusal struct {
	Status  int    // HTTP status
	Message string // goes into the JSON error body; never holds client text
}

// Edit replaces a range of body bytes. Those of a Decision are sorted and do not overlap.
type Edit = body.Edit

// Phase tells how far Envoy has come with a request.
type Phase uint8

// Started: an upstream connection is ready and the request goes to Outcome.Addr. Ended: the request is over. Failed: an
// attempt at Outcome.Addr came to nothing or broke off, as Outcome.Fault says; others may follow. Lost: Envoy's
// connection Source has ended, or a log stream over it, so what it spoke of may never be told to the end.
const (
	Started Phase = iota
	Ended
	Failed
	Lost
)

// Outcome is what Envoy's access log says of one request that we decided.
type Outcome struct {
	ID    string // the decision's id
	Phase Phase
	Addr  string // ip:port really dialled; empty if none was
	Code  int    // HTTP status, Ended only; 0: none sent
	// Answered: Code is the worker's own, not one that Envoy made up.
	Answered bool
	// Fault is what Failed is about: connect, reset, protocol or timeout.
	Fault string
	// Source is the connection of Envoy's access log that tells this (with Lost: that has ended, or a log stream over it); 0:
	// the request's own ext_proc stream.
	Source uint64
	// Answer is the id of an answer of /v1/responses, which the worker at Addr may keep; Started only, mostly empty.
	Answer string
	// FirstByte is the time from the request's arrival to the upstream's first byte; 0: none came.
	FirstByte time.Duration
	// CachedTokens is the engine's own count where Envoy reports it (ai_protocol_manager, 1.40), else -1.
	CachedTokens int
	// PromptTokens likewise.
	PromptTokens int
	OutputTokens int // likewise, 0 where it is not told
}
