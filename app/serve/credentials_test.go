package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/indexer/source/bus"
)

// TestWriteCredentials checks that the command creates keys for the workers whose agents a configuration names
// and that its embedded server may then listen to the network.
func TestWriteCredentials(t *testing.T) {
	dir := checkDir(t)
	file := filepath.Join(dir, "sightline.yaml")
	text := strings.Replace(goodConfig, "DIR", dir, -1) + `- {name: gpu, addr: 10.0.0.9:8000, events: {nats: true}}
nats: {listen: "0.0.0.0:4222", config: ` + dir + "/keys/users.conf, auth: " + dir + "/keys/router.nk}\n"
	write(t, file, []byte(text))
	if err := checked(t, dir, text); err == nil || !strings.Contains(err.Error(), "nats.config: open ") {
		t.Errorf("without the files: got %v, want an error, %q in it", err, "nats.config: open ")
	}
	var out strings.Builder
	if err := WriteCredentials(CredentialsOptions{Dir: filepath.Join(dir, "keys"), Config: file, Worker: []string{"other"}},
		&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"router.nk", "agent-gpu.nk", "agent-other.nk", "users.conf"} {
		if !strings.Contains(out.String(), "written: "+filepath.Join(dir, "keys", want)) {
			t.Errorf("%s lacks %s, want %q in it", out.String(), want, "written: "+filepath.Join(dir, "keys", want))
		}
	}
	users, err := os.ReadFile(filepath.Join(dir, "keys", "users.conf"))
	if err != nil || !strings.Contains(string(users), `"sightline.kv.gpu.*"`) {
		t.Errorf("got %v: %s, want no error, strings.Contains(string(users), `\"sightline.kv.gpu.*\"`)", err, users)
	}
	if err := checked(t, dir, text); err != nil {
		t.Error(err)
	}
}

// TestAgentFlags checks that an agent stops at once, naming the flags, if they contradict each other.
func TestAgentFlags(t *testing.T) {
	const url = "nats://127.0.0.1:1"
	for want, n := range map[string]bus.Access{
		"--nats: it holds a user or a secret": {URL: "nats://secret@127.0.0.1:1"},
		"auth: open none":                     {URL: url, Auth: "none"},
		"tls_ca: nats: error loading or parsing rootCA file: open none:": {URL: url, TLSCA: "none"},
	} {
		err := Agent(t.Context(), AgentOptions{Worker: "w", Engine: "vllm", ZMQ: "tcp://127.0.0.1:2", NATS: n})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	for _, o := range []AgentOptions{{}, {Replay: "tcp://127.0.0.1:2", HTTP: "http://127.0.0.1:1"}} {
		o.NATS.URL = url
		if err := Agent(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--zmq: missing") {
			t.Errorf("%+v: got %v, want --zmq: missing", o, err)
		}
	}
}
