package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/workers/fleet"
)

// orders are the commands that change what a worker may have.
var orders = map[string]fleet.Service{"cordon": fleet.Cordoned, "uncordon": fleet.InService, "drain": fleet.Draining}

// Ordered is the answer to an order.
type Ordered struct {
	Worker   string           `json:"worker"`
	Service  fleet.Service    `json:"service"`
	Inflight int              `json:"in_flight"`
	Removal  forecast.Removal `json:"removal"`
	Others   int              `json:"other_replicas"` // that hear of it, and tell it to this one after a restart
}

// ErrNoWorker is State.Order's error for an unknown name.
var ErrNoWorker = errors.New("no such worker (want ?worker=NAME)")

func (s *State) order(w http.ResponseWriter, r *http.Request, to fleet.Service) {
	out, err := s.Order(r.FormValue("worker"), to)
	switch {
	case errors.Is(err, ErrNoWorker):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		answer(w, out)
	}
}

// AskOrder gives a running Sightline, the one that q names, an order for a worker: cordon, uncordon or drain. It prints what came of it
// and, if wait is not 0, waits until the worker's last request has ended.
func AskOrder(ctx context.Context, q AdminRequest, order, worker string, wait time.Duration, out io.Writer) error {
	q.Method, q.Path = http.MethodPost, "/workers/"+order+"?worker="+url.QueryEscape(worker)
	text, err := Ask(ctx, q)
	if err != nil {
		return err
	}
	var of Ordered
	if err := json.Unmarshal(text, &of); err != nil {
		return fmt.Errorf("/workers/%s: %w", order, err)
	}
	fmt.Fprintf(out, "%s is %v, with %d requests in flight.\n", worker, of.Service, of.Inflight)
	if of.Service != fleet.InService {
		fmt.Fprintf(out, "It alone holds %s prompt tokens, of which %s are expected to be asked for again.\n",
			printable.Amount(of.Removal.Alone), printable.Amount(of.Removal.Again))
		if of.Others == 0 {
			fmt.Fprintln(out, "No other replica hears of it: a restart of this Sightline ends it.")
		}
	}
	if wait == 0 {
		return nil
	}
	began, left := time.Now(), of.Inflight
	q.Method, q.Path = "", "/workers"
	for range retry.Every(ctx, time.Second/2) {
		text, err := Ask(ctx, q)
		if err != nil {
			return err
		}
		var rows []findings.Worker
		if err := json.Unmarshal(text, &rows); err != nil {
			return fmt.Errorf("/workers: %w", err)
		}
		took, known, drains := time.Since(began).Round(time.Second/10), false, true
		left = 0
		for i := range rows {
			if rows[i].Name == worker {
				known, left, drains = true, left+rows[i].Inflight, drains && rows[i].Service != nil && *rows[i].Service == fleet.Draining
			}
		}
		switch {
		case !known:
			fmt.Fprintf(out, "It left after %v.\n", took)
			return nil
		case !drains:
			return fmt.Errorf("%s is no longer draining: another order came", worker)
		case left == 0:
			fmt.Fprintf(out, "It is empty after %v.\n", took)
			return nil
		case took >= wait:
			return fmt.Errorf("%s still has %d requests in flight after %v; it goes on draining", worker, left, took)
		}
	}
	return fmt.Errorf("%s had %d requests in flight: %w", worker, left, ctx.Err())
}
