package vision_test

import (
	"fmt"
	"os"

	"github.com/sightline-router/sightline/prompt/tokenizer"
	"github.com/sightline-router/sightline/prompt/vision"
)

// tokens adapts a tokenizer to this package's interface.
type tokens struct{ *tokenizer.Tokenizer }

func (t tokens) EncodeText(dst []uint32, text string) []uint32 {
	return t.Encode(dst, text, tokenizer.Options{})
}
func (t tokens) DecodeText(ids []uint32) string { return t.Decode(ids, false) }

// How many tokens an image takes, and where they lie in the prompt.
func Example() {
	const dir = "../../examples/models/qwen2.5-vl"
	t, err := tokenizer.Load(os.DirFS(dir), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	model, err := vision.Load(os.DirFS(dir), tokens{t}, vision.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	image := vision.Media{Width: 1280, Height: 720}
	embeddings, total, err := model.Count(image, nil)
	fmt.Println(model.Family(), embeddings, total, err)

	prompt := t.Encode(nil, "<|vision_start|><|image_pad|><|vision_end|>What is this?", tokenizer.Options{})
	ids, spans, err := model.Expand(nil, prompt, []vision.Media{image}, nil)
	fmt.Println(len(prompt), len(ids), spans, err)
	// Output:
	// qwen2_vl 1196 1196 <nil>
	// 7 1202 [{0 1 1196}] <nil>
}
