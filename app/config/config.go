// Package config reads Sightline's one YAML file, strictly: an unknown key, a wrong type, an invalid value or contradicting keys
// prevent the start, with one line each that names the key, the value and what is expected. Omitted keys have the defaults that
// `sightline serve --print-config` shows.
//
// This file holds the keys; decode.go reads them; reference.go resolves ${env:…} and ${file:…}; check.go, workers.go and serve.go
// check them.
package config

import (
	"bytes"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/secure"
)

// Config is the whole file. Changes of a key tagged reload:"live" take effect in a running process (Follow).
type Config struct {
	Listen string `yaml:"listen"` // ext_proc, access log and health service: host:port or unix:/path
	Admin  string `yaml:"admin"`  // metrics and state over HTTP: host:port; "" for none
	// AdminToken protects the admin page where it is reachable beyond loopback, and its POSTs.
	AdminToken string `yaml:"admin_token" reload:"live"`
	// GRPCHealth is where the health service alone is served, in plain text, for probes that speak no TLS: host:port; "" for none.
	GRPCHealth string `yaml:"grpc_health"`
	LogLevel   string `yaml:"log_level" reload:"live"` // debug, info, warn or error
	BodyLimit  Size   `yaml:"body_limit"`              // the largest request body, such as 64MiB
	// OnUnread is route or refuse. With refuse, no body reaches a worker unread, not even while Sightline is away; POSTs to the
	// paths in PassUnread are exempt.
	OnUnread   string   `yaml:"on_unread"`
	PassUnread []string `yaml:"pass_unread"`
	// PassCacheHints leaves in bodies the fields by which clients say what engines should keep in their caches, for trusted clients.
	PassCacheHints bool `yaml:"pass_cache_hints"`
	// Enforce is the share of conversations that are steered. The others are decided and counted, but Envoy is told nothing of it.
	Enforce Percent `yaml:"enforce" reload:"live"`
	Route   Route   `yaml:"route"`
	Tenants Tenants `yaml:"tenants"`
	// TLS is for the listener at Listen, AdminTLS for the one at Admin.
	TLS      secure.Listener `yaml:"tls"`
	AdminTLS secure.Listener `yaml:"admin_tls"`
	// ListenTokenFile holds tokens, one per line. Envoy must send one of them to Listen.
	ListenTokenFile string `yaml:"listen_token_file"`
	// WorkerAccess is how workers are asked for their health, load and settings.
	WorkerAccess secure.Peer `yaml:"worker_access"`
	Replicas     Replicas    `yaml:"replicas"`
	NATS         NATS        `yaml:"nats"`
	// Drain is how long a stopping process continues to decide after it has reported that it is no longer ready.
	Drain       time.Duration `yaml:"drain"`
	DecisionLog DecisionLog   `yaml:"decision_log"`
	Tracing     Tracing       `yaml:"tracing"`
	Index       Index         `yaml:"index"`
	Media       Media         `yaml:"media"`
	Models      []Model       `yaml:"models" reload:"live"`
	Workers     []Worker      `yaml:"workers" reload:"live"`
	Zones       Zones         `yaml:"zones"`
	Fair        Fair          `yaml:"fair_share"`
	// MaxInFlight is how many requests a worker, or each of its ranks, may have in flight before it gets no more; 0: no limit.
	MaxInFlight int `yaml:"max_in_flight" reload:"live"`
	// Hold is how long a request waits if no worker is known for it; then its client gets 503. 0: it does not wait, and Envoy's
	// fallback takes it (in the endpoint-picker protocol: 503).
	Hold time.Duration `yaml:"hold"`
	// Kubernetes adds workers that come and go.
	Kubernetes Kubernetes `yaml:"kubernetes" reload:"live"`
	Dynamo     Dynamo     `yaml:"dynamo"`
	Envoy      Envoy      `yaml:"envoy" reload:"live"`

	Fixed Fixed      `yaml:"-"`
	File  string     `yaml:"-"` // path of the file; "": none
	Asked bool       `yaml:"-"` // workers given by address are asked for what they serve, besides those that are configured
	refs  references // the references in values
}

// Replicas are all Sightlines of a fleet, including this one, by the addresses of their listeners.
type Replicas struct {
	Addresses []string `yaml:"addresses"` // ip:port, name:port (all its addresses) or unix:/path; default: envoy.sightlines
	CA        string   `yaml:"ca"`        // these as in secure.Peer
	Cert      string   `yaml:"cert"`
	Key       string   `yaml:"key"`
	Name      string   `yaml:"name"`
}

// Access says how the other replicas are reached: with the first token of tokenFile, which they, too, take.
func (r *Replicas) Access(tokenFile string) *secure.Peer {
	return &secure.Peer{CA: r.CA, Cert: r.Cert, Key: r.Key, Name: r.Name, APIKeyFile: tokenFile}
}

// All returns the addresses, by default those in Envoy's configuration; none if there is only one.
func (r *Replicas) All(sightlines []string) []string {
	if len(r.Addresses) > 0 || len(sightlines) < 2 {
		return r.Addresses
	}
	return sightlines
}

// Fair names the headers, set by Envoy or one of its filters, by which capacity that MaxInFlight makes scarce is shared.
type Fair struct {
	Header   string `yaml:"header"`   // identifies whose a request is; "": all are equal
	Priority string `yaml:"priority"` // the request's priority, an integer; 0 if missing
}

// Zones say how far workers are from Envoy.
type Zones struct {
	Own string                   `yaml:"own"` // Envoy's zone
	To  map[string]time.Duration `yaml:"to"`  // additional round trip time to a worker, by its zone; OtherZones: in any other than Own
}

// OtherZones are those that Zones.To does not name.
const OtherZones = "*"

// DelayTo returns the additional round trip time to a zone; 0 if unknown.
func (z *Zones) DelayTo(zone string) time.Duration {
	if far, known := z.To[zone]; known && zone != OtherZones {
		return far
	}
	if z.Own == "" || zone == "" || zone == z.Own {
		return 0
	}
	return z.To[OtherZones]
}

// all returns the distances by key.
func (z *Zones) all() map[string]time.Duration {
	all := map[string]time.Duration{}
	for zone, far := range z.To {
		all["zones.to."+zone] = far
	}
	return all
}

// Tenants are kept apart in workers' caches by a header that Envoy or one of its filters sets.
type Tenants struct {
	Header   string `yaml:"header"` // holds the tenant's name; "": no tenants
	Required bool   `yaml:"required"`
}

// NATS says where KV events of agents come from, and how to authenticate. Without URL and Listen NATS is not used.
type NATS struct {
	bus.Access `yaml:",inline"` // URL: an existing server
	Listen     string           `yaml:"listen"` // or: an embedded server, listening here for agents, such as 127.0.0.1:4222
	Config     string           `yaml:"config"` // a nats-server configuration for the embedded server: users and permissions, TLS, limits
}

// Given reports whether there is a server.
func (n *NATS) Given() bool { return n.URL != "" || n.Listen != "" }

// Link returns package bus's options.
func (n *NATS) Link() bus.LinkOptions {
	return bus.LinkOptions{Access: n.Access, Server: bus.Server{Listen: n.Listen, Config: n.Config}}
}

// Index bounds what is stored of the workers' blocks.
type Index struct {
	MaxBytes Size   `yaml:"max_bytes"`
	KeyFile  string `yaml:"key_file"` // a secret of block hashes, 32 bytes or more, the same everywhere
}

// DecisionLog says where each decision is written, with its outcome. Off without File.
type DecisionLog struct {
	File string `yaml:"file"`
}

// Tracing says where decisions are sent as OpenTelemetry spans. Off without Endpoint.
type Tracing struct {
	Endpoint string  `yaml:"endpoint"` // an OTLP/gRPC receiver: host:port, or http://host:port in plain text
	Sample   float64 `yaml:"sample"`   // share of the decisions that are traced if the request came without a span
}

// Receiver returns the receiver's host:port, and whether it is reached in plain text.
func (t *Tracing) Receiver() (addr string, plain bool) {
	return strings.CutPrefix(t.Endpoint, "http://")
}

// Media says which images may be fetched and how long a request waits for them.
type Media struct {
	Budget  time.Duration `yaml:"budget" reload:"live"`  // total time that a request waits for image headers and identities
	Allow   []string      `yaml:"allow" reload:"live"`   // private networks that image URLs may point to, as CIDR; all others are refused
	Domains []string      `yaml:"domains" reload:"live"` // if set, the only hosts that images are fetched from
	// Signing lists, per host, query parameters that sign a URL without changing what it refers to, in addition to those of the
	// large object stores.
	Signing map[string][]string `yaml:"signing" reload:"live"`
	Relay   Relay               `yaml:"relay"`
}

// Relay makes Sightline serve the images that it holds to the workers, and rewrite image URLs in requests accordingly. Off without
// Listen.
type Relay struct {
	Listen string `yaml:"listen"` // plain HTTP for workers unless TLS is set: host:port; "": no relay
	// where workers reach it, such as http://10.0.0.2:9904: this very process, unless KeyFile is given
	URL      string `yaml:"url"`
	KeyFile  string `yaml:"key_file"`  // a secret of 32 bytes or more that all replicas share; URL may then lead to any of them
	DataURLs bool   `yaml:"data_urls"` // also serve images that came as data URLs
	// TLS is for Listen. CA, used with TLS and KeyFile, is the authority of the replicas' certificates, which are valid for the
	// host of URL.
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
	EngineOrder   string  `yaml:"engine_order"` // auto: its engines are told when a request is due, where they serve by that; off
	FetchKV       bool    `yaml:"fetch_kv"`     // tell a worker who holds blocks that it lacks (llm-d's sidecar with the offloading connector)
	OffloadUnit   int     `yaml:"offload_unit"` // tokens that a lower tier returns at once; 0: one block
	Classes       []Class `yaml:"classes"`      // workers that were started differently
}

// Worker is one engine server.
type Worker struct {
	Name  string `yaml:"name"`  // for people and metrics; default: its address
	Addr  string `yaml:"addr"`  // ip:port, what Envoy dials; or name:port, all addresses of which are followed
	Model string `yaml:"model"` // may be omitted if there is only one model
	Class string `yaml:"class"` // one of the model's classes; "": the model's own keys
	Ranks int    `yaml:"ranks"` // data-parallel ranks behind this address; 0: none
	Role  string `yaml:"role"`  // prefill, decode or encode; "" and both: whole requests
	Zone  string `yaml:"zone"`  // its zone; "": as its EndpointSlice says, or unknown
	// MaxInFlight overrides the common one.
	MaxInFlight int    `yaml:"max_in_flight"`
	Events      Events `yaml:"events"` // KV events
}

// Events says how a worker's KV events are received. Without any key its cache is only inferred from what was routed there.
type Events struct {
	ZMQ    string `yaml:"zmq"`    // the engine's PUB socket, such as tcp://10.0.0.5:5557; rank r is at port + r
	Replay string `yaml:"replay"` // its replay socket, such as tcp://10.0.0.5:5657
	// HTTP is the server whose events are drained, such as http://10.0.0.5:8000 (TensorRT-LLM). Draining takes them away from
	// everybody else, so only one router replica may do it; with more, an agent drains and publishes.
	HTTP string `yaml:"http"`
	NATS bool   `yaml:"nats"` // an agent beside the worker publishes them
	// Bind makes Sightline listen at ZMQ, for an engine whose publisher connects from the worker's address.
	Bind bool `yaml:"bind"`
	// Load is where a worker of NVIDIA's standalone router example publishes its load; its events then have that form.
	Load string `yaml:"load"`
	Host string `yaml:"-"`    // the only host that is dialled, if the worker itself named ZMQ and Replay; "": any
	Auto bool   `yaml:"auto"` // the worker itself tells where: GET /server_info (SGLang) or /kv_event_sources (vLLM 0.31)
}

// Envoy is what `sightline envoy` needs besides the keys above.
type Envoy struct {
	Listen string `yaml:"listen"` // host:port for clients
	Admin  string `yaml:"admin"`
	// MessageTimeout is how long Envoy waits for Sightline's answer before it continues with the request as it came, undecided and
	// uncleaned: message_timeout of its ext_proc filter. Sightline answers within half of it. For an Envoy that is configured
	// otherwise, set it to the same value as there.
	MessageTimeout time.Duration `yaml:"message_timeout" reload:"no"`
	// HeapLimit is Envoy's own limit of memory; 0: 64 times BodyLimit, at least 1 GiB.
	HeapLimit Size     `yaml:"heap_limit" reload:"no"`
	Workers   []string `yaml:"worker_networks"` // what may be dialled, such as 10.0.0.0/8:8000-8010; default: the workers' own addresses
	// Sightlines are the addresses of all Sightlines that this Envoy uses in turn, if there are several; default: listen.
	Sightlines []string `yaml:"sightlines"`
	// TokenUsage makes Envoy read the engine's token counts from responses, so that predictions are compared with them. Needs 1.40.
	TokenUsage bool `yaml:"token_usage"`
	// AskUsage adds stream_options.include_usage to streamed completions and chats that do not say whether they want it. OpenAI's API has
	// clients expect the chunk without choices that then ends the stream.
	AskUsage bool `yaml:"ask_usage" reload:"no"`
	// DebugHeaders makes Envoy add the decision's id and reason, and the worker, to responses.
	DebugHeaders bool `yaml:"debug_headers"`
	// Pools map routes to models; without them all workers are one pool.
	Pools        []Pool  `yaml:"pools"`
	WorkerTLS    PeerTLS `yaml:"worker_tls"`    // Envoy to workers
	SightlineTLS PeerTLS `yaml:"sightline_tls"` // Envoy to Sightline
	// SightlineTokenFile is the path, as Envoy sees it, of the token that it sends to Sightline, without a line break.
	SightlineTokenFile string `yaml:"sightline_token_file"`
}

// Percent is a share such as 10%, as the number before the sign.
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
	return fmt.Errorf("%q is not a share (want one such as 10%%, 0%% to 100%%)", text)
}

// String formats it as "10%".
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// MarshalYAML writes String's form.
func (p Percent) MarshalYAML() ([]byte, error) { return []byte(p.String()), nil }

// Unsteered returns the share of conversations that are left to Envoy's own balancing, 0 to 1, and the name that the report uses
// for the mode.
func (c *Config) Unsteered() (share float64, mode string) {
	return 1 - float64(c.Enforce)/100, c.Enforce.String()
}

// RefusesUnread reports whether no body may reach a worker unread.
func (c *Config) RefusesUnread() bool { return c.OnUnread == refuse }

// The values of on_unread.
const (
	route  = "route"
	refuse = "refuse"
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
			n *= float64(u.size)
			if err == nil && n >= 0 && n < 1<<60 {
				*s = Size(n)
				return nil
			}
		}
	}
	return fmt.Errorf("%q is not a size (want a number of bytes, or one such as 64MiB)", text)
}

// String formats the size with the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s >= u.size && s%u.size == 0 {
			return fmt.Sprintf("%d%s", s/u.size, u.name)
		}
	}
	return "0"
}

// MarshalYAML writes String's form.
func (s Size) MarshalYAML() ([]byte, error) { return []byte(s.String()), nil }

// Default returns the configuration of an empty file.
func Default() Config {
	return Config{
		Enforce: 100, Listen: "127.0.0.1:9002", Admin: "127.0.0.1:9903", LogLevel: "info", BodyLimit: 64 << 20,
		OnUnread: route, Fixed: defaultFixed(),
		Drain:   10 * time.Second,
		Tracing: Tracing{Sample: 0.01},
		Index:   Index{MaxBytes: 2 << 30},
		Media:   Media{Budget: 150 * time.Millisecond},
		Dynamo:  Dynamo{Namespace: "dynamo", Component: "backend", PrefillComponent: "prefill"},
		Envoy:   Envoy{Listen: "127.0.0.1:10000", Admin: "127.0.0.1:9901", MessageTimeout: 2 * time.Second},
	}
}

// YAML returns the effective configuration as a file that Load reads.
func (c Config) YAML() ([]byte, error) {
	text, err := yaml.Marshal(c)
	if err != nil || len(c.refs.found) == 0 && !bytes.Contains(text, []byte("${")) {
		return text, err
	}
	return c.refs.hideYAML(text)
}

// AdminURL returns the URL of the admin page; "": there is none.
func (c *Config) AdminURL() string {
	switch {
	case c.Admin == "":
		return ""
	case c.AdminTLS.Cert != "":
		return "https://" + c.Admin
	}
	return "http://" + c.Admin
}

// Schema is the JSON Schema (2020-12) of the file, for editors. A test generates it from the types here and docs/configuration.md.
//
//go:embed schema.json
var Schema string
