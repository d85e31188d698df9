package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	ask      func(body map[string]any, chunks int) (answer string)
}

const whole = -1 // chunks of an answer that is read to its end

func (k *vllmTalk) user() {
	k.messages = append(k.messages, map[string]any{"role": "user", "content": words(k.rng, 10+k.rng.IntN(30))})
}

func (k *vllmTalk) answered(text string) {
	k.messages = append(k.messages, map[string]any{"role": "assistant", "content": text})
}

// request sends the conversation as it is, with more fields.
func (k *vllmTalk) request(more map[string]any) string { return k.read(whole, more) }

// read sends it, and breaks off behind some chunks of the answer.
func (k *vllmTalk) read(chunks int, more map[string]any) string {
	body := map[string]any{"model": k.model, "messages": k.messages, "max_tokens": 4 + k.rng.IntN(44), "temperature": 0}
	maps.Copy(body, k.more)
	maps.Copy(body, more)
	return k.ask(body, chunks)
}

func streamed() map[string]any {
	return map[string]any{"stream": true, "stream_options": map[string]any{"include_usage": true}}
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
	{"streamed", func(k *vllmTalk) { k.answered(k.request(streamed())) }},
	{"broken off", func(k *vllmTalk) {
		if k.rng.IntN(2) == 0 {
			k.answered(k.request(streamed()))
			return
		}
		more := streamed()
		more["max_tokens"] = 200
		k.answered(k.read(1+k.rng.IntN(40), more))
	}},
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
		k.more = maps.Clone(k.more)
		if k.more == nil {
			k.more = make(map[string]any)
		}
		k.more["tools"], k.more["tool_choice"] = []any{tool}, "none"
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
		unfiled{name: "LFM2, states", config: "lfm2"}, unfiled{name: "Llama 4, chunks", config: "llama4"},
		unfiled{name: "Gemma 4, windows", config: "gemma4", block: 32}, unfiled{name: "Qwen3-Next, states", config: "qwen3_next", block: 48})
	var mu sync.Mutex
	t.Run("models", func(t *testing.T) {
		for i := range models {
			m := &models[i]
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				l := m.serve(t, forks)
				var sum learnedTally
				for at := range talkKinds {
					t.Run(talkKinds[at].name, func(t *testing.T) {
						one := m.talks(t, l, at, talks)
						fmt.Printf("e2e-learned: vLLM %s, %s, answers %s: %+v\n", version, m.name, talkKinds[at].name, one)
						sum.add(one)
						mu.Lock()
						byKind[at].add(one)
						mu.Unlock()
					})
				}
				fmt.Printf("e2e-learned: vLLM %s, %s: %+v\n", version, m.name, sum)
			})
		}
	})
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
	common := shortWords(t)
	for i := range talks {
		parts := []any{map[string]any{"type": "text", "text": words(rng, 20)}}
		if m.medium != nil && i%2 == 0 {
			parts = slices.Insert(parts, map[bool]int{true: 1}[m.behind], m.medium(uint64(100*at+i/4))) // two conversations have the same
		}
		k := &vllmTalk{model: m.config, rng: rng, messages: []any{system, map[string]any{"role": "user", "content": parts}}}
		if i%2 == 1 { // answers in words that become the tokens they were, as those of trained models do; the others are in any tokens
			k.more = map[string]any{"allowed_token_ids": common}
		}
		k.ask = func(body map[string]any, chunks int) string {
			t.Helper()
			seen := func() float64 { return metric(t, l, "sightline_learned_requests_total", "") }
			before, last := seen(), lastDecision(t, l).Get("id").Str
			r, text := answerOf(t, l, body, chunks)
			if r.status != 200 {
				t.Fatalf("%s: status %d: %.300s", kind.name, r.status, r.body)
			}
			if chunks != whole {
				quiet(t, l)
				return text
			}
			d := lastDecision(t, l)
			if d.Get("id").Str == last { // Envoy found Sightline too slow, and asked nobody
				t.Logf("%s: a request without a decision", kind.name)
				return text
			}
			y.compare(t, kind.name, d, r, cmp.Or(m.block, 16))
			eventually(t, "the request is learned", func() bool { return seen() > before })
			return text
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

// shortWords are the models' tokens of a space and three letters.
func shortWords(t *testing.T) (ids []int64) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(modelDir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	gjson.GetBytes(raw, "model.vocab").ForEach(func(token, id gjson.Result) bool {
		word := strings.TrimPrefix(token.Str, "Ġ")
		if len(word) == 3 && len(token.Str) > 3 && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") == "" {
			ids = append(ids, id.Int())
		}
		return len(ids) < 200
	})
	return ids
}

// answerOf sends a request and returns its answer's text: of a stream the first chunks with some, if it is not read to its end.
func answerOf(t *testing.T, l *lab.Lab, body map[string]any, chunks int) (r result, text string) {
	t.Helper()
	if body["stream"] == nil {
		r = post(t, l, body, nil)
		return r, gjson.Get(r.body, "choices.0.message.content").Str
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(l.URL+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	lines := bufio.NewScanner(resp.Body)
	for chunks != 0 && lines.Scan() {
		line := strings.TrimPrefix(lines.Text(), "data: ")
		if piece := gjson.Get(line, "choices.0.delta.content").Str; piece != "" {
			text += piece
			chunks--
		}
		if u := gjson.Get(line, "usage"); u.IsObject() {
			r.prompt, r.cached = int(u.Get("prompt_tokens").Int()), int(u.Get("prompt_tokens_details.cached_tokens").Int())
		}
	}
	return r, text
}

// compare adds a decision and what the engine found.
func (y *learnedTally) compare(t *testing.T, kind string, d gjson.Result, r result, block int) {
	t.Helper()
	predicted, cached, has := int(d.Get("cached_tokens").Int()), r.cached, r.prompt
	switch d.Get("reason").Str {
	case "learned":
		y.learned++
		switch {
		case predicted == cached:
			y.equal++
		case predicted > cached:
			y.above++
			t.Errorf("answers %s: learned %d, vLLM's %d of %d (%s)", kind, predicted, cached, has, d.Get("why").Str)
		case predicted < cached-block:
			y.below++
			t.Logf("answers %s: learned %d, vLLM's %d of %d (%s)", kind, predicted, cached, has, d.Get("why").Str)
		}
	case "predicted":
		y.predicted++
		if predicted >= has {
			y.beyond++
			t.Errorf("answers %s: predicted %d of a prompt of %d, of which %d were cached: %s", kind, predicted, has, cached, d.Raw)
		}
	}
}
