package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Bounds of an exchange with a worker, which may be anything that listens on the configured address.
const (
	perRequest = 10 * time.Second
	maxAnswer  = 1 << 20
)

// asker is an HTTP client that talks to the given addresses alone: no proxy, no redirects, no compression.
type asker struct {
	client    *http.Client
	transport *http.Transport
}

func newAsker() *asker {
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, DisableCompression: true,
		MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second}
	return &asker{transport: t, client: &http.Client{Transport: t, Timeout: perRequest,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (a *asker) close() { a.transport.CloseIdleConnections() }

// statusError is an answer other than 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// absent tells an endpoint that is not there, or not for us.
func (e statusError) absent() bool {
	switch int(e) {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return e >= 300 && e < 400
}

// errAnswer is an answer that is not what the endpoint gives. It does not quote it.
var errAnswer = errors.New("an answer that is not as the engine writes it")

// text is an answer that is no JSON.
type text string

// ask sends a GET, or a POST with body, and decodes the answer into v.
func (a *asker) ask(ctx context.Context, addr, path string, body []byte, v any) error {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return statusError(resp.StatusCode)
	case len(data) > maxAnswer:
		return errAnswer
	}
	if page, ok := v.(*text); ok {
		*page = text(data)
		return nil
	}
	switch {
	case json.Unmarshal(data, v) != nil:
		return errAnswer
	}
	return nil
}

// verdictOf sorts what went wrong.
func verdictOf(err error) Verdict {
	var status statusError
	if errors.As(err, &status) {
		switch {
		case status.absent():
			return Absent
		case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests: // later
		case status >= 400 && status < 500:
			return Refused
		}
	}
	return Unreachable
}
