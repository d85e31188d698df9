package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sightline-router/sightline/engine"
)

// schema.json is generated here, from the types, their defaults and the text of docs/configuration.md:
//
//	go test ./app/config -run TestSchema -update
var update = flag.Bool("update", false, "write schema.json")

// enums holds the keys with a fixed set of values, by the path of the key.
var enums = map[string][]any{
	"log_level":    {"debug", "info", "warn", "error"},
	"on_unread":    {"route", "refuse"},
	"workers.role": {"", "both", "prefill", "decode", "encode"}, "kubernetes.workers.role": {"", "both", "prefill", "decode", "encode"},
	"models.engine_order": {"auto", "off"},
	"models.engine":       {"vllm", "sglang", "trtllm"}, "models.chat_template_content_format": {"auto", "string", "openai"},
	"models.mm_hasher_algorithm": {"blake3", "sha256", "sha512"}, "models.tokenizer_mode": {"auto", "hf", "slow",
		"mistral", "deepseek_v32", "deepseek_v4", "deepseek_v41", "inkling", "kimi_k3", "kimi_audio", "cohere",
		"alpamayo2_super", "terratorch"},
}

type object = map[string]any

// reference is the schema of a reference, which any key may have as value.
var reference = object{"type": "string", "pattern": `\$\{(env|file):`}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	// keyLine is the description of keys in docs/configuration.md: - `key`, `key` (default): meaning
	keyLine = regexp.MustCompile("^- ((?:`[a-z_.]+`(?:, )?)+)(?: \\([^)]*\\))?: (.+)$")
)

// said returns the descriptions of the keys, by section ("": top level) and key, and of the sections, from their headings.
func said(t *testing.T) map[string]string {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	out, section := map[string]string{}, ""
	link := regexp.MustCompile(`\[([^]]+)\]\([^)]*\)`)
	put := func(key, meaning string) {
		out[strings.TrimPrefix(section+"."+key, ".")] = strings.NewReplacer("**", "", "`", "").Replace(link.ReplaceAllString(meaning, "$1"))
	}
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			title, meaning, _ := strings.Cut(line, ": ")
			section = ""
			if name := quoted.FindStringSubmatch(title); name != nil {
				if out[name[1]] == "" {
					put(name[1], meaning)
				}
				section = name[1]
			}
		}
		if m := keyLine.FindStringSubmatch(line); m != nil {
			for _, key := range quoted.FindAllStringSubmatch(m[1], -1) {
				put(key[1], m[2])
			}
		}
	}
	return out
}

// meaning returns the page's description of a key: in its own row, in the row of a section with the same keys, or in the row of the
// key that contains it.
func meaning(path, above string, said map[string]string) string {
	shared := strings.NewReplacer("models.classes", "models", "kubernetes.workers", "workers", "dynamo.nats", "nats").Replace(path)
	at := strings.LastIndexByte(path, '.')
	last := path[strings.LastIndexByte(path[:max(0, at)], '.')+1:]
	text := cmp.Or(said[path], said[last], said[shared])
	if text == "" && strings.Contains(above, path[at+1:]) {
		return above
	}
	return text
}

// schemaOf describes a type; path is its key in the file, without indices, above the description of the enclosing key.
func schemaOf(v reflect.Value, path, above string, said map[string]string) object {
	var s object
	text := meaning(path, above, said)
	switch v.Interface().(type) {
	case time.Duration:
		s = object{"anyOf": []any{object{"type": "string"}, object{"const": 0}}, "default": v.Interface().(time.Duration).String()}
	case Size:
		s = object{"anyOf": []any{object{"type": "integer", "minimum": 0}, object{"type": "string"}}, "default": v.Interface().(Size).String()}
	case Percent:
		s = object{"type": "string", "default": "100%"}
	case engine.Kwargs:
		s = object{"type": "object"}
	default:
		switch v.Kind() {
		case reflect.Struct:
			properties := object{}
			fields(v, path, text, properties, said)
			s = object{"type": []any{"object", "null"}, "additionalProperties": false, "properties": properties}
		case reflect.Slice:
			s = object{"type": []any{"array", "null"}, "items": schemaOf(element(v.Type()), path, above, said)}
		case reflect.Map:
			s = object{"type": []any{"object", "null"}, "additionalProperties": schemaOf(element(v.Type()), path, above, said)}
		case reflect.Pointer:
			s = schemaOf(reflect.New(v.Type().Elem()).Elem(), path, above, said)
		case reflect.Interface:
			s = object{}
		case reflect.String:
			s = object{"type": []any{"string", "number", "boolean"}}
		case reflect.Bool:
			s = object{"anyOf": []any{object{"type": "boolean"}, reference}}
		case reflect.Float64:
			s = object{"anyOf": []any{object{"type": "number"}, reference}}
		default:
			s = object{"anyOf": []any{object{"type": "integer"}, reference}}
		}
		if v.CanInterface() && v.Kind() <= reflect.Float64 && v.Kind() != reflect.Invalid || v.Kind() == reflect.String {
			if !v.IsZero() {
				s["default"] = v.Interface()
			}
		}
	}
	if values := enums[strings.Replace(path, "models.classes.", "models.", 1)]; values != nil {
		delete(s, "type")
		s["anyOf"] = []any{object{"enum": values}, reference}
	}
	if text != "" {
		s["description"] = text
	}
	return s
}

// element returns an element of a list or map, with its defaults.
func element(of reflect.Type) reflect.Value {
	v := reflect.New(of.Elem()).Elem()
	switch m := v.Addr().Interface().(type) {
	case *Model:
		m.Server, m.EngineOrder = engine.DefaultServer(), "auto"
	case *Class:
		m.Server = engine.DefaultServer()
	}
	return v
}

func fields(v reflect.Value, path, above string, into object, said map[string]string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			fields(v.Field(i), path, above, into, said)
		case tag != "" && tag != "-":
			into[tag] = schemaOf(v.Field(i), strings.TrimPrefix(path+"."+tag, "."), above, said)
		}
	}
}

// untold lists the keys below a part of the schema that have no description.
func untold(v any, path string) (list []string) {
	part, ok := v.(object)
	if !ok {
		return nil
	}
	properties, _ := part["properties"].(object)
	for key, of := range properties {
		at := strings.TrimPrefix(path+"."+key, ".")
		if of.(object)["description"] == nil {
			list = append(list, at)
		}
		list = append(list, untold(of, at)...)
	}
	return append(append(list, untold(part["items"], path)...), untold(part["additionalProperties"], path)...)
}

// TestSchema: the committed schema matches the types, describes each key, and accepts and refuses the same as the reader.
func TestSchema(t *testing.T) {
	s := schemaOf(reflect.ValueOf(Default()), "", "", said(t))
	s["$schema"], s["title"], s["type"] = "https://json-schema.org/draft/2020-12/schema", "Sightline's configuration", "object"
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(s); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.json", text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(text.Bytes(), []byte(Schema)) {
		t.Error("schema.json is not what the types and docs/configuration.md say: go test ./app/config -run TestSchema -update, " +
			"want bytes.Equal(text.Bytes(), []byte(Schema))")
	}
	for _, key := range untold(s, "") {
		t.Errorf("%s: got no meaning in docs/configuration.md, want one", key)
	}
	doc, err := jsonschema.UnmarshalJSON(&text)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		v, err = jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return compiled.Validate(v)
	}
	var files []string
	for _, pattern := range []string{"../../examples/*/sightline.yaml", "../../examples/kubernetes/*/sightline.yaml"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	if len(files) < 6 {
		t.Errorf("only %q, want at least 6 of them", files)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(string(text)); err != nil {
			t.Errorf("%s: got %v, want no error", f, err)
		}
	}
	all, err := Default().YAML() // as --print-config prints it
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{string(all), "drain: 0", "body_limit: 1048576", "max_in_flight: ${env:MOST}",
		"admin_token: ${file:/t}",
		"models: [{name: m, dir: d, mm_processor_kwargs: {a: 1}, classes: [{name: c, block_size: 32}]}]", "log_level: ${env:LEVEL}"} {
		if err := check(good); err != nil {
			t.Errorf("%.60s: %v, want no error", good, err)
		}
	}
	for _, bad := range []string{"listn: a", "workers: {}", "workers: [{adr: a}]", "log_level: loud", "max_in_flight: many",
		"models: [{name: m, engine: gpt}]",
		"models: [{name: m, classes: [{nme: c}]}]", "dynamo: {component: []}", "pass_cache_hints: 3", "envoy: {pools: [{modell: m}]}"} {
		if check(bad) == nil {
			t.Errorf("%s is taken, want check(bad) != nil", bad)
		}
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s is read: got %v, want an error", bad, err)
		}
	}
}
