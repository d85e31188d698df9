package router

import (
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// recent keeps the last decisions, for people: the admin page and the demo read it. One lock, 1024 entries, of
// clients' texts only Asked.
type recent struct {
	mu   sync.Mutex
	ring [1024]Recent
	n    uint64
	byID map[string]uint64
}

// Recent is one past decision and what became of it.
type Recent struct {
	At           time.Time     `json:"at"`
	ID           string        `json:"id"`
	Model        string        `json:"model"`
	Worker       string        `json:"worker"` // chosen first
	Addr         string        `json:"addr"`
	Rank         int           `json:"rank"` // -1: none
	Reason       Reason        `json:"reason"`
	Why          string        `json:"why,omitempty"`
	Asked        string        `json:"asked,omitempty"` // the model's name that is not known, see Decision
	PromptTokens int           `json:"prompt_tokens"`
	CachedTokens int           `json:"cached_tokens"`          // predicted
	Partial      bool          `json:"partial,omitempty"`      // the prediction is a lower bound
	Recurrent    bool          `json:"recurrent,omitempty"`    // it is an upper bound
	Took         time.Duration `json:"took_ns"`                // to decide
	Used         string        `json:"used,omitempty"`         // ip:port that Envoy reported
	Code         int           `json:"code,omitempty"`         // HTTP status at the end
	Reported     int           `json:"reported_cached_tokens"` // by the engine; -1: not told
	FirstByte    time.Duration `json:"first_byte_ns,omitempty"`
}

// shownName is how many characters of a client's word are shown.
const shownName = 64

// shown is a client's word as it can be shown: letters, digits and signs, a replacement character for all else, at most
// shownName of them. It shares no memory with the body.
func shown(word string) string {
	var out strings.Builder
	n := 0
	for _, c := range word {
		if n++; n > shownName {
			out.WriteRune('…')
			break
		}
		if !unicode.IsPrint(c) {
			c = utf8.RuneError
		}
		out.WriteRune(c)
	}
	return out.String()
}

func newRecent() *recent { return &recent{byID: make(map[string]uint64)} }

func (r *recent) add(d *Decision, at time.Time, took time.Duration) {
	e := Recent{At: at, ID: d.ID, Model: d.Model, Reason: d.Reason, Why: d.Why, Asked: d.Asked, Rank: -1, PromptTokens: d.PromptTokens, CachedTokens: d.CachedTokens, Partial: d.Partial, Recurrent: d.Recurrent, Took: took, Reported: -1}
	if len(d.Targets) > 0 {
		e.Worker, e.Addr, e.Rank = d.Targets[0].Worker, d.Targets[0].Addr, d.Targets[0].Rank
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slot := &r.ring[r.n%uint64(len(r.ring))]
	delete(r.byID, slot.ID)
	*slot = e
	r.byID[e.ID] = r.n
	r.n++
}

func (r *recent) observe(o Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.byID[o.ID]
	if !ok {
		return
	}
	e := &r.ring[n%uint64(len(r.ring))]
	if o.Addr != "" {
		e.Used = o.Addr
	}
	if o.Phase == Ended {
		e.Code, e.FirstByte, e.Reported = o.Code, o.FirstByte, o.CachedTokens
	}
}

// Recent lists up to n past decisions, the newest first.
func (r *Router) Recent(n int) []Recent {
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	have := min(r.recent.n, uint64(len(r.recent.ring)), uint64(max(n, 0)))
	out := make([]Recent, 0, have)
	for i := range have {
		out = append(out, r.recent.ring[(r.recent.n-1-i)%uint64(len(r.recent.ring))])
	}
	return out
}

// Decision finds a past decision by its id, if it is not too long ago.
func (r *Router) Decision(id string) (Recent, bool) {
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	n, ok := r.recent.byID[id]
	if !ok {
		return Recent{}, false
	}
	return r.recent.ring[n%uint64(len(r.recent.ring))], true
}
