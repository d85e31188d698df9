// Package config reads the one YAML file that Sightline is configured by.
//
// The file is read strictly: an unknown key, a wrong type or a value that cannot be stops the start with one line that
// names the path of the key. What is not given has the default shown by `sightline serve --print-config`.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/sightline-router/sightline/engine"
)

// Config is the whole file.
type Config struct {
	Listen    string `yaml:"listen"`     // ext_proc, access log and health service: host:port or unix:/path
	Admin     string `yaml:"admin"`      // metrics and state over HTTP: host:port; "" for none
	LogLevel  string `yaml:"log_level"`  // debug, info, warn or error
	BodyLimit Size   `yaml:"body_limit"` // the largest request body, such as 64MiB
	// BodyTimeout is how long a request body may take to come; then the client gets 408.
	BodyTimeout time.Duration `yaml:"body_timeout"`
	Route       Route         `yaml:"route"`
	TLS         TLS           `yaml:"tls"`
	NATS        NATS          `yaml:"nats"`
	Probe       bool          `yaml:"probe"`      // ask workers at start how they tokenise a few conversations, and compare
	Audit       bool          `yaml:"audit"`      // compare what workers store with what was predicted
	AuditText   bool          `yaml:"audit_text"` // show the text of a token that differs, which is a client's
	Index       Index         `yaml:"index"`
	Media       Media         `yaml:"media"`
	Models      []Model       `yaml:"models"`
	Workers     []Worker      `yaml:"workers"`
	// MaxInFlight is how many requests a worker, or each of its ranks, may have open before it gets no more; 0: no limit.
	MaxInFlight int `yaml:"max_in_flight"`
	// Kubernetes lists further workers, which come and go.
	Kubernetes Kubernetes `yaml:"kubernetes"`
	Dynamo     Dynamo     `yaml:"dynamo"`
	Standalone Standalone `yaml:"standalone"`
	Envoy      Envoy      `yaml:"envoy"`
}

// NATS says where KV events of agents come from. With neither URL nor Listen there is no NATS at all.
type NATS struct {
	URL    string `yaml:"url"`    // an existing server, such as nats://10.0.0.4:4222
	Listen string `yaml:"listen"` // or: an embedded server, listening here for agents, such as 0.0.0.0:4222
	Dir    string `yaml:"dir"`    // where the embedded server keeps its streams; default: a directory below the temporary one
}

// Index bounds what is remembered of the workers' blocks.
type Index struct {
	MaxBytes     Size          `yaml:"max_bytes"`
	PredictedTTL time.Duration `yaml:"predicted_ttl"` // how long a routed prompt counts as held before events confirm it
}

// Media says which images may be fetched and how long a request waits for one.
type Media struct {
	Budget   time.Duration `yaml:"budget"`    // a request's wait for image headers and identities, in all
	Allow    []string      `yaml:"allow"`     // private networks that image URLs may point to, as CIDR; all others are refused
	Domains  []string      `yaml:"domains"`   // if any: the only hosts that images are fetched from
	MaxBytes Size          `yaml:"max_bytes"` // of one image
	// Signing lists, per host, query parameters that sign a URL and do not say what it shows; added to those of the large
	// object stores.
	Signing map[string][]string `yaml:"signing"`
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
}

// Model is one model that workers serve.
type Model struct {
	Name          string   `yaml:"name"`     // as clients name it
	Aliases       []string `yaml:"aliases"`  // other names that clients use
	Adapters      []string `yaml:"adapters"` // LoRA adapters' names
	Dir           string   `yaml:"dir"`      // model directory without weights; relative to this file
	engine.Server `yaml:",inline"`
	Classes       []Class `yaml:"classes"` // workers that were started otherwise
}

// Worker is one engine server.
type Worker struct {
	Name   string `yaml:"name"`   // for people and metrics; default: its address
	Addr   string `yaml:"addr"`   // ip:port, what Envoy dials; or name:port, all whose addresses are followed
	Model  string `yaml:"model"`  // may be left out where there is one model
	Class  string `yaml:"class"`  // one of the model's classes; "": as the model's own keys say
	Ranks  int    `yaml:"ranks"`  // data-parallel ranks behind this address; 0: none
	Events Events `yaml:"events"` // KV events
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
	MessageTimeout time.Duration `yaml:"message_timeout"`
	Workers        []string      `yaml:"worker_networks"` // what may be dialled, as 10.0.0.0/8:8000-8010; default: the workers' own addresses
	// TokenUsage has Envoy read the engine's token counts from answers, so that predictions are checked against them. 1.40.
	TokenUsage bool `yaml:"token_usage"`
	// Pools tell which model a request is for by its route; without them all workers are one pool.
	Pools        []Pool  `yaml:"pools"`
	WorkerTLS    PeerTLS `yaml:"worker_tls"`    // Envoy to workers
	SightlineTLS PeerTLS `yaml:"sightline_tls"` // Envoy to Sightline
}

// Range is a network and the ports in it, both ends included.
type Range struct {
	Prefix      netip.Prefix
	First, Last int
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
	r.First, errs[1] = strconv.Atoi(first)
	r.Last, errs[2] = strconv.Atoi(last)
	if errors.Join(errs[:]...) != nil || r.First < 1 || r.Last < r.First || r.Last > 65535 {
		return r, fmt.Errorf("%q is no network with ports (want one such as 10.0.0.0/8:8000-8010)", text)
	}
	return r, nil
}

// Size is a number of bytes: 1048576, 64MiB, 2GiB.
type Size int64

// UnmarshalYAML reads "64MiB" and the like.
func (s *Size) UnmarshalYAML(b []byte) error {
	text := strings.Trim(strings.TrimSpace(string(b)), `"'`)
	for unit, f := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "": 1} {
		num, ok := strings.CutSuffix(text, unit)
		if !ok || (unit == "" && strings.HasSuffix(text, "B")) {
			continue
		}
		var n float64
		if _, err := fmt.Sscanf(strings.TrimSpace(num)+"\n", "%g\n", &n); err == nil && n >= 0 && n*float64(f) < 1<<60 {
			*s = Size(n * float64(f))
			return nil
		}
	}
	return fmt.Errorf("%q is no size (want a number of bytes, or one such as 64MiB)", text)
}

// String writes the size as it is best read.
func (s Size) String() string {
	for _, u := range []struct {
		name string
		f    Size
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.f && s%u.f == 0 {
			return fmt.Sprintf("%d%s", s/u.f, u.name)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalYAML writes it so.
func (s Size) MarshalYAML() ([]byte, error) { return []byte(s.String()), nil }

// Default is the configuration of an empty file.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:9002", Admin: "127.0.0.1:9903", LogLevel: "info", BodyLimit: 64 << 20, BodyTimeout: 5 * time.Minute, Probe: true, Audit: true,
		Index:      Index{MaxBytes: 2 << 30, PredictedTTL: 20 * time.Second},
		Media:      Media{Budget: 150 * time.Millisecond, MaxBytes: 64 << 20, Relay: Relay{TTL: 2 * time.Minute, MaxBytes: 256 << 20}},
		Dynamo:     Dynamo{Namespace: "dynamo", Component: "backend", PrefillComponent: "prefill", Endpoint: "generate"},
		Standalone: Standalone{HTTP: 8001, Events: 5557, Metrics: 5657},
		Envoy:      Envoy{Listen: "127.0.0.1:10000", Admin: "127.0.0.1:9901", MessageTimeout: 2 * time.Second},
	}
}

// Load reads and checks a file. Relative model directories are taken from the file's place.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	c, err := Parse(data)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	place := filepath.Dir(path)
	for i := range c.Models {
		m := &c.Models[i]
		m.Dir = absolute(place, m.Dir)
		m.ResolveTemplate(place)
		for j := range m.Classes {
			class := &m.Classes[j]
			class.Dir = absolute(place, class.Dir)
			class.ResolveTemplate(place)
		}
	}
	return c, nil
}

func absolute(place, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(place, path)
}

// Parse reads and checks YAML text. Each error names the path of its key.
func Parse(data []byte) (Config, error) {
	c := Default()
	if err := unmarshal(data, &c, ""); err != nil {
		return c, err
	}
	// A list element starts from its defaults, not from zero.
	var raw struct {
		Models []yaml.MapSlice `yaml:"models"`
	}
	if err := yaml.Unmarshal(data, &raw); err != nil {
		return c, err
	}
	for i := range raw.Models {
		m, err := model(raw.Models[i], fmt.Sprintf("models[%d].", i))
		if err != nil {
			return c, err
		}
		c.Models[i] = m
	}
	return c, c.check()
}

func model(raw yaml.MapSlice, path string) (Model, error) {
	m := Model{Server: engine.DefaultServer()}
	data, err := yaml.Marshal(raw)
	if err != nil {
		return m, err
	}
	if err := unmarshal(data, &m, path); err != nil {
		return m, err
	}
	m.DefaultsOf(func(key string) bool {
		return slices.ContainsFunc(raw, func(e yaml.MapItem) bool { return e.Key == key })
	})
	return m, m.parseClasses(data, path)
}

// Set gives one key of a model a value written as YAML, as `--set key=value` does. Dashes in the key count as
// underscores, so that an engine's flag name can be used as it is.
func (m *Model) Set(assignment string) error {
	key, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return fmt.Errorf("%q: want key=value", assignment)
	}
	key = strings.ReplaceAll(strings.TrimLeft(key, "-"), "-", "_")
	var v any
	if err := yaml.Unmarshal([]byte(value), &v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	data, err := yaml.Marshal(map[string]any{key: v})
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return unmarshal(data, m, "")
}

// unmarshal decodes strictly into v, which holds the defaults.
func unmarshal(data []byte, v any, path string) error {
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return errors.New(firstLine(err))
	}
	if err := known(tree, reflect.TypeOf(v).Elem(), path); err != nil {
		return err
	}
	if err := yaml.UnmarshalWithOptions(data, v, yaml.Strict()); err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return fmt.Errorf("%s%s: %s", path, keyAt(data, at.GetToken().Position.Offset), at.GetMessage())
		}
		return fmt.Errorf("%s%s", path, firstLine(err))
	}
	return nil
}

// keyAt is the path of the value at an offset of the text, such as models[0].block_size.
func keyAt(data []byte, offset int) string {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return ""
	}
	find := finder{offset: offset}
	for _, doc := range file.Docs {
		ast.Walk(&find, doc.Body)
	}
	return strings.TrimPrefix(strings.TrimPrefix(find.path, "$"), ".")
}

type finder struct {
	offset int
	path   string
}

func (f *finder) Visit(n ast.Node) ast.Visitor {
	if t := n.GetToken(); t != nil && t.Position != nil && t.Position.Offset == f.offset {
		f.path = n.GetPath()
	}
	return f
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// known reports the first key of tree that the type has not, or whose value is none of its kind, by its path.
func known(tree any, t reflect.Type, path string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch node := tree.(type) {
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return nil
		}
		fields := fieldsOf(t)
		keys := make([]string, 0, len(node))
		for k := range node {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			ft, ok := fields[k]
			if !ok && k == "client_uuid" {
				return fmt.Errorf("%s%s: no key any more: vLLM serves the features of the first picture seen under a uuid, so a client's never reaches a worker (leave the key out)", path, k)
			}
			if !ok {
				return fmt.Errorf("%s%s: unknown key%s", path, k, meant(k, fields))
			}
			if err := known(node[k], ft, path+k+"."); err != nil {
				return err
			}
			if own, ok := reflect.New(ft).Interface().(yaml.BytesUnmarshaler); ok { // its errors do not tell their place
				if text, err := yaml.Marshal(node[k]); err != nil || yaml.Unmarshal(text, own) != nil {
					return fmt.Errorf("%s%s: %w", path, k, cmp.Or(err, own.UnmarshalYAML(text)))
				}
			}
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		for i, e := range node {
			if err := known(e, t.Elem(), fmt.Sprintf("%s[%d].", strings.TrimSuffix(path, "."), i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		name, opt, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if opt == "inline" {
			for k, v := range fieldsOf(f.Type) {
				out[k] = v
			}
		} else if name != "" && name != "-" {
			out[name] = f.Type
		}
	}
	return out
}

// meant suggests the key that a wrong one is nearest to.
func meant(key string, fields map[string]reflect.Type) string {
	best, dist := "", 4
	for f := range fields {
		if d := distance(key, f); d < dist || (d == dist && f < best) {
			best, dist = f, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := prev
			if a[i] != b[j] {
				cost++
			}
			prev, row[j+1] = row[j+1], min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// YAML is the effective configuration as a file that Load reads.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
