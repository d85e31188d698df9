package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// Limits of an exchange with a worker, which may be anything that listens on the configured address.
const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 1 << 20
)

// statusError is an answer with a status other than 200.
type statusError int

func (e statusError) Error() string {
	if rules.WantsKey(int(e)) {
		return fmt.Sprintf("status %d: %s", int(e), rules.KeyHint)
	}
	return fmt.Sprintf("status %d", int(e))
}

// errAnswer is an answer that the engine would not give. It does not quote it.
var errAnswer = errors.New("an answer that is not in the engine's format")

// ask sends a GET, or a POST if body is set, and returns the answer of status 200.
func (p *Prober) ask(ctx context.Context, addr, path string, body []byte) ([]byte, error) {
	status, header, data, err := rules.Ask(ctx, p.client, addr, path, body, maxAnswer)
	if status/100 != 3 && rules.IsPage(header) {
		return nil, fmt.Errorf("status %d with %s", status, rules.PageHint)
	}
	if status != 0 && status != http.StatusOK {
		return nil, statusError(status)
	}
	return data, err
}

func decode(answer []byte, v any) error {
	if json.Unmarshal(answer, v) != nil {
		return errAnswer
	}
	return nil
}

// verdictOf returns the verdict for an error of ask.
func verdictOf(err error) Verdict {
	var status statusError
	if !errors.As(err, &status) {
		return Unreachable
	}
	switch int(status) {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return Absent // it does not exist, or not for us
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return Unreachable // retried later
	}
	switch status / 100 {
	case 3:
		return Absent
	case 4:
		return Refused
	}
	return Unreachable
}
