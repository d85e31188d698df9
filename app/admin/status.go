package admin

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Status is the answer of /status: a Sightline at a glance, or several together. Numbers are of the requests decided since Since.
type Status struct {
	Broken     bool               `json:"broken"` // a problem is an error, a worker is out, or a Sightline does not answer or is not ready
	Problems   []findings.Finding `json:"problems"`
	Sightlines []Sightline        `json:"sightlines"`
	Workers    map[string]int     `json:"workers"`   // slots by their state
	Releases   map[string]int     `json:"releases"`  // slots by their engine and its release, such as vllm 0.32.0; without those not told
	Inflight   int                `json:"in_flight"` // at all workers
	Backlog    float64            `json:"backlog_tokens"`
	EventAge   float64            `json:"event_age_seconds"`       // of the worker whose events are latest
	Latest     string             `json:"latest_events,omitempty"` // that worker; "": none is late
	Since      time.Time          `json:"since"`
	Requests   int                `json:"requests"`  // ended
	Failed     int                `json:"failed"`    // the part of Requests without an answer or with an error
	Refused    int                `json:"refused"`   // by Sightline itself, of the last 1024 decisions
	Undecided  int                `json:"undecided"` // reached workers without a decision; counted up to 256
	Accounted  int                `json:"accounted_tokens"`
	Uncached   account.Sums       `json:"uncached"` // the part of Accounted that was not cached, by cause
}

// Sightline is one of those that a Status is of.
type Sightline struct {
	Address   string       `json:"address,omitempty"` // where it was asked
	Instance  string       `json:"instance,omitempty"`
	Version   string       `json:"version,omitempty"`
	Mode      string       `json:"mode,omitempty"` // the share that is steered
	Began     time.Time    `json:"began,omitzero"`
	Error     string       `json:"error,omitempty"` // why it is not ready, or does not answer
	Others    int          `json:"other_replicas"`
	Silent    float64      `json:"other_replicas_silent_seconds"` // the one that was heard last
	Rate      float64      `json:"decisions_per_second"`          // of the last ten seconds
	FirstByte report.Times `json:"first_byte"`
}

// WorkerRow is one of /workers: a worker, or a rank of it.
type WorkerRow struct {
	findings.Worker
	State  string `json:"state"`  // how it is, in a word or two
	Bad    int    `json:"bad"`    // 0: it is well; 1: something is doubtful; 2: not used for what it holds; 3: it gets nothing
	Recent Recent `json:"recent"` // of the last decisions for the worker
}

// Recent sums up a worker's part of the decisions that are kept.
type Recent struct {
	Requests int `json:"requests"`
	Prompt   int `json:"prompt_tokens"`
	Cached   int `json:"cached_tokens"` // as the engine counted, else as predicted
}

// stateOut is the state of a worker that gets nothing but trial requests.
const stateOut = "out"

// rows adds to workers how they are, and what the decisions tell of them.
func rows(workers []findings.Worker, all []router.Recent) []WorkerRow {
	recent := map[string]Recent{}
	for i := range all {
		d := &all[i]
		one, cached := recent[d.Worker], d.CachedTokens
		if reported(d) {
			cached = d.Reported
		}
		recent[d.Worker] = Recent{one.Requests + 1, one.Prompt + d.PromptTokens, one.Cached + cached}
	}
	out := make([]WorkerRow, len(workers))
	for i, w := range workers {
		r := WorkerRow{Worker: w, Recent: recent[w.Name]}
		switch {
		case w.Service != nil:
			r.Bad, r.State = 1, w.Service.String()
			if *w.Service == fleet.Draining && w.Inflight == 0 {
				r.State = "drained"
			}
		case w.Health != nil:
			r.Bad, r.State = 3, stateOut
		case w.Events == "none":
			r.Bad, r.State = 2, "no events"
		case w.Events != "live":
			r.Bad, r.State = 2, w.Events
		case w.EventAge >= findings.LateEvents.Seconds():
			r.Bad, r.State = 1, "late"
		case w.Doubtful > 0 || w.OtherSize > 0 || w.SameEvents != "" || w.UnknownKey != "":
			r.Bad, r.State = 1, "in doubt"
		default:
			r.State = "live"
		}
		out[i] = r
	}
	return out
}

// Lately is the time that /status is about, to the minute; without a request in it, all time since the start is.
const Lately = 5 * time.Minute

// status answers /status.
func (c *livePage) status(w http.ResponseWriter, _ *http.Request) {
	s, now := &c.state, time.Now()
	out := Status{Problems: append([]findings.Finding{}, s.Problems(now)...), Workers: map[string]int{}, Releases: map[string]int{}}
	one := Sightline{Instance: s.Instance, Version: s.Version, Began: s.Began}
	if s.Ready != nil {
		if _, err := s.Ready(); err != nil {
			one.Error = err.Error()
		}
	}
	if s.Others != nil {
		others, ago := s.Others()
		one.Others, one.Silent = others, math.Ceil(ago.Seconds()*10)/10
	}
	all := s.Router.Recent(1024)
	of := rows(s.Workers(), all)
	for i := range of {
		r := &of[i]
		out.Workers[r.State]++
		if r.Release != "" {
			out.Releases[r.Release]++
		}
		out.Inflight, out.Backlog = out.Inflight+r.Inflight, out.Backlog+r.Backlog
		if r.EventAge > out.EventAge {
			out.EventAge, out.Latest = r.EventAge, r.Name
		}
	}
	s.ended(&out, &one, all, now)
	c.mu.Lock()
	last := c.history.minutes[max(0, len(c.history.minutes)-10):]
	for i := range last {
		one.Rate += float64(last[i].Decisions) / float64(len(last))
	}
	c.mu.Unlock()
	out.Sightlines = []Sightline{one}
	out.Broken = one.Error != "" || out.Workers[stateOut] > 0 ||
		slices.ContainsFunc(out.Problems, func(f findings.Finding) bool { return f.Severity == "error" })
	answer(w, out)
}

// ended fills in what became of the requests of late, of which all are the last decisions.
func (s *State) ended(out *Status, one *Sightline, all []router.Recent, now time.Time) {
	out.Since = now.Add(-Lately).Truncate(time.Minute)
	if out.Since.Before(s.Began) {
		out.Since = s.Began
	}
	if s.Own != nil {
		r := s.Own(report.Range{Since: out.Since})
		if r.Steered.Requests+r.Unsteered.Requests == 0 {
			r = s.Own(report.Range{})
			out.Since = r.Since
		}
		one.Mode, one.FirstByte = r.Mode, r.Steered.FirstByte
		if r.Unsteered.Requests > r.Steered.Requests {
			one.FirstByte = r.Unsteered.FirstByte
		}
		out.Requests, out.Failed = r.Steered.Requests+r.Unsteered.Requests, r.Steered.Failed+r.Unsteered.Failed
		out.Accounted, out.Uncached = r.Accounted, r.Uncached
	}
	for i := range all {
		if all[i].Reason == router.RefusedByUs && all[i].At.After(out.Since) {
			out.Refused++
		}
	}
	if s.Undecided != nil {
		out.Undecided = s.Undecided(out.Since)
	}
}

// choice says which decisions are shown.
type choice struct {
	filter, word, model, worker string
	lost                        *account.Cause // some tokens were not cached for this cause
}

func choiceOf(query url.Values) (c choice, err error) {
	c = choice{filter: query.Get("filter"), word: query.Get("q"), model: query.Get("model"), worker: query.Get("worker")}
	if lost := query.Get("lost"); lost != "" {
		c.lost = new(account.Cause)
		err = c.lost.UnmarshalText([]byte(strings.ReplaceAll(lost, "-", " ")))
	}
	return c, err
}
