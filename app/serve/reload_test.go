package serve

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
)

// reloading is a running server whose configuration file the test writes.
type reloading struct {
	t     *testing.T
	file  string
	admin string
	*Server
}

const adminToken = "0123456789abcdef-admin"

func startReloading(t *testing.T, text string, fixed ...func(*config.Fixed)) *reloading {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	dir := checkDir(t)
	r := &reloading{t: t, file: filepath.Join(dir, "sightline.yaml"), admin: lis.Addr().String()}
	r.write(text)
	cfg, err := config.Load(r.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range fixed {
		change(&cfg.Fixed)
	}
	r.Server, err = Load(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.Close()
	})
	r.wait("its page", func() bool {
		resp, err := http.Get("http://" + r.admin + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return r
}

// quiet has nobody ask the workers.
func quiet(f *config.Fixed) { f.Probe, f.HealthEvery, f.LoadEvery = false, 0, 0 }

// write replaces a configuration atomically, as a ConfigMap does.
func (r *reloading) write(text string) {
	r.t.Helper()
	text += "\nadmin_token: " + adminToken + "\n"
	text = strings.NewReplacer("DIR", filepath.Dir(r.file), "ADMINPORT", strings.TrimPrefix(r.admin, "127.0.0.1:"),
		"ADMIN", r.admin).Replace(text)
	write(r.t, r.file+".new", []byte(text+"\ndrain: 0s\n"))
	if err := os.Rename(r.file+".new", r.file); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reloading) ask(method, path string, body ...string) (code int, text string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.admin+path, strings.NewReader(strings.Join(body, "")))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// reload requests a reload, and checks the answer.
func (r *reloading) reload(code int, want string) {
	r.t.Helper()
	if got, text := r.ask("POST", "/reload"); got != code || !strings.Contains(text, want) {
		r.t.Errorf("POST /reload: %d %q, want %d %q", got, text, code, want)
	}
}

func (r *reloading) workers() map[string]findings.Worker {
	r.t.Helper()
	_, text := r.ask("GET", "/workers")
	var list []findings.Worker
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		r.t.Fatal(err)
	}
	byName := map[string]findings.Worker{}
	for _, w := range list {
		byName[w.Name] = w
	}
	return byName
}

func (r *reloading) metric(line string) bool {
	r.t.Helper()
	_, text := r.ask("GET", "/metrics")
	return strings.Contains(text, "\n"+line+"\n")
}

func (r *reloading) wait(what string, cond func() bool) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal(what)
		}
	}
}

// TestReload checks that a changed file is applied while everything else goes on: remaining workers keep their events and what
// they hold, a model is read again only if its own keys changed, and an invalid configuration changes nothing.
func TestReload(t *testing.T) {
	pub := zmq4.NewPub(t.Context())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	text := func(more, model, workers string) string {
		return fmt.Sprintf("listen: 127.0.0.1:0\nadmin: ADMIN\n%s\nmodels:\n- "+
			"{name: m, dir: DIR/model, engine_version: 0.32.0, block_size: 4%s}\n"+
			"workers:\n- {name: a, addr: \"127.0.0.1:1\", events: {zmq: \"tcp://%s\"}}\n%s", more, model, pub.Addr(), workers)
	}
	one := "- {name: b, addr: \"127.0.0.1:2\"}\n"
	r := startReloading(t, text("", "", one), quiet)
	payload, err := msgp.AppendIntf(nil, []any{1.5, []any{storedEvent("")}, 0})
	if err != nil {
		t.Fatal(err)
	}
	r.wait("an event", func() bool {
		_ = pub.Send(zmq4.NewMsgFrom([]byte("kv"), binary.BigEndian.AppendUint64(nil, 0), payload))
		return r.workers()["a"].Blocks == 1
	})
	before := r.now.Load()

	r.write(text("max_in_flight: 3\nlog_level: error\nbody_limit: 1MiB\nmedia: {budget: 1s}", ", aliases: [n]",
		"- {name: c, addr: \"127.0.0.1:3\", ranks: 2}\n"))
	r.reload(200, "needs a restart: body_limit\n")
	list := r.workers()
	if _, left := list["b"]; left || list["a"].Blocks != 1 || list["c"].Addr != "127.0.0.1:3" || len(list) != 2 {
		t.Errorf("workers %+v: got %v, want false, [\"a\"].Blocks 1, [\"c\"].Addr %q, 2 of them", list, left, "127.0.0.1:3")
	}
	now := r.now.Load()
	if now == before || now.models[0].Prompts != before.models[0].Prompts || now.models[0].Aliases[0] != "n" || r.level.String() != "error" {
		t.Errorf(`models %+v, level %v, want now != %v, now.models[0].Prompts == before.models[0].Prompts, `+
			`now.models[0].Aliases[0] == "n", r.level.String() == "error"`, now.models, r.level, before)
	}
	for _, line := range []string{"sightline_config_reload_success 1", `sightline_config_reloads_total{result="success"} 1`,
		`sightline_config_needs_restart{key="body_limit"} 1`} {
		if !r.metric(line) {
			t.Errorf("metrics lack %s, want r.metric(line)", line)
		}
	}
	if _, page := r.ask("GET", "/"); !strings.Contains(page, "needs a restart: body_limit") {
		t.Error(`the page does not say what needs a restart, want "needs a restart: body_limit" in page`)
	}

	for bad, want := range map[string]string{
		"models: [":                             "",
		text("", ", dri: x", one):               "models[0].dri: unknown key",
		text("", "", one) + "- {addr: x}\n":     "workers[2].addr: ",
		text("log_level: ${env:NONE}", "", one): "log_level: ${env:NONE}: there is no such",
		text("", ", engine_version: 1", one):    "",
		text("", ", chat_template: none", one):  "models[0].chat_template: ",
		strings.ReplaceAll(text("", "", ""), "workers:\n", "workers: []\nx:\n"): "x: unknown key",
		text("", "",
			"- {name: d, addr: \"127.0.0.1:4\", events: {nats: true}}\nnats: {url: \"nats://127.0.0.1:1\"}\n"): "with nats.url " +
			"as at startup (only a restart changes it): workers[1].events.nats: ",
	} {
		r.write(bad)
		r.reload(422, want)
	}
	if r.now.Load() != now || len(r.workers()) != 2 || !r.metric("sightline_config_reload_success 0") {
		t.Errorf(`what cannot be has changed something, or is not told, want r.now.Load() == %v, len(r.workers()) == 2, `+
			`r.metric("sightline_config_reload_success 0")`, now)
	}
	if _, page := r.ask("GET", "/"); !strings.Contains(page, "keeping the old one: ") {
		t.Error(`the page does not say that the configuration is bad, want "keeping the old one: " in page`)
	}

	// Workers with another block size are replaced; a change is also noticed without POST.
	r.write(text("", ", max_model_len: 9", one))
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r.wait("SIGHUP", func() bool { return r.now.Load() != now })
	r.wait("its workers", func() bool { return r.workers()["b"].Addr != "" })
	if again := r.now.Load(); again.models[0].Prompts == now.models[0].Prompts || r.workers()["a"].Blocks != 1 {
		t.Error(`another max_model_len: the model is the old one, or what its worker holds is gone, want again.models[0].Prompts ` +
			`!= now.models[0].Prompts, r.workers()["a"].Blocks == 1`)
	}
	r.write(strings.Replace(text("", ", max_model_len: 9", one), "block_size: 4", "block_size: 8", 1))
	r.wait("a changed file, unasked", func() bool { return r.now.Load().models[0].Prompts.Server().BlockSize == 8 })
	r.wait("a worker that is heard anew", func() bool { w := r.workers()["a"]; return w.Blocks == 0 && w.Batches == 0 })
}
