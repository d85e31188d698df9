package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
)

// QueryLimits bounds the reading of requests that an operator or another router asks about over HTTP.
type QueryLimits struct {
	MaxBody int
	Budget  time.Duration // for a decision, as for Envoy's requests
}

const (
	maxQueries    = 4  // bodies in parallel
	maxConsidered = 64 // workers that /explain lists
)

// Routed is the answer of /v1/route. Second is where a retry should go.
type Routed struct {
	ID           string        `json:"id"`
	Model        string        `json:"model"`
	Target                     // where the request should go
	Second       *Target       `json:"second,omitempty"`
	Reason       router.Reason `json:"reason"`
	Why          string        `json:"why,omitempty"`
	PromptTokens int           `json:"prompt_tokens"`
	CachedTokens int           `json:"cached_tokens"` // predicted
	Booked       bool          `json:"booked"`
}

// Target is a worker, and its rank that the request should be given.
type Target struct {
	Worker   string `json:"worker"`
	Address  string `json:"address"`
	Rank     int    `json:"rank"`               // -1: none
	Instance string `json:"instance,omitempty"` // behind a front end at Address: how the front end identifies the worker
	Prefill  string `json:"prefill,omitempty"`  // the worker that prefills, if it is another one
}

// Ended is the report of a caller of /v1/route on the end of a request that it booked.
type Ended struct {
	Address      string `json:"address"`       // of the worker that served it; default: the first choice
	Code         int    `json:"code"`          // HTTP status; default 200
	PromptTokens int    `json:"prompt_tokens"` // the engine's count; with CachedTokens
	CachedTokens *int   `json:"cached_tokens"` // nil: unknown
	OutputTokens int    `json:"output_tokens"`
	FirstByteMS  int    `json:"first_byte_ms"` // since the decision
}

// Explained is the answer of /explain: a decision, past or as it would be now, and the audit's finding.
type Explained struct {
	router.Recent
	Margin  float64        `json:"margin"` // cost of the second candidate above the first's, tokens
	Refused string         `json:"refused,omitempty"`
	Finding *audit.Finding `json:"finding,omitempty"` // if the worker stored something else
	// RulesAside are the rules that have stepped aside, as far as they keep the decision from being exact, or by its contradiction.
	RulesAside []audit.Aside `json:"rules_aside,omitempty"`
}

// query reads a body as a client would send it to Envoy (?path= is its path there, ?pool= the pool of its route), and calls do with
// it. If ok is false, the client has already got an error.
func (s *State) query(w http.ResponseWriter, r *http.Request, do func(context.Context, *router.Request)) (ok bool) {
	query := r.URL.Query() // the body is not a form, whatever its content type
	path := denied.Canonical(cmp.Or(query.Get("path"), denied.Chat))
	if !denied.IsEndpoint(path) {
		http.Error(w, "path is not an endpoint that takes a prompt (want one such as "+denied.Chat+")", http.StatusBadRequest)
		return false
	}
	select {
	case s.querySlots <- struct{}{}:
		defer func() { <-s.querySlots }()
	default:
		s.NoRoom("asked")
		http.Error(w, "too many at once; try again", http.StatusServiceUnavailable)
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.QueryLimits.MaxBody)))
	if err != nil {
		code := http.StatusBadRequest
		if errors.As(err, new(*http.MaxBytesError)) {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), code)
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.QueryLimits.Budget)
	defer cancel()
	req := &router.Request{ID: rand.Text(), Path: path, Pool: query.Get("pool"), Session: r.Header.Get("X-Session-ID"),
		Body: [][]byte{body}, MustPick: true}
	if err := guard.Call(func() error { do(ctx, req); return nil }); err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return false
	}
	return true
}

// route answers where a request should go. With ?book=true the request is booked there until its end is reported, at most half an
// hour.
func (s *State) route(w http.ResponseWriter, r *http.Request) {
	var d router.Decision
	book := r.URL.Query().Get("book") == "true"
	if !s.query(w, r, func(ctx context.Context, req *router.Request) {
		if book {
			d = s.Router.Decide(ctx, req)
		} else {
			d, _ = s.Router.Consider(ctx, req, 0)
		}
	}) {
		return
	}
	switch {
	case d.Refuse != nil:
		http.Error(w, d.Refuse.Message, d.Refuse.Status)
		return
	case len(d.Targets) == 0:
		http.Error(w, cmp.Or(d.Why, "no worker known"), http.StatusServiceUnavailable)
		return
	}
	if book {
		s.Router.Observe(router.Outcome{ID: d.ID, Phase: router.Started, Addr: d.Targets[0].Addr, CachedTokens: -1})
	}
	out := Routed{ID: d.ID, Model: d.Model, Target: targetOf(d.Targets[0]), Reason: d.Reason, Why: d.Why, PromptTokens: d.PromptTokens,
		CachedTokens: d.CachedTokens, Booked: book}
	if len(d.Targets) > 1 {
		second := targetOf(d.Targets[1])
		out.Second = &second
	}
	answer(w, out)
}

func targetOf(t router.Target) Target { return Target{t.Worker, t.Addr, t.Rank, t.Instance, t.Prefill} }

// routeEnded takes the report of a booked request's end.
func (s *State) routeEnded(w http.ResponseWriter, r *http.Request) {
	end := Ended{Code: http.StatusOK}
	known, ok := s.Router.Decision(r.PathValue("id"))
	if !ok {
		http.Error(w, notKnown, http.StatusNotFound)
		return
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(&end); err != nil && err != io.EOF {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, err := netip.ParseAddrPort(end.Address); err != nil && end.Address != "" {
		http.Error(w, "address is not valid (want ip:port)", http.StatusBadRequest)
		return
	}
	o := router.Outcome{ID: known.ID, Phase: router.Ended, Addr: cmp.Or(end.Address, known.Used, known.Addr),
		Code: end.Code, Answered: true, CachedTokens: -1,
		PromptTokens: end.PromptTokens, OutputTokens: end.OutputTokens, FirstByte: time.Duration(end.FirstByteMS) * time.Millisecond}
	if end.CachedTokens != nil {
		o.CachedTokens = *end.CachedTokens
	}
	s.Router.Observe(o)
	w.WriteHeader(http.StatusNoContent)
}

// explainRequest answers where a request would go now, and why.
func (s *State) explainRequest(w http.ResponseWriter, r *http.Request) {
	var out Explained
	if s.query(w, r, func(ctx context.Context, req *router.Request) {
		d, recent := s.Router.Consider(ctx, req, maxConsidered)
		out = s.explained(recent)
		if d.Refuse != nil {
			out.Refused = d.Refuse.Message
		}
	}) {
		answer(w, out)
	}
}

// explainDecision answers what was known at a past decision, and its outcome.
func (s *State) explainDecision(w http.ResponseWriter, r *http.Request) {
	d, ok := s.Router.Decision(r.FormValue("id"))
	if !ok {
		http.Error(w, notKnown, http.StatusNotFound)
		return
	}
	answer(w, s.explained(d))
}

func (s *State) explained(d router.Recent) Explained {
	e := Explained{Recent: d, Margin: d.Margin()}
	for _, f := range s.Audit.Findings() {
		if f.ID == d.ID {
			e.Finding = &f
			break
		}
	}
	for _, one := range s.Audit.Aside() {
		if one.Model == d.Model && (one.Why() == d.Why || one.First.ID == d.ID) {
			e.RulesAside = append(e.RulesAside, one)
		}
	}
	return e
}
