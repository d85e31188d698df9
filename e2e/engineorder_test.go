package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// Behind a real Envoy, a short chat that its worker has cached overtakes a long new document that came before it, where the worker serves
// by priority; whoever sent the document asks to be first, by headers and in the body, and gains nothing. A worker that refuses
// priorities refuses none of these.
func TestEngineOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		engine   sim.Engine
		priority sim.Priority
		tells    bool
		off      bool
		overtake bool
	}{
		{"vLLM", sim.VLLM, sim.ByPriority, true, false, true},
		{"vLLM that does not say", sim.VLLM, sim.ByPriority, false, false, true},
		{"vLLM, switched off", sim.VLLM, sim.ByPriority, true, true, false},
		{"vLLM, as they come", sim.VLLM, sim.NoPriority, true, false, false},
		{"SGLang", sim.SGLang, sim.ByPriority, true, false, true},
		{"SGLang that refuses", sim.SGLang, sim.RefusesPriority, true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := startLab
			if c.engine == sim.SGLang {
				run = func(t *testing.T, change func(*lab.Options)) *lab.Lab { return startEngines(t, c.engine, 16, change) }
			}
			l := run(t, func(o *lab.Options) {
				o.Workers, o.Speed = 1, 1
				o.Sim = func(_ int, s *sim.Config) {
					s.BlockSize, s.MaxSeqs, s.Priority, s.TellsConfig = 16, 1, c.priority, c.tells
					s.Time = sim.TimeModel{Prefill: 10 * time.Microsecond, Decode: 4 * time.Millisecond}
				}
				if c.off {
					o.Config = func(keys map[string]any) { keys["models"].([]any)[0].(map[string]any)["engine_order"] = "off" }
				}
			})
			send := func(tokens int, text string) {
				body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"priority":-9000000000000000000,"messages":[{"role":"user","content":%q}]}`,
					lab.ModelName, tokens, text)
				req, _ := http.NewRequest(http.MethodPost, l.URL+chatPath, strings.NewReader(body))
				req.Header.Set("content-type", "application/json")
				req.Header.Set("x-vllm-priority", "-9000000000000000000")
				req.Header.Set("x-override-priority", "9000000000000000000")
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if answer, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
					t.Errorf("got %d %.200s, want 200", res.StatusCode, answer)
				}
			}
			long := func(word string) string { return strings.Repeat(word+" ", 1500) }
			if c.engine == sim.SGLang && c.priority == sim.ByPriority {
				eventually(t, "Sightline knows how the worker serves", func() bool {
					send(1, "hello")
					page, err := lab.Get("http://" + l.Admin + "/decisions")
					return err == nil && bytes.Contains(page, []byte(`"serves":"highest first"`))
				})
			}
			send(1, long("chat"))
			waits := func(n int) func() bool {
				return func() bool { s := l.Sims[0].Stats(); return s.Running == 1 && s.Waiting == n }
			}
			done := make(chan string, 3)
			for i, one := range []struct {
				name   string
				tokens int
				text   string
			}{{"first", 400, "something that takes long"}, {"document", 2, long("document")}, {"chat", 2, long("chat") + "go on"}} {
				go func() { send(one.tokens, one.text); done <- one.name }()
				eventually(t, one.name+" is at the worker", waits(i))
			}
			got, want := []string{<-done, <-done, <-done}, []string{"first", "document", "chat"}
			if c.overtake {
				want = []string{"first", "chat", "document"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q answered in this order, want %q", got, want)
			}
		})
	}
}

// The worker that a retry goes to is sent its own number: it has cached something else. A worker that is the only one gets its own
// again.
func TestRetryHasItsOwnOrder(t *testing.T) {
	t.Parallel()
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	first, second, dead := w.workers[0].addr, w.workers[1].addr, w.workers[2].addr
	w.workers[2].kill()
	for _, c := range []struct {
		targets, due []string
		at, want     string
	}{
		{[]string{first, second}, []string{"100", "200"}, first, "100"},
		{[]string{dead, second}, []string{"100", "200"}, second, "200"},
		{[]string{dead, second}, []string{"100"}, second, ""},
		{[]string{first, second}, nil, first, ""},
	} {
		r := w.send(w.client, "POST", chatPath, chat(script{Targets: c.targets, Due: c.due}), http.Header{"X-Vllm-Priority": {"-1"}})
		if got := strings.Join(r.Headers["X-Vllm-Priority"], ","); r.status != http.StatusOK || r.Worker != c.at || got != c.want {
			t.Errorf("%v: got status %d, number %q at %s, want 200, %q at %s", c.targets, r.status, got, r.Worker, c.want, c.at)
		}
	}
}
