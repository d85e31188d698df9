package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
)

// ErrNoEvents means that the worker publishes no events: it was started without --kv-events-config, or not over TCP.
var ErrNoEvents = errors.New("the worker publishes no KV events (start it with --kv-events-config)")

const (
	maxAnswer  = 4 << 20
	maxHeaders = 64 << 10
	dialTime   = 3 * time.Second
)

// NewClient returns a client that connects only to the address it is given: no proxy, no redirects. Answers are requested
// uncompressed, each over its own connection. limit bounds one request including its answer's body. as holds the TLS and token
// settings towards workers; nil: plain text, no key.
func NewClient(limit time.Duration, as *secure.Client) *http.Client {
	return &http.Client{
		Transport: as.Transport(&http.Transport{DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, DisableCompression: true, DisableKeepAlives: true,
			MaxResponseHeaderBytes: maxHeaders}),
		Timeout:       limit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// StatusError reports a response with a status other than 200.
type StatusError struct {
	Path   string
	Status int
	Since  string // which releases serve the path, such as vLLM 0.31 or later
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("GET %s: status %d (want 200; %s has it)", e.Path, e.Status, e.Since)
}

// Get returns the body of the 200 response of the server at addr (host:port) for a path. A body above limit bytes is an error.
// since names the releases that serve the path, for the error, such as vLLM 0.31 or later.
func Get(ctx context.Context, client *http.Client, addr, path, since string, limit int64) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, nil, &StatusError{path, res.StatusCode, since}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("GET %s: more than %d bytes", path, limit)
	}
	return body, res.Header, err
}

// GetJSON decodes the JSON that Get returns, up to 4 MiB. Errors quote nothing of the response, because a server's settings may
// hold secrets.
func GetJSON(ctx context.Context, client *http.Client, addr, path, since string, into any) error {
	body, _, err := Get(ctx, client, addr, path, since, maxAnswer)
	if err == nil && json.Unmarshal(body, into) != nil {
		err = fmt.Errorf("GET %s: want a JSON object of less than 4 MiB", path)
	}
	return err
}
