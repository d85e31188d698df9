//go:build !race

package tokenizer

const stretches = 8
