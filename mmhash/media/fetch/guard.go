package fetch

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// The guard sits where a connection is made: after DNS, before the first packet, for every redirect. A name that answers
// a public address first and a private one later gains nothing.

// never holds the addresses of cloud metadata and host agents: they hand out credentials, so no allow-list opens them.
var never = []netip.Prefix{
	netip.MustParsePrefix("169.254.169.254/32"), // most clouds
	netip.MustParsePrefix("169.254.170.2/32"),   // AWS tasks
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure host agent, a public address
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("fd00:ec2::254/128"),  // AWS over IPv6
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google over IPv6
}

type guard struct {
	public *ssrf.Guardian
	allow  []netip.Prefix
}

func newGuard(c *Config) *guard {
	return &guard{ssrf.New(ssrf.WithPorts(c.Ports...)), c.Allow}
}

// control is net.Dialer.Control.
func (g *guard) control(network, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return errAddress
	}
	if network != "tcp4" && network != "tcp6" {
		return ssrf.ErrProhibitedNetwork
	}
	return g.check(ap)
}

func (g *guard) check(ap netip.AddrPort) error {
	ip := ap.Addr().WithZone("").Unmap()
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	switch {
	case in(never):
		return errAddress
	case in(g.allow):
		return nil
	}
	return g.public.SafeAddrPort(netip.AddrPortFrom(ip, ap.Port()))
}

// transport sends a request through the guarded dialler, or through a proxy where one is configured.
type transport struct {
	direct, proxied *http.Transport
	guard           *guard
	proxy           func(*url.URL) (*url.URL, error)
}

// RoundTrip sees every hop of a redirect chain.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, err := t.proxy(r.URL)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return t.direct.RoundTrip(r)
	}
	// The proxy dials for us. An address in the URL itself can still be judged.
	if ip, err := netip.ParseAddr(r.URL.Hostname()); err == nil {
		if err := t.guard.check(netip.AddrPortFrom(ip, port(r.URL))); err != nil {
			return nil, err
		}
	} else if h := hostname(r.URL.Hostname()); h == "localhost" {
		return nil, errAddress
	}
	return t.proxied.RoundTrip(r)
}

func port(u *url.URL) uint16 {
	if p := u.Port(); p != "" {
		n, err := net.LookupPort("tcp", p)
		if err != nil {
			return 0
		}
		return uint16(n)
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

// newClient makes the HTTP client and the function that drops its idle connections.
func newClient(c *Config) (*http.Client, func()) {
	base := func(d *net.Dialer) *http.Transport {
		return &http.Transport{
			DialContext:            d.DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    5 * time.Second,
			ResponseHeaderTimeout:  c.Timeout,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConns:           c.Total,
			MaxIdleConnsPerHost:    c.PerHost,
			IdleConnTimeout:        30 * time.Second,
		}
	}
	g := newGuard(c)
	t := &transport{guard: g, proxy: c.Proxy}
	t.direct = base(&net.Dialer{Timeout: 5 * time.Second, Control: g.control, Resolver: c.resolver})
	t.proxied = base(&net.Dialer{Timeout: 5 * time.Second, Resolver: c.resolver})
	t.proxied.Proxy = func(r *http.Request) (*url.URL, error) { return c.Proxy(r.URL) }
	client := &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > c.MaxRedirects {
			return errRedirects
		}
		r.Header.Del("Referer") // it would carry the signed URL to another host
		return c.permits(r.URL)
	}}
	return client, func() { t.direct.CloseIdleConnections(); t.proxied.CloseIdleConnections() }
}
