package findings

import (
	"fmt"
	"time"

	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Worker is one worker's row.
type Worker struct {
	Name        string      `json:"name"`
	Addr        string      `json:"addr"`
	Model       string      `json:"model"`
	Class       string      `json:"class,omitempty"`
	Engine      string      `json:"-"`
	Release     string      `json:"release,omitempty"` // the engine and its release, such as vllm 0.32.0, as it tells; "": it has not
	Rank        int         `json:"rank"`              // -1: none
	Blocks      int         `json:"blocks_held"`
	CacheTokens int         `json:"cache_tokens,omitempty"` // that its KV cache has room for, as it says; 0: it does not
	Partial     bool        `json:"partial"`                // some of its blocks are not known here
	UpperBound  string      `json:"upper_bound,omitempty"`  // why a hit may find less than the blocks that it holds; "": it will not
	LowerBound  string      `json:"lower_bound,omitempty"`  // why a hit may find more, though nothing was lost; "": it will not
	Inflight    int         `json:"in_flight"`
	Backlog     float64     `json:"backlog_tokens"`
	Report      *LoadReport `json:"told,omitempty"`        // nil: no current load report
	Health      *fleet.Out  `json:"health,omitempty"`      // why it gets only trial requests; nil: it is healthy
	Events      string      `json:"events"`                // live, unreadable, catching up, waiting, not ready, none
	EventsError Failure     `json:"events_error,omitzero"` // the last error, while they are not live
	Batches     uint64      `json:"event_batches"`
	LastEvent   string      `json:"last_event,omitempty"`
	EventAt     time.Time   `json:"-"`                                   // of the last event
	BehindAt    time.Time   `json:"-"`                                   // when its events were last seen not to be live
	EventAge    float64     `json:"event_age_seconds,omitempty"`         // how long its events have been late
	Rate        float64     `json:"prefill_tokens_per_second,omitempty"` // as observed; 0: none yet
	Slow        fleet.Slow  `json:"slow,omitzero"`                       // than others of its class
	Orphans     int         `json:"orphan_blocks,omitempty"`             // reported blocks whose parent is unknown: they do not count
	Doubtful    int         `json:"doubtful_blocks,omitempty"`           // reported before messages were lost, and not since
	Unfilled    uint64      `json:"gaps_unfilled,omitempty"`             // times that messages were lost and could not be replayed
	Unresolved  uint64      `json:"unresolved_blocks,omitempty"`         // offloaded blocks reported without their tokens
	Garbled     uint64      `json:"events_unreadable,omitempty"`         // messages that could not be read
	UnknownKey  string      `json:"unknown_key,omitempty"`               // the first unknown key in its events, quoted
	UnknownKeys uint64      `json:"unknown_keys,omitempty"`              // events with one
	SameEvents  string      `json:"same_events_as,omitempty"`            // another worker under whose name the same events arrive
	// Service is cordoned or draining; nil: it is in service. Removal is what would be lost with the worker; nil: not known.
	Service      *fleet.Service    `json:"service,omitempty"`
	ServiceSince time.Time         `json:"service_since,omitzero"`
	Removal      *forecast.Removal `json:"removal,omitempty"`

	Role      string `json:"role,omitempty"`             // prefill, decode, encode; none: all
	Serves    string `json:"serves,omitempty"`           // in which order it serves waiting requests, as it says, else as observed
	Unordered bool   `json:"-"`                          // requests due sooner were seen to wait for earlier ones
	BlockSize int    `json:"block_size,omitempty"`       // tokens in a block, by its events
	OtherSize int    `json:"other_block_size,omitempty"` // the same, if block_size is configured otherwise
	// RulesAside are the rules for reading prompts that have stepped aside for it, since events contradict them.
	RulesAside []audit.Aside `json:"rules_aside,omitempty"`
}

// Failure is what went wrong, in words, and its cause if that is known. JSON has the words alone.
type Failure struct {
	Text  string
	Cause error
}

func (f Failure) MarshalText() ([]byte, error) { return []byte(f.Text), nil }

func (f *Failure) UnmarshalText(text []byte) error {
	f.Text = string(text)
	return nil
}

// LoadReport is what a worker's own load report adds.
type LoadReport struct {
	Others int      `json:"others_in_flight"`         // of its requests in flight, those that were not decided here
	Usage  *float64 `json:"kv_cache_usage,omitempty"` // 0 to 1; nil: not reported
	Age    string   `json:"ago"`
}

// Percent returns Usage as the page shows it; "" if it is not reported.
func (t *LoadReport) Percent() string {
	if t.Usage == nil {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100**t.Usage)
}
