package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// A model of which Sightline has no file: no tokenizer, no template, no rule for its images. From the second sighting on its requests are
// routed by what the workers hold, and the cached tokens are known.
func TestLearnsWithoutFiles(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["models"], keys["fixed"] = []any{map[string]any{"name": lab.ModelName}}, unprobed()
		}
		o.Front = func(o *envoy.Options) { o.TokenUsage = true }
	})
	asked := 0
	// ended waits until it is known what each request so far has taught.
	ended := func() {
		t.Helper()
		eventually(t, "all requests have ended", func() bool { return int(metric(t, l, "sightline_learned_requests_total", "")) >= asked })
	}
	taught := func() int { return int(metric(t, l, "sightline_learned_requests_total", `"learned"`)) }
	message := func(role string, content any) any { return map[string]any{"role": role, "content": content} }
	learn := func(messages ...any) result {
		t.Helper()
		ended()
		before := taught()
		r := post(t, l, map[string]any{"messages": messages}, nil)
		asked++
		if r.status != 200 {
			t.Fatalf("got %d %s, want 200", r.status, r.body)
		}
		eventually(t, "the request is learned", func() bool {
			for _, o := range []string{"unattributed", "doubtful", "no_room"} {
				if n := metric(t, l, "sightline_learned_requests_total", `"`+o+`"`); n > 0 {
					t.Fatalf("%v requests are %s, want 0", n, o)
				}
			}
			return taught() > before
		})
		return r
	}
	// expect sends a request whose hits must be learned and right.
	expect := func(what string, worker int, messages ...any) {
		t.Helper()
		r := post(t, l, map[string]any{"messages": messages}, nil)
		asked++
		d := lastDecision(t, l)
		if r.status != 200 || r.cached == 0 || d.Get("reason").Str != "learned" || int(d.Get("cached_tokens").Int()) != r.cached ||
			worker >= 0 && r.worker != worker {
			t.Errorf("%s: at worker %d, want %d: %d tokens cached, predicted %d, %s (%s)", what, r.worker, worker, r.cached,
				d.Get("cached_tokens").Int(),
				d.Get("reason").Str, d.Get("why").Str)
		}
	}
	image := []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(71))}},
		map[string]any{"type": "text", "text": "What is this?"}}
	first := learn(message("user", image))
	if d := lastDecision(t, l); d.Get("reason").Str != "load" {
		t.Errorf("a first sighting is decided by %s, want %q", d.Get("reason").Str, "load")
	}
	expect("the same request", first.worker, message("user", image))
	conversation := []any{message("user", image), message("assistant", gjson.Get(first.body, "choices.0.message.content").Str),
		message("user", "Which colours do they have?")}
	second := learn(conversation...)
	if second.worker != first.worker || second.cached == 0 {
		t.Errorf("the conversation went on at worker %d with %d tokens cached, want worker %d", second.worker, second.cached, first.worker)
	}
	expect("the conversation's second turn again", first.worker, conversation...)

	system := message("system", words(rand.New(rand.NewPCG(5, 5)), 300))
	for i := range 2 {
		learn(system, message("user", fmt.Sprintf("%d is a number. Which one?", i)))
	}
	expect("a shared beginning, the third time", -1, system, message("user", "And what do you know of whales?"))
	for _, question := range []string{"Xylophones are instruments?", "Zebras?", "Quiet, please."} {
		expect("again, with other questions", -1, system, message("user", question))
	}
	// The second of two siblings follows the first before anything is learned.
	for i := range uint64(4) {
		url := dataURL(photo(80 + i))
		a, b := ask(t, l, "What is this?", url), ask(t, l, "And what is that?", url)
		if a.worker != b.worker {
			t.Errorf("an image that is on its way to worker %d goes to worker %d too, want %d", a.worker, b.worker, b.worker)
		}
	}
	if n := metric(t, l, "sightline_cached_tokens_reported_total", `"fewer"`) +
		metric(t, l, "sightline_cached_tokens_reported_total", `"more"`); n != 0 {
		all, _ := lab.Get("http://" + l.Admin + "/decisions?n=20")
		t.Errorf("%v predictions were wrong: %s, want 0", n, all)
	}
}

// A release older than those that are read: its requests are learned from its events, and the page says what to do.
func TestLearnsFromAnOldRelease(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["models"].([]any)[0].(map[string]any)["engine_version"] = "0.22.1"
			keys["fixed"] = unprobed()
		}
		o.Front = func(o *envoy.Options) { o.TokenUsage = true }
	})
	question := words(rand.New(rand.NewPCG(7, 7)), 300)
	first := ask(t, l, question)
	eventually(t, "the request is learned", func() bool { return metric(t, l, "sightline_learned_requests_total", `"learned"`) == 1 })
	r := ask(t, l, question)
	d := lastDecision(t, l)
	if r.cached == 0 || r.worker != first.worker || d.Get("reason").Str != "learned" || int(d.Get("cached_tokens").Int()) != r.cached {
		t.Errorf("got worker %d, %d tokens cached, %d predicted, by %s; want worker %d, learned", r.worker, r.cached,
			d.Get("cached_tokens").Int(), d.Get("reason").Str, first.worker)
	}
	problems, err := lab.Get("http://" + l.Admin + "/problems")
	if want := "engine_version: vllm 0.22.1 is older than 0.23.0"; err != nil || !strings.Contains(string(problems), want) {
		t.Errorf("got %s (%v), want %q in it", problems, err, want)
	}
}

// Clients that give back other answers than were generated, whole or in part, or none, and requests for which the engine does not read its
// cache: without a file, no prediction is above what the engine finds of the prompt.
func TestLearnsWithoutAnswers(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["models"], keys["fixed"] = []any{map[string]any{"name": lab.ModelName}}, unprobed()
		}
		o.Front = func(o *envoy.Options) { o.TokenUsage = true }
	})
	asked := 0
	send := func(what, reason string, body map[string]any) (answer string, prompt int) {
		t.Helper()
		eventually(t, "all requests have ended", func() bool { return int(metric(t, l, "sightline_learned_requests_total", "")) >= asked })
		body["max_tokens"] = 150
		r, d := post(t, l, body, nil), lastDecision(t, l)
		asked++
		predicted, got := int(d.Get("cached_tokens").Int()), d.Get("reason").Str
		prompt = int(gjson.Get(r.body, "usage.prompt_tokens").Int())
		switch reason {
		case "learned":
			if got != reason || predicted != r.cached {
				t.Errorf("%s: %s, %d tokens predicted, want learned and %d", what, got, predicted, r.cached)
			}
		case "predicted":
			if got != reason || predicted > r.cached || predicted == 0 {
				t.Errorf("%s: %s, %d tokens predicted, want predicted and some of %d (the prompt has %d)", what, got, predicted, r.cached, prompt)
			}
		case "recomputed":
			if why := d.Get("why").Str; predicted != 0 || r.cached != 0 || why != "the engine bypasses its cache for this request" {
				t.Errorf("%s: %d tokens predicted (%s), want 0 as the engine's %d", what, predicted, why, r.cached)
			}
		}
		return gjson.Get(r.body, "choices.0.message.content").Str, prompt
	}
	for i, what := range []string{"replaced", "replaced", "replaced", "kept", "kept", "replaced", "trimmed", "kept", "kept", "extended",
		"none"} {
		rng := rand.New(rand.NewPCG(uint64(i), 8))
		message := func(role, content string) any { return map[string]any{"role": role, "content": content} }
		talk := []any{message("user", words(rng, 60))}
		answer, _ := send(what+", the first turn", "", map[string]any{"messages": talk})
		switch what {
		case "replaced":
			answer = words(rng, 9)
		case "trimmed":
			answer = answer[:len(answer)/2]
		case "extended":
			answer += words(rng, 9)
		}
		if what != "none" {
			talk = append(talk, message("assistant", answer))
		}
		talk = append(talk, message("user", words(rng, 5)))
		send(what, "predicted", map[string]any{"messages": talk})
		send(what+", again", "learned", map[string]any{"messages": talk})
	}
	talk := []any{map[string]any{"role": "user", "content": words(rand.New(rand.NewPCG(9, 9)), 90)}}
	for i := range 3 {
		send(fmt.Sprint("prompt_logprobs, time ", i), "recomputed", map[string]any{"messages": talk, "prompt_logprobs": 1})
		send(fmt.Sprint("echo, time ", i), "recomputed", map[string]any{"messages": talk, "echo": true})
	}
}

// Engines whose events name no sessions, and answers without counts: requests that are open at once teach guesses, which are predicted
// until another one agrees. No prediction that is called learned is above what the engine finds.
func TestLearnsWithoutSessions(t *testing.T) {
	t.Parallel()
	for _, engine := range []sim.Engine{sim.SGLang, sim.TRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			const size = 16
			l := startEngines(t, engine, size, func(o *lab.Options) {
				o.Config = func(keys map[string]any) {
					model := map[string]any{"name": lab.ModelName, "engine": string(engine), "block_size": size}
					if engine == sim.TRTLLM {
						model["engine_version"] = "1.3.0"
					}
					keys["models"], keys["fixed"] = []any{model}, unprobed()
				}
				o.Front = func(o *envoy.Options) { o.TokenUsage = false }
			})
			const atOnce, rounds = 4, 6
			body := func(i int) map[string]any {
				return map[string]any{"messages": []any{map[string]any{"role": "user",
					"content": fmt.Sprint(i, " ", words(rand.New(rand.NewPCG(uint64(i), 3)), 60))}}}
			}
			first := make([]result, atOnce*rounds)
			for round := range rounds {
				var all sync.WaitGroup
				for k := range atOnce {
					i := round*atOnce + k
					all.Go(func() { first[i] = post(t, l, body(i), nil) })
				}
				all.Wait()
				eventually(t, "all requests have ended", func() bool {
					return int(metric(t, l, "sightline_learned_requests_total", "")) >= (round+1)*atOnce
				})
			}
			home, hits := 0, 0
			for i := range first {
				r := post(t, l, body(i), nil)
				d := lastDecision(t, l)
				if r.worker == first[i].worker {
					home++
				}
				if predicted := int(d.Get("cached_tokens").Int()); predicted > 0 {
					hits++
					if d.Get("reason").Str == "learned" && predicted > r.cached {
						t.Errorf("request %d: learned %d tokens, the engine found %d", i, predicted, r.cached)
					}
				}
			}
			if home < len(first)*3/4 || hits < len(first)*3/4 {
				t.Errorf("%d of %d requests came to the worker that has them, %d hits predicted, want three of four", home, len(first), hits)
			}
			if n := metric(t, l, "sightline_learned_requests_total", `"guessed"`); n == 0 {
				t.Error("no request taught a guess, want some: they were open at once")
			}
		})
	}
}

// A chat template that changes, as in a rollout, does not end for good what can be learned of a beginning that all requests share.
func TestTemplateChangesWithoutFiles(t *testing.T) {
	t.Parallel()
	var other atomic.Bool
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["models"], keys["fixed"] = []any{map[string]any{"name": lab.ModelName}}, unprobed()
		}
		o.Sim = func(_ int, c *sim.Config) {
			read := c.Prompt
			c.Prompt = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
				list, err := read(ctx, path, body)
				for i := range list {
					if other.Load() {
						list[i].Tokens = append([]uint32{7, 7, 7}, list[i].Tokens...)
					}
				}
				return list, err
			}
		}
	})
	system, asked := map[string]any{"role": "system", "content": words(rand.New(rand.NewPCG(5, 5)), 300)}, 0
	send := func() result {
		t.Helper()
		asked++
		question := map[string]any{"role": "user", "content": fmt.Sprint(asked, " is a number. Which one?")}
		r := post(t, l, map[string]any{"messages": []any{system, question}}, nil)
		if r.status != 200 {
			t.Fatalf("got %d %s, want 200", r.status, r.body)
		}
		return r
	}
	expect := func(what string) {
		t.Helper()
		eventually(t, "all requests have ended", func() bool { return int(metric(t, l, "sightline_learned_requests_total", "")) >= asked })
		r, d := send(), lastDecision(t, l)
		if more := r.cached - int(d.Get("cached_tokens").Int()); d.Get("reason").Str != "learned" || r.cached == 0 || more < 0 || more > 16 {
			t.Errorf("%s: %d tokens cached at worker %d, predicted %d, %s (%s)", what, r.cached, r.worker, d.Get("cached_tokens").Int(),
				d.Get("reason").Str, d.Get("why").Str)
		}
	}
	for range 4 {
		send()
	}
	expect("with the first template")
	other.Store(true)
	for range 24 {
		send()
	}
	expect("with another one")
}
