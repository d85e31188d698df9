package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestTerminal: the commands that look at running Sightlines, with two replicas behind one Envoy: nothing routed, then requests, then a
// worker that breaks. Exit statuses tell what is broken, the replicas' numbers are added, and no JSON has a null.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := startStand(t, 2, 0, 2, 4, map[string]any{"drain": "0s", "fixed": unprobed(), "replicas": true})
	one, two := s.replicas[0].admin, s.replicas[1].admin
	both := "http://" + one + ",http://" + two
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, int) {
		t.Helper()
		c := exec.CommandContext(t.Context(), bin, args...)
		c.Env = append(os.Environ(), "SIGHTLINE_ADMIN="+both)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatalf("%v: %v", args, err)
		}
		return string(out), c.ProcessState.ExitCode()
	}
	is := func(what string, got, want any) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	asJSON := func(args ...string) gjson.Result {
		t.Helper()
		out, _ := run(append(args, "-o", "json")...)
		if !json.Valid([]byte(out)) || strings.Contains(out, "null") {
			t.Errorf("%v: want JSON without null, got\n%s", args, out)
		}
		return gjson.Parse(out)
	}
	eventually(t, "they hear each other", func() bool {
		return metricOf(t, one, "sightline_peers ", "") == 1 && metricOf(t, two, "sightline_peers ", "") == 1
	})

	out, code := run("status")
	if code != 0 || !strings.Contains(out, "none has ended yet") || strings.Count(out, "√ Sightline") != 2 {
		t.Errorf("status before the first request: exit %d, want 0\n%s", code, out)
	}
	for _, args := range [][]string{{"workers"}, {"problems"}, {"decisions"}} {
		is(strings.Join(args, " ")+" is a list", asJSON(args...).IsArray(), true)
	}
	if out, code := run("decisions"); code != 0 || !strings.Contains(out, "no decision") {
		t.Errorf("decisions before the first request: exit %d, %q", code, out)
	}

	following := exec.CommandContext(t.Context(), bin, "decisions", "-f", "-o", "json", "--admin", both)
	file, err := os.Create(filepath.Join(t.TempDir(), "followed"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	following.Stdout = file
	tail := func() string { text, _ := os.ReadFile(file.Name()); return string(text) }
	if err := following.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = following.Process.Kill(); _ = following.Wait() }()
	n := 0
	send := func(i int) attempt {
		return s.send(fmt.Sprintf(`{"model":%q,"max_tokens":2,"stream":true,"messages":[{"role":"user","content":"Letter %d: %s"}]}`, lab.ModelName, i%4,
			strings.Repeat("a letter of many words ", 20)), true, time.Minute)
	}
	eventually(t, "the follower has begun", func() bool { n++; return !send(n).failed() && tail() != "" })
	for i := range 40 {
		n++
		if r := send(i); r.failed() {
			t.Fatalf("request %d: status %d, %v", i, r.status, r.err)
		}
	}
	eventually(t, "each replica's report has its requests", func() bool { return asJSON("status").Get("requests").Int() == int64(n) })
	now := asJSON("status")
	is("failed", now.Get("failed").Int(), 0)
	is("Sightlines", now.Get("sightlines.#").Int(), 2)
	is("broken", now.Get("broken").Bool(), false)
	is("live workers", now.Get("workers.live").Int(), len(s.fleet))
	if of, lost := now.Get("accounted_tokens").Int(), now.Get("uncached.new").Int(); of == 0 || lost == 0 || lost >= of {
		t.Errorf("tokens: got %d, of them %d new, want some of each", of, lost)
	}
	rows := asJSON("workers")
	is("workers", rows.Get("#").Int(), len(s.fleet))
	sum := int64(0)
	rows.ForEach(func(_, row gjson.Result) bool {
		sum += row.Get("recent.requests").Int()
		is("state", row.Get("state").String(), "live")
		return true
	})
	is("requests by worker, of both replicas", sum, n)
	eventually(t, "each decision is followed once", func() bool { return strings.Count(tail(), "\n") >= n })
	for line := range strings.Lines(tail()) {
		d := gjson.Parse(line)
		if d.Get("code").Int() != 200 || d.Get("first_byte_ns").Int() == 0 || strings.Count(tail(), d.Get("id").String()) != 1 {
			t.Errorf("followed: %s want it once, ended", line)
		}
	}
	last := asJSON("decisions")
	id, worker := last.Get("0.id").String(), last.Get("0.worker").String()
	for _, c := range []struct{ args, want string }{
		{"decisions", id},
		{"decisions --lost new", " new"},
		{"decisions --worker " + worker, id},
		{"decisions --model " + lab.ModelName, id},
		{"decisions --failed", "no decision"},
		{"decisions --slow", "200"},
		{"decisions --id " + id, "goes to     " + worker},
		{"workers " + worker, "blocks held"},
		{"workers -o wide", "LAST EVENT"},
		{"problems", "no problems"},
		{"top", "IN FLIGHT"},
		{"status -o yaml", "accounted_tokens:"},
		{"names workers", worker},
		{"names models", lab.ModelName},
	} {
		if out, code := run(strings.Fields(c.args)...); code != 0 || !strings.Contains(out, c.want) || strings.ContainsAny(out, "\x1b") {
			t.Errorf("%s: exit %d, want 0 and %q, without colours\n%s", c.args, code, c.want, out)
		}
	}
	for args, want := range map[string]string{"decisions --lost nonsense": "want one of", "workers no-such": "no worker",
		"status -o xml": "want table", "version --watch": "no flag --watch", "decisions --id no-such": "no such decision",
		"doctor SL9999 -c x": "no check", "explain --id " + id: "decisions --id asks all"} {
		if out, code := run(strings.Fields(args)...); code == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d, want an error with %q\n%s", args, code, want, out)
		}
	}

	s.fleet[0].told(t, "fault?mode=refuse")
	eventually(t, "the worker is out", func() bool {
		for i := range 4 {
			send(i)
		}
		return asJSON("workers").Get(`#(state=="out")`).Exists()
	})
	eventually(t, "status tells what is broken", func() bool {
		out, code := run("status")
		return code == 1 && strings.Contains(out, "SL0109") && strings.Contains(out, "Fix") && strings.Contains(out, "1 out")
	})
	if out, code := run("problems"); code != 1 || strings.Count(out, "warning SL0109")+strings.Count(out, "error SL0109") != 1 {
		t.Errorf("problems: exit %d, want 1 and SL0109 once for both replicas\n%s", code, out)
	}
	is("the worst worker is first", asJSON("workers").Get("0.state").String(), "out")

	s.replicas[1].stop()
	if out, code := run("status"); code != 1 || !strings.Contains(out, "√ Sightline") || !strings.Contains(out, "nothing answers at") {
		t.Errorf("status with a replica that is away: exit %d, want 1, one replica's numbers and what is wrong with the other\n%s", code, out)
	}
	for _, path := range []string{"/status", "/workers", "/problems", "/decisions", "/unserved", "/hosts", "/audit", "/report", "/forecast",
		"/explain?id=" + gjson.Get(page(t, one, "/decisions"), "0.id").String()} {
		if text := page(t, one, path); strings.Contains(text, "null") {
			t.Errorf("%s has a null: %.500s", path, text)
		}
	}
}
