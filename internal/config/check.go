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

	"github.com/sightline-router/sightline/indexer/source/zmq"
)

// report takes what cannot be: the path of its key, then what came and what is wanted.
type report func(path, format string, args ...any)

// check looks at every key: its range, and what it contradicts. It also sets the defaults that depend on other keys. What
// a file or a machine says is CheckServe's.
func (c *Config) check() error {
	var errs []error
	bad := report(func(path, format string, args ...any) { errs = append(errs, fmt.Errorf(path+": "+format, args...)) })
	c.checkListeners(bad)
	c.checkRanges(bad)
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		bad("log_level", "%q is not known (want debug, info, warn or error)", c.LogLevel)
	}
	if c.AuditText && !c.Audit {
		bad("audit_text", "true, but audit is false: there is nothing to show (want audit: true, or leave it out)")
	}
	c.checkNATS(bad)
	c.checkMedia(bad)
	c.checkRoute(bad)
	c.expandStandalone(bad)
	c.checkModels(bad)
	w := workersCheck{Config: c, bad: bad, names: map[string]string{}, addrs: map[string]string{}, sockets: map[string]string{}}
	w.configured()
	w.kubernetes()
	c.checkDynamo(w.any, bad)
	c.checkEnvoy(bad)
	return errors.Join(errs...)
}

// checkListeners sees to it that every address to listen at is one, and no two are the same.
func (c *Config) checkListeners(bad report) {
	if path, ok := strings.CutPrefix(c.Listen, "unix:"); ok {
		if path == "" {
			bad("listen", "%q names no socket (want one such as unix:/run/sightline.sock)", c.Listen)
		}
	} else if c.Listen == "" {
		bad("listen", "empty (want host:port, such as 127.0.0.1:9002, or unix:/path)")
	}
	distinct := func(list ...[2]string) {
		for i, l := range list {
			if l[1] == "" || strings.HasPrefix(l[1], "unix:") {
				continue
			}
			if !isListener(l[1]) {
				bad(l[0], "%q is not where to listen (want host:port, such as 127.0.0.1:9002)", l[1])
				continue
			}
			for _, other := range list[:i] {
				if sameListener(l[1], other[1]) {
					bad(l[0], "%q is also %s (want a port of its own)", l[1], other[0])
				}
			}
		}
	}
	distinct([2]string{"listen", c.Listen}, [2]string{"admin", c.Admin}, [2]string{"nats.listen", c.NATS.Listen}, [2]string{"media.relay.listen", c.Media.Relay.Listen})
	distinct([2]string{"envoy.listen", c.Envoy.Listen}, [2]string{"envoy.admin", c.Envoy.Admin})
	for _, l := range [][2]string{{"envoy.listen", c.Envoy.Listen}, {"envoy.admin", c.Envoy.Admin}} {
		if l[1] == "" {
			bad(l[0], "empty (want host:port, such as 127.0.0.1:10000)")
		}
	}
}

// isListener tells host:port, where the port may be 0 and the host be left out.
func isListener(text string) bool {
	host, port, err := net.SplitHostPort(text)
	_, wrong := strconv.ParseUint(port, 10, 16)
	return err == nil && wrong == nil && !strings.ContainsAny(host, "/@ *")
}

// sameListener tells whether both cannot be listened at.
func sameListener(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	wild := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || err == nil && ip.IsUnspecified()
	}
	return errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || wild(hostA) || wild(hostB))
}

// checkRanges bounds what is a number of bytes or a time.
func (c *Config) checkRanges(bad report) {
	for _, r := range []struct {
		key              string
		got, least, most Size
	}{
		{"body_limit", c.BodyLimit, 1 << 20, 2047 << 20}, // Envoy's least; gRPC's most
		{"index.max_bytes", c.Index.MaxBytes, 16 << 20, 1 << 40},
		{"media.max_bytes", c.Media.MaxBytes, 1 << 10, 512 << 20}, // package fetch holds no more unfinished bytes
		{"media.relay.max_bytes", c.Media.Relay.MaxBytes, 1 << 20, 1 << 40},
	} {
		if r.got < r.least || r.got > r.most {
			bad(r.key, "%v is out of range (want %v to %v)", r.got, r.least, r.most)
		}
	}
	for _, r := range []struct {
		key              string
		got, least, most time.Duration
	}{
		{"index.predicted_ttl", c.Index.PredictedTTL, 100 * time.Millisecond, time.Hour},
		{"body_timeout", c.BodyTimeout, time.Second, time.Hour},
		{"envoy.message_timeout", c.Envoy.MessageTimeout, 200 * time.Millisecond, time.Minute},
		{"media.budget", c.Media.Budget, time.Millisecond, time.Minute},
		{"media.relay.ttl", c.Media.Relay.TTL, time.Second, 24 * time.Hour},
	} {
		if r.got < r.least || r.got > r.most {
			bad(r.key, "%v is out of range (want %v to %v)", r.got, r.least, r.most)
		}
	}
	if c.MaxInFlight < 0 {
		bad("max_in_flight", "%d is no number of requests (want 1 or more, or 0 for no limit)", c.MaxInFlight)
	}
}

func (c *Config) checkNATS(bad report) {
	n := &c.NATS
	if n.URL != "" && n.Listen != "" {
		bad("nats", "url and listen are both given (want url for an existing server, or listen for an embedded one)")
	}
	if n.Dir != "" && n.Listen == "" {
		bad("nats.dir", "given without listen (only the embedded server keeps streams here)")
	}
	checkNATSURL(n.URL, "nats.url", bad)
}

// checkNATSURL takes a list of servers, with or without a scheme, as the NATS client does.
func checkNATSURL(list, path string, bad report) {
	if list == "" {
		return
	}
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		if u, err := url.Parse(text); err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			bad(path, "this is no server (want one such as nats://10.0.0.4:4222, or several with commas)") // it may hold a password
		}
	}
}

func (c *Config) checkMedia(bad report) {
	m := &c.Media
	for i, a := range m.Allow {
		if _, err := netip.ParsePrefix(a); err != nil {
			bad(fmt.Sprintf("media.allow[%d]", i), "%q is no network (want one such as 10.0.0.0/8)", a)
		}
	}
	for i, host := range m.Domains {
		if host == "" || strings.ContainsAny(host, "/:*@ ") {
			bad(fmt.Sprintf("media.domains[%d]", i), "%q is no host (want a bare name, such as images.example.com)", host)
		}
	}
	for host, list := range m.Signing {
		if host == "" || strings.ContainsAny(strings.TrimPrefix(host, "*."), "/:*@ ") || len(list) == 0 || slices.Contains(list, "") {
			bad("media.signing", "%q: %d parameters (want a host such as cdn.example.com or *.example.com, and a list such as [sig, X-Amz-*])", host, len(list))
		}
	}
	r := &m.Relay
	if r.Listen == "" {
		if r.URL != "" || r.DataURLs || r.KeyFile != "" {
			bad("media.relay.listen", "missing (want host:port, such as 0.0.0.0:9904)")
		}
		return
	}
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(r.URL, "\"\\ ") {
		bad("media.relay.url", "%q is not where workers could ask (want one such as http://10.0.0.2:9904)", r.URL)
		return
	}
	for i := range c.Models {
		if d := c.Models[i].AllowedMediaDomains; len(d) > 0 && !slices.Contains(d, u.Hostname()) {
			bad(fmt.Sprintf("models[%d].allowed_media_domains", i), "lacks %q, the host of media.relay.url: the engine would refuse every relayed image (add it here and to the engine's flag)", u.Hostname())
		}
	}
}

func (c *Config) hasModel(name string) bool {
	return slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == name })
}

func (c *Config) checkRoute(bad report) {
	switch c.Route.Mode {
	case "", "sightline", "epp":
	default:
		bad("route.mode", "%q is not known (want sightline or epp, or leave it out)", c.Route.Mode)
	}
	if c.Route.Pool != "" && !c.hasModel(c.Route.Pool) {
		bad("route.pool", "%q is no name of models (give the name of one of them)", c.Route.Pool)
	}
	if h := c.Route.Header; h != "" && !isHeader(h) {
		bad("route.header", "%q is no name of a header for the choice (want one such as x-target-worker)", h)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") || c.TLS.ClientCA != "" && c.TLS.Cert == "" {
		bad("tls", "cert and key must both be given (client_ca may be, with them)")
	}
}

// isHeader tells a header that nothing else reads: a token of HTTP, none that frames the request or says where it goes.
func isHeader(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	switch name = strings.ToLower(name); name {
	case "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "te", "upgrade", "trailer", "authorization", "cookie", "expect":
		return false
	}
	return strings.Trim(name, letters) == ""
}

func (c *Config) checkModels(bad report) {
	names := map[string]string{}
	for i := range c.Models {
		m := &c.Models[i]
		path := fmt.Sprintf("models[%d]", i)
		if m.Name == "" {
			bad(path+".name", "missing")
		}
		if m.Dir == "" {
			bad(path+".dir", "missing (want the model's directory: tokenizer, template, configs; no weights)")
		}
		if m.EngineModel == "" {
			m.EngineModel = m.Name
		}
		for key, list := range map[string][]string{"aliases": m.Aliases, "adapters": m.Adapters} {
			if at := slices.Index(list, ""); at >= 0 {
				bad(fmt.Sprintf("%s.%s[%d]", path, key, at), "empty (want a name that clients use)")
			}
		}
		for _, n := range append(append([]string{m.Name}, m.Aliases...), m.Adapters...) {
			if other, twice := names[n]; twice && n != "" {
				bad(path, "the name %q is also one of %s", n, other)
			}
			names[n] = path
		}
		checkServer(&m.Server, nil, path, bad)
		m.checkClasses(path, bad)
	}
}

// workersCheck looks at workers, those that the file names and those that are found.
type workersCheck struct {
	*Config
	bad                   report
	names, addrs, sockets map[string]string // whose they are, by path
}

func (c *workersCheck) configured() {
	for i := range c.Workers {
		w := &c.Workers[i]
		path := fmt.Sprintf("workers[%d]", i)
		addr, host, port, err := SplitAddr(w.Addr)
		if err != nil {
			c.bad(path+".addr", "%v", err)
		}
		if w.Name == "" {
			w.Name = cmp.Or(host, w.Addr)
		}
		at := net.JoinHostPort(strings.ToLower(host), strconv.Itoa(int(port)))
		if addr.IsValid() {
			host, at = addr.Addr().String(), addr.String()
		}
		if other, twice := c.addrs[at]; twice && err == nil {
			c.bad(path+".addr", "%q is also the address of %s", w.Addr, other)
		}
		c.addrs[at] = path
		if other, twice := c.names[w.Name]; twice {
			c.bad(path+".name", "%q is also the name of %s (want one of its own: agents, metrics and the page know a worker by it)", w.Name, other)
		}
		c.names[w.Name] = path
		c.any(w, path)
		c.socketsOf(w, path, host)
	}
}

func (c *workersCheck) kubernetes() {
	k := &c.Kubernetes
	if u, err := url.Parse(k.API); k.API != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "") {
		c.bad("kubernetes.api", "%q is no API server (want one such as https://10.96.0.1:443)", k.API)
	}
	if len(k.Workers) == 0 && (k.API != "" || k.CAFile != "" || k.TokenFile != "") {
		c.bad("kubernetes.workers", "none given (want a list of groups such as {service: vllm, port: http})")
	}
	for i := range k.Workers {
		g := &k.Workers[i]
		path := fmt.Sprintf("kubernetes.workers[%d]", i)
		if (g.Service == "") == (g.Selector == "") {
			c.bad(path+".service", "give either service, a Service's name, or selector, a label selector of EndpointSlices")
		}
		if n, err := strconv.Atoi(g.Port); err == nil && (n < 1 || n > 65535) {
			c.bad(path+".port", "%q is no port (want a port's name, or 1 to 65535)", g.Port)
		}
		if g.Addr != "" || g.Name != "" {
			c.bad(path, "addr and name are found, not given: a worker is named after its pod")
		}
		if g.Events.Bind {
			c.bad(path+".events.bind", "true, but the group's pods would all come to one port (want zmq with {ip}, auto or nats)")
		}
		for key, at := range map[string]string{"zmq": g.Events.ZMQ, "replay": g.Events.Replay, "load": g.Events.Load, "http": g.Events.HTTP} {
			if at != "" && !strings.Contains(at, "{ip}") {
				c.bad(path+".events."+key, "%q is one place for all pods of the group (want {ip} for the host, such as tcp://{ip}:5557)", at)
			}
		}
		c.any(&g.Worker, path)
		w := g.Worker // each pod has sockets of its own
		(&workersCheck{Config: c.Config, bad: c.bad, sockets: map[string]string{}}).socketsOf(&w, path, "10.0.0.5")
	}
}

// any checks what does not concern a worker's address and name.
func (c *workersCheck) any(w *Worker, path string) {
	if w.Model == "" && len(c.Models) == 1 {
		w.Model = c.Models[0].Name
	}
	class, known := c.ClassOf(w)
	if !c.hasModel(w.Model) {
		c.bad(path+".model", "%q is no name of models (give the name of one of them)", w.Model)
	} else if !known {
		c.bad(path+".class", "%q is no class of the model %q (give the name of one of its classes, or none)", w.Class, w.Model)
	}
	if w.Ranks < 0 || w.Ranks > 1024 {
		c.bad(path+".ranks", "%d is out of range (want 0 to 1024)", w.Ranks)
	}
	e := &w.Events
	first := ""
	for _, source := range []struct {
		key   string
		given bool
	}{{"zmq", e.ZMQ != ""}, {"http", e.HTTP != ""}, {"auto", e.Auto}, {"nats", e.NATS}} {
		switch {
		case !source.given:
		case first != "":
			c.bad(path+".events."+source.key, "given beside %s (want one source of a worker's events)", first)
		default:
			first = source.key
		}
	}
	for key, given := range map[string]bool{"replay": e.Replay != "", "topic": e.Topic != "", "bind": e.Bind, "load": e.Load != ""} {
		if given && e.ZMQ == "" {
			c.bad(path+".events."+key, "given without zmq, the socket that it belongs to (want zmq too, or leave it out)")
		}
	}
	if e.NATS && c.NATS.URL == "" && c.NATS.Listen == "" {
		c.bad(path+".events.nats", "true, but nats.url and nats.listen are both empty")
	}
	if !known {
		return
	}
	switch {
	case first != "" && class.Dynamo():
		c.bad(path+".events", "its model goes by Dynamo's hashes, which only the workers of the section dynamo tell (want block_hash: sightline for workers whose own events are heard)")
	case e.Load != "" && (w.Ranks > 0 || !class.Rules().TellsLoad):
		c.bad(path+".events.load", "given with ranks, or for another engine than trtllm (only NVIDIA's standalone example tells its load so)")
	case e.Auto && class.Rules().FindEvents == nil:
		c.bad(path+".events.auto", "true, but only SGLang and vLLM 0.31 and later tell their sockets (want zmq or nats for %s %s)", class.Engine, class.EngineVersion)
	case e.HTTP != "" && !class.Rules().EventsOverHTTP:
		c.bad(path+".events.http", "only engine trtllm offers its events over HTTP, and these workers have engine %q", class.Engine)
	}
	u, err := url.Parse(strings.ReplaceAll(e.HTTP, "{ip}", "10.0.0.5"))
	if e.HTTP != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "") {
		c.bad(path+".events.http", "%q is no server (want one such as http://10.0.0.5:8000)", e.HTTP)
	}
}

// socketsOf checks a worker's ZeroMQ sockets, one of each kind for each rank: no other worker has them.
func (c *workersCheck) socketsOf(w *Worker, path, host string) {
	if w.Ranks < 0 || w.Ranks > 1024 {
		return
	}
	for _, s := range []struct{ key, endpoint string }{{"zmq", w.Events.ZMQ}, {"replay", w.Events.Replay}, {"load", w.Events.Load}} {
		key, here := path+".events."+s.key, ""
		if s.endpoint == "" {
			continue
		}
		if w.Events.Bind && s.key == "zmq" {
			if here = "here"; strings.Contains(s.endpoint, "{ip}") {
				c.bad(path+".events.bind", "true, but zmq is not where to listen (want one such as tcp://*:5557, another for each worker)")
				continue
			}
		}
		for rank := range max(1, w.Ranks) {
			at, err := zmq.Address(strings.ReplaceAll(s.endpoint, "{ip}", host), here, rank)
			if err != nil {
				c.bad(key, "%v", err)
				break
			}
			if other, twice := c.sockets[at]; twice {
				c.bad(key, "%s is also %s (want a socket of its own)", at, other)
				break
			}
			c.sockets[at] = key
		}
	}
}

// checkEnvoy checks what Envoy's side is told.
func (c *Config) checkEnvoy(bad report) {
	var ranges []Range
	for i, text := range c.Envoy.Workers {
		r, err := ParseRange(text)
		if err != nil {
			bad(fmt.Sprintf("envoy.worker_networks[%d]", i), "%v", err)
		}
		ranges = append(ranges, r)
	}
	dialled := func(path, addr string) {
		a, err := netip.ParseAddrPort(addr)
		if err == nil && len(ranges) > 0 && !slices.ContainsFunc(ranges, func(r Range) bool {
			return r.Prefix.Contains(a.Addr()) && int(a.Port()) >= r.First && int(a.Port()) <= r.Last
		}) {
			bad(path, "%q is in none of envoy.worker_networks: Envoy would never dial it (widen them)", addr)
		}
	}
	for i := range c.Workers {
		dialled(fmt.Sprintf("workers[%d].addr", i), c.Workers[i].Addr)
	}
	for i, f := range c.Dynamo.Frontends {
		dialled(fmt.Sprintf("dynamo.frontends[%d]", i), f)
	}
	for i, p := range c.Envoy.Pools {
		path := fmt.Sprintf("envoy.pools[%d]", i)
		name, _, isHeader := strings.Cut(p.Header, "=")
		if !c.hasModel(p.Model) {
			bad(path+".model", "%q is no name of models (give the name of one of them)", p.Model)
		}
		if p.Path == "" && p.Host == "" && p.Header == "" {
			bad(path, "no path, host or header: a request must show which model it is for without its body being read")
		}
		if p.Path != "" && (!strings.HasPrefix(p.Path, "/") || strings.Trim(p.Path, "/") == "") {
			bad(path+".path", "%q is no prefix (want one such as /qwen)", p.Path)
		}
		if strings.ContainsAny(p.Host, "/:@ ") {
			bad(path+".host", "%q is no host (want a name without a port)", p.Host)
		}
		if p.Header != "" && (!isHeader || name == "") {
			bad(path+".header", "%q is no condition (want name=value)", p.Header)
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
