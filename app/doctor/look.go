package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/app/inspect"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/envoy/check"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/probe"
)

const (
	parallelism = 8        // workers asked in parallel
	maxPage     = 64 << 20 // of an admin page, in bytes
)

// collected is the collected state.
type collected struct {
	o           Options
	began       time.Time
	cfg         config.Config
	configErr   error
	modelFaults error          // what of the models' files does not load
	readings    []string       // by class of workers
	as          *secure.Client // TLS and token settings towards workers, or nil
	workers     []*worker
	frontends   []*worker       // of Dynamo; they are not workers
	deployed    []dynamo.Worker // behind the front ends, by the discovery folder
	deployErr   error
	probes      []probe.Result // of the running Sightline, or made here

	envoy        []check.Finding
	envoyNow     check.Bootstrap
	missingParts []check.Piece
	envoyErr     error
	envoyAsked   bool // it was given, or answers
	through      envoyCanary

	life           life
	running        *running // nil: none was found
	notFoundReason string   // why none was found
	answersAtAdmin bool     // but something listens at admin

	natsErr error
	nats    []*jetstream.StreamInfo
	agents  []agent
}

// worker is a worker configured by address, or found by the running Sightline.
type worker struct {
	config.Worker
	class  config.Class
	rules  rules.Rules
	facts  rules.Facts
	err    error // why it did not answer
	canary canary
}

// running is what a running Sightline reports of itself.
type running struct {
	notReady  string
	rows      []findings.Worker
	later     []findings.Worker // after the canary
	findings  []audit.Finding
	decisions []router.Recent
	metrics   map[string]*dto.MetricFamily
	problems  []findings.Finding
}

// agent is what an agent reports of itself.
type agent struct {
	at    string
	err   error
	state struct {
		Worker string
		Ranks  []struct {
			Rank     int
			NotReady string `json:"not_ready"`
			Heard    stream.Stats
		}
	}
}

// collect collects the state.
func collect(ctx context.Context, o Options) *collected {
	s := &collected{o: o, began: time.Now()}
	cfg, err := config.Load(o.Config)
	var loaded *serve.Server
	if err == nil {
		s.cfg, cfg.LogLevel = cfg, "error"
		loaded, err = serve.Load(cfg)
		if err != nil {
			err = cfg.Hide(err)
		}
	}
	s.configErr = err
	if err != nil {
		return s
	}
	s.modelFaults, s.readings = loaded.Faults(), loaded.Readings()
	if o.Pre {
		s.lookAtEnvoy(ctx)
		s.notFoundReason = "--pre looks at files alone"
		return s
	}
	s.as, s.configErr = s.cfg.WorkerAccess.Open(zap.NewNop())
	if s.configErr != nil {
		return s
	}
	client := rules.NewClient(o.Patience, s.as)
	s.running, s.notFoundReason = s.askSightline(ctx)
	s.lookAtEnvoy(ctx)
	s.lookAtLife(ctx)
	s.list(ctx)
	s.lookAtDynamo(ctx, client)
	s.each(func(w *worker) { w.facts, w.err = inspect.Ask(ctx, client, w.Addr) })
	s.lookAtTokens(ctx, loaded)
	if o.Canary {
		s.sendCanaries(ctx)
	}
	if s.running != nil && o.Canary {
		_ = s.get(ctx, "/workers", &s.running.later)
		_ = s.get(ctx, "/decisions?n=1024", &s.running.decisions)
	}
	s.lookAtNATS(ctx)
	for _, at := range o.Agent {
		s.agents = append(s.agents, s.askAgent(ctx, at))
	}
	return s
}

// askAgent asks an agent. It does not send the configuration's token in plain text, nor to a host that was only looked up in DNS.
func (s *collected) askAgent(ctx context.Context, at string) agent {
	a := agent{at: at}
	if u, err := url.Parse(web(at)); err != nil || s.cfg.AdminToken != "" && u.Scheme != "https" && !admin.IsLoopback(u.Host) {
		a.err = cmp.Or(err,
			errors.New("not queried: admin_token would be sent unencrypted (use https://, or by 127.0.0.1 through a tunnel such "+
				"as kubectl port-forward)"))
		return a
	}
	a.err = getJSON(ctx, rules.NewClient(s.o.Patience, nil), web(at)+"/state", s.cfg.AdminToken, &a.state)
	return a
}

// list collects the workers that the file names and those that the running Sightline found.
func (s *collected) list(ctx context.Context) {
	add := func(wc config.Worker) {
		class, ok := s.cfg.ClassOf(&wc)
		if ok {
			s.workers = append(s.workers, &worker{Worker: wc, class: class, rules: class.Rules()})
		}
	}
	for _, wc := range s.cfg.Workers {
		for _, one := range resolved(ctx, wc) {
			add(one)
		}
	}
	for _, row := range s.rows() {
		known := func(w *worker) bool { return w.Name == row.Name || w.Addr == row.Addr }
		if row.Addr != "" && !slices.ContainsFunc(s.workers, known) && !slices.Contains(s.cfg.Dynamo.Frontends, row.Addr) {
			add(config.Worker{Name: row.Name, Addr: row.Addr, Model: row.Model, Class: row.Class, Events: config.Events{Auto: true}})
		}
	}
}

// lookAtDynamo asks the front ends which models they serve, and reads the discovery folder.
func (s *collected) lookAtDynamo(ctx context.Context, client *http.Client) {
	c := &s.cfg.Dynamo
	if c.Plane == "" {
		return
	}
	for _, at := range c.Frontends {
		w := &worker{Worker: config.Worker{Name: "front end " + at, Addr: at, Model: c.Model}}
		w.facts, w.err = inspect.Ask(ctx, client, at)
		s.frontends = append(s.frontends, w)
	}
	s.deployed, s.deployErr = dynamo.Workers(c.Discovery, dynamo.Scope{Namespace: c.Namespace, Component: c.Component,
		Endpoint: c.Endpoint}, s.began)
}

// resolved returns one worker for each address of its name.
func resolved(ctx context.Context, wc config.Worker) []config.Worker {
	_, host, port, err := config.SplitAddr(wc.Addr)
	if err != nil || host == "" {
		return []config.Worker{wc}
	}
	ips, err := discover.Lookup(ctx, host)
	if err != nil {
		return []config.Worker{wc} // the failure to answer will be reported
	}
	list := make([]config.Worker, len(ips))
	for i := range ips {
		list[i] = wc
		ip := ips[i].String()
		list[i].Addr = net.JoinHostPort(ip, fmt.Sprint(port))
		if len(ips) > 1 {
			list[i].Name += "/" + list[i].Addr
		}
		for _, u := range []*string{&list[i].Events.ZMQ, &list[i].Events.Replay} {
			*u = strings.ReplaceAll(*u, "{ip}", strings.TrimSuffix(net.JoinHostPort(ip, ""), ":"))
		}
	}
	return list
}

// each calls do for all workers, several in parallel.
func (s *collected) each(do func(*worker)) {
	var all sync.WaitGroup
	room := make(chan struct{}, parallelism)
	for _, w := range s.workers {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			do(w)
		})
	}
	all.Wait()
}

// rows returns the workers as the running Sightline reports them.
func (s *collected) rows() []findings.Worker {
	if s.running == nil {
		return nil
	}
	return s.running.rows
}

// count sums a counter or gauge of the running Sightline over the series that have all these labels, given as name=value.
func (s *collected) count(name string, labels ...string) (sum float64) {
	if s.running == nil {
		return 0
	}
	for _, m := range s.running.metrics[name].GetMetric() {
		has := func(label string) bool {
			return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName()+"="+l.GetValue() == label })
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !has(l) }) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return sum
}

// lookAtTokens compares tokens and settings with the workers'.
func (s *collected) lookAtTokens(ctx context.Context, loaded *serve.Server) {
	var list []probe.Worker
	for _, w := range s.workers {
		if p, ok := loaded.ProbeOf(w.Name, w.Addr, w.Model, w.Worker.Class); ok && w.err == nil {
			list = append(list, p)
		}
	}
	p := probe.New(probe.Options{Workers: list, As: s.as})
	p.All(ctx)
	s.probes = p.Results()
}

func (s *collected) lookAtEnvoy(ctx context.Context) {
	from := cmp.Or(s.o.Envoy, "http://"+s.cfg.Envoy.Admin)
	if s.o.Envoy == "" && (s.o.Pre || !answersAt(s.cfg.Envoy.Admin)) {
		s.envoyErr = fmt.Errorf("no Envoy is given (--envoy FILE or the address of its admin page), and none answers at envoy.admin, %s",
			s.cfg.Envoy.Admin)
		return
	}
	if s.o.Pre && strings.Contains(from, "://") {
		s.envoyErr = errors.New("--pre looks at files alone")
		return
	}
	s.envoyAsked = true
	b, err := check.Load(ctx, from)
	if err != nil {
		s.envoyErr = err
		return
	}
	s.envoyNow = b
	want, err := serve.EnvoyWant(s.cfg)
	if err != nil {
		s.envoyErr = err
		return
	}
	want.Clusters = s.o.Cluster
	if s.running != nil && len(want.Workers) == 0 { // discovered ones
		for _, row := range s.running.rows {
			if row.Role == "prefill" || row.Role == "encode" {
				continue // Envoy sends them nothing
			}
			want.Workers = append(want.Workers, row.Addr)
		}
	}
	s.envoy = check.Run(b, want)
	s.missingParts, s.envoyErr = check.Missing(b, want)
}

// answersAt reports whether something listens at host:port.
func answersAt(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// askSightline collects what a running Sightline reports; nil and the reason if there is none.
func (s *collected) askSightline(ctx context.Context) (*running, string) {
	if s.o.Admin == "" && (s.cfg.Admin == "" || !answersAt(s.cfg.Admin)) {
		return nil, fmt.Sprintf("no running Sightline is given (--admin URL), and none answers at admin, %q", s.cfg.Admin)
	}
	r := &running{}
	if err := s.get(ctx, "/readyz", nil); isTimeout(err) {
		s.life.silent = append(s.life.silent, "admin at "+cmp.Or(s.o.Admin, s.cfg.Admin))
		return nil, err.Error()
	} else if err != nil {
		r.notReady = err.Error()
	}
	s.answersAtAdmin = true
	for path, into := range map[string]any{"/workers": &r.rows, "/audit": &r.findings, "/decisions?n=1024": &r.decisions,
		"/metrics": &r.metrics} {
		if err := s.get(ctx, path, into); err != nil {
			return nil, err.Error()
		}
	}
	_ = s.get(ctx, "/problems", &r.problems) // releases before 0.3 do not have it
	return r, ""
}

// get requests a path of the running Sightline's admin page.
func (s *collected) get(ctx context.Context, path string, into any) error {
	return getJSON(ctx, rules.NewClient(s.o.Patience, nil), web(cmp.Or(s.o.Admin, s.cfg.AdminURL()))+path, s.cfg.AdminToken, into)
}

// web turns an address into a URL unless it is one.
func web(at string) string {
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	return strings.TrimRight(at, "/")
}

// getJSON reads a page of JSON or metrics, or no body. The error quotes the body of a response other than 200.
func getJSON(ctx context.Context, client *http.Client, url, token string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err == nil {
		defer res.Body.Close()
	}
	if (err != nil || res.StatusCode == http.StatusBadRequest) && req.URL.Scheme == "http" && rules.SpeaksTLS(ctx, req.URL.Host, err) {
		return fmt.Errorf("%s: it speaks TLS: give https://", url)
	}
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 512))
		return fmt.Errorf("%s: status %d: %s", url, res.StatusCode, strings.TrimSpace(string(text)))
	}
	switch into := into.(type) {
	case nil:
		return nil
	case *map[string]*dto.MetricFamily:
		parser := expfmt.NewTextParser(model.UTF8Validation)
		*into, err = parser.TextToMetricFamilies(io.LimitReader(res.Body, maxPage))
	default:
		err = json.NewDecoder(io.LimitReader(res.Body, maxPage)).Decode(into)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", url, err)
	}
	return err
}

// lookAtNATS asks an existing server for the agents' streams, as Sightline would. Of the server of Dynamo's plane it only checks
// that it accepts us.
func (s *collected) lookAtNATS(ctx context.Context) {
	if d := &s.cfg.Dynamo; d.Plane == "nats" {
		c, err := s.reach(ctx, "dynamo.nats", &d.NATS, "")
		s.natsErr = err
		if err != nil {
			return
		}
		c.Close()
	}
	n := &s.cfg.NATS
	if n.URL == "" {
		return
	}
	c, err := s.reach(ctx, "nats", &n.Access, n.Prefix.RouterInbox())
	s.natsErr = err
	if err != nil {
		return
	}
	defer c.Close()
	s.natsErr = bus.CheckServer(c)
	if s.natsErr != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	js, err := jetstream.New(c)
	for _, name := range []string{n.Prefix.Stream(), n.Prefix.State()} {
		if err == nil {
			var one jetstream.Stream
			one, err = js.Stream(ctx, name)
			if err == nil {
				s.nats = append(s.nats, one.CachedInfo())
				continue
			}
		}
		s.natsErr = fmt.Errorf("stream %s: %w", name, err)
		return
	}
}

// reach connects to a server, within Patience.
func (s *collected) reach(ctx context.Context, key string, n *bus.Access, inbox string) (*nats.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	refused := make(chan struct{}, 1)
	c, err := n.Connect(bus.ConnectOptions{Name: "sightline doctor", Inbox: inbox, Log: zap.NewNop(), Refused: func() {
		select {
		case refused <- struct{}{}:
		default:
		}
	}})
	for err == nil && c.Status() != nats.CONNECTED {
		select {
		case <-refused:
			err = fmt.Errorf("the server rejects the credentials: see %s.nkey, credentials, user", key)
		case <-ctx.Done():
			err = fmt.Errorf("no server could be reached at %s.url within %v", key, s.o.Patience)
		case <-time.After(10 * time.Millisecond):
		}
		if err != nil {
			c.Close()
		}
	}
	return c, err
}
