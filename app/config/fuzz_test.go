package config

import (
	"os"
	"strings"
	"testing"
)

// FuzzParse: no text makes the reader of configurations panic, and reading the same text twice gives the same result. References to
// files and variables are excluded, because they would read this machine's.
func FuzzParse(f *testing.F) {
	for _, file := range []string{"../../examples/standalone-zmq/sightline.yaml", "../../examples/compose/sightline.yaml",
		"../serve/testdata/rc1/sightline.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{"", "models: [{name: m, dir: d}]", "models: [{name: m, classes: [null, {name: c, block_size: 32}]}]",
		"a: &a [*a, *a]", "workers: [{name: a, addr: '1.2.3.4:5'}]",
		"body_limit: 99999999999999999999GiB", "listen: [", "media: { allow: ['10.0.0.0/99'] }",
		"models:\n- name: m\n  mm_processor_kwargs: {b: 1, a: [2, {c: null}]}", "nats: {url: 'nats://u:p@h:4222'}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.Contains(string(text), "${") {
			return
		}
		one, err := Parse(text)
		two, again := Parse(text)
		if (err == nil) != (again == nil) || len(one.Models) != len(two.Models) {
			t.Fatalf("%v, and then %v, want (err == nil) == (again == nil), len(one.Models) == len(two.Models)", err, again)
		}
	})
}
