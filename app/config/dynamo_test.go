package config

import (
	"strings"
	"testing"
)

const dynamo = `
models:
- {name: m, dir: models/m, block_hash: dynamo, media_names: injected, classes: [{name: plain, block_hash: sightline}]}
dynamo:
  discovery: /run/dynamo
  frontends: ["10.0.0.7:8000", "10.0.0.8:8000"]
`

func TestDynamo(t *testing.T) {
	c, err := Parse([]byte(dynamo))
	if err != nil {
		t.Fatal(err)
	}
	_, endpoint := c.Dynamo.Answers()
	if d := c.Dynamo; endpoint != "generate" || d.Namespace != "dynamo" || d.Component != "backend" || d.Model != "m" ||
		len(d.Frontends) != 2 {
		t.Errorf(`got %+v, want endpoint == "generate", d.Namespace == "dynamo", d.Component == "backend", d.Model == "m", len(d.Frontends) == 2`,
			d)
	}
	readsBack(t, c)
	for name, change := range map[string][2]string{
		"NATS": {"dynamo:\n", `dynamo:
  nats: {url: "nats://10.0.0.4:4222", auth: /etc/nats/password}
`},
		"the engines' own":  {`frontends: ["10.0.0.7:8000", "10.0.0.8:8000"]`, "engine_port: 8000"},
		"computed names":    {"media_names: injected", "media_names: computed"},
		"publisher's other": {"block_hash: dynamo", "block_hash: dynamo_suffix"},
	} {
		if _, err := Parse([]byte(strings.Replace(dynamo, change[0], change[1], 1))); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
	}
}

func TestDynamoMistakes(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"dynamo:\n", "dynamo:\n  plane: nats\n", "dynamo.plane: no longer a key: it is NATS if nats.url is given"},
		{"dynamo:\n", "dynamo:\n  nats: nats://u:p@10.0.0.4:4222\n", "dynamo.nats: one value, where keys and values are expected"},
		{"dynamo:\n", "dynamo:\n  nats: {url: a, nkey: f}\n", "dynamo.nats.nkey: no longer a key: "},
		{"discovery: /run/dynamo", `discovery: ""`, "dynamo.discovery: missing"},
		{"dynamo:\n", "dynamo:\n  namespace: a/b\n", `dynamo.namespace: "a/b" is not a name`},
		{"dynamo:\n", "dynamo:\n  component: \"\"\n", `dynamo.component: "" is not a name`},
		{"dynamo:\n", "dynamo:\n  component: a/b c\n", `dynamo.component's endpoint: "b c" is not a name`},
		{"dynamo:\n", "dynamo:\n  prefill_component: backend\n", `dynamo.prefill_component: "backend" is not a name beside component`},
		{"10.0.0.8:8000", "frontend:8000", `dynamo.frontends: [1] "frontend:8000" is not what Envoy can dial`},
		{"dynamo:\n", "dynamo:\n  engine_port: 8000\n", "dynamo.engine_port: 8000: want a port up to 65535, and no frontends beside it"},
		{"dynamo:\n", "dynamo:\n  model: x\n", `dynamo.model: "x" is not the name of a model`},
		{"dynamo:\n", "dynamo:\n  class: plain\n", `want block_hash: dynamo for the model "m"`},
		{`injected, classes: [{name: plain, block_hash: sightline}]}
dynamo:
  discovery: /run/dynamo
  frontends: ["10.0.0.7:8000", "10.0.0.8:8000"]`, `computed}
dynamo: {discovery: /run/dynamo, engine_port: 8000}`, "dynamo.engine_port: without Dynamo's front end"},
	} {
		text := strings.Replace(dynamo, c.from, c.to, 1)
		if text == dynamo {
			t.Fatalf("%q is not there: got %q, want other than %q", c.from, text, dynamo)
		}
		mistake(t, text, c.want)
	}
	mistake(t, strings.Replace(dynamo, "injected", "computed", 1)+
		"media: {allow: [10.0.0.0/8], relay: {listen: \"10.0.0.1:90\", url: \"http://10.0.0.1:90\"}}",
		"media.relay: Dynamo names an image by its URL")
}
