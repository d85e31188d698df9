// Package envoy prints the Envoy configuration that Sightline is made for, and finds an Envoy binary to run it. The text is
// envoy.yaml.tmpl, whose comments say why each part is there; envoy.yaml is what Generate prints for Default().
// An error names the option that is wrong and what is wanted.
package envoy

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
)

//go:embed envoy.yaml.tmpl
var source string

// Options are what differs between deployments.
type Options struct {
	Listen    string // ip:port for clients
	Admin     string // ip:port of Envoy's admin page: whoever reaches it can stop Envoy
	Sightline string // where Sightline listens: host:port, or unix:/path (10 % faster, and refused at once when it is down); several with commas
	// Workers are all workers as host:port. Requests without a decision are spread over them.
	Workers []string
	// Allow limits what Envoy dials for a decision. Empty: exactly the Workers, which must be IP addresses then.
	Allow []Range
	// BodyLimit is the largest request body in bytes that Sightline is shown; keep it equal to Sightline's. Larger ones are
	// answered with 413.
	BodyLimit int
	// MessageTimeout is how long a request waits for Sightline's answer before it goes on as it came. Sightline must know it.
	MessageTimeout time.Duration
	// HeapLimit is Envoy's own memory in bytes; requests are refused before it is reached.
	HeapLimit int64
	// Pools are several models, each with workers of its own; Workers is not used then. Every route names its pool, so
	// that a request reaches a worker of its model with Sightline down too.
	Pools []Pool
	// OverrideHost has a load balancer follow the ranked choice in place of dialling addresses: only what the cluster
	// knows as its endpoints can be reached, each retry takes the next of the ranking, and no data-parallel rank is taken
	// back on a retry.
	OverrideHost bool
	// EDS has Sightline tell Envoy the workers (its gRPC listener serves them), so that the fallback follows the fleet.
	// Needs Allow, unless OverrideHost.
	EDS bool
	// FailClosed has no body reach a worker that Sightline did not read: a request that it does not answer gets 503, a POST to a
	// path that is no endpoint 403, but for Pass.
	FailClosed bool
	Pass       []string
	// FullDuplex streams bodies through Sightline instead of buffering them in Envoy.
	FullDuplex bool
	// Version is the oldest Envoy that must take the configuration, such as 1.39; "": the release tested.
	Version string
	// WorkerTLS is used towards workers, SightlineTLS towards Sightline; nil: plain text.
	WorkerTLS, SightlineTLS *TLS
	// SightlineTokenFile, as Envoy sees it, holds the token that it brings to Sightline; "": none.
	SightlineTokenFile string
	// TokenUsage has Envoy read the engine's token counts from answers and report them to Sightline. Needs 1.40.
	TokenUsage bool
	// DebugHeaders has Envoy tell clients who decided what: x-sightline-id, -worker (where the answer came from) and -reason.
	DebugHeaders bool

	variant string // as Apply was asked, for the text's first line
}

// Pool is one model of several. A request belongs to the first pool whose conditions it meets; one of them must be given.
type Pool struct {
	Name    string   // the model, as Sightline's configuration names it
	Workers []string // host:port; none: 503
	Path    string   // prefix such as /qwen, taken off before the worker sees it
	Host    string   // host name, any port
	Header  string   // name=value
}

// TLS names files as Envoy sees them.
type TLS struct {
	CA, Cert, Key string   // PEM; Cert and Key only where the peer asks for a certificate
	Names         []string // IP addresses or host names that the peer's certificate must bear one of; none: its address
}

// Range is a block of addresses and a range of ports, both ends included: that is how Envoy 1.40 reads them, though its
// API says that the end is not.
type Range struct {
	Prefix              netip.Prefix
	FirstPort, LastPort int
}

// ParseRange reads 10.0.0.0/8:8000-8010, or with one port.
func ParseRange(text string) (r Range, err error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return r, fmt.Errorf("%q has no ports (want one such as 10.0.0.0/8:8000-8010)", text)
	}
	first, last, two := strings.Cut(text[at+1:], "-")
	if !two {
		last = first
	}
	var errs [3]error
	r.Prefix, errs[0] = netip.ParsePrefix(strings.Trim(text[:at], "[]"))
	r.FirstPort, errs[1] = strconv.Atoi(first)
	r.LastPort, errs[2] = strconv.Atoi(last)
	if errors.Join(errs[:]...) != nil || r.FirstPort < 1 || r.LastPort < r.FirstPort || r.LastPort > 65535 {
		return r, fmt.Errorf("%q is no network with ports (want one such as 10.0.0.0/8:8000-8010)", text)
	}
	return r, nil
}

// Default is the configuration of the quick start: all on loopback, three workers.
func Default() Options {
	return Options{
		Listen:         "127.0.0.1:10000",
		Admin:          "127.0.0.1:9901",
		Sightline:      "127.0.0.1:9002",
		Workers:        []string{"127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"},
		BodyLimit:      64 << 20,
		MessageTimeout: 2 * time.Second,
		HeapLimit:      4 << 30,
	}
}

// Generate prints envoy.yaml. An error names the option, what it should be, and what came.
func Generate(o Options) ([]byte, error) {
	v, err := viewOf(o)
	if err != nil {
		return nil, err
	}
	t, err := template.New("envoy.yaml").Option("missingkey=error").Parse(source)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, v)
	return out.Bytes(), err
}

// hostPort is an address as Envoy wants it.
type hostPort struct {
	Host string
	Port int
}

// IsIP tells an address from a name.
func (h hostPort) IsIP() bool { _, err := netip.ParseAddr(h.Host); return err == nil }

// split reads host:port; needIP: where Envoy resolves no names.
func split(key, addr string, needIP bool) (hostPort, error) {
	host, port, err := net.SplitHostPort(addr)
	n, numErr := strconv.Atoi(port)
	h := hostPort{host, n}
	switch {
	case err != nil || numErr != nil || n < 1 || n > 65535:
		return h, fmt.Errorf("%s %q: want host:port, such as 10.0.0.5:8000", key, addr)
	case needIP && !h.IsIP():
		return h, fmt.Errorf("%s %q: want an IP address before the port; Envoy resolves no name here", key, addr)
	case !h.IsIP() && strings.Trim(strings.ToLower(host), "abcdefghijklmnopqrstuvwxyz0123456789-._") != "" || host == "":
		return h, fmt.Errorf("%s %q: %q is neither an IP address nor a host name", key, addr, host)
	}
	return h, nil
}

// exactly allows the given addresses: one range for ports of one address that follow each other.
func exactly(workers []hostPort) []Range {
	byAddr := map[netip.Addr][]int{}
	var order []netip.Addr
	for _, w := range workers {
		ip, _ := netip.ParseAddr(w.Host)
		if byAddr[ip] == nil {
			order = append(order, ip)
		}
		byAddr[ip] = append(byAddr[ip], w.Port)
	}
	var out []Range
	for _, ip := range order {
		ports := byAddr[ip]
		slices.Sort(ports)
		for i, p := range ports {
			if i > 0 && p <= ports[i-1]+1 {
				out[len(out)-1].LastPort = p
				continue
			}
			out = append(out, Range{netip.PrefixFrom(ip, ip.BitLen()), p, p})
		}
	}
	return out
}
