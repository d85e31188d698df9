package generate

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
)

// printFound prints what each of these workers is, one line each.
func (d *drafter) printFound(these func(*worker) bool) {
	d.each(func(m *model, c *class, w *worker) {
		if !these(w) {
			return
		}
		if w.behind != nil {
			w.behind.found(d.out)
			return
		}
		kind := ""
		if w.Simulated {
			kind = ", simulated"
		}
		if c.name != "" {
			kind += ", class " + c.name
		}
		size := c.value("block_size")
		if w.BlockSize > 0 {
			size = w.BlockSize
		}
		fmt.Fprintf(d.out, "%s: %s %s%s, serves %s, blocks of %v tokens", w.Addr, w.Engine, w.Version, kind, m.name, size)
		if w.Ranks > 1 {
			fmt.Fprintf(d.out, ", %d ranks", w.Ranks)
		}
		events, _ := eventsOf(w)
		switch {
		case len(w.Events) > 0:
			fmt.Fprintf(d.out, ", KV events at %s", w.Events[0].Pub)
		case len(events) == 0:
			fmt.Fprint(d.out, ", no KV events")
		}
		fmt.Fprintln(d.out)
	})
}

func (c *class) value(name string) any {
	for _, k := range c.keys {
		if k.name == name {
			return k.value
		}
	}
	return nil
}

// server returns a worker as the table of findings takes it.
func (w *worker) server(events yaml.MapSlice, r rules.Rules) *findings.Server {
	s := &findings.Server{Worker: config.Worker{Name: w.Addr, Addr: w.Addr}, Rules: r, Facts: w.Facts}
	s.Class.Engine = w.Engine
	for _, k := range events {
		switch k.Key {
		case "zmq":
			s.Events.ZMQ, _ = k.Value.(string)
		case "replay":
			s.Events.Replay, _ = k.Value.(string)
		case "auto":
			s.Events.Auto = true
		}
	}
	return s
}

// all selects every worker.
func all(*worker) bool { return true }

// advise prints what should be enabled at these workers, and for a file what could not be found out.
func (d *drafter) advise(these func(*worker) bool) {
	var do, unknown []string
	d.each(func(m *model, c *class, w *worker) {
		if !these(w) {
			return
		}
		note := func(list *[]string, format string, args ...any) {
			*list = append(*list, "  "+w.Addr+": "+fmt.Sprintf(format, args...))
		}
		if w.behind != nil {
			w.behind.advise(func(format string, args ...any) {
				note(&do, format, args...)
			}, func(format string, args ...any) { note(&unknown, format, args...) })
			return
		}
		r := engine.RulesOf(w.Engine, w.Version)
		flags := r.Flags
		if r.TooOld != "" {
			note(&do, "%s: until then its requests are learned from its events", r.TooOld)
		}
		keys, _ := eventsOf(w)
		for _, f := range w.server(keys, r).Started() {
			note(&do, "%s: %s", f.What, f.Fix)
		}
		if file := w.ChatTemplate; file != "" && c.value("chat_template") == "" && m.dir != "" {
			note(&do, "it has its own chat template, %s: put a copy of that file here and name it as chat_template", file)
		}
		if flags.Blocks != "" && c.value("block_size") == 1 {
			note(&do, "every token is a block, which costs memory and time in the router: %s", flags.Blocks)
		}
		if w.Publishes == nil && !r.EventsOverHTTP {
			where := ""
			if d.fileless {
				where = " in a configuration (--print-config prints one to begin with)"
			}
			note(&do,
				"%s %s does not say where it publishes KV events. If it was started with them, give events: {zmq: \"tcp://%s:PORT\"}%s; else: %s",
				w.Engine, w.Version, w.Host(), where, flags.Events)
		}
		if r.EventsOverHTTP {
			note(&do, "its KV events are drained over HTTP, by this router alone. They need %s", flags.Events)
		}
		if w.CountsCached == nil && flags.Counts != "" {
			note(&unknown, "whether answers report cached tokens (it did not answer two tokens; %s)", flags.Counts)
		}
		for _, u := range w.Unknown {
			note(&unknown, "%s: %s", u.What, u.Why)
		}
	})
	if d.fileless {
		unknown = nil // of what is not known here, nothing is needed
	}
	for _, part := range []struct {
		head string
		list []string
	}{{"To switch on at the workers:", do}, {"Not learnt:", unknown}} {
		if len(part.list) > 0 {
			fmt.Fprintf(d.out, "%s\n%s\n", part.head, strings.Join(part.list, "\n"))
		}
	}
}
