package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/document"
)

const small = `
models:
- name: m
  dir: models/m
  block_size: 32
workers:
- addr: 10.0.0.5:8000
  events: {zmq: "tcp://10.0.0.5:5557"}
`

// mistake checks that a configuration is refused with this error.
func mistake(t *testing.T, text, want string) {
	t.Helper()
	if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%q\n got %v\nwant %s", text, err, want)
	}
}

// readsBack checks that --print-config prints an equivalent configuration.
func readsBack(t *testing.T, c Config) {
	t.Helper()
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text)
	if err != nil {
		t.Fatalf("what --print-config shows cannot be read back: %v\n%s, want no error", err, text)
	}
	if second, _ := again.YAML(); string(second) != string(text) {
		t.Errorf("not the same twice:\n%s\n%s, want string(second) == string(text)", text, second)
	}
}

func TestDefaultsAndFile(t *testing.T) {
	c, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	m, w := c.Models[0], c.Workers[0]
	if m.BlockSize != 32 || m.Engine != "vllm" || m.EngineModel != "m" || c.BodyLimit != 64<<20 {
		t.Errorf(`%+v, want m.BlockSize == 32, m.Engine == "vllm", m.EngineModel == "m", c.BodyLimit == 64<<20`, c)
	}
	if w.Name != "10.0.0.5:8000" || w.Model != "m" {
		t.Errorf(`%+v, want w.Name == "10.0.0.5:8000", w.Model == "m"`, w)
	}
	readsBack(t, c)
	path := filepath.Join(t.TempDir(), "sightline.yaml")
	if err := os.WriteFile(path, []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err = Load(path)
	if err != nil || c.Models[0].Dir != filepath.Join(filepath.Dir(path), "models/m") {
		t.Errorf(`%v %q, want no error, c.Models[0].Dir == filepath.Join(filepath.Dir(path), "models/m")`, err, c.Models[0].Dir)
	}
}

// TestPlainZero: a plain 0 is 0s if a key accepts that; another number without a unit is not a time.
func TestPlainZero(t *testing.T) {
	c, err := Parse([]byte("hold: 0\ndrain: \"0\"\nmedia: {budget: ~}\nenvoy: {message_timeout: \"1s\"}\n"))
	if err != nil || c.Hold+c.Drain != 0 || c.Media.Budget != 150*time.Millisecond || c.Envoy.MessageTimeout != time.Second {
		t.Errorf("%v %+v, want no error, c.Hold+c.Drain == 0, c.Media.Budget == 150*time.Millisecond, c.Envoy.MessageTimeout == "+
			"time.Second", err, c)
	}
	mistake(t, "media: {budget: 0}", "media.budget: 0s is out of range (want 1ms to 1m0s)")
	for _, wrong := range []string{"5", "0.5", "-3", "true", "[0s]"} {
		mistake(t, "drain: "+wrong, "(want a time such as 20s)")
	}
}

// TestMistakes: every mistake prevents the start and is reported with the path of its key.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"lisen: x", "lisen: unknown key (did you mean listen?)"},
		{"block_size: 16", "block_size: unknown key here (it belongs at models[].block_size or models[].classes[].block_size)"},
		{small + "  zmq: tcp://10.0.0.5:5557", "zmq: unknown key here (it belongs at "},
		{"modles: []", "modles: unknown key (did you mean models?)"},
		{"lisen: x\nworkers:\n- {adr: 1}\n- {addr: [1]}\nevents: {}",
			"events: unknown key here (it belongs at kubernetes.workers[].events or " +
				"workers[].events)\nlisen: unknown key (did you mean listen?)\nworkers[0].adr: unknown key (did you mean addr?)\nworkers[1].addr: "},
		{"tenants: {required: true}", "tenants.required: true, but no header"},
		{"kubernetes: {deletion_cost: true}", "kubernetes.deletion_cost: true, but no pool is named (want kubernetes.pool"},
		{"tenants: {header: Authorization}", "tenants.header: \"Authorization\" is not the name"},
		{"tenants: {header: x-tenant}\nmodels: [{name: m, dir: d, engine: sglang}]", "tenants.header: models[0] is sglang"},
		{"tenants: {header: x-tenant}\nmodels: [{name: m, dir: d, classes: [{name: old, engine_version: 0.16.0}]}]",
			"models[0].classes[0] is vllm 0.16.0"},
		{"tenants: {header: X-Tenant-Id}",
			`tenants.header: "X-Tenant-Id" is removed from requests by Envoy before anything reads it, because it steers Dynamo`},
		{"max_in_flight: 1\nfair_share: {header: x-session-token}", `fair_share.header: "x-session-token" is removed from requests by Envoy`},
		{"max_in_flight: 1\nfair_share: {header: x-tenant, priority: x-vllm-priority}", `fair_share.priority: "x-vllm-priority" is removed`},
		{"models: [{name: m, dir: d}]\nenvoy: {pools: [{model: m, header: x-envoy-model=m}]}",
			`envoy.pools[0].header: "x-envoy-model" is removed`},
		{"models:\n- name: m\n  blocksize: 3", "models[0].blocksize: unknown key (did you mean block_size?)"},
		{"workers:\n- addr: 1.2.3.4:5\n  events: {zqm: x}", "workers[0].events.zqm: unknown key (did you mean zmq?)"},
		{"models:\n- name: m\n  block_size: many", "models[0].block_size: "},
		{"models:\n- name: m\n  block_size: 0", "models[0].block_size: 0 is out of range"},
		{"models:\n- name: m\n  engine: vlm", `models[0].engine: "vlm" is not known (want vllm, sglang, trtllm)`},
		{"models:\n- name: m\n  engine_version: new", `models[0].engine_version: "new" is not a release number`},
		{"models:\n- name: m\n  engine_version: 3.2.0", `models[0].engine_version: "3.2.0" is no release of vllm (want one such as 0.32.0)`},
		{"models:\n- name: m\n  engine_version: 0.320.0", `"0.320.0" is no release of vllm`},
		{"models:\n- name: m\n  engine: sglang\n  engine_version: 5.23.0", `"5.23.0" is no release of sglang (want one such as 0.5.23)`},
		{"models:\n- name: m\n- name: m", `models[1]: the name "m" is also one of models[0]`},
		{"models:\n- dir: x", "models[0].name: missing"},
		{small + "- addr: 10.0.0.5", `workers[1].addr: "10.0.0.5" is not what Envoy can dial (want ip:port`},
		{small + "- addr: 10.0.0.5:8000", `workers[1].addr: "10.0.0.5:8000" is also the address of workers[0]`},
		{small + "- {addr: 10.0.0.6:8000, model: x}", `workers[1].model: "x" is not the name of a model`},
		{small + "- {addr: 10.0.0.6:8000, events: {zmq: \"10.0.0.6:5557\"}}", "workers[1].events.zmq:"},
		{small + "- {addr: 10.0.0.6:8000, events: {nats: true}}", "workers[1].events.nats: true, but"},
		{"media: {allow: [10.0.0.0]}", "media.allow[0]:"},
		{small + "- {addr: 10.0.0.6:8000, events: {zmq: \"tcp://10.0.0.6:5557\", load: \"tcp://10.0.0.6:5657\"}}",
			"workers[1].events.load: given with ranks, or for another engine than trtllm"},
		{small + "- {addr: 10.0.0.6:8000, events: {bind: true}}", "workers[1].events.bind: given without zmq"},
		{"index: {max_bytes: 33GiB}", "index.max_bytes: "},
		{"body_limit: lots", "is not a size"},
		{"log_level: loud", "log_level:"},
		{"admin_token: 0123456789", "admin_token: 10 bytes, not shown here"},
		{"admin_token: \"0123456789 abcdefgh\"", "admin_token: 19 bytes"},
		{"enforce: 10", `enforce: "10" is not a share (want one such as 10%, 0% to 100%)`},
		{"enforce: 101%", `enforce: "101%" is not a share`},
		{"enforce: 99.5%\ndynamo: {discovery: /d}", "enforce: 99.5%, but with dynamo every request must be steered"},
		{"nats: {url: a, listen: b}", "nats: url and listen are both given"},
		{"envoy: {worker_networks: [10.0.0.0/8]}", "envoy.worker_networks[0]:"},
		{"tls: {cert: c.pem}", "tls: cert and key must both be given"},
		{"tls: {client_ca: c.pem}", "tls: cert and key must both be given"},
		{"a: [", ""},
		{"media: {budget: soon}", "media.budget: soon is not a valid value (want a time such as 20s)"},
		{"listen: 127.0.0.1:1\n---\nbody_limit: 1MiB", "[3:1] a second YAML document"},
		{"%YAML 1.2\n---\nlisen: x", "lisen: unknown key (did you mean listen?)"},
		{"\ufefflisen: x", "lisen: unknown key (did you mean listen?)"},
		{"l\x00i\x00s\x00t\x00", "the file: not text in UTF-8"},
		{"listen: \xff", "the file: not text in UTF-8"},
		{strings.Repeat("secret ", 20), "the file: secret secret secret secret secret secre is not a valid value"},
		{"3", "the file: 3 is not a valid value (want keys and values)"},
		{"pass_cache_hints: 3", "pass_cache_hints: 3 is not a valid value (want true or false)"},
		{"models: 3", "models: 3 is not a valid value (want a list)"},
		{small + "- 10.0.0.6:8000", "workers[1]: 10.0.0.6:8000 is not a valid value (want keys and values)"},
	} {
		mistake(t, c.yaml, c.want)
	}
}

// TestNulls: a null in place of a section or an element is an error of its own, or is ignored.
func TestNulls(t *testing.T) {
	for _, text := range []string{"models: [~]", "models: [{name: m, dir: d, classes: [~]}]", "workers: [~]",
		"models: [{name: m, dir: d}]\nworkers: [~]",
		"kubernetes: {workers: [~]}", "envoy: {pools: [~]}", "dynamo: {frontends: [~]}", "media: {allow: [~]}"} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error, want an error", text)
		}
	}
	for _, text := range []string{"", "~", "models: ~\nworkers: ~", "media: ~\nenvoy: {worker_tls: ~}",
		"models: [{name: m, dir: d, classes: ~, block_size: ~}]"} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v, want no error", text, err)
		}
	}
}

func TestSet(t *testing.T) {
	c, _ := Parse([]byte(small))
	m := c.Models[0]
	for _, s := range []string{`mm-processor-kwargs={"max_pixels": 50176}`, "block_size=64",
		"chat-template-content-format=string", "max-model-len=9"} {
		if err := m.Set(s); err != nil {
			t.Fatal(s, err)
		}
	}
	if m.BlockSize != 64 || m.ContentFormat != "string" || m.MaxModelLen != 9 || m.ProcessorKwargs != `{"max_pixels": 50176}` ||
		m.Engine != "vllm" {
		t.Errorf("%+v, want m.BlockSize == 64, m.ContentFormat == \"string\", m.MaxModelLen == 9, m.ProcessorKwargs == "+
			"`{\"max_pixels\": 50176}`, m.Engine == \"vllm\"", m)
	}
	if err := m.Set("blok_size=3"); err == nil || !strings.Contains(err.Error(), "blok_size: unknown key") {
		t.Error(err)
	}
}

// TestDocumented: the users' page documents every key, and its lists contain no others.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	var walk func(t reflect.Type, path string)
	walk = func(rt reflect.Type, path string) {
		for rt.Kind() == reflect.Slice {
			rt = rt.Elem()
		}
		if rt.Kind() != reflect.Struct {
			keys[path] = true
			return
		}
		for k, ft := range fieldsOf(rt) {
			if path == "events" {
				k = "events." + k
			}
			keys[k] = true
			walk(ft, k)
		}
	}
	walk(reflect.TypeFor[Config](), "")
	named, code, lines := map[string]bool{}, false, 0
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		list := ""
		if m := keyLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			list = m[1]
			lines++
		} else if strings.HasPrefix(line, "- ") && !code {
			t.Errorf(`docs/configuration.md: this is no list of keys, a default and a meaning: %s, want !strings.HasPrefix(line, `+
				`"- ") or code`, line)
		}
		for _, m := range quoted.FindAllStringSubmatch(list, -1) {
			named[m[1]] = true
			if !keys[m[1]] {
				t.Errorf("docs/configuration.md names %s, which is no key, want keys[m[1]]", m[1])
			}
		}
		if title, _, _ := strings.Cut(line, ": "); strings.HasPrefix(line, "#") {
			for _, m := range quoted.FindAllStringSubmatch(title, -1) {
				named[m[1][strings.LastIndexByte(m[1], '.')+1:]] = true
			}
		}
	}
	const most = 120 // an operator should meet 120 at most: a new key takes another's place
	t.Logf("%d lines of keys", lines)
	if lines > most {
		t.Errorf("docs/configuration.md: got %d lines of keys, want %d at most", lines, most)
	}
	for k := range keys {
		if !named[k] && !strings.Contains(string(page), "`"+k+"`") {
			t.Errorf("docs/configuration.md does not name %s, want named[k] or \"`\"+k+\"`\" in string(page)", k)
		}
	}
}

// TestReadmeExample: the README's example is a valid configuration.
func TestReadmeExample(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```yaml\n")
	example, _, end := strings.Cut(rest, "```")
	if !ok || !end {
		t.Fatal("README.md has no YAML example, want ok, end")
	}
	var lines []string
	for _, l := range strings.Split(example, "\n") {
		lines = append(lines, strings.TrimPrefix(l, "   "))
	}
	c, err := Parse([]byte(strings.Join(lines, "\n")))
	if err != nil || len(c.Workers) != 2 || len(c.Models) != 1 {
		t.Errorf("%v: %d workers, %d models, want no error, len(c.Workers) == 2, len(c.Models) == 1", err, len(c.Workers), len(c.Models))
	}
}

// TestTooDeep: what is nested deeper than a configuration can be is refused before the reader takes its time, whatever it is nested by.
func TestTooDeep(t *testing.T) {
	for _, text := range []string{strings.Repeat("[", 400_000), strings.Repeat("{a: ", 100_000), strings.Repeat("- ", 200_000),
		"models: " + strings.Repeat("[", 200) + strings.Repeat("]", 200)} {
		var v map[string]any
		if err := decode([]byte(text), &v, nil); !errors.Is(err, document.ErrSize) {
			t.Errorf("%.20s: got %v, want %v", text, err, document.ErrSize)
		}
	}
}
