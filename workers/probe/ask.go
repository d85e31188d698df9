package probe

import (
	"errors"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// Limits of an exchange with a worker, which may be anything that listens on the configured address.
const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 1 << 20
)

// verdictOf returns the verdict for an error of asking a worker.
func verdictOf(err error) Verdict {
	e, is := errors.AsType[*rules.StatusError](err)
	switch {
	case !is || e.Page && e.Status/100 != 3:
		return Unreachable
	case e.Status/100 == 3:
		return Absent
	}
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return Absent // it does not exist, or not for us
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return Unreachable // retried later
	}
	if e.Status/100 == 4 {
		return Refused
	}
	return Unreachable
}
