package serve

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/lab/certs"
)

const goodModel = "  engine_version: 0.32.0\n"

// goodConfig is a configuration that `serve --check` accepts; the cases below change one thing of it.
const goodConfig = `
listen: 127.0.0.1:9002
models:
- name: m
  dir: DIR/model
` + goodModel + `workers:
- {name: a, addr: "10.0.0.5:8000", events: {zmq: "tcp://10.0.0.5:5557", replay: "tcp://10.0.0.5:5558"}}
- {name: b, addr: "10.0.0.6:8000", ranks: 2}
`

// checkDir returns a folder with all files that the cases name as DIR.
func checkDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	model, err := filepath.Abs("../../examples/models/qwen2.5-vl")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(model, filepath.Join(dir, "model")); err != nil {
		t.Fatal(err)
	}
	ca := certs.NewCA(t, dir, "authority")
	ca.Sign(t, "ours", time.Hour)
	ca.Sign(t, "other", time.Hour)
	write(t, filepath.Join(dir, "text"), []byte("no PEM"))
	write(t, filepath.Join(dir, "api-key"), []byte("of-the-workers\n"))
	write(t, filepath.Join(dir, "empty"), nil)
	write(t, filepath.Join(dir, "short"), []byte("31 bytes are no secret for all.\n")[:31])
	write(t, filepath.Join(dir, "secret"), make([]byte, 32))
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "t.jinja"), []byte("{{ messages[0].content }}"))
	return dir
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// checked returns the result of `sightline serve --check` for a configuration.
func checked(t *testing.T, dir, text string) error {
	t.Helper()
	file := filepath.Join(dir, "sightline.yaml")
	write(t, file, []byte(strings.ReplaceAll(text, "DIR", dir)))
	cfg, err := config.Load(file)
	if err == nil {
		var s *Server
		s, err = Load(cfg)
		if err == nil {
			err = s.Faults()
			s.Close()
		}
	}
	return err
}

// TestCheckGood checks that what the documentation offers is accepted.
func TestCheckGood(t *testing.T) {
	dir := checkDir(t)
	own := func(keys string) string { return strings.Replace(goodConfig, goodModel, keys, 1) }
	plain := func(keys string) string { // for engines without vLLM's own sockets
		return strings.Replace(own(keys), "workers:", "max_in_flight: 3\nworkers:", 1)
	}
	for name, text := range map[string]string{
		"as it is":                   goodConfig,
		"SGLang's form by name":      plain("  engine: sglang\n  chat_template: qwen2-vl\n"),
		"SGLang's form of a class":   own(goodModel + "  classes: [{name: s, engine: sglang, chat_template: vicuna_v1.1}]\n"),
		"a form that is not written": plain("  engine: sglang\n  chat_template: devstral\n"),
		"a template's own text":      own("  chat_template: \"{{ messages[0].content }}\"\n"),
		"a template of lines": own("  chat_template: |\n    {% for m in messages %}\n    {{ m.content }}/{{ m.role " +
			"}}\n    {% endfor %}\n"),
		"a template's file":          own("  chat_template: t.jinja\n"),
		"a template's file, by path": own("  chat_template: DIR/t.jinja\n"),
		"TLS":                        goodConfig + "tls: {cert: DIR/ours.pem, key: DIR/ours-key.pem, client_ca: DIR/other.pem}\n",
		"access": goodConfig +
			"admin_tls: {cert: DIR/ours.pem, key: DIR/ours-key.pem}\nworker_access: {ca: DIR/other.pem, api_key_file: DIR/api-key}\n",
		"relay": goodConfig +
			"media: {relay: {listen: \"127.0.0.1:9904\", url: \"http://127.0.0.1:9904\", key_file: DIR/secret}}\n",
		"NATS":                       goodConfig + "nats: {listen: \"127.0.0.1:4222\"}\n",
		"two servers of NATS":        goodConfig + "nats: {url: \"nats://10.0.0.4:4222,nats://10.0.0.5:4222\"}\n",
		"ports chosen by the system": strings.Replace(goodConfig, ":9002", ":0", 1) + "admin: \"127.0.0.1:0\"\n",
		"a socket":                   strings.Replace(goodConfig, "127.0.0.1:9002", "unix:/run/s.sock", 1),
		"no page":                    goodConfig + "admin: \"\"\n",
		"decision log":               goodConfig + "decision_log: {file: DIR/decisions.jsonl}\nindex: {key_file: DIR/secret}\n",
		"all limits low":             goodConfig + "body_limit: 1MiB\nindex: {max_bytes: 16MiB}\n",
		"networks":                   goodConfig + "envoy: {worker_networks: [\"10.0.0.0/8:8000-8010\"]}\n",
		"a name for all of its addresses": strings.Replace(goodConfig,
			`{name: a, addr: "10.0.0.5:8000", events: {zmq: "tcp://10.0.0.5:5557", replay: "tcp://10.0.0.5:5558"}}`,
			`{addr: "vllm:8000", events: {zmq: "tcp://{ip}:5557", replay: "tcp://{ip}:5558"}}`, 1),
	} {
		if err := checked(t, dir, text); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
	}
}

// TestCheckMistakes checks that each key's invalid values fail with the key's path, what came and what to do.
func TestCheckMistakes(t *testing.T) {
	dir := checkDir(t)
	for _, c := range []struct{ from, to, want string }{ // from "": to is appended
		// Towards Envoy.
		{"127.0.0.1:9002", "9002", `listen: "9002" is not where to listen (want host:port`},
		{"127.0.0.1:9002", "127.0.0.1:70000", `listen: "127.0.0.1:70000"`},
		{"127.0.0.1:9002", "\"unix:\"", `listen: "unix:"`},
		{"", "admin: 127.0.0.1", `admin: "127.0.0.1" is not where to listen`},
		{"", "admin: 127.0.0.1:9002", `admin: "127.0.0.1:9002" is also listen`},
		{"", "log_level: loud", "log_level: "},
		// Files that never end.
		{"", "index: {key_file: /dev/random}", "index.key_file: /dev/random is a device, a pipe or a socket (want a file)"},
		{"", "tls: {cert: DIR/pipe, key: DIR/ours-key.pem}", "tls: DIR/pipe is a device, a pipe or a socket"},
		{"", "worker_access: {api_key_file: /dev/zero}", "worker_access: /dev/zero is a device, a pipe or a socket"},
		{"", "nats: {url: \"nats://10.0.0.4:4222\", auth: DIR/pipe}", "nats.auth: DIR/pipe is a device, a pipe or a socket"},
		{"", "nats: {url: \"nats://10.0.0.4:4222\", tls_ca: /dev/zero}", "nats.tls_ca: /dev/zero is a device, a pipe or a socket"},
		{"", "body_limit: 0", "body_limit: 0 is out of range (want 1MiB to "},
		{"", "body_limit: 3GiB", "body_limit: 3GiB is out of range"},
		{"", "envoy: {message_timeout: 10ms}", "envoy.message_timeout: 10ms is out of range"},
		{"", "max_in_flight: -1", "max_in_flight: -1"},
		{"", "tls: {cert: DIR/gone.pem, key: DIR/ours-key.pem}", "tls: open DIR/gone.pem"},
		{"", "tls: {cert: DIR/ours.pem, key: DIR/gone.key}", "DIR/gone.key"},
		{"", "tls: {cert: DIR/ours.pem, key: DIR/other-key.pem}", "tls: cert and key: "},
		{"", "tls: {cert: DIR/ours.pem, key: DIR/ours-key.pem, client_ca: DIR/gone.pem}", "tls: open DIR/gone.pem"},
		{"", "tls: {cert: DIR/ours.pem, key: DIR/ours-key.pem, client_ca: DIR/text}", "tls: client_ca: DIR/text holds no certificate"},
		// NATS.
		{"", "nats: {url: \"nats://\"}", "nats.url: this is not a server's URL (want one such as nats://10.0.0.4:4222"},
		{"", "nats: {url: \"http://10.0.0.4:4222\"}", "nats.url: this is not a server"},
		{"", "nats: {url: \"nats://u:secret@10.0.0.4:4222\"}", "nats.url: it holds a user or a secret (want auth, a file with it"},
		{"", "nats: {auth: DIR/text}", "nats.url: missing, but credentials are given"},
		{"", "nats: {url: a, tls_cert: p}", "nats.tls_cert: tls_cert and tls_key must both be given"},
		{"", "nats: {listen: \"127.0.0.1:4222\", tls_ca: p}", "nats.tls_ca: tls_ca and tls_cert are for url"},
		{"", "nats: {url: a, config: p}", "nats.config: given without listen"},
		{"", "nats: {url: a, auth: DIR/none}", "nats.auth: open DIR/none"},
		{"", "nats: {url: a, auth: DIR/ours.pem}", "nats.auth: DIR/ours.pem holds no user's JWT and seed"},
		{"", "nats: {url: a, auth: DIR/empty}", "nats.auth: DIR/empty holds 0 lines (want a .creds file, or one line"},
		{"", "nats: {url: a, tls_ca: DIR/text}", "nats.tls_ca: nats: failed to parse root certificate"},
		{"", "nats: {listen: \"0.0.0.0:4222\"}", `nats.listen: "0.0.0.0:4222" is open to the network`},
		{"", "nats: {listen: \":4222\"}", `nats.listen: ":4222" is open to the network`},
		{"", "envoy: {sightlines: [\"10.0.0.2:9002\", \"sightline:9002\"]}",
			`envoy.sightlines[1]: "sightline:9002" is not where Envoy finds a replica`},
		{"", "nats: {listen: \"4222\"}", `nats.listen: "4222" is not where to listen`},
		{"", "nats: {listen: \"127.0.0.1:9002\"}", `nats.listen: "127.0.0.1:9002" is also listen`},
		// The decision log.
		{"", "decision_log: {file: DIR/gone/d.jsonl}", "decision_log.file: "},
		{"", "decision_log: {file: DIR/text/d.jsonl}", "decision_log.file: DIR/text is a file"},
		{"", "decision_log: {file: DIR}", "decision_log.file: DIR is a folder"},
		{"", "index: {key_file: DIR/short}", "index.key_file: DIR/short holds 31 bytes"},
		// Memory, images.
		{"", "index: {max_bytes: 0}", "index.max_bytes: 0 is out of range (want 16MiB to "},
		{"", "index: {max_bytes: 33GiB}", "index.max_bytes: 33GiB is out of range (want 16MiB to 32GiB)"},
		{"", "index: {partition: 3/2}", "index.partition: no longer a key: each Sightline holds the whole index"},
		{"", "media: {budget: -1s}", "media.budget: -1s is out of range"},
		{"", "media: {budget: 0s}", "media.budget: 0s is out of range"},
		{"", "media: {budget: 2h}", "media.budget: 2h0m0s is out of range"},
		{"", "media: {allow: [10.0.0.0]}", "media.allow[0]: "},
		{"", "media: {domains: [\"https://a.example\"]}", `media.domains[0]: "https://a.example" is not a host`},
		{"", "media: {domains: [\"\"]}", `media.domains[0]: ""`},
		{"", "media: {signing: {cdn: []}}", "media.signing: "},
		{"", "media: {relay: {url: \"http://a:1\"}}", "media.relay.listen: missing"},
		{"", "media: {relay: {listen: \"9904\", url: \"http://a:1\"}}", `media.relay.listen: "9904" is not where to listen`},
		{"", "media: {relay: {listen: \"127.0.0.1:9002\", url: \"http://a:1\"}}", `media.relay.listen: "127.0.0.1:9002" is also listen`},
		{"", "media: {relay: {listen: \"127.0.0.1:9904\", url: \"a\"}}", `media.relay.url: "a" is not where workers could ask`},
		{"", "media: {relay: {listen: \"127.0.0.1:9904\", url: \"http://a:1\", key_file: DIR/gone}}", "media.relay.key_file: "},
		{"", "media: {relay: {listen: \"127.0.0.1:9904\", url: \"http://a:1\", key_file: DIR/short}}",
			"media.relay.key_file: DIR/short holds 31 bytes (want 32 or more"},
		// Models.
		{"name: m", "name: \"\"", "models[0].name: missing"},
		{"DIR/model", "DIR/gone", "models[0].dir: "},
		{goodModel, "  aliases: [\"\"]\n", "models[0].aliases[0]: empty"},
		{goodModel, "  aliases: [m]\n", `models[0]: the name "m" is also one of models[0]`},
		{goodModel, "  adapters: [\"\"]\n", "models[0].adapters[0]: empty"},
		{goodModel, "  engine: vlm\n", "models[0].engine: "},
		{goodModel, "  vision_family: qwen\n", `models[0].vision_family: "qwen" is not known (want one of qwen2_vl, `},
		{goodModel, "  classes: [{name: s, vision_family: qwen}]\n", "models[0].classes[0].vision_family: "},
		{goodModel, "  engine_version: new\n", "models[0].engine_version: "},
		{goodModel, "  block_size: 0\n", "models[0].block_size: 0 is out of range"},
		{goodModel, "  max_model_len: -1\n", "models[0].max_model_len: "},
		{goodModel, "  chat_template: gone.jinja\n", "models[0].chat_template: "},
		{goodModel, "  chat_template: qwen2-vl\n", "models[0].chat_template: "},
		{goodModel, "  chat_template: \"{{ a \"\n", "models[0].chat_template: "},
		{goodModel, "  engine: sglang\n  chat_template: \"{{ messages[0].content }}\"\n", "models[0].chat_template: SGLang takes "},
		{goodModel, "  engine: sglang\n  chat_template: qwen2-vi\n", "models[0].chat_template: SGLang takes "},
		{goodModel, "  engine: sglang\n  chat_template: DIR/text\n", "models[0].chat_template: SGLang takes "},
		{goodModel, "  chat_template_content_format: xml\n", "models[0].chat_template_content_format: "},
		{goodModel, "  mm_processor_kwargs: [1]\n", "models[0].mm_processor_kwargs: "},
		{goodModel, "  default_chat_template_kwargs: 3\n", "models[0].default_chat_template_kwargs: "},
		{goodModel, "  mm_hasher_algorithm: md5\n", "models[0].mm_hasher_algorithm: "},
		{goodModel, "  engine: sglang\n  mm_hasher_algorithm: sha256\n", "models[0].mm_hasher_algorithm: only vLLM has it"},
		{goodModel, "  engine: sglang\n  tokenizer_mode: mistral\n", "models[0].tokenizer_mode: only vLLM has it"},
		{goodModel, "  engine: trtllm\n  trust_request_mm_kwargs: true\n", "models[0].trust_request_mm_kwargs: only vLLM has it"},
		{goodModel, "  classes: [{name: s, engine: sglang, mm_hasher_algorithm: sha256}]\n",
			"models[0].classes[0].mm_hasher_algorithm: only vLLM has it"},
		{goodModel, "  allowed_local_media_path: srv\n", "models[0].allowed_local_media_path: "},
		{goodModel, "  client_uuid: trust\n", "models[0].client_uuid: no longer a key: "},
		{goodModel, "  media_names: guessed\n", "models[0].media_names: "},
		{goodModel, "  block_hash: md5\n", "models[0].block_hash: "},
		{goodModel, "  block_hash: dynamo\n", "workers[0].events: its model uses Dynamo's hashes"},
		{goodModel, "  processor_fingerprint: x\n", "models[0].processor_fingerprint: "},
		{goodModel, "  revision: ../x\n", "models[0].revision: "},
		{goodModel, "  classes: [{name: s, dir: DIR/gone}]\n", "models[0].classes[0].dir: "},
		// Workers.
		{"name: b", "name: a", `workers[1].name: "a" is also the name of workers[0]`},
		{"10.0.0.6:8000", "10.0.0.5:08000", `workers[1].addr: "10.0.0.5:08000" is also the address of workers[0]`},
		{"10.0.0.6:8000", "0.0.0.0:8000", `workers[1].addr: "0.0.0.0:8000" is not what Envoy can dial`},
		{"ranks: 2", "ranks: -1", "workers[1].ranks: "},
		{"ranks: 2", "events: {replay: \"tcp://10.0.0.6:5558\"}", "workers[1].events.replay: given without zmq"},
		{"ranks: 2", "events: {topic: kv}", "workers[1].events.topic: no longer a key"},
		{"ranks: 2", "events: {zmq: \"tcp://10.0.0.6:5557\", nats: true}, model: m",
			"workers[1].events.nats: given together with zmq (want one source of a worker's events)"},
		{"ranks: 2", "events: {zmq: \"tcp://10.0.0.6:5557\", auto: true}, model: m", "workers[1].events.auto: given together with zmq"},
		{"ranks: 2", "events: {nats: true}", "workers[1].events.nats: true, but nats.url and nats.listen are both empty"},
		{"ranks: 2", "events: {zmq: \"10.0.0.6:5557\"}", "workers[1].events.zmq: "},
		{"ranks: 2", "events: {zmq: \"tcp://10.0.0.6\"}", "workers[1].events.zmq: "},
		{"ranks: 2", "events: {zmq: \"tcp://*:5557\"}", "workers[1].events.zmq: "},
		{"ranks: 2", "ranks: 2, events: {zmq: \"tcp://10.0.0.6:65535\"}", "workers[1].events.zmq: "},
		{"ranks: 2", "events: {zmq: \"tcp://10.0.0.5:5557\"}", "workers[1].events.zmq: tcp://10.0.0.5:5557 is also workers[0].events.zmq"},
		{"ranks: 2", "ranks: 2, events: {zmq: \"tcp://10.0.0.5:5556\"}",
			"workers[1].events.zmq: tcp://10.0.0.5:5557 is also workers[0].events.zmq"},
		{"ranks: 2", "events: {zmq: \"tcp://10.0.0.5:5558\"}", "workers[1].events.zmq: tcp://10.0.0.5:5558 is also workers[0].events.replay"},
		{"ranks: 2", "events: {bind: true}", "workers[1].events.bind: "},
		{"ranks: 2", "events: {http: \"http://10.0.0.6:8000\"}", "workers[1].events.http: "},
		// Found workers.
		{"", "kubernetes: {workers: [{namespace: a, service: v, events: {zmq: \"tcp://10.0.0.1:5557\"}}], api: \"https://1.2.3.4\"}",
			"kubernetes.workers[0].events.zmq: "},
		{"", "kubernetes: {api: \"https://1.2.3.4\"}", "kubernetes.workers: none given"},
		{"", "dynamo: {engine_port: 8000}", "dynamo.discovery: missing"},
		// Envoy.
		{"", "envoy: {listen: \"10000\"}", `envoy.listen: "10000" is not where to listen`},
		{"", "envoy: {admin: \"127.0.0.1:10000\"}", `envoy.admin: "127.0.0.1:10000" is also envoy.listen`},
		{"", "envoy: {worker_networks: [10.0.0.0/8]}", "envoy.worker_networks[0]: "},
		{"", "envoy: {worker_networks: [\"10.0.0.5/32:8000\"]}", `workers[1].addr: "10.0.0.6:8000" is in none of envoy.worker_networks`},
		{"", "envoy: {pools: [{model: x, path: /x}]}", "envoy.pools[0].model: "},
		{"", "envoy: {pools: [{model: m}]}", "envoy.pools[0]: "},
		{"", "envoy: {pools: [{model: m, path: x}]}", "envoy.pools[0].path: "},
		{"", "admin_tls: {key: DIR/ours-key.pem}", "admin_tls: cert and key"},
		{"", "worker_access: {name: n}", "worker_access: ca is missing"},
		{"", "worker_access: {api_key_file: DIR/gone}", "worker_access: open DIR/gone"},
		{"", "listen_token_file: DIR/gone", "envoy.sightline_token_file: missing"},
		{"", "listen_token_file: DIR/gone\nenvoy: {sightline_token_file: /t}", "listen_token_file: open DIR/gone"},
		{"", "media: {relay: {listen: \"127.0.0.1:9904\", url: \"http://127.0.0.1:9904\", tls: {cert: DIR/ours.pem, " +
			"key: DIR/ours-key.pem}}}", "media.relay.tls: given, but workers"},
		{"", "media: {relay: {listen: \"127.0.0.1:9904\", url: \"https://a:9904\", key_file: DIR/secret, tls: {cert: " +
			"DIR/ours.pem, key: DIR/ours-key.pem}}}", "media.relay.ca: want it"},
		{"", "envoy: {worker_tls: {cert: a.pem, key: a.key}}", "envoy.worker_tls.ca: missing"},
		{"", "envoy: {worker_tls: {ca: ca.pem, cert: a.pem}}", "envoy.worker_tls: cert and key"},
		{"", "tls: {cert: DIR/ours.pem, key: DIR/ours-key.pem, client_ca: DIR/ours.pem}\nenvoy: {sightline_tls: {ca: /ca.pem}}",
			"envoy.sightline_tls.cert: missing"},
	} {
		text := goodConfig + c.to + "\n"
		if c.from != "" {
			text = strings.Replace(goodConfig, c.from, c.to, 1)
		}
		if text == goodConfig {
			t.Fatalf("%q is not there: got %q, want other than %q", c.from, text, goodConfig)
		}
		want := strings.ReplaceAll(c.want, "DIR", dir)
		if err := checked(t, dir, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q\n got %v\nwant %s", c.to, err, want)
		}
	}
}

// TestCheckNothing checks that a configuration without models or without workers is refused.
func TestCheckNothing(t *testing.T) {
	dir := checkDir(t)
	for text, want := range map[string]string{
		"listen: 127.0.0.1:9002\n":                           "models: none given",
		"models: [{name: m, dir: DIR/model}]\n":              "workers: none given",
		"models: [{name: m, dir: DIR/model}]\nworkers: []\n": "workers: none given",
	} {
		if err := checked(t, dir, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
