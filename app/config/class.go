package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/sightline-router/sightline/engine"
)

// Class is a set of a model's workers that were started differently: another block size, another release during a rolling upgrade,
// other flags, another engine. It inherits the model's keys and overrides those that it sets.
//
//	models:
//	- name: qwen2.5-vl
//	  engine_version: 0.32.0
//	  classes:
//	  - {name: old, engine_version: 0.30.0}
//	  - {name: big-blocks, block_size: 32}
//	workers:
//	- {addr: 10.0.0.5:8000}
//	- {addr: 10.0.0.6:8000, class: old}
type Class struct {
	Name          string `yaml:"name"` // as worker entries refer to it
	Dir           string `yaml:"dir"`
	engine.Server `yaml:",inline"`
	OffloadUnit   int `yaml:"offload_unit"`
}

// Class returns a class of the model; "" is the one of the model's own keys.
func (m *Model) Class(name string) (Class, bool) {
	if name == "" {
		return m.own(), true
	}
	for _, c := range m.Classes {
		if c.Name == name {
			return c, true
		}
	}
	return Class{}, false
}

// own returns the class of workers that name none.
func (m *Model) own() Class {
	return Class{Dir: m.Dir, Server: m.Server, OffloadUnit: m.OffloadUnit}
}

// ClassOf returns a worker's class.
func (c *Config) ClassOf(w *Worker) (Class, bool) {
	for i := range c.Models {
		if c.Models[i].Name == w.Model {
			return c.Models[i].Class(w.Class)
		}
	}
	return Class{}, false
}

func (m *Model) checkClasses(path string, bad report) {
	checkOffload(m.own(), path, bad)
	names := map[string]int{}
	for i := range m.Classes {
		c := &m.Classes[i]
		at := fmt.Sprintf("%s.classes[%d]", path, i)
		if c.Name == "" {
			bad(at+".name", "missing")
		}
		if j, twice := names[c.Name]; twice {
			bad(at+".name", "%q is also the name of classes[%d]", c.Name, j)
		}
		names[c.Name] = i
		c.EngineModel = cmp.Or(c.EngineModel, m.EngineModel)
		checkServer(&c.Server, &m.Server, at, bad)
		checkOffload(*c, at, bad)
	}
}

func checkOffload(c Class, path string, bad report) {
	inRange(bad, path+".offload_unit", c.OffloadUnit, 0, 1<<20)
}

// checkServer reports invalid values by the path of their key. It ignores errors that a class inherits from its model.
func checkServer(s, model *engine.Server, path string, bad report) {
	if err := s.Check(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			key, what, _ := strings.Cut(line, ":")
			bad(path+"."+key, "%s", strings.TrimSpace(what))
		}
	}
	for _, key := range s.VLLMOnlyKeys(model) {
		bad(path+"."+key, "only vLLM has it (want engine: vllm, or leave it out)")
	}
}
