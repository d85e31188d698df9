// Package fetch learns the identity of pictures behind http and https URLs, once for all requests that name them, and
// never for longer than a request may wait.
//
// Get answers from memory when HTTP says that the last answer still holds, waits for a download up to the budget
// otherwise, and leaves the download running for the next request when the budget is spent. Two caches stand behind it:
// a large one of what is known about URLs (about 400 bytes each) and a small one of picture bytes (by content id), which
// other names and the relay need.
//
// What reaches the network is guarded at the dialler: the address that is really dialled is checked, at every redirect
// and after every DNS answer (guard.go). Hosts have a limit, a failure counter and a circuit breaker of their own
// (host.go). No URL, path or credential is ever part of an error: only the host is.
package fetch

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/net/http/httpproxy"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/mmhash"
)

// Config is a Fetcher's limits. Zero values take the defaults named here.
type Config struct {
	AllowedDomains []string       // exact host names, also of redirects; empty = any
	Allow          []netip.Prefix // addresses that are dialled although they are not public, on any port
	Ports          []uint16       // ports of public addresses (80, 443)

	Budget       time.Duration // how long Get waits (150 ms)
	Timeout      time.Duration // how long one download may take in all (10 s)
	MaxBytes     int64         // of one picture (50 MiB)
	MaxRedirects int           // (5); negative = none

	PerHost       int   // downloads at once from one host (8)
	Total         int   // and in all (64); sixteen times as many may wait, eight times PerHost for one host
	InFlightBytes int64 // bytes of unfinished downloads (128 MiB)

	URLs      int   // URLs remembered (100 000)
	ByteCache int64 // bytes of pictures kept (64 MiB)

	// Signing lists query parameters that sign a URL and do not say what it shows, per host: "cdn.example.com" or
	// "*.example.com", a parameter with * at its end is a prefix. nil = DefaultSigning.
	Signing map[string][]string

	// Proxy says which proxy serves a URL, nil for none (HTTP_PROXY, HTTPS_PROXY, NO_PROXY of the environment). A proxy is
	// dialled wherever it stands, and resolves names itself: behind one, addresses written in a URL are guarded, and names by
	// their port alone (guard.written).
	Proxy func(*url.URL) (*url.URL, error)

	// Seen, if set, is called once for every picture downloaded, in the download's own goroutine: the moment to compute
	// names while the bytes are at hand. bytes must not be changed or kept.
	Seen func(f mmhash.Facts, bytes []byte)

	// Panicked, if set, is told of a download that panicked, in its own goroutine. It costs that URL's waiting requests.
	Panicked func(error)

	// NoRoom, if set, is told of what had to go because there was no room for more: "picture URLs", "picture bytes", "picture hosts".
	NoRoom func(what string)

	resolver *net.Resolver
	now      func() time.Time
}

func (c *Config) defaults() {
	c.Budget, c.Timeout = cmp.Or(c.Budget, 150*time.Millisecond), cmp.Or(c.Timeout, 10*time.Second)
	c.MaxBytes, c.InFlightBytes = cmp.Or(c.MaxBytes, 50<<20), cmp.Or(c.InFlightBytes, 128<<20)
	c.ByteCache, c.URLs = cmp.Or(c.ByteCache, 64<<20), cmp.Or(c.URLs, 100_000)
	c.PerHost, c.Total, c.MaxRedirects = cmp.Or(c.PerHost, 8), cmp.Or(c.Total, 64), cmp.Or(c.MaxRedirects, 5)
	if len(c.Ports) == 0 {
		c.Ports = []uint16{80, 443}
	}
	if c.Signing == nil {
		c.Signing = DefaultSigning
	}
	if c.Proxy == nil {
		c.Proxy = httpproxy.FromEnvironment().ProxyFunc()
	}
	if c.NoRoom == nil {
		c.NoRoom = func(string) {}
	}
	if c.now == nil {
		c.now = time.Now
	}
}

func (c *Config) check() error {
	for what, v := range map[string]int64{"Budget": int64(c.Budget), "Timeout": int64(c.Timeout), "MaxBytes": c.MaxBytes,
		"InFlightBytes": c.InFlightBytes, "ByteCache": c.ByteCache, "PerHost": int64(c.PerHost), "Total": int64(c.Total),
		"URLs": int64(c.URLs)} {
		if v < 0 {
			return fmt.Errorf("fetch: %s %d: want a positive number", what, v)
		}
	}
	for i, d := range c.AllowedDomains {
		if c.AllowedDomains[i] = hostname(d); strings.ContainsAny(d, "/:*@") || d == "" {
			return fmt.Errorf("fetch: AllowedDomains[%d] %q: want a bare host name, such as images.example.com", i, d)
		}
	}
	return nil
}

// Fetcher is safe for concurrent use. Close it.
type Fetcher struct {
	cfg    Config
	rules  atomic.Pointer[Config] // of it, what Change changes
	client *http.Client
	urls   *otter.Cache[key, *entry]
	bytes  *otter.Cache[mmhash.ContentID, []byte]
	hosts  *hosts
	total  chan struct{}

	inFlight atomic.Int64 // bytes of unfinished downloads
	stats    counters

	base   context.Context // ends with Close
	stop   context.CancelFunc
	idle   func()
	wg     sync.WaitGroup
	mu     sync.Mutex
	flight map[key]*flight
	closed bool
}

// flight is one download that any number of requests wait for.
type flight struct {
	done  chan struct{}
	facts mmhash.Facts
	err   error
}

// New makes a Fetcher. An error names the setting that is wrong.
func New(cfg Config) (*Fetcher, error) {
	cfg.AllowedDomains = slices.Clone(cfg.AllowedDomains)
	cfg.defaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	f := &Fetcher{cfg: cfg, total: make(chan struct{}, cfg.Total), flight: map[key]*flight{},
		hosts: newHosts(cfg.PerHost, cfg.now, cfg.NoRoom)}
	f.urls = otter.Must(&otter.Options[key, *entry]{MaximumSize: cfg.URLs, OnAtomicDeletion: evicted[key, *entry](cfg.NoRoom, "picture URLs")})
	f.bytes = otter.Must(&otter.Options[mmhash.ContentID, []byte]{
		MaximumWeight:    uint64(cfg.ByteCache),
		OnAtomicDeletion: evicted[mmhash.ContentID, []byte](cfg.NoRoom, "picture bytes"),
		Weigher:          func(_ mmhash.ContentID, b []byte) uint32 { return uint32(len(b)) + 128 },
	})
	f.base, f.stop = context.WithCancel(context.Background())
	f.rules.Store(&f.cfg)
	f.client, f.idle = newClient(&f.cfg, f.rules.Load)
	return f, nil
}

// evicted tells full of each entry of a cache that went for others.
func evicted[K comparable, V any](full func(string), what string) func(otter.DeletionEvent[K, V]) {
	return func(e otter.DeletionEvent[K, V]) {
		if e.WasEvicted() {
			full(what)
		}
	}
}

// Change sets AllowedDomains, Allow, Budget and Signing anew, for what is asked for from now on; all else of cfg is left as it
// was. What is remembered stays.
func (f *Fetcher) Change(cfg Config) error {
	own := f.cfg
	own.AllowedDomains, own.Allow, own.Budget, own.Signing = slices.Clone(cfg.AllowedDomains), cfg.Allow, cfg.Budget, cfg.Signing
	own.defaults()
	if err := own.check(); err != nil {
		return err
	}
	f.rules.Store(&own)
	f.idle() // connections to where none may lead any more
	return nil
}

// Close ends running downloads and returns when none is left.
func (f *Fetcher) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	f.wg.Wait()
	f.idle()
	f.urls.StopAllGoroutines()
	f.bytes.StopAllGoroutines()
	f.hosts.close()
}

// Get gives the identity of the picture behind rawURL, within the budget and ctx. Errors are *Error: Budget means that
// the download goes on and a later request may find it; Last may know what the URL showed before. With NotAnImage the
// bytes came, so ID and Bytes are set; the engine may still know a format that package header does not read.
func (f *Fetcher) Get(ctx context.Context, rawURL string) (mmhash.Facts, error) {
	t, err := f.parse(rawURL)
	if err != nil {
		return mmhash.Facts{}, f.count(err)
	}
	e, known := f.urls.GetIfPresent(t.key)
	if known {
		switch now := f.cfg.now(); {
		case e.err != nil && now.Before(e.fresh) && e.err.Kind == NotAnImage:
			return e.facts, f.count(e.err)
		case e.err != nil && now.Before(e.fresh):
			return mmhash.Facts{}, f.count(e.err)
		case e.err == nil && e.usable(now, t):
			f.stats.hits.Add(1)
			if !now.Before(e.fresh) {
				f.start(t, e) // revalidated behind this request's back
			}
			return e.facts, nil
		}
	}
	fl, err := f.start(t, e)
	if err != nil {
		return mmhash.Facts{}, f.count(err)
	}
	budget := time.NewTimer(f.rules.Load().Budget)
	defer budget.Stop()
	select {
	case <-fl.done:
		return fl.facts, f.count(fl.err)
	case <-budget.C:
	case <-ctx.Done():
	}
	return mmhash.Facts{}, f.count(&Error{Kind: Budget, Host: t.host})
}

// Last gives what the URL showed when it was last seen, however long ago: good for affinity, not for exact names.
func (f *Fetcher) Last(rawURL string) (mmhash.Facts, bool) {
	t, err := f.parse(rawURL)
	if err != nil {
		return mmhash.Facts{}, false
	}
	e, ok := f.urls.GetIfPresent(t.key)
	if !ok || e.facts.Bytes == 0 {
		return mmhash.Facts{}, false
	}
	return e.facts, true
}

// Alias is a number for what a URL shows, the same for all signatures that it may carry; ok is false for a URL that is
// never fetched.
func (f *Fetcher) Alias(rawURL string) (alias uint64, ok bool) {
	t, err := f.parse(rawURL)
	return binary.LittleEndian.Uint64(t.key[:]), err == nil
}

// Bytes gives a picture's bytes while they are kept. They must not be changed.
func (f *Fetcher) Bytes(id mmhash.ContentID) ([]byte, bool) { return f.bytes.GetIfPresent(id) }

// Hosts lists the hosts that failed lately, with their counters.
func (f *Fetcher) Hosts() []HostState { return f.hosts.list() }

// start joins the download of this very URL, or begins it.
func (f *Fetcher) start(t target, old *entry) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.flight[t.full]; ok {
		return fl, nil
	}
	switch {
	case f.closed:
		return nil, &Error{Kind: Closed, Host: t.host}
	case len(f.flight) >= 17*f.cfg.Total:
		return nil, &Error{Kind: Busy, Host: t.host}
	}
	fl := &flight{done: make(chan struct{})}
	f.flight[t.full] = fl
	f.wg.Add(1)
	go f.fly(t, old, fl)
	return fl, nil
}

// fly runs one download and files its result.
func (f *Fetcher) fly(t target, old *entry, fl *flight) {
	defer f.wg.Done()
	ctx, cancel := context.WithTimeout(f.base, f.cfg.Timeout)
	defer cancel()
	var e *entry
	err := guard.Call(func() (err error) { e, err = f.exchange(ctx, t, old); return err })
	if p := (*guard.Panic)(nil); errors.As(err, &p) {
		err = &Error{Kind: Panicked, Host: t.host, Err: p}
		if f.cfg.Panicked != nil {
			f.cfg.Panicked(p)
		}
	}
	if err != nil {
		e = f.failed(t, old, err)
	}
	if e != nil {
		f.urls.Set(t.key, e)
	}
	switch {
	case err != nil:
		fl.err = err
	case e.err != nil:
		fl.facts, fl.err = e.facts, e.err
	default:
		fl.facts = e.facts
	}
	f.mu.Lock()
	delete(f.flight, t.full)
	f.mu.Unlock()
	close(fl.done)
}

const (
	missingFor = 30 * time.Second // how long a refusal, a missing picture or a non-picture is remembered
	troubleFor = 3 * time.Second  // how long a host is not asked again for one URL after it failed
)

// failed says what is remembered of a failure: a refusal or a missing picture for a while, a host in trouble for a moment.
// What was known before stays known (Last), and after trouble stays in force a little longer.
func (f *Fetcher) failed(t target, old *entry, err error) *entry {
	var e *Error
	if !errors.As(err, &e) || e.Kind == Closed || e.Kind == Busy {
		return nil
	}
	n := &entry{err: e, fresh: f.cfg.now().Add(troubleFor)}
	if old != nil {
		n.facts = old.facts
	}
	switch {
	case e.lasting() && t.signed:
		return nil // another signature may do better, and the entry is not this URL's alone
	case e.lasting():
		n.fresh = f.cfg.now().Add(missingFor)
	case old != nil && old.err == nil:
		n.err, n.etag, n.modified, n.full, n.stale = nil, old.etag, old.modified, old.full, old.stale
	}
	return n
}
