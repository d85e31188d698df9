package tokenizer

// template is what add_special_tokens puts around a text.
type template struct {
	before, after []uint32
}
