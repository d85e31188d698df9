package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReferences: values of ${env:…} and ${file:…} get the type of their key, and are not printed.
func TestReferences(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("user", "sekret user: {x} # \"\n\n")
	put("most", "7\r\n")
	put("sightline.yaml", `
log_level: ${env:CONF_LEVEL}
max_in_flight: ${file:most}
pass_cache_hints: ${env:CONF_HINTS}
drain: ${env:CONF_TIME}
body_limit: "${env:CONF_SIZE}MiB"
nats: {url: "nats://${env:CONF_HOST}:4222", auth: "${file:user}"}
media: {domains: [&d "${env:CONF_HOST}.example", *d]}
models:
- name: &name ${env:CONF_DIGITS}
  dir: "${env:CONF_HOST}/m"
  engine: trtllm
  chat_template: "$${x}{{ a }}"
  mm_processor_kwargs:
    max_pixels: ${file:most}
workers:
- {addr: "10.0.0.5:8000", model: *name}
- {addr: "${env:CONF_IP}:8001", model: *name}
`)
	for name, value := range map[string]string{"LEVEL": "warn", "HINTS": "true", "TIME": "90s", "SIZE": "2", "HOST": "h",
		"DIGITS": "0123", "IP": "10.9.8.7"} {
		t.Setenv("CONF_"+name, value)
	}
	c, err := Load(filepath.Join(dir, "sightline.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m := &c.Models[0]
	if c.LogLevel != "warn" || c.MaxInFlight != 7 || !c.PassCacheHints || c.Drain != 90*time.Second || c.BodyLimit != 2<<20 ||
		c.NATS.URL != "nats://h:4222" || c.NATS.Auth != "sekret user: {x} # \"\n" || c.Media.Domains[1] != "h.example" ||
		m.Name != "0123" || m.Dir != filepath.Join(dir, "h/m") ||
		m.ChatTemplate != "${x}{{ a }}" || m.ProcessorKwargs != `{"max_pixels": 7}` || c.Workers[1].Addr != "10.9.8.7:8001" {
		t.Errorf("got %+v, want what the references name", c)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"sekret", "10.9.8.7", "0123", "nats://h:"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q is printed:\n%s, want it not in string(text)", secret, text)
		}
	}
	again, err := parse(text, dir)
	if err != nil {
		t.Fatalf("%v\n%s, want no error", err, text)
	}
	if second, _ := again.YAML(); string(second) != string(text) || again.Models[0].ProcessorKwargs != m.ProcessorKwargs ||
		again.MaxInFlight != 7 || !again.PassCacheHints {
		t.Errorf("what is printed reads as something else:\n%s\n%s, want string(second) == string(text), "+
			"again.Models[0].ProcessorKwargs == %v, again.MaxInFlight == 7, again.PassCacheHints", text, second, m.ProcessorKwargs)
	}
	if files := c.Files(); len(files) != 4 || !slices.Contains(files, filepath.Join(dir, "sightline.yaml")) ||
		!slices.Contains(files, filepath.Join(dir, "user")) {
		t.Errorf("files %q, want 4 of them, %q in it, %q in it", files, filepath.Join(dir, "sightline.yaml"), filepath.Join(dir, "user"))
	}
}

// TestReferenceMistakes: every reference that cannot be resolved is reported by its key, and no error shows a referenced value.
func TestReferenceMistakes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"large": strings.Repeat("x", maxReferenced+1), "binary": "\xff\xfe"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CONF_SECRET", "hunter2!")
	t.Setenv("CONF_ONE", "1")
	for text, want := range map[string]string{
		"listen: ${env:CONF_GONE}":                        "listen: ${env:CONF_GONE}: there is no such environment variable",
		"workers: [{name: \"${file:gone}\"}]":             "workers[0].name: ${file:gone}: open ",
		"media: {domains: [a, \"${vault:x}\"]}":           "media.domains[1]: ${vault:x} is not a reference (want ${env:NAME}",
		"admin: ${env:}":                                  "admin: ${env:} is not a reference",
		"admin: ${env:CONF_GONE}\nlisten: a${b":           "listen: ${ without a }",
		"admin: ${env:CONF_GONE}\nlog_level: ${file:no}":  "admin: ${env:CONF_GONE}",
		"admin: ${file:large}":                            "admin: ${file:large}: the file is too large (want 64KiB at most)",
		"admin: ${file:binary}":                           "admin: ${file:binary}: the file holds no text",
		"log_level: ${env:CONF_SECRET}":                   `log_level: "${env:CONF_SECRET}" is not known`,
		"max_in_flight: ${env:CONF_SECRET}":               "max_in_flight: ${env:CONF_SECRET} is not a valid value (want a whole number)",
		"body_limit: ${env:CONF_SECRET}":                  `body_limit: "${env:CONF_SECRET}" is not a size`,
		"nats: {url: \"nats://u:${env:CONF_SECRET}@h\"}":  "nats.url: it holds a user or a secret",
		"envoy: {worker_networks: [\"${env:CONF_ONE}\"]}": `envoy.worker_networks[0]: `,
		"pass_cache_hints: ${env:CONF_ONE}":               "pass_cache_hints: ${env:CONF_ONE} is not a valid value",
		"workers: [{addr: \"${env:CONF_SECRET}\"}]":       `workers[0].addr: "${env:CONF_SECRET}" is not what Envoy can dial`,
	} {
		_, err := parse([]byte(text), dir)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q\n got %v\nwant %s", text, err, want)
		}
	}
}
