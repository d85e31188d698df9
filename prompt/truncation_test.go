package prompt_test

import (
	"testing"

	"github.com/sightline-router/sightline/engine"
	. "github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

// TestTruncationByRelease: how truncate_prompt_tokens truncates, by release (vLLM's renderers/params.py and base.py): before 0.31
// it counts an image's marker, since then the image's tokens; before 0.32 max_model_len bounds the prompt and the answer
// together.
func TestTruncationByRelease(t *testing.T) {
	const (
		chat = `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + png +
			`"}},{"type":"text","text":"What is in this picture? Describe it."}]}]`
		whole    = 34 // ids of the conversation; 4 of them are the image's
		image    = 4
		v30, v31 = "0.30", "0.31"
		v32      = "0.32"
		refused  = -1
	)
	size := []vision.Media{{Modality: "image", Width: 56, Height: 56}}
	var like *Renderer
	for _, c := range []struct {
		release, keys string
		limit, want   int
	}{
		{v30, ``, 0, whole}, {v31, ``, 0, whole}, {v32, ``, 0, whole},
		{v30, `"truncate_prompt_tokens":31,`, 0, whole}, // 31 ids with the marker: nothing is cut
		{v31, `"truncate_prompt_tokens":32,`, 0, 32},
		{v32, `"truncate_prompt_tokens":32,`, 0, 32},
		{v30, `"truncate_prompt_tokens":30,`, 0, whole - 1},
		{v30, `"truncate_prompt_tokens":3,`, 0, refused}, // the marker is cut off
		{v32, `"truncate_prompt_tokens":16,`, 0, refused},
		{v30, `"max_tokens":8,`, whole + 7, refused}, {v31, `"max_tokens":8,`, whole + 7, refused}, {v32, `"max_tokens":8,`, whole + 7, whole},
		{v30, `"max_tokens":8,`, whole + 8, whole}, {v31, `"max_completion_tokens":8,`, whole + 8, whole},
		{v30, `"max_tokens":8,`, 8, refused},
		{v31, `"max_tokens":8,"truncate_prompt_tokens":40,`, 47, refused}, {v32, `"max_tokens":8,"truncate_prompt_tokens":40,`, 47, whole},
		{v31, `"max_tokens":2,"truncate_prompt_tokens":-1,`, whole + 1, whole - 1},
		{v32, `"max_tokens":2,"truncate_prompt_tokens":-1,`, whole, whole - 1}, {v32, `"truncate_prompt_tokens":-1,`, whole, whole},
	} {
		m := load(t, shipped, Options{Dialect: engine.RulesOf("vllm", c.release).Dialect, MaxModelLen: c.limit, Like: like})
		like = m
		got := refused
		d, err := m.Read(t.Context(), ChatEndpoint, request(t, `{`+c.keys+chat+`}`))
		if err == nil {
			var e Expanded
			e, err = m.Expand(d, &d.Prompts[0], size)
			if err == nil {
				got = len(e.IDs)
				if !e.Exact || len(e.Spans) != 1 || e.Spans[0].Length != image {
					t.Errorf("%s %s: %+v; got %d, want Exact true, 1, Spans[0].Length %d", c.release, c.keys, e, len(e.Spans), image)
				}
			}
		}
		if got != c.want {
			t.Errorf("%s %s of %d: %d ids (%v), want %d", c.release, c.keys, c.limit, got, err, c.want)
		}
	}
	m := load(t, shipped, Options{Dialect: engine.RulesOf("vllm", "0.29.0").Dialect, Like: like})
	if _, err := m.Read(t.Context(), ChatEndpoint, request(t, `{"truncate_prompt_tokens":16,`+chat+`}`)); err != ErrTruncation {
		t.Errorf("before 0.30: got %v, want %v", err, ErrTruncation)
	}
}
