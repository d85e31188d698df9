// Package config reads the one YAML file that Sightline is configured by, strictly: an unknown key, a wrong type, a value that
// cannot be or keys that contradict each other stop the start with a line each, which names the key, what came and what is
// wanted. What is not given has the default that `sightline serve --print-config` shows.
//
// Here are the keys; decode.go reads them; reference.go resolves ${env:…} and ${file:…}; check.go, workers.go and serve.go say what cannot be.
package config

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/secure"
)

// Config is the whole file. A key tagged reload:"live" is followed while a process runs (Follow).
type Config struct {
	Listen string `yaml:"listen"` // ext_proc, access log and health service: host:port or unix:/path
	Admin  string `yaml:"admin"`  // metrics and state over HTTP: host:port; "" for none
	// AdminToken opens it beyond loopback, and its POSTs.
	AdminToken string `yaml:"admin_token" reload:"live"`
	LogLevel   string `yaml:"log_level" reload:"live"` // debug, info, warn or error
	BodyLimit  Size   `yaml:"body_limit"`              // the largest request body, such as 64MiB
	// BodyTimeout is how long a request body may take to come; then the client gets 408.
	BodyTimeout time.Duration `yaml:"body_timeout"`
	// OnUnread is route, or refuse: no body reaches a worker unread, but for POSTs to PassUnread, with Sightline away neither.
	OnUnread   string   `yaml:"on_unread"`
	PassUnread []string `yaml:"pass_unread"`
	// Mode is enforce, or observe: everything is decided and counted, and Envoy is told nothing of it.
	Mode string `yaml:"mode"`
	// Enforce is the share of conversations that are steered; the others are treated as in observe.
	Enforce Percent `yaml:"enforce"`
	Route   Route   `yaml:"route"`
	Tenants Tenants `yaml:"tenants"`
	// TLS is of listen, AdminTLS of admin.
	TLS      secure.Listener `yaml:"tls"`
	AdminTLS secure.Listener `yaml:"admin_tls"`
	// ListenTokenFile has tokens, one a line, one of which Envoy must bring to listen.
	ListenTokenFile string `yaml:"listen_token_file"`
	// WorkerAccess is how workers are asked: their health, load and settings.
	WorkerAccess secure.Peer `yaml:"worker_access"`
	Replicas     Replicas    `yaml:"replicas"`
	NATS         NATS        `yaml:"nats"`
	Probe        bool        `yaml:"probe"` // ask workers at start how they tokenise a few conversations, and compare
	// HealthEvery and LoadEvery are how often each worker is asked whether it is well, and for its load; 0: never.
	HealthEvery time.Duration `yaml:"health_every"`
	LoadEvery   time.Duration `yaml:"load_every"`
	Audit       bool          `yaml:"audit"`      // compare what workers store with what was predicted
	AuditText   bool          `yaml:"audit_text"` // show the text of a token that differs, which is a client's
	// ReadyAfter is how long a start may wait for the workers' event streams to catch up before it says that it is ready.
	ReadyAfter time.Duration `yaml:"ready_after"`
	// Drain is how long a stop goes on deciding, once it has said that it is not ready any more.
	Drain       time.Duration `yaml:"drain"`
	DecisionLog DecisionLog   `yaml:"decision_log"`
	Tracing     Tracing       `yaml:"tracing"`
	Metrics     Metrics       `yaml:"metrics"`
	Index       Index         `yaml:"index"`
	Media       Media         `yaml:"media"`
	Models      []Model       `yaml:"models" reload:"live"`
	Workers     []Worker      `yaml:"workers" reload:"live"`
	Zones       Zones         `yaml:"zones"`
	Fair        Fair          `yaml:"fair_share"`
	// MaxInFlight is how many requests a worker, or each of its ranks, may have open before it gets no more; 0: no limit.
	MaxInFlight int `yaml:"max_in_flight" reload:"live"`
	// Hold is how long a request waits for a worker where none is known for it; then its client gets 503. 0: it does not wait,
	// and Envoy's fallback takes it (in the endpoint-picker protocol: 503).
	Hold time.Duration `yaml:"hold"`
	// Kubernetes lists further workers, which come and go.
	Kubernetes Kubernetes `yaml:"kubernetes" reload:"live"`
	Dynamo     Dynamo     `yaml:"dynamo"`
	Standalone Standalone `yaml:"standalone" reload:"live"`
	Envoy      Envoy      `yaml:"envoy" reload:"live"`

	File string     `yaml:"-"` // it was read from here; "": from nowhere
	refs references // what values refer to
}

// Replicas are all Sightlines of a fleet, this one too, as each reaches the others' listen.
type Replicas struct {
	Addresses []string    `yaml:"addresses"` // ip:port, name:port (all that it leads to) or unix:/path; default: envoy.sightlines
	Access    secure.Peer `yaml:",inline"`
}

// All are the addresses, which Envoy's configuration has too; none where there is but one.
func (r *Replicas) All(sightlines []string) []string {
	if len(r.Addresses) > 0 || len(sightlines) < 2 {
		return r.Addresses
	}
	return sightlines
}

// Fair says by which headers, that Envoy or a filter of its sets, few free places are shared out under MaxInFlight.
type Fair struct {
	Header   string `yaml:"header"`   // whose a request is; "": all are equal
	Priority string `yaml:"priority"` // how urgent: a whole number, 0 without
}

// Zones say how far workers are from Envoy.
type Zones struct {
	Own      string                   `yaml:"own"`      // Envoy's; "": distance does not count
	Distance time.Duration            `yaml:"distance"` // to a worker of another zone and back, beyond one of its own
	To       map[string]time.Duration `yaml:"to"`       // the same, by zone
}

// Away is what a worker of a zone is farther away; 0 where that is not known.
func (z *Zones) Away(zone string) time.Duration {
	if far, known := z.To[zone]; known {
		return far
	}
	if z.Own == "" || zone == "" || zone == z.Own {
		return 0
	}
	return z.Distance
}

// all are the distances, by key.
func (z *Zones) all() map[string]time.Duration {
	all := map[string]time.Duration{"zones.distance": z.Distance}
	for zone, far := range z.To {
		all["zones.to."+zone] = far
	}
	return all
}

// Metrics says under which other names some are shown.
type Metrics struct {
	Aliases []string `yaml:"aliases"` // llm-d, gateway-api, dynamo
}

// Tenants are kept apart in workers' caches, by a header that Envoy or a filter of its sets.
type Tenants struct {
	Header   string `yaml:"header"` // names the tenant; "": there are none
	Required bool   `yaml:"required"`
}

// NATS says where KV events of agents come from, and what NATS knows us by. With neither URL nor Listen there is no NATS at all.
type NATS struct {
	bus.Access `yaml:",inline"` // URL: an existing server
	Listen     string           `yaml:"listen"` // or: an embedded server, listening here for agents, such as 127.0.0.1:4222
	Dir        string           `yaml:"dir"`    // where the embedded server keeps its streams; default: a new directory below the temporary one
	Config     string           `yaml:"config"` // a nats-server configuration for it: users and permissions, TLS, limits
	Prefix     bus.Prefix       `yaml:"prefix"` // of subjects and of the stream's name; agents have the same
	Stream     Stream           `yaml:"stream"`
}

// Given tells whether there is a server.
func (n *NATS) Given() bool { return n.URL != "" || n.Listen != "" }

// Stream is how the agents' stream is made where there is none.
type Stream struct {
	Replicas    int           `yaml:"replicas"`
	Storage     string        `yaml:"storage"` // file or memory
	MaxBytes    Size          `yaml:"max_bytes"`
	MaxAge      time.Duration `yaml:"max_age"`     // 0: any
	Compression string        `yaml:"compression"` // none or s2
}

// Link is what package bus is told of it all.
func (n *NATS) Link() bus.LinkOptions {
	s := &n.Stream
	return bus.LinkOptions{Access: n.Access, Prefix: n.Prefix, Server: bus.Server{Listen: n.Listen, Dir: n.Dir, Config: n.Config},
		Stream: bus.StreamOptions{Replicas: s.Replicas, Memory: s.Storage == "memory", MaxBytes: int64(s.MaxBytes), MaxAge: s.MaxAge,
			Compress: s.Compression == "s2"}}
}

// Index bounds what is remembered of the workers' blocks.
type Index struct {
	MaxBytes     Size          `yaml:"max_bytes"`
	Partition    string        `yaml:"partition"`                   // as indexer.ParsePart reads it: the part of all prompts that is held here
	PredictedTTL time.Duration `yaml:"predicted_ttl" reload:"live"` // how long a routed prompt counts as held before events confirm it
}

// DecisionLog says where each decision is written, with what became of it. Off without File.
type DecisionLog struct {
	File     string `yaml:"file"`
	MaxBytes Size   `yaml:"max_bytes"` // of the file, at which it is put aside
	Keep     int    `yaml:"keep"`      // files put aside that are kept
	KeyFile  string `yaml:"key_file"`  // a secret of 32 bytes or more, for pseudonyms that replicas share; without one, one is drawn at each start
}

// Tracing says where decisions go as OpenTelemetry spans. Off without Endpoint.
type Tracing struct {
	Endpoint string  `yaml:"endpoint"` // host:port of an OTLP/gRPC receiver
	Insecure bool    `yaml:"insecure"` // plain text
	Sample   float64 `yaml:"sample"`   // share of the decisions whose request came with no span
}

// Media says which images may be fetched and how long a request waits for one.
type Media struct {
	Budget   time.Duration `yaml:"budget" reload:"live"`  // a request's wait for image headers and identities, in all
	Allow    []string      `yaml:"allow" reload:"live"`   // private networks that image URLs may point to, as CIDR; all others are refused
	Domains  []string      `yaml:"domains" reload:"live"` // if any: the only hosts that images are fetched from
	MaxBytes Size          `yaml:"max_bytes"`             // of one image
	// Signing lists, per host, query parameters that sign a URL and do not say what it shows; added to those of the large
	// object stores.
	Signing map[string][]string `yaml:"signing" reload:"live"`
	Relay   Relay               `yaml:"relay"`
}

// Relay has Sightline serve the images that it holds to the workers, and image URLs in requests rewritten to it. Off
// without Listen.
type Relay struct {
	Listen   string        `yaml:"listen"`    // plain HTTP for workers: host:port; "" for no relay
	URL      string        `yaml:"url"`       // where workers reach it, such as http://10.0.0.2:9904: this very process, unless KeyFile is given
	KeyFile  string        `yaml:"key_file"`  // a secret of 32 bytes or more that all replicas share; then URL may lead to any of them
	TTL      time.Duration `yaml:"ttl"`       // how long a rewritten URL opens its image
	MaxBytes Size          `yaml:"max_bytes"` // of the images held for workers
	DataURLs bool          `yaml:"data_urls"` // also images that came as data URLs
	// TLS is of listen; CA, with it and KeyFile, the authority of the replicas' certificates, which bear the host of URL.
	TLS secure.Listener `yaml:"tls"`
	CA  string          `yaml:"ca"`
}

// Model is one model that workers serve.
type Model struct {
	Name          string   `yaml:"name"`     // as clients name it
	Aliases       []string `yaml:"aliases"`  // other names that clients use
	Adapters      []string `yaml:"adapters"` // LoRA adapters' names
	Dir           string   `yaml:"dir"`      // model directory without weights; relative to this file
	engine.Server `yaml:",inline"`
	MaxLoRAs      int     `yaml:"max_loras"`    // adapters that a worker has loaded at once; 0: 1
	FetchKV       bool    `yaml:"fetch_kv"`     // a worker is told who holds what it lacks (llm-d's sidecar with the offloading connector)
	OffloadUnit   int     `yaml:"offload_unit"` // tokens that a lower tier gives back at once; 0: a block
	OffloadRate   int     `yaml:"offload_rate"` // tokens a second that a worker is taken to fetch from one until its events show it; 0: 170,000
	PrefillRate   int     `yaml:"prefill_rate"` // tokens a second that a worker is taken to prefill until its events show it; 0: 10,000
	Classes       []Class `yaml:"classes"`      // workers that were started otherwise
}

// Worker is one engine server.
type Worker struct {
	Name  string `yaml:"name"`  // for people and metrics; default: its address
	Addr  string `yaml:"addr"`  // ip:port, what Envoy dials; or name:port, all whose addresses are followed
	Model string `yaml:"model"` // may be left out where there is one model
	Class string `yaml:"class"` // one of the model's classes; "": as the model's own keys say
	Ranks int    `yaml:"ranks"` // data-parallel ranks behind this address; 0: none
	Role  string `yaml:"role"`  // prefill, decode or encode; "" and both: all of a request
	Zone  string `yaml:"zone"`  // where it stands; "": as its EndpointSlice tells, or not known
	// MaxInFlight takes the place of the common one, where that is given.
	MaxInFlight int    `yaml:"max_in_flight"`
	Events      Events `yaml:"events"` // KV events
}

// Events says how a worker's KV events come here. With neither key its cache is only guessed from what was routed there.
type Events struct {
	ZMQ    string `yaml:"zmq"`    // the engine's PUB socket, such as tcp://10.0.0.5:5557; rank r is at port + r
	Replay string `yaml:"replay"` // its replay socket, such as tcp://10.0.0.5:5558
	Topic  string `yaml:"topic"`
	// HTTP is the server whose events are drained, such as http://10.0.0.5:8000 (TensorRT-LLM). Draining takes them away
	// from everybody else, so it is for one router replica; with more, an agent drains and publishes.
	HTTP string `yaml:"http"`
	NATS bool   `yaml:"nats"` // an agent beside the worker publishes them
	// Bind listens at ZMQ for an engine whose publisher connects.
	Bind bool `yaml:"bind"`
	// From is a network that it connects from, with Bind; "": the worker's address alone.
	From string `yaml:"from"`
	// Load is where a worker of NVIDIA's standalone router example publishes its load; its events are then of that form.
	Load string `yaml:"load"`
	Auto bool   `yaml:"auto"` // the worker itself says where: GET /server_info (SGLang) or /kv_event_sources (vLLM 0.31)
}

// Envoy is what `sightline envoy` needs to know beyond the above.
type Envoy struct {
	Listen string `yaml:"listen"` // host:port for clients
	Admin  string `yaml:"admin"`
	// MessageTimeout is how long Envoy waits for an answer of Sightline's before it goes on with the request as it came,
	// undecided and uncleaned: message_timeout of its ext_proc filter. Sightline answers within half of it. Behind an Envoy
	// that is configured otherwise, keep it equal to what stands there.
	MessageTimeout time.Duration `yaml:"message_timeout" reload:"no"`
	Workers        []string      `yaml:"worker_networks"` // what may be dialled, as 10.0.0.0/8:8000-8010; default: the workers' own addresses
	// Sightlines are the addresses of all Sightlines that this Envoy asks in turn, where there are several; default: listen.
	Sightlines []string `yaml:"sightlines"`
	// TokenUsage has Envoy read the engine's token counts from answers, so that predictions are checked against them. 1.40.
	TokenUsage bool `yaml:"token_usage"`
	// DebugHeaders has Envoy add the decision's id and reason, and the worker, to answers.
	DebugHeaders bool `yaml:"debug_headers"`
	// Pools tell which model a request is for by its route; without them all workers are one pool.
	Pools        []Pool  `yaml:"pools"`
	WorkerTLS    PeerTLS `yaml:"worker_tls"`    // Envoy to workers
	SightlineTLS PeerTLS `yaml:"sightline_tls"` // Envoy to Sightline
	// SightlineTokenFile, as Envoy sees it, has the one token that it brings to Sightline, and no line break.
	SightlineTokenFile string `yaml:"sightline_token_file"`
}

// Percent is a share such as 10%, in hundredths.
type Percent float64

// UnmarshalYAML reads "10%".
func (p *Percent) UnmarshalYAML(b []byte) error {
	text := strings.Trim(strings.TrimSpace(string(b)), `"'`)
	if num, ok := strings.CutSuffix(text, "%"); ok {
		if n, err := strconv.ParseFloat(strings.TrimSpace(num), 64); err == nil && n >= 0 && n <= 100 {
			*p = Percent(n)
			return nil
		}
	}
	return fmt.Errorf("%q is no share (want one such as 10%%, 0%% to 100%%)", text)
}

// String writes it so.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// MarshalYAML writes it so.
func (p Percent) MarshalYAML() ([]byte, error) { return []byte(p.String()), nil }

// LeftAlone is the share of conversations that are left to Envoy's own balancing, 0 to 1, and how the report calls that.
func (c *Config) LeftAlone() (share float64, mode string) {
	if c.Mode == observe {
		return 1, observe
	}
	return 1 - float64(c.Enforce)/100, c.Enforce.String()
}

// RefusesUnread tells whether no body may reach a worker unread.
func (c *Config) RefusesUnread() bool { return c.OnUnread == refuse }

// The modes, and what becomes of what is not read.
const (
	route   = "route"
	refuse  = "refuse"
	observe = "observe"
	enforce = "enforce"
)

// Size is a number of bytes: 1048576, 64MiB, 2GiB.
type Size int64

// units of a Size, the largest first.
var units = []struct {
	name string
	size Size
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// UnmarshalYAML reads "64MiB" and the like.
func (s *Size) UnmarshalYAML(b []byte) error {
	text := strings.Trim(strings.TrimSpace(string(b)), `"'`)
	for _, u := range units {
		if num, ok := strings.CutSuffix(text, u.name); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
			if n *= float64(u.size); err == nil && n >= 0 && n < 1<<60 {
				*s = Size(n)
				return nil
			}
		}
	}
	return fmt.Errorf("%q is no size (want a number of bytes, or one such as 64MiB)", text)
}

// String writes the size as it is best read.
func (s Size) String() string {
	for _, u := range units {
		if s >= u.size && s%u.size == 0 {
			return fmt.Sprintf("%d%s", s/u.size, u.name)
		}
	}
	return "0"
}

// MarshalYAML writes it so.
func (s Size) MarshalYAML() ([]byte, error) { return []byte(s.String()), nil }

// Default is the configuration of an empty file.
func Default() Config {
	return Config{
		Mode: enforce, Enforce: 100, Listen: "127.0.0.1:9002", Admin: "127.0.0.1:9903", LogLevel: "info", BodyLimit: 64 << 20, BodyTimeout: 5 * time.Minute, OnUnread: route,
		NATS:  NATS{Prefix: bus.DefaultPrefix, Stream: Stream{Replicas: 1, Storage: "file", MaxBytes: 256 << 20, Compression: "none"}},
		Probe: true, HealthEvery: 5 * time.Second, LoadEvery: time.Second, ReadyAfter: 30 * time.Second, Drain: 10 * time.Second, Audit: true,
		DecisionLog: DecisionLog{MaxBytes: 64 << 20, Keep: 5},
		Tracing:     Tracing{Sample: 0.01},
		Index:       Index{MaxBytes: 2 << 30, PredictedTTL: 20 * time.Second},
		Media: Media{Budget: 150 * time.Millisecond, MaxBytes: 64 << 20,
			Relay: Relay{TTL: 2 * time.Minute, MaxBytes: 256 << 20}},
		Dynamo:     Dynamo{Namespace: "dynamo", Component: "backend", PrefillComponent: "prefill", Endpoint: "generate"},
		Standalone: Standalone{HTTP: 8001, Events: 5557, Metrics: 5657},
		Envoy:      Envoy{Listen: "127.0.0.1:10000", Admin: "127.0.0.1:9901", MessageTimeout: 2 * time.Second},
	}
}

// YAML is the effective configuration as a file that Load reads.
func (c Config) YAML() ([]byte, error) {
	text, err := yaml.Marshal(c)
	if err != nil || len(c.refs.found) == 0 && !bytes.Contains(text, []byte("${")) {
		return text, err
	}
	return c.refs.hideYAML(text)
}
