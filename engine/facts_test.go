package engine_test

import (
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/prompt"
)

// TestFacts: what of a request decides whether its blocks are a hit is known without any file of the model.
func TestFacts(t *testing.T) {
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	const chat, texts, responses = "/v1/chat/completions", "/v1/completions", "/v1/responses"
	type want struct {
		reuse              prompt.Reuse
		several, truncated bool
		ambiguous, media   bool
	}
	for _, c := range []struct {
		engine, version, path, lora, fields string
		want                                want
	}{
		{"vllm", "0.32.0", chat, "a", `"cache_salt":"s"`, want{}},
		{"vllm", "0.32.0", chat, "", `"prompt_logprobs":1`, want{reuse: prompt.Recomputed}},
		{"vllm", "0.32.0", chat, "", `"echo":true`, want{reuse: prompt.Recomputed}},
		{"vllm", "0.32.0", texts, "", `"echo":true,"logprobs":1`, want{reuse: prompt.Recomputed}},
		{"vllm", "0.32.0", texts, "", `"use_beam_search":true`, want{reuse: prompt.Perhaps}},
		{"vllm", "0.32.0", texts, "", `"prompt":["one"]`, want{}},
		{"vllm", "0.32.0", texts, "", `"prompt":["one","two"]`, want{several: true}},
		{"vllm", "0.32.0", texts, "", `"prompt":[1,2]`, want{}},
		{"vllm", "0.32.0", texts, "", `"prompt":[[1,2],[3]]`, want{several: true}},
		{"vllm", "0.32.0", chat, "", `"truncate_prompt_tokens":64`, want{truncated: true}},
		{"vllm", "0.32.0", responses, "", `"truncation":"auto"`, want{truncated: true}},
		{"vllm", "0.32.0", responses, "", `"truncation":"disabled"`, want{}},
		{"vllm", "0.22.1", chat, "a", ``, want{ambiguous: true, media: true}},
		{"vllm", "0.22.1", chat, "", ``, want{media: true}},
		{"vllm", "0.22.1", chat, "", `"cache_salt":"s"`, want{ambiguous: true, media: true}},
		{"sglang", "0.5.23", chat, "a", `"cache_salt":"s"`, want{}},
		{"sglang", "0.5.23", chat, "", `"extra_key":"k"`, want{ambiguous: true, media: true}},
		{"sglang", "0.5.23", chat, "", `"prompt_logprobs":1`, want{}},
		{"sglang", "0.5.19", chat, "", `"cache_salt":"s"`, want{ambiguous: true, media: true}},
		{"sglang", "0.5.20", chat, "a", ``, want{ambiguous: true, media: true}},
		{"sglang", "0.5.23", texts, "", `"input_ids":[[1,2],[3]]`, want{several: true}},
		{"trtllm", "1.3.0", chat, "", `"prompt_logprobs":1`, want{reuse: prompt.Perhaps}},
		{"trtllm", "1.3.0", chat, "", `"truncate_prompt_tokens":64`, want{}},
	} {
		s := engine.DefaultServer()
		s.Engine, s.EngineVersion = c.engine, c.version
		live, err := engine.LoadLive("m", "", s, media)
		if err != nil {
			t.Fatal(err)
		}
		text := `{"model":"m"`
		if c.path == chat {
			text += `,"messages":[{"role":"user","content":"hi"}]`
		}
		if c.fields != "" {
			text += "," + c.fields
		}
		var skeleton body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{[]byte(text + "}")}, &skeleton, &req); err != nil {
			t.Fatalf("%s: got %v, want no error", c.fields, err)
		}
		read, err := live.Model().Read(t.Context(), c.path, c.lora, &req)
		f := read.Facts
		got := want{f.Reuse, f.Several, f.Truncated, f.Ambiguous(false) != "", f.Ambiguous(true) != ""}
		if err == nil || got != c.want {
			t.Errorf("%s %s, %s of %q with %s: %+v, want %+v (%v)", c.engine, c.version, c.path, c.lora, c.fields, got, c.want, err)
		}
	}
}
