package rules

import (
	"bytes"
	"cmp"
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
	"github.com/sightline-router/sightline/internal/sockets"
)

// ErrNoEvents means that the worker publishes no events: it was started without --kv-events-config, or not over TCP.
var ErrNoEvents = errors.New("the worker publishes no KV events (start it with --kv-events-config)")

// ErrNotAsked means that the worker was asked over HTTP where its events are, and did not say.
var ErrNotAsked = errors.New("it cannot be asked where its events are")

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

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return sockets.Direct(c), nil
}

func newClient(limit time.Duration, as *secure.Client, kept time.Duration) *http.Client {
	return &http.Client{
		Transport: as.Transport(&http.Transport{DialContext: dial,
			DisableCompression: true, DisableKeepAlives: kept == 0, IdleConnTimeout: kept, MaxIdleConnsPerHost: 4,
			MaxResponseHeaderBytes: maxHeaders}),
		Timeout:       limit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// StatusError reports a response with a status other than 200, or a page of HTML, which no engine answers with.
type StatusError struct {
	Query  string // such as GET /v1/models
	Status int
	Since  string // which releases serve the path, such as vLLM 0.31 or later; "": not said
	Page   bool
	Text   string // how the answer begins; Error does not quote it
}

func (e *StatusError) Error() string {
	switch {
	case e.Page:
		return fmt.Sprintf("%s: status %d with %s", e.Query, e.Status, PageHint)
	case WantsKey(e.Status):
		return fmt.Sprintf("%s: status %d: %s", e.Query, e.Status, KeyHint)
	case e.Since == "":
		return fmt.Sprintf("%s: status %d (want 200)", e.Query, e.Status)
	}
	return fmt.Sprintf("%s: status %d (want 200; %s has it)", e.Query, e.Status, e.Since)
}

// Instead returns TLS, HTTP2 or NoHTTP if a request to addr failed with err because that is what the server speaks; else nil.
func Instead(ctx context.Context, addr string, err error) error {
	switch {
	case SpeaksTLS(ctx, addr, err):
		return TLS
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
	frame, _ := Greet(ctx, addr, dialTime)
	switch {
	case len(frame) == 9 && frame[0] == 0 && frame[3] == 4:
		return HTTP2
	case len(frame) > 0 && !bytes.HasPrefix([]byte("HTTP/"), frame[:min(len(frame), 5)]):
		return NoHTTP
	}
	return nil
}

// Greet connects to host:port or unix:/path, says what an HTTP/2 client says first, and returns the first nine bytes of the answer. A
// server of HTTP/1 or TLS answers too, with a refusal: no key or certificate is needed to see that a process lives. The kernel accepts
// connections for a process that is stopped.
func Greet(ctx context.Context, addr string, limit time.Duration) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	frame := [9]byte{3: 4} // empty settings
	_, _ = c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame[:]...))
	n, err := io.ReadFull(c, frame[:])
	if n > 0 {
		err = nil
	}
	return frame[:n], err
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

// Ask sends a request to the server at addr (host:port), a POST of JSON to its rank 0 if it has a body, else a GET. status is 0 if no
// response came, and then the error is one of Instead if that is why. A response's body above limit bytes is an error.
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
		req.Header.Set("X-Data-Parallel-Rank", "0") // else several ranks take turns, and the same text again is not cached
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
	if err != nil && !isSilent(err) && ctx.Err() == nil {
		return 0, nil, nil, fmt.Errorf("%s %s: %w", method, path, BrokenOff)
	}
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
	return query(ctx, client, addr, path, since, nil, limit)
}

func query(ctx context.Context, client *http.Client, addr, path, since string, request []byte, limit int64) ([]byte, http.Header, error) {
	status, header, body, err := Ask(ctx, client, addr, path, request, limit)
	page := IsPage(header)
	if status != 0 && (status != http.StatusOK || page) {
		method := map[bool]string{true: "GET ", false: "POST "}[request == nil]
		return nil, nil, &StatusError{method + path, status, since, page, strings.TrimSpace(string(body[:min(len(body), 300)]))}
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

// PostJSON sends JSON and decodes that of the 200 response.
func PostJSON(ctx context.Context, client *http.Client, addr, path string, request []byte, limit int64, into any) error {
	body, _, err := query(ctx, client, addr, path, "", request, limit)
	if err == nil && json.Unmarshal(body, into) != nil {
		err = fmt.Errorf("POST %s: %w", path, Unreadable)
	}
	return err
}

const maxServed = 1024

// Models reads a server's /v1/models into its facts. Its root is the engine's --model only for vLLM; SGLang's is the served name (its
// arguments contain the other), and TensorRT-LLM has none.
func Models(ctx context.Context, client *http.Client, f *Facts) error {
	var list struct {
		Data []struct {
			Served
			Owner string `json:"owned_by"`
		}
	}
	body, header, err := Get(ctx, client, f.Addr, "/v1/models", "every engine", maxAnswer)
	switch {
	case err != nil:
		return err
	case json.Unmarshal(body, &list) != nil:
		return fmt.Errorf("GET /v1/models: %w (want JSON as an OpenAI-style server writes it)", Unreadable)
	case len(list.Data) == 0:
		return errors.New("GET /v1/models: it serves no model (yet)")
	}
	f.Owner, f.Simulated = CleanText(list.Data[0].Owner), header.Get("Server") == simulatedServer
	for _, m := range list.Data[:min(len(list.Data), maxServed)] {
		one := Served{CleanText(m.ID), CleanText(m.Root), CleanText(m.Parent), CleanCount(m.MaxLen)}
		if one.ID == "" {
			f.Lacks("served", errors.New("a model's name is empty, longer than a kilobyte or not printable"))
			continue
		}
		f.Served = append(f.Served, one)
		if one.Parent == "" {
			f.MaxModelLen = cmp.Or(f.MaxModelLen, one.MaxLen)
		}
	}
	return nil
}

// simulatedServer is the Server header of this project's own simulated workers.
const simulatedServer = "sightline-simulated"

// ErrNoRelease means that a server's /version cannot be understood.
var ErrNoRelease = errors.New("/version names no release such as 0.32.0")

// Release reads a server's /version into its facts.
func Release(ctx context.Context, client *http.Client, f *Facts) error {
	var release struct {
		Version string `json:"version"`
	}
	if err := GetJSON(ctx, client, f.Addr, "/version", "every release", &release); err != nil {
		return err
	}
	if _, err := ParseVersion(release.Version); err != nil {
		return fmt.Errorf("%w, but %.100q", ErrNoRelease, release.Version)
	}
	f.Version = CleanText(release.Version)
	return nil
}
