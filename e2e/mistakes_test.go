package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestMistakesAreNamed: a running Sightline before workers of which each has another mistake. Within ten seconds log, /problems and
// doctor name each by its worker, in the words that say what to do.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	other := func(status int, kind, text string) func() string {
		return func() string {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				w.WriteHeader(status)
				_, _ = io.WriteString(w, text)
			}))
			t.Cleanup(s.Close)
			return strings.TrimPrefix(s.URL, "http://")
		}
	}
	cases := []struct {
		name   string
		sim    sim.Config
		addr   func() string // of what answers in its place
		events string
		code   string // of the page's and the doctor's line
		page   string // the page's, if it is another one
		words  string // in log, page and doctor
	}{
		{name: "good", sim: sim.Config{}},
		{name: "tls", sim: sim.Config{Speaks: sim.OverTLS}, code: "SL0109", words: "speaks TLS"},
		{name: "http2", sim: sim.Config{Speaks: sim.HTTP2Only}, code: "SL0109", words: "HTTP/2"},
		{name: "proxy", sim: sim.Config{Fault: sim.ErrorPage | sim.Deaf}, code: "SL0109", words: "HTML"},
		{name: "login", addr: other(200, "text/html; charset=utf-8", "<html>"), code: "SL0109", words: "HTML"},
		{name: "key", sim: sim.Config{Fault: sim.Unauthorized | sim.Deaf}, code: "SL0109", words: "wants a key"},
		{name: "exporter", addr: other(404, "text/plain", "404 page not found"), code: "SL0109", words: "GET /v1/models: status 404"},
		{name: "zmq-port", addr: func() string {
			return strings.TrimPrefix(simulated(t, sim.Config{Model: lab.ModelName, Prompt: p}).EventsAddr(), "tcp://")
		}, code: "SL0109", words: "no HTTP"},
		{name: "refused", addr: func() string { return freeAddr(t) }, code: "SL0109", words: "refused"},
		{name: "unresolved", addr: func() string { return "none.invalid:8000" }, code: "SL0109", words: "resolve"},
		{name: "cut-off", addr: func() string {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(w, `{"object":"list","data":[{`)
			}))
			t.Cleanup(s.Close)
			return strings.TrimPrefix(s.URL, "http://")
		}, code: "SL0109", words: "broken off"},
		{name: "hangs", sim: sim.Config{Fault: sim.Hang | sim.Deaf}, code: "SL0109", page: "SL0303", words: "gives no answer in"},
		{name: "other-model", sim: sim.Config{Model: "qwen3"}, code: "SL0103", words: "serves no model called"},
		{name: "other-release", sim: sim.Config{Version: "0.31.0"}, code: "SL0107", words: "0.31.0"},
		{name: "no-events", sim: sim.Config{Bare: true}, code: "SL0301", words: "publishes no KV events"},
		{name: "http-as-events", events: "tcp://ADDR", code: "SL0303", words: "ZeroMQ"},
	}
	var workers strings.Builder
	for i := range cases {
		c := &cases[i]
		addr := ""
		if c.addr != nil {
			addr = c.addr()
		} else {
			c.sim.Model, c.sim.Prompt = stringOr(c.sim.Model, lab.ModelName), p
			addr = simulated(t, c.sim).Addr()
		}
		events := "{auto: true}"
		if c.events != "" {
			events = "{zmq: \"" + strings.ReplaceAll(c.events, "ADDR", addr) + "\"}"
		}
		fmt.Fprintf(&workers, "- {name: %s, addr: %q, events: %s}\n", c.name, addr, events)
	}
	dir, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	admin, file := freeAddr(t), filepath.Join(t.TempDir(), "sightline.yaml")
	text := fmt.Sprintf("listen: %s\nadmin: %s\ndrain: 0s\nmodels: [{name: %s, dir: %q, engine_version: 0.32.0}]\nworkers:\n%s",
		freeAddr(t), admin, lab.ModelName, dir, workers.String())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	process := startProcess(t, "sightline", func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
	began, page, unsaid, shown := time.Now(), []byte(nil), "all", map[string]bool{}
	defer func() { t.Logf("after %v log and page lack: %q", time.Since(began).Round(time.Second), unsaid) }()
	eventually(t, "log and page name each", func() bool { // within ten seconds, on a machine that is not busy
		logged, err := os.ReadFile(process.log.Name())
		if err != nil {
			t.Fatal(err)
		}
		page, err = lab.Get("http://" + admin + "/problems")
		if err != nil {
			return false
		}
		unsaid = ""
		for _, c := range cases[1:] {
			said := false
			for line := range strings.Lines(string(logged)) {
				said = said || strings.Contains(line, `"`+c.name+`"`) && strings.Contains(line, c.words)
			}
			for _, one := range gjson.ParseBytes(page).Array() {
				for i, w := range one.Get("workers").Array() {
					detail := one.Get(fmt.Sprint("details.", i)).Str
					says := strings.Contains(stringOr(detail, one.Get("what").Str), c.words)
					if w.Str == c.name && one.Get("code").Str == stringOr(c.page, c.code) && says {
						shown[c.name] = true // of what hangs that it does not answer, until it counts as out
					}
				}
			}
			if !said || !shown[c.name] {
				unsaid += fmt.Sprintf("%s: %s %q, log %t, page %t; ", c.name, stringOr(c.page, c.code), c.words, said, shown[c.name])
			}
		}
		return unsaid == ""
	})
	var lines []string
	checks, _ := doctored(t, bin, file, "--no-canary")
	for _, c := range checks {
		for _, said := range c.Evidence {
			lines = append(lines, c.Code+" "+said)
		}
	}
	for _, c := range cases[1:] {
		if !slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, c.code+" ") && strings.Contains(line, c.name) && strings.Contains(line, c.words)
		}) {
			t.Errorf("%s: doctor does not say %s, %q", c.name, c.code, c.words)
		}
	}
	if strings.Contains(string(page), `"good"`) {
		t.Error("the good worker has a problem")
	}
	if t.Failed() {
		t.Log(string(page), "\n", strings.Join(lines, "\n"))
	}
}

func stringOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}
