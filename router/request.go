package router

import (
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/report"
)

// Request is what the router needs of one HTTP request. Everything in it is hostile input.
type Request struct {
	// ID is our own id of the decision, ASCII and 64 bytes at most. It travels in a request header and returns in Envoy's access
	// log.
	ID string
	// Path is the request path without its query, such as /v1/chat/completions.
	Path string
	// Pool limits the choice to the workers of the model of this name; empty: the model that the body names.
	Pool string
	// MustPick: Envoy cannot pick by itself (the endpoint-picker protocol). An unsteered request then gets the worker
	// that a request with unknown content would get.
	MustPick bool
	// Only limits the choice to these addresses, each an ip:port, or an ip for all its ports. nil: no limit; empty: none allowed.
	Only []string
	// Stored is the id of the answer that a request without a prompt asks for (GET /v1/responses/ID); empty: none.
	Stored string
	// Source numbers the Envoy connection that the request came by; 0: not known.
	Source uint64
	// Session is the client's X-Session-ID, if any.
	Session string
	// FirstToken is the time within which the client wants its first token; 0: not given. It orders workers, and puts the request
	// back at the chosen one if it is long.
	FirstToken time.Duration
	// Client identifies the sender by what it cannot choose itself, such as its address; 0: not known.
	Client fair.Client
	// Tenant and Priority are taken from a trusted header, if Options.Fair is set; Priority also from the objectives of a pool.
	Tenant   string
	Priority int
	// UrgentExist: there are requests with a priority above 0, for which the last places are kept without Options.Fair too.
	UrgentExist bool
	// Salt, if not nil, replaces the body's cache_salt: ASCII letters and digits; "" for none.
	Salt *string
	// Body is the whole request body in pieces, in order. The router reads it during Decide and keeps no reference to it.
	Body [][]byte
}

// Reason says in one word what a decision was based on.
type Reason string

// The reasons, best first. Every decision is counted under exactly one of them.
const (
	Exact     Reason = "exact"     // a worker's own events say that it holds a prefix
	Learned   Reason = "learned"   // as exact, for blocks that no rule computes: earlier requests with the same beginning became these
	Predicted Reason = "predicted" // we routed the prefix there, its events do not confirm it yet
	Affinity  Reason = "affinity"  // the worker has seen this media; its encoder cache is warm
	Load      Reason = "load"      // no worker holds anything, or the request could not be read

	RefusedByUs Reason = "refused" // not routed: the client is answered at once
)

// Reasons are all of them, in this order.
func Reasons() []Reason { return []Reason{Exact, Learned, Predicted, Affinity, Load, RefusedByUs} }

// Target is an address that may take the request.
type Target struct {
	Worker string // the configured name, for people and metrics
	Addr   string // ip:port that Envoy dials
	Rank   int    // data-parallel rank; -1: the worker has no ranks
	// Instance is the id by which the front end at Addr picks the worker (NVIDIA Dynamo); "": Addr is the worker's own. All
	// targets of a decision have the same one, since a request can name only one.
	Instance string
	// Prefill and PrefillRank name the worker that prefills, if that is not Worker, which then decodes and requests the prefill.
	// With an Instance, Prefill is an instance id too; else it is an ip:port (llm-d's sidecar at Addr).
	Prefill     string
	PrefillRank int
	Due         Due // when the request is due there; zero: the worker is told nothing
}

// Decision is the router's answer. Targets is empty only if no worker is known or the request is not steered (then Envoy's
// fallback takes it), or if Refuse is set.
type Decision struct {
	ID              string
	Arm             report.Arm // steered or unsteered; "": neither
	UnsteeredChoice Target     // the choice for an unsteered request; what is said below of Targets[0] is then about it
	Model           string     // the pool's model name, never client text
	Targets         []Target   // ranked, best first, at most three
	Reason          Reason
	// Why names what kept the decision from a better Reason, such as "model unknown"; for Exact only what keeps it from being
	// certain. It never holds client text.
	Why string
	// Asked is the model name of a request whose model is unknown: the client's words, cleaned and cut by sanitizeName, for people only.
	// It must not become a metric label.
	Asked         string
	Engine        string // the chosen worker's: vllm, sglang or trtllm; "": no worker is chosen
	BodyBytes     int    // of the body, all messages together
	PromptTokens  int    // 0: not known
	CachedTokens  int    // predicted to be cached on Targets[0]
	MatchedBlocks int
	// OffloadedTokens is the part of CachedTokens that Targets[0] has to fetch from a lower tier.
	OffloadedTokens int
	// HeldTokens is the most of the prompt that any worker which may get the request is known to hold. If it exceeds
	// CachedTokens, Regret says in a word why that worker was not chosen.
	HeldTokens int
	Regret     string
	// Begins is a hash of the first 16 tokens of a prompt of which no worker held anything: equal values began alike. It holds
	// until the next start. 0: the prompt is shorter or was not read.
	Begins uint32
	// Partial: the index does not know everything that Targets[0] holds, or its engine also finds parts of blocks, so CachedTokens is a
	// lower bound.
	Partial bool
	// UpperBound: a hit at Targets[0] needs more than its events say, or the engine may read no cache, so CachedTokens is an upper bound.
	UpperBound bool
	// Encoder, if not empty, lists the encode workers as ip:port,ip:port: one for each image of the request, in order, or a
	// single one for all. Source, if not empty, is the ip:port of a worker whose KV blocks of the prompt the prefilling worker
	// should fetch.
	Encoder, Source string
	// Said, if not nil, is to read the response's body, where that passes by.
	Said *learned.Said
	// Session, if not empty, is to become the request's X-Session-ID.
	Session string
	Order   *Order // when it is due; nil: its worker is told nothing
	Refuse  *Refusal
	Edits   []Edit
}

// Refusal answers the client at once instead of routing.
type Refusal struct {
	Status  int    // HTTP status
	Message string // for the JSON error body; never holds client text
}

// Edit replaces a range of body bytes. The edits of a Decision are sorted and do not overlap.
type Edit = body.Edit

// Phase says how far Envoy has come with a request.
type Phase uint8

// Started: an upstream connection is ready and the request goes to Outcome.Addr. Ended: the request is over. Failed: an attempt
// at Outcome.Addr failed or broke off, as Outcome.Fault says; other attempts may follow. Done: the worker at Outcome.Addr has
// given its whole answer with Outcome.Code, of which the client may not have read all. Lost: Envoy's connection Source, or a
// log stream over it, has ended, so the requests that it reported may never be reported as ended. Gone: Envoy has ended the
// request's own stream right after the answer; if the client left before Envoy read the answer, it never reports on the request.
const (
	Started Phase = iota
	Ended
	Failed
	Lost
	Gone
	Done
)

// Outcome is what Envoy's access log says about one request that we decided.
type Outcome struct {
	ID    string // the decision's id
	Phase Phase
	Addr  string // ip:port really dialled; empty if none was
	Code  int    // HTTP status, Ended and Done only; 0: none sent
	// Answered: Code is the worker's own, not one that Envoy generated.
	Answered bool
	Denied   bool // Envoy lets no request through to the worker's address
	// Cut: the answer began and did not reach its end, since the client left or a connection broke. The worker may have computed nothing.
	Cut bool
	// Retried: Envoy tried more than one worker, since others failed; Ended only.
	Retried bool
	// Fault is why an attempt Failed: connect, reset, protocol or timeout. Of an Ended request it has Envoy's response flags, such as UT.
	Fault string
	// Source is the access log connection that reported this (with Lost: the one that has ended, or a log stream over it); 0: the
	// request's own ext_proc stream.
	Source uint64
	// Answer is the id of an answer of /v1/responses, which the worker at Addr may keep; Started only, mostly empty.
	Answer string
	// FirstByte is the time from the request's arrival to the first upstream byte; 0: none came.
	FirstByte time.Duration
	// CachedTokens is the engine's own count if Envoy reports it (ai_protocol_manager, 1.40), else -1.
	CachedTokens int
	// PromptTokens is the engine's own count, like CachedTokens.
	PromptTokens int
	OutputTokens int // likewise; 0 if not reported
}
