package findings

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/envoy/check"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/workers/inspect"
)

// Seen is what the doctor finds out by itself: from files, and from those whom it asks.
type Seen struct {
	Config    config.Config
	ConfigErr error
	Missing   [sources]string // why a source was not asked; "": it was
	Readings  []string        // by class of workers: how requests are read
	Patience  time.Duration

	Servers   []*Server
	Deployed  int // workers behind Dynamo's front ends
	DeployErr error

	Envoy    []check.Finding
	Lacking  []check.Piece
	EnvoyErr error // what was given or answers cannot be read
	Through  Through
	Life     Life

	AdminErr string // why the running Sightline tells nothing
	AdminWas string // "given": by --admin, "there": something listens at admin; "": neither
	Agents   []Agent
}

// Server is a worker, or a front end of Dynamo, and its answers.
type Server struct {
	config.Worker
	FrontEnd bool
	Class    config.Class
	Rules    rules.Rules
	Facts    rules.Facts
	Err      error // why it did not answer

	Sent          bool // the canary
	CanaryErr     error
	First, Second inspect.Usage
	Sockets       []*Socket
	HeardThere    bool // by the running Sightline
}

// Socket is one rank's event socket while the canary was computed.
type Socket struct {
	rules.EventSource
	Rank     int
	Ours     bool // it is configured; otherwise the worker reported it, and perhaps only an agent beside the worker can reach it
	Replayed error
	Up       bool
	Err      error // the latest, while it was not connected
	Frames   []Frame
	Unread   string // why the last message that came could not be read
}

// Frame is a message that reports stored blocks.
type Frame struct {
	Payload   [sha256.Size]byte
	Came      time.Time
	Stamped   time.Time // by the worker; zero: no time stamp
	BlockSize int
	Begins    string // the tokens of a first block of a prompt, as text; "": there is none
	Hash      uint64 // of that block
}

// Through is what requests through Envoy have shown.
type Through struct {
	Asked   bool
	Unasked string // why none could be sent, or none was let in
	Err     error
	RBAC    bool  // a filter of Envoy's refused it
	Decided bool  // a Sightline that tells of its decisions has decided it; it, too, if none tells
	Steered error // a response to a request with forged headers that differs from the one without them
	Passed  int   // size of the largest body that was accepted, in bytes
	Failed  int   // size of the smallest that was not; 0: none
	Status  string
}

// Life is what answers: Envoy, and Sightline where Envoy asks it. If Envoy answers and Sightline does not, requests go on undecided,
// uncleaned and to any worker, and no client notices.
type Life struct {
	Envoy    string   // where Envoy answers; "": nowhere
	Here     bool     // that is on this machine
	Answered []string // addresses of envoy.sightlines, or listen, that answer
	Silent   []string // those that take connections and say nothing, and the admin port
	Refused  []string // those where nothing listens
	Running  bool     // something answers at admin
	NotReady string   // as the running Sightline says
	// What Envoy knows of its connections to Sightline: how many it has, how many of them are healthy. 0: it was not asked.
	Hosts, Healthy int
}

// Agent is what an agent reports of itself.
type Agent struct {
	At    string
	Err   error
	State struct {
		Worker string
		Ranks  []struct {
			Rank     int
			NotReady string `json:"not_ready"`
			Heard    stream.Stats
		}
	}
}

// bad adds a finding of the doctor's own.
func (l *list) bad(code, severity, worker, fix, format string, args ...any) {
	l.add(Finding{Code: code, Severity: severity, kind: "seen " + worker + fmt.Sprintf(format, args...), From: "doctor",
		What: fmt.Sprintf(format, args...), Fix: fix}, worker, "")
}

// judge adds what the doctor's own facts show.
func (s *Seen) judge(l *list) {
	for _, says := range s.Readings {
		l.ok("SL0206", "%s", says)
	}
	s.ofFiles(l)
	for _, w := range s.Servers {
		w.judge(l, s)
	}
	s.ofHashes(l)
	if s.DeployErr != nil {
		l.bad("SL0109", "error", "", "dynamo.discovery: a folder that can be read", "%v", s.DeployErr)
	} else if d := &s.Config.Dynamo; s.Deployed == 0 && len(d.Frontends) > 0 && s.Missing[FromWorkers] != OnlyFiles {
		l.bad("SL0109", "error", "", "dynamo.discovery is the workers' DYN_FILE_KV; namespace and component are theirs",
			"%s has no live record of a worker of %s/%s", d.Discovery, d.Namespace, d.Component)
	}
	s.ofEnvoy(l)
	s.ofLife(l)
	s.ofAgents(l)
}

// OnlyFiles is why nothing but files was looked at.
const OnlyFiles = "--pre looks at files alone"

// judge adds what one server has answered, and what its canary has shown.
func (w *Server) judge(l *list, s *Seen) {
	if w.Err != nil {
		key := map[bool]string{true: "dynamo.frontends", false: fmt.Sprintf("addr of worker %q", w.Name)}[w.FrontEnd]
		l.bad("SL0109", "error", w.Name, cmp.Or(rules.FaultOf(w.Err).Fix(), "start it, or correct "+key+"; from here: curl http://"+w.Addr+
			"/v1/models"), "at %s: %v", w.Addr, w.Err)
		return
	}
	l.ok("SL0109", "%s at %s: %s %s", w.Name, w.Addr, w.Facts.Engine, w.Facts.Version)
	if w.FrontEnd {
		if !slices.ContainsFunc(w.Facts.Served, func(m rules.Served) bool { return m.ID == w.Model }) {
			l.bad("SL0103", "error", w.Name, "models: {name: "+w.Facts.Served[0].ID+"}", "serves no %q", w.Model)
		}
		return
	}
	computed := w.Sent && w.CanaryErr == nil
	if w.CanaryErr != nil {
		l.bad("SL0109", "warning", w.Name, "see its log: it answers questions and computes nothing", "the canary failed: %v", w.CanaryErr)
	}
	on, second := w.Facts.PrefixCaching, w.Second.Details
	switch {
	case computed && second != nil && second.Cached == 0 && w.Second.Prompt > w.LargestBlock() && (on == nil || *on):
		fix := fixCaching
		if on != nil {
			fix = "its prefix cache is on: if several engines answer at " + w.Addr + ", give each worker the address of one, or ranks"
		}
		l.bad("SL0102", "error", w.Name, fix, "found 0 of %d tokens cached of a prompt that it had just computed", w.Second.Prompt)
	case on == nil && (!computed || second == nil):
		l.unchecked("SL0102", "%s does not report it", w.Name)
	}
	if computed && second == nil && (w.First.Details == nil || w.First.Details.Cached == 0) {
		w.Facts.CountsCached = new(bool)
	}
	w.ofStart(l)
	w.ofEvents(l, s, computed)
	for _, o := range w.Sockets {
		if o.Unread != "" && !w.Heard() {
			l.bad("SL0309", "error", w.Name, fixUnreadable, "its events cannot be read: %s", o.Unread)
		}
		for _, f := range o.Frames {
			if given := w.Class.ConfiguredBlockSize(); given != 0 && given != f.BlockSize {
				l.add(otherSize, w.Name, fmt.Sprint(f.BlockSize, " tokens"))
			}
			if skew := f.Came.Sub(f.Stamped); !f.Stamped.IsZero() && max(skew, -skew) > maxSkew {
				l.bad("SL0303", "warning", w.Name, "run NTP (chrony, systemd-timesyncd) on the worker's machine and here",
					"its events' timestamps are %v off this machine's clock", skew.Round(time.Second))
			}
			break
		}
	}
}

// maxSkew is the tolerated clock difference. An event arrives milliseconds after its step.
const maxSkew = 30 * time.Second

// LargestBlock returns the most tokens that a block of the worker has, as far as it is known before its events come.
func (w *Server) LargestBlock() int { return max(w.Class.BlockSize, w.Facts.BlockSize) }

// Heard reports whether an event of stored blocks was received.
func (w *Server) Heard() bool {
	return slices.ContainsFunc(w.Sockets, func(o *Socket) bool { return len(o.Frames) > 0 })
}

// Started returns what a server was started without, by what it says itself.
func (w *Server) Started() (found []*Finding) {
	var l list
	off := func(told *bool) bool { return told != nil && !*told }
	if off(w.Facts.Publishes) {
		l.bad("SL0301", "error", w.Name, startEvents(w.Class.Engine), "%v", rules.ErrNoEvents)
	}
	if off(w.Facts.PrefixCaching) {
		l.bad("SL0102", "error", w.Name, fixCaching, "its prefix cache is off: routing gains nothing")
	}
	w.ofStart(&l)
	return l.found
}

// ofStart adds what no probe sees.
func (w *Server) ofStart(l *list) {
	flags, e := w.Rules.Flags, w.Facts.Events
	if w.Facts.CountsCached != nil && !*w.Facts.CountsCached {
		l.bad("SL0106", "warning", w.Name, "start it with "+cmp.Or(flags.Counts, "a release that reports them"),
			"the usage in its answers does not report cached tokens, so predictions are not checked against them")
	}
	if w.Rules.Load.Path != "" && w.Events.Load == "" && w.Facts.Requests == nil {
		why, fix := "its metrics page does not report its requests", "let Sightline fetch http://"+w.Addr+w.Rules.Load.Path+
			" without a key, or give worker_access: {api_key_file: …}"
		if at := slices.IndexFunc(w.Facts.Unknown, func(u rules.Unknown) bool { return u.What == "requests" }); at >= 0 {
			why = w.Facts.Unknown[at].Why
		}
		if flags.Metrics != "" {
			fix = "start it with " + flags.Metrics + "; " + fix
		}
		l.bad("SL0106", "warning", w.Name, fix, "%s", why)
	}
	told := len(e) > 0 && e[0].Replay != ""
	if w.Events.Load == "" && w.Events.Replay == "" && (w.Events.ZMQ != "" || len(e) > 0 && !told) {
		fix := startEvents(w.Class.Engine)
		switch {
		case told:
			fix = "events: {replay: \"" + e[0].Replay + "\"}"
		case !w.Events.Auto:
			fix += ", and here events: {replay: \"tcp://" + host(w.Addr) + ":" + ReplayPort + "\"}"
		}
		l.bad("SL0304", "warning", w.Name, fix,
			"no replay socket: blocks stored before Sightline starts, and missed events, are never known")
	}
}

// ofEvents adds event sockets that are silent, elsewhere, or cannot be reached.
func (w *Server) ofEvents(l *list, s *Seen, computed bool) {
	all := len(w.Sockets) > 0
	for _, o := range w.Sockets {
		all = all && o.Up && o.Ours
		said := ""
		if o.Rank < len(w.Facts.Events) {
			said = w.Facts.Events[o.Rank].Pub
		}
		elsewhere := said != "" && port(said) != port(o.Pub)
		fix := fixSocket
		if elsewhere {
			fix = "events: {zmq: \"" + said + "\"}"
		}
		heard := len(o.Frames) > 0 || w.Ranks > 1 && w.Heard() // one rank computes the canary
		switch {
		case o.Up && elsewhere && !heard: // a mapped port is heard all the same
			l.bad("SL0303", "error", w.Name, fix, "rank %d: configured is %s, the worker says %s", o.Rank, o.Pub, said)
		case o.Up:
			l.ok("SL0303", "%s, rank %d: %s", w.Name, o.Rank, o.Pub)
		case o.Ours:
			l.bad("SL0303", "error", w.Name, fix, "rank %d: %s: %v", o.Rank, o.Pub, o.Err)
		}
		switch distance := number(o.Replay) - number(o.Pub); {
		case o.Replay == "":
		case o.Rank == 0 && max(distance, -distance) < max(1, w.Ranks, w.Facts.Ranks) && host(o.Replay) == host(o.Pub):
			l.bad("SL0304", "error", w.Name, "move replay_endpoint away by the number of ranks, such as events at 5557 and replay at "+ReplayPort,
				"events at %s and replay at %s overlap: each rank takes its port plus its number", o.Pub, o.Replay)
		case o.Replayed != nil && o.Ours:
			l.bad("SL0304", "error", w.Name, fixReplay, "rank %d: %v", o.Rank, o.Replayed)
		}
	}
	said := w.Facts.Publishes != nil
	switch unread := slices.ContainsFunc(w.Sockets, func(o *Socket) bool { return o.Unread != "" }); {
	case said && !*w.Facts.Publishes: // the probe's finding
	case w.Heard() || w.HeardThere:
		l.ok("SL0301", "%s: the canary's event came", w.Name)
	case unread:
		l.unchecked("SL0301", "%s: events came that cannot be read (SL0309)", w.Name)
	case computed && all:
		l.bad("SL0301", "error", w.Name, startEvents(w.Class.Engine), "no event came within %v of a prompt that it computed", s.Patience)
	case said:
		l.ok("SL0301", "%s says that it publishes", w.Name)
	default:
		l.unchecked("SL0301", "%s does not report it, and Sightline does not listen to its sockets", w.Name)
	}
}

// ofHashes adds workers that publish the same messages, time stamps included, because they share a socket, and those that give equal
// blocks other names: Sightline does not use these, but stores that workers share do.
func (s *Seen) ofHashes(l *list) {
	type block struct{ version, model, begins string }
	type name struct {
		hash uint64
		by   string
	}
	whose, named, algo := map[[sha256.Size]byte]string{}, map[block]name{}, map[string]*Server{}
	for _, w := range s.Servers {
		if a := w.Facts.HashAlgo; a != "" && w.Sent {
			at := w.Model + "\x00" + w.Worker.Class
			if other := algo[at]; other != nil && other.Facts.HashAlgo != a {
				l.bad("SL0305", "warning", "", "--prefix-caching-hash-algo: the same for all workers", "%s hashes with %s, %s with %s", other.Name,
					other.Facts.HashAlgo, w.Name, a)
			}
			algo[at] = w
		}
		for _, o := range w.Sockets {
			for _, f := range o.Frames {
				if other, ok := whose[f.Payload]; ok && other != w.Name && !f.Stamped.IsZero() {
					l.add(Finding{Code: "SL0308", Severity: "error", kind: "seen", From: "doctor", Fix: fixShared,
						What: fmt.Sprintf("%s and %s: the same events come under both names", other, w.Name)}, "", "")
					return
				}
				whose[f.Payload] = w.Name
				if f.Begins == "" || w.Class.Engine != "vllm" {
					continue
				}
				at := block{w.Facts.Version, w.Model + w.Worker.Class, f.Begins}
				if other := named[at]; other.by != "" && other.by != w.Name && other.hash != f.Hash {
					l.bad("SL0305", "warning", "", "PYTHONHASHSEED=0, the same for all workers (vLLM before 0.29), and the same "+
						"--prefix-caching-hash-algo", "%s and %s give the same block different hashes: they find nothing in a store that they share "+
						"(Sightline's choice is not affected)", other.by, w.Name)
				}
				named[at] = name{f.Hash, w.Name}
			}
		}
	}
}

// ofFiles adds what the configuration alone shows.
func (s *Seen) ofFiles(l *list) {
	c := &s.Config
	blocks := 0
	for _, w := range s.Servers {
		blocks += w.Facts.Blocks * max(1, w.Ranks)
	}
	if need := int64(blocks) * bytesOfBlock; need > int64(c.Index.MaxBytes) {
		l.bad("SL0503", "warning", "", fmt.Sprintf("index: {max_bytes: %dMiB}", need>>20+1),
			"workers' caches have %d blocks, some %.1f MiB of the index, and index.max_bytes is %v: the least useful blocks are evicted",
			blocks, float64(need)/(1<<20), c.Index.MaxBytes)
	}
	for i := range c.Workers {
		if e := &c.Workers[i].Events; e.ZMQ == "" && !e.Auto && !e.NATS && e.HTTP == "" {
			l.add(noEvents, c.Workers[i].Name, "")
		}
	}
	n := max(len(c.Envoy.Sightlines), len(c.Replicas.Addresses))
	if n < 2 && len(c.Replicas.Addresses) == 0 {
		return
	}
	for _, w := range c.Workers {
		if w.Events.HTTP != "" {
			l.bad("SL0504", "error", w.Name, "an agent beside the worker, and events: {nats: true}",
				"events.http takes its events away from the other %d Sightlines", n-1)
		}
	}
	bad := func(wrong bool, severity, fix, format string, args ...any) {
		if wrong {
			l.bad("SL0504", severity, "", fix, format, args...)
		}
	}
	as, loop := &c.Replicas, host("tcp://"+strings.TrimPrefix(c.NATS.URL, "nats://"))
	bad(c.NATS.Listen != "", "error", "nats: {url: …}: one server for all",
		"nats.listen is this Sightline's own server: agents publish to one of %d", n)
	bad(loop == "127.0.0.1", "warning", "nats: {url: …} that all reach", "nats.url is on loopback")
	bad(c.TLS.Cert != "" && as.CA == "" && !c.NATS.Given(), "warning",
		"replicas: {ca: …}, with cert and key where tls.client_ca asks for them",
		"listen speaks TLS, and replicas is not set up for TLS to the others: they share nothing")
}

// bytesOfBlock is the size of a worker's block in the index: 20 to 27 bytes (docs/replicas.md).
const bytesOfBlock = 27

// ofEnvoy adds what Envoy's configuration lacks, and what requests through it have shown.
func (s *Seen) ofEnvoy(l *list) {
	if s.EnvoyErr != nil {
		l.bad("SL0410", "error", "", "give --envoy an envoy.yaml, a config dump or the address of an Envoy's admin page", "%v", s.EnvoyErr)
	}
	for i := range s.Envoy {
		f := &s.Envoy[i]
		for _, code := range strings.Fields(f.Code) {
			l.bad(code, f.Severity, "", f.Fix, "%s at %s: %s (want %s)", f.Name, f.Where, f.Got, f.Want)
		}
	}
	for _, p := range s.Lacking {
		l.bad("SL0410", "error", "", "sightline envoy -c … --for … prints what is missing, and with --apply the file with it",
			"missing: %s, at %s: %s", p.Name, p.Where, p.Why)
	}
	t := &s.Through
	if t.Failed > 0 {
		l.bad("SL0401", "error", "", "per_connection_buffer_limit_bytes of the listener, request_body_buffer_limit of the virtual host, and the "+
			"worker's own limit: body_limit and more", "a body of %v is refused (%s), one of %v passes", config.Size(t.Failed), t.Status,
			config.Size(t.Passed))
	}
	if t.Steered != nil {
		l.bad("SL0407", "error", "", "early_header_mutation_extensions as \"sightline envoy\" prints them", "%v", t.Steered)
	}
	switch {
	case t.Err != nil && t.RBAC:
		l.bad("SL0408", "error", "", "the RBAC filter of Envoy's listener: let requests for inference through to the chosen workers", "%v", t.Err)
	case t.Err != nil:
		l.bad("SL0408", "error", "", "see Envoy's log and its routes; a worker's answer to the same request is in SL0109", "%v", t.Err)
	case t.Asked && !t.Decided:
		fix := "the ext_proc filter on the route that requests for inference take (\"sightline envoy --for\" prints it)"
		if s.Life.Dead(s.Config.Admin) != "" {
			fix = "see SL0505"
		}
		l.bad("SL0408", "error", "", fix, "Envoy answered the canary without asking Sightline")
	}
}

// Dead says how Envoy answers and Sightline does not, or is frozen; "": it is not so.
func (l *Life) Dead(admin string) string {
	switch known := l.Hosts > 0; {
	case len(l.Silent) > 0:
		return fmt.Sprintf("%s takes connections and does not answer: Sightline is frozen, or has no time; requests go on undecided",
			strings.Join(l.Silent, ", "))
	case known && l.Healthy == 0:
		return fmt.Sprintf("Envoy at %s has no healthy Sightline: requests go anywhere, uncleaned", l.Envoy)
	case l.Envoy == "" || l.Running || len(l.Answered) > 0 || known && !l.Here:
		return ""
	}
	return fmt.Sprintf("Envoy answers at %s, and no Sightline at %s nor at admin, %q: requests go anywhere, uncleaned",
		l.Envoy, strings.Join(l.Refused, ", "), admin)
}

// ofLife adds a Sightline that does not run, or not for Envoy.
func (s *Seen) ofLife(l *list) {
	life, admin := &s.Life, s.Config.Admin
	told := s.Missing[FromRunning] == ""
	if dead := life.Dead(admin); dead != "" {
		fix := "start it, or end what is frozen and start it again; if it runs elsewhere: --admin URL, and envoy.sightlines"
		switch running := told && len(life.Silent) == 0; {
		case running && life.NotReady != "":
			fix = fixNotReady
		case running:
			fix = "in Envoy's cluster of Sightline: the address of listen, and TLS if listen has it (tls), else none (\"sightline envoy\" prints it)"
		}
		l.bad("SL0505", "error", "", fix, "%s", dead)
	} else if life.Hosts > life.Healthy {
		l.bad("SL0505", "warning", "", "see the log of the others, and whether Envoy reaches them",
			"Envoy at %s has %d Sightlines, %d of them healthy", life.Envoy, life.Hosts, life.Healthy)
	}
	switch {
	case told || s.Missing[FromRunning] == OnlyFiles:
	case s.AdminWas == "given":
		l.bad("SL0505", "error", "", "start it, or correct --admin (beyond loopback it wants the configuration's admin_token)", "%s", s.AdminErr)
	case s.AdminWas == "there":
		l.bad("SL0505", "error", "", "see its log; admin must be Sightline's own port, and admin_token the one that it was started with",
			"what listens at admin, %q, does not answer as Sightline does: %s", admin, s.AdminErr)
	case len(life.Answered) > 0 && admin != "":
		l.bad("SL0505", "warning", "", "--admin URL, or see what keeps this machine from the admin port: half of the checks ask it",
			"Sightline answers at %s and not at admin: %s", strings.Join(life.Answered, ", "), s.AdminErr)
	}
}

// ofAgents adds what agents tell of themselves.
func (s *Seen) ofAgents(l *list) {
	for i := range s.Agents {
		a := &s.Agents[i]
		if a.Err != nil {
			l.bad("SL0601", "error", "", "start it with --admin, or correct --agent", "%s: %v", a.At, a.Err)
		}
		for _, rank := range a.State.Ranks {
			who := fmt.Sprintf("%s, of worker %s, rank %d", a.At, a.State.Worker, rank.Rank)
			if rank.NotReady != "" {
				l.bad("SL0601", "error", "", "see its log, and its --zmq, --replay and --nats", "%s: %s", who, rank.NotReady)
			}
			if rank.Heard.Unreadable != "" {
				l.bad("SL0309", "error", "", fixUnreadable, "%s: its engine's events: %s", who, rank.Heard.Unreadable)
			}
		}
	}
	n := slices.ContainsFunc(s.Config.Workers, func(w config.Worker) bool { return w.Events.NATS })
	if s.Missing[FromRunning] != "" && n && len(s.Agents) == 0 {
		l.unchecked("SL0601", "no agent is given (--agent URL), and %s", s.Missing[FromRunning])
	}
}

func port(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Port()
}

func number(endpoint string) (n int) {
	_, _ = fmt.Sscan(port(endpoint), &n)
	return n
}

func host(addr string) string {
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(addr, "tcp://"))
	return host
}
