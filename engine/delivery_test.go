package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/lab/vllmid"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/media/relay"
	"github.com/sightline-router/sightline/mmhash/block"
)

func pngFile(t testing.TB) (file []byte, id string) {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, 128, 64))); err != nil {
		t.Fatal(err)
	}
	f, err := media.Identify(media.File(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), f.ID.String()
}

func loadShipped(t testing.TB, change func(*Server, *Media)) *Model {
	t.Helper()
	x, err := NewMedia(&fetch.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Budget: 20 * time.Second,
		Signing: map[string][]string{"127.0.0.1": {"sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	s := DefaultServer()
	s.EngineModel, s.TrustMMKwargs = "m", true
	change(&s, x)
	m, err := Load("m", "../examples/models/qwen2.5-vl", s, x)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// read returns the request's only prompt, and the body that the worker gets.
func read(t testing.TB, m *Model, endpoint, text string) (Prompt, string) {
	t.Helper()
	ps, err := readAll(t, m, endpoint, text)
	if err != nil {
		t.Fatal(err)
	}
	return ps.List[0], apply(t, text, ps.Edits)
}

// readAll returns the prompts of a request, or why there are none.
func readAll(t testing.TB, m *Model, endpoint, text string) (*Prompts, error) {
	t.Helper()
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(text)}, &s, &req); err != nil {
		t.Fatal(err)
	}
	return m.Read(context.Background(), endpoint, "", &req)
}

func ask(url, rest string) string {
	return `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url +
		`"}},{"type":"text","text":"What is it?"}]}]` + rest + `}`
}

const chatPath = "/v1/chat/completions"

// TestInjected: with injected names, an image is named by its content id where vLLM uses a uuid as it is, and by vLLM's hash of it
// elsewhere.
func TestInjected(t *testing.T) {
	file, id := pngFile(t)
	data := "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
	m := loadShipped(t, func(s *Server, _ *Media) { s.MediaNames = "injected" })
	computed := loadShipped(t, func(*Server, *Media) {})
	trusting := loadShipped(t, func(s *Server, _ *Media) { s.TrustUUID = true })
	namer, err := vllmid.NewNamer(vllmid.FormFramed, "m", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, rest, want string }{
		{"plain", "", id},
		{"processor kwargs", `,"mm_processor_kwargs":{"max_pixels":1003520}`,
			namer.UUID("image", id, vllmid.Kwargs{Processor: gjson.Parse(`{"max_pixels":1003520}`)})},
	} {
		p, body := read(t, m, chatPath, ask(data, c.rest))
		if p.Media[0].Name != c.want || !p.Exact {
			t.Errorf("%s: name %q, want %q (exact %v: %s)", c.name, p.Media[0].Name, c.want, p.Exact, p.Why)
		}
		want := strings.Replace(ask(data, c.rest), `"}},{"type":"text"`, `"},"uuid":"`+id+`"},{"type":"text"`, 1)
		if body != want || !json.Valid([]byte(body)) {
			t.Errorf("%s: the worker gets %s, want body == want, json.Valid([]byte(body))", c.name, body)
		}
		// The worker, reading the body that it gets, computes the same blocks.
		q, _ := read(t, trusting, chatPath, body)
		if !slices.Equal(p.Locals(nil, block.Form{Size: m.Server.BlockSize}, ""),
			q.Locals(nil, block.Form{Size: trusting.Server.BlockSize}, "")) {
			t.Errorf("%s: other blocks than the worker's", c.name)
		}
		q, _ = read(t, computed, chatPath, ask(data, c.rest))
		if slices.Equal(p.Locals(nil, block.Form{Size: m.Server.BlockSize}, ""), q.Locals(nil, block.Form{Size: computed.Server.BlockSize}, "")) {
			t.Errorf("%s: the blocks of computed names", c.name)
		}
	}
	// If the worker gets the bytes from elsewhere, or the API has no field for a uuid, the engine's own name stays.
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(file) }))
	defer host.Close()
	_, plain := read(t, computed, chatPath, ask(data, ""))
	q, _ := read(t, computed, chatPath, plain)
	for name, c := range map[string]struct{ endpoint, body string }{
		"URL": {chatPath, ask(host.URL+"/a.png", "")},
		"responses": {"/v1/responses", `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","detail":"auto","image_url":"` +
			data + `"},{"type":"input_text","text":"What is it?"}]}]}`},
	} {
		p, body := read(t, m, c.endpoint, c.body)
		if body != c.body || len(p.Media) != 1 || p.Media[0].Name != q.Media[0].Name {
			t.Errorf("%s: changed, or named %q: %.300s", name, p.Media[0].Name, body)
		}
	}
}

// TestRelayed: with a relay the worker gets our URL, which serves our bytes; names stay, or may be injected.
func TestRelayed(t *testing.T) {
	file, id := pngFile(t)
	data := "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(file) }))
	defer host.Close()
	for _, c := range []struct {
		name, url, names string
		dataURLs, want   bool
		engine, version  string
	}{
		{"URL", host.URL + "/a.png", "computed", false, true, "vllm", "0.32.0"},
		{"data URL", data, "computed", true, true, "vllm", "0.32.0"},
		{"data URL, not asked for", data, "computed", false, false, "vllm", "0.32.0"},
		{"URL, injected", host.URL + "/a.png", "injected", false, true, "vllm", "0.32.0"},
		{"data URL, injected", data, "injected", true, true, "vllm", "0.32.0"},
		{"TensorRT-LLM, data URL", data, "computed", true, true, "trtllm", "1.2.0"},
		{"SGLang, URL", host.URL + "/a.png", "computed", false, true, "sglang", "0.5.23"},
	} {
		mux := http.NewServeMux()
		srv := httptest.NewServer(mux)
		defer srv.Close()
		m := loadShipped(t, func(s *Server, x *Media) {
			r, err := relay.New(relay.Config{URL: srv.URL + "/r"})
			if err != nil {
				t.Fatal(err)
			}
			mux.Handle("/r/", r)
			s.Engine, s.EngineVersion, s.MediaNames, x.Relay, x.RelayDataURLs = c.engine, c.version, c.names, r, c.dataURLs
		})
		p, body := read(t, m, chatPath, ask(c.url, ""))
		part := gjson.Get(body, "messages.0.content.0")
		link := part.Get("image_url.url").Str
		if got := strings.HasPrefix(link, srv.URL+"/r/"+id+"?"); got != c.want {
			t.Errorf("%s: the worker gets %.200s", c.name, body)
		}
		if uuid := part.Get("uuid").Str; (uuid == id) != (c.names == "injected") || (p.Media[0].Name == id) != (c.names == "injected") {
			t.Errorf(`%s: uuid %q, name %q, want (uuid == id) == (c.names == "injected"), (p.Media[0].Name == id) == (c.names == "injected")`,
				c.name, uuid, p.Media[0].Name)
		}
		if !c.want {
			continue
		}
		resp, err := http.Get(link)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !bytes.Equal(got, file) || resp.Header.Get("Content-Type") != "image/png" {
			t.Errorf("%s: the relay answers %d, %d bytes of %s", c.name, resp.StatusCode, len(got), resp.Header.Get("Content-Type"))
		}
	}
}

func TestInjectedIsForVLLM(t *testing.T) {
	for engine, version := range map[string]string{"sglang": "0.5.23", "trtllm": "1.2.0", "vllm": "0.22.1"} {
		s := DefaultServer()
		s.Engine, s.EngineVersion, s.MediaNames = engine, version, "injected"
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), "media_names") {
			t.Errorf("%s %s: got %v, want an error, %q in it", engine, version, err, "media_names")
		}
	}
}

// BenchmarkRead measures what naming and handing over cost a decision: a known image of 2.8 MB in a data URL of 3.7 MB.
func BenchmarkRead(b *testing.B) {
	file, _ := pngFile(b)
	file = append(file, make([]byte, 2_775_000-len(file))...)
	skeleton := ask("data:image/png;base64,"+base64.StdEncoding.EncodeToString(file), "")
	for _, how := range []string{"computed", "injected", "relayed"} {
		b.Run(how, func(b *testing.B) {
			m := loadShipped(b, func(s *Server, x *Media) {
				switch how {
				case "injected":
					s.MediaNames = how
				case "relayed":
					x.Relay, _ = relay.New(relay.Config{URL: "http://10.0.0.2:9904"})
					x.RelayDataURLs = true
				}
			})
			read(b, m, chatPath, skeleton)
			var s body.Skeleton
			var req body.Request
			piece := [][]byte{[]byte(skeleton)}
			b.SetBytes(int64(len(skeleton)))
			b.ReportAllocs()
			for b.Loop() {
				if err := body.Read(piece, &s, &req); err != nil {
					b.Fatal(err)
				}
				if _, err := m.Read(context.Background(), chatPath, "", &req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// apply applies edits, which must be in the body's order.
func apply(t testing.TB, text string, list []body.Edit) string {
	t.Helper()
	var out strings.Builder
	at := 0
	for _, e := range list {
		if e.From < at || e.To < e.From || e.To > len(text) {
			t.Fatalf("edit [%d, %d) after %d in %d bytes, want at least %d, at least %d, at most %d",
				e.From, e.To, at, len(text), at, e.From, len(text))
		}
		out.WriteString(text[at:e.From])
		out.Write(e.Text)
		at = e.To
	}
	return out.String() + text[at:]
}
