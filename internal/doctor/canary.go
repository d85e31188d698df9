package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/survey"
)

// The canary is a prompt of some four blocks that was never sent before, answered with one token. Each worker gets it twice while
// its event sockets are read: the second answer must report cached tokens, and an event must report its blocks as stored. It is
// sent through Envoy twice again, with forged headers that would steer if Envoy believed them, followed by bodies as large as the
// limit allows.

// canary is its result at one worker.
type canary struct {
	sent          bool
	err           error
	first, second survey.Usage
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
	err           error
	first, second survey.Usage
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

// sendCanaries sends the canary to all workers.
func (s *collected) sendCanaries(ctx context.Context) {
	seed := rand.Uint64() // one for all workers, because their names of equal blocks are compared
	s.each(func(w *worker) {
		if w.err == nil && len(w.facts.Served) > 0 {
			w.sendCanary(ctx, seed, rules.NewClient(10*s.o.Patience, s.as), s.o.Patience)
		}
	})
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
			if one.Pub, err = zmq.Address(e.ZMQ, "", rank); err == nil && e.Replay != "" {
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

func (w *worker) sendCanary(ctx context.Context, seed uint64, client *http.Client, patience time.Duration) {
	c := &w.canary
	c.sent, c.sockets = true, w.sources()
	listening, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, one := range c.sockets {
		if one.err == nil {
			all.Go(func() { one.listen(listening, w.rules) })
			all.Go(func() { one.askReplay(listening, patience) })
		}
	}
	wait(ctx, patience, func() bool { return allAre(c.sockets, func(o *socket) bool { return o.up || o.err != nil }) })
	for try := range uint64(3) { // messages before the subscription takes effect are lost
		body := prompt(w.facts.Served[0].ID, text(seed+try, w.class.BlockSize))
		if c.first, c.err = survey.Post(ctx, client, w.Addr, "/v1/completions", body); c.err != nil {
			return
		}
		if c.second, c.err = survey.Post(ctx, client, w.Addr, "/v1/completions", body); c.err != nil {
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
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
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
		if err = cmp.Or(err, batch.Unread); err != nil {
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
			if f.blockSize = e.BlockSize; !e.HasParent && len(e.Tokens) >= e.BlockSize && f.begins == "" && e.LoRA == "" {
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
	host, port, err := net.SplitHostPort(s.cfg.Envoy.Listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	at := net.JoinHostPort(host, port)
	if err != nil || len(s.cfg.Models) == 0 || !answersAt(at) {
		return
	}
	t.asked = true
	m := s.cfg.Models[0]
	client := rules.NewClient(10*s.o.Patience, nil)
	body := prompt(m.Name, text(rand.Uint64(), m.BlockSize))
	if t.first, t.err = survey.Post(ctx, client, at, "/v1/completions", body); t.err != nil {
		return
	}
	if s.running != nil { // it predicts the second request from the first at once, but learns a moment later that the first has ended
		wait(ctx, s.o.Patience/10, func() bool { return false })
	}
	if t.second, t.err = survey.Post(ctx, client, at, "/v1/completions", body); t.err != nil {
		return
	}
	forged := http.Header{"Content-Type": {"application/json"}}
	for _, name := range []string{"x-target-worker", "x-target-worker-2", "x-gateway-destination-endpoint"} {
		forged.Set(name, nowhere)
	}
	if status, err := send(ctx, client, at, body, forged); err != nil || status != http.StatusOK {
		t.steered = fmt.Errorf("with x-target-worker: %s from the client the answer is %s", nowhere, words(status, err))
	}
	s.tryBodies(ctx, client, at, m.Name)
}

// tryBodies finds the largest body that passes. No engine computes these requests, because max_tokens is below 1.
func (s *collected) tryBodies(ctx context.Context, client *http.Client, at, model string) {
	t := &s.through
	for size := int(s.cfg.BodyLimit); size >= 16<<10; size /= 4 {
		head := fmt.Appendf(nil, `{"model":%q,"prompt":"x","max_tokens":-1,"user":"`, model)
		body := append(append(head, bytes.Repeat([]byte("x"), size-len(head)-2)...), `"}`...)
		status, err := send(ctx, client, at, body, http.Header{"Content-Type": {"application/json"}})
		if err == nil && status != http.StatusRequestEntityTooLarge && status < 500 {
			t.passed = size
			return
		}
		t.failed, t.status = size, cmp.Or(t.status, words(status, err))
	}
}

func words(status int, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint("status ", status)
}

func send(ctx context.Context, client *http.Client, at string, body []byte, h http.Header) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = h
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, err
}
