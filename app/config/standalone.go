package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Standalone describes NVIDIA's standalone router example for TensorRT-LLM: worker n of a host serves HTTP at port HTTP + n,
// publishes KV events at Events + n and its load at Metrics + n. Off without Host.
type Standalone struct {
	Host    string `yaml:"host"`    // ip
	Workers int    `yaml:"workers"` // --num-workers
	HTTP    int    `yaml:"http"`    // of the workers' own servers
	Events  int    `yaml:"events"`  // --base-kv-events-port
	Metrics int    `yaml:"metrics"` // --base-metrics-port
	Model   string `yaml:"model"`   // name of one of models; may be omitted if there is only one
	Class   string `yaml:"class"`
}

// expandStandalone adds the workers that it describes.
func (c *Config) expandStandalone(bad report) {
	s := c.Standalone
	c.Standalone = Default().Standalone
	if s.Host == "" {
		if s != c.Standalone {
			bad("standalone.host", "missing (want the workers' ip, such as 127.0.0.1)")
		}
		return
	}
	if a, err := netip.ParseAddr(s.Host); err != nil || a.Zone() != "" || a.IsUnspecified() {
		bad("standalone.host", "%q is not what Envoy can dial (want an ip, such as 127.0.0.1)", s.Host)
		return
	}
	if s.Workers < 1 || s.Workers > 1024 {
		bad("standalone.workers", "%d is out of range (want 1 to 1024)", s.Workers)
		return
	}
	for key, port := range map[string]int{"http": s.HTTP, "events": s.Events, "metrics": s.Metrics} {
		if port < 1 || port+s.Workers-1 > 65535 {
			bad("standalone."+key, "%d is not the first of %d ports", port, s.Workers)
			return
		}
	}
	for n := range s.Workers {
		at := func(base int) string { return net.JoinHostPort(s.Host, strconv.Itoa(base+n)) }
		c.Workers = append(c.Workers, Worker{Name: fmt.Sprint("worker-", n), Addr: at(s.HTTP), Model: s.Model, Class: s.Class,
			Events: Events{ZMQ: "tcp://" + at(s.Events), Load: "tcp://" + at(s.Metrics)}})
	}
}
