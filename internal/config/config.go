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
	"net/url"
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

	"github.com/sightline-router/sightline/mmhash"
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
	mmhash.Server `yaml:",inline"`
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
		if _, err := fmt.Sscanf(strings.TrimSpace(num)+"\n", "%g\n", &n); err == nil && n >= 0 && n < 1<<40 {
			*s = Size(n * float64(f))
			return nil
		}
	}
	return fmt.Errorf("%q is no size (want a number of bytes, or one such as 64MiB)", text)
}

// MarshalYAML writes the size as it is best read.
func (s Size) MarshalYAML() (any, error) {
	for _, u := range []struct {
		name string
		f    Size
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.f && s%u.f == 0 {
			return fmt.Sprintf("%d%s", s/u.f, u.name), nil
		}
	}
	return int64(s), nil
}

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
	for i := range c.Models {
		m := &c.Models[i]
		files := []*string{&m.Dir, &m.ChatTemplate}
		for j := range m.Classes {
			files = append(files, &m.Classes[j].Dir, &m.Classes[j].ChatTemplate)
		}
		for _, p := range files {
			if *p != "" && !filepath.IsAbs(*p) {
				*p = filepath.Join(filepath.Dir(path), *p)
			}
		}
	}
	return c, nil
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
	m := Model{Server: mmhash.DefaultServer()}
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

// known reports the first key of tree that the type has not, by its path.
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
			if !ok {
				return fmt.Errorf("%s%s: unknown key%s", path, k, meant(k, fields))
			}
			if err := known(node[k], ft, path+k+"."); err != nil {
				return err
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

func (c *Config) check() error {
	var errs []error
	bad := func(path, format string, args ...any) { errs = append(errs, fmt.Errorf(path+": "+format, args...)) }
	if c.Listen == "" {
		bad("listen", "empty (want host:port, such as 127.0.0.1:9002, or unix:/path)")
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		bad("log_level", "%q is not known (want debug, info, warn or error)", c.LogLevel)
	}
	if c.NATS.URL != "" && c.NATS.Listen != "" {
		bad("nats", "url and listen are both given (want url for an existing server, or listen for an embedded one)")
	}
	for i, a := range c.Media.Allow {
		if _, err := netip.ParsePrefix(a); err != nil {
			bad(fmt.Sprintf("media.allow[%d]", i), "%q is no network (want one such as 10.0.0.0/8)", a)
		}
	}
	for host, list := range c.Media.Signing {
		if host == "" || strings.ContainsAny(strings.TrimPrefix(host, "*."), "/:*@ ") || len(list) == 0 {
			bad("media.signing", "%q: %d parameters (want a host such as cdn.example.com or *.example.com, and a list such as [sig, X-Amz-*])", host, len(list))
		}
	}
	c.checkRelay(bad)
	c.checkGateway(bad)
	for i, text := range c.Envoy.Workers {
		if _, err := ParseRange(text); err != nil {
			bad(fmt.Sprintf("envoy.worker_networks[%d]", i), "%v", err)
		}
	}
	c.expandStandalone(bad)
	names := map[string]string{}
	for i := range c.Models {
		m := &c.Models[i]
		path := fmt.Sprintf("models[%d]", i)
		if m.Name == "" {
			bad(path+".name", "missing")
		}
		if m.EngineModel == "" {
			m.EngineModel = m.Name
		}
		for _, n := range append(append([]string{m.Name}, m.Aliases...), m.Adapters...) {
			if other, twice := names[n]; twice && n != "" {
				bad(path, "the name %q is also one of %s", n, other)
			}
			names[n] = path
		}
		checkServer(&m.Server, path, bad)
		m.checkClasses(path, bad)
	}
	worker := func(w *Worker, path string) { // what does not concern its address
		if w.Model == "" && len(c.Models) == 1 {
			w.Model = c.Models[0].Name
		}
		if names[w.Model] == "" {
			bad(path+".model", "%q is no name of models (give the name of one of them)", w.Model)
		} else if _, ok := c.ClassOf(w); !ok {
			bad(path+".class", "%q is no class of the model %q (give the name of one of its classes, or none)", w.Class, w.Model)
		}
		if w.Ranks < 0 || w.Ranks > 1024 {
			bad(path+".ranks", "%d is out of range (want 0 to 1024)", w.Ranks)
		}
		for key, u := range map[string]string{"zmq": w.Events.ZMQ, "replay": w.Events.Replay, "load": w.Events.Load} {
			if u != "" && !strings.HasPrefix(u, "tcp://") && !strings.HasPrefix(u, "ipc://") {
				bad(path+".events."+key, "%q is no ZeroMQ address (want one such as tcp://10.0.0.5:5557)", u)
			}
		}
		if s, _ := c.ClassOf(w); w.Events.Load != "" && (w.Events.ZMQ == "" || w.Ranks > 0 || s.Engine != "trtllm") {
			bad(path+".events.load", "given without zmq, with ranks, or for another engine than trtllm (only NVIDIA's standalone example tells its load so)")
		}
		if w.Events.Bind && (w.Events.ZMQ == "" || strings.Contains(w.Events.ZMQ, "{ip}")) {
			bad(path+".events.bind", "true, but zmq is not where to listen (want one such as tcp://*:5557, another for each worker)")
		}
		if w.Events.HTTP != "" {
			c.checkDrain(bad, path+".events.http", w)
		}
		if s, _ := c.ClassOf(w); w.Events.Auto && (w.Events.ZMQ != "" || w.Events.NATS || w.Events.HTTP != "" || !tellsSockets(&s.Server)) {
			bad(path+".events.auto", "true, but not alone, or not for SGLang or vLLM 0.31 and later (want zmq or nats there)")
		}
		if w.Events.NATS && c.NATS.URL == "" && c.NATS.Listen == "" {
			bad(path+".events.nats", "true, but nats.url and nats.listen are both empty")
		}
	}
	seen := map[string]int{}
	for i := range c.Workers {
		w := &c.Workers[i]
		path := fmt.Sprintf("workers[%d]", i)
		_, host, _, err := SplitAddr(w.Addr)
		if err != nil {
			bad(path+".addr", "%v", err)
		}
		if j, twice := seen[w.Addr]; twice {
			bad(path+".addr", "%q is also the address of workers[%d]", w.Addr, j)
		}
		seen[w.Addr] = i
		if w.Name == "" {
			w.Name = cmp.Or(host, w.Addr)
		}
		worker(w, path)
	}
	c.checkKubernetes(worker, bad)
	c.checkDynamo(worker, bad)
	return errors.Join(errs...)
}

func (c *Config) checkDrain(bad func(path, format string, args ...any), path string, w *Worker) {
	class, _ := c.ClassOf(w)
	u, err := url.Parse(strings.ReplaceAll(w.Events.HTTP, "{ip}", "10.0.0.5"))
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		bad(path, "%q is no server (want one such as http://10.0.0.5:8000)", w.Events.HTTP)
	case w.Events.ZMQ != "" || w.Events.NATS:
		bad(path, "given beside zmq or nats (want one source of a worker's events)")
	case class.Engine != "trtllm":
		bad(path, "only engine trtllm offers its events over HTTP, and these workers have engine %q", class.Engine)
	}
}

// checkRelay also sees to it that workers may fetch from the relay.
func (c *Config) checkRelay(bad func(path, format string, args ...any)) {
	r := c.Media.Relay
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
	if r.TTL < time.Second {
		bad("media.relay.ttl", "%v is too short (want 1s or more, such as 2m)", r.TTL)
	}
	for i := range c.Models {
		if d := c.Models[i].AllowedMediaDomains; len(d) > 0 && !slices.Contains(d, u.Hostname()) {
			bad(fmt.Sprintf("models[%d].allowed_media_domains", i), "lacks %q, the host of media.relay.url: the engine would refuse every relayed image (add it here and to the engine's flag)", u.Hostname())
		}
	}
}

// YAML is the effective configuration as a file that Load reads.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
