package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// engine answers like an OpenAI-style server, and counts a message as cached if it has seen it at the same position after the same
// ones.
type engine struct {
	*httptest.Server
	mu     sync.Mutex
	seen   map[string]bool
	bodies []string
	fail   bool
}

func newEngine(t *testing.T) *engine {
	e := &engine{seen: make(map[string]bool)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.fail || r.Header.Get("X-Key") != "k" {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		e.bodies = append(e.bodies, string(body))
		prompt, cached, front := 0, 0, ""
		for _, m := range gjson.GetBytes(body, "messages").Array() {
			front += m.Raw
			prompt += 100
			if e.seen[front] {
				cached += 100
			}
			e.seen[front] = true
		}
		fmt.Fprintf(w,
			"data: {\"choices\":[{\"delta\":{\"content\":\"I say %d\"}}]}\n\ndata: "+
				"{\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n",
			len(e.bodies), prompt, cached)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) options() Options {
	return Options{URL: e.URL, Header: []string{"X-Key: k"}, Shape: "chats", Reuse: 0.5, Rate: 200, Seconds: 0.1,
		Speed: 1e6, Most: 1000, Answer: 4, Clients: 4, Seed: 7}
}

func run(t *testing.T, o Options) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := Run(t.Context(), o, &out, nil)
	return out.String(), err
}

// TestConversations: a later turn repeats all previous turns, with the engine's own answers; equal beginnings are equal byte for
// byte.
func TestConversations(t *testing.T) {
	e := newEngine(t)
	o := e.options()
	out, err := run(t, o)
	if err != nil {
		t.Fatal(err)
	}
	turns, systems := 0, map[string]int{}
	for _, b := range e.bodies {
		list := gjson.Get(b, "messages").Array()
		systems[list[0].Get("content").Str]++
		if list[0].Get("role").Str != "system" || list[len(list)-1].Get("role").Str != "user" || len(list)%2 != 0 ||
			gjson.Get(b, "max_tokens").Int() > 4 {
			t.Fatalf("no conversation: %.300s", b)
		}
		for i := 2; i < len(list); i += 2 {
			turns++
			if !strings.HasPrefix(list[i].Get("content").Str, "I say ") {
				t.Errorf("message %d is %s, want an answer of the engine's", i, list[i])
			}
		}
	}
	if turns == 0 || len(systems) == len(e.bodies) || !strings.Contains(out, "requests a second") ||
		!strings.Contains(out, fmt.Sprintf("%d", len(e.bodies))) {
		t.Errorf("%d later turns, %d beginnings in %d requests\n%s", turns, len(systems), len(e.bodies), out)
	}

	before := len(e.bodies) // another run with another seed hits nothing of this one
	o.Seed, o.Reuse, o.JSON = 8, 0, true
	out, err = run(t, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range e.bodies[before:] {
		if first := gjson.Get(b, "messages.0.content").Str; systems[first] > 0 {
			t.Errorf("a second run begins as the first did: %.60s", first)
		}
	}
	var said struct {
		Requests, Failed int
		HitRate          float64            `json:"hit_rate"`
		First            map[string]float64 `json:"time_to_first_token"`
	}
	if err := json.Unmarshal([]byte(out), &said); err != nil || said.Requests != len(e.bodies)-before || said.Failed != 0 ||
		said.HitRate <= 0 || said.First["p99_ms"] <= 0 {
		t.Errorf(`got %v: %s, want no error, said.Requests == len(e.bodies)-before, said.Failed == 0, said.HitRate > 0, said.First["p99_ms"] > 0`,
			err, out)
	}
}

// TestImagesOfBothSides: images are where the traffic has them, equal ones identical; both sides of a comparison are asked.
func TestImagesOfBothSides(t *testing.T) {
	with, without := newEngine(t), newEngine(t)
	o := with.options()
	o.Without, o.Shape, o.Rounds = without.URL, "images", 2
	out, err := run(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(with.bodies) != len(without.bodies) || !strings.Contains(out, "without") {
		t.Errorf("%d and %d requests\n%s", len(with.bodies), len(without.bodies), out)
	}
	urls := map[string]int{}
	for _, b := range append(with.bodies, without.bodies...) {
		url := gjson.Get(b, "messages.1.content.0.image_url.url").Str
		if !strings.HasPrefix(url, "data:image/jpeg;base64,") || gjson.Get(b, "messages.1.content.1.type").Str != "text" {
			t.Fatalf("%.300s", b)
		}
		urls[url]++
	}
	if len(urls) < 8 || len(urls) > len(with.bodies) {
		t.Errorf("%d images in %d requests, want len(urls) >= 8, len(urls) <= len(with.bodies)", len(urls), 2*len(with.bodies))
	}
}

func TestTrace(t *testing.T) {
	e := newEngine(t)
	o := e.options()
	o.Trace = filepath.Join(t.TempDir(), "t.jsonl")
	if err := os.WriteFile(o.Trace,
		[]byte(`{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2],"images":[{"id":3,"offset":100,"tokens":200}]}
{"timestamp":10,"input_length":1100,"output_length":5,"hash_ids":[1,2,4]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, o); err != nil || len(e.bodies) != 2 {
		t.Fatalf("%v, %d requests\n%s", err, len(e.bodies), out)
	}
	slices.SortFunc(e.bodies, func(a, b string) int { return strings.Count(b, "image_url") - strings.Count(a, "image_url") })
	first := gjson.Get(e.bodies[0], "messages.0.content").Array()
	if len(first) != 3 || len(strings.Fields(first[0].Get("text").Str)) != 100 || len(strings.Fields(first[2].Get("text").Str)) != 300 {
		t.Errorf("%d parts: %.200s", len(first), e.bodies[0])
	}
	if second := gjson.Get(e.bodies[1], "messages.0.content.0.text").Str; !strings.HasPrefix(second, first[0].Get("text").Str) ||
		len(strings.Fields(second)) != 1100 {
		t.Errorf("equal hash ids are other words: %.100s", second)
	}
}

func TestRefused(t *testing.T) {
	e := newEngine(t)
	for want, change := range map[string]func(*Options){
		"want one of --url":    func(o *Options) { o.URL = "" },
		"no traffic of shape":  func(o *Options) { o.Shape = "x" },
		"no such file":         func(o *Options) { o.Trace = "nowhere" },
		"--ext-proc needs":     func(o *Options) { o.URL, o.ExtProc = "", "127.0.0.1:1" },
		"every request failed": func(o *Options) { o.Header = nil; o.Model = "m" },
		"lists no model":       func(o *Options) { o.URL = strings.TrimPrefix(o.URL, "http://") + "/nothing"; e.fail = true },
		"no request comes in":  func(o *Options) { o.Rate = 1e-9; o.Seconds = 1e-9 },
	} {
		o := e.options()
		change(&o)
		if _, err := run(t, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}
