package config

import (
	"strings"
	"testing"
)

// TestSGLang: SGLang's own defaults apply to omitted keys, and its keys are accepted only for it.
func TestSGLang(t *testing.T) {
	head := "models: [{name: m, dir: d, engine: sglang%s}]\nworkers: [{addr: 10.0.0.5:30000, events: {auto: true}}]\n"
	c, err := Parse([]byte(strings.Replace(head, "%s", "", 1)))
	if err != nil || c.Models[0].BlockSize != 1 || c.Models[0].EngineVersion != "0.5.23" || !c.Workers[0].Events.Auto {
		t.Errorf(`got %v: %+v, want no error, c.Models[0].BlockSize == 1, c.Models[0].EngineVersion == "0.5.23", c.Workers[0].Events.Auto`,
			err, c.Models)
	}
	c, err = Parse([]byte(strings.Replace(head, "%s", ", block_size: 16, engine_version: 0.5.20", 1)))
	if err != nil || c.Models[0].BlockSize != 16 || c.Models[0].EngineVersion != "0.5.20" {
		t.Errorf("got %v: %+v, want no error, [0].BlockSize 16, [0].EngineVersion %q", err, c.Models, "0.5.20")
	}
	for _, c := range [][2]string{
		{strings.Replace(head, "%s", ", processor_fingerprint: x", 1), "models[0].processor_fingerprint"},
		{strings.Replace(head, "%s", ", speculative_algorithm: X", 1), "models[0].speculative_algorithm"},
		{"models: [{name: m, dir: d, engine_version: 0.30.0}]\nworkers: [{addr: 10.0.0.5:30000, events: {auto: true}}]\n",
			"workers[0].events.auto"},
		{"models: [{name: m, dir: d, engine: sglang}]\nworkers: [{addr: 10.0.0.5:30000, events: {auto: true, zmq: tcp://1.2.3.4:5}}]",
			"workers[0].events.auto"},
		{"models: [{name: m, dir: d, speculative_algorithm: EAGLE}]\n", "models[0].speculative_algorithm"},
	} {
		text, path := c[0], c[1]
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want one of %s", text, err, path)
		}
	}
}
