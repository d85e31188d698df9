package router

import (
	"net/http"
	"strconv"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/workers/fleet"
)

// A 401, 403 or 404 is usually the client's doing. It is the worker's if that worker alone gives it: behind another API key, or
// without the model or adapter that its configuration promises. Such a worker is idle, answers at once, and would be the best choice
// for every request. So an answer counts as a worker's failure if it goes to a client to whom another worker of the model gave the
// last good answer; three in a row without a good one put the worker out, like those with 5xx.

// clientOf is a client of one model.
type clientOf struct {
	client fair.Client // 0: all that are not known
	model  string
}

const maxServedClients = 4096 // the least recently served are forgotten

// served records that a worker gave a good answer.
func (r *Router) served(b *bookingRecord, w *fleet.Worker) {
	if b.model != "" {
		r.lastServed.Add(clientOf{b.client, b.model}, w)
	}
}

// refusesAlone reports whether a worker refused what other workers answer.
func (r *Router) refusesAlone(b *bookingRecord, w *fleet.Worker, code int) bool {
	if code != http.StatusUnauthorized && code != http.StatusForbidden && code != http.StatusNotFound || b.model == "" {
		return false
	}
	other, ok := r.lastServed.Get(clientOf{b.client, b.model})
	return ok && other != w && other.Present()
}

// refusedAlone is the failure of a worker that refuses alone, in words.
func refusedAlone(code int) string {
	return "status " + strconv.Itoa(code) + " to clients whom another worker answers (compare its API key, models and flags with the others')"
}
