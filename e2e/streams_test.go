package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/lab"
)

// onWorker asks with images that nobody has, from number seed on, until the given worker has one and its events have said
// so; it gives the image's URL.
func onWorker(t *testing.T, l *lab.Lab, worker int, seed uint64) string {
	t.Helper()
	for ; ; seed++ {
		url := dataURL(photo(seed))
		if ask(t, l, "What is this?", url).worker == worker {
			eventually(t, "its events", func() bool { return again(t, l, url).Get("reason").Str == "exact" })
			return url
		}
	}
}

// again is the decision on one more question about an image.
func again(t *testing.T, l *lab.Lab, url string) gjson.Result {
	t.Helper()
	if r := ask(t, l, "And now?", url); r.status != 200 {
		t.Fatalf("got %+v, want status 200", r)
	}
	return lastDecision(t, l)
}

// A worker's publisher dies, the worker lives on: what its events had told is doubtful after a while, and counts as
// predicted. So it is with a worker whose agent dies. The worker's own stream says how long it has been away.
func TestDeadStreams(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Workers = 2 })
	urls := []string{onWorker(t, l, 0, 500), onWorker(t, l, 1, 540)}
	l.Sims[0].StopEvents()
	_ = l.EndAgent(1, syscall.SIGKILL)
	for i, url := range urls {
		name := fmt.Sprint("worker-", i+1)
		eventually(t, name+" to be doubtful", func() bool {
			d := again(t, l, url)
			return d.Get("reason").Str == "predicted" && d.Get("why").Str == "the worker's events have not come for long"
		})
		if age := metric(t, l, "sightline_event_stream_age_seconds", name); age < 10 {
			t.Errorf("%s is doubted after %v s, want at least 10", name, age)
		}
	}
}

// An agent ends, with a word and without, and another begins: the router keeps what it knew, hears what came meanwhile, and the
// agent's page says how it stands.
func TestAgentRestarts(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Workers = 2 })
	urls := []string{onWorker(t, l, 1, 700)}
	agent := func(path string) (string, bool) {
		b, err := lab.Get("http://" + l.AgentAdmin[0] + path)
		return string(b), err == nil
	}
	number := func(name string) float64 { return metricOf(t, l.AgentAdmin[0], name, "") }
	ready := func() bool { _, ok := agent("/readyz"); return ok }
	restarts := func() float64 {
		return metric(t, l, "sightline_events_total", `what="restarts",worker="worker-2"`) +
			metric(t, l, "sightline_events_total", `what="gaps_unfilled",worker="worker-2"`)
	}
	eventually(t, "the agent to be ready", ready)
	before := restarts()
	for i, by := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := l.EndAgent(1, by); by == syscall.SIGTERM && err != nil {
			t.Errorf("a clean end: %v", err)
		}
		for _, url := range urls {
			if d := again(t, l, url); d.Get("reason").Str != "exact" {
				t.Errorf("after %v, while no agent is there: %s", by, d.Raw)
			}
		}
		if err := l.StartAgent(1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the next agent to be ready", ready)
		if number("sightline_agent_resumed") != 1 || number("sightline_agent_blocks") == 0 ||
			number("sightline_agent_publish_refused_total") != 0 {
			text, _ := agent("/state")
			t.Errorf("after %v: %s", by, text)
		}
		for _, url := range urls {
			if d := again(t, l, url); d.Get("reason").Str != "exact" {
				t.Errorf("after %v: %s", by, d.Raw)
			}
		}
		urls = append(urls, onWorker(t, l, 1, uint64(740+40*i)))
	}
	if n := restarts() - before; n != 0 {
		t.Errorf("the router began anew %v times, want 0", n)
	}
	if text, _ := agent("/state"); gjson.Get(text, "worker").Str != "worker-2" || gjson.Get(text, "ranks.0.published.Blocks").Int() == 0 {
		t.Errorf(`got %q, want gjson.Get(text, "worker").Str == "worker-2", gjson.Get(text, "ranks.0.published.Blocks").Int() != 0`, text)
	}
}

// The agents' JetStream stream is deleted under a running Sightline and a running agent: it is made again, and events come.
func TestStreamDeleted(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 2
		o.Config = func(keys map[string]any) { // neither Sightline nor an agent may do it: there is an operator
			file := filepath.Join(filepath.Dir(keys["nats"].(map[string]any)["config"].(string)), "users.conf")
			users, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, bytes.Replace(users, []byte("users = ["), []byte("users = [ {user: operator, password: word}"), 1), 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	onWorker(t, l, 1, 580)
	if _, err := nats.Connect("nats://" + l.NATS); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a stranger comes in: got %v, want %v", err, nats.ErrAuthorization)
	}
	conn, err := nats.Connect("nats://"+l.NATS, nats.UserInfo("operator", "word"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), bus.EventStream); err != nil {
		t.Fatal(err)
	}
	onWorker(t, l, 1, 620)
}
