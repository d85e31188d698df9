package tokenizer_test

import (
	"fmt"
	"os"

	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// A directory's tokenizer, of any kind, returns the ids that the engine computes.
func Example() {
	t, err := tokenizer.Load(os.DirFS("../../examples/models/qwen2.5-vl"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ids := t.Encode(nil, "<|im_start|>user\nHello, world!", tokenizer.Options{})
	fmt.Println(ids)
	fmt.Println(t.Decode(ids, true))

	plain := t.Encode(nil, "<|im_start|>", tokenizer.Options{PlainSpecials: true}) // as a user's text, not as the token
	fmt.Println(len(plain))
	// Output:
	// [151644 872 198 9707 11 1879 0]
	// user
	// Hello, world!
	// 6
}
