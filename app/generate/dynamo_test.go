package generate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab/golden"
)

// recordedFolder returns a copy of the recorded discovery folder of a deployment of Dynamo 1.6.1.
func recordedFolder(t *testing.T, name string) string {
	t.Helper()
	root := t.TempDir()
	for _, r := range golden.Lines[struct {
		Case, File string
		Value      json.RawMessage
	}](t, "../../engine/dynamo/testdata", "discovery.jsonl.gz") {
		if r.Case == name {
			record(t, root, r.File, string(r.Value))
		}
	}
	return root
}

func record(t *testing.T, root, name, text string) {
	t.Helper()
	at := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// frontEnd serves a list of models like a Dynamo front end.
func frontEnd(t *testing.T, owner string, models ...string) (addr string) {
	list := ""
	for _, m := range models {
		list += fmt.Sprintf(`,{"id":%q,"object":"model","created":1,"owned_by":%q}`, m, owner)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.TrimPrefix(list, ","))
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestDynamo: the configuration written for a deployment, that doctor finds nothing wrong with it, and what it reports once the
// workers are gone.
func TestDynamo(t *testing.T) {
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.Shutdown()
	if !ns.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server does not start, want ns.ReadyForConnections(20 * time.Second)")
	}
	dir, _ := filepath.Abs(modelDir)
	for plane, c := range map[string]struct{ env, extra, nats string }{
		"zmq":  {extra: "prefiller"},
		"nats": {env: ns.ClientURL(), nats: "  nats: {url: \"" + ns.ClientURL() + "\"}\n"},
	} {
		root, front := recordedFolder(t, "discovery_file_"+plane+".jsonl"), frontEnd(t, "nvidia", "m", "sql")
		record(t, root, "v1/mdc/dynamo%2Fbackend%2Fgenerate%2F1%2Fsql",
			`{"namespace":"dynamo","component":"backend","endpoint":"generate","instance_id":1,"card_json":{"display_name":"sql","lora":{"name":"sql"}}}`)
		prefill := ""
		if c.extra != "" {
			record(t, root, "v1/mdc/dynamo%2Fprefiller%2Fgenerate%2F2",
				`{"namespace":"dynamo","component":"prefiller","endpoint":"generate","instance_id":2,"card_json":{"display_name":"m","worker_type":"prefill"}}`)
			prefill = "  prefill_component: prefiller\n"
		}
		out := t.TempDir()
		text, said, err := run(t, Options{Dynamo: root, Workers: []string{front}, ModelDir: []string{modelDir}, Out: out,
			Getenv: func(key string) string { return map[string]string{"NATS_SERVER": c.env}[key] }})
		want := "models:\n- name: m\n  adapters: [sql]\n  dir: " + dir +
			"\n  engine_version: 0.32.0\n  engine_model: /models/qwen2.5-vl-7b-instruct\n  block_hash: dynamo\n" +
			"dynamo:\n  discovery: " + root + "\n" + c.nats + prefill + "  frontends: [\"" + front +
			"\"]\nenvoy:\n  token_usage: true\n"
		if err != nil || strings.ReplaceAll(text, `"`, "") != strings.ReplaceAll(want, `"`, "") {
			t.Fatalf("%s: %v\n%s\nwant\n%s", plane, err, text, want)
		}
		if !strings.Contains(said, "dynamo/backend/generate: 2 workers of NVIDIA Dynamo, serve m, blocks of 16 tokens, KV events over "+plane) {
			t.Errorf("got %q, want %q in it",
				said, "dynamo/backend/generate: 2 workers of NVIDIA Dynamo, serve m, blocks of 16 tokens, KV events over "+plane)
		}
		touch(t, root)
		written, err := os.ReadFile(filepath.Join(out, configFile))
		if err == nil { // not the page of another Sightline on this machine
			err = os.WriteFile(filepath.Join(out, configFile), append(written, "admin: \"\"\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		look := func() (bad []string) {
			for _, r := range doctor.Examine(t.Context(), doctor.Options{Config: filepath.Join(out, configFile),
				Envoy: filepath.Join(out, envoyFile), Patience: 10 * time.Second}) {
				if r.Verdict == doctor.Error || r.Verdict == doctor.Warning {
					bad = append(bad, fmt.Sprint(r.Code, r.Evidence))
				}
			}
			return bad
		}
		if bad := look(); len(bad) > 0 {
			t.Errorf("%s: the doctor says %q, want 0 of them", plane, bad)
		}
		if err := os.RemoveAll(filepath.Join(root, "v1", "instances")); err != nil {
			t.Fatal(err)
		}
		if bad := look(); len(bad) != 1 || !strings.Contains(bad[0], "no live record of a worker") {
			t.Errorf("%s: without workers the doctor says %q, want 1 of them, [0] %q in it", plane, bad, "no live record of a worker")
		}
	}
}

// touch renews the records' modification times.
func touch(t *testing.T, root string) {
	t.Helper()
	if err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chtimes(path, time.Now(), time.Now())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestDynamoRefusals(t *testing.T) {
	zmq, nats := recordedFolder(t, "discovery_file_zmq.jsonl"), recordedFolder(t, "discovery_file_nats.jsonl")
	two, other := recordedFolder(t, "discovery_file_zmq.jsonl"), recordedFolder(t, "discovery_file_zmq.jsonl")
	card := `{"namespace":%q,"component":"backend","endpoint":"generate","instance_id":5,"card_json":{"display_name":"n"}}`
	record(t, two, "v1/mdc/staging%2Fbackend%2Fgenerate%2F5", fmt.Sprintf(card, "staging"))
	record(t, other, "v1/mdc/dynamo%2Fbackend%2Fgenerate%2F5", fmt.Sprintf(card, "dynamo"))
	front := frontEnd(t, "nvidia", "m")
	for name, c := range map[string]struct {
		root, scope string
		fronts      []string
		want        string
	}{
		"nothing there":           {t.TempDir(), "", []string{front}, "workers of 0 endpoints"},
		"another namespace":       {zmq, "staging", []string{front}, "workers of 0 endpoints"},
		"two namespaces":          {two, "", []string{front}, "2 endpoints that answer, dynamo/backend/generate, staging/backend/generate"},
		"two models":              {other, "", []string{front}, "not all started alike"},
		"no NATS server":          {nats, "", []string{front}, "NATS_SERVER"},
		"no events":               {two, "staging", []string{front}, "publishes no KV events"},
		"no front end":            {zmq, "", nil, "dynamo.frontend --router-mode direct"},
		"a worker as a front end": {zmq, "", []string{frontEnd(t, "vllm", "m")}, `owned_by of its /v1/models is "vllm"`},
		"another's front end":     {zmq, "", []string{front, frontEnd(t, "nvidia", "n")}, `does not serve "m"`},
	} {
		for _, root := range []string{zmq, nats, two, other} {
			touch(t, root)
		}
		_, _, err := run(t, Options{Dynamo: c.root, Scope: c.scope, Workers: slices.Clone(c.fronts), ModelDir: []string{modelDir}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (want %q)", name, err, c.want)
		}
	}
}
