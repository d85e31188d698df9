package config

import (
	"net/netip"
	"strings"

	"github.com/sightline-router/sightline/indexer/source/bus"
)

// Dynamo finds the workers of an NVIDIA Dynamo deployment, and receives their KV events on its event plane. Off without
// Discovery.
type Dynamo struct {
	Discovery string     `yaml:"discovery"` // the folder of its file discovery (DYN_FILE_KV)
	NATS      bus.Access `yaml:"nats"`      // the server of a NATS plane; none: the plane is ZeroMQ
	Namespace string     `yaml:"namespace"`
	Component string     `yaml:"component"` // COMPONENT, or COMPONENT/ENDPOINT if its endpoint is not generate
	// PrefillComponent has the workers that prefill for those of Component; "": none.
	PrefillComponent string `yaml:"prefill_component"`
	Model            string `yaml:"model"` // name of one of models; may be omitted if there is only one
	Class            string `yaml:"class"`
	// Frontends are dynamo.frontend --router-mode direct as ip:port, each of which serves every worker.
	Frontends []string `yaml:"frontends"`
	// EnginePort is the alternative: if each worker's engine has an HTTP server of its own, its port on the worker's host.
	EnginePort int `yaml:"engine_port"`
}

// Answers returns the component whose workers answer, and its endpoint that takes requests.
func (d *Dynamo) Answers() (component, endpoint string) {
	component, endpoint, given := strings.Cut(d.Component, "/")
	if !given {
		endpoint = "generate"
	}
	return component, endpoint
}

func (c *Config) checkDynamo(worker func(w *Worker, path string), bad report) {
	d := &c.Dynamo
	if d.Discovery == "" {
		if len(d.Frontends) > 0 || d.NATS != (bus.Access{}) || d.EnginePort != 0 || d.Model != "" || d.Class != "" {
			bad("dynamo.discovery", "missing (want the folder of --discovery-backend file, DYN_FILE_KV)")
		}
		return
	}
	d.NATS.Check(false, bad.below("dynamo.nats."))
	component, endpoint := d.Answers()
	for key, name := range map[string]string{"namespace": d.Namespace, "component": component, "component's endpoint": endpoint} {
		if name == "" || len(name) > 255 || strings.ContainsAny(name, "/ ") {
			bad("dynamo."+key, "%q is not a name", name)
		}
	}
	for i, f := range d.Frontends {
		if a, err := netip.ParseAddrPort(f); err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
			bad("dynamo.frontends", "[%d] %q is not what Envoy can dial (want ip:port, such as 10.0.0.7:8000)", i, f)
		}
	}
	if d.EnginePort < 0 || d.EnginePort > 65535 || d.EnginePort > 0 && len(d.Frontends) > 0 {
		bad("dynamo.engine_port", "%d: want a port up to 65535, and no frontends beside it", d.EnginePort)
	}
	if d.PrefillComponent == component || len(d.PrefillComponent) > 255 || strings.ContainsAny(d.PrefillComponent, "/ ") {
		bad("dynamo.prefill_component", "%q is not a name beside component", d.PrefillComponent)
	}
	w := &Worker{Model: d.Model, Class: d.Class} // the keys that all its workers share
	worker(w, "dynamo")
	d.Model = w.Model
	s, ok := c.ClassOf(w)
	if !ok {
		return
	}
	switch {
	case !s.Dynamo():
		bad("dynamo", "the events of its workers carry Dynamo's own hashes: want block_hash: dynamo for the model %q", d.Model)
	case s.MediaNames == "computed" && d.EnginePort > 0:
		bad("dynamo.engine_port", "without Dynamo's front end its events know no image by a name that can be computed "+
			"(want media_names: injected)")
	case s.MediaNames == "computed" && c.Media.Relay.Listen != "":
		bad("media.relay", "Dynamo names an image by its URL, and the relay's are new each time (want media_names: injected)")
	}
}
