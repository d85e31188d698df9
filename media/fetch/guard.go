package fetch

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
	"golang.org/x/net/idna"
)

// The guard checks addresses where connections are made: after DNS, before the first packet, for every redirect. A name that first
// resolves to a public address and later to a private one gains nothing.

// neverAllowed holds the addresses of cloud metadata services and host agents. They hand out credentials, so no allow-list permits them.
var neverAllowed = []netip.Prefix{
	netip.MustParsePrefix("169.254.169.254/32"), // most clouds
	netip.MustParsePrefix("169.254.170.2/32"),   // AWS tasks
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure host agent, a public address
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("fd00:ec2::254/128"),  // AWS over IPv6
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google over IPv6
}

type addressGuard struct {
	public *ssrf.Guardian
	ports  []uint16
	live   func() *Config // the current ones
}

func newGuard(c *Config) *addressGuard {
	return &addressGuard{ssrf.New(ssrf.WithPorts(c.Ports...)), c.Ports, func() *Config { return c }}
}

// control implements net.Dialer.Control.
func (g *addressGuard) control(network, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return errAddress
	}
	if network != "tcp4" && network != "tcp6" {
		return ssrf.ErrProhibitedNetwork
	}
	return g.check(ap)
}

func (g *addressGuard) check(ap netip.AddrPort) error {
	ip := ap.Addr().WithZone("").Unmap()
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	switch {
	case in(neverAllowed):
		return errAddress
	case in(g.live().Allow):
		return nil
	}
	return g.public.SafeAddrPort(netip.AddrPortFrom(ip, ap.Port()))
}

// transport sends a request through the guarded dialler, or through a proxy if one is configured.
type transport struct {
	direct, proxied *http.Transport
	guard           *addressGuard
	proxy           func(*url.URL) (*url.URL, error)
}

// RoundTrip is called for every hop of a redirect chain.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, err := t.proxy(r.URL)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return t.direct.RoundTrip(r)
	}
	if err := t.guard.checkURL(r.URL); err != nil { // the proxy dials for us
		return nil, err
	}
	return t.proxied.RoundTrip(r)
}

// checkURL checks a URL by its text: an address as the dialler would, a name only by the port. A host whose last label is a number
// can only be an address (there is no such top-level domain; WHATWG URL, "ends in a number"). Forms of inet_aton, such as
// 2130706433, 0x7f.1, 0177.0.0.1 and 127.1, mean different addresses to different proxies and are refused, as are names of this
// machine.
func (g *addressGuard) checkURL(u *url.URL) error {
	host, err := idna.Lookup.ToASCII(u.Hostname()) // as the proxy will read it, with other digits and dots converted to ASCII
	if err != nil {
		host = u.Hostname()
	}
	host = hostname(host)
	if ip, err := netip.ParseAddr(host); err == nil {
		return g.check(netip.AddrPortFrom(ip, port(u)))
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case host == "", isNumber(last), last == "localhost", host == "localhost.localdomain", host == "ip6-localhost", host == "ip6-loopback":
		return errAddress
	case !slices.Contains(g.ports, port(u)):
		return ssrf.ErrProhibitedPort
	}
	return nil
}

// isNumber reports whether label is a number of inet_aton: decimal or octal digits, or hexadecimal ones after 0x.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return label == "" || strings.Trim(label, "0123456789") == ""
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

// newClient returns the HTTP client and a function that drops its idle connections. live returns the part of c that may change.
func newClient(c *Config, live func() *Config) (*http.Client, func()) {
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
	g.live = live
	t := &transport{guard: g, proxy: c.Proxy}
	t.direct = base(&net.Dialer{Timeout: 5 * time.Second, Control: g.control, Resolver: c.resolver})
	t.proxied = base(&net.Dialer{Timeout: 5 * time.Second, Resolver: c.resolver})
	t.proxied.Proxy = func(r *http.Request) (*url.URL, error) { return c.Proxy(r.URL) }
	client := &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > c.MaxRedirects {
			return errRedirects
		}
		r.Header.Del("Referer") // it would send the signed URL to another host
		return live().permits(r.URL)
	}}
	return client, func() { t.direct.CloseIdleConnections(); t.proxied.CloseIdleConnections() }
}
