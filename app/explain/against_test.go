package explain

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestAgainst: a request beside what a worker makes of it: the first difference with the tokens' texts, and what to look at, by each
// way in which a worker tells.
func TestAgainst(t *testing.T) {
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewRGBA(image.Rect(0, 0, 320, 200))); err != nil {
		t.Fatal(err)
	}
	text := `{"model":"sim-vl","messages":[{"role":"user","content":"Hello there, how are you?"}]}`
	withImage := fmt.Sprintf(`{"model":"sim-vl","messages":[{"role":"user","content":[`+
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":"What is this?"}]}]}`,
		base64.StdEncoding.EncodeToString(file.Bytes()))
	o := Options{ModelDir: "../../examples/models/qwen2.5-vl",
		Set: []string{"engine_version=0.32.0", "engine_model=sim-vl", "block_size=16"}}
	m, err := o.model()
	if err != nil {
		t.Fatal(err)
	}
	ours := func(request string) explained {
		e := m.explain(t.Context(), []byte(request))
		if !e.Exact {
			t.Fatalf("got %+v, want e.Exact", e)
		}
		return e
	}
	same := func(ids []uint32) []uint32 { return ids }
	for _, c := range []struct {
		name, request string
		has           string // the ways in which it tells
		chat, plain   func([]uint32) []uint32
		media         func(names []string) []string
		want          []string // "": equal
	}{
		{"equal by /tokenize", text, "/tokenize", same, same, nil, nil},
		{"equal by render", withImage, "/render", same, same, slices.Clone[[]string], nil},
		{"equal by an answer", text, "answer", same, same, nil, nil},
		{"another template", text, "/tokenize", func(ids []uint32) []uint32 { return slices.Insert(ids, 3, 9707) }, same, nil,
			[]string{"first at token 3", `"Hello"`, "» ", "the template: chat_template"}},
		{"another template behind an image", withImage, "/tokenize", func(ids []uint32) []uint32 { return slices.Insert(ids, len(ids)-3, 9707) },
			func(ids []uint32) []uint32 {
				return slices.DeleteFunc(ids, func(id uint32) bool { return id == 151655 })
			}, nil,
			[]string{`"Hello"`, "the template: chat_template"}},
		{"another tokenizer", text, "/tokenize", func(ids []uint32) []uint32 { ids[3]++; return ids },
			func(ids []uint32) []uint32 { ids[3]++; return ids }, nil, []string{"first at token 3", "the tokenizer: dir"}},
		{"fewer image tokens", withImage, "/tokenize", func(ids []uint32) []uint32 {
			at := slices.Index(ids, 151655)
			return slices.Delete(ids, at, at+3)
		}, same, nil, []string{"the image at token", "mm_processor_kwargs"}},
		{"another name", withImage, "/render", same, same, func([]string) []string { return []string{"f00d"} },
			[]string{"the worker's f00d", "the name: mm_hasher_algorithm, engine_model"}},
		{"one image less", withImage, "/render", same, same, func([]string) []string { return nil }, []string{"the images: 1 here, 0 there"}},
		{"only a number", text, "count", func(ids []uint32) []uint32 { return append(ids, 1) }, same, nil,
			[]string{"it does not say which", "chat_template"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := ours(c.request)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked, _ := io.ReadAll(r.Body)
				var body struct {
					Prompt string
					Max    int  `json:"max_tokens"`
					Tell   bool `json:"return_token_ids"`
				}
				_ = json.Unmarshal(asked, &body)
				chat := c.chat(slices.Clone(e.TokenIDs))
				switch {
				case r.URL.Path == "/tokenize" && body.Prompt != "" && c.has == "/tokenize":
					_ = json.NewEncoder(w).Encode(map[string]any{"tokens": c.plain(slices.Clone(e.TokenIDs))})
				case r.URL.Path == "/tokenize" && c.has == "/tokenize":
					_ = json.NewEncoder(w).Encode(map[string]any{"tokens": chat})
				case strings.HasSuffix(r.URL.Path, "/render") && c.has == "/render":
					var names []string
					for _, md := range e.MM {
						names = append(names, md.Name)
					}
					_ = json.NewEncoder(w).Encode(map[string]any{"token_ids": chat,
						"features": map[string]any{"mm_hashes": map[string]any{"image": c.media(names)}}})
				case r.URL.Path == "/v1/chat/completions" && body.Max == 1 && body.Tell && c.has == "answer":
					_ = json.NewEncoder(w).Encode(map[string]any{"prompt_token_ids": chat, "usage": map[string]int{"prompt_tokens": len(chat)}})
				case r.URL.Path == "/v1/chat/completions" && body.Max == 1 && c.has == "count":
					_ = json.NewEncoder(w).Encode(map[string]any{"usage": map[string]int{"prompt_tokens": len(chat)}})
				default:
					http.NotFound(w, r)
				}
			}))
			defer srv.Close()
			o, out := o, &bytes.Buffer{}
			o.Against = srv.URL
			compare, err := o.against(out)
			if err != nil {
				t.Fatal(err)
			}
			err = compare(t.Context(), []byte(c.request))
			if len(c.want) == 0 {
				if err != nil || !strings.Contains(out.String(), "result    equal") {
					t.Errorf("got %v\n%s, want \"equal\"", err, out)
				}
				return
			}
			if !errors.Is(err, errDiffers) {
				t.Errorf("got %v, want %v", err, errDiffers)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("got %s\nwant %q in it", out, want)
				}
			}
		})
	}
}

// TestAgainstInPart: equal is said only of what was compared, and of a worker that was started as configured.
func TestAgainstInPart(t *testing.T) {
	const video = `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Hello there, how are you?"},` +
		`{"type":"video_url","video_url":{"url":"data:video/mp4;base64,AAAA"}}]}]}`
	const text = `{"model":"m","messages":[{"role":"user","content":"Hello there, how are you?"}]}`
	o := Options{ModelDir: "../../examples/models/qwen2.5-vl",
		Set: []string{"engine_version=0.32.0", "engine_model=Qwen/Qwen2.5-VL-7B-Instruct"}}
	m, err := o.model()
	if err != nil {
		t.Fatal(err)
	}
	more := func(ids []uint32) []uint32 { return append(ids, make([]uint32, 72)...) }
	same := func(ids []uint32) []uint32 { return ids }
	for _, c := range []struct {
		name, request, root, release string
		theirs                       func([]uint32) []uint32
		tells                        bool // the tokens, not only their number
		err                          error
		want, never                  string
	}{
		{"a beginning", video, m.Server.EngineModel, "0.32.0", more, true, errPartly,
			"tokens were compared, and those are equal", "result    equal"},
		{"a number beside a beginning", video, m.Server.EngineModel, "0.32.0", more, false, errPartly,
			"0 of the worker's", "result    equal"},
		{"all", text, m.Server.EngineModel, "0.32.0", same, true, nil, "result    equal", "look at"},
		{"another model", text, "Qwen/Qwen2.5-VL-3B-Instruct", "0.32.0", same, true, errDiffers, "look at   engine_model", "result    equal"},
		{"another release", text, m.Server.EngineModel, "0.30.0", same, true, errDiffers,
			"look at   engine_version", "result    equal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ids := m.explain(t.Context(), []byte(c.request)).TokenIDs
			if len(ids) == 0 {
				t.Fatal("got no tokens, want some")
			}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				their := c.theirs(slices.Clone(ids))
				answer := map[string]any{"usage": map[string]int{"prompt_tokens": len(their)}}
				if c.tells {
					answer["prompt_token_ids"] = their
				}
				switch r.URL.Path {
				case "/v1/models":
					fmt.Fprintf(w, `{"data":[{"id":"m","owned_by":"vllm","root":%q}]}`, c.root)
				case "/version":
					fmt.Fprintf(w, `{"version":%q}`, c.release)
				case "/v1/chat/completions":
					_ = json.NewEncoder(w).Encode(answer)
				default:
					http.NotFound(w, r)
				}
			}))
			defer srv.Close()
			o, out := o, &bytes.Buffer{}
			o.Against = srv.URL
			compare, err := o.against(out)
			if err != nil {
				t.Fatal(err)
			}
			if err := compare(t.Context(), []byte(c.request)); !errors.Is(err, c.err) {
				t.Errorf("got %v, want %v", err, c.err)
			}
			if !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), c.never) {
				t.Errorf("got %s, want %q and no %q", out, c.want, c.never)
			}
		})
	}
}

// TestAgainstNoWorker: what is no worker is named as what it is.
func TestAgainstNoWorker(t *testing.T) {
	o := Options{ModelDir: "../../examples/models/qwen2.5-vl", Against: "10.0.0.5:8000"}
	if _, err := o.against(io.Discard); err == nil || !strings.Contains(err.Error(), "such as http://10.0.0.5:8000") {
		t.Errorf("no URL: got %v, want an example of one", err)
	}
	for status, want := range map[int]string{401: "worker_access.api_key_file", 200: "is it a worker's own port?"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>welcome to nginx</html>")
		}))
		o.Against = srv.URL
		compare, err := o.against(io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		err = compare(t.Context(), []byte(`{"model":"m","messages":[{"role":"user","content":"Hi"}]}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: got %v, want %q", status, err, want)
		}
		srv.Close()
	}
}
