package router

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// talker is an engine without files, and its clients. A word is a token for every four letters, or for each letter where the engine
// generated it so.
type talker struct {
	*world
	rng       *rand.Rand
	odd       bool // answers are generated letter by letter: the same text comes back as other tokens
	unseen    bool // responses do not pass by
	unnamed   bool // events name no sessions
	uncounted bool // ends tell no tokens
	soon      bool // requests follow each other within seconds
	count     map[string]int
	kind      string // of what a client does, for messages
}

// chatMessage is a message as clients send it.
type chatMessage map[string]any

// words are n random words.
func (e *talker) words(n int) string {
	var b strings.Builder
	for range n {
		for range 1 + e.rng.IntN(9) {
			b.WriteByte(byte('a' + e.rng.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// tokensOfText are a text's tokens: each a space or line's end, or up to size letters.
func tokensOfText(text string, size int) (list []string) {
	for len(text) > 0 {
		n := 1
		for n < size && n < len(text) && text[n] != ' ' {
			n++
		}
		list, text = append(list, text[:n]), text[n:]
	}
	return list
}

// chatPrompt is what the template makes of messages: it leaves reasoning out, and prints tools' arguments.
func chatPrompt(messages []chatMessage) (tokens []string) {
	for _, m := range messages {
		tokens = append(tokens, "<"+m["role"].(string)+">")
		switch content := m["content"].(type) {
		case string:
			tokens = append(tokens, tokensOfText(content, 4)...)
		case []chatMessage: // a clip of sound, of 20 to 70 tokens, and a text
			clip := content[0]["input_audio"].(string)
			for range 20 + 10*(int(clip[0])%6) {
				tokens = append(tokens, "<"+clip+">")
			}
			tokens = append(tokens, tokensOfText(content[1]["text"].(string), 4)...)
		}
		if calls, ok := m["tool_calls"].(string); ok {
			tokens = append(tokens, tokensOfText(calls, 4)...)
		}
		tokens = append(tokens, "<end>")
	}
	return append(tokens, "<assistant>")
}

// localsOf are the blocks of some tokens.
func localsOf(tokens []string) (locals []uint64) {
	for ; len(tokens) >= 16; tokens = tokens[16:] {
		h := uint64(14695981039346656037)
		for _, c := range []byte(strings.Join(tokens[:16], "\x00")) {
			h = (h ^ uint64(c)) * 1099511628211
		}
		locals = append(locals, h)
	}
	return locals
}

// spoken is an answer: what the client gets, as parts of a message, and its tokens.
type spoken struct {
	message chatMessage
	tokens  []string
	cut     bool // by max_tokens
	broken  bool // the stream breaks off halfway
	more    int  // other choices
}

// say makes an answer of some words.
func (e *talker) say(n int) spoken {
	text, size := e.words(n), 4
	if e.odd {
		size = 1
	}
	return spoken{message: chatMessage{"role": "assistant", "content": text}, tokens: append(tokensOfText(text, size), "<end>")}
}

// ask sends messages, compares what is predicted with what is found, and has the answer stored and read.
func (e *talker) ask(messages []chatMessage, a spoken) {
	e.t.Helper()
	request := map[string]any{"model": "m", "messages": messages, "n": 1 + a.more}
	raw, _ := json.Marshal(request)
	d := e.decide(string(raw))
	tokens := chatPrompt(messages)
	all := localsOf(append(slices.Clone(tokens), a.tokens[:len(a.tokens)-1]...))
	hashes := block.Fixed().Chain(nil, all)
	slot := e.slots[0]
	for _, s := range e.slots {
		if s.Worker.Addr == d.Targets[0].Addr {
			slot = s
		}
	}
	held, m := 0, indexer.Matches{}
	e.index.Match(all[:len(tokens)/16], &m)
	for _, one := range m.Slots {
		if one.Slot == slot.ID {
			held = int(one.Blocks)
		}
	}
	found := min(held, (len(tokens)-1)/16) * 16
	what := fmt.Sprintf("%s, %d tokens: %s %d, found %d (%s)", e.kind, len(tokens), d.Reason, d.CachedTokens, found, d.Why)
	e.count["asked"]++
	e.count[string(d.Reason)]++
	switch {
	case d.CachedTokens > len(tokens):
		e.t.Errorf("%s: above the prompt", what)
	case d.Reason == Learned && d.CachedTokens > found:
		e.t.Errorf("%s: above what is found", what)
	case d.CachedTokens == found:
		e.count["equal"]++
	}
	session := d.Session
	if e.unnamed {
		session = ""
	}
	store := func(from, to int) {
		if from >= to {
			return
		}
		ev := kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: all[from:to], EngineHashes: hashes[from:to],
			HasParent: from > 0, Session: session}
		if from > 0 {
			ev.Parent = hashes[from-1]
		}
		e.Learner().Stored(slot.ID, &ev)
		if err := e.index.Store(slot.ID, kvevent.GPU, ev.Parent, ev.HasParent, ev.EngineHashes, ev.Locals); err != nil {
			e.t.Fatal(err)
		}
	}
	store(held, len(tokens)/16)
	for i := max(held, len(tokens)/16); i < len(all); i++ {
		store(i, i+1)
	}
	if !e.unseen {
		e.stream(d, a)
	}
	o := Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1, PromptTokens: len(tokens),
		OutputTokens: len(a.tokens)}
	if e.uncounted {
		o.PromptTokens, o.OutputTokens = -1, 0
	}
	e.Observe(o)
	e.now = e.now.Add(map[bool]time.Duration{false: time.Minute, true: 1100 * time.Millisecond}[e.soon])
	e.Learner().Settle(e.now)
}

// stream is the response, in pieces of any size: a stream's events or an object.
func (e *talker) stream(d Decision, a spoken) {
	finish := map[bool]string{false: "stop", true: "length"}[a.cut]
	line := func(v any) string {
		raw, _ := json.Marshal(v)
		return string(raw)
	}
	choice := func(name string, i int, m chatMessage, finish any) any {
		return map[string]any{"choices": []any{map[string]any{"index": i, name: m, "finish_reason": finish}}}
	}
	text := line(choice("message", 0, a.message, finish))
	if e.rng.IntN(2) == 0 {
		text = ""
		for i := range 1 + a.more {
			for key, v := range a.message {
				for _, token := range tokensOfText(fmt.Sprint(v), 6) {
					text += "data: " + line(choice("delta", i, chatMessage{key: token}, nil)) + "\n\n"
				}
			}
			text += "data: " + line(choice("delta", i, chatMessage{}, finish)) + "\n\n"
		}
		text += "data: [DONE]\n\n"
	} else if a.more > 0 {
		text = line(map[string]any{"choices": []any{map[string]any{"index": 0, "message": a.message, "finish_reason": finish},
			map[string]any{"index": 1, "message": a.message, "finish_reason": finish}}})
	}
	if a.broken {
		text = text[:len(text)/2]
	}
	for len(text) > 0 {
		n := min(len(text), 1+e.rng.IntN(200))
		d.Said.Write([]byte(text[:n]), n == len(text) && !a.broken)
		text = text[n:]
	}
}

// Whatever clients do with answers, nothing that is called learned is above what the engine finds, and nothing that is predicted above
// what the prompt can hold. What was generated counts if it came back as it was, once two such answers were made of the same blocks.
func TestAnswersByContent(t *testing.T) {
	kinds := []string{"kept", "edited", "trimmed", "reasoning dropped", "reasoning given back", "tool calls printed anew", "cut",
		"regenerated", "branched", "several", "broken off", "all"}
	for _, way := range []string{"", "odd", "unseen", "unnamed", "uncounted", "unnamed and uncounted", "unseen, of sounds"} {
		for _, kind := range kinds {
			t.Run(kind+" "+way, func(t *testing.T) {
				e := newTalker(t, 7)
				e.odd, e.unseen = way == "odd", strings.HasPrefix(way, "unseen")
				e.unnamed, e.uncounted = strings.Contains(way, "unnamed"), strings.Contains(way, "uncounted")
				system := chatMessage{"role": "system", "content": e.words(100)}
				for i := range 8 {
					if i == 2 {
						e.count = map[string]int{}
					}
					what := kind
					if kind == "all" {
						what = kinds[e.rng.IntN(len(kinds)-1)]
					}
					question := chatMessage{"role": "user", "content": e.words(20)}
					if strings.HasSuffix(way, "sounds") {
						question["content"] = []chatMessage{{"type": "input_audio", "input_audio": fmt.Sprint(i / 2)},
							{"type": "text", "text": question["content"]}}
					}
					e.talk(what, i, []chatMessage{system, question})
				}
				seen := slices.Contains([]string{"kept", "cut", "regenerated", "branched"}, kind) && !strings.HasPrefix(way, "unseen") &&
					way != "unnamed and uncounted"
				// A whole prompt again whose tokens nobody counted may end with its last block, and is predicted without it.
				again := kind == "regenerated" && way == "uncounted"
				if seen && !again && way != "odd" && e.count["equal"] < 8*e.count["asked"]/10 {
					t.Errorf("want nearly all equal: %v", e.count)
				}
			})
		}
	}
}

// Texts that part within a step of their paths: what two share of it a third one need not have.
func TestTextsPartWithinAStep(t *testing.T) {
	for _, base := range []int{0, 10, 80, 600, 3000, 5000} {
		e := newTalker(t, uint64(base))
		system := e.words(30)
		for i := range 20 {
			e.kind = fmt.Sprintf("parting behind %d letters, document %d", base, i)
			doc := e.words(1200)
			for range 6 {
				e.ask([]chatMessage{{"role": "system", "content": system + doc[:30]},
					{"role": "user", "content": doc[:base+e.rng.IntN(8)] + e.words(30)}}, e.say(5))
			}
		}
		if e.count["learned"] == 0 {
			t.Errorf("behind %d letters none is learned, want those that part between messages", base)
		}
	}
}

func newTalker(t *testing.T, seed uint64) *talker {
	e := &talker{world: newWorld(t, 3), rng: rand.New(rand.NewPCG(seed, 4)), count: map[string]int{}}
	e.withoutFiles(nil)
	return e
}

// talk is a conversation of which the client treats the answers in one way.
func (e *talker) talk(what string, i int, talk []chatMessage) {
	e.t.Helper()
	for turn := range 4 {
		a := e.say(20 + e.rng.IntN(40))
		text := a.message["content"].(string)
		given := chatMessage{"role": "assistant", "content": text}
		e.kind = fmt.Sprintf("%s, conversation %d, turn %d", what, i, turn)
		switch what {
		case "edited":
			if at := e.rng.IntN(len(text)); i%3 == 0 {
				given["content"] = text[:at] + e.words(2) + text[min(len(text), at+8):]
			}
		case "trimmed":
			given["content"] = text[:e.rng.IntN(len(text))]
		case "reasoning dropped", "reasoning given back":
			thought := e.words(40)
			a.message["reasoning_content"] = thought
			a.tokens = append(tokensOfText(thought, 4), a.tokens...)
			if what == "reasoning given back" {
				given["reasoning_content"] = thought
			}
		case "tool calls printed anew":
			a.message["tool_calls"] = `{"a":  1,"b":"` + text + `"}`
			a.tokens = append(a.tokens[:len(a.tokens)-1], append(tokensOfText(`{"a":  1,"b":"`+text+`"}`, 4), "<end>")...)
			given["tool_calls"] = `{"a": 1, "b": "` + text + `"}`
		case "cut":
			n := 1 + e.rng.IntN(len(a.tokens)-1)
			a.tokens, a.cut = a.tokens[:n], true
			text = strings.Join(a.tokens, "")
			a.message["content"], given["content"] = text, text
		case "regenerated":
			e.ask(talk, e.say(30))
		case "several":
			a.more = 1
		case "broken off":
			a.broken = true
			given["content"] = text[:len(text)/2]
		}
		e.ask(talk, a)
		if what == "branched" {
			other := append(slices.Clone(talk), given, chatMessage{"role": "user", "content": e.words(12)})
			e.ask(other, e.say(10))
		}
		talk = append(slices.Clone(talk), given, chatMessage{"role": "user", "content": e.words(8 + e.rng.IntN(20))})
	}
	e.ask(talk, e.say(10))
	if i%5 == 0 {
		e.ask(talk, e.say(10))
	}
}
