package tokenizer

type decoder interface {
	decode(tokens []string) []string
}
