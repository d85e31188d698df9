package sglang

import (
	"errors"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
)

// TestFormats: chats that SGLang writes in a named format are not predicted, whatever the template says; completions are.
func TestFormats(t *testing.T) {
	const shipped = "../../examples/models/qwen2.5-vl"
	var like *prompt.Renderer
	for _, name := range formatNames {
		m, err := prompt.Load(shipped, prompt.Options{Dialect: Dialect(), TemplateFile: name, Like: like})
		if err != nil {
			t.Fatalf("%s: got %v, want a model", name, err)
		}
		like = m
		for _, c := range []struct {
			endpoint, body string
			err            error
		}{
			{prompt.ChatEndpoint, `{"messages":[{"role":"user","content":"hello"}]}`, ErrConversation},
			{prompt.CompletionsEndpoint, `{"prompt":"hello"}`, nil},
		} {
			var sk body.Skeleton
			var req body.Request
			if err := errors.Join(sk.Scan([][]byte{[]byte(c.body)}), body.Parse(&sk, &req)); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Read(t.Context(), c.endpoint, &req); !errors.Is(err, c.err) {
				t.Errorf("%s of %s: got %v, want %v", c.endpoint, name, err, c.err)
			}
		}
	}
}

// TestFormatOfAModel: whether SGLang takes a format by itself. The paths without a type were given to SGLang 0.5.23's own
// parser/conversation.py.
func TestFormatOfAModel(t *testing.T) {
	for _, c := range []struct {
		modelType, path, given string
		err                    error
	}{
		{"", "/m/Qwen2-VL", "", nil}, {"", "/m/endpoints", "", nil}, {"", "/m/minicpm-v-4_6", "", nil}, {"", "/m/plain", "", nil},
		{"", "/m/InternVL2-2B", "", ErrConversation}, {"", "/m/OpenGVLab/InternVL3", "", ErrConversation},
		{"", "/models/points-reader", "", ErrConversation}, {"", "/m/janus-pro", "", ErrConversation},
		{"", "/m/vicuna-7b", "", ErrConversation}, {"", "/m/llava-v1.5-7b", "", ErrConversation},
		{"", "/m/deepseek-ai/deepseek-vl2", "", ErrConversation}, {"", "/m/llava-onevision-qwen2-7b", "", ErrConversation},
		{"", "/m/MiniCPM-V-2_6", "", ErrConversation}, {"", "/m/minicpm-o-2_6", "", ErrConversation},
		{"", "/m/Phi-4-multimodal-instruct", "", ErrConversation}, {"", "/m/DeepSeek-OCR", "", ErrConversation},
		{"", "/m/unlimited-x", "", ErrConversation}, {"", "/m/PaddleOCR-VL", "", ErrConversation},
		{"", "/m/whisper-large", "", ErrConversation}, {"", "/m/moss-2-vl", "", ErrConversation},
		{"", "/m/llava-v1.6-34b", "", ErrConversation},
		{"internvl_chat", "/m", "", ErrConversation}, {"whisper", "/m", "", ErrConversation}, {"llava", "/m/llava-1.5-7b-hf", "", nil},
		{"minicpmv4_6", "/m/MiniCPM-V-4.6", "", nil}, {"minicpmv", "/m", "", ErrConversation}, {"minicpmo", "/m", "", ErrConversation},
		{"qwen2_5_vl", "/m/qwen", "", nil}, {"gpt_oss", "/m", "", nil}, {"qwen2_5_vl", "/m", "qwen2-vl", ErrConversation},
		{"internvl_chat", "/m", "own.jinja", nil}, {"qwen2_5_vl", "/m", "own.json", ErrConversation},
	} {
		if err := unrendered(c.given, prompt.Directory{ModelType: c.modelType, Path: c.path}); !errors.Is(err, c.err) {
			t.Errorf("%s at %s with %q: got %v, want %v", c.modelType, c.path, c.given, err, c.err)
		}
	}
}
