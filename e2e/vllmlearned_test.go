package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// vllmTalk is a conversation with a real vLLM of whose model Sightline has no file.
type vllmTalk struct {
	model    string
	rng      *rand.Rand
	messages []any
	more     map[string]any // of each request
	ask      func(body map[string]any, teaches bool) (answer string)
}

func (k *vllmTalk) user() {
	k.messages = append(k.messages, map[string]any{"role": "user", "content": words(k.rng, 10+k.rng.IntN(30))})
}

func (k *vllmTalk) answered(text string) {
	k.messages = append(k.messages, map[string]any{"role": "assistant", "content": text})
}

// request sends the conversation as it is, with more fields.
func (k *vllmTalk) request(more map[string]any) string {
	body := map[string]any{"model": k.model, "messages": k.messages, "max_tokens": 12 + k.rng.IntN(60), "temperature": 0}
	maps.Copy(body, k.more)
	maps.Copy(body, more)
	_, recomputed := body["prompt_logprobs"]
	return k.ask(body, !recomputed)
}

func half(text string, second bool) string {
	list := strings.Fields(text)
	if second {
		return strings.Join(list[len(list)/2:], " ")
	}
	return strings.Join(list[:len(list)/2], " ")
}

// talkKinds are what clients do with answers. Each function has one turn behind a user's message: what is asked, and what comes back of it.
var talkKinds = []struct {
	name string
	turn func(k *vllmTalk)
}{
	{"kept", func(k *vllmTalk) { k.answered(k.request(nil)) }},
	{"edited", func(k *vllmTalk) {
		answer := k.request(nil)
		if k.rng.IntN(3) == 0 { // between kept ones
			answer = half(answer, false) + " no: " + half(answer, true)
		}
		k.answered(answer)
	}},
	{"trimmed", func(k *vllmTalk) { k.answered(half(k.request(nil), false)) }},
	{"reasoning dropped", func(k *vllmTalk) {
		k.answered(half(k.request(map[string]any{"chat_template_kwargs": map[string]any{"thinking": true}}), true))
	}},
	{"regenerated", func(k *vllmTalk) {
		k.request(nil)
		k.answered(k.request(map[string]any{"temperature": 1, "seed": k.rng.IntN(1000)}))
	}},
	{"branched", func(k *vllmTalk) {
		before := slices.Clone(k.messages)
		k.answered(k.request(nil))
		k.user()
		k.request(nil)
		k.messages = before[:len(before)-1]
		k.user()
		k.answered(k.request(nil))
	}},
	{"tools", func(k *vllmTalk) {
		at := map[string]any{"type": "object", "properties": map[string]any{"at": map[string]any{"type": "string"}}}
		tool := map[string]any{"type": "function", "function": map[string]any{"name": "look", "description": "Looks.", "parameters": at}}
		k.more = map[string]any{"tools": []any{tool}, "tool_choice": "none"}
		id := fmt.Sprint("call-", k.rng.IntN(1000))
		call := map[string]any{"id": id, "type": "function",
			"function": map[string]any{"name": "look", "arguments": fmt.Sprintf(`{"at": "%d"}`, k.rng.IntN(1000))}}
		answer := k.request(nil)
		k.messages = append(k.messages, map[string]any{"role": "assistant", "content": half(answer, false), "tool_calls": []any{call}},
			map[string]any{"role": "tool", "tool_call_id": id, "content": words(k.rng, 12)})
		k.answered(k.request(nil))
	}},
	{"logprobs", func(k *vllmTalk) {
		k.request(map[string]any{"prompt_logprobs": 1})
		k.answered(k.request(map[string]any{"logprobs": true, "top_logprobs": 2}))
	}},
	{"cut off, several, again", func(k *vllmTalk) {
		k.request(map[string]any{"max_tokens": 1})
		k.request(map[string]any{"n": 2, "temperature": 1})
		k.answered(k.request(nil))
	}},
}

// learnedTally compares predictions with the engine's counts.
type learnedTally struct{ learned, equal, above, below, predicted, beyond int }

func (y *learnedTally) add(x learnedTally) {
	y.learned, y.equal, y.above, y.below = y.learned+x.learned, y.equal+x.equal, y.above+x.above, y.below+x.below
	y.predicted, y.beyond = y.predicted+x.predicted, y.beyond+x.beyond
}

// TestLearnedVLLM: what a real vLLM finds in its cache, of kinds of conversations whose models Sightline has no file of. What is called
// learned is never above that, and what is called predicted never above what the prompt can have.
func TestLearnedVLLM(t *testing.T) {
	installed := os.Getenv("SIGHTLINE_VLLM")
	if installed == "" {
		t.Skip("needs a real vLLM: make e2e-learned")
	}
	talks := 4
	_, _ = fmt.Sscan(os.Getenv("SIGHTLINE_LEARNED_TALKS"), &talks)
	forks, version := startForks(t, installed), versionOf(t, installed)
	byKind := make([]learnedTally, len(talkKinds))
	models := append(slices.Clone(unfiledModels), unfiled{name: "Gemma 3, windows", config: "gemma3"},
		unfiled{name: "LFM2, states", config: "lfm2"})
	for i := range models {
		m := &models[i]
		t.Run(m.name, func(t *testing.T) {
			l := m.serve(t, forks)
			var sum learnedTally
			for at := range talkKinds {
				one := m.talks(t, l, at, talks)
				sum.add(one)
				byKind[at].add(one)
				t.Logf("answers %s: %+v", talkKinds[at].name, one)
			}
			fmt.Printf("e2e-learned: vLLM %s, %s: %+v\n", version, m.name, sum)
		})
	}
	var all learnedTally
	for at, kind := range talkKinds {
		all.add(byKind[at])
		fmt.Printf("e2e-learned: vLLM %s, answers %s: %+v\n", version, kind.name, byKind[at])
	}
	fmt.Printf("e2e-learned: vLLM %s, all: %+v\n", version, all)
	if all.learned < 10*talks || all.equal*100 < all.learned*97 || all.below*100 > all.learned*2 {
		t.Errorf("got %d of %d learned equal, %d more than a block below; want 97 %% and at most 2 %%", all.equal, all.learned, all.below)
	}
}

// talks plays conversations of a kind.
func (m *unfiled) talks(t *testing.T, l *lab.Lab, at, talks int) (y learnedTally) {
	kind := &talkKinds[at]
	rng := rand.New(rand.NewPCG(uint64(at), 9))
	system := map[string]any{"role": "system", "content": words(rng, 120)}
	for i := range talks {
		parts := []any{map[string]any{"type": "text", "text": words(rng, 20)}}
		if m.medium != nil && i%2 == 0 {
			parts = slices.Insert(parts, map[bool]int{true: 1}[m.behind], m.medium(uint64(100*at+i/4))) // two conversations have the same
		}
		k := &vllmTalk{model: m.config, rng: rng, messages: []any{system, map[string]any{"role": "user", "content": parts}}}
		k.ask = func(body map[string]any, teaches bool) string {
			t.Helper()
			seen := func() float64 { return metric(t, l, "sightline_learned_requests_total", "") }
			before := seen()
			r := post(t, l, body, nil)
			if r.status != 200 {
				t.Fatalf("%s: status %d: %.300s", kind.name, r.status, r.body)
			}
			y.compare(t, kind.name, lastDecision(t, l), r)
			if teaches {
				eventually(t, "the request is learned", func() bool { return seen() > before })
			}
			return gjson.Get(r.body, "choices.0.message.content").Str
		}
		for turn := range 3 {
			if turn > 0 {
				k.user()
			}
			kind.turn(k)
		}
		k.messages = k.messages[:len(k.messages)-1]
		k.request(nil) // once more
	}
	return y
}

// compare adds a decision and what the engine found.
func (y *learnedTally) compare(t *testing.T, kind string, d gjson.Result, r result) {
	t.Helper()
	predicted, cached, has := int(d.Get("cached_tokens").Int()), r.cached, int(gjson.Get(r.body, "usage.prompt_tokens").Int())
	switch d.Get("reason").Str {
	case "learned":
		y.learned++
		switch {
		case predicted == cached:
			y.equal++
		case predicted > cached:
			y.above++
			t.Errorf("answers %s: learned %d, vLLM's %d of %d (%s)", kind, predicted, cached, has, d.Get("why").Str)
		case predicted < cached-16:
			y.below++
			t.Logf("answers %s: learned %d, vLLM's %d of %d (%s)", kind, predicted, cached, has, d.Get("why").Str)
		}
	case "predicted":
		y.predicted++
		if predicted >= has {
			y.beyond++
			t.Errorf("answers %s: predicted %d of a prompt of %d", kind, predicted, has)
		}
	}
}
