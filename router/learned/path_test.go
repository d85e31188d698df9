package learned

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
)

func pathOf(t testing.TB, h *Hasher, head Head, text string, frames ...int) []Step {
	t.Helper()
	var pieces [][]byte
	for _, n := range frames {
		n = min(n, len(text))
		if n > 0 {
			pieces, text = append(pieces, []byte(text[:n])), text[n:]
		}
	}
	pieces = append(pieces, []byte(text))
	var s body.Skeleton
	var req body.Request
	if err := body.Read(pieces, &s, &req); err != nil {
		t.Fatal(err)
	}
	var p Path
	h.Read(&p, head, &s, &req)
	return p.Steps
}

func shared(a, b []Step) (n int) {
	for n < min(len(a), len(b)) && a[n].Number == b[n].Number {
		n++
	}
	return n
}

var system = strings.Repeat("You are a helpful assistant that knows routers. ", 200)

func chat(parts ...string) string {
	return `{"model":"m","messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":[` +
		strings.Join(parts, ",") + `]}]}`
}

func text(s string) string     { return fmt.Sprintf(`{"type":"text","text":%q}`, s) }
func imageURL(s string) string { return fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q}}`, s) }

func TestPath(t *testing.T) {
	h := NewHasher([]byte("a secret"))
	imageData := "data:image/png;base64," + strings.Repeat("iVBORw0KGgo", 4000)
	whole := pathOf(t, h, Head{}, chat(text("What is this?"), imageURL(imageData)))

	t.Run("frames", func(t *testing.T) { // however Envoy cuts the body
		rng := rand.New(rand.NewPCG(1, 2))
		for range 200 {
			var frames []int
			for range rng.IntN(20) {
				frames = append(frames, 1+rng.IntN(9000))
			}
			if got := pathOf(t, h, Head{}, chat(text("What is this?"), imageURL(imageData)), frames...); !slices.Equal(got, whole) {
				t.Fatalf("in frames of %v the path is another one: got %+v, want %+v", frames, got, whole)
			}
		}
	})
	// What is in common with another request, in steps; -1: everything.
	first := shared(whole, pathOf(t, h, Head{}, chat(text("Another question"))))
	if first < 10 || first >= len(whole)-1 {
		t.Fatalf("%d of %d steps of a system prompt are shared, want at least 10, less than %d", first, len(whole), len(whole)-1)
	}
	for _, c := range []struct {
		name string
		head Head
		text string
		want int
	}{
		{"the same", Head{}, chat(text("What is this?"), imageURL(imageData)), -1},
		{"sampling", Head{}, strings.Replace(chat(text("What is this?"), imageURL(imageData)), `{"model"`,
			`{"temperature":0.3,"stream":true,"max_tokens":7,"model"`, 1), -1},
		{"a client's name for the image", Head{}, chat(text("What is this?"), strings.Replace(imageURL(imageData), `{"type"`,
			`{"uuid":"mine","type"`, 1)), -1},
		{"another image", Head{}, chat(text("What is this?"), imageURL(imageData+"x")), len(whole) - 1},
		{"the image's detail", Head{}, chat(text("What is this?"), strings.Replace(imageURL(imageData), `"url":`, `"detail":"low","url":`, 1)),
			len(whole) - 1},
		{"another question", Head{}, chat(text("Another question"), imageURL(imageData)), first},
		{"another role", Head{}, strings.Replace(chat(text("What is this?"), imageURL(imageData)), `"user"`, `"tool"`, 1), first},
		{"a salt", Head{}, strings.Replace(chat(text("What is this?"), imageURL(imageData)), `{"model"`, `{"cache_salt":"s","model"`, 1), 0},
		{"tools", Head{}, strings.Replace(chat(text("What is this?"), imageURL(imageData)), `{"model"`,
			`{"tools":[{"type":"function"}],"model"`, 1), 0},
		{"an unknown parameter", Head{}, strings.Replace(chat(text("What is this?"), imageURL(imageData)), `{"model"`, `{"new":1,"model"`, 1), 0},
		{"an adapter", Head{Adapter: "a"}, chat(text("What is this?"), imageURL(imageData)), 0},
		{"a tenant", Head{Tenant: "a"}, chat(text("What is this?"), imageURL(imageData)), 0},
		{"another endpoint", Head{Endpoint: "/v1/completions"}, chat(text("What is this?"), imageURL(imageData)), 0},
	} {
		got := pathOf(t, h, c.head, c.text)
		if c.want < 0 && !slices.Equal(got, whole) || c.want >= 0 && shared(whole, got) != c.want {
			t.Errorf("%s: %d of %d steps shared, want %d", c.name, shared(whole, got), len(whole), c.want)
		}
	}
	if shared(whole, pathOf(t, NewHasher([]byte("another secret")), Head{}, chat(text("What is this?"), imageURL(imageData)))) != 0 {
		t.Error(`another deployment has the same paths, want shared(whole, pathOf(t, NewHasher([]byte("another secret")), ` +
			`Head{}, chat(text("What is this?"), imageURL(imageData)))) == 0`)
	}
}

// A medium has its identity wherever it stands, and an inline image its size. A text with further fields is a text.
func TestPathMedia(t *testing.T) {
	h := NewHasher([]byte("a secret"))
	read := func(raw string) Path {
		var s body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{[]byte(raw)}, &s, &req); err != nil {
			t.Fatal(err)
		}
		var p Path
		h.Read(&p, Head{}, &s, &req)
		for _, m := range p.Media {
			if !p.Steps[m.Step].Media {
				t.Errorf("step %d is not marked, want p.Steps[m.Step].Media", m.Step)
			}
		}
		return p
	}
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 640, 480))); err != nil {
		t.Fatal(err)
	}
	inline := base64.StdEncoding.EncodeToString(file.Bytes())
	url, imageData := imageURL("https://example.com/1.png"), imageURL("data:image/png;base64,"+inline)
	anthropic := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + inline + `"}}`
	cached := `{"type":"text","text":"And this?","cache_control":{"type":"ephemeral"}}`
	a, b := read(chat(url, text("What is this?"), imageData, anthropic)), read(chat(text("Another question"), imageData, cached, url))
	if len(a.Media) != 3 || len(b.Media) != 2 {
		t.Fatalf("%d and %d media, want 3, 2", len(a.Media), len(b.Media))
	}
	if a.Media[0].ID != b.Media[1].ID || a.Media[1].ID != b.Media[0].ID || a.Media[0].ID == a.Media[1].ID {
		t.Errorf("got media %+v and, in the other order, %+v; want the same two IDs, exchanged", a.Media[:2], b.Media)
	}
	for i, want := range []int32{0, 640 * 480, 640 * 480} {
		if n := a.Steps[a.Media[i].Step].Bytes; n != want {
			t.Errorf("medium %d has %d pixels, want %d", i, n, want)
		}
	}
	shorter := strings.Replace(cached, "this?", "that?", 1)
	got := shared(read(chat(cached)).Steps, read(chat(shorter)).Steps)
	if want := shared(read(chat(text("And this?"))).Steps, read(chat(text("And that?"))).Steps); got != want {
		t.Errorf("texts with a further field share %d steps, want %d as without it", got, want)
	}
}

// A longer conversation has the path of the shorter one and goes on, in every API.
func TestPathGrows(t *testing.T) {
	h := NewHasher(nil)
	for name, c := range map[string][2]string{
		"chat": {`{"model":"m","messages":[{"role":"user","content":"Hello"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi"},{"role":"user","content":"And?"}]}`},
		"one part is a text": {`{"model":"m","messages":[{"role":"user","content":"Hello"}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]},{"role":"assistant","content":"Hi"}]}`},
		"responses": {`{"model":"m","instructions":"Be brief","input":[{"role":"user","content":"Hello"}]}`,
			`{"model":"m","instructions":"Be brief","input":[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi"},{"role":"user","content":"And?"}]}`},
		"anthropic": {`{"model":"m","system":[{"type":"text","text":"Be brief"}],"messages":[{"role":"user","content":"Hello"}]}`,
			`{"model":"m","system":[{"type":"text","text":"Be brief"}],"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":[{"type":"text","text":"Hi"}]},{"role":"user","content":"And?"}]}`},
	} {
		short, long := pathOf(t, h, Head{}, c[0]), pathOf(t, h, Head{}, c[1])
		if shared(short, long) != len(short) || len(long) <= len(short) || !long[len(short)].Answer {
			t.Errorf("%s: got %d of %d steps shared, then %+v; want all of the shorter one shared, then an answer's",
				name, shared(short, long), len(short), long[min(len(short), len(long)):])
		}
	}
	ids := func(n int) string {
		return `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat("151644,", n), ",") + `]}`
	}
	if n := shared(pathOf(t, h, Head{}, ids(40)), pathOf(t, h, Head{}, ids(100))); n != 3 {
		t.Errorf("token ids: %d steps shared, want the head and two of 16 ids", n)
	}
}

func BenchmarkPath(b *testing.B) {
	h := NewHasher([]byte("a secret"))
	for name, raw := range map[string]string{
		"32 KB chat":   chat(text(strings.Repeat("What is in this picture? ", 900))),
		"3.7 MB image": chat(text("What is this?"), imageURL("data:image/png;base64,"+strings.Repeat("iVBORw0KGgoA", 310000))),
		"200 messages": `{"model":"m","messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"And then?"},`,
			200), ",") + `]}`,
	} {
		b.Run(name, func(b *testing.B) {
			var s body.Skeleton
			var req body.Request
			if err := body.Read([][]byte{[]byte(raw)}, &s, &req); err != nil {
				b.Fatal(err)
			}
			var p Path
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				h.Read(&p, Head{}, &s, &req)
			}
			b.ReportMetric(float64(len(p.Steps)), "steps")
		})
	}
}

// Requests that are made to look like another one, whose prompts differ, share nothing with it behind the point where they differ.
func TestPathsDoNotMeet(t *testing.T) {
	h := NewHasher([]byte("a secret"))
	user := func(fields string) string { return `{"model":"m","messages":[{"role":"user",` + fields + `}]}` }
	for _, c := range []struct {
		name, one, other string
		most             int // steps in common
	}{
		{"a token id, and its digits as a text", `{"model":"m","prompt":[123]}`, `{"model":"m","prompt":"123"}`, 1},
		{"token ids, and texts of their digits", `{"model":"m","prompt":[1,2]}`, `{"model":"m","prompt":["1","2"]}`, 1},
		{"a parameter with the name of a mark", user(`"content":"12345678 and so on"`), user(`"r":12345678,"x":1,"content":"12345678 and so on"`), 1},
		{"parameters in the place of a text", user(`"content":"12345678"`), user(`"r":12345678,"content":""`), 1},
		{"a part's name in the place of a parameter's", user(`"content":[{"type":"1","k":2},{"type":"3"}]`), user(`"k":2,"m":3,"r":1,"content":[]`), 1},
		{"two parts, and one", user(`"content":[{"type":"text","text":"ab"},{"type":"text","text":"c"}]`), user(`"content":"abc"`), 1},
		{"two messages, and one", user(`"content":"a"},{"role":"user","content":"b"`), user(`"content":"auserb"`), 1},
		{"a parameter's value, and another parameter", `{"model":"m","a":"xb","prompt":"p"}`, `{"model":"m","a":"x","b":"","prompt":"p"}`, 0},
		{"a long value, and another parameter", `{"model":"m","a":"` + strings.Repeat("y", mediaBytes-2) + `","prompt":"p"}`,
			`{"model":"m","a":"` + strings.Repeat("y", mediaBytes-2) + `","b":"","prompt":"p"}`, 0},
		{"the answer that a request goes on from", `{"model":"m","previous_response_id":"r1","input":"Go on."}`,
			`{"model":"m","previous_response_id":"r2","input":"Go on."}`, 0},
		{"a role in the place of a text's end", user(`"content":"a"},{"role":"e","content":"b"`), user(`"content":"ae"},{"role":"","content":"b"`), 1},
	} {
		a, b := pathOf(t, h, Head{}, c.one), pathOf(t, h, Head{}, c.other)
		if n := shared(a, b); n > c.most || a[len(a)-1].Number == b[len(b)-1].Number {
			t.Errorf("%s: %d steps in common, want at most %d; ends %v, %v", c.name, n, c.most, a[len(a)-1].Number, b[len(b)-1].Number)
		}
	}
	for _, heads := range [][2]Head{{{Model: "ab"}, {Model: "a", Adapter: "b"}}, {{Adapter: "t"}, {Tenant: "t"}},
		{{Tenant: "a"}, {Tenant: "b"}}} {
		if n := shared(pathOf(t, h, heads[0], chat(text("Hello"))), pathOf(t, h, heads[1], chat(text("Hello")))); n > 0 {
			t.Errorf("%+v and %+v have %d steps in common, want 0", heads[0], heads[1], n)
		}
	}
}

// TestLongPaths: requests with more than MaxSteps share what is alike of their first ones, and are not the same if only their ends differ.
func TestLongPaths(t *testing.T) {
	h := NewHasher([]byte("a secret"))
	ids := strings.Repeat("7,", 17*MaxSteps)
	messages := strings.Repeat(`{"role":"user","content":"Hello, how are you? I am well."},`, MaxSteps/4)
	long := strings.Repeat("A long text. ", 5<<20/13)
	for name, body := range map[string]string{
		"token ids": `{"model":"m","prompt":[` + ids + `END]}`,
		"messages":  `{"model":"m","messages":[` + messages + `{"role":"user","content":"END"}]}`,
		"texts":     `{"model":"m","prompt":[` + strings.Repeat(`"Hello, how are you?",`, MaxSteps) + `"END"]}`,
		"one text":  `{"model":"m","prompt":"` + long + `END"}`,
	} {
		one, other := pathOf(t, h, Head{}, strings.Replace(body, "END", "1", 1)), pathOf(t, h, Head{}, strings.Replace(body, "END", "2", 1))
		if len(one) != MaxSteps || len(other) != MaxSteps || shared(one, other) != MaxSteps-1 {
			t.Errorf("%s: got %d and %d steps, %d of them shared, want %d, %d, %d",
				name, len(one), len(other), shared(one, other), MaxSteps, MaxSteps, MaxSteps-1)
		}
	}
}
