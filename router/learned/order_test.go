package learned

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
)

// orderedEngine makes prompts of chats as an engine with one content format does: a token for each two bytes of text, 200 for an image.
type orderedEngine struct {
	t      *testing.T
	order  Order
	hasher *Hasher
	memory *Memory
}

type chatMessage struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

func textPart(s string) any { return map[string]any{"type": "text", "text": s} }
func imagePart(n int) any {
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": fmt.Sprintf("https://example.com/%d.png", n)}}
}

func newOrderedEngine(t *testing.T, o Order) *orderedEngine {
	return &orderedEngine{t, o, NewHasher([]byte("a secret")), NewMemory(8<<20, new(Sizes))}
}

func (e *orderedEngine) prompt(messages []chatMessage) (tokens []int) {
	number := func(of string) int {
		h := fnv.New32a()
		_, _ = h.Write([]byte(of))
		return int(h.Sum32())
	}
	for _, m := range messages {
		tokens = append(tokens, number(m.Role), 1)
		var media, texts []int
		list, ok := m.Content.([]any)
		if !ok {
			list = []any{textPart(m.Content.(string))}
		}
		for _, p := range list {
			into, p := &texts, p.(map[string]any)
			if s, ok := p["text"].(string); ok {
				for s = strings.TrimSpace(s); s != ""; s = s[min(2, len(s)):] { // as many templates do
					*into = append(*into, number(s[:min(2, len(s))]))
				}
				continue
			}
			if e.order == MediaFirst {
				into = &media
			}
			for i := range 200 {
				*into = append(*into, number(fmt.Sprint(p["image_url"], i)))
			}
		}
		tokens = append(append(append(tokens, media...), texts...), 2)
	}
	return append(tokens, tail, tail+1)
}

// ask returns what is recalled of a chat, and what the engine makes of it, which it then teaches.
func (e *orderedEngine) ask(messages ...chatMessage) (p Prompt, chain []uint64) {
	e.t.Helper()
	raw, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		e.t.Fatal(err)
	}
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{raw}, &s, &req); err != nil {
		e.t.Fatal(err)
	}
	var paths Paths
	e.hasher.Read(&paths, Head{}, &s, &req)
	order := e.memory.Order(1)
	e.memory.RecallIn(order, 1, &paths, &p)
	tokens := e.prompt(messages)
	chain = chainOf(tokens)
	e.memory.Teach(&Lesson{1, *paths.In(order), Taught{Chain: chain, Prompt: len(chain), Tokens: len(tokens), Size: 16}})
	return p, chain
}

// Engines that write a message's media before its texts show it by their events. Then an image is known again behind other texts, and a
// request of which an image was known is the same with the image before its text. Neither is believed of an engine that writes parts as
// they stand, whatever clients send.
func TestOrderOfMedia(t *testing.T) {
	system := chatMessage{"system", system[:1500]}
	words := func(rng *rand.Rand) string {
		return fmt.Sprintf("%c%x and %x?", 'A'+rng.IntN(26), rng.Uint64(), rng.Uint64())
	}
	for _, order := range []Order{Written, MediaFirst} {
		e, rng := newOrderedEngine(t, order), rand.New(rand.NewPCG(1, 1))
		behind, known, high := 0, 0, 0
		for i := range 300 {
			var list []any
			image := rng.IntN(6)
			switch i % 3 {
			case 0:
				list = []any{imagePart(image), textPart(words(rng))}
			case 1:
				list = []any{textPart(words(rng)), imagePart(image)}
			default:
				list = []any{textPart(words(rng)), imagePart(image), textPart(words(rng)), imagePart(100 + rng.IntN(6))}
			}
			p, chain := e.ask(system, chatMessage{"user", list})
			right := common(p.Blocks, chain)
			if !p.Estimate && right < p.Learned-1 {
				high++
			}
			if i >= 30 && i%3 > 0 {
				behind++
				if right > 55 { // the image's blocks are among them
					known++
				}
			}
			if i == 200 { // a conversation that goes on
				list := chatMessage{"user", list}
				q, chain := e.ask(system, list, chatMessage{"assistant", "Yes."}, chatMessage{"user", "Why?"})
				if n := common(q.Blocks, chain); n < len(q.Blocks)-1 || n < len(chain)-3 {
					t.Errorf("media first %v: a conversation that goes on has %d of %d blocks", order, n, len(chain))
				}
			}
		}
		if e.memory.Order(1) != order || order == MediaFirst && known < behind*9/10 || order == Written && known > 0 || high > 3 {
			t.Errorf("media first %v, believed %v: %d of %d images known again behind other texts; %d too high", order, e.memory.Order(1), known,
				behind, high)
		}
		check(t, e.memory)
	}
}

// An engine whose configuration changed is believed again.
func TestOrderChanges(t *testing.T) {
	e, rng := newOrderedEngine(t, MediaFirst), rand.New(rand.NewPCG(1, 1))
	for i := range 200 {
		if i == 100 && e.memory.Order(1) != MediaFirst {
			t.Fatal("its prompts have media first")
		}
		image := rng.IntN(4)
		if i >= 100 {
			e.order, image = Written, i
		}
		e.ask(chatMessage{"user", []any{textPart(strings.Repeat(fmt.Sprintf("%c is one? ", 'A'+rng.IntN(3)), 20)), imagePart(image)}})
	}
	if e.memory.Order(1) != Written {
		t.Error("its prompts have media where requests have them")
	}
}

// Requests that are made to look as if their engine wrote media first.
func TestOrderIsNotForged(t *testing.T) {
	for name, texts := range map[string]func(i int) []any{
		"texts that a template leaves out": func(i int) []any { return []any{textPart(strings.Repeat(" ", 8+i)), imagePart(1)} },
		"an empty text":                    func(i int) []any { return []any{textPart(""), textPart(fmt.Sprint("Q", i)), imagePart(1)} },
		"a text with a field that no engine reads": func(i int) []any {
			return []any{map[string]any{"type": "text", "text": "What is it?", "cache_control": fmt.Sprint(i)}, imagePart(1)}
		},
		"texts that differ late": func(i int) []any { return []any{textPart(fmt.Sprintf("%s%d", system[:3000], i)), imagePart(1)} },
		"the image also behind":  func(i int) []any { return []any{imagePart(1), textPart(fmt.Sprint("Q", i)), imagePart(1)} },
	} {
		e := newOrderedEngine(t, Written)
		for i := range 60 {
			e.ask(chatMessage{"user", texts(i)})
			e.ask(chatMessage{"user", []any{textPart(fmt.Sprint("Another ", i)), imagePart(50 + i)}})
			if e.memory.Order(1) != Written {
				t.Errorf("%s: after %d requests", name, i)
				break
			}
		}
	}
}

// The paths of both orders meet only where the prompts of an engine with media first do.
func TestOrdersDoNotMeet(t *testing.T) {
	read := func(raw string) *Paths {
		var s body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{[]byte(raw)}, &s, &req); err != nil {
			t.Fatal(err)
		}
		p := new(Paths)
		NewHasher([]byte("a secret")).Read(p, Head{}, &s, &req)
		return p
	}
	url := imageURL("https://example.com/1.png")
	behind, before, other := read(chat(text("What is it?"), url)), read(chat(url, text("What is it?"))), read(chat(url, text("What was it?")))
	if !slices.Equal(behind.In(MediaFirst).Steps, before.In(MediaFirst).Steps) || before.In(MediaFirst) != before.In(Written) {
		t.Error("an image behind a text and before it are one prompt if media are first")
	}
	most := shared(behind.In(Written).Steps, read(chat(text("Another question"))).In(Written).Steps)
	if n := shared(behind.In(Written).Steps, before.In(Written).Steps); n > most {
		t.Errorf("%d steps are shared of two prompts, want %d", n, most)
	}
	if last := func(p *Path) [2]uint64 { return p.Steps[len(p.Steps)-1].Number }; last(behind.In(MediaFirst)) == last(other.In(MediaFirst)) {
		t.Error("another text has the same path")
	}
	if len(behind.In(MediaFirst).Media) != 1 || behind.In(MediaFirst).Media[0].ID != behind.In(Written).Media[0].ID ||
		!behind.In(MediaFirst).Steps[behind.In(MediaFirst).Media[0].Step].Media {
		t.Errorf("%+v", behind.In(MediaFirst).Media)
	}
}
