//go:build race

package tokenizer

// stretches is how many times a text is as long as what is encoded between two looks at the clock. Under the race detector
// patterns take tens of times as long, and the time that they are given is the same.
const stretches = 2
