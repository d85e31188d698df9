package fetch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sightline-router/sightline/internal/fair"
)

// hosts holds a limit, a failure counter and a circuit breaker per host. It keeps at most 4096 hosts.
type hosts struct {
	perHost int64
	now     func() time.Time
	all     *lru.Cache[string, *host]
}

const (
	maxHosts    = 4096
	slow        = time.Second      // a download that takes as long is told of
	openAfter   = 5                // consecutive failures
	openFirst   = 2 * time.Second  // how long the circuit breaker stays open at first
	openLongest = 60 * time.Second // doubled with every further failure up to this
	waitPerSlot = 8                // downloads that may wait per slot of a host, so that a slow one cannot fill all queues
)

type host struct {
	slots *fair.Room // downloads at a time

	mu                  sync.Mutex
	consecutiveFailures int
	failures            uint64
	last                lastFailure
	took                time.Duration // for the last download
	tookAt              time.Time
	under               []time.Time // when the downloads that are under way began
	until               time.Time   // the circuit breaker is open until then
	probing             bool        // one request is testing whether the host has recovered
}

// lastFailure is a host's last failed download.
type lastFailure struct {
	why string
	at  time.Time
}

// HostState is a host's record.
type HostState struct {
	Host     string `json:"host"`
	Failures uint64 `json:"failures"` // since it was first seen: no connection, timeout, 5xx, 408, 429
	InARow   int    `json:"in_a_row"`
	Open     bool   `json:"open"` // no requests are sent to it at present

	Last string    `json:"last"` // the last failure, such as "timeout" or "status 503"
	At   time.Time `json:"at"`   // of the last failure

	Took   time.Duration `json:"took_ns"` // for the last download, or so far for one that takes longer
	TookAt time.Time     `json:"-"`
}

func newHosts(perHost int64, now func() time.Time, full func(string)) *hosts {
	all, _ := lru.NewWithEvict(maxHosts, func(string, *host) { full("image hosts") }) // fails only for a size below 1
	return &hosts{perHost, now, all}
}

// acquire waits for one of the host's slots. The caller must call release with the outcome.
func (h *hosts) acquire(ctx context.Context, c fair.Client, name string) (*host, error) {
	s, ok := h.all.Get(name)
	if !ok {
		s = &host{slots: fair.Shared(h.perHost, waitPerSlot*int(h.perHost))}
		if other, there, _ := h.all.PeekOrAdd(name, s); there {
			s = other
		}
	}
	if !s.admit(h.now()) {
		return nil, &Error{Kind: Open, Host: name}
	}
	if s.slots.Take(ctx, c, 1, 1) {
		return s, nil
	}
	s.mu.Lock()
	s.probing = false
	s.mu.Unlock()
	return nil, waitError(ctx, name)
}

// waitError returns why a download never began: Close, or no slot in time.
func waitError(ctx context.Context, host string) *Error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &Error{Kind: Closed, Host: host}
	}
	return &Error{Kind: Busy, Host: host}
}

// admit permits all requests while the circuit breaker is closed, and one at a time while it is half open.
func (s *host) admit(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.consecutiveFailures < openAfter:
		return true
	case now.Before(s.until) || s.probing:
		return false
	}
	s.probing = true
	return true
}

// begins notes a download that is under way.
func (s *host) begins(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under = append(s.under, at)
}

// release frees the slot and updates the failure counter and the circuit breaker.
func (s *host) release(c fair.Client, began, now time.Time, err error) {
	s.slots.Give(c, 1)
	var e *Error
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing, s.took, s.tookAt = false, now.Sub(began), now
	if at := slices.Index(s.under, began); at >= 0 {
		s.under = slices.Delete(s.under, at, at+1)
	}
	switch {
	case !errors.As(err, &e) || e.lasting():
		s.consecutiveFailures = 0
	case e.Kind == Closed || e.Kind == Busy: // not the host's fault
	default:
		s.failures++
		s.consecutiveFailures++
		s.last = lastFailure{e.why(), now}
		if s.consecutiveFailures >= openAfter {
			s.until = now.Add(min(openFirst<<min(s.consecutiveFailures-openAfter, 5), openLongest))
		}
	}
}

func (h *hosts) list() (out []HostState) {
	now := h.now()
	for _, name := range h.all.Keys() {
		s, ok := h.all.Peek(name)
		if !ok {
			continue
		}
		s.mu.Lock()
		took, at := s.took, s.tookAt
		for _, began := range s.under {
			if waits := now.Sub(began); waits >= max(took, slow) {
				took, at = waits, now
			}
		}
		if s.failures > 0 || took >= slow {
			out = append(out, HostState{name, s.failures, s.consecutiveFailures, s.consecutiveFailures >= openAfter && now.Before(s.until),
				s.last.why, s.last.at, took, at})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b HostState) int {
		return cmp.Or(cmp.Compare(b.Failures, a.Failures), cmp.Compare(a.Host, b.Host))
	})
	return out
}
