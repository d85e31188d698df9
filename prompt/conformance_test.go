package prompt_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/golden"
	. "github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// asBody returns a chat request; {"type":"image"} parts become images. Key order is kept below the top level.
func asBody(t *testing.T, messages json.RawMessage, fields map[string]json.RawMessage) string {
	body := map[string]json.RawMessage{"messages": messages}
	for k, v := range fields {
		body[k] = v
	}
	out, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(out), `{"type":"image"}`, `{"type":"image_url","image_url":{"url":"`+png+`"}}`)
}

// TestConformanceGoldenChat: conversations rendered by jinja2, tokenized by @huggingface/tokenizers and expanded by vLLM's rules
// (golden_chat.json).
func TestConformanceGoldenChat(t *testing.T) {
	recordings, models := golden.Dir(t), golden.Models(t)
	var rows []struct {
		Model, Case, Template, Text string
		Messages                    json.RawMessage
		Tools                       json.RawMessage
		Kwargs                      map[string]json.RawMessage
		Images                      [][2]int
		IDs                         []uint32
		RLE                         [][2]uint32 `json:"expanded_rle"`
		Ranges                      [][2]int
		Error                       string
	}
	golden.JSON(t, &rows, models, "golden_chat.json")
	overlays := map[string]string{"gemma3": "gemma3", "llama3.1": "llama3"}
	loaded := map[string]*Renderer{}
	n := 0
	for _, row := range rows {
		m := loaded[row.Model]
		if m == nil {
			from := []string{filepath.Join(models, row.Model)}
			if o := overlays[row.Model]; o != "" {
				from = append(from, filepath.Join(recordings, "vllm", "model_dirs", o))
			}
			dir := golden.Unpacked(t, from...)
			if name := row.Template; strings.HasPrefix(name, "tokenizer_config.") && name != "tokenizer_config.json" {
				if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), golden.Read(t, models, row.Model, name), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m = load(t, dir, Options{AutoToolChoice: true, Now: func() time.Time { return time.Date(2024, 7, 26, 0, 0, 0, 0, time.UTC) }})
			loaded[row.Model] = m
		}
		fields := row.Kwargs
		if string(row.Tools) != "null" {
			fields["tools"] = row.Tools
		}
		d, err := m.Read(t.Context(), ChatEndpoint, request(t, asBody(t, row.Messages, fields)))
		if row.Error != "" {
			if refused := new(Refused); !errors.As(err, &refused) {
				t.Errorf("%s %s: the template refuses it, we read it (%v)", row.Model, row.Case, err)
			}
			n++
			continue
		}
		if err != nil {
			t.Errorf("%s %s: got %v, want no error", row.Model, row.Case, err)
			continue
		}
		var sizes []vision.Media
		for _, s := range row.Images {
			sizes = append(sizes, vision.Media{Width: s[0], Height: s[1]})
		}
		e, err := m.Expand(d, &d.Prompts[0], sizes)
		if err != nil {
			t.Errorf("%s %s: got %v, want no error", row.Model, row.Case, err)
			continue
		}
		var want []uint32
		for _, run := range row.RLE {
			want = append(want, slices.Repeat(run[:1], int(run[1]))...)
		}
		var spans [][2]int
		for _, s := range e.Spans {
			spans = append(spans, [2]int{s.Offset, s.Length})
		}
		if d.Prompts[0].Text != row.Text || !slices.Equal(e.IDs, want) || !slices.Equal(spans, row.Ranges) {
			t.Errorf("%s %s:\n got %q, %d ids, %v\nwant %q, %d ids, %v", row.Model, row.Case, d.Prompts[0].Text, len(e.IDs),
				spans, row.Text, len(want), row.Ranges)
			continue
		}
		n++
	}
	t.Logf("golden_chat: %d of %d equal", n, len(rows))
}

type sglangStep struct {
	Step     string
	Path     string
	Messages json.RawMessage
	Request  json.RawMessage
	Extra    map[string]json.RawMessage
	HTTP     *int
	Usage    *struct {
		Prompt int `json:"prompt_tokens"`
	}
	Response struct {
		Usage *struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	Events []struct{ Batch []json.RawMessage }
}

// sglangEvent is a stored event of a batch.
type sglangEvent struct {
	Type   string
	Hashes []int64  `json:"block_hashes"`
	Parent *int64   `json:"parent_block_hash"`
	Tokens []uint64 `json:"token_ids"`
}

const pad = 1_000_000 // ids from here on are pads of images

// TestConformanceSGLangServer replays a real SGLang server's chats: as many tokens as it counted, and the token ids of its KV
// events, except images.
func TestConformanceSGLangServer(t *testing.T) {
	recordings, models := golden.Dir(t), golden.Models(t)
	sizes := map[string]vision.Media{}
	for _, kind := range []string{"jpg", "png", "webp"} {
		var v map[string]struct{ Size [2]int }
		golden.JSON(t, &v, recordings, "images", kind, "variants.json")
		for name, im := range v {
			sizes[kind+"/"+name] = vision.Media{Width: im.Size[0], Height: im.Size[1]}
		}
	}
	var server struct{ Steps []sglangStep }
	golden.JSON(t, &server, recordings, "sglang", "server_qwen3vl.json.gz")
	m := load(t, golden.Unpacked(t, filepath.Join(models, "qwen3-vl")), Options{Dialect: of("sglang"), AutoToolChoice: true})
	ends := map[int64]int{}
	chats, blocks := 0, 0
	for _, s := range server.Steps {
		if s.Messages == nil || string(s.Messages) == "null" || s.HTTP != nil {
			continue
		}
		var media []vision.Media
		text := string(s.Messages)
		for rest := text; ; {
			_, after, ok := strings.Cut(rest, `"file"`)
			if !ok {
				break
			}
			name := strings.Split(after, `"`)[1]
			media, rest = append(media, sizes[name]), after
		}
		req := request(t, asBody(t, json.RawMessage(strings.ReplaceAll(text, `"file"`, `"url"`)), s.Extra))
		d, err := m.Read(t.Context(), ChatEndpoint, req)
		if err != nil {
			t.Errorf("%s: got %v, want no error", s.Step, err)
			continue
		}
		e, err := m.Expand(d, &d.Prompts[0], media)
		if err != nil || len(e.IDs) != s.Usage.Prompt {
			t.Errorf("%s: %d tokens, the server had %d (%v)\n%q", s.Step, len(e.IDs), s.Usage.Prompt, err, d.Prompts[0].Text)
			continue
		}
		chats++
		blocks += sglangEvents(t, s, e, ends)
	}
	t.Logf("sglang server: %d chats, %d blocks equal", chats, blocks)
	if chats < 25 || blocks < 40 {
		t.Errorf("only %d chats and %d blocks compared, want at least 25, at least 40", chats, blocks)
	}
}

// sglangEvents compares the tokens of events with a prompt; ends is where each known block ends.
func sglangEvents(t *testing.T, s sglangStep, e Expanded, ends map[int64]int) (blocks int) {
	for _, ev := range s.Events {
		var stored []sglangEvent
		if err := json.Unmarshal(ev.Batch[1], &stored); err != nil {
			t.Fatal(err)
		}
		for _, b := range stored {
			if b.Type != "BlockStored" {
				continue
			}
			at := 0
			if b.Parent != nil {
				at = ends[*b.Parent]
			}
			for i, id := range b.Tokens {
				inside := slices.ContainsFunc(e.Spans, func(s vision.Span) bool { return at+i >= s.Offset && at+i < s.Offset+s.Length })
				if at+i >= len(e.IDs) || id < pad && uint64(e.IDs[at+i]) != id || id >= pad && !inside {
					t.Errorf("%s: token %d is another one in the server's event", s.Step, at+i)
					return blocks
				}
			}
			for i, h := range b.Hashes {
				ends[h] = at + (i+1)*len(b.Tokens)/len(b.Hashes)
			}
			blocks += len(b.Hashes)
		}
	}
	return blocks
}

// TestConformanceSGLangText: the text server's tokenizer has Llama 3's first template; its prompts are short enough to write the
// template here.
func TestConformanceSGLangText(t *testing.T) {
	recordings, models := golden.Dir(t), golden.Models(t)
	file := filepath.Join(t.TempDir(), "llama3.jinja")
	text := `{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}` +
		`{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	m := load(t, golden.Unpacked(t, filepath.Join(models, "llama3.1")), Options{Dialect: of("sglang"), TemplateFile: file})
	var server struct{ Steps []sglangStep }
	golden.JSON(t, &server, recordings, "sglang", "server_text.json.gz")
	n := 0
	for _, s := range server.Steps {
		if s.Path != ChatEndpoint {
			continue
		}
		d := draft(t, m, ChatEndpoint, string(s.Request))
		e, err := m.Expand(d, &d.Prompts[0], nil)
		if err != nil || len(e.IDs) != s.Response.Usage.Prompt {
			t.Errorf("%s: %d tokens, the server had %d (%v), want no error, len(e.IDs) == s.Response.Usage.Prompt",
				s.Step, len(e.IDs), s.Response.Usage.Prompt, err)
			continue
		}
		if !strings.Contains(s.Step, "salt") {
			sglangEvents(t, s, e, map[int64]int{})
		}
		n++
	}
	t.Logf("sglang text server: %d chats equal", n)
}

// TestConformanceFallbacks: our versions of vLLM's fallback templates render the same as its files.
func TestConformanceFallbacks(t *testing.T) {
	models := golden.Models(t)
	chats := [][][2]string{
		{{"user", "Hi"}}, {{"system", "S"}, {"user", "Hi"}}, {{"user", "a"}, {"assistant", "b"}, {"user", " c\n"}},
		{{"user", "a"}, {"assistant", "b"}}, {{"system", "S"}, {"user", "a"}, {"assistant", "b"}}, {{"user", "a"}, {"user", "b"}},
		{{"assistant", "b"}}}
	n := 0
	for file, modelType := range map[string]string{"template_basic": "paligemma", "template_blip2": "blip-2", "template_chatml": "minicpmv",
		"template_deepseek_ocr": "deepseek_ocr", "template_deepseek_vl2": "deepseek_vl_v2"} {
		theirs, err := template.Compile(string(golden.Read(t, models, "vllm-templates", file+".jinja")), template.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ours, err := template.Compile(of("vllm").Fallback(modelType, "x"), template.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if ours.ContentFormat() != theirs.ContentFormat() {
			t.Errorf("%s: content as %v, theirs as %v, want %v", file, ours.ContentFormat(), theirs.ContentFormat(), theirs.ContentFormat())
		}
		for _, c := range chats {
			for _, generate := range []bool{false, true} {
				var list []template.Value
				for _, m := range c {
					d := template.NewDict(2)
					d.Set("role", template.String(m[0]))
					d.Set("content", template.String(m[1]))
					list = append(list, d.Value())
				}
				var vars template.Vars
				vars.Set("bos_token", template.String("<s>"))
				vars.Set("eos_token", template.String("</s>"))
				call := template.Chat{Messages: template.NewList(list...), AddGenerationPrompt: generate, Vars: vars}
				got, errOurs := ours.Apply(nil, &call)
				want, errTheirs := theirs.Apply(nil, &call)
				if (errOurs == nil) != (errTheirs == nil) || errOurs == nil && string(got) != string(want) {
					t.Errorf("%s %v: %q %v\ntheirs %q %v", file, c, got, errOurs, want, errTheirs)
				}
				n++
			}
		}
	}
	t.Logf("%d renderings", n)
}
