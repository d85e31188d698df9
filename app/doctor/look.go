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
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/envoy/check"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/inspect"
	"github.com/sightline-router/sightline/workers/probe"
)

const maxPage = 64 << 20 // of an admin page, in bytes

// collected is the collected state.
type collected struct {
	o     Options
	began time.Time
	facts findings.Facts
	*findings.Seen
	as       *secure.Client // TLS and token settings towards workers, or nil
	envoyNow check.Bootstrap
	running  bool              // a Sightline was found
	rows     []findings.Worker // of it
	told     []findings.Finding
}

// collect collects the state.
func collect(ctx context.Context, o Options) *collected {
	began := time.Now()
	cfg, err := config.Load(o.Config)
	o.Patience = cmp.Or(cfg.Fixed.Patience, o.Patience)
	seen := &findings.Seen{Patience: o.Patience}
	s := &collected{o: o, began: began, Seen: seen, facts: findings.Facts{Now: began, Seen: seen}}
	var loaded *serve.Server
	if err == nil {
		s.Config, cfg.LogLevel = cfg, "error"
		loaded, err = serve.Load(cfg)
		if err != nil {
			err = cfg.Hide(err)
		}
	}
	if err == nil && !o.Pre {
		s.as, err = s.Config.WorkerAccess.Open(zap.NewNop())
	}
	if err != nil {
		s.ConfigErr, s.facts.Configuration = err, err.Error()
		return s
	}
	s.facts.Faults, s.Readings, s.facts.Certificates = loaded.Faults(), loaded.Readings(), s.Config.Expiring(s.began)
	if o.Pre {
		for at := range s.Missing {
			s.Missing[at] = findings.OnlyFiles
		}
		s.lookAtEnvoy(ctx)
		return s
	}
	client := rules.NewClient(o.Patience, s.as)
	s.askSightline(ctx)
	s.lookAtEnvoy(ctx)
	s.lookAtLife(ctx)
	s.list(ctx)
	s.lookAtDynamo()
	inspect.Each(s.Servers, func(_ int, w *findings.Server) { w.Facts, w.Err = inspect.Ask(ctx, client, w.Addr) })
	s.lookAtTokens(ctx, loaded)
	s.Missing[findings.FromCanary] = cmp.Or(s.Missing[findings.FromWorkers], "no canary is sent (--no-canary)")
	s.Missing[findings.FromRequests] = "no canary is sent (--no-canary)"
	if o.Canary {
		s.Missing[findings.FromCanary] = s.Missing[findings.FromWorkers]
		s.sendCanaries(ctx)
	}
	s.lookAtNATS(ctx)
	for _, at := range o.Agent {
		s.Agents = append(s.Agents, s.askAgent(ctx, at))
	}
	return s
}

// askAgent asks an agent. It does not send the configuration's token in plain text, nor to a host that was only looked up in DNS.
func (s *collected) askAgent(ctx context.Context, at string) findings.Agent {
	a := findings.Agent{At: at}
	if u, err := url.Parse(web(at)); err != nil || s.Config.AdminToken != "" && u.Scheme != "https" && !admin.IsLoopback(u.Host) {
		a.Err = cmp.Or(err,
			errors.New("not queried: admin_token would be sent unencrypted (use https://, or by 127.0.0.1 through a tunnel such "+
				"as kubectl port-forward)"))
		return a
	}
	a.Err = getJSON(ctx, rules.NewClient(s.o.Patience, nil), web(at)+"/state", s.Config.AdminToken, &a.State)
	return a
}

// list collects the workers that the file names and those that the running Sightline found.
func (s *collected) list(ctx context.Context) {
	add := func(wc config.Worker) {
		if class, ok := s.Config.ClassOf(&wc); ok {
			s.Servers = append(s.Servers, &findings.Server{Worker: wc, Class: class, Rules: class.Rules()})
		}
	}
	for _, wc := range s.Config.Workers {
		for _, one := range resolved(ctx, wc) {
			add(one)
		}
	}
	for _, row := range s.rows {
		known := func(w *findings.Server) bool { return w.Name == row.Name || w.Addr == row.Addr }
		if row.Addr != "" && !slices.ContainsFunc(s.Servers, known) && !slices.Contains(s.Config.Dynamo.Frontends, row.Addr) {
			add(config.Worker{Name: row.Name, Addr: row.Addr, Model: row.Model, Class: row.Class, Events: config.Events{Auto: true}})
		}
	}
}

// lookAtDynamo adds the front ends, and reads the discovery folder.
func (s *collected) lookAtDynamo() {
	c := &s.Config.Dynamo
	if c.Discovery == "" {
		return
	}
	if len(s.Servers) == 0 {
		s.Missing[findings.FromWorkers] = inspect.ErrNoHTTP.Error()
	}
	for _, at := range c.Frontends {
		s.Servers = append(s.Servers, &findings.Server{FrontEnd: true,
			Worker: config.Worker{Name: "front end " + at, Addr: at, Model: c.Model}})
	}
	component, endpoint := c.Answers()
	found, err := dynamo.Workers(c.Discovery, dynamo.Scope{Namespace: c.Namespace, Component: component, Endpoint: endpoint}, s.began)
	s.Deployed, s.DeployErr = len(found), err
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

// lookAtTokens compares tokens and settings with the workers'.
func (s *collected) lookAtTokens(ctx context.Context, loaded *serve.Server) {
	var list []probe.Worker
	asked := s.Missing[findings.FromWorkers]
	for _, w := range s.Servers {
		if p, ok := loaded.ProbeOf(w.Name, w.Addr, w.Model, w.Worker.Class); ok && w.Err == nil && !w.FrontEnd {
			p.Facts, p.Ranks = &w.Facts, w.Ranks
			list = append(list, p)
		}
	}
	switch {
	case len(s.Servers) == 0:
		asked = cmp.Or(asked, "no worker is configured by address, and no running Sightline lists discovered ones")
	case len(list) == 0:
		asked = cmp.Or(asked, "no worker answers (SL0109)")
	}
	s.Missing[findings.FromWorkers] = asked
	p := probe.New(probe.Options{Workers: list, As: s.as})
	p.All(ctx)
	s.facts.Probes = p.Results()
}

func (s *collected) lookAtEnvoy(ctx context.Context) {
	from, lacks := cmp.Or(s.o.Envoy, "http://"+s.Config.Envoy.Admin), &s.Missing[findings.FromEnvoy]
	if s.o.Envoy == "" && (s.o.Pre || !answersAt(s.Config.Envoy.Admin)) {
		*lacks = fmt.Sprintf("no Envoy is given (--envoy FILE or the address of its admin page), and none answers at envoy.admin, %s",
			s.Config.Envoy.Admin)
		return
	}
	if s.o.Pre && strings.Contains(from, "://") {
		return
	}
	b, err := check.Load(ctx, from)
	var want check.Want
	if err == nil {
		want, err = serve.EnvoyWant(s.Config)
	}
	if err != nil {
		s.EnvoyErr, *lacks = err, err.Error()
		return
	}
	s.envoyNow, want.Clusters, *lacks = b, s.o.Cluster, ""
	if len(want.Workers) == 0 { // discovered ones
		for _, row := range s.rows {
			if row.Role != "prefill" && row.Role != "encode" { // Envoy sends them nothing
				want.Workers = append(want.Workers, row.Addr)
			}
		}
	}
	s.Envoy = check.Run(b, want)
	s.Lacking, s.EnvoyErr = check.Missing(b, want)
}

// answersAt reports whether something listens at host:port.
func answersAt(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// askSightline collects what a running Sightline reports.
func (s *collected) askSightline(ctx context.Context) {
	lacks := func(err error, was string) {
		s.AdminErr, s.AdminWas = err.Error(), was
		s.Missing[findings.FromRunning], s.Missing[findings.FromTraffic] = s.AdminErr, s.AdminErr
	}
	if s.o.Admin == "" && (s.Config.Admin == "" || !answersAt(s.Config.Admin)) {
		lacks(fmt.Errorf("no running Sightline is given (--admin URL), and none answers at admin, %q", s.Config.Admin), "")
		return
	}
	was := map[bool]string{true: "given", false: "there"}[s.o.Admin != ""]
	if err := s.get(ctx, "/readyz", nil); isTimeout(err) {
		s.Life.Silent = append(s.Life.Silent, "admin at "+cmp.Or(s.o.Admin, s.Config.Admin))
		lacks(err, was)
		return
	} else if err != nil {
		s.Life.NotReady = err.Error()
	}
	s.Life.Running = true
	for path, into := range map[string]any{"/workers": &s.rows, "/decisions?n=1024": &s.facts.Last, "/problems": &s.told} {
		if err := s.get(ctx, path, into); err != nil {
			lacks(err, was)
			return
		}
	}
	s.running = true
	s.facts.BlockSizes = map[string]int{}
	for i := range s.rows {
		s.facts.BlockSizes[s.rows[i].Name] = s.rows[i].BlockSize
	}
	if len(s.facts.Last) == 0 {
		s.Missing[findings.FromTraffic] = findings.NoTraffic
	}
}

// get requests a path of the running Sightline's admin page.
func (s *collected) get(ctx context.Context, path string, into any) error {
	return getJSON(ctx, rules.NewClient(s.o.Patience, nil), web(cmp.Or(s.o.Admin, s.Config.AdminURL()))+path, s.Config.AdminToken, into)
}

// web turns an address into a URL unless it is one.
func web(at string) string {
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	return strings.TrimRight(at, "/")
}

// getJSON reads a page of JSON, or no body if into is nil. The error quotes the body of a response other than 200.
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
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxPage)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}

// lookAtNATS asks an existing server for the agents' streams, as Sightline would. Of the server of Dynamo's plane it only checks
// that it accepts us.
func (s *collected) lookAtNATS(ctx context.Context) {
	if err := s.natsFault(ctx); err != nil {
		s.facts.NATS = err.Error()
	}
}

func (s *collected) natsFault(ctx context.Context) error {
	if d := &s.Config.Dynamo; d.NATS.URL != "" {
		c, err := s.reach(ctx, "dynamo.nats", &d.NATS, "")
		if err != nil {
			return err
		}
		c.Close()
	}
	n := &s.Config.NATS
	if n.URL == "" {
		return nil
	}
	c, err := s.reach(ctx, "nats", &n.Access, bus.RouterInbox)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := bus.CheckServer(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	js, err := jetstream.New(c)
	for _, name := range []string{bus.EventStream, bus.StateStream} {
		if err == nil {
			_, err = js.Stream(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return nil
}

// reach connects to a server, within Patience.
func (s *collected) reach(ctx context.Context, key string, n *bus.Access, inbox string) (*nats.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	var failing bus.Failing
	c, err := n.Connect(bus.ConnectOptions{Name: "sightline doctor", Inbox: inbox, Log: zap.NewNop(), Failing: &failing})
	for err == nil && c.Status() != nats.CONNECTED {
		switch why, refused := failing.Why(); {
		case refused:
			err = fmt.Errorf("%s: %s", key, why)
		case !retry.Sleep(ctx, 10*time.Millisecond):
			err = fmt.Errorf("no server could be reached at %s.url within %v: %s", key, s.o.Patience, why)
		}
		if err != nil {
			c.Close()
		}
	}
	return c, err
}
