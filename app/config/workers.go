package config

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/workers/fleet"
)

// maxRanks bounds the data-parallel ranks of a worker.
const maxRanks = 1024

// workersCheck checks the workers that the file names and those that are discovered.
type workersCheck struct {
	*Config
	bad                   report
	names, addrs, sockets map[string]string // path of the owner of each
}

func (c *workersCheck) configured() {
	for i := range c.Workers {
		w := &c.Workers[i]
		path := fmt.Sprintf("workers[%d]", i)
		addr, host, port, err := SplitAddr(w.Addr)
		if err != nil {
			c.bad(path+".addr", "%v", err)
		}
		w.Name = cmp.Or(w.Name, host, w.Addr)
		at := net.JoinHostPort(strings.ToLower(host), strconv.Itoa(int(port)))
		if addr.IsValid() {
			host, at = addr.Addr().String(), addr.String()
		}
		if other, twice := c.addrs[at]; twice && err == nil {
			c.bad(path+".addr", "%q is also the address of %s", w.Addr, other)
		}
		c.addrs[at] = path
		if other, twice := c.names[w.Name]; twice {
			c.bad(path+".name", "%q is also the name of %s (want one of its own: agents, metrics and the page know a worker by it)",
				w.Name, other)
		}
		c.names[w.Name] = path
		c.any(w, path)
		c.socketsOf(w, path, host)
	}
}

func (c *workersCheck) kubernetes() {
	k := &c.Kubernetes
	if k.API != "" && webURL(k.API) == nil {
		c.bad("kubernetes.api", "%q is not an API server (want one such as https://10.96.0.1:443)", k.API)
	}
	if _, name := k.InferencePool(); k.Pool != "" && (name == "" || k.Pool[0] == '/' || strings.Contains(name, "/")) {
		c.bad("kubernetes.pool", "%q: want NAME, or NAMESPACE/NAME", k.Pool)
	}
	if k.Pool == "" && k.DeletionCost {
		c.bad("kubernetes.deletion_cost", "true, but no pool is named (want kubernetes.pool, whose pods are annotated)")
	}
	if len(k.Workers) == 0 && k.Pool == "" && k.API != "" {
		c.bad("kubernetes.workers", "none given (want a list of groups such as {service: vllm, port: http}, or kubernetes.pool)")
	}
	for i := range k.Workers {
		g := &k.Workers[i]
		path := fmt.Sprintf("kubernetes.workers[%d]", i)
		if (g.Service == "") == (g.Selector == "") {
			c.bad(path+".service", "give either service, a Service's name, or selector, a label selector of EndpointSlices")
		}
		if n, err := strconv.Atoi(g.Port); err == nil && (n < 1 || n > 65535) {
			c.bad(path+".port", "%q is not a port (want a port's name, or 1 to 65535)", g.Port)
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
		w := g.Worker // each pod has its own sockets
		(&workersCheck{Config: c.Config, bad: c.bad, sockets: map[string]string{}}).socketsOf(&w, path, "10.0.0.5")
	}
}

// any checks everything except a worker's address and name.
func (c *workersCheck) any(w *Worker, path string) {
	if w.Model == "" && len(c.Models) == 1 {
		w.Model = c.Models[0].Name
	}
	class, known := c.ClassOf(w)
	if c.wantModel(c.bad, path+".model", w.Model) && !known {
		c.bad(path+".class", "%q is not a class of the model %q (give the name of one of its classes, or none)", w.Class, w.Model)
	}
	if w.MaxInFlight != 0 && c.MaxInFlight == 0 {
		c.bad(path+".max_in_flight", "%d, but other requests have no limit (give max_in_flight too)", w.MaxInFlight)
	}
	inRange(c.bad, path+".max_in_flight", w.MaxInFlight, 0, 1<<20)
	inRange(c.bad, path+".ranks", w.Ranks, 0, maxRanks)
	if role, err := fleet.RoleOf(w.Role); err != nil {
		c.bad(path+".role", "%v", err)
	} else if role != fleet.Any && (w.Ranks > 0 || w.Class != "") {
		c.bad(path+".role", "%q beside ranks or class (a sidecar passes one rank on to both; the workers of a pair read a prompt alike)", w.Role)
	}
	c.eventKeys(&w.Events, path)
	if known {
		c.eventsOf(w, &class, path)
	}
}

// eventKeys checks that a worker's events are received in only one way, and that dependent keys are complete.
func (c *workersCheck) eventKeys(e *Events, path string) {
	first := ""
	for _, source := range []struct {
		key   string
		given bool
	}{{"zmq", e.ZMQ != ""}, {"http", e.HTTP != ""}, {"auto", e.Auto}, {"nats", e.NATS}} {
		switch {
		case !source.given:
		case first != "":
			c.bad(path+".events."+source.key, "given together with %s (want one source of a worker's events)", first)
		default:
			first = source.key
		}
	}
	for key, given := range map[string]bool{"replay": e.Replay != "", "bind": e.Bind, "load": e.Load != ""} {
		if given && e.ZMQ == "" {
			c.bad(path+".events."+key, "given without zmq, the socket that it belongs to (want zmq too, or leave it out)")
		}
	}
	if e.NATS && !c.NATS.Given() {
		c.bad(path+".events.nats", "true, but nats.url and nats.listen are both empty")
	}
	if u := webURL(strings.ReplaceAll(e.HTTP, "{ip}", "10.0.0.5")); e.HTTP != "" && (u == nil || strings.Trim(u.Path, "/") != "") {
		c.bad(path+".events.http", "%q is not a server (want one such as http://10.0.0.5:8000)", e.HTTP)
	}
}

// eventsOf checks that a worker's engine supports the configured way.
func (c *workersCheck) eventsOf(w *Worker, class *Class, path string) {
	e := &w.Events
	heard := e.ZMQ != "" || e.HTTP != "" || e.Auto || e.NATS
	switch {
	case heard && class.Dynamo():
		c.bad(path+".events", "its model uses Dynamo's hashes, which only the workers of the section dynamo report "+
			"(want block_hash: sightline for workers whose own events are heard)")
	case e.Load != "" && (w.Ranks > 0 || !class.Rules().PublishesLoad):
		c.bad(path+".events.load",
			"given with ranks, or for another engine than trtllm (only NVIDIA's standalone example reports its load this way)")
	case e.Auto && class.Rules().FindEvents == nil:
		c.bad(path+".events.auto", "true, but only SGLang and vLLM 0.31 and later report their sockets (want zmq or nats for %s %s)",
			class.Engine, class.EngineVersion)
	case e.HTTP != "" && !class.Rules().EventsOverHTTP:
		c.bad(path+".events.http", "only engine trtllm offers its events over HTTP, and these workers have engine %q", class.Engine)
	}
}

// socketsOf checks a worker's ZeroMQ sockets, one of each kind per rank: no other worker may have the same.
func (c *workersCheck) socketsOf(w *Worker, path, host string) {
	if w.Ranks < 0 || w.Ranks > maxRanks {
		return
	}
	for _, s := range []struct{ key, endpoint string }{{"zmq", w.Events.ZMQ}, {"replay", w.Events.Replay}, {"load", w.Events.Load}} {
		key, here := path+".events."+s.key, ""
		if s.endpoint == "" {
			continue
		}
		if w.Events.Bind && s.key == "zmq" {
			here = "here"
			if strings.Contains(s.endpoint, "{ip}") {
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
