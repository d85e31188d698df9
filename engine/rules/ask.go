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
)

// ErrNoEvents: the worker publishes no events. It was started without --kv-events-config, or not over TCP.
var ErrNoEvents = errors.New("the worker publishes no KV events (start it with --kv-events-config)")

const (
	maxAnswer  = 4 << 20
	maxHeaders = 64 << 10
	dialTime   = 3 * time.Second
)

// NewClient asks workers, each at the address that it is given and nowhere else: no proxy, no redirects. Answers come as they
// are, not compressed, each over a connection of its own. limit bounds one question, its answer's body too.
func NewClient(limit time.Duration) *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, DisableCompression: true, DisableKeepAlives: true,
			MaxResponseHeaderBytes: maxHeaders},
		Timeout:       limit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// GetJSON decodes the JSON that the server at addr (host:port) answers for a path; since names the release that has the path,
// for the error. Errors quote nothing of the answer, because a server's settings may hold secrets.
func GetJSON(ctx context.Context, client *http.Client, addr, path, since string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d (want 200; %s or later has it)", path, res.StatusCode, since)
	}
	if json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(into) != nil {
		return fmt.Errorf("GET %s: want a JSON object of less than 4 MiB", path)
	}
	return nil
}
