package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

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
			eventually(t, "the report has what waited at the worker", func() bool { // once Envoy has logged their ends
				page, err := lab.Get("http://" + l.Admin + "/report")
				if n := gjson.GetBytes(page, "waited.1.n").Int(); err != nil || n < 3 {
					t.Logf("got %v, a report of %d requests that waited at their worker, want 3 at least", err, n)
					return false
				}
				return true
			})
		})
	}
}

// A worker that does not say in which order it serves shows it: of a document and the chats that came a second after it, all of which wait,
// it computes first what is due first, or what came first. Of the latter a note tells the flag.
func TestOrderIsObserved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		priority sim.Priority
		serves   string
		noted    bool
	}{
		{"by priority", sim.ByPriority, "lowest first, as observed", false},
		{"as they come", sim.NoPriority, "as they come, as observed", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := startLab(t, func(o *lab.Options) {
				o.Workers, o.Speed = 1, 1
				o.Sim = func(_ int, s *sim.Config) {
					s.BlockSize, s.MaxSeqs, s.Priority = 16, 1, c.priority
					s.Time = sim.TimeModel{Prefill: 10 * time.Microsecond, Decode: 4 * time.Millisecond}
				}
			})
			long := func(word string) string { return strings.Repeat(word+" ", 1500) }
			send := func(tokens int, text string, header http.Header) {
				r := post(t, l, map[string]any{"model": lab.ModelName, "max_tokens": tokens,
					"messages": []any{map[string]any{"role": "user", "content": text}}}, header)
				if r.status != http.StatusOK {
					t.Errorf("got %d %.200s, want 200", r.status, r.body)
				}
			}
			send(1, long("chat"), nil)
			var all sync.WaitGroup
			waits := 0
			wait := func(what string, tokens int, text string, header http.Header) {
				all.Go(func() { send(tokens, text, header) })
				eventually(t, what+" is at the worker", func() bool {
					s := l.Sims[0].Stats()
					return s.Running == 1 && s.Waiting == waits
				})
				waits++
			}
			wait("what takes long", 1000, "something that takes long", nil)
			wait("the document", 1, long("document"), http.Header{"X-Slo-Ttft-Ms": {"20000"}})
			time.Sleep(1200 * time.Millisecond) // what is tested is that it waits for so long
			for i := range 3 {
				wait("a chat", 1, long("chat")+strings.Repeat(fmt.Sprint("go on with ", i, " "), 12), nil)
			}
			all.Wait()
			eventually(t, "what the worker has shown", func() bool {
				rows, err := lab.Get("http://" + l.Admin + "/workers")
				return err == nil && gjson.GetBytes(rows, "0.serves").Str == c.serves
			})
			found, err := lab.Get("http://" + l.Admin + "/problems")
			if noted := bytes.Contains(found, []byte("--scheduling-policy priority")); err != nil || noted != c.noted {
				t.Errorf("the flag is named: got %t, %v, want %t, in %s", noted, err, c.noted, found)
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
