package envoy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/internal/denied"
)

// view is the template's data: the options, parsed and completed.
type view struct {
	Options
	Command                 string   // the command that generated the text
	Listen, Admin           hostPort // parsed; they shadow the strings of Options
	Sightlines              []sightlines
	Pools                   []poolView
	Picks                   []pick
	Composite               bool
	Stats                   bool   // Envoy can count by tags from its access log
	AdminPaths              string // a regular expression: what may be read at the admin address; "": Envoy cannot limit it
	MaxConnections          int64  // of clients
	TooLarge                int    // the smallest length above BodyLimit
	Passed                  string // paths whose bodies may pass unread, if others may not
	Paths, Odd              string // regular expressions: endpoints that take a prompt, and paths that may be other spellings of them
	Headers                 []denied.Header
	Reasons                 []string
	Sums                    []string // numbers of a decision that are summed, by model and worker
	WorkerTLS, SightlineTLS *tlsView
	LeftOut                 []string // what the release does not support
	Releases                string
}

// LongestWait is the filter's max_message_timeout.
func (v *view) LongestWait() time.Duration { return LongestWait(v.MessageTimeout, v.BodyLimit) }

// sightlines is a cluster: all of them, for ext_proc; and if there are several, another one for each, for access logs.
type sightlines struct {
	Cluster string
	Peers   []peer
}

type peer struct {
	hostPort
	Socket string
}

// Logs returns the clusters that access logs go to: every Sightline gets all of them, and picks out its own decisions.
func (v *view) Logs() []sightlines { return v.Sightlines[min(1, len(v.Sightlines)-1):] }

type pick struct{ Cluster, Header string }

// poolView is one pool. A single one has no suffix, name or conditions.
type poolView struct {
	Name, Suffix string
	Path         string // prefix, "" for none
	PathRegex    string // the same, quoted
	Also         string // additional header matches, ", " first
	Workers      []hostPort
	Names        bool // at least one worker is given by name, not by address
	Allow        []Range
}

type tlsView struct {
	CA, Cert, Key, ALPN string
	Names               []hostPort
}

// reader collects the errors in options.
type reader struct{ errs []error }

func (r *reader) bad(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *reader) addr(key, addr string, needIP bool) hostPort {
	h, err := split(key, addr, needIP)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return h
}

func viewOf(o Options) (*view, error) {
	v := &view{Options: o, TooLarge: o.BodyLimit + 1, MaxConnections: o.HeapLimit >> 16, Paths: strings.Join(denied.Endpoints, "|"),
		Odd: strings.ReplaceAll(denied.Odd, `\`, `\\`), Headers: denied.Headers,
		Reasons: []string{"exact", "learned", "predicted", "affinity", "load"}, Sums: []string{"matched_blocks",
			"prompt_tokens", "cached_tokens"}}
	r := &reader{}
	v.Command = "sightline envoy"
	if o.variant != "" && o.variant != variants[0].Name {
		v.Command += " --variant " + o.variant
	}
	if o.Version != "" {
		v.Command += " --envoy-version " + o.Version
	}
	v.Listen = r.addr("envoy.listen", o.Listen, true)
	v.Admin = r.addr("envoy.admin", o.Admin, true)
	peers := v.sightlines(r)
	v.release(r)
	v.pools(r)
	if o.BodyLimit < 1<<20 || o.BodyLimit > 1<<31-1 {
		r.bad("body_limit: %d bytes, want 1 MiB to 2 GiB", o.BodyLimit)
	}
	for i, p := range o.Pass {
		if !segment.MatchString(p) {
			r.bad("pass_unread[%d] %q: want a path such as /v1/embeddings", i, p)
		}
		v.Passed += "|" + strings.ReplaceAll(regexp.QuoteMeta(p), `\`, `\\`)
	}
	v.Passed = strings.TrimPrefix(v.Passed, "|")
	if o.MessageTimeout < time.Millisecond {
		r.bad("envoy.message_timeout: %v, want 1ms or more, such as 2s", o.MessageTimeout)
	}
	if o.HeapLimit < 4*int64(o.BodyLimit) {
		r.bad("heap limit: %d bytes, want at least four times the body limit of %d", o.HeapLimit, o.BodyLimit)
	}
	var workers []hostPort
	for _, p := range v.Pools {
		workers = append(workers, p.Workers...)
	}
	v.WorkerTLS = r.tls("envoy.worker_tls", o.WorkerTLS, "http/1.1", workers)
	v.SightlineTLS = r.tls("envoy.sightline_tls", o.SightlineTLS, "h2", peers)
	if o.SightlineTokenFile != "" && !isFile(o.SightlineTokenFile) {
		r.bad("envoy.sightline_token_file %q: want an absolute path", o.SightlineTokenFile)
	}
	return v, errors.Join(r.errs...)
}

// sightlines parses where Sightline listens.
func (v *view) sightlines(r *reader) (peers []hostPort) {
	v.Sightlines = []sightlines{{Cluster: "sightline"}}
	list, key := strings.Split(v.Options.Sightline, ","), "listen"
	if len(list) > 1 {
		key = "envoy.sightlines"
	}
	for i, text := range list {
		text = strings.TrimSpace(text)
		p := peer{}
		if path, isUnix := strings.CutPrefix(text, "unix:"); isUnix {
			p.Socket = path
			if !isFile(path) {
				r.bad("%s %q: want unix: and an absolute path without blanks, such as unix:/run/sightline.sock", key, text)
			}
		} else {
			p.hostPort = r.addr(key, text, true)
			peers = append(peers, p.hostPort)
		}
		if slices.Contains(v.Sightlines[0].Peers, p) {
			r.bad("%s %q: twice", key, text)
		}
		v.Sightlines[0].Peers = append(v.Sightlines[0].Peers, p)
		if len(list) > 1 {
			v.Sightlines = append(v.Sightlines, sightlines{fmt.Sprint("sightline_log_", i), []peer{p}})
		}
	}
	return peers
}

// adminPaths are Envoy's admin pages that show its state and change nothing; on loopback the template adds those that end it
// gracefully. /stats/recentlookups is not among them: it can be
// switched on.
const adminPaths = "help|ready|server_info|config_dump|init_dump|clusters|listeners|certs|memory|runtime|hot_restart_version|stats|" +
	"stats/prometheus"

// release leaves out what the oldest supported Envoy lacks.
func (v *view) release(r *reader) {
	v.Version = cmp.Or(v.Version, strings.TrimSuffix(Version, ".0"))
	major, rest, _ := strings.Cut(v.Version, ".")
	minor, err := strconv.Atoi(strings.SplitN(rest, ".", 2)[0])
	if major != "1" || err != nil || minor < 36 {
		r.bad("--envoy-version %q: want 1.36 or later, such as 1.39", v.Version)
		return
	}
	v.Composite = !v.OverrideHost && minor >= 39
	leave := func(what string) { v.LeftOut = append(v.LeftOut, what) }
	switch {
	case v.OverrideHost:
	case v.Composite:
		v.Picks = []pick{{"workers_picked", "x-target-worker"}, {"workers_second", "x-target-worker-2"}}
	default:
		v.Picks = []pick{{"workers_picked", "x-target-worker"}}
		leave("a composite cluster (1.37), so a retry dials the same worker again and not the second choice;")
		leave("  an upstream filter that checks the address dialled (1.39), so only the removal of clients' headers guards it.")
		leave("  --variant override_host has neither gap on this release.")
	}
	if minor >= 37 {
		v.AdminPaths = adminPaths
	} else {
		leave("a limit to what the admin address does (1.37): a browser on a machine that reaches it must not show foreign pages.")
	}
	v.Stats = minor >= 39
	if !v.Stats {
		leave("counters by model, reason and worker and requests in flight in /stats (1.39); " +
			"those by route and reason (vhost.llm.vcluster) are there.")
	}
	if v.TokenUsage && minor < 40 {
		v.TokenUsage = false
		leave("token counts read from answers (1.40).")
	}
	v.Releases = "1." + strconv.Itoa(minor)
	if minor == 40 && !v.TokenUsage {
		v.Releases = "1.39 and 1.40"
	}
}

func (v *view) pools(r *reader) {
	pools := v.Options.Pools
	if len(pools) == 0 {
		pools = []Pool{{Workers: v.Options.Workers}}
		if len(v.Options.Workers) == 0 && !v.EDS {
			r.bad("workers: none given; Envoy needs all of them for requests without a decision")
		}
	}
	for i, b := range v.Allow {
		if !b.Prefix.IsValid() || b.FirstPort < 1 || b.LastPort < b.FirstPort || b.LastPort > 65535 {
			r.bad("envoy.worker_networks[%d]: %v, ports %d to %d: want a CIDR and ports from 1 to 65535, the first not above the last",
				i, b.Prefix, b.FirstPort, b.LastPort)
		}
	}
	suffixes := map[string]string{}
	for i, in := range pools {
		key := ""
		p := poolView{Name: in.Name, Path: strings.TrimSuffix(in.Path, "/")}
		if len(v.Options.Pools) > 0 {
			key = fmt.Sprintf("envoy.pools[%d].", i)
			p.Suffix = "_" + plain.ReplaceAllString(in.Name, "_")
			p.conditions(r, key, in)
			if other, twice := suffixes[p.Suffix]; twice {
				r.bad("%smodel %q: too like the name %q of another pool", key, in.Name, other)
			}
			suffixes[p.Suffix] = in.Name
		}
		for j, w := range in.Workers {
			h := r.addr(fmt.Sprintf("%sworkers[%d]", key, j), w, false)
			p.Workers = append(p.Workers, h)
			p.Names = p.Names || !h.IsIP()
		}
		p.Allow = v.Allow
		if len(p.Allow) == 0 && v.Composite {
			if p.Names || v.EDS {
				r.bad("envoy.worker_networks: empty, and the workers' addresses are not known before they run; give the networks and ports " +
					"that they are in, such as 10.0.0.0/8:8000-8010")
			} else {
				p.Allow = exactly(p.Workers)
				if len(p.Allow) == 0 {
					p.Allow = nowhere
				}
			}
		}
		v.Pools = append(v.Pools, p)
	}
}

var (
	plain    = regexp.MustCompile(`[^A-Za-z0-9]+`)
	segment  = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)
	hostName = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)
	token    = regexp.MustCompile(`^[A-Za-z0-9._/:@+-]+$`)
	// nowhere is what a pool without workers may dial.
	nowhere = []Range{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), FirstPort: 1, LastPort: 1}}
)

// conditions parses the conditions by which a request belongs to this pool.
func (p *poolView) conditions(r *reader, key string, in Pool) {
	if !token.MatchString(in.Name) {
		r.bad("%smodel %q: want a model's name without blanks or quotes", key, in.Name)
	}
	if in.Path == "" && in.Host == "" && in.Header == "" {
		r.bad("%spath, host, header: none given; a request must show which model it is for without its body being read", key)
	}
	if in.Path != "" && !segment.MatchString(p.Path) {
		r.bad("%spath %q: want a prefix such as /qwen", key, in.Path)
	}
	p.PathRegex = regexp.QuoteMeta(p.Path)
	p.PathRegex = strings.ReplaceAll(p.PathRegex, `\`, `\\`) // inside a quoted YAML string
	if in.Host != "" {
		if !hostName.MatchString(in.Host) {
			r.bad("%shost %q: want a host name without a port", key, in.Host)
		}
		p.Also += `, { name: ":authority", string_match: { safe_regex: { regex: "(?i)` +
			strings.ReplaceAll(regexp.QuoteMeta(in.Host), `\`, `\\`) + `(:[0-9]+)?" } } }`
	}
	if in.Header != "" {
		name, value, ok := strings.Cut(in.Header, "=")
		if !ok || !token.MatchString(name) || !token.MatchString(value) {
			r.bad("%sheader %q: want name=value", key, in.Header)
		}
		p.Also += fmt.Sprintf(`, { name: %q, string_match: { exact: %q } }`, strings.ToLower(name), value)
	}
}

func (r *reader) tls(key string, t *TLS, alpn string, peers []hostPort) *tlsView {
	if t == nil {
		return nil
	}
	out := &tlsView{CA: t.CA, Cert: t.Cert, Key: t.Key, ALPN: alpn}
	if !isFile(t.CA) || t.Cert != "" && !isFile(t.Cert) || (t.Cert == "") != (t.Key == "") || t.Key != "" && !isFile(t.Key) {
		r.bad("%s: ca %q, cert %q, key %q: want absolute paths of PEM files, cert and key both or neither", key, t.CA, t.Cert, t.Key)
	}
	for _, n := range t.Names {
		if !hostName.MatchString(n) && !(hostPort{Host: n}).IsIP() {
			r.bad("%s: name %q is neither an IP address nor a host name", key, n)
		}
		out.Names = append(out.Names, hostPort{Host: n})
	}
	seen := map[string]bool{}
	for _, p := range peers {
		if len(t.Names) == 0 && p.Host != "" && !seen[p.Host] {
			out.Names = append(out.Names, p)
			seen[p.Host] = true
		}
	}
	if len(out.Names) == 0 {
		r.bad("%s: names: none given, and the peer's address is not known here", key)
	}
	return out
}

func isFile(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.ContainsAny(path, "{},#\n\"' ")
}
