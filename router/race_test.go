//go:build race

package router

// anew is the memory that a request's image may newly allocate under the race detector: sync.Pool randomly drops a quarter of
// what is returned there, and what an image is read with (mmhash) has 80 KiB. Up to 63 KiB were seen.
const anew = 128 << 10
