package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// The traffic of bench-rivals: each workload is drawn from a seed as one open-loop schedule, which all routers get at once. Answers
// in later turns are scripted, so that no router's speed changes what follows.

// piece is a part of a prompt: words, or an image (tokens 0: its words are counted).
type piece struct {
	id    uint64
	words int
	image string // how the request names it; "": words
}

// rivalRequest is one request of a schedule.
type rivalRequest struct {
	at     time.Duration
	pieces []piece // in the order of the prompt; each is a message or a part of one
	roles  []string
	body   []byte
}

// rivalTraffic draws one workload.
type rivalTraffic struct {
	*rand.Rand
	salt  uint64
	shots []string // a data URL and two URLs of each image
	list  []rivalRequest
	next  uint64
}

const (
	rivalShots = 24
	shotTokens = 391 // of a photo in Qwen2.5-VL
	rivalThink = 3   // seconds between turns, on average
	rivalSlow  = 8   // times slower than one large GPU: waits are long beside what a busy machine adds
	rivalFleet = 4   // workers of each router
)

// rivalSeconds is how long requests of a cell arrive, the first rivalWarm of which are not counted.
var (
	rivalSeconds = float64(max(8, number(os.Getenv("SIGHTLINE_BENCH_SECONDS"))))
	rivalWarm    = min(20, int(rivalSeconds)/4)
)

// rivalWorkloads are drawn with requests per second.
var rivalWorkloads = []struct {
	name, about string
	draw        func(g *rivalTraffic, rate float64)
}{
	{"chats", "five turns of about 450 words after one of four system prompts of 1,200", (*rivalTraffic).chats},
	{"images", "an image of 24, as a data URL or by one of two URLs, and three questions about it", (*rivalTraffic).images},
	{"hot image", "six in ten ask about one image, the others send 1,500 words of their own", (*rivalTraffic).hot},
	{"agents", "eight steps of about 200 words after one of five instructions of 3,000", (*rivalTraffic).agents},
	{"documents", "questions about one of the last 20 documents of 2,500 words, or a new one", (*rivalTraffic).documents},
	{"short prompts", "40 to 120 words that nobody shares, at 4 a second: what a router adds", (*rivalTraffic).short},
}

var rivalWords = strings.Fields("time year people way day man thing woman life child world school state family student group country " +
	"problem hand part place case week company system program question work night point home water room mother area money story fact " +
	"month lot right study book eye job word business issue side kind head house service friend father power hour game line end")

// text is so many words that an id and the run's salt determine.
func (g *rivalTraffic) text(id uint64, n int) string {
	r := rand.New(rand.NewPCG(id, g.salt))
	var b strings.Builder
	for range n {
		b.WriteString(rivalWords[r.IntN(len(rivalWords))])
		b.WriteByte(' ')
	}
	return b.String()
}

func (g *rivalTraffic) own(words int) piece { g.next++; return piece{id: 1000 + g.next, words: words} }

func (g *rivalTraffic) image(n int) piece {
	return piece{id: 1e9 + uint64(n), words: shotTokens, image: g.shots[3*n+g.form()]}
}

// form is how an image is named: in half of the cases as a data URL.
func (g *rivalTraffic) form() int { return [4]int{0, 0, 1, 2}[g.IntN(4)] }

// arrivals calls one for each arrival of a Poisson process.
func (g *rivalTraffic) arrivals(rate float64, one func(at float64)) {
	for at := g.ExpFloat64() / rate; at < rivalSeconds; at += g.ExpFloat64() / rate {
		one(at)
	}
}

// turns adds a conversation of at most n turns; say gives what a turn adds to the prompt, and answer the words of its answer.
func (g *rivalTraffic) turns(at float64, n int, system piece, answer int, say func(turn int) []piece) {
	pieces, roles := []piece{system}, []string{"system"}
	for turn := 0; turn < n && at < rivalSeconds; turn++ {
		for _, p := range say(turn) {
			pieces, roles = append(pieces, p), append(roles, "user")
		}
		g.list = append(g.list, rivalRequest{at: time.Duration(at * float64(time.Second)), pieces: slices.Clone(pieces),
			roles: slices.Clone(roles)})
		pieces, roles = append(pieces, g.own(answer)), append(roles, "assistant")
		at += rivalThink/2 + g.ExpFloat64()*rivalThink/2
	}
}

func (g *rivalTraffic) chats(rate float64) {
	g.arrivals(rate/5, func(at float64) {
		g.turns(at, 5, piece{id: uint64(1 + g.IntN(4)), words: 1200}, 90, func(int) []piece { return []piece{g.own(300 + g.IntN(300))} })
	})
}

func (g *rivalTraffic) images(rate float64) {
	g.arrivals(rate/3, func(at float64) {
		shot := int(rand.NewZipf(g.Rand, 1.3, 3, rivalShots-1).Uint64())
		g.turns(at, 3, piece{id: 1, words: 150}, 60, func(turn int) []piece {
			if turn == 0 {
				return []piece{g.image(shot), g.own(60)}
			}
			return []piece{g.own(60)}
		})
	})
}

func (g *rivalTraffic) hot(rate float64) {
	g.arrivals(rate, func(at float64) {
		if g.Float64() < 0.6 {
			g.turns(at, 1, piece{id: 1, words: 150}, 0, func(int) []piece { return []piece{g.image(0), g.own(100 + g.IntN(300))} })
		} else {
			g.turns(at, 1, g.own(20), 0, func(int) []piece { return []piece{g.own(1000 + g.IntN(1000))} })
		}
	})
}

func (g *rivalTraffic) agents(rate float64) {
	g.arrivals(rate/8, func(at float64) {
		g.turns(at, 8, piece{id: uint64(1 + g.IntN(5)), words: 3000}, 60, func(int) []piece { return []piece{g.own(100 + g.IntN(200))} })
	})
}

func (g *rivalTraffic) documents(rate float64) {
	var last []piece
	g.arrivals(rate/2, func(at float64) {
		if len(last) == 0 || g.Float64() < 0.25 {
			last = append(last, g.own(2500))[max(0, len(last)-19):]
		}
		document := last[g.IntN(len(last))]
		g.turns(at, 2, piece{id: 1, words: 120}, 100, func(turn int) []piece {
			if turn == 0 {
				return []piece{document, g.own(40)}
			}
			return []piece{g.own(40)}
		})
	})
}

func (g *rivalTraffic) short(rate float64) {
	g.arrivals(rate, func(at float64) {
		g.turns(at, 1, g.own(5), 0, func(int) []piece { return []piece{g.own(40 + g.IntN(80))} })
	})
}

// work is the share of the fleet's time that the schedule takes under round robin with endless caches: prefill, encoding, decoding.
func (g *rivalTraffic) work() float64 {
	var total time.Duration
	caches := make([]map[string]bool, rivalFleet)
	for i, r := range g.list {
		if caches[i%rivalFleet] == nil {
			caches[i%rivalFleet] = map[string]bool{}
		}
		cache, path := caches[i%rivalFleet], ""
		for _, p := range r.pieces {
			path += fmt.Sprint(p.id, "/")
			if !cache[path] {
				total += time.Duration(p.words) * sim.DefaultTime.Prefill
				if p.image != "" && !cache[fmt.Sprint(p.id)] {
					total += sim.DefaultTime.Encode
				}
			}
			cache[path], cache[fmt.Sprint(p.id)] = true, true
		}
		total += rivalAnswer * sim.DefaultTime.Decode / 2 // two requests share a step
	}
	return total.Seconds() * rivalSlow / rivalFleet / rivalSeconds
}

const rivalAnswer = 8 // tokens

// drawRivals draws a workload whose work is a share of the fleet's time; share 0: 4 requests a second.
func drawRivals(seed uint64, shots []string, draw func(*rivalTraffic, float64), share float64) (g *rivalTraffic, rate float64) {
	rate = 4
	for range 8 {
		g = &rivalTraffic{Rand: rand.New(rand.NewPCG(seed, 5)), salt: seed, shots: shots}
		draw(g, rate)
		if share == 0 {
			break
		}
		rate *= share / max(g.work(), .01)
	}
	slices.SortStableFunc(g.list, func(a, b rivalRequest) int { return int(a.at - b.at) })
	for i := range g.list {
		g.list[i].body = g.write(&g.list[i])
	}
	return g, float64(len(g.list)) / rivalSeconds
}

// write is a request's body.
func (g *rivalTraffic) write(r *rivalRequest) []byte {
	type message struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	}
	var messages []message
	for i, p := range r.pieces {
		part := map[string]any{"type": "text", "text": ""}
		if p.image != "" {
			part = map[string]any{"type": "image_url", "image_url": map[string]string{"url": p.image}}
		} else {
			part["text"] = g.text(p.id, p.words)
		}
		if i > 0 && r.roles[i] == r.roles[i-1] { // another part of the same message
			last := &messages[len(messages)-1]
			last.Content = append(last.Content.([]any), part)
			continue
		}
		messages = append(messages, message{r.roles[i], []any{part}})
	}
	for i, m := range messages { // one text is a string, as clients send it
		if parts := m.Content.([]any); len(parts) == 1 {
			if text, ok := parts[0].(map[string]any)["text"]; ok {
				messages[i].Content = text
			}
		}
	}
	body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "messages": messages, "max_tokens": rivalAnswer, "stream": true,
		"stream_options": map[string]bool{"include_usage": true}})
	return body
}
