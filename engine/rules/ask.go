package rules

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
)

// ErrNoEvents means that the worker publishes no events: it was started without --kv-events-config, or not over TCP.
var ErrNoEvents = errors.New("the worker publishes no KV events (start it with --kv-events-config)")

const (
	maxAnswer  = 4 << 20
	maxHeaders = 64 << 10
	dialTime   = 3 * time.Second
	keptTime   = 4 * time.Second // uvicorn closes an idle connection after 5 s
)

// NewClient returns a client that connects only to the address it is given: no proxy, no redirects. Answers are requested
// uncompressed, each over its own connection. limit bounds one request including its answer's body. as holds the TLS and token
// settings towards workers; nil: plain text, no key.
func NewClient(limit time.Duration, as *secure.Client) *http.Client {
	return newClient(limit, as, 0)
}

// NewPollingClient is NewClient that asks again over the same connection within keptTime. A new connection is half the CPU time of a
// query.
func NewPollingClient(limit time.Duration, as *secure.Client) *http.Client {
	return newClient(limit, as, keptTime)
}

func newClient(limit time.Duration, as *secure.Client, kept time.Duration) *http.Client {
	return &http.Client{
		Transport: as.Transport(&http.Transport{DialContext: (&net.Dialer{Timeout: dialTime}).DialContext,
			DisableCompression: true, DisableKeepAlives: kept == 0, IdleConnTimeout: kept, MaxIdleConnsPerHost: 1,
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
	Page   bool   // of HTML, which no engine answers with
}

func (e *StatusError) Error() string {
	switch {
	case e.Page:
		return fmt.Sprintf("GET %s: status %d with %s", e.Path, e.Status, PageHint)
	case WantsKey(e.Status):
		return fmt.Sprintf("GET %s: status %d: %s", e.Path, e.Status, KeyHint)
	}
	return fmt.Sprintf("GET %s: status %d (want 200; %s has it)", e.Path, e.Status, e.Since)
}

// PageHint says what a page of HTML means.
const PageHint = "a page of HTML: a proxy or another program answers in the worker's place"

// KeyHint says what to do about a worker that wants a key.
const KeyHint = "the worker wants a key, or another one: worker_access.api_key_file"

// WantsKey reports whether a status means that a key is missing or is not the right one.
func WantsKey(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// What a server that was asked in plain HTTP/1.1 speaks instead.
var (
	ErrTLS    = errors.New("it speaks TLS: worker_access.ca, the PEM file of its certificate's authority")
	ErrHTTP2  = errors.New("it speaks HTTP/2 alone: start it with HTTP/1.1")
	ErrNoHTTP = errors.New("it speaks no HTTP: addr is the port of its API, not of its events")
)

// Instead returns ErrTLS, ErrHTTP2 or ErrNoHTTP if a request to addr failed with err because that is what the server speaks; else nil.
func Instead(ctx context.Context, addr string, err error) error {
	switch {
	case SpeaksTLS(ctx, addr, err):
		return ErrTLS
	case err == nil || isSilent(err):
		return nil
	}
	return greeted(ctx, addr)
}

// isSilent reports whether nothing answered.
func isSilent(err error) bool {
	var timeout net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &timeout) && timeout.Timeout()
}

// greeted returns what the server at addr speaks by its answer to HTTP/2's preface: a SETTINGS frame (RFC 9113, 3.4), or nothing of HTTP.
func greeted(ctx context.Context, addr string) error {
	c, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dialTime))
	frame := [9]byte{3: 4}
	_, _ = c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame[:]...))
	n, _ := io.ReadFull(c, frame[:])
	switch {
	case n == len(frame) && frame[0] == 0 && frame[3] == 4:
		return ErrHTTP2
	case n > 0 && !bytes.HasPrefix([]byte("HTTP/"), frame[:min(n, 5)]):
		return ErrNoHTTP
	}
	return nil
}

// SpeaksTLS reports whether a request in plain text failed because the server at addr speaks TLS: such servers reset the connection,
// close it, or answer 400. err is the request's error, or nil for a status of 400.
func SpeaksTLS(ctx context.Context, addr string, err error) bool {
	var alert tls.AlertError
	var other tls.RecordHeaderError
	var untrusted *tls.CertificateVerificationError
	switch {
	case isSilent(err):
		return false
	case errors.As(err, &alert), errors.As(err, &other), errors.As(err, &untrusted):
		return false // it was asked over TLS
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // nothing is sent: the question is whether it speaks TLS
	c, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		c.Close()
	}
	return err == nil || errors.As(err, &alert)
}

// Ask sends a request to the server at addr (host:port), a POST of JSON if it has a body, else a GET. status is 0 if no response came,
// and then the error is one of Instead if that is why. A response's body above limit bytes is an error.
func Ask(ctx context.Context, client *http.Client, addr, path string, request []byte, limit int64) (status int, header http.Header,
	body []byte, err error) {
	method := http.MethodGet
	if request != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(request))
	if err != nil {
		return 0, nil, nil, err
	}
	if request != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := client.Do(req)
	if err == nil {
		defer res.Body.Close()
	}
	if err != nil || res.StatusCode == http.StatusBadRequest {
		if other := Instead(ctx, addr, err); other != nil {
			return 0, nil, nil, other
		}
	}
	var dialled *net.OpError
	if err != nil && isSilent(err) && !errors.As(err, &dialled) && ctx.Err() == nil {
		err = fmt.Errorf("it takes connections and gives no answer in %v", client.Timeout)
	}
	if err != nil {
		return 0, nil, nil, err
	}
	body, err = io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("%s %s: more than %d bytes", method, path, limit)
	}
	return res.StatusCode, res.Header, body, err
}

// IsPage reports whether a response is a page of HTML.
func IsPage(header http.Header) bool {
	return strings.HasPrefix(header.Get("Content-Type"), "text/html")
}

// Get returns the body of the 200 response to a GET. since names the releases that serve the path, for the error, such as vLLM 0.31
// or later.
func Get(ctx context.Context, client *http.Client, addr, path, since string, limit int64) ([]byte, http.Header, error) {
	status, header, body, err := Ask(ctx, client, addr, path, nil, limit)
	if page := IsPage(header); status != 0 && (status != http.StatusOK || page) {
		return nil, nil, &StatusError{path, status, since, page}
	}
	return body, header, err
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
