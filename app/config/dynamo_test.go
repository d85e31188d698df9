package config

import (
	"strings"
	"testing"
)

const dynamo = `
models:
- {name: m, dir: models/m, block_hash: dynamo, media_names: injected, classes: [{name: plain, block_hash: sightline}]}
dynamo:
  plane: zmq
  discovery: /run/dynamo
  frontends: ["10.0.0.7:8000", "10.0.0.8:8000"]
`

func TestDynamo(t *testing.T) {
	c, err := Parse([]byte(dynamo))
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Dynamo; d.Namespace != "dynamo" || d.Component != "backend" || d.Endpoint != "generate" || d.Model != "m" ||
		len(d.Frontends) != 2 {
		t.Errorf("%+v", d)
	}
	readsBack(t, c)
	for name, change := range map[string][2]string{
		"NATS": {"plane: zmq", `plane: nats
  nats: {url: "nats://10.0.0.4:4222", user: u, password_file: /etc/nats/password}`},
		"the engines' own":  {`frontends: ["10.0.0.7:8000", "10.0.0.8:8000"]`, "engine_port: 8000"},
		"computed names":    {"media_names: injected", "media_names: computed"},
		"publisher's other": {"block_hash: dynamo", "block_hash: dynamo_suffix"},
	} {
		if _, err := Parse([]byte(strings.Replace(dynamo, change[0], change[1], 1))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDynamoMistakes(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"plane: zmq", `plane: ""`, "dynamo.plane: missing"},
		{"plane: zmq", "plane: zmk", `dynamo.plane: "zmk" is not known (want zmq or nats)`},
		{"plane: zmq", "plane: jetstream", "dynamo.plane: jetstream is no longer supported"},
		{"plane: zmq", "plane: nats\n  nats: nats://u:p@10.0.0.4:4222", "dynamo.nats: one value, where keys and values are expected"},
		{"plane: zmq", "plane: nats\n  nats: {url: a, nkey: f, token_file: g}", "dynamo.nats.token_file: given together with nkey"},
		{"plane: zmq", "plane: nats", "dynamo.nats.url: missing"},
		{"discovery: /run/dynamo", `discovery: ""`, "dynamo.discovery: missing"},
		{"plane: zmq", "plane: zmq\n  namespace: a/b", `dynamo.namespace: "a/b" is not a name`},
		{"plane: zmq", `plane: zmq
  component: ""`, `dynamo.component: "" is not a name`},
		{"plane: zmq", "plane: zmq\n  prefill_component: backend", `dynamo.prefill_component: "backend" is not a name beside component`},
		{"10.0.0.8:8000", "frontend:8000", `dynamo.frontends: [1] "frontend:8000" is not what Envoy can dial`},
		{"plane: zmq", "plane: zmq\n  engine_port: 8000", "dynamo.engine_port: 8000: want a port up to 65535, and no frontends beside it"},
		{"plane: zmq", "plane: zmq\n  model: x", `dynamo.model: "x" is not the name of a model`},
		{"plane: zmq", "plane: zmq\n  class: plain", `want block_hash: dynamo for the model "m"`},
		{`injected, classes: [{name: plain, block_hash: sightline}]}
dynamo:
  plane: zmq
  discovery: /run/dynamo
  frontends: ["10.0.0.7:8000", "10.0.0.8:8000"]`, `computed}
dynamo: {plane: zmq, discovery: /run/dynamo, engine_port: 8000}`, "dynamo.engine_port: without Dynamo's front end"},
	} {
		text := strings.Replace(dynamo, c.from, c.to, 1)
		if text == dynamo {
			t.Fatalf("%q is not there", c.from)
		}
		mistake(t, text, c.want)
	}
	mistake(t, strings.Replace(dynamo, "injected", "computed", 1)+
		"media: {allow: [10.0.0.0/8], relay: {listen: \"10.0.0.1:90\", url: \"http://10.0.0.1:90\"}}",
		"media.relay: Dynamo names an image by its URL")
}
