package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/denied"
)

// report records an invalid value: the path of its key, then the value and what is expected.
type report func(path, format string, args ...any)

// oneOf requires one of some words.
func (bad report) oneOf(path, got, want string, words ...string) {
	if !slices.Contains(words, got) {
		bad(path, "%q is not known (want %s)", got, want)
	}
}

// inRange requires a size, a time or a count within bounds.
func inRange[T cmp.Ordered](bad report, path string, got, least, most T) {
	if got < least || got > most {
		bad(path, "%v is out of range (want %v to %v)", got, least, most)
	}
}

// check checks every key: its range, and contradictions with others. It also sets the defaults that depend on other keys. What
// depends on files or the machine is left to CheckServe.
func (c *Config) check() error {
	var errs []error
	bad := report(func(path, format string, args ...any) { errs = append(errs, fmt.Errorf(path+": "+format, args...)) })
	c.checkListeners(bad)
	c.checkAccess(bad)
	c.checkRanges(bad)
	bad.oneOf("log_level", c.LogLevel, "debug, info, warn or error", "debug", "info", "warn", "error")
	bad.oneOf("on_unread", c.OnUnread, "route or refuse", route, refuse)
	if len(c.PassUnread) > 0 && c.OnUnread != refuse {
		bad("pass_unread", "given, but on_unread is route: all paths pass (want on_unread: refuse, or leave it out)")
	}
	for i, p := range c.PassUnread {
		if !strings.HasPrefix(p, "/") || denied.Canonical(p) != p || strings.ContainsAny(p, "?# ") || denied.IsEndpoint(p) {
			bad(fmt.Sprintf("pass_unread[%d]", i), "%q is not a path that can pass (want one such as /v1/embeddings, and none of %s)",
				p, strings.Join(denied.Endpoints, ", "))
		}
	}
	if share, _ := c.Unsteered(); share > 0 && c.Dynamo.Discovery != "" {
		bad("enforce", "%v, but with dynamo every request must be steered: its front ends in direct mode answer 400 where no worker "+
			"is named (want 100%%)", c.Enforce)
	}
	c.checkNATS(bad)
	c.checkMedia(bad)
	c.checkRelay(bad)
	c.checkModels(bad)
	c.checkTenants(bad)
	w := workersCheck{Config: c, bad: bad, names: map[string]string{}, addrs: map[string]string{}, sockets: map[string]string{}}
	w.configured()
	w.kubernetes()
	c.checkDynamo(w.any, bad)
	c.checkEnvoy(bad)
	return errors.Join(errs...)
}

// checkListeners requires that every listen address is valid and that no two of a process are the same.
func (c *Config) checkListeners(bad report) {
	if c.Listen == "unix:" {
		bad("listen", "%q is not a socket (want one such as unix:/run/sightline.sock)", c.Listen)
	}
	const least = 16
	if n := len(c.AdminToken); n > 0 && n < least || strings.ContainsFunc(c.AdminToken, func(r rune) bool { return r <= ' ' || r > '~' }) {
		bad("admin_token", "%d bytes, not shown here (want %d or more, all of them ASCII without spaces, as openssl rand -hex 32 gives)",
			n, least)
	}
	type listener struct{ key, addr string }
	for _, process := range [][]listener{
		{{"listen", c.Listen}, {"admin", c.Admin}, {"grpc_health", c.GRPCHealth}, {"nats.listen", c.NATS.Listen},
			{"media.relay.listen", c.Media.Relay.Listen}},
		{{"envoy.listen", c.Envoy.Listen}, {"envoy.admin", c.Envoy.Admin}},
	} {
		for i, l := range process {
			switch needed := i == 0 || l.key == "envoy.admin"; {
			case strings.HasPrefix(l.addr, "unix:") && l.key == "listen", l.addr == "" && !needed:
				continue
			case !isListener(l.addr):
				bad(l.key, "%q is not where to listen (want host:port, such as 127.0.0.1:9002)", l.addr)
				continue
			}
			for _, other := range process[:i] {
				if sameListener(l.addr, other.addr) {
					bad(l.key, "%q is also %s (want a port of its own)", l.addr, other.key)
				}
			}
		}
	}
}

// checkAccess requires that the TLS and token keys are consistent.
func (c *Config) checkAccess(bad report) {
	relay := &c.Media.Relay
	for path, err := range map[string]error{"tls": c.TLS.Check(), "admin_tls": c.AdminTLS.Check(), "media.relay.tls": relay.TLS.Check(),
		"worker_access": c.WorkerAccess.Check(), "replicas": c.Replicas.Access("").Check()} {
		if err != nil {
			bad(path, "%v", err)
		}
	}
	if c.AdminTLS.Cert != "" && c.Admin == "" {
		bad("admin_tls", "given, but admin is off (want admin too)")
	}
	if https := strings.HasPrefix(relay.URL, "https://"); relay.TLS.Cert != "" && !https {
		bad("media.relay.tls", "given, but workers are sent to %q (want a media.relay.url of https)", relay.URL)
	}
	if shared := relay.TLS.Cert != "" && relay.KeyFile != ""; shared != (relay.CA != "") {
		bad("media.relay.ca", "want it where there are tls and key_file, and there alone: replicas fetch from each other")
	}
	if file := c.Envoy.SightlineTokenFile; c.ListenTokenFile != "" && file == "" {
		bad("envoy.sightline_token_file", "missing, but listen_token_file lets no client in without a token")
	}
}

// isListener reports whether text is host:port, where the port may be 0 and the host empty.
func isListener(text string) bool {
	host, port, err := net.SplitHostPort(text)
	_, wrong := strconv.ParseUint(port, 10, 16)
	return err == nil && wrong == nil && !strings.ContainsAny(host, "/@ *")
}

// sameListener reports whether one process cannot listen at both.
func sameListener(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	wild := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || err == nil && ip.IsUnspecified()
	}
	return errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || wild(hostA) || wild(hostB))
}

// checkRanges checks sizes and times.
func (c *Config) checkRanges(bad report) {
	if c.Envoy.HeapLimit != 0 {
		inRange(bad, "envoy.heap_limit", c.Envoy.HeapLimit, max(256<<20, 4*c.BodyLimit), 1<<40)
	}
	inRange(bad, "body_limit", c.BodyLimit, 1<<20, 2047<<20)          // Envoy's minimum; gRPC's maximum
	inRange(bad, "index.max_bytes", c.Index.MaxBytes, 16<<20, 32<<30) // the range of the index's page numbers
	inRange(bad, "tracing.sample", c.Tracing.Sample, 0, 1)
	if at, _ := c.Tracing.Receiver(); at != "" && !isListener(at) {
		bad("tracing.endpoint", "%q is not an OTLP/gRPC receiver (want host:port, or http://host:port in plain text)", c.Tracing.Endpoint)
	}
	inRange(bad, "drain", c.Drain, 0, 10*time.Minute)
	inRange(bad, "envoy.message_timeout", c.Envoy.MessageTimeout, 200*time.Millisecond, time.Minute)
	inRange(bad, "media.budget", c.Media.Budget, time.Millisecond, time.Minute)
	for zone, far := range c.Zones.all() {
		if far != 0 {
			inRange(bad, zone, far, time.Microsecond, time.Second)
		}
	}
	for key, header := range map[string]*string{"fair_share.header": &c.Fair.Header, "fair_share.priority": &c.Fair.Priority} {
		*header = strings.ToLower(*header)
		if *header == "" {
			continue
		}
		if !isHeader(*header) {
			bad(key, "%q is not the name of a header (want one such as x-tenant)", *header)
		} else if reader := steers(*header); reader != "" {
			bad(key, removedEarly, *header, reader)
		} else if c.MaxInFlight == 0 {
			bad(key, "%q needs a limit of requests in flight (set max_in_flight, or leave fair_share out)", *header)
		}
	}
	if c.Hold < 0 || c.Hold > c.Envoy.MessageTimeout/2 {
		bad("hold", "%s is more than Envoy waits for (want at most half of envoy.message_timeout, %s, or 0s for not at all)",
			c.Hold, c.Envoy.MessageTimeout/2)
	}
	if c.Envoy.AskUsage && !c.Envoy.TokenUsage {
		bad("envoy.ask_usage", "nothing reads the counts (want envoy.token_usage: true too)")
	}
	if c.MaxInFlight < 0 {
		bad("max_in_flight", "%d is not a number of requests (want 1 or more, or 0 for no limit)", c.MaxInFlight)
	}
}

func (c *Config) checkNATS(bad report) {
	n := &c.NATS
	if n.URL != "" && n.Listen != "" {
		bad("nats", "url and listen are both given (want url for an existing server, or listen for an embedded one)")
	}
	if n.Config != "" && n.Listen == "" {
		bad("nats.config", "given without listen (it is the embedded server's)")
	}
	n.Check(n.Listen != "", bad.below("nats."))
}

// below returns a report whose keys are prefixed by path.
func (bad report) below(path string) report {
	return func(key, format string, args ...any) { bad(path+key, format, args...) }
}

func (c *Config) checkMedia(bad report) {
	m := &c.Media
	for i, a := range m.Allow {
		if _, err := netip.ParsePrefix(a); err != nil {
			bad(fmt.Sprintf("media.allow[%d]", i), "%q is not a network (want one such as 10.0.0.0/8)", a)
		}
	}
	for i, host := range m.Domains {
		if host == "" || strings.ContainsAny(host, "/:*@ ") {
			bad(fmt.Sprintf("media.domains[%d]", i), "%q is not a host (want a bare name, such as images.example.com)", host)
		}
	}
	for host, list := range m.Signing {
		if host == "" || strings.ContainsAny(strings.TrimPrefix(host, "*."), "/:*@ ") || len(list) == 0 || slices.Contains(list, "") {
			bad("media.signing", "%q: %d parameters (want a host such as cdn.example.com or *.example.com, and a list such as "+
				"[sig, X-Amz-*])", host, len(list))
		}
	}
}

// webURL parses an http or https URL with a host and without a query; nil if it is not one.
func webURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil
	}
	return u
}

func (c *Config) checkRelay(bad report) {
	r := &c.Media.Relay
	if r.Listen == "" {
		if r.URL != "" || r.DataURLs || r.KeyFile != "" {
			bad("media.relay.listen", "missing (want host:port, such as 0.0.0.0:9904)")
		}
		return
	}
	u := webURL(r.URL)
	if u == nil || strings.ContainsAny(r.URL, "\"\\ ") {
		bad("media.relay.url", "%q is not where workers could ask (want one such as http://10.0.0.2:9904)", r.URL)
		return
	}
}

// wantModel requires the name of a model.
func (c *Config) wantModel(bad report, path, name string) bool {
	known := slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == name })
	switch {
	case len(c.Models) == 0:
		bad(path, "there are no models (want at least models: [{name: NAME}], as GET /v1/models of the worker names it)")
	case !known:
		bad(path, "%q is not the name of a model (give the name of one of them)", name)
	}
	return known
}

// checkTenants requires that all engines keep tenants apart.
func (c *Config) checkTenants(bad report) {
	switch t := &c.Tenants; {
	case t.Header == "" && t.Required:
		bad("tenants.required", "true, but no header names the tenant (want tenants.header, such as x-tenant)")
		return
	case t.Header == "":
		return
	case !isHeader(t.Header):
		bad("tenants.header", "%q is not the name of a header for the tenant (want one such as x-tenant)", t.Header)
	case steers(t.Header) != "":
		bad("tenants.header", removedEarly, t.Header, steers(t.Header))
	case c.Dynamo.Discovery != "":
		bad("tenants.header", "with dynamo a client's nvext may name another salt (leave tenants out, or dynamo)")
	}
	c.Tenants.Header = strings.ToLower(c.Tenants.Header)
	keeps := func(path string, s *engine.Server) {
		if !s.Rules().TakesSalt {
			bad("tenants.header", "%s is %s %s, of which it is not known that a cache_salt keeps tenants apart and that events tell it (want vllm "+
				"from 0.23.0 on, or leave tenants out)", path, s.Engine, s.EngineVersion)
		}
	}
	for i := range c.Models {
		path := fmt.Sprintf("models[%d]", i)
		keeps(path, &c.Models[i].Server)
		for j := range c.Models[i].Classes {
			keeps(fmt.Sprintf("%s.classes[%d]", path, j), &c.Models[i].Classes[j].Server)
		}
	}
}

// isHeader reports whether name is a valid HTTP header that nothing else reads: it neither frames nor routes the request.
func isHeader(name string) bool {
	name = strings.ToLower(name)
	taken := []string{"host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "te", "upgrade",
		"trailer", "authorization", "cookie", "expect"}
	return !slices.Contains(taken, name) && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// removedEarly refuses a header that would never arrive. Its arguments are the header and who reads it.
const removedEarly = "%q is removed from requests by Envoy before anything reads it, because it steers %s (want another, such as x-tenant)"

// steers returns who reads a header that Envoy removes from clients' requests; "": it removes no such header.
func steers(name string) (reader string) {
	for _, h := range denied.Headers {
		if h.Match(name) {
			return h.Reader
		}
	}
	return ""
}

func (c *Config) checkModels(bad report) {
	names := map[string]string{}
	for i := range c.Models {
		m := &c.Models[i]
		path := fmt.Sprintf("models[%d]", i)
		if m.Name == "" {
			bad(path+".name", "missing")
		}
		m.EngineModel = cmp.Or(m.EngineModel, m.Name)
		for key, list := range map[string][]string{"aliases": m.Aliases, "adapters": m.Adapters} {
			if at := slices.Index(list, ""); at >= 0 {
				bad(fmt.Sprintf("%s.%s[%d]", path, key, at), "empty (want a name that clients use)")
			}
		}
		for _, n := range slices.Concat([]string{m.Name}, m.Aliases, m.Adapters) {
			if other, twice := names[n]; twice && n != "" {
				bad(path, "the name %q is also one of %s", n, other)
			}
			names[n] = path
		}
		if !slices.Contains([]string{"", "auto", "off"}, m.EngineOrder) {
			bad(path+".engine_order", "%q is not known (want auto or off)", m.EngineOrder)
		}
		m.NoSessionIDs = c.Fixed.NoSessions
		checkServer(&m.Server, nil, path, bad)
		m.checkClasses(path, bad)
	}
}

// Dials returns an error for an address that is in none of worker_networks, if there are any.
func (e *Envoy) Dials(addr netip.AddrPort) error {
	for _, text := range e.Workers {
		r, _ := envoy.ParseRange(text) // checked before
		if r.Prefix.Contains(addr.Addr()) && int(addr.Port()) >= r.FirstPort && int(addr.Port()) <= r.LastPort {
			return nil
		}
	}
	if len(e.Workers) == 0 {
		return nil
	}
	return fmt.Errorf("%q is in none of envoy.worker_networks: Envoy would never dial it (widen them)", addr)
}

// checkEnvoy checks the keys for Envoy.
func (c *Config) checkEnvoy(bad report) {
	for i, text := range c.Envoy.Workers {
		if _, err := envoy.ParseRange(text); err != nil {
			bad(fmt.Sprintf("envoy.worker_networks[%d]", i), "%v", err)
		}
	}
	dialled := func(path, addr string) {
		if a, err := netip.ParseAddrPort(addr); err == nil {
			if err := c.Envoy.Dials(a); err != nil {
				bad(path, "%w", err)
			}
		}
	}
	for i := range c.Workers {
		dialled(fmt.Sprintf("workers[%d].addr", i), c.Workers[i].Addr)
	}
	for i, f := range c.Dynamo.Frontends {
		dialled(fmt.Sprintf("dynamo.frontends[%d]", i), f)
	}
	for i, at := range c.Replicas.Addresses {
		if _, _, err := net.SplitHostPort(at); err != nil && !strings.HasPrefix(at, "unix:/") {
			bad(fmt.Sprintf("replicas.addresses[%d]", i),
				"%q is not where a replica listens (want ip:port or name:port, such as sightline-replicas:9002, or unix:/path)", at)
		}
	}
	for i, at := range c.Envoy.Sightlines {
		if _, err := netip.ParseAddrPort(at); err != nil && !strings.HasPrefix(at, "unix:/") || slices.Contains(c.Envoy.Sightlines[:i], at) {
			bad(fmt.Sprintf("envoy.sightlines[%d]", i),
				"%q is not where Envoy finds a replica (want ip:port, such as 10.0.0.2:9002, or unix:/path)", at)
		}
	}
	for i, p := range c.Envoy.Pools {
		path := fmt.Sprintf("envoy.pools[%d]", i)
		name, _, isHeader := strings.Cut(p.Header, "=")
		c.wantModel(bad, path+".model", p.Model)
		if p.Path == "" && p.Host == "" && p.Header == "" {
			bad(path, "no path, host or header: a request must show which model it is for without its body being read")
		}
		if p.Path != "" && (!strings.HasPrefix(p.Path, "/") || strings.Trim(p.Path, "/") == "") {
			bad(path+".path", "%q is not a prefix (want one such as /qwen)", p.Path)
		}
		if strings.ContainsAny(p.Host, "/:@ ") {
			bad(path+".host", "%q is not a host (want a name without a port)", p.Host)
		}
		if p.Header != "" && (!isHeader || name == "") {
			bad(path+".header", "%q is not a condition (want name=value)", p.Header)
		} else if reader := steers(name); reader != "" {
			bad(path+".header", removedEarly, name, reader)
		}
	}
	for path, t := range map[string]PeerTLS{"envoy.worker_tls": c.Envoy.WorkerTLS, "envoy.sightline_tls": c.Envoy.SightlineTLS} {
		if t.CA == "" && (t.Cert != "" || t.Key != "" || len(t.Names) > 0) {
			bad(path+".ca", "missing, so TLS is off in spite of the other keys (want the PEM file of the peer's authority)")
		}
		if (t.Cert == "") != (t.Key == "") {
			bad(path, "cert and key must both be given, or neither")
		}
	}
	if c.TLS.ClientCA != "" && c.Envoy.SightlineTLS.CA != "" && c.Envoy.SightlineTLS.Cert == "" {
		bad("envoy.sightline_tls.cert", "missing, but tls.client_ca lets no client in without one")
	}
}
