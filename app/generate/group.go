package generate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
)

// model is a model that workers serve, with its classes. The first class supplies the model's own keys.
type model struct {
	name     string
	aliases  []string
	adapters []string
	classes  []*class
	dir      string
	dirFrom  string // where the directory comes from, as text
	revision string
}

// class is a set of workers that were started alike.
type class struct {
	name    string
	keys    []key
	workers []*worker
}

// key is a key of the configuration with a worker's value; from says how the value is known.
type key struct {
	name, from string
	value      any
	or         any // the value in effect if the key is omitted
}

// keysOf returns the keys of engine.Server that a worker reported. All others keep their defaults.
func keysOf(w *worker, name string) []key {
	r := engine.RulesOf(w.Engine, w.Version)
	d := engine.DefaultServer()
	d.Engine = w.Engine
	d.DefaultsOf(func(string) bool { return false })
	list := []key{
		{"engine", "owned_by of /v1/models", w.Engine, engine.DefaultServer().Engine},
		{"engine_version", "what it says", w.Version, ""}, // written even if it is the default, which changes with Sightline's releases
		{"engine_model", "its --model", cmp.Or(w.EngineModel, name), name},
		{"block_size", "what it came to", cmp.Or(w.BlockSize, d.BlockSize), d.BlockSize},
		{"max_model_len", "/v1/models", w.MaxModelLen, 0},
	}
	if r.BlocksByGroup && w.behind == nil {
		list[3].value = d.BlockSize // its events tell
	}
	if w.Version == "" {
		list[1].value = d.EngineVersion // as far as it is known
		list[1].from = "not told: the default"
	}
	speculative, template := w.Speculative, w.ChatTemplate
	if speculative != "EAGLE" && speculative != "EAGLE3" { // others do not change how blocks are keyed
		speculative = ""
	}
	if !r.Dialect.TakesTemplate(template) || r.Dialect.TemplateFile(template, "/") != "" { // it is a file at the worker
		template = ""
	}
	if w.behind != nil {
		list = append(list, key{"block_hash", "Dynamo's events carry its own hashes", "dynamo", ""})
		if w.behind.Cards[0].Eagle {
			speculative = "EAGLE"
		}
	}
	return append(list, key{"speculative_algorithm", "its argument", speculative, ""}, key{"chat_template", "its argument", template, ""})
}

// classKey returns a string that is equal for workers that were started alike; builds of one release count as alike.
func classKey(keys []key) string {
	var b strings.Builder
	for _, k := range keys {
		v := fmt.Sprint(k.value)
		if release, err := rules.ParseVersion(v); k.name == "engine_version" && err == nil {
			v = fmt.Sprint(release)
		}
		fmt.Fprintf(&b, "%s=%q ", k.name, v)
	}
	return b.String()
}

// modelsOf groups workers by the model that they serve, and those of one model by how they were started. The class with the most
// workers supplies the model's own keys.
func modelsOf(workers []*worker) (models []*model, err error) {
	for _, w := range workers {
		m, err := modelOf(&models, w)
		if err != nil {
			return nil, err
		}
		keys := keysOf(w, m.name)
		at := slices.IndexFunc(m.classes, func(c *class) bool { return classKey(c.keys) == classKey(keys) })
		if at < 0 {
			at, m.classes = len(m.classes), append(m.classes, &class{keys: keys})
		}
		m.classes[at].workers = append(m.classes[at].workers, w)
	}
	of := map[*Pods]*class{}
	for _, m := range models {
		for _, c := range m.classes {
			for _, w := range c.workers {
				if other := of[w.group]; w.group != nil && other != nil && other != c {
					return nil, fmt.Errorf("the pods of %s were not all started alike (want a selector for each kind): %s%s",
						w.group.Selector, classKey(other.keys), classKey(c.keys))
				}
				of[w.group] = c
			}
		}
		slices.SortStableFunc(m.classes, func(a, b *class) int { return len(b.workers) - len(a.workers) })
		used := map[string]bool{}
		for i, c := range m.classes[1:] {
			c.name = c.called(m.classes[0])
			if used[c.name] || c.name == "" {
				c.name = fmt.Sprint("class-", i+2)
			}
			used[c.name] = true
		}
	}
	return models, nil
}

// names returns the names of the models that a worker lists, adapters not counted.
func (w *worker) names() (list []string) {
	for _, s := range w.Served {
		if s.Parent == "" {
			list = append(list, s.ID)
		}
	}
	return list
}

// modelOf returns the model that a worker serves under any of its names, and adds it if necessary.
func modelOf(models *[]*model, w *worker) (*model, error) {
	names, adapters := w.names(), []string{}
	for _, s := range w.Served {
		if s.Parent != "" {
			adapters = append(adapters, s.ID)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("worker %s: it lists adapters and no model", w.Addr)
	}
	var m *model
	for _, other := range *models {
		if slices.ContainsFunc(names, func(n string) bool { return n == other.name || slices.Contains(other.aliases, n) }) {
			if m != nil {
				return nil, fmt.Errorf("worker %s: it serves names of two models, %q and %q (want each name on workers of one model)",
					w.Addr, m.name, other.name)
			}
			m = other
		}
	}
	if m == nil {
		m = &model{name: names[0], revision: w.Revision}
		*models = append(*models, m)
	}
	for _, n := range names {
		if n != m.name && !slices.Contains(m.aliases, n) {
			m.aliases = append(m.aliases, n)
		}
	}
	for _, a := range adapters {
		if !slices.Contains(m.adapters, a) {
			m.adapters = append(m.adapters, a)
		}
	}
	return m, nil
}

// called names a class after the first key in which it differs from base; "": no key that makes a name.
func (c *class) called(base *class) string {
	for i, k := range c.keys {
		if base.keys[i].value == k.value {
			continue
		}
		switch k.name {
		case "engine", "speculative_algorithm":
			return strings.ToLower(fmt.Sprint(k.value))
		case "engine_version":
			return fmt.Sprint("v", k.value)
		case "block_size":
			return fmt.Sprint("blocks-of-", k.value)
		case "max_model_len":
			return fmt.Sprint("length-", k.value)
		}
		return ""
	}
	return ""
}
