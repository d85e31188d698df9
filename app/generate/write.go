package generate

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine"
)

const (
	configFile = "sightline.yaml"
	envoyFile  = "envoy.yaml"
)

// file is YAML text under construction: a line for each key, with a comment on where the value comes from.
type file struct{ bytes.Buffer }

// line writes a key. Values reported by a worker are quoted where YAML would read them differently, and cannot contain references
// (${env:…}).
func (f *file) line(indent, name string, value any, from string) {
	text, _ := yaml.MarshalWithOptions(value, yaml.Flow(true)) // texts, numbers, and lists and maps of them always marshal
	text = bytes.ReplaceAll(bytes.TrimSpace(text), []byte("${"), []byte("$${"))
	fmt.Fprintf(f, "%s%s: %s", indent, name, text)
	if from != "" {
		fmt.Fprintf(f, " # %s", from)
	}
	f.WriteByte('\n')
}

// yaml returns the configuration, with the keys that differ from their defaults.
func (d *drafter) yaml() []byte {
	f := &file{}
	f.WriteString("# Drafted by `sightline init` from what the workers reported. All keys: docs/configuration.md.\n")
	f.given("", "listen", d.Listen)
	f.given("", "admin", d.Admin)
	if a := d.Access; a.CA+a.APIKeyFile != "" {
		f.WriteString("worker_access:\n")
		f.given("  ", "ca", a.CA)
		f.given("  ", "api_key_file", a.APIKeyFile)
	}
	f.WriteString("models:\n")
	for _, m := range d.models {
		f.line("- ", "name", m.name, "/v1/models")
		if len(m.aliases) > 0 {
			f.line("  ", "aliases", m.aliases, "/v1/models")
		}
		if len(m.adapters) > 0 {
			f.line("  ", "adapters", m.adapters, "/v1/models")
		}
		if m.dir != "" {
			f.line("  ", "dir", m.dir, m.dirFrom)
		}
		own := map[string]any{}
		for _, k := range m.classes[0].keys {
			own[k.name] = k.value
			if k.value != k.or {
				f.line("  ", k.name, k.value, k.from)
			}
		}
		for i, c := range m.classes[1:] {
			if i == 0 {
				f.WriteString("  classes: # workers that were started differently\n")
			}
			f.line("  - ", "name", c.name, "")
			for _, k := range c.keys {
				if own[k.name] != k.value {
					f.line("    ", k.name, k.value, k.from)
				}
			}
		}
	}
	d.workers(f)
	return f.Bytes()
}

// workers lists the workers given by address, and the groups of pods, which take one line each.
func (d *drafter) workers(f *file) {
	if d.Dynamo != "" {
		d.models[0].classes[0].workers[0].behind.write(f)
		f.WriteString("envoy:\n")
		f.line("  ", "token_usage", true, "front ends hand on the cached tokens that workers count. Needs Envoy 1.40")
		return
	}
	networks := []string{}
	heads := map[bool]string{false: "workers:\n", true: "kubernetes:\n" + d.server() + "  workers:\n"}
	for _, pods := range []bool{false, true} {
		said := map[*Pods]bool{}
		d.each(func(m *model, c *class, w *worker) {
			if (w.group != nil) != pods {
				return
			}
			first, indent := "- ", "  "
			if pods {
				if at := network(w.Addr); !slices.Contains(networks, at) {
					networks = append(networks, at)
				}
				if said[w.group] {
					return
				}
				said[w.group], first, indent = true, "  - ", "    "
			}
			f.WriteString(heads[pods])
			heads[pods] = ""
			if pods {
				f.line(first, "selector", w.group.Selector, "")
				f.given(indent, "namespace", w.group.Namespace)
				f.given(indent, "port", w.group.Port)
			} else {
				f.line(first, "addr", w.Addr, "")
			}
			if len(d.models) > 1 {
				f.line(indent, "model", m.name, "")
			}
			f.given(indent, "class", c.name)
			if w.Ranks > 1 {
				f.line(indent, "ranks", w.Ranks, "its data-parallel size")
			}
			if events, from := eventsOf(w); len(events) > 0 {
				f.line(indent, "events", events, from)
			}
		})
	}
	counts, tls := d.fileless && len(d.models) == 0, d.Access.CA != "" // workers that are asked later may count
	d.each(func(_ *model, _ *class, w *worker) { counts = counts || w.CountsCached != nil && *w.CountsCached })
	if len(networks) > 0 || counts || tls {
		f.WriteString("envoy:\n")
	}
	if len(networks) > 0 {
		f.line("  ", "worker_networks", networks, "around the pods that were found: make it the pods' network")
	}
	if counts {
		f.line("  ", "token_usage", true, "answers count cached tokens: predictions are checked against them. Needs Envoy 1.40")
	}
	if tls {
		f.line("  ", "worker_tls", yaml.MapSlice{{Key: "ca", Value: d.Access.CA}}, "the workers speak TLS to Envoy too")
	}
}

// server returns the API server's keys, if one was given; all groups use the same one.
func (d *drafter) server() string {
	f := &file{}
	if len(d.Groups) > 0 && d.Groups[0].API != "" {
		f.line("  ", "api", d.Groups[0].API, "leave it out in a pod")
	}
	return f.String()
}

func (f *file) given(indent, name, value string) {
	if value != "" {
		f.line(indent, name, value, "")
	}
}

// each calls do for all workers, by model and class.
func (d *drafter) each(do func(m *model, c *class, w *worker)) {
	for _, m := range d.models {
		for _, c := range m.classes {
			for _, w := range c.workers {
				do(m, c, w)
			}
		}
	}
}

// eventsOf returns the keys by which a worker's events are received: by asking it for its sockets, if the router can reach them
// too; by its sockets; or by draining them.
func eventsOf(w *worker) (keys yaml.MapSlice, from string) {
	host, ip := net.JoinHostPort(w.Host(), ""), "{ip}:"
	here := func(endpoint string) string {
		if w.group != nil {
			endpoint = strings.Replace(endpoint, host, ip, 1)
		}
		return endpoint
	}
	switch {
	case w.FindsEvents:
		return yaml.MapSlice{{Key: "auto", Value: true}}, "it says where it publishes"
	case len(w.Events) > 0:
		keys = yaml.MapSlice{{Key: "zmq", Value: here(w.Events[0].Pub)}}
		if w.Events[0].Replay != "" {
			keys = append(keys, yaml.MapItem{Key: "replay", Value: here(w.Events[0].Replay)})
		}
		return keys, "its arguments"
	case engine.RulesOf(w.Engine, w.Version).EventsOverHTTP:
		return yaml.MapSlice{{Key: "http", Value: here("http://" + w.Addr)}}, "drained: for one router alone"
	}
	return nil, ""
}

// network returns the network in which pods like the one at addr may be.
func network(addr string) string {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return addr
	}
	bits := 16
	if at.Addr().Is6() {
		bits = 64
	}
	prefix, _ := at.Addr().Prefix(bits) // cannot fail for a whole address
	return fmt.Sprintf("%v:%d", prefix, at.Port())
}

// write writes both files, after their content has passed the check of `sightline serve --check`.
func (d *drafter) write() error {
	text := d.yaml()
	draft, err := os.CreateTemp(d.Out, ".draft-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	_, err = draft.Write(text)
	err = errors.Join(err, draft.Chmod(0o644), draft.Close())
	if err != nil {
		return err
	}
	cfg, err := config.Load(draft.Name())
	if err == nil {
		quiet := cfg
		quiet.LogLevel = "error"
		loaded, bad := serve.Load(quiet)
		err = bad
		if bad == nil {
			err = loaded.Faults()
		}
	}
	if err != nil {
		return fmt.Errorf("the resulting configuration would not start, so nothing is written: %s",
			strings.ReplaceAll(err.Error(), draft.Name(), configFile))
	}
	variant := ""
	if len(cfg.Kubernetes.Workers) > 0 {
		variant = "eds"
	}
	proxy, err := serve.EnvoyYAML(cfg, variant, "")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.Out, envoyFile), proxy, 0o644); err != nil { //nolint:gosec // no secrets in it
		return err
	}
	return os.Rename(draft.Name(), filepath.Join(d.Out, configFile))
}
