//go:build race

package tokenizer

// stretches is the length of a text in units of what is encoded between two looks at the clock. Under the race detector patterns
// take tens of times as long, within the same time limit.
const stretches = 2
