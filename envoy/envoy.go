// Package envoy generates the Envoy configuration for Sightline, and finds an Envoy binary to run it. The text comes from
// envoy.yaml.tmpl, whose comments explain each part; envoy.yaml is Generate's output for Default(). Errors name the invalid option
// and what is expected.
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
	Listen string // ip:port for clients
	Admin  string // ip:port of Envoy's admin page; anybody who can reach it can stop Envoy
	// where Sightline listens: host:port, or unix:/path (10 % faster, and refused at once when it is down); several separated by commas
	Sightline string
	// Workers are all workers as host:port. Requests without a decision are balanced over them.
	Workers []string
	// Allow limits what Envoy dials for a decision. Empty: exactly the Workers, which must then be IP addresses.
	Allow []Range
	// BodyLimit is the largest request body in bytes that Sightline gets; keep it equal to Sightline's. Larger ones are answered
	// with 413.
	BodyLimit int
	// MessageTimeout is how long a request waits for Sightline's answer before it continues unchanged. Sightline must know it.
	MessageTimeout time.Duration
	// HeapLimit is Envoy's own memory limit in bytes; requests are refused before it is reached.
	HeapLimit int64
	// Pools are several models, each with its own workers; Workers is then unused. Every route names its pool, so that a request
	// reaches a worker of its model even while Sightline is down.
	Pools []Pool
	// OverrideHost makes a load balancer follow the ranked choice instead of dialling addresses: only the cluster's known endpoints
	// can be reached, each retry takes the next of the ranking, and a retry does not withdraw a data-parallel rank.
	OverrideHost bool
	// EDS makes Envoy get the workers from Sightline (its gRPC listener serves them), so that the fallback follows the fleet. Needs
	// Allow, unless OverrideHost.
	EDS bool
	// FailClosed keeps bodies that Sightline did not read from workers: a request that it does not answer gets 503, a POST to a
	// path that is not an endpoint 403, except for the paths in Pass.
	FailClosed bool
	Pass       []string
	// FullDuplex streams bodies through Sightline instead of buffering them in Envoy.
	FullDuplex bool
	// Version is the oldest Envoy that must accept the configuration, such as 1.39; "": the release tested.
	Version string
	// WorkerTLS is used towards workers, SightlineTLS towards Sightline; nil: plain text.
	WorkerTLS, SightlineTLS *TLS
	// SightlineTokenFile is the path, as Envoy sees it, of the token that it sends to Sightline; "": none.
	SightlineTokenFile string
	// TenantHeader is the request header that names the tenant; Envoy removes it before a worker sees the request. "": none.
	TenantHeader string
	// TokenUsage makes Envoy read the engine's token counts from responses and report them to Sightline. Needs 1.40.
	TokenUsage bool
	// DebugHeaders makes Envoy add to responses: x-sightline-id, -worker (where the response came from) and -reason.
	DebugHeaders bool

	variant string // the argument of Apply, for the text's first line
}

// Pool is one of several models. A request belongs to the first pool whose conditions it meets; at least one must be given.
type Pool struct {
	Name    string   // the model's name in Sightline's configuration
	Workers []string // host:port; none: 503
	Path    string   // prefix such as /qwen, removed before the worker sees it
	Host    string   // host name, any port
	Header  string   // name=value
}

// TLS names files by the paths that Envoy sees.
type TLS struct {
	CA, Cert, Key string   // PEM; Cert and Key only if the peer requires a certificate
	Names         []string // IP addresses or host names, one of which the peer's certificate must be valid for; none: its address
}

// Range is a block of addresses and a range of ports, both ends included: Envoy 1.40 treats the end as included, though its API
// says that it is not.
type Range struct {
	Prefix              netip.Prefix
	FirstPort, LastPort int
}

// ParseRange parses 10.0.0.0/8:8000-8010, or the same with a single port.
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
		return r, fmt.Errorf("%q is not a network with ports (want one such as 10.0.0.0/8:8000-8010)", text)
	}
	return r, nil
}

// Default returns the options of the quick start: everything on loopback, three workers.
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

// LongestWait is Envoy's max_message_timeout, to which Sightline may extend message_timeout while it is busy with a large body: a second
// more for each MiB of the limit, as long as the copying takes on a machine with no time left.
func LongestWait(messageTimeout time.Duration, bodyLimit int) time.Duration {
	return messageTimeout + time.Duration(bodyLimit>>20)*time.Second
}

// Generate returns envoy.yaml. The error names the option, what was expected, and its value.
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

// hostPort is an address in the form that Envoy uses.
type hostPort struct {
	Host string
	Port int
}

// IsIP reports whether the host is an IP address rather than a name.
func (h hostPort) IsIP() bool { _, err := netip.ParseAddr(h.Host); return err == nil }

// IsLoopback reports whether only this machine reaches the address.
func (h hostPort) IsLoopback() bool {
	ip, err := netip.ParseAddr(h.Host)
	return err == nil && ip.IsLoopback()
}

// split parses host:port. needIP requires an IP address, for places where Envoy does not resolve names.
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

// exactly returns ranges that allow just the given addresses: consecutive ports of one address share a range.
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
