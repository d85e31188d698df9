package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// A fleet that is well: whatever clients ask for is normal work, of which Sightline's log warns of nothing, and the doctor finds
// nothing wrong: each check was made.
func TestNothingToWarnOf(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	l := startLab(t, func(o *lab.Options) {
		o.Log, o.Config = &log, func(keys map[string]any) { keys["log_level"] = "warn" }
	})
	shot, err := os.ReadFile("../examples/picture.png")
	if err != nil {
		t.Fatal(err)
	}
	image := "data:image/png;base64," + base64.StdEncoding.EncodeToString(shot)
	long := strings.Repeat("What is in the harbour of this town? ", 20)
	say := func(content any, more map[string]any) map[string]any {
		m := map[string]any{"model": lab.ModelName, "max_tokens": 4, "messages": []any{map[string]any{"role": "user", "content": content}}}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	for i, r := range []struct {
		method, path string
		body         any
		status       int
	}{
		{"GET", "/v1/models", nil, 200}, {"GET", "/health", nil, 200}, {"GET", "/v1/responses/resp_unknown", nil, 404},
		{"GET", "/nothing", nil, 404},
		{"POST", "/tokenize", map[string]any{"model": lab.ModelName, "prompt": "a"}, 200},
		{"POST", "/v1/chat/completions", say(long, nil), 200}, {"POST", "/v1/chat/completions", say(long, nil), 200},
		{"POST", "/v1/chat/completions", say(long, map[string]any{"stream": true}), 200},
		{"POST", "/v1/chat/completions", say("hi", map[string]any{"temperature": 0.5, "user": "u"}), 200},
		{"POST", "/v1/chat/completions",
			say([]any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": image}},
				map[string]any{"type": "text", "text": "?"}}, nil), 200},
		{"POST", "/v1/completions", map[string]any{"model": lab.ModelName, "prompt": long, "max_tokens": 2}, 200},
		{"POST", "/v1/completions", map[string]any{"model": lab.ModelName, "prompt": []string{long, "b"}, "max_tokens": 2}, 200},
		{"POST", "/v1/chat/completions", say("hi", map[string]any{"max_tokens": -1}), 400},                           // the client's mistake
		{"POST", "/v1/chat/completions", map[string]any{"model": lab.ModelName, "messages": "hi"}, 400},              // likewise
		{"POST", "/v1/chat/completions", say("hi", map[string]any{"prompt_logprobs": 1}), 200},                       // reads no cache
		{"POST", "/v1/chat/completions", say("hi", map[string]any{"x-unknown": map[string]any{"a": []int{1}}}), 200}, // an extra field
	} {
		var body []byte
		if r.body != nil {
			body, _ = json.Marshal(r.body) // texts and numbers do not fail
		}
		req, err := http.NewRequestWithContext(t.Context(), r.method, l.URL+r.path, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := l.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != r.status {
			t.Errorf("request %d, %s %s: status %d, want %d", i+1, r.method, r.path, res.StatusCode, r.status)
		}
	}
	var args []string
	for _, at := range l.AgentAdmin {
		args = append(args, "--agent", at)
	}
	checks, status := doctored(t, l.Self(), waiting(t, l.Config(), "20s"), args...)
	if status != 0 {
		t.Errorf("status %d, want 0", status)
	}
	for _, r := range checks {
		if r.Verdict != doctor.OK {
			t.Errorf("got %+v, want Verdict %q", r, doctor.OK)
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
			t.Errorf("got %q, want !strings.Contains(line, `\"level\":\"warn\"`), !strings.Contains(line, `\"level\":\"error\"`)",
				fmt.Sprint("normal work warns: ", line))
		}
	}
}

// What only requests through a real Envoy show: a body that is too large for it, and a Sightline that it does not reach.
func TestDoctorThroughEnvoy(t *testing.T) {
	t.Parallel()
	l := startLab(t, nil)
	text, err := os.ReadFile(l.Config())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(l.Config())
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(cfg.Listen)
	for _, c := range []struct{ code, evidence, old, new string }{
		{"SL0401", " is refused (status 413), one of ", "buffer_limit: 67108864", "buffer_limit: 65536"},
		{"SL0408", "Envoy answered the canary without asking Sightline", "port_value: " + port, "port_value: 9"},
	} {
		listen, admin, file := freeAddr(t), freeAddr(t), filepath.Join(filepath.Dir(l.Config()), c.code+".yaml")
		own := strings.NewReplacer(strings.TrimPrefix(l.URL, "http://"), listen, l.EnvoyAdmin, admin).Replace(string(text))
		if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		printed, err := exec.CommandContext(t.Context(), l.Self(), "envoy", "-c", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		var log lockedBuffer
		p, err := envoytest.Run(t.Context(), binary(t), bytes.ReplaceAll(printed, []byte(c.old), []byte(c.new)), admin, &log,
			"--concurrency", "2")
		if err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		checks, _ := doctored(t, l.Self(), waiting(t, file, "10s"))
		p.Stop()
		at := slices.IndexFunc(checks, func(r doctor.Result) bool { return r.Code == c.code })
		if r := checks[at]; r.Verdict != doctor.Error || !strings.Contains(strings.Join(r.Evidence, "\n"), c.evidence) || r.Fix == "" {
			t.Errorf("got %+v, want an error with evidence %q and a fix", r, c.evidence)
		}
	}
	for _, c := range []struct {
		what, evidence string
		do, undo       func() error
	}{
		{"is frozen", "takes connections and does not answer",
			func() error { return l.SignalSightline(syscall.SIGSTOP) }, func() error { return l.SignalSightline(syscall.SIGCONT) }},
		{"is dead", " Sightline", func() error { l.KillSightline(); return nil }, l.StartSightline},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		checks, status := doctored(t, l.Self(), waiting(t, l.Config(), "2s"))
		took := time.Since(began)
		r := checks[slices.IndexFunc(checks, func(r doctor.Result) bool { return r.Code == "SL0505" })]
		if status != 1 || r.Verdict != doctor.Error || !strings.Contains(r.Evidence[0], c.evidence) || took > time.Minute {
			t.Errorf("Sightline %s: status %d after %v: %+v, want 1, Verdict %q, Evidence[0] %q in it, at most %v",
				c.what, status, took, r, doctor.Error, c.evidence, time.Minute)
		}
		t.Logf("Sightline %s: %v, %q", c.what, took, r.Evidence)
		if res, err := l.Do(getOf(t, l.URL+"/v1/models")); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("Sightline %s: got %+v, %v from Envoy, want 200", c.what, res, err)
		} else {
			res.Body.Close()
		}
		if err := c.undo(); err != nil {
			t.Fatal(err)
		}
	}
}

func getOf(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// waiting returns a copy of a configuration with which doctor waits so long for an answer.
func waiting(t *testing.T, file, long string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	keys := map[string]any{}
	if err == nil {
		err = yaml.Unmarshal(text, &keys)
	}
	fixed, _ := keys["fixed"].(map[string]any)
	keys["fixed"] = maps.Collect(maps.All(fixed))
	keys["fixed"].(map[string]any)["patience"] = long
	if err == nil {
		text, err = yaml.Marshal(keys)
	}
	at := strings.TrimSuffix(file, ".yaml") + "-doctor.yaml"
	err = errors.Join(err, os.WriteFile(at, text, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// doctored is what `sightline doctor` says of a configuration, and its exit status.
func doctored(t *testing.T, bin, file string, args ...string) (checks []doctor.Result, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, append([]string{"doctor", "-c", file, "-o", "json"}, args...)...)
	out, err := cmd.Output()
	var said struct{ Checks []doctor.Result }
	if json.Unmarshal(out, &said) != nil {
		t.Fatalf("got %v: %s, want no error", err, out)
	}
	return said.Checks, cmd.ProcessState.ExitCode()
}
