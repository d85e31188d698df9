package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"
	"golang.org/x/net/http/httpguts"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/workers/inspect"
)

// The canary is a prompt of some four blocks that was never sent before, answered with one token. Each worker gets it twice while
// its event sockets are read: the second answer must report cached tokens, and an event must report its blocks as stored. It is
// sent through Envoy twice again, with forged headers that would steer if Envoy believed them, followed by bodies as large as the
// limit allows.

// text returns a prompt of at least this many tokens. Equal seeds give equal prompts.
func text(seed uint64, tokens int) string {
	return fmt.Sprintf("%016x ", seed) + strings.Repeat("one two three four ", max(16, tokens))
}

func prompt(model, text string) []byte {
	body, _ := json.Marshal(map[string]any{"model": model, "prompt": text, "max_tokens": 1}) // texts and numbers always marshal
	return body
}

// sendCanaries sends the canary to all workers. Their sockets are connected before the first canary and read until the last is
// answered: one that two workers share shows the same messages twice, however busy this machine is.
func (s *collected) sendCanaries(ctx context.Context) {
	seed := rand.Uint64() // one for all workers' first blocks, whose hashes are compared
	var all sync.WaitGroup
	listening, stop := context.WithCancel(ctx)
	e := &ears{}
	for _, w := range s.Servers {
		if w.Err != nil || len(w.Facts.Served) == 0 || w.FrontEnd {
			continue
		}
		w.Sent, w.Sockets = true, socketsOf(w)
		for _, one := range w.Sockets {
			if one.Err == nil {
				e.sockets = append(e.sockets, one)
				all.Go(func() { e.listen(listening, one, w.Rules) })
				all.Go(func() { e.askReplay(ctx, one, s.o.Patience) })
			}
		}
	}
	wait(ctx, s.o.Patience, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return !slices.ContainsFunc(e.sockets, func(o *findings.Socket) bool { return !o.Up && o.Err == nil })
	})
	inspect.Each(s.Servers, func(_ int, w *findings.Server) {
		if w.Sent {
			e.sendCanary(ctx, w, seed, rules.NewClient(10*s.o.Patience, s.as), s.o.Patience)
		}
	})
	s.sendAgain(ctx, e, seed+3)
	stop()
	all.Wait()
	var later []findings.Worker
	if s.running && s.get(ctx, "/workers", &later) == nil {
		for _, w := range s.Servers {
			w.HeardThere = batches(w, later) > batches(w, s.rows)
		}
	}
	s.Missing[findings.FromRequests] = "no Envoy's admin page nor configuration is given"
	if s.envoyRead() {
		s.sendThrough(ctx)
		s.Missing[findings.FromRequests] = s.Through.Unasked
	}
}

// sendAgain sends one more prompt to each worker that was heard if another was not: a socket that two workers' entries name may have been
// subscribed for the second one only after the first one's event.
func (s *collected) sendAgain(ctx context.Context, e *ears, seed uint64) {
	heard := func(w *findings.Server) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return w.Heard()
	}
	silent := func() bool {
		return slices.ContainsFunc(s.Servers, func(w *findings.Server) bool { return len(w.Sockets) > 0 && !heard(w) })
	}
	if !silent() {
		return
	}
	client, sent := rules.NewClient(s.o.Patience, s.as), false
	for _, w := range s.Servers {
		if w.Sent && heard(w) {
			body := prompt(w.Facts.Served[0].ID, text(seed, w.LargestBlock()))
			_, err := inspect.Post(ctx, client, w.Addr, "/v1/completions", body)
			sent = sent || err == nil
		}
	}
	if sent {
		wait(ctx, s.o.Patience/3, func() bool { return !silent() })
	}
}

func (s *collected) envoyRead() bool { return s.Missing[findings.FromEnvoy] == "" }

// batches returns how many of a worker's event batches the running Sightline has received.
func batches(w *findings.Server, rows []findings.Worker) (n uint64) {
	for _, row := range rows {
		if row.Name == w.Name {
			n += row.Batches
		}
	}
	return n
}

// socketsOf returns the sockets on which the worker's events can be received.
func socketsOf(w *findings.Server) (list []*findings.Socket) {
	if e := w.Events; e.ZMQ != "" && !e.Bind {
		for rank := range max(1, w.Ranks) {
			one := &findings.Socket{Rank: rank, Ours: true}
			var err error
			one.Pub, err = zmq.Address(e.ZMQ, "", rank)
			if err == nil && e.Replay != "" {
				one.Replay, err = zmq.Address(e.Replay, "", rank)
			}
			one.Err = err
			list = append(list, one)
		}
		return list
	}
	for rank, e := range w.Facts.Events {
		list = append(list, &findings.Socket{EventSource: e, Rank: rank, Ours: w.Events.Auto})
	}
	return list
}

// ears listen to all workers' sockets; mu guards what they hear.
type ears struct {
	mu      sync.Mutex
	sockets []*findings.Socket
}

func (e *ears) sendCanary(ctx context.Context, w *findings.Server, seed uint64, client *http.Client, patience time.Duration) {
	heard := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return w.Heard()
	}
	own := text(rand.Uint64(), w.LargestBlock()) // two workers' messages differ even if they have the same time stamp
	for try := range uint64(3) {                 // messages before the subscription takes effect are lost
		body := prompt(w.Facts.Served[0].ID, text(seed+try, w.LargestBlock())+own)
		w.First, w.CanaryErr = inspect.Post(ctx, client, w.Addr, "/v1/completions", body)
		if w.CanaryErr == nil {
			w.Second, w.CanaryErr = inspect.Post(ctx, client, w.Addr, "/v1/completions", body)
		}
		if w.CanaryErr != nil || wait(ctx, patience/3, heard) || len(w.Sockets) == 0 {
			return
		}
	}
}

// wait polls until cond holds, for at most patience. It returns cond's last result.
func wait(ctx context.Context, patience time.Duration, cond func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !cond() {
		if !retry.Sleep(ctx, 5*time.Millisecond) {
			return false
		}
	}
	return true
}

// maxFrames bounds the frames kept per socket, since a worker may be busy.
const maxFrames = 256

// listen keeps the socket's frames until ctx ends.
func (e *ears) listen(ctx context.Context, o *findings.Socket, r rules.Rules) {
	if r.Decoder == nil {
		return
	}
	note := func(what func()) {
		e.mu.Lock()
		defer e.mu.Unlock()
		what()
	}
	d := r.Decoder(rules.Decoding{KeepTokens: true})
	sub := zmq.Sub{Endpoint: o.Pub, Up: func() { note(func() { o.Up = true }) },
		Down:      func(err error) { note(func() { o.Err = err }) },
		Malformed: func(form string) { note(func() { o.Unread = form }) }}
	err := sub.Run(ctx, func(m zmq.Message) {
		batch, err := d.Decode(m.Payload)
		err = cmp.Or(err, batch.Unread)
		if err != nil {
			note(func() { o.Unread = err.Error() })
			return
		}
		f := findings.Frame{Payload: sha256.Sum256(m.Payload), Came: time.Now(), Stamped: stamp(m.Payload)}
		for i := range batch.Events {
			e := &batch.Events[i]
			if e.Kind != kvevent.Stored || len(e.EngineHashes) == 0 {
				continue
			}
			f.BlockSize = e.BlockSize
			if !e.HasParent && len(e.Tokens) >= e.BlockSize && f.Begins == "" && e.LoRA == "" {
				f.Begins, f.Hash = fmt.Sprint(e.Tokens[:e.BlockSize]), e.EngineHashes[0]
			}
		}
		if f.BlockSize > 0 {
			note(func() {
				if len(o.Frames) < maxFrames {
					o.Frames = append(o.Frames, f)
				}
			})
		}
	})
	if ctx.Err() == nil {
		note(func() { o.Err = err })
	}
}

// stamp returns the time at the beginning of a batch of vLLM, SGLang or TensorRT-LLM, in Unix seconds; zero: none.
func stamp(payload []byte) time.Time {
	if _, rest, err := msgp.ReadArrayHeaderBytes(payload); err == nil {
		if at, _, err := msgp.ReadFloat64Bytes(rest); err == nil && at > 1e9 && at < 1e10 {
			return time.UnixMilli(int64(at * 1e3))
		}
	}
	return time.Time{}
}

var errEnough = errors.New("enough was replayed")

// askReplay requests the oldest message that the engine keeps.
func (e *ears) askReplay(ctx context.Context, o *findings.Socket, patience time.Duration) {
	if o.Replay == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := zmq.Replay(ctx, o.Replay, 0, fair.Hold{}, func(zmq.Message) error { return errEnough })
	if err != nil && !errors.Is(err, errEnough) {
		e.mu.Lock()
		o.Replayed = err
		e.mu.Unlock()
	}
}

// nowhere is an address where nothing listens: this machine's discard port.
const nowhere = "127.0.0.1:9"

// sendThrough sends the canaries through Envoy.
func (s *collected) sendThrough(ctx context.Context) {
	t := &s.Through
	c, err := s.clientOf(cmp.Or(s.o.URL, "http://"+dialable(s.Config.Envoy.Listen)))
	switch {
	case err != nil:
		t.Unasked = err.Error()
	case len(s.Config.Models) == 0 || !answersAt(c.addr()):
		t.Unasked = "nothing listens at " + c.addr() + " (envoy.listen, or --url)"
	case len(s.Life.Silent) > 0 || !s.running && s.Life.Dead(s.Config.Admin) != "": // each request would wait for Sightline
		t.Unasked = "Sightline does not answer (SL0505)"
	}
	if t.Unasked != "" {
		return
	}
	t.Asked, t.Decided = true, !s.running
	m := s.Config.Models[0]
	body := prompt(m.Name, text(rand.Uint64(), m.BlockSize))
	if err := c.usage(ctx, body); err != nil {
		t.Unasked = c.notLetIn(ctx, err)
		if t.Unasked != "" {
			t.Asked = false
			return
		}
		refused, ok := errors.AsType[*statusError](err)
		t.RBAC = ok && refused.rbac && !refused.worker
		t.Err = fmt.Errorf("the canary through Envoy at %s: %w", cmp.Or(s.o.URL, s.Config.Envoy.Listen), err)
		return
	}
	forged := http.Header{}
	for _, name := range []string{"x-target-worker", "x-target-worker-2", "x-gateway-destination-endpoint"} {
		forged.Set(name, nowhere)
	}
	if _, err := c.send(ctx, body, forged); err != nil {
		t.Steered = fmt.Errorf("with x-target-worker: %s from the client the answer is %w", nowhere, err)
	}
	s.tryBodies(ctx, c, m.Name)
	var decisions []router.Recent
	if s.running && s.get(ctx, "/decisions?n=1024", &decisions) == nil {
		t.Decided = slices.ContainsFunc(decisions, func(d router.Recent) bool { return d.At.After(s.began) && d.PromptTokens > 0 })
	}
}

// tryBodies finds the largest body that passes. No engine computes these requests, because max_tokens is below 1.
func (s *collected) tryBodies(ctx context.Context, c *client, model string) {
	t := &s.Through
	for size := int(s.Config.BodyLimit); size >= 16<<10; size /= 4 {
		head := fmt.Appendf(nil, `{"model":%q,"prompt":"x","max_tokens":-1,"user":"`, model)
		body := append(append(head, bytes.Repeat([]byte("x"), size-len(head)-2)...), `"}`...)
		_, err := c.send(ctx, body, nil)
		var refused *statusError
		if err == nil || errors.As(err, &refused) && refused.status != http.StatusRequestEntityTooLarge && refused.status < 500 {
			t.Passed = size
			return
		}
		t.Failed, t.Status = size, cmp.Or(t.Status, err.Error())
	}
}

// client is a client of Envoy.
type client struct {
	http   *http.Client
	base   *url.URL
	host   string
	header http.Header
}

// clientOf returns a client of the Envoy at base, as --header and --ca say.
func (s *collected) clientOf(base string) (*client, error) {
	at, err := url.Parse(web(base))
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("--url %q: want a URL, such as https://llm.example.com", base)
	}
	c := &client{http: rules.NewClient(10*s.o.Patience, nil), base: at, header: http.Header{}}
	for _, line := range s.o.Header {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return nil, errors.New("--header: want NAME: VALUE, such as 'authorization: Bearer …'")
		}
		value = strings.TrimSpace(value)
		if strings.EqualFold(name, "host") {
			c.host = value
			continue
		}
		c.header.Add(name, value)
	}
	as := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.host}
	if s.o.CA != "" {
		text, err := secure.ReadFile(s.o.CA)
		as.RootCAs = x509.NewCertPool()
		if err == nil && !as.RootCAs.AppendCertsFromPEM(text) {
			err = errors.New("no certificate in PEM")
		}
		if err != nil {
			return nil, fmt.Errorf("--ca %s: %w", s.o.CA, err)
		}
	}
	if t, ok := c.http.Transport.(*http.Transport); ok {
		t.TLSClientConfig = as
	}
	return c, nil
}

// addr returns the host and port that the client dials.
func (c *client) addr() string {
	return net.JoinHostPort(c.base.Hostname(), cmp.Or(c.base.Port(), map[string]string{"https": "443"}[c.base.Scheme], "80"))
}

// statusError is an answer with another status than 200.
type statusError struct {
	status int
	worker bool // Envoy had it from a worker
	to     string
	rbac   bool // Envoy's RBAC filter made it
}

func (e *statusError) Error() string { return fmt.Sprint("status ", e.status) }

// send sends a completion with these additional headers and returns the answer's body.
func (c *client) send(ctx context.Context, body []byte, more http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath("/v1/completions").String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host, req.Header = c.host, c.header.Clone()
	maps.Copy(req.Header, more)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = &statusError{res.StatusCode, res.Header.Get("x-envoy-upstream-service-time") != "", res.Header.Get("Location"),
			bytes.HasPrefix(answer, []byte("RBAC:"))}
	}
	return answer, err
}

// usage sends a completion, whose answer must have its usage.
func (c *client) usage(ctx context.Context, body []byte) error {
	var said struct {
		Usage inspect.Usage `json:"usage"`
	}
	answer, err := c.send(ctx, body, nil)
	if err == nil && (json.Unmarshal(answer, &said) != nil || said.Usage.Prompt < 1) {
		err = inspect.ErrNoUsage
	}
	return err
}

// notLetIn returns why a request like a client's could not be made, which says nothing about Envoy's configuration; "": it was made,
// and failed.
func (c *client) notLetIn(ctx context.Context, err error) string {
	var got *statusError
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return fmt.Sprintf("%v: give --ca FILE, or --header 'host: NAME' as the certificate has it", untrusted.Err)
	}
	if !errors.As(err, &got) || got.status == http.StatusBadRequest {
		if c.base.Scheme == "http" && rules.SpeaksTLS(ctx, c.addr(), err) {
			return "Envoy speaks TLS at " + c.addr() + ": give --url https://NAME:PORT, with --ca FILE unless the system trusts its certificate"
		}
		return ""
	}
	switch status := got.status; {
	case got.rbac: // no token helps
		return ""
	case rules.WantsKey(status) || status == http.StatusProxyAuthRequired:
		return fmt.Sprintf("the answer is status %d: give --header 'authorization: Bearer …' as clients send it", status)
	case status/100 == 3:
		return fmt.Sprintf("the answer is status %d, to %.200q: give --url", status, got.to)
	case !got.worker && (status == http.StatusNotFound || status == http.StatusMisdirectedRequest):
		return fmt.Sprintf("the answer is status %d, from Envoy itself: give --header 'host: NAME', or --url, as clients use them", status)
	case status == http.StatusTooManyRequests:
		return "the answer is status 429: repeat it when there is less to do"
	}
	return ""
}
