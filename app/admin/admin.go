// Package admin serves the operator's view: a page, metrics, and the same facts as JSON.
//
//	/            a page, updated live by /events: problems, workers, decisions; ?worker=, ?image=, ?id= of a decision;
//	             ?filter= failed, inexact, slow or differing, and ?q= a part of an id, a model or a worker, choose decisions
//	/metrics     Prometheus
//	/healthz     200 while the process lives; /readyz: 200 once it knows what the workers hold, or has waited for that long enough
//	/status      problems, requests, what was cached and lost, and workers by state, as JSON (status.go)
//	/decisions   the last decisions as JSON (?n=20, ?id=…), made or ended ?since=, of ?model=, ?worker=, ?filter= as above or ?lost=CAUSE
//	/explain    ?id=…: a decision with its candidates, their costs and its outcome; POST a request: where it would go now
//	/v1/route   POST a request: the worker that it should be sent to (route.go)
//	/audit       the last requests that were not stored as predicted, as JSON
//	/report      what steering brings: requests steered and requests left alone, as JSON; of ?since= and ?until= (RFC 3339), ?model=
//	/forecast    what other caches, or more or fewer workers, would bring, as JSON: by model, from the last hour and day
//	/workers     the workers as JSON; POST /workers/resync?worker=… has one tell everything anew
//	             POST /workers/cordon?worker=…, …/uncordon, …/drain: what it may have from now on (order.go)
//	/problems    what keeps requests from answers or hits right now, as JSON: code, since when, what to do
//	/unserved    model names that requests of the last hour asked for and no worker serves, as JSON
//	/hosts       hosts of image URLs that failed recently, and whether they are left alone for now
//	/reload      POST reads the configuration again, and says what of it needs a restart
//	/index       what the index has of a worker-rank, one block a line as JSON: ?worker=…&rank=0
//	/debug/pprof/ for the Go tool pprof
//	/probes      what workers answered when asked for their tokens and settings, as JSON; POST asks them again
//
// Nothing here shows a prompt, an image or a key. Access controls who may use it (token.go).
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/probe"
)

// State holds the sources of the page's data.
type State struct {
	Access      Access
	QueryLimits QueryLimits
	Version     string
	Instance    string                         // of this process, among several Sightlines
	Began       time.Time                      // when it started; zero: not told
	Reloaded    func() time.Time               // when the configuration was last taken up; nil: not told
	Ready       func() (how string, err error) // how it became ready; an error until then
	Router      *router.Router
	Workers     func() []findings.Worker
	Problems    func(now time.Time) []findings.Finding                 // worst first
	Resync      func(worker string) int                                // restarts a worker's feeds, and returns how many
	Order       func(worker string, to fleet.Service) (Ordered, error) // ErrNoWorker: there is none of this name
	Reload      func() (said string, err error)                        // reads the configuration again; after an error the old one stays
	Blocks      func(worker string, rank int) ([]indexer.Block, error) // rank 0 if it has none
	Hosts       func() []fetch.HostState
	Gatherer    prometheus.Gatherer
	Probe       *probe.Prober  // nil: none
	Audit       *audit.Auditor // nil: none
	// Report returns what all replicas report of a range; fresh: the others are asked now. nil: none.
	Report func(of report.Range, fresh bool) report.Report
	Own    func(of report.Range) report.Report // of this replica alone; nil: none
	// number of replicas that share with this one, and for how long one of them has been silent; nil: none
	Others    func() (others int, ago time.Duration)
	Undecided func(since time.Time) int // requests that reached workers without a decision, of the last 256; nil: not told
	NoRoom    func(what string)         // is called for each refused client: "pages" that watch, "asked" about requests

	querySlots chan struct{} // one slot for each body being asked about
}

// Handler serves the pages, and records their history until ctx ends.
func Handler(ctx context.Context, s State) http.Handler {
	s.querySlots = make(chan struct{}, maxQueries)
	mux := http.NewServeMux()
	page := newLivePage(s)
	go page.run(ctx)
	mux.HandleFunc("GET /{$}", page.show)
	mux.HandleFunc("GET /events", page.events)
	mux.HandleFunc("GET /problems", func(w http.ResponseWriter, _ *http.Request) {
		list(w, s.Problems(time.Now()))
	})
	for name, kind := range assets {
		mux.HandleFunc("GET /"+name, asset(name, kind))
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /decisions", s.decisions)
	mux.HandleFunc("GET /status", page.status)
	mux.HandleFunc("GET /workers", func(w http.ResponseWriter, _ *http.Request) { list(w, rows(s.Workers(), s.Router.Recent(1024))) })
	mux.HandleFunc("GET /forecast", func(w http.ResponseWriter, _ *http.Request) { list(w, s.Router.Forecasts()) })
	mux.HandleFunc("POST /workers/resync", s.resync)
	for name, to := range orders {
		mux.HandleFunc("POST /workers/"+name, func(w http.ResponseWriter, r *http.Request) { s.order(w, r, to) })
	}
	mux.HandleFunc("POST /reload", s.reload)
	mux.HandleFunc("GET /unserved", func(w http.ResponseWriter, _ *http.Request) { list(w, s.Router.Unserved()) })
	mux.HandleFunc("GET /hosts", func(w http.ResponseWriter, _ *http.Request) { list(w, s.Hosts()) })
	mux.HandleFunc("GET /audit", func(w http.ResponseWriter, _ *http.Request) { list(w, s.Audit.Findings()) })
	mux.HandleFunc("GET /report", s.report)
	mux.HandleFunc("GET /index", s.index)
	mux.HandleFunc("GET /explain", s.explainDecision)
	mux.HandleFunc("POST /explain", s.explainRequest)
	mux.HandleFunc("POST /v1/route", s.route)
	mux.HandleFunc("POST /v1/route/{id}/end", s.routeEnded)
	if s.Probe != nil {
		mux.HandleFunc("GET /probes", func(w http.ResponseWriter, _ *http.Request) { list(w, s.Probe.Results()) })
		mux.HandleFunc("POST /probes", func(w http.ResponseWriter, _ *http.Request) {
			s.Probe.Again()
			w.WriteHeader(http.StatusAccepted)
		})
	}
	profile(mux)
	return s.Access.Guard(mux)
}

// longestProfile bounds how long a profile or trace records: a trace takes about 1 MB a second.
const longestProfile = time.Minute

// profile registers the pages for the Go tool pprof.
func profile(mux *http.ServeMux) {
	for path, h := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile,
		"symbol": pprof.Symbol, "trace": pprof.Trace} {
		mux.HandleFunc("GET /debug/pprof/"+path, func(w http.ResponseWriter, r *http.Request) {
			if seconds, err := strconv.ParseFloat(r.FormValue("seconds"), 64); err == nil && !(seconds <= longestProfile.Seconds()) {
				http.Error(w, fmt.Sprintf("seconds=%v: want at most %v", seconds, longestProfile.Seconds()), http.StatusBadRequest)
				return
			}
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * longestProfile))
			h(w, r)
		})
	}
}

func (s *State) report(w http.ResponseWriter, r *http.Request) {
	of := report.Range{Model: r.FormValue("model")}
	for key, to := range map[string]*time.Time{"since": &of.Since, "until": &of.Until} {
		text := r.FormValue(key)
		if text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			http.Error(w, key+": want a time such as 2026-11-21T08:00:00Z", http.StatusBadRequest)
			return
		}
		*to = at
	}
	answer(w, s.Report(of, true))
}

func (s *State) readyz(w http.ResponseWriter, _ *http.Request) {
	how, err := s.Ready()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ready: "+how+"\n")
}

func (s *State) decisions(w http.ResponseWriter, r *http.Request) {
	id := r.FormValue("id")
	if id == "" {
		n, err := strconv.Atoi(r.FormValue("n"))
		if err != nil {
			n = 20
		}
		of, err := choiceOf(r.URL.Query())
		since := time.Time{}
		if text := r.FormValue("since"); text != "" && err == nil {
			since, err = time.Parse(time.RFC3339, text)
		}
		if err == nil && of.filter != "" && !slices.Contains(filters, of.filter) {
			err = fmt.Errorf("filter %.40q: want one of %q", of.filter, filters)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		all := s.Router.RecentSince(since, 1024)
		kept := all
		if of.filter == "slow" && !since.IsZero() {
			kept = s.Router.Recent(1024)
		}
		all = of.chosen(all, kept)
		list(w, all[:max(0, min(n, len(all)))])
		return
	}
	d, ok := s.Router.Decision(id)
	if !ok {
		http.Error(w, notKnown, http.StatusNotFound)
		return
	}
	answer(w, d)
}

func (s *State) resync(w http.ResponseWriter, r *http.Request) {
	if s.Resync(r.FormValue("worker")) == 0 {
		http.Error(w, "no such worker with KV events (want ?worker=NAME)", http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func (s *State) reload(w http.ResponseWriter, _ *http.Request) {
	said, err := s.Reload()
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	_, _ = io.WriteString(w, cmp.Or(said, "taken up")+"\n")
}

func (s *State) index(w http.ResponseWriter, r *http.Request) {
	rank, err := strconv.Atoi(cmp.Or(r.FormValue("rank"), "0"))
	if err != nil {
		http.Error(w, "rank is not a number", http.StatusBadRequest)
		return
	}
	list, err := s.Blocks(r.FormValue("worker"), rank)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	writeBlocks(w, list)
}

const notKnown = "no such decision among the last 1024"

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// list writes a list, [] if there is none.
func list[T any](w http.ResponseWriter, of []T) { answer(w, append([]T{}, of...)) }
