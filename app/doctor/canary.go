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
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"
	"golang.org/x/net/http/httpguts"

	"github.com/sightline-router/sightline/app/inspect"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
)

// The canary is a prompt of some four blocks that was never sent before, answered with one token. Each worker gets it twice while
// its event sockets are read: the second answer must report cached tokens, and an event must report its blocks as stored. It is
// sent through Envoy twice again, with forged headers that would steer if Envoy believed them, followed by bodies as large as the
// limit allows.

// canary is its result at one worker.
type canary struct {
	sent          bool
	err           error
	first, second inspect.Usage
	sockets       []*socket
}

// socket is one rank's event socket.
type socket struct {
	rules.EventSource
	rank     int
	ours     bool // it is configured; otherwise the worker reported it, and perhaps only an agent beside the worker can reach it
	replayed error

	mu     sync.Mutex
	up     bool
	err    error // the latest, while it was not connected
	frames []eventFrame
	unread string // why the last message that came could not be read
}

// eventFrame is a message that reports stored blocks.
type eventFrame struct {
	payload   [sha256.Size]byte
	came      time.Time
	stamped   time.Time // by the worker; zero: no time stamp
	blockSize int
	begins    string // the tokens of a first block of a prompt, as text; "": there is none
	hash      uint64 // of that block
}

// envoyCanary is the canary's result through Envoy.
type envoyCanary struct {
	asked         bool
	unasked       string // why it could not be sent, or was not let in
	err           error
	first, second inspect.Usage
	steered       error // a response to a request with forged headers that differs from the one without them
	passed        int   // size of the largest body that was accepted, in bytes
	failed        int   // size of the smallest that was not; 0: none
	status        string
}

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
	var sockets []*socket
	for _, w := range s.workers {
		if w.err == nil && len(w.facts.Served) > 0 {
			w.canary.sent, w.canary.sockets = true, w.sources()
			sockets = append(sockets, w.canary.sockets...)
			for _, one := range w.canary.sockets {
				if one.err == nil {
					all.Go(func() { one.listen(listening, w.rules) })
					all.Go(func() { one.askReplay(listening, s.o.Patience) })
				}
			}
		}
	}
	wait(ctx, s.o.Patience, func() bool { return allAre(sockets, func(o *socket) bool { return o.up || o.err != nil }) })
	s.each(func(w *worker) {
		if w.canary.sent {
			w.sendCanary(ctx, seed, rules.NewClient(10*s.o.Patience, s.as), s.o.Patience)
		}
	})
	stop()
	all.Wait()
	if s.envoyAsked && s.envoyErr == nil {
		s.sendThrough(ctx)
	}
}

// sources returns the sockets on which the worker's events can be received.
func (w *worker) sources() (list []*socket) {
	if e := w.Events; e.ZMQ != "" && !e.Bind {
		for rank := range max(1, w.Ranks) {
			one := &socket{rank: rank, ours: true}
			var err error
			one.Pub, err = zmq.Address(e.ZMQ, "", rank)
			if err == nil && e.Replay != "" {
				one.Replay, err = zmq.Address(e.Replay, "", rank)
			}
			one.Topic, one.err = e.Topic, err
			list = append(list, one)
		}
		return list
	}
	for rank, e := range w.facts.Events {
		list = append(list, &socket{EventSource: e, rank: rank, ours: w.Events.Auto})
	}
	return list
}

// largestBlock returns the most tokens that a block of the worker has, as far as it is known before its events come.
func (w *worker) largestBlock() int { return max(w.class.BlockSize, w.facts.BlockSize) }

func (w *worker) sendCanary(ctx context.Context, seed uint64, client *http.Client, patience time.Duration) {
	c := &w.canary
	own := text(rand.Uint64(), w.largestBlock()) // two workers' messages differ even if they have the same time stamp
	for try := range uint64(3) {                 // messages before the subscription takes effect are lost
		body := prompt(w.facts.Served[0].ID, text(seed+try, w.largestBlock())+own)
		c.first, c.err = inspect.Post(ctx, client, w.Addr, "/v1/completions", body)
		if c.err != nil {
			return
		}
		c.second, c.err = inspect.Post(ctx, client, w.Addr, "/v1/completions", body)
		if c.err != nil {
			return
		}
		if wait(ctx, patience/3, c.heard) || len(c.sockets) == 0 {
			return
		}
	}
}

// heard reports whether an event of stored blocks was received.
func (c *canary) heard() bool {
	return !allAre(c.sockets, func(o *socket) bool { return len(o.frames) == 0 })
}

// unread returns why the events that came could not be read; "": none came, or some could be.
func (c *canary) unread() (why string) {
	if !c.heard() {
		for _, o := range c.sockets {
			o.mu.Lock()
			why = cmp.Or(why, o.unread)
			o.mu.Unlock()
		}
	}
	return why
}

// allAre reports whether is holds for each socket. It calls is with the socket's lock held.
func allAre(list []*socket, is func(*socket) bool) bool {
	yes := true
	for _, o := range list {
		o.mu.Lock()
		yes = yes && is(o)
		o.mu.Unlock()
	}
	return yes
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
func (o *socket) listen(ctx context.Context, r rules.Rules) {
	if r.Decoder == nil {
		return
	}
	d := r.Decoder(rules.Decoding{KeepTokens: true})
	sub := zmq.Sub{Endpoint: o.Pub, Topic: o.Topic,
		Up:        func() { o.mu.Lock(); o.up = true; o.mu.Unlock() },
		Down:      func(err error) { o.mu.Lock(); o.err = err; o.mu.Unlock() },
		Malformed: func(form string) { o.mu.Lock(); o.unread = form; o.mu.Unlock() }}
	err := sub.Run(ctx, func(m zmq.Message) {
		batch, err := d.Decode(m.Payload)
		err = cmp.Or(err, batch.Unread)
		if err != nil {
			o.mu.Lock()
			o.unread = err.Error()
			o.mu.Unlock()
			return
		}
		f := eventFrame{payload: sha256.Sum256(m.Payload), came: time.Now(), stamped: stamp(m.Payload)}
		for i := range batch.Events {
			e := &batch.Events[i]
			if e.Kind != kvevent.Stored || len(e.EngineHashes) == 0 {
				continue
			}
			f.blockSize = e.BlockSize
			if !e.HasParent && len(e.Tokens) >= e.BlockSize && f.begins == "" && e.LoRA == "" {
				f.begins, f.hash = fmt.Sprint(e.Tokens[:e.BlockSize]), e.EngineHashes[0]
			}
		}
		o.mu.Lock()
		if f.blockSize > 0 && len(o.frames) < maxFrames {
			o.frames = append(o.frames, f)
		}
		o.mu.Unlock()
	})
	if ctx.Err() == nil {
		o.mu.Lock()
		o.err = err
		o.mu.Unlock()
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
func (o *socket) askReplay(ctx context.Context, patience time.Duration) {
	if o.Replay == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := zmq.Replay(ctx, o.Replay, 0, func(zmq.Message) error { return errEnough }); err != nil && !errors.Is(err, errEnough) {
		o.mu.Lock()
		o.replayed = err
		o.mu.Unlock()
	}
}

// nowhere is an address where nothing listens: this machine's discard port.
const nowhere = "127.0.0.1:9"

// sendThrough sends the canaries through Envoy.
func (s *collected) sendThrough(ctx context.Context) {
	t := &s.through
	c, err := s.clientOf(cmp.Or(s.o.URL, "http://"+dialable(s.cfg.Envoy.Listen)))
	if err != nil {
		t.unasked = err.Error()
		return
	}
	if len(s.cfg.Models) == 0 || !answersAt(c.addr()) {
		if s.o.URL != "" {
			t.unasked = "nothing listens at --url, " + s.o.URL
		}
		return
	}
	if len(s.life.silent) > 0 || s.running == nil && s.life.dead(s.cfg.Admin, false) != "" { // each request would wait for Sightline
		t.unasked = "Sightline does not answer (SL0505)"
		return
	}
	t.asked = true
	m := s.cfg.Models[0]
	body := prompt(m.Name, text(rand.Uint64(), m.BlockSize))
	t.first, t.err = c.usage(ctx, body)
	if t.err != nil {
		t.unasked = c.notLetIn(ctx, t.err)
		if t.unasked != "" {
			t.asked, t.err = false, nil
		}
		return
	}
	if s.running != nil { // it predicts the second request from the first at once, but learns a moment later that the first has ended
		wait(ctx, s.o.Patience/10, func() bool { return false })
	}
	t.second, t.err = c.usage(ctx, body)
	if t.err != nil {
		return
	}
	forged := http.Header{}
	for _, name := range []string{"x-target-worker", "x-target-worker-2", "x-gateway-destination-endpoint"} {
		forged.Set(name, nowhere)
	}
	if _, err := c.send(ctx, body, forged); err != nil {
		t.steered = fmt.Errorf("with x-target-worker: %s from the client the answer is %w", nowhere, err)
	}
	s.tryBodies(ctx, c, m.Name)
}

// tryBodies finds the largest body that passes. No engine computes these requests, because max_tokens is below 1.
func (s *collected) tryBodies(ctx context.Context, c *client, model string) {
	t := &s.through
	for size := int(s.cfg.BodyLimit); size >= 16<<10; size /= 4 {
		head := fmt.Appendf(nil, `{"model":%q,"prompt":"x","max_tokens":-1,"user":"`, model)
		body := append(append(head, bytes.Repeat([]byte("x"), size-len(head)-2)...), `"}`...)
		_, err := c.send(ctx, body, nil)
		var refused *statusError
		if err == nil || errors.As(err, &refused) && refused.status != http.StatusRequestEntityTooLarge && refused.status < 500 {
			t.passed = size
			return
		}
		t.failed, t.status = size, cmp.Or(t.status, err.Error())
	}
}

// client is a client of Envoy.
type client struct {
	http   *http.Client
	base   *url.URL
	host   string
	header http.Header
}

// clientOf returns a client of the Envoy at base, as --host, --header and --ca say.
func (s *collected) clientOf(base string) (*client, error) {
	at, err := url.Parse(web(base))
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("--url %q: want a URL, such as https://llm.example.com", base)
	}
	c := &client{http: rules.NewClient(10*s.o.Patience, nil), base: at, host: s.o.Host, header: http.Header{}}
	for _, line := range s.o.Header {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return nil, errors.New("--header: want NAME: VALUE, such as 'authorization: Bearer …'")
		}
		c.header.Add(name, strings.TrimSpace(value))
	}
	as := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.o.Host}
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
	for name, values := range more {
		req.Header[name] = values
	}
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

// usage sends a completion and returns its answer's usage.
func (c *client) usage(ctx context.Context, body []byte) (inspect.Usage, error) {
	var said struct {
		Usage inspect.Usage `json:"usage"`
	}
	answer, err := c.send(ctx, body, nil)
	if err == nil && (json.Unmarshal(answer, &said) != nil || said.Usage.Prompt < 1) {
		err = errors.New("want an answer with its usage")
	}
	return said.Usage, err
}

// notLetIn returns why a request like a client's could not be made, which says nothing about Envoy's configuration; "": it was made,
// and failed.
func (c *client) notLetIn(ctx context.Context, err error) string {
	var got *statusError
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return fmt.Sprintf("%v: give --ca FILE, or --host NAME as the certificate has it", untrusted.Err)
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
		return fmt.Sprintf("the answer is status %d, from Envoy itself: give --host NAME, or --url, as clients use them", status)
	case status == http.StatusTooManyRequests:
		return "the answer is status 429: repeat it when there is less to do"
	}
	return ""
}
