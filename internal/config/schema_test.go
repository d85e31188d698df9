package config

import (
	"bytes"
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

// schema.json is made here, of the types, their defaults and the words of docs/configuration.md:
//
//	go test ./internal/config -run TestSchema -update
var update = flag.Bool("update", false, "write schema.json")

// enums are the keys of few values, by the path of the key.
var enums = map[string][]any{
	"log_level": {"debug", "info", "warn", "error"}, "mode": {"observe", "enforce"}, "route.mode": {"", "sightline", "epp"}, "on_unread": {"route", "refuse"},
	"workers.role": {"", "both", "prefill", "decode", "encode"}, "kubernetes.workers.role": {"", "both", "prefill", "decode", "encode"},
	"nats.stream.storage": {"file", "memory"}, "nats.stream.compression": {"none", "s2"}, "dynamo.plane": {"", "zmq", "nats"},
	"models.engine": {"vllm", "sglang", "trtllm"}, "models.chat_template_content_format": {"auto", "string", "openai"},
	"models.mm_hasher_algorithm": {"blake3", "sha256", "sha512"}, "models.tokenizer_mode": {"auto", "mistral"},
}

type object = map[string]any

// reference is a value that stands elsewhere, which any key may have.
var reference = object{"type": "string", "pattern": `\$\{(env|file):`}

// said are the meanings of the keys, by section ("": the process's own) and key.
func said(t *testing.T) map[string]string {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	out, section := map[string]string{}, ""
	word := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "#") {
			section = ""
			for _, m := range word.FindAllStringSubmatch(line, -1) {
				section += m[1] + " "
			}
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 2 {
			continue
		}
		meaning := strings.TrimSuffix(strings.TrimSpace(cells[len(cells)-1]), " |")
		if meaning == "|" {
			continue
		}
		of := section
		if _, rest, ok := strings.Cut(cells[0], "(of "); ok { // one of two of this name
			of = strings.Trim(rest, "`)| ")
		}
		for _, m := range word.FindAllStringSubmatch(cells[0], -1) {
			for s := range strings.FieldsSeq(of + " .") {
				key := strings.TrimPrefix(s+"."+m[1], "..")
				if out[key] == "" && (s != "." || section == "") {
					out[key] = strings.NewReplacer("**", "", "`", "").Replace(regexp.MustCompile(`\[([^]]+)\]\([^)]*\)`).ReplaceAllString(meaning, "$1"))
				}
			}
		}
	}
	return out
}

// schemaOf describes a type; path is that of the key in the file, without indices.
func schemaOf(v reflect.Value, path string, said map[string]string) object {
	short := path[strings.LastIndexByte(path, '.')+1:]
	var s object
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
			fields(v, path, properties, said)
			s = object{"type": []any{"object", "null"}, "additionalProperties": false, "properties": properties}
		case reflect.Slice:
			s = object{"type": []any{"array", "null"}, "items": schemaOf(element(v.Type()), path, said)}
		case reflect.Map:
			s = object{"type": []any{"object", "null"}, "additionalProperties": schemaOf(element(v.Type()), path, said)}
		case reflect.Pointer:
			s = schemaOf(reflect.New(v.Type().Elem()).Elem(), path, said)
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
	for _, key := range []string{path, parent(path) + "." + short, parent(parent(path)) + "." + path[len(parent(parent(path))):], strings.Replace(path, "models.classes.", "models.", 1)} {
		if text := said[strings.TrimPrefix(key, ".")]; text != "" && s["description"] == nil {
			s["description"] = text
		}
	}
	return s
}

// parent is a path's section, as the page calls it: the last key before its end.
func parent(path string) string {
	at := strings.LastIndexByte(path, '.')
	if at < 0 {
		return ""
	}
	return path[:at]
}

// element is a value of what a list or a map has, with what it begins as.
func element(of reflect.Type) reflect.Value {
	v := reflect.New(of.Elem()).Elem()
	switch m := v.Addr().Interface().(type) {
	case *Model:
		m.Server = engine.DefaultServer()
	case *Class:
		m.Server = engine.DefaultServer()
	}
	return v
}

func fields(v reflect.Value, path string, into object, said map[string]string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			fields(v.Field(i), path, into, said)
		case tag != "" && tag != "-":
			into[tag] = schemaOf(v.Field(i), strings.TrimPrefix(path+"."+tag, "."), said)
		}
	}
}

// The committed schema is what the types say, describes most keys, and takes and refuses what the reader does.
func TestSchema(t *testing.T) {
	s := schemaOf(reflect.ValueOf(Default()), "", said(t))
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
		t.Error("schema.json is not what the types and docs/configuration.md say: go test ./internal/config -run TestSchema -update")
	}
	if keys, told := strings.Count(text.String(), `"type"`)+strings.Count(text.String(), `"anyOf"`), strings.Count(text.String(), `"description"`); told < 120 {
		t.Errorf("%d descriptions for about %d keys", told, keys)
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
		t.Errorf("only %q", files)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(string(text)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	all, err := Default().YAML() // what --print-config prints
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{string(all), "health_every: 0", "body_limit: 1048576", "max_in_flight: ${env:MOST}", "admin_token: ${file:/t}",
		"models: [{name: m, dir: d, mm_processor_kwargs: {a: 1}, classes: [{name: c, block_size: 32}]}]", "log_level: ${env:LEVEL}"} {
		if err := check(good); err != nil {
			t.Errorf("%.60s: %v", good, err)
		}
	}
	for _, bad := range []string{"listn: a", "workers: {}", "workers: [{adr: a}]", "log_level: loud", "max_in_flight: many", "models: [{name: m, engine: gpt}]",
		"models: [{name: m, classes: [{nme: c}]}]", "nats: {stream: {storage: tape}}", "probe: 3", "envoy: {pools: [{modell: m}]}"} {
		if check(bad) == nil {
			t.Errorf("%s is taken", bad)
		}
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}
