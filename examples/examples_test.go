// Package examples holds what people run first; its tests keep the pages and files true.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/app/config"
)

// theirs is every flag, variable and page of the examples that ours replace.
var theirs = map[string]string{
	"dynamo-trtllm-mm-router": "MODEL MODEL_TYPE NUM_WORKERS BLOCK_SIZE GPU_ID NAMESPACE COMPONENT ENDPOINT " +
		"--downstream-component --downstream-endpoint API_PORT DYNAMO_HOME /health /v1/models",
	"standalone-zmq": "--model --model-type --num-workers --block-size --base-kv-events-port --base-metrics-port " +
		"--router-port --http-port LOGLEVEL DYNAMO_DEBUG ping.sh",
	"vllm-mm-routing":   "MODEL NUM_WORKERS BLOCK_SIZE DYNAMO_MM_TRANSFER DYNAMO_DISABLE_NIXL_MM",
	"trtllm-multimodal": "--allowed-local-media-path --max-file-size-mb --modality --publish-events-and-metrics",
}

var row = regexp.MustCompile("^\\| `([^`]+)` \\| (.+) \\|$")

// Each of theirs has a key of ours, or a reason why it needs none.
func TestMigrating(t *testing.T) {
	keys, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	known := func(name string) bool { // models[].block_size and media.allow end in documented keys
		last := name[strings.LastIndexByte(name, '.')+1:]
		return strings.Contains(string(keys), "`"+last+"`") || strings.Contains(string(keys), "`"+name+"`") ||
			strings.Contains(string(keys), "`"+name+"` (")
	}
	for example, list := range theirs {
		page, err := os.ReadFile(example + "/README.md")
		if err != nil {
			t.Fatal(err)
		}
		_, section, ok := strings.Cut(string(page), "## Every flag and variable of the original\n")
		if !ok {
			t.Errorf("%s/README.md has no table of flags", example)
			continue
		}
		said := map[string]string{}
		for line := range strings.Lines(section) {
			if m := row.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				said[m[1]] = m[2]
			}
		}
		for _, flag := range strings.Fields(list) {
			if said[flag] == "" {
				t.Errorf("%s: nothing is said of %s; got %q, want some", example, flag, said[flag])
			}
		}
		for flag, here := range said {
			if strings.HasPrefix(here, "no meaning, because ") || strings.HasPrefix(flag, "/") || flag == "ping.sh" ||
				strings.HasPrefix(here, "the worker's own") {
				continue
			}
			m := regexp.MustCompile("`([a-z_.\\[\\]]+)`").FindStringSubmatch(here)
			if m == nil || !known(m[1]) {
				t.Errorf("%s: %s: %q names no key of docs/configuration.md, want m != nil, known(m[1])", example, flag, here)
			}
		}
	}
}

// The units run commands that exist, as nobody in particular, with nothing writable but their own folder, and end where systemd
// would not take them.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "sightline")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var units []string
	for name, command := range map[string]string{"sightline.service": "serve --config /etc/sightline/sightline.yaml",
		"sightline-agent@.service": "agent --worker %i $FLAGS"} {
		text, err := os.ReadFile(filepath.Join("systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"ExecStart=/usr/local/bin/sightline " + command, "DynamicUser=yes", "ProtectSystem=strict",
			"NoNewPrivileges=yes", "CapabilityBoundingSet=",
			"Environment=GOMEMLIMIT=", "MemoryMax=", "Restart=always", "WantedBy=multi-user.target"} {
			if !strings.Contains(string(text), "\n"+want) {
				t.Errorf("%s has no %s", name, want)
			}
		}
		unit := filepath.Join(dir, name)
		if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/sightline", binary)), 0o644); err != nil {
			t.Fatal(err)
		}
		units = append(units, unit)
	}
	if tool, err := exec.LookPath("systemd-analyze"); err == nil {
		if out, err := exec.Command(tool, append([]string{"verify", "--man=no"}, units...)...).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze: %v\n%s", err, out)
		}
	}
}

// Every configuration of an example is a good one.
func TestConfigurations(t *testing.T) {
	files, err := filepath.Glob("*/sightline.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("got %v: %v, want no error, at least 5 of them", err, files)
	}
	for _, f := range files {
		if _, err := config.Load(f); err != nil {
			t.Error(err)
		}
	}
	for example := range theirs {
		for _, f := range []string{"README.md", "run.sh", "sightline.yaml"} {
			if _, err := os.Stat(filepath.Join(example, f)); err != nil {
				t.Error(err)
			}
		}
	}
}
