//go:build race

package router

// anew is the memory that a request's picture may take anew under the race detector: sync.Pool drops a quarter of what is given
// back there, at random, and what a picture is read with (mmhash) has 80 KiB. Up to 63 KiB were seen.
const anew = 128 << 10
