package router

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/report"
)

// recent keeps the last 1024 decisions for people: the admin page and the demo read them. It has one lock, and of client text
// only Asked.
type recent struct {
	mu   sync.Mutex
	last *simplelru.LRU[string, *Recent] // by id, in the order of the decisions: entries are only peeked at
}

const maxRecent = 1024

// Recent is one past decision and its outcome.
type Recent struct {
	At           time.Time        `json:"at"`
	ID           string           `json:"id"`
	Model        string           `json:"model"`
	Arm          report.Arm       `json:"arm,omitempty"`
	Worker       string           `json:"worker"` // the first choice, also for an unsteered request
	Addr         string           `json:"addr"`
	Rank         int              `json:"rank"` // -1: none
	Reason       Reason           `json:"reason"`
	Why          string           `json:"why,omitempty"`
	Memory       bool             `json:"memory,omitempty"` // no rule reads the prompt to its end, as Why says: looked up as events taught
	Asked        string           `json:"asked,omitempty"`  // unknown model name, see Decision
	PromptTokens int              `json:"prompt_tokens"`
	CachedTokens int              `json:"cached_tokens"`          // predicted
	HeldTokens   int              `json:"held_tokens"`            // the most that any worker held
	Regret       string           `json:"regret,omitempty"`       // why the worker that held most was not chosen
	Begins       uint32           `json:"begins,omitempty"`       // equal for prompts that begin alike and no worker held, see Decision
	Partial      bool             `json:"partial,omitempty"`      // the prediction is a lower bound
	UpperBound   bool             `json:"upper_bound,omitempty"`  // the prediction is an upper bound
	Order        *Order           `json:"order,omitempty"`        // when it is due at its worker
	Took         time.Duration    `json:"took_ns"`                // to decide
	Used         string           `json:"used,omitempty"`         // ip:port that Envoy reported
	Retried      bool             `json:"retried,omitempty"`      // Envoy tried more than one worker; known at the end
	Code         int              `json:"code,omitempty"`         // HTTP status at the end
	Reported     int              `json:"reported_cached_tokens"` // by the engine; -1: not reported
	FirstByte    time.Duration    `json:"first_byte_ns,omitempty"`
	Lasted       time.Duration    `json:"lasted_ns,omitempty"` // from the decision to the end; if Code is 0 its client left unanswered
	Flags        string           `json:"flags,omitempty"`     // of Envoy's access log, such as UT
	OutputTokens int              `json:"output_tokens,omitempty"`
	Streams      bool             `json:"streams,omitempty"` // the request asks for its tokens as they come
	Fetches      bool             `json:"fetches,omitempty"` // the engine downloads an image of it before it begins
	ImageTokens  []int            `json:"image_tokens,omitempty"`
	Images       []string         `json:"images,omitempty"`  // one number for each image or other medium, stable within this process
	Account      *account.Account `json:"account,omitempty"` // of its prompt's tokens, once it has been answered
	Audit        audit.Verdict    `json:"audit,omitempty"`   // what the worker stored, against the prediction; "": not compared (yet)

	// About the best candidates, the chosen one first. Lists of decisions omit Ranked.
	Considered int          `json:"considered"` // candidates in all
	Ties       int          `json:"ties"`       // further candidates whose cost counts as equal to the least
	Ranked     []Considered `json:"ranked,omitempty"`
}

// Margin returns how much more the second candidate costs than the chosen one, in tokens; 0: there is none.
func (r *Recent) Margin() float64 {
	if len(r.Ranked) < 2 || r.Ranked[1].Out != "" {
		return 0
	}
	return r.Ranked[1].Cost - r.Ranked[0].Cost
}

// beginTokens is the number of tokens that Decision.Begins hashes.
const beginTokens = 16

// shownName limits the characters shown of a client's word.
const shownName = 64

// shownMedia limits the media shown of a prompt.
const shownMedia = 8

// sanitizeName returns a client's word fit to be shown: its first shownName characters, with a replacement character for each
// unprintable one. It shares no memory with the body.
func sanitizeName(word string) string {
	var out strings.Builder
	n := 0
	for _, c := range word {
		n++
		if n > shownName {
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

func newRecent() *recent {
	last, _ := simplelru.NewLRU[string, *Recent](maxRecent, nil) // fails only for a size below 1
	return &recent{last: last}
}

// recentEntry returns the decision as people see it.
func (p *plan) recentEntry(took time.Duration) *Recent {
	d, c := &p.out, &p.mem.choice
	e := &Recent{At: p.now, ID: d.ID, Model: d.Model, Arm: d.Arm, Reason: d.Reason, Why: d.Why, Asked: d.Asked, Rank: -1,
		PromptTokens: d.PromptTokens,
		CachedTokens: d.CachedTokens, HeldTokens: d.HeldTokens, Regret: d.Regret, Begins: d.Begins, Partial: d.Partial,
		UpperBound: d.UpperBound, Order: d.Order,
		Took: took, Reported: -1, Streams: p.mem.reading.req.Fields["stream"].Bool(), Fetches: p.fetches()}
	if d.Refuse != nil {
		e.Code = d.Refuse.Status
	}
	if c.Chosen != nil && d.PromptTokens > 0 {
		media := p.lookup().read.prompt.Media
		for i := range media[:min(len(media), shownMedia)] {
			if md := &media[i]; md.Key != 0 {
				e.ImageTokens = append(e.ImageTokens, md.Length)
				e.Images = append(e.Images, fmt.Sprintf("%08x", uint32((md.Key^p.opt.Seed)*0x9E3779B97F4A7C15>>32)))
			}
		}
	}
	if c.Chosen != nil {
		e.Memory = !p.unread && p.lookup().recalled.class != 0
		e.Considered, e.Ties, e.Ranked = len(c.Candidates), ties(c.Candidates), considered(c, p.list.slots)
	}
	if d.UnsteeredChoice.Worker != "" {
		e.Worker, e.Addr, e.Rank = d.UnsteeredChoice.Worker, d.UnsteeredChoice.Addr, d.UnsteeredChoice.Rank
	} else if len(d.Targets) > 0 {
		e.Worker, e.Addr, e.Rank = d.Targets[0].Worker, d.Targets[0].Addr, d.Targets[0].Rank
	}
	return e
}

func (r *recent) add(e *Recent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Add(e.ID, e)
}

func (r *recent) observe(o Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.last.Peek(o.ID)
	if ok && o.Addr != "" {
		e.Used = o.Addr
	}
	if ok && o.Phase == Ended {
		e.Code, e.FirstByte, e.Reported, e.OutputTokens, e.Flags = o.Code, o.FirstByte, o.CachedTokens, o.OutputTokens, o.Fault
		e.Retried = o.Retried
		e.Lasted = max(1, time.Since(e.At))
	}
}

// settled records the account of a request that was answered.
func (r *recent) settled(id string, a *account.Account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.last.Peek(id); ok {
		e.Account = a
	}
}

// Audited records the audit's verdict on a decision.
func (r *Router) Audited(id string, v audit.Verdict) {
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	if e, ok := r.recent.last.Peek(id); ok {
		e.Audit = v
		if e.Reason == Exact && v.Differs() {
			e.Reason = Predicted
		}
	}
}

// Recent returns up to n past decisions, newest first.
func (r *Router) Recent(n int) []Recent { return r.RecentSince(time.Time{}, n) }

// stillWaits is how long before a time a request counts as waiting; the report of its end may have been lost.
const stillWaits = 10 * time.Minute

// RecentSince returns up to n decisions that were made or have ended since a time, or are still under way at a worker, newest first.
func (r *Router) RecentSince(since time.Time, n int) (out []Recent) {
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	for _, e := range slices.Backward(r.recent.last.Values()) {
		if len(out) >= n {
			break
		}
		waits := e.Lasted == 0 && e.Used != "" && e.At.After(since.Add(-stillWaits))
		if e.At.Add(e.Lasted).Before(since) && !waits {
			continue
		}
		one := *e
		one.Ranked = nil
		out = append(out, one)
	}
	return out
}

// Decision returns a past decision by its id, if it is still remembered.
func (r *Router) Decision(id string) (Recent, bool) {
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	if e, ok := r.recent.last.Peek(id); ok {
		return *e, true
	}
	return Recent{}, false
}

// unserved records model names that requests asked for and no worker serves: the first maxUnserved of the last hour, as sanitizeName
// returns them.
type unserved struct {
	mu        sync.Mutex
	lastAsked map[string]time.Time
}

const (
	maxUnserved = 64
	unservedFor = time.Hour
)

// add records a name.
func (u *unserved) add(name string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lastAsked == nil {
		u.lastAsked = map[string]time.Time{}
	}
	if _, known := u.lastAsked[name]; known || len(u.lastAsked) < maxUnserved {
		u.lastAsked[name] = now
	}
}

// names drops names that were not asked for recently, and returns the others.
func (u *unserved) names(now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.lastAsked, func(_ string, at time.Time) bool { return now.Sub(at) > unservedFor })
	return slices.Sorted(maps.Keys(u.lastAsked))
}

// Unserved returns the model names that requests of the last hour asked for and no worker serves; 64 may stand for more.
func (r *Router) Unserved() []string { return r.unserved.names(r.opt.Now()) }
