package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/sightline-router/sightline/internal/config"
)

// The committed envoy.yaml of an example is what its configuration prints.
func TestExampleEnvoy(t *testing.T) {
	const dir = "../../examples/compose/"
	cfg, err := config.Load(dir + "sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := envoyYAML(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "envoy.yaml"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v: envoy.yaml is not what `sightline envoy` prints (make generated writes it)", err)
	}
}
