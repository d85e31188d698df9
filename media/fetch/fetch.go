// Package fetch identifies images behind http and https URLs, once for all requests that name them, and never for longer than a
// request may wait.
//
// Get answers from its cache if HTTP's rules say that the last answer is still valid. Otherwise it waits for a download up to the
// budget, and when that is spent leaves the download running for the next request. There are two caches: a large one of what is
// known about URLs (about 400 bytes each) and a small one of image bytes (by content id), which other names and the relay need.
//
// Connections are guarded at the dialler: it checks the address that is really dialled, at every redirect and after every DNS
// answer (guard.go). Each host has its own limit, failure counter and circuit breaker (host.go). Errors contain the host, and never
// another part of a URL or a credential.
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

	"golang.org/x/net/http/httpproxy"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
)

// Config holds a Fetcher's limits. Zero values mean the defaults in parentheses.
type Config struct {
	AllowedDomains []string       // exact host names, also for redirects; empty = any
	Allow          []netip.Prefix // addresses that may be dialled although they are not public, on any port
	Ports          []uint16       // ports of public addresses (80, 443)

	Budget       time.Duration // how long Get waits (150 ms)
	Timeout      time.Duration // how long one download may take in total (10 s)
	MaxBytes     int64         // of one image (64 MiB)
	MaxRedirects int           // (5); negative = none

	PerHost       int   // concurrent downloads from one host (8)
	Total         int   // and in total (64); sixteen times as many may be queued, eight times PerHost for one host
	InFlightBytes int64 // bytes of unfinished downloads (128 MiB)

	URLs      int   // URLs cached (100 000)
	ByteCache int64 // bytes of images cached (32 MiB)

	// Signing lists query parameters that sign a URL without changing what it refers to, per host: "cdn.example.com" or
	// "*.example.com"; a parameter that ends with * is a prefix. nil = DefaultSigning.
	Signing map[string][]string

	// Proxy returns the proxy for a URL, nil for none (HTTP_PROXY, HTTPS_PROXY, NO_PROXY of the environment). The proxy's own
	// address is not checked, and it resolves names itself: with a proxy, addresses written in a URL are checked, and names only by
	// their port (addressGuard.checkURL).
	Proxy func(*url.URL) (*url.URL, error)

	// Seen, if set, is called once for every image downloaded, with the client that named it first, in the download's own goroutine,
	// so that names can be computed while the bytes are in memory. bytes must not be changed or kept.
	Seen func(c fair.Client, f media.Facts, bytes []byte)

	// Panicked, if set, is called for a download that panicked, in its own goroutine. The panic fails the requests waiting for that
	// URL.
	Panicked func(error)

	// NoRoom, if set, is called when an entry is evicted for want of room: "image URLs", "image bytes", "image hosts".
	NoRoom func(what string)

	resolver *net.Resolver
	now      func() time.Time
}

func (c *Config) defaults() {
	c.Budget, c.Timeout = cmp.Or(c.Budget, 150*time.Millisecond), cmp.Or(c.Timeout, 10*time.Second)
	c.MaxBytes, c.InFlightBytes = cmp.Or(c.MaxBytes, 64<<20), cmp.Or(c.InFlightBytes, 128<<20)
	c.ByteCache, c.URLs = cmp.Or(c.ByteCache, 32<<20), cmp.Or(c.URLs, 100_000)
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
		c.AllowedDomains[i] = hostname(d)
		if strings.ContainsAny(d, "/:*@") || d == "" {
			return fmt.Errorf("fetch: AllowedDomains[%d] %q: want a bare host name, such as images.example.com", i, d)
		}
	}
	return nil
}

// Fetcher is safe for concurrent use. It must be closed.
type Fetcher struct {
	cfg    Config
	live   atomic.Pointer[Config] // the part that Change can change
	client *http.Client
	urls   *shared[key, *entry]
	bytes  *shared[mmhash.ContentID, []byte]
	hosts  *hosts

	// What clients share: downloads, with those that wait; those that are being read; bytes of unfinished ones; bytes of complete
	// ones that are processed, which are in memory twice.
	started, total, inFlight, processed *fair.Room

	stats counters

	base   context.Context // ends with Close
	stop   context.CancelFunc
	idle   func()
	wg     sync.WaitGroup
	mu     sync.Mutex
	flight map[key]*flight
}

// flight is one download for which any number of requests wait.
type flight struct {
	client fair.Client // of the first request for it
	done   chan struct{}
	facts  media.Facts
	err    error
}

func (fl *flight) ended(e *entry) {
	fl.facts = e.facts
	if e.err != nil {
		fl.err = e.err
	}
}

// New returns a Fetcher. The error names the invalid setting.
func New(cfg Config) (*Fetcher, error) {
	cfg.AllowedDomains = slices.Clone(cfg.AllowedDomains)
	cfg.defaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	most := 17 * cfg.Total // downloads, with those that wait
	f := &Fetcher{cfg: cfg, flight: map[key]*flight{},
		started: fair.Shared(int64(most), 0), total: fair.Shared(int64(cfg.Total), most),
		inFlight: fair.Shared(cfg.InFlightBytes, 0), processed: fair.New(cfg.MaxBytes, most),
		hosts: newHosts(int64(cfg.PerHost), cfg.now, cfg.NoRoom)}
	f.urls = newShared[key, *entry](int64(cfg.URLs), func() { cfg.NoRoom("image URLs") })
	f.bytes = newShared[mmhash.ContentID, []byte](cfg.ByteCache, func() { cfg.NoRoom("image bytes") })
	f.base, f.stop = context.WithCancel(context.Background())
	f.live.Store(&f.cfg)
	f.client, f.idle = newClient(&f.cfg, f.live.Load)
	return f, nil
}

// Change replaces AllowedDomains, Allow, Budget and Signing for later requests and ignores the rest of cfg. The caches keep their
// entries.
func (f *Fetcher) Change(cfg Config) error {
	own := f.cfg
	own.AllowedDomains, own.Allow, own.Budget, own.Signing = slices.Clone(cfg.AllowedDomains), cfg.Allow, cfg.Budget, cfg.Signing
	own.defaults()
	if err := own.check(); err != nil {
		return err
	}
	f.live.Store(&own)
	f.idle() // connections to addresses that may no longer be allowed
	return nil
}

// Close cancels running downloads and returns when none is left.
func (f *Fetcher) Close() {
	f.mu.Lock()
	f.stop()
	f.mu.Unlock()
	f.wg.Wait()
	f.idle()
}

// Get returns the identity of the image behind rawURL, which a client named, within the budget and ctx. Errors are *Error: Budget
// means that the download continues for later requests; Last may return what the URL showed before. With NotAnImage the bytes arrived,
// so ID and Bytes are set; the engine may support a format that package header does not read.
func (f *Fetcher) Get(ctx context.Context, c fair.Client, rawURL string) (media.Facts, error) {
	t, err := f.parse(rawURL)
	if err != nil {
		return media.Facts{}, f.count(err)
	}
	e, known := f.urls.get(t.key)
	if known {
		switch now := f.cfg.now(); {
		case e.err != nil && now.Before(e.fresh) && e.err.Kind == NotAnImage:
			return e.facts, f.count(e.err)
		case e.err != nil && now.Before(e.fresh):
			return media.Facts{}, f.count(e.err)
		case e.err == nil && e.usable(now, t):
			f.stats.hits.Add(1)
			if !now.Before(e.fresh) {
				_, _ = f.start(c, t, e) // revalidate in the background
			}
			return e.facts, nil
		}
	}
	fl, err := f.start(c, t, e)
	if err != nil {
		return media.Facts{}, f.count(err)
	}
	budget := time.NewTimer(f.live.Load().Budget)
	defer budget.Stop()
	select {
	case <-fl.done:
		return fl.facts, f.count(fl.err)
	case <-budget.C:
	case <-ctx.Done():
	}
	return media.Facts{}, f.count(&Error{Kind: Budget, Host: t.host})
}

// Last returns what the URL showed when it was last seen, however long ago: sufficient for affinity, not for exact names.
func (f *Fetcher) Last(rawURL string) (media.Facts, bool) {
	t, err := f.parse(rawURL)
	if err != nil {
		return media.Facts{}, false
	}
	e, ok := f.urls.get(t.key)
	if !ok || e.facts.Bytes == 0 {
		return media.Facts{}, false
	}
	return e.facts, true
}

// Alias returns a number that identifies what a URL refers to, the same for all signatures that it may carry; ok is false for a URL
// that is never fetched.
func (f *Fetcher) Alias(rawURL string) (alias uint64, ok bool) {
	t, err := f.parse(rawURL)
	return binary.LittleEndian.Uint64(t.key[:]), err == nil
}

// Bytes returns an image's bytes while they are cached. They must not be changed.
func (f *Fetcher) Bytes(id mmhash.ContentID) ([]byte, bool) { return f.bytes.get(id) }

// Hosts lists the hosts that failed recently, with their counters.
func (f *Fetcher) Hosts() []HostState { return f.hosts.list() }

// start joins the running download of this URL, takes the result of one that ended since the caller looked up old, or starts one.
func (f *Fetcher) start(c fair.Client, t target, old *entry) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.flight[t.full]; ok {
		return fl, nil
	}
	if e, ok := f.urls.get(t.key); ok && e != old && e.full == t.full {
		fl := &flight{done: make(chan struct{})}
		fl.ended(e)
		close(fl.done)
		return fl, nil
	}
	switch {
	case f.base.Err() != nil:
		return nil, &Error{Kind: Closed, Host: t.host}
	case !f.started.TryTake(c, 1):
		return nil, &Error{Kind: Busy, Host: t.host}
	}
	fl := &flight{client: c, done: make(chan struct{})}
	f.flight[t.full] = fl
	f.wg.Add(1)
	go f.download(t, old, fl)
	return fl, nil
}

// download runs one download and stores its result.
func (f *Fetcher) download(t target, old *entry, fl *flight) {
	defer f.wg.Done()
	ctx, cancel := context.WithTimeout(f.base, f.cfg.Timeout)
	defer cancel()
	var e *entry
	err := guard.Call(func() (err error) { e, err = f.exchange(ctx, fl.client, t, old); return err })
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
		f.urls.add(fl.client, fair.ClientOf(t.host), t.key, e, 1)
	}
	fl.err = err
	if err == nil {
		fl.ended(e)
	}
	f.mu.Lock()
	delete(f.flight, t.full)
	f.mu.Unlock()
	f.started.Give(fl.client, 1)
	close(fl.done)
}

const (
	missingFor = 30 * time.Second // how long a refusal, a missing image or a non-image is cached
	troubleFor = 3 * time.Second  // how long a host is not asked again for one URL after a failure
)

// failed returns the entry to cache for a failure: a refusal or a missing image for some time, a failing host briefly. What was
// known before stays known (Last), and after a host's failure stays valid a little longer.
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
		return nil // another signature may succeed, and the entry is shared by all signatures
	case e.lasting():
		n.fresh = f.cfg.now().Add(missingFor)
	case old != nil && old.err == nil:
		n.err, n.etag, n.modified, n.full, n.stale = nil, old.etag, old.modified, old.full, old.stale
	}
	return n
}

// Stats is what a Fetcher did since it was made.
type Stats struct {
	Hits      uint64          // Gets answered from memory, stale ones too
	Downloads uint64          // images read
	Unchanged uint64          // checks that ended in 304 or an equal validator
	Failed    map[Kind]uint64 // Gets that ended in an error
}

type counters struct {
	hits, downloads, unchanged atomic.Uint64
	failed                     [kinds]atomic.Uint64
}

// Stats returns the counters.
func (f *Fetcher) Stats() Stats {
	s := Stats{Hits: f.stats.hits.Load(), Downloads: f.stats.downloads.Load(), Unchanged: f.stats.unchanged.Load(), Failed: map[Kind]uint64{}}
	for k := range f.stats.failed {
		if n := f.stats.failed[k].Load(); n > 0 {
			s.Failed[Kind(k)] = n
		}
	}
	return s
}

// count notes how a Get ended.
func (f *Fetcher) count(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		f.stats.failed[e.Kind].Add(1)
	}
	return err
}
