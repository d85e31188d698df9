package trtllm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/internal/sockets"
)

// Drain polls one worker's POST /kv_cache_events. An answer removes its events from the engine's queue, so each worker must have
// exactly one Drain anywhere; a second one shows as gaps in the event numbers. One Drain serves all ranks of its worker: every
// rank's feed gets every answer, and its Decoder selects its own rank.
//
// A worker with events is polled again after 5 ms, an idle one at intervals that grow to 25 ms; releases up to 1.3.0rc9 delay an
// empty answer by 2 s. A worker that cannot be reached is polled after 100 ms, with back-off up to 5 s.
type Drain struct {
	url    string
	ranks  int
	client *http.Client

	mu    sync.Mutex
	feeds []*stream.Feed
	seq   uint64 // of the next answer; used only by poll
}

const (
	minPause, maxPause = 5 * time.Millisecond, 25 * time.Millisecond
	minRetry, maxRetry = 100 * time.Millisecond, 5 * time.Second
	answerTime         = 15 * time.Second
	maxAnswer          = 48 << 20 // what one worker alone may take of stream.Budget's room for what is received
	maxKeptBuffer      = 64 << 10 // capacity of the answer buffer that is kept; a larger one takes of that room
	eventsPath         = "/kv_cache_events"
	maxErrorText       = 200
)

// NewDrain returns a Drain of the server at base, such as http://10.0.0.5:8000, which has this many attention data-parallel ranks
// (0 or 1: none). as holds the TLS and token settings towards it, or nil. Polling begins when all its Sources run.
func NewDrain(base string, ranks int, as *secure.Client) *Drain {
	t := &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}
	return &Drain{url: base + eventsPath, ranks: max(ranks, 1), client: &http.Client{Transport: as.Transport(t),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Source returns a stream.Source for one rank. Call it once per rank.
func (d *Drain) Source() stream.Source { return rankSource{d} }

type rankSource struct{ *Drain }

// Run implements stream.Source. The last rank to run does the polling.
func (s rankSource) Run(ctx context.Context, f *stream.Feed) error {
	s.mu.Lock()
	if !slices.Contains(s.feeds, f) { // after a panic it runs again
		s.feeds = append(s.feeds, f)
	}
	feeds := slices.Clone(s.feeds)
	s.mu.Unlock()
	if len(feeds) == s.ranks {
		s.poll(ctx, feeds)
	}
	<-ctx.Done()
	return ctx.Err()
}

// Replay implements stream.Source. Replay is not supported: drained events are gone.
func (rankSource) Replay(context.Context, uint64, func(stream.Message) error) error {
	return errors.ErrUnsupported
}

func (d *Drain) poll(ctx context.Context, feeds []*stream.Feed) {
	defer d.client.CloseIdleConnections()
	var buf []byte
	room := feeds[0].Received()
	defer func() { room.Free() }()
	if d.seq > 0 { // the previous poll panicked, and what it had drained is lost
		d.seq++
	}
	pause, up, failures := minPause, false, retry.Backoff{First: minRetry, Longest: maxRetry}
	for ctx.Err() == nil {
		var err error
		buf, err = d.post(ctx, buf[:0], &room)
		if ctx.Err() != nil {
			return
		}
		if err == nil && !up {
			up = true
			failures.Reset()
			for _, f := range feeds {
				f.Up()
			}
		}
		// A truncated answer has left the engine's queue nevertheless. Passing on its beginning, which cannot be decoded, marks the
		// worker's state as doubtful.
		if holdsEvents(buf) {
			for _, f := range feeds {
				f.Offer(stream.Message{Seq: d.seq, Payload: buf})
			}
			d.seq++
			pause = minPause
		} else {
			pause = min(2*pause, maxPause)
		}
		if cap(buf) > maxKeptBuffer {
			buf = nil
			room.Free()
		}
		switch {
		case err == nil:
			retry.Sleep(ctx, pause)
		case sockets.Exhausted(err): // nothing was drained, so nothing is lost
			retry.Sleep(ctx, minRetry)
		default:
			up = false
			for _, f := range feeds {
				f.Down(err)
			}
			failures.Wait(ctx)
		}
	}
}

// holdsEvents distinguishes an answer from the empty array, without decoding it.
func holdsEvents(b []byte) bool {
	for i, open := 0, false; i < len(b); i++ {
		switch b[i] {
		case ' ', '\t', '\n', '\r':
		case '[':
			if open {
				return true
			}
			open = true
		case ']':
			return !open
		default:
			return true
		}
	}
	return false
}

// post appends the worker's answer to buf; room is for a large one. With an error, buf holds the part of a 200 response that arrived
// before it.
func (d *Drain) post(ctx context.Context, buf []byte, room *fair.Hold) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, nil)
	if err != nil {
		return buf, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return buf, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		if rules.WantsKey(resp.StatusCode) {
			return buf, fmt.Errorf("POST %s: status %d: %s", eventsPath, resp.StatusCode, rules.KeyHint)
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
		return buf, fmt.Errorf("POST %s: status %d %.100q (is it trtllm-serve, with kv_cache_config.event_buffer_max_size above 0?)",
			eventsPath, resp.StatusCode, text)
	}
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= maxAnswer {
				return buf, fmt.Errorf("POST %s: an answer of more than %d MiB", eventsPath, maxAnswer>>20)
			}
			size := min(maxAnswer, len(buf)+max(maxKeptBuffer, len(buf)/2))
			if size > maxKeptBuffer && !room.Grow(ctx, int64(size)) {
				return buf, fmt.Errorf("POST %s: too many workers give large answers", eventsPath)
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}
