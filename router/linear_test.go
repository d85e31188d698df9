package router

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/fleet"
)

// shape is a kind of hostile body. build gives one of about n bytes; nonce makes it differ from all others, so that no
// cache knows it.
type shape struct {
	name  string
	path  string // "": chat completions
	text  bool   // the text alone makes it hostile
	build func(n int, nonce string) string
}

func times(n, size int, f func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < n-size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(f(i))
	}
	return b.String()
}

func numbered(format string) func(i int) string {
	return func(i int) string { return fmt.Sprintf(format, i) }
}

func saying(text string) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
}

func holding(parts string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + parts + `]}]}`
}

// repeating is a chat of one text: a unit again and again.
func repeating(unit string) func(n int, nonce string) string {
	return func(n int, nonce string) string { return saying(nonce + strings.Repeat(unit, n/len(unit))) }
}

const words = "The picture shows a harbour at dusk, with 3 boats and (perhaps) 12 people on the quay. "

// plainProse is what the others are measured by.
var plainProse = shape{name: "prose", build: repeating(words)}

// hostileShapes are bodies made to be slow: each stage of the way, with what it would take longest for.
func hostileShapes() []shape {
	nested := func(open, end string) func(n int, nonce string) string {
		return func(n int, nonce string) string {
			one := strings.Repeat(open, 150) + `"` + nonce + `"` + strings.Repeat(end, 150)
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"metadata":[` + times(n, len(one), func(int) string { return one }) + `]}`
		}
	}
	anthropic := func(role, parts string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"` + role + `","content":[` + parts + `]}]}`
	}
	return []shape{
		// The scan.
		{name: "quotes", build: repeating(`\"`)},
		{name: "backslashes", build: repeating(`\\`)},
		{name: "escaped letters", build: repeating(`\u00e9`)},
		{name: "one number", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"seed":` + strings.Repeat("7", n) + `}`
		}},
		{name: "deep lists", build: nested("[", "]")},
		{name: "deep objects", build: nested(`{"a":`, "}")},
		{name: "equal keys", build: func(n int, nonce string) string {
			return `{` + times(n, 20, numbered(`"a":%d`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + `"}]}`
		}},
		{name: "many keys", build: func(n int, nonce string) string {
			return `{` + times(n, 20, numbered(`"a%d":0`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + `"}]}`
		}},
		{name: "fields to remove", build: func(n int, nonce string) string {
			return `{` + times(min(n, 90_000), 20, numbered(`"bootstrap_%d":0`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + strings.Repeat("a", max(0, n-90_000)) + `"}]}`
		}},
		// Messages and parts.
		{name: "messages", build: func(n int, nonce string) string {
			long := strings.Repeat("a", n/4000)
			return `{"model":"m","messages":[` + times(n-50, 50, numbered(`{"role":"user","content":"`+nonce+long+`%d"}`)) + `]}`
		}},
		{name: "text parts", build: func(n int, nonce string) string {
			long := strings.Repeat("a", n/4000)
			return holding(times(n-40, 50, numbered(`{"type":"text","text":"`+nonce+long+`%d"}`)))
		}},
		{name: "unknown keys of a part", build: func(n int, nonce string) string {
			return holding(`{"type":"text","text":"` + nonce + `",` + times(n, 20, numbered(`"k%d":0`)) + `}`)
		}},
		{name: "unknown keys of a picture", build: func(n int, nonce string) string {
			return holding(`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + tinyPNG(1) + `"},` + times(n, 20, numbered(`"`+nonce+`%d":0`)) + `}`)
		}},
		{name: "keys of tool arguments", build: func(n int, nonce string) string {
			args := "{" + times(n, 20, numbered(`\"k%d\":0`)) + "}"
			return `{"model":"m","messages":[{"role":"assistant","content":"` + nonce + `","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"` + args + `"}}]},{"role":"user","content":"x"}]}`
		}},
		{name: "tool calls", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"assistant","content":"` + nonce + `","tool_calls":[` +
				times(n, 90, numbered(`{"id":"%d","type":"function","function":{"name":"f","arguments":"{}"}}`)) + `]},{"role":"user","content":"x"}]}`
		}},
		{name: "tools", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"tools":[` +
				times(n, 90, numbered(`{"type":"function","function":{"name":"f%d","parameters":{"type":"object"}}}`)) + `]}`
		}},
		{name: "template variables", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"chat_template_kwargs":{` + times(n, 20, numbered(`"k%d":0`)) + `}}`
		}},
		{name: "documents", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"documents":[` + times(n, 20, numbered(`{"text":"%d"}`)) + `]}`
		}},
		{name: "pictures", build: func(n int, nonce string) string {
			return holding(`{"type":"text","text":"` + nonce + `"},` + times(n, 200, func(i int) string { return picturePart(i) }))
		}},
		{name: "pictures, one a message", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[` + times(n, 250, func(i int) string {
				return `{"role":"user","content":[{"type":"text","text":"` + nonce + `"},` + picturePart(i) + `]}`
			}) + `]}`
		}},
		{name: "pictures and a long text", build: func(n int, nonce string) string {
			return holding(times(n/2, 200, picturePart) + `,{"type":"text","text":"` + nonce + strings.Repeat("a ", n/4) + `"}`)
		}},
		{name: "typed placeholders", build: repeating("<|image_pad|>")},
		// Other APIs.
		{name: "thinking blocks", path: "/v1/messages", build: func(n int, nonce string) string {
			long := nonce + strings.Repeat("a", n/4000)
			return anthropic("assistant", times(n, 60, numbered(`{"type":"thinking","thinking":"`+long+`%d"}`)))
		}},
		{name: "base64 pictures", path: "/v1/messages", build: func(n int, nonce string) string {
			return anthropic("user", times(n, 300, base64Part))
		}},
		{name: "base64 pictures in tool results", path: "/v1/messages", build: func(n int, nonce string) string {
			return anthropic("user", times(n, 1000, func(i int) string {
				return `{"type":"tool_result","tool_use_id":"` + nonce + `","content":[` + times(900, 0, base64Part) + `]}`
			}))
		}},
		{name: "tool results", path: "/v1/messages", build: func(n int, nonce string) string {
			return anthropic("user", times(n, 60, numbered(`{"type":"tool_result","tool_use_id":"%d","content":"`+nonce+strings.Repeat("a", 200)+`"}`)))
		}},
		{name: "input items", path: "/v1/responses", build: func(n int, nonce string) string {
			return `{"model":"m","input":[` + times(n, 90, numbered(`{"type":"function_call","call_id":"`+nonce+strings.Repeat("a", 200)+`%d","name":"f","arguments":"{}"}`)) + `]}`
		}},
		{name: "token ids", path: "/v1/completions", build: func(n int, nonce string) string {
			return `{"model":"m","prompt":[` + times(n, 5, numbered("%d")) + `]}`
		}},
		{name: "prompts", path: "/v1/completions", build: func(n int, nonce string) string {
			long := strings.Repeat("a ", n/2000)
			return `{"model":"m","prompt":[` + times(n, 20, numbered(`"`+nonce+long+`%d"`)) + `]}`
		}},
		// Texts.
		{name: "one letter", text: true, build: repeating("a")},
		{name: "one capital", text: true, build: repeating("A")},
		{name: "blanks", text: true, build: repeating(" ")},
		{name: "blanks and letters", text: true, build: repeating("          a")},
		{name: "breaks", text: true, build: repeating(`\n`)},
		{name: "breaks and blanks", text: true, build: repeating(`\n `)},
		{name: "tabs", text: true, build: repeating(`\t`)},
		{name: "digits", text: true, build: repeating("7")},
		{name: "signs", text: true, build: repeating("=")},
		{name: "apostrophes", text: true, build: repeating("'")},
		{name: "combining marks", text: true, build: repeating("\u0301")},
		{name: "marks out of order", text: true, build: repeating("\u0301\u0323")},
		{name: "composing letters", text: true, build: repeating("a\u0323\u0302")},
		{name: "jamo", text: true, build: repeating("\u1100\u1161\u11a8")},
		{name: "Chinese", text: true, build: repeating("港口")},
		{name: "emoji", text: true, build: repeating("👩‍👩‍👧")},
		{name: "beginnings of special tokens", text: true, build: repeating("<|im_")},
		{name: "special tokens", text: true, build: repeating("<|im_start|>")},
		{name: "thoughts", text: true, build: repeating("<think></think>")},
	}
}

// tinyPNG is the i-th of a row of different pictures, as base64.
func tinyPNG(i int) string {
	b := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00\x00\x1c\x00\x00\x00\x1c\x08\x02\x00\x00\x00")
	b = withCRC(b, 12)
	at := len(b)
	b = binary.BigEndian.AppendUint32(append(b, "\x00\x00\x00\x78IDAT"...), uint32(i))
	b = withCRC(append(b, make([]byte, 0x74)...), at+4)
	at = len(b)
	b = append(b, "\x00\x00\x00\x00IEND"...)
	return base64.StdEncoding.EncodeToString(withCRC(b, at+4))
}

func picturePart(i int) string {
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, tinyPNG(i))
}

func base64Part(i int) string {
	return fmt.Sprintf(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}`, tinyPNG(i))
}

// servers are the kinds of engines that read a body in ways of their own.
func servers(t *testing.T) map[string]*engine.Live {
	plain := func(*engine.Server) {}
	sglang := func(s *engine.Server) { s.Engine, s.EngineVersion = "sglang", "0.5.23" }
	out := map[string]*engine.Live{}
	for _, kind := range []struct {
		name, dir string
		change    func(*engine.Server)
	}{
		{"vllm", shippedModel, plain},
		{"vllm, contents as one text", shippedModel, func(s *engine.Server) { s.ContentFormat = "string" }},
		{"vllm, numbered placeholders", shippedAs(t, "phi", "Qwen2_5_VLForConditionalGeneration", "Phi3VForCausalLM", "<|image_pad|>", "<|image|>"), func(s *engine.Server) { s.ContentFormat = "string" }},
		{"sglang", shippedModel, sglang},
		{"sglang, its own writing", shippedAs(t, "internvl"), sglang},
		{"trtllm", shippedModel, func(s *engine.Server) { s.Engine, s.EngineVersion = "trtllm", "1.3.0" }},
	} {
		s := engine.DefaultServer()
		s.EngineModel = "m"
		kind.change(&s)
		media, err := engine.NewMedia(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(media.Close)
		if out[kind.name], err = engine.LoadLive("m", kind.dir, s, media); err != nil {
			t.Fatal(kind.name, err)
		}
	}
	return out
}

// shippedAs is a copy of the shipped model directory under a name, with texts replaced in its files.
func shippedAs(t *testing.T, name string, changes ...string) string {
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(shippedModel)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja"} {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// cpu is the time that this process has computed.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestLinear: whatever a body says, a decision costs what its length says. Each hostile shape is measured at growing lengths,
// each four times the one before: time and memory must not grow more than that, but for noise; quadratic work would grow
// sixteenfold. And the longest may cost only so much more than prose of that length.
func TestLinear(t *testing.T) {
	const (
		grows  = 10.0 // linear: 4, more where the caches end; quadratic: 16
		dearer = 30.0 // keys: each takes some hundred bytes here
	)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // what the collector does beside would be counted
	for server, live := range servers(t) {
		t.Run(server, func(t *testing.T) {
			index := indexer.New(indexer.Options{})
			f := fleet.New(time.Now)
			f.Set([]*fleet.Worker{fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID {
				return index.Join(indexer.SlotOptions{})
			})})
			r := New(Options{Models: []Model{{Name: "m", Prompts: live}}, Fleet: f, Index: index, PredictedTTL: time.Second})
			size := 1 << 20
			if server != "vllm" { // what they do otherwise has to do with messages and parts
				size = 1 << 18
			}
			nonce, why := 0, ""
			// cost is of one decision about a shape of n bytes: its time, the least of several, and the memory taken for a byte.
			cost := func(s shape, n int, rounds int) (took time.Duration, memory float64) {
				took, memory = time.Hour, math.Inf(1)
				for range rounds {
					nonce++
					body := []byte(s.build(n, fmt.Sprintf("n%06d", nonce)))
					req := &Request{ID: fmt.Sprint(nonce), Path: cmp.Or(s.path, "/v1/chat/completions"), Body: [][]byte{body}}
					runtime.GC()
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					start := cpu()
					d := r.Decide(t.Context(), req)
					took = min(took, cpu()-start)
					runtime.ReadMemStats(&after)
					memory = min(memory, float64(after.TotalAlloc-before.TotalAlloc)/float64(len(body)))
					why = fmt.Sprint(d.Why, ", ", d.PromptTokens, " tokens")
				}
				return took, memory
			}
			cost(plainProse, size, 2)
			plain, _ := cost(plainProse, size, 4)
			for _, s := range hostileShapes() {
				if s.text && server != "vllm" {
					continue // one tokenizer for all
				}
				t.Run(s.name, func(t *testing.T) {
					took, memory := cost(s, size/64, 3)
					for n := size / 16; n <= size; n *= 4 {
						spare := 16 + anew*float64(strings.Count(s.build(n, ""), "base64"))/float64(n)
						longer, longerMemory := cost(s, n, 1)
						tooMuch := func() bool { return float64(longer) > grows*float64(took) || longerMemory > 2*memory+spare }
						for round := 0; tooMuch() && longer < 5*time.Second && round < 5; round++ { // the machine may be busy, a table may have grown
							again, _ := cost(s, n/4, 2)
							took = min(took, again)
							again, less := cost(s, n, 1)
							longer, longerMemory = min(longer, again), min(longerMemory, less)
						}
						if tooMuch() {
							t.Fatalf("%d bytes take %v and %.0f bytes of memory each, %d take %v and %.0f (%s)", n/4, took, memory, n, longer, longerMemory, why)
						}
						took, memory = longer, longerMemory
					}
					t.Logf("%v, %.1f times prose, %.0f bytes of memory a byte (%s)", took, float64(took)/float64(plain), memory, why)
					if float64(took) > dearer*float64(plain) {
						t.Errorf("%v where prose takes %v (%s)", took, plain, why)
					}
				})
			}
		})
	}
}
