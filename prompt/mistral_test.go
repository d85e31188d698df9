package prompt_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
	. "github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

// mistralDir is a directory of Mistral's format: a tokenizer file, and params.json with a vision encoder of 4-pixel
// patches.
func mistralDir(t testing.TB, tekken []byte) string {
	t.Helper()
	dir := t.TempDir()
	params := `{"vocab_size": 282, "vision_encoder": {"image_size": 64, "max_image_size": 64, "patch_size": 2, "spatial_merge_size": 2}}`
	if tekken == nil {
		var err error
		tekken, err = os.ReadFile("mistral/testdata/small/tekken.json")
		if err != nil {
			t.Fatal(err)
		}
	} else {
		params = `{"vision_encoder": {"max_image_size": 1024, "patch_size": 16, "image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13}}`
	}
	for name, data := range map[string][]byte{"tekken.json": tekken, "params.json": []byte(params)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestMistralMode: a directory that only mistral-common can read is read in Mistral mode; images get their rows, and their spans
// cover these.
func TestMistralMode(t *testing.T) {
	m := load(t, mistralDir(t, nil), Options{})
	const rows = "[IMG][IMG][IMG][IMG_BREAK][IMG][IMG][IMG][IMG_END]" // 12x8 pixels
	const part = `{"type":"image_url","image_url":{"url":"` + png + `"}}`
	image := func(w, h int) []vision.Media { return []vision.Media{{Modality: "image", Width: w, Height: h}} }
	for _, c := range []struct {
		name, endpoint, body string
		sizes                []vision.Media
		want                 string
		span                 int // where the image starts
	}{
		{"chat", ChatEndpoint, `{"messages":[{"role":"user","content":"[IMG]</s>"}]}`, nil, "<s>[INST][IMG]</s>[/INST]", 0},
		{"tools without --enable-auto-tool-choice", ChatEndpoint,
			`{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}`, nil,
			`<s>[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}][/AVAILABLE_TOOLS][INST]a[/INST]`, 0},
		{"image", ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},` + part + `]}]}`,
			image(12, 8), "<s>[INST]" + rows + "a[/INST]", 2},
		{"batch", BatchEndpoint, `{"messages":[[{"role":"user","content":[` + part + `,{"type":"text","text":"a"}]}]]}`,
			image(12, 8), "<s>[INST]" + rows + "a[/INST]", 2},
		{"image truncated in front", ChatEndpoint, `{"truncate_prompt_tokens":11,"messages":[{"role":"user","content":[` +
			part + `,{"type":"text","text":"a"}]}]}`, image(12, 8), "[INST]" + rows + "a[/INST]", 1},
		{"completion", CompletionsEndpoint, `{"prompt":"a[IMG]"}`, nil, "<s>a[IMG]", 0},
		{"completion truncated behind BOS", CompletionsEndpoint, `{"prompt":"abcd","truncate_prompt_tokens":3}`, nil, "<s>cd", 0},
		{"completion truncated in front, as asked", CompletionsEndpoint,
			`{"prompt":"abcd","truncate_prompt_tokens":3,"truncation_side":"left"}`, nil, "bcd", 0},
		{"completion truncated at the end", CompletionsEndpoint, `{"prompt":"abcd","truncate_prompt_tokens":3,"truncation_side":"right"}`,
			nil, "<s>ab", 0},
		{"ids truncated at the end", CompletionsEndpoint, `{"prompt":[1,3,4],"truncate_prompt_tokens":2,"truncation_side":"right"}`,
			nil, "<s>[INST]", 0},
		{"chat truncated at the end", ChatEndpoint,
			`{"truncate_prompt_tokens":3,"truncation_side":"right","messages":[{"role":"user","content":"abcd"}]}`, nil, "<s>[INST]a", 0},
		{"chat truncated in front", ChatEndpoint,
			`{"truncate_prompt_tokens":3,"truncation_side":"left","messages":[{"role":"user","content":"abcd"}]}`, nil, "cd[/INST]", 0},
		{"image, truncated at the end", ChatEndpoint,
			`{"truncate_prompt_tokens":10,"truncation_side":"right","messages":[{"role":"user","content":[` + part +
				`,{"type":"text","text":"a"}]}]}`, image(12, 8), "<s>[INST]" + rows, 2},
		{"completion without BOS", CompletionsEndpoint, `{"prompt":"abcd","add_special_tokens":false}`, nil, "abcd", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := draft(t, m, c.endpoint, c.body)
			e, err := m.Expand(d, &d.Prompts[0], c.sizes)
			if err != nil || !e.Exact {
				t.Fatalf("%v %q: got %v, want no error, true", err, e.Why, e.Exact)
			}
			if got := m.Tokenizer().Decode(e.IDs, false); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if c.sizes != nil && (len(e.Spans) != 1 || e.Spans[0] != vision.Span{Offset: c.span, Length: 8}) {
				t.Errorf("spans %v, want one of 8 tokens at %d", e.Spans, c.span)
			}
		})
	}
}

// TestMistralRefusals: an EXIF orientation that changes the rows gives a 500, another one does not; a truncated image gives a
// 500.
func TestMistralRefusals(t *testing.T) {
	m := load(t, mistralDir(t, nil), Options{})
	const image = `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + png + `"}}]}]`
	for _, c := range []struct {
		name, body string
		size       vision.Media
		status     int
	}{
		{"turned", `{` + image + `}`, vision.Media{Width: 12, Height: 8, SidesSwapped: true}, 500},
		{"turned and square", `{` + image + `}`, vision.Media{Width: 8, Height: 8, SidesSwapped: true}, 0},
		{"turned, rows as before", `{` + image + `}`, vision.Media{Width: 7, Height: 8, SidesSwapped: true}, 0},
		{"cut image at the end", `{"truncate_prompt_tokens":9,"truncation_side":"right",` + image + `}`,
			vision.Media{Width: 12, Height: 8}, 500},
		{"cut image", `{"truncate_prompt_tokens":5,` + image + `}`, vision.Media{Width: 12, Height: 8}, 500},
	} {
		d := draft(t, m, ChatEndpoint, c.body)
		_, err := m.Expand(d, &d.Prompts[0], []vision.Media{c.size})
		if status := statusOf(err); status != c.status {
			t.Errorf("%s: status %d (%v), want %d", c.name, status, err, c.status)
		}
	}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{}}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":null,"uuid":"y"}]}]}`,
	} {
		if _, err := m.Read(t.Context(), ChatEndpoint, request(t, body)); statusOf(err) != 400 {
			t.Errorf("%s: %v, want 400", body, err)
		}
	}
	if _, err := m.Read(t.Context(), ResponsesEndpoint, request(t, `{"input":"a"}`)); !errors.Is(err, ErrMistral) {
		t.Errorf("responses: got %v, want %v", err, ErrMistral)
	}
}

func statusOf(err error) int {
	var r *Refused
	if errors.As(err, &r) {
		return r.Status
	}
	return 0
}

// TestConformanceMistralPrompts compares chats with images with mistral-common's results, by Pixtral's own tokenizer.
// SIGHTLINE_MISTRAL_COMMON is the data directory of the Python package mistral-common 1.13.1.
func TestConformanceMistralPrompts(t *testing.T) {
	m := load(t, mistralDir(t, golden.Read(t, golden.MistralCommon(t, "tekken_240911.json"))), Options{})
	var rows []struct {
		Case     string
		Messages json.RawMessage
		Images   [][2]int
		Kwargs   map[string]json.RawMessage
		IDs      [][2]int `json:"ids_rle"`
		Ranges   [][2]int
	}
	golden.JSON(t, &rows, golden.Dir(t, "processor", "prompts", "pixtral_mistral.json.gz"))
	for _, row := range rows {
		body := asBody(t, row.Messages, row.Kwargs)
		d := draft(t, m, ChatEndpoint, body)
		var sizes []vision.Media
		for _, wh := range row.Images {
			sizes = append(sizes, vision.Media{Modality: "image", Width: wh[0], Height: wh[1]})
		}
		if len(sizes) != len(d.Prompts[0].Media) {
			t.Fatalf("%s: %d media for %d images, want %d", row.Case, len(d.Prompts[0].Media), len(sizes), len(d.Prompts[0].Media))
		}
		e, err := m.Expand(d, &d.Prompts[0], sizes)
		if err != nil {
			t.Errorf("%s: got %v, want no error", row.Case, err)
			continue
		}
		var want []uint32
		for _, run := range row.IDs {
			want = append(want, slices.Repeat([]uint32{uint32(run[0])}, run[1])...)
		}
		if !slices.Equal(e.IDs, want) {
			t.Errorf("%s: %d ids, want %d others", row.Case, len(e.IDs), len(want))
		}
		for i, s := range e.Spans {
			if len(row.Ranges) != len(e.Spans) || row.Ranges[i] != [2]int{s.Offset, s.Length} {
				t.Errorf("%s: spans %v, want %v", row.Case, e.Spans, row.Ranges)
				break
			}
		}
	}
	t.Logf("%d chats", len(rows))
}
