//go:build race

package e2e

// slowdown is how much longer it takes to read a body under the race detector: bodies that are large because their reading
// takes long are so much smaller there.
const slowdown = 10
