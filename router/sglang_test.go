package router

import (
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// unzipped copies a model directory with its packed files unpacked.
func unzipped(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	files, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		in, err := os.Open(filepath.Join(from, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		r := io.Reader(in)
		if strings.HasSuffix(f.Name(), ".gz") {
			r, err = gzip.NewReader(in)
			if err != nil {
				t.Fatal(err)
			}
		}
		data, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, strings.TrimSuffix(f.Name(), ".gz")), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestConformanceSGLangMemory runs the recorded requests of real SGLang servers through a router that has no file of their models: what is
// called learned is what the server had.
func TestConformanceSGLangMemory(t *testing.T) {
	recordings := golden.Dir(t, "sglang")
	learned, equal := 0, 0
	for _, file := range []string{"server_text.json.gz", "server_qwen3vl.json.gz"} {
		media, err := engine.NewMedia(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer media.Close()
		s := engine.DefaultServer()
		s.Engine, s.EngineVersion, s.BlockSize = "sglang", "0.5.23", 16
		live, err := engine.LoadLive("m", "", s, media)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, 1)
		o := w.opt
		o.Models, o.LearnedBytes, o.Metrics = []Model{{Name: "m", Prompts: live}}, 1<<20, nil
		w.Router = New(o)
		slot, d := w.slots[0].ID, sglang.Decoder{}
		for _, st := range gjson.GetBytes(golden.Read(t, filepath.Join(recordings, file)), "steps").Array() {
			body := map[string]any{"model": "m"}
			prompt, output, cached := st.Get("usage.prompt_tokens"), st.Get("usage.completion_tokens"), st.Get("response.meta_info.cached_tokens")
			path := "/v1/chat/completions"
			switch ids := st.Get("request.input_ids"); {
			case ids.Exists(): // the same prompt in the API that Envoy sees
				path, body["prompt"] = "/v1/completions", json.RawMessage(ids.Raw)
				prompt, output = st.Get("response.meta_info.prompt_tokens"), st.Get("response.meta_info.completion_tokens")
			case st.Get("messages").Exists():
				body["messages"] = json.RawMessage(withFiles(t, filepath.Dir(recordings), st.Get("messages").Raw))
			default:
				body["messages"] = json.RawMessage(st.Get("request.messages").Raw)
				prompt, output = st.Get("response.usage.prompt_tokens"), st.Get("response.usage.completion_tokens")
			}
			for _, more := range []string{"extra", "request"} {
				for key, v := range st.Get(more).Map() {
					if key != "input_ids" && key != "sampling_params" && key != "model" && key != "messages" {
						body[key] = json.RawMessage(v.Raw)
					}
				}
			}
			if h := st.Get("http"); !prompt.Exists() || h.Exists() && h.Type != gjson.Null && h.Int() != 200 {
				continue
			}
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			w.ids++
			got := w.Decide(t.Context(), &Request{ID: fmt.Sprint(w.ids), Path: path, Body: [][]byte{text}})
			before := w.index.HeldBlocks(slot)
			for _, e := range st.Get("events").Array() {
				payload, err := base64.StdEncoding.DecodeString(cmp.Or(e.Get("payload").String(), e.Get("frames.2").String()))
				if err != nil {
					t.Fatal(err)
				}
				b, err := d.Decode(payload)
				if err != nil {
					t.Fatal(err)
				}
				for i := range b.Events {
					e := &b.Events[i]
					if e.Kind == kvevent.Removed {
						_, err = w.index.Remove(slot, e.Tier, e.EngineHashes)
					} else {
						w.Learner().Stored(slot, e)
						err = w.index.Store(slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			w.Observe(Outcome{ID: fmt.Sprint(w.ids), Phase: Ended, Addr: w.slots[0].Worker.Addr, Code: 200, CachedTokens: -1,
				PromptTokens: int(prompt.Int()), OutputTokens: int(output.Int())})
			w.now = w.now.Add(3 * time.Minute)
			w.Learner().Settle(w.now)
			want := int(cached.Int())
			if !cached.Exists() { // a server without --enable-cache-report: what it did not store
				all := int(prompt.Int()+output.Int()-1) / 16
				want = min(all-(w.index.HeldBlocks(slot)-before), int(prompt.Int()-1)/16) * 16
			}
			if got.Reason != Learned {
				continue
			}
			learned++
			if got.CachedTokens == want {
				equal++
			} else {
				t.Logf("%s: %s: %d tokens, the server had %d", file, st.Get("step"), got.CachedTokens, want)
			}
		}
	}
	t.Logf("conformance: sglang by memory: %d of %d learned predictions equal", equal, learned)
	if learned < 2 || equal < learned {
		t.Errorf("%d of %d learned predictions equal, want all, and two at least: what was sent again", equal, learned)
	}
}

// TestConformanceSGLangDecisions runs a real SGLang server's chats with images and its events through the whole router. The
// first events with an image reveal the worker's fingerprint; from then on every request's prediction must be what the server
// had: the full pages of its prompt less those that it stored.
func TestConformanceSGLangDecisions(t *testing.T) {
	golden, models := os.Getenv("SIGHTLINE_GOLDEN"), os.Getenv("SIGHTLINE_MODELS")
	if golden == "" || models == "" {
		t.Skip("SIGHTLINE_GOLDEN or SIGHTLINE_MODELS is not set: no recordings")
	}
	var rec struct {
		Steps []struct {
			Step     string
			Messages json.RawMessage
			Extra    map[string]json.RawMessage
			HTTP     *int
			Usage    *struct {
				Prompt int `json:"prompt_tokens"`
			}
			Events []struct{ Payload []byte }
		}
	}
	f, err := os.Open(filepath.Join(golden, "sglang", "server_qwen3vl.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	var pinned []string
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	media.Pinned = func(_, f string) { pinned = append(pinned, f) }
	s := engine.DefaultServer()
	s.Engine, s.EngineVersion, s.BlockSize = "sglang", "0.5.23", 16
	live, err := engine.LoadLive("tiny", unzipped(t, filepath.Join(models, "qwen3-vl")), s, media)
	if err != nil {
		t.Fatal(err)
	}
	ix := indexer.New(indexer.Options{})
	var sink *stream.IndexSink
	fl := fleet.New(nil)
	fl.Set([]*fleet.Worker{fleet.NewWorker("w", netip.MustParseAddrPort("127.0.0.1:8000"), "tiny", 0, func(int) indexer.SlotID {
		sink = stream.Join(ix, indexer.SlotOptions{CountCopies: true})
		return sink.Slot()
	})})
	r := New(Options{Models: []Model{{Name: "tiny", Prompts: live}}, Fleet: fl, Index: ix, PredictedTTL: time.Nanosecond})
	d := sglang.Decoder{Pad: func(pad uint64) { live.SawPad("w", pad) }}
	compared, images := 0, 0
	for _, st := range rec.Steps {
		if st.Usage == nil || st.HTTP != nil && *st.HTTP != 200 {
			continue
		}
		body := map[string]any{"model": "tiny", "messages": json.RawMessage(withFiles(t, golden, string(st.Messages)))}
		for k, v := range st.Extra {
			body[k] = v
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		known := len(pinned) > 0
		hasImage := strings.Contains(string(st.Messages), "image_url")
		got := r.Decide(t.Context(), &Request{ID: st.Step, Path: "/v1/chat/completions", Body: [][]byte{text}})
		before := ix.HeldBlocks(sink.Slot())
		for _, e := range st.Events {
			b, err := d.Decode(e.Payload)
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Events {
				if err := sink.Store(&b.Events[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if hasImage && !known {
			continue
		}
		stored := ix.HeldBlocks(sink.Slot()) - before
		want := min(st.Usage.Prompt/16-stored, (st.Usage.Prompt-1)/16) * 16
		if got.CachedTokens != want || got.PromptTokens != st.Usage.Prompt {
			t.Errorf("%s: got %d of %d tokens predicted (%s), want %d of %d",
				st.Step, got.CachedTokens, got.PromptTokens, got.Why, want, st.Usage.Prompt)
		}
		compared++
		if hasImage {
			images++
		}
	}
	if len(pinned) != 1 || images < 20 {
		t.Errorf("%d fingerprints found, %d requests with images compared, want 1, at least 20", len(pinned), images)
	}
	t.Logf("conformance: sglang: %d requests, %d with images, predictions equal; %s", compared, images, pinned)
}

// withFiles puts data URLs in place of the recordings' file names.
func withFiles(t *testing.T, golden, messages string) string {
	t.Helper()
	for {
		before, after, ok := strings.Cut(messages, `"file"`)
		if !ok {
			return messages
		}
		name := strings.Split(after, `"`)[1]
		data, err := os.ReadFile(filepath.Join(golden, "images", name))
		if err != nil {
			t.Fatal(err)
		}
		url := "data:image/" + strings.TrimPrefix(filepath.Ext(name), ".") + ";base64," + base64.StdEncoding.EncodeToString(data)
		messages = before + `"url"` + strings.Replace(after, name, url, 1)
	}
}

// TestSGLangAdapterField: an adapter that lora_path names, and that is known, is the adapter of the prompt's blocks, as the same one in the
// model's name is. Nothing is predicted of a prompt with another one, with several, or with one beside a vLLM that does not read the field.
func TestSGLangAdapterField(t *testing.T) {
	load := func(engineName, version string) *engine.LiveModel {
		media, err := engine.NewMedia(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(media.Close)
		s := engine.DefaultServer()
		s.Engine, s.EngineVersion, s.BlockSize = engineName, version, 16
		live, err := engine.LoadLive("m", "../examples/models/qwen2.5-vl", s, media)
		if err != nil {
			t.Fatal(err)
		}
		return live
	}
	sg := load("sglang", "0.5.23")
	for _, c := range []struct {
		model, field string
		beside       bool // a class of vLLM
		found        bool // as blocks of the adapter
	}{
		{"m", `"lora_path":"lora"`, false, true}, {"m:lora", `"lora_path":null`, false, true}, {"m:lora", `"lora_path":"other"`, false, true},
		{"m", `"lora_path":["lora"]`, false, false}, {"m", `"lora_path":"x:lora"`, false, false}, {"m", `"lora_path":"other"`, false, false},
		{"m", `"lora_path":""`, false, false}, {"m", `"x":"lora"`, false, false}, {"lora", `"x":0`, false, false},
		{"lora", `"lora_path":"lora"`, false, true}, {"m", `"lora_path":"m"`, false, false}, {"m", `"lora_path":"lora"`, true, false},
	} {
		w := newWorld(t, 1)
		o := w.opt
		m := Model{Name: "m", Adapters: []string{"lora", "m:lora"}, Prompts: sg}
		if c.beside {
			m.Classes = []Class{{Name: "v", Prompts: load("vllm", "0.33.0"), BlockSize: 16}}
		}
		o.Models, o.Metrics = []Model{m}, nil
		w.Router = New(o)
		chat := `{"model":"` + c.model + `","messages":[{"role":"user","content":"` + text(60, 1) + `"}],` + c.field + `}`
		var skeleton body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{[]byte(strings.Replace(chat, c.field, `"x":0`, 1))}, &skeleton, &req); err != nil {
			t.Fatal(err)
		}
		ps, err := sg.Model().Read(t.Context(), "/v1/chat/completions", "", &req)
		if err != nil {
			t.Fatal(err)
		}
		locals := ps.List[0].Locals(nil, block.Form{Size: 16}, "lora")
		if err := w.index.Store(w.slots[0].ID, indexer.GPU, 0, false, block.Fixed().Chain(nil, locals), locals); err != nil {
			t.Fatal(err)
		}
		d := w.decide(chat)
		if found := d.CachedTokens > 0; found != c.found || found && d.Reason != Exact {
			t.Errorf("model %s, %s: got %d tokens found (%s, %s), want some: %t", c.model, c.field, d.CachedTokens, d.Reason, d.Why,
				c.found)
		}
	}
}
