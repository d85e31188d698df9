package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const classes = `
models:
- name: m
  dir: models/m
  engine_version: 0.32.0
  mm_processor_kwargs: {max_pixels: 50176}
  offload_unit: 256
  classes:
  - {name: old, engine_version: 0.30.0, offload_unit: 128}
  - {name: wide, block_size: 32, chat_template: t.jinja, engine_model: org/m}
workers:
- addr: 10.0.0.5:8000
- {addr: 10.0.0.6:8000, class: wide}
`

// TestClasses: a class has the model's keys, overridden by its own.
func TestClasses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sightline.yaml")
	if err := os.WriteFile(path, []byte(classes), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := c.ClassOf(&c.Workers[0])
	if own.BlockSize != 16 || own.EngineVersion != "0.32.0" || own.Dir != c.Models[0].Dir ||
		own.OffloadUnit != 256 {
		t.Errorf(`default class: %+v, want own.BlockSize == 16, own.EngineVersion == "0.32.0", own.Dir == c.Models[0].Dir, `+
			`own.OffloadUnit == 256`, own)
	}
	wide, _ := c.ClassOf(&c.Workers[1])
	if wide.BlockSize != 32 || wide.EngineVersion != "0.32.0" || wide.EngineModel != "org/m" || wide.ProcessorKwargs != own.ProcessorKwargs ||
		wide.Dir != own.Dir || wide.ChatTemplate != filepath.Join(filepath.Dir(path), "t.jinja") {
		t.Errorf(`wide: %+v, want wide.BlockSize == 32, wide.EngineVersion == "0.32.0", wide.EngineModel == "org/m", `+
			`wide.ProcessorKwargs == %v, wide.Dir == %v, wide.ChatTemplate == filepath.Join(filepath.Dir(path), "t.jinja")`,
			wide, own.ProcessorKwargs, own.Dir)
	}
	if old, _ := c.Models[0].Class("old"); old.EngineVersion != "0.30.0" || old.BlockSize != 16 || old.EngineModel != "m" ||
		old.OffloadUnit != 128 {
		t.Errorf("old: got %+v, want EngineVersion %q, BlockSize 16, EngineModel %q, OffloadUnit 128", old, "0.30.0", "m")
	}
	readsBack(t, c)
}

func TestClassMistakes(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"offload_unit: 128", "offload_rate: 80000", "models[0].classes[0].offload_rate: no longer a key"},
		{"offload_unit: 256", "offload_unit: -1", "models[0].offload_unit: -1 is out of range"},
		{"offload_unit: 256", "prefill_rate: 9000", "models[0].prefill_rate: no longer a key: the rate is learned"},
		{"engine_version: 0.30.0,", "engine_version: new,", `models[0].classes[0].engine_version: "new" is not a release number`},
		{"block_size: 32", "blok_size: 32", "models[0].classes[1].blok_size: unknown key (did you mean block_size?)"},
		{"block_size: 32", "block_size: many", "models[0].classes[1].block_size: "},
		{"name: wide", "name: old", `models[0].classes[1].name: "old" is also the name of classes[0]`},
		{"name: old, ", "", "models[0].classes[0].name: missing"},
		{"block_size: 32", "client_uuid: trust", "models[0].classes[1].client_uuid: no longer a key: "},
		{"class: wide", "class: wider", `workers[1].class: "wider" is not a class of the model "m"`},
	} {
		mistake(t, strings.Replace(classes, c.from, c.to, 1), c.want)
	}
}
