// Package envoy prints the Envoy configuration that Sightline is made for, and finds an Envoy binary to run it.
//
// The text of the configuration is envoy.yaml.tmpl; its comments say why each part is there. What is committed as
// envoy.yaml is what Generate prints for Default().
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
)

//go:embed envoy.yaml.tmpl
var source string

// Options are what differs between deployments.
type Options struct {
	Listen    string // ip:port for clients
	Admin     string // ip:port of Envoy's admin page: whoever reaches it can stop Envoy
	Sightline string // where Sightline listens: host:port, or unix:/path (10 % faster, and refused at once when it is down)
	// Workers are all workers as host:port. Requests without a decision are spread over them.
	Workers []string
	// Allow limits what Envoy dials for a decision. Empty: exactly the Workers, which must be IP addresses then.
	Allow []Range
	// BodyLimit is the largest request body in bytes that Sightline is shown; keep it equal to Sightline's. Larger ones
	// go on to any worker, or are answered 413 if their length was not announced.
	BodyLimit int
	// HeapLimit is Envoy's own memory in bytes; requests are refused before it is reached.
	HeapLimit int64
	// TokenUsage has Envoy read the engine's token counts from answers and report them to Sightline. Needs 1.40.
	TokenUsage bool
}

// Range is a block of addresses and a range of ports, both ends included: that is how Envoy 1.40 reads them, though its
// API says that the end is not.
type Range struct {
	Prefix              netip.Prefix
	FirstPort, LastPort int
}

// inferencePaths are the endpoints whose requests Sightline is asked about; its own gate knows them too.
var inferencePaths = []string{"/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/messages"}

// Default is the configuration of the quick start: all on loopback, three workers.
func Default() Options {
	return Options{
		Listen:    "127.0.0.1:10000",
		Admin:     "127.0.0.1:9901",
		Sightline: "127.0.0.1:9002",
		Workers:   []string{"127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"},
		BodyLimit: 64 << 20,
		HeapLimit: 4 << 30,
	}
}

// Generate prints envoy.yaml. An error names the option, what it should be, and what came.
func Generate(o Options) ([]byte, error) {
	type pick struct{ Cluster, Header string }
	v := struct {
		Options
		Listen, Admin, Sightline hostPort // hide the strings of Options
		Socket                   string
		Workers                  []hostPort
		Names                    bool   // some worker is a name, not an address
		TooLarge                 int    // the first length above BodyLimit
		Paths                    string // regular expression
		Reasons                  []string
		Picks                    []pick
	}{
		Options:  o,
		TooLarge: o.BodyLimit + 1,
		Paths:    strings.Join(inferencePaths, "|"),
		Reasons:  []string{"exact", "predicted", "affinity", "load"},
		Picks:    []pick{{"workers_picked", "x-target-worker"}, {"workers_second", "x-target-worker-2"}},
	}
	var errs []error
	read := func(key, addr string, needIP bool) hostPort {
		h, err := split(key, addr, needIP)
		errs = append(errs, err)
		return h
	}
	v.Listen = read("listen", o.Listen, true)
	v.Admin = read("admin", o.Admin, true)
	if path, isUnix := strings.CutPrefix(o.Sightline, "unix:"); isUnix {
		v.Socket = path
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "{},#\n\"' ") {
			errs = append(errs, fmt.Errorf("sightline %q: want unix: and an absolute path without blanks, such as unix:/run/sightline.sock", o.Sightline))
		}
	} else {
		v.Sightline = read("sightline", o.Sightline, true)
	}
	if len(o.Workers) == 0 {
		errs = append(errs, errors.New("workers: none given; Envoy needs all of them for requests without a decision"))
	}
	for i, w := range o.Workers {
		h := read(fmt.Sprintf("workers[%d]", i), w, false)
		v.Workers = append(v.Workers, h)
		v.Names = v.Names || !h.isIP()
	}
	if len(o.Allow) == 0 && v.Names {
		errs = append(errs, errors.New("allow: empty, and some workers are names; give the ranges that their addresses are in, such as 10.0.0.0/8, ports 8000 to 8010"))
	}
	for i, r := range o.Allow {
		if !r.Prefix.IsValid() || r.FirstPort < 1 || r.LastPort < r.FirstPort || r.LastPort > 65535 {
			errs = append(errs, fmt.Errorf("allow[%d]: %v, ports %d to %d: want a CIDR and ports from 1 to 65535, the first not above the last", i, r.Prefix, r.FirstPort, r.LastPort))
		}
	}
	if o.BodyLimit < 1<<20 || o.BodyLimit > 1<<31-1 {
		errs = append(errs, fmt.Errorf("body limit: %d bytes, want 1 MiB to 2 GiB", o.BodyLimit))
	}
	if o.HeapLimit < 4*int64(o.BodyLimit) {
		errs = append(errs, fmt.Errorf("heap limit: %d bytes, want at least four times the body limit of %d", o.HeapLimit, o.BodyLimit))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(o.Allow) == 0 {
		v.Allow = exactly(v.Workers)
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

func (h hostPort) isIP() bool { _, err := netip.ParseAddr(h.Host); return err == nil }

func split(key, addr string, needIP bool) (hostPort, error) {
	host, port, err := net.SplitHostPort(addr)
	n, numErr := strconv.Atoi(port)
	h := hostPort{host, n}
	switch {
	case err != nil || numErr != nil || n < 1 || n > 65535:
		return h, fmt.Errorf("%s %q: want host:port, such as 10.0.0.5:8000", key, addr)
	case needIP && !h.isIP():
		return h, fmt.Errorf("%s %q: want an IP address before the port; Envoy resolves no name here", key, addr)
	case !h.isIP() && strings.Trim(strings.ToLower(host), "abcdefghijklmnopqrstuvwxyz0123456789-._") != "" || host == "":
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
