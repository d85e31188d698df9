package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
)

// The large index: 50 M held blocks of 64 workers. It must fit into largeBytes and answer within largeFactor of the
// latency, typical and worst in a hundred, of an index of 1 M blocks and 16 workers, for prompts of the same length.
// Medians of largeRounds: what a lookup in the small one takes depends on the cache lines that its process got.
const (
	largeBytes  = 8 << 30
	largeFactor = 3
	largeRounds = 3
)

// large measures the small index and the large one in turns, each in a process of its own, and says where a bound is
// missed.
func large(lookups uint64) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	count := strconv.FormatUint(lookups, 10)
	var rate, p50, p99 []float64
	bytes := 0.0
	for range largeRounds {
		small, err := runTool(true, self, "-one", "B", "-sequences", "5000", "-lookups", count)
		if err != nil {
			return err
		}
		big, err := runTool(true, self, "-one", "L", "-lookups", count)
		if err != nil {
			return err
		}
		times := func(what string) float64 { return big.values[what] / small.values[what] }
		rate, p50, p99 = append(rate, 1/times("lookups/s")), append(p50, times("lookup p50")), append(p99, times("lookup p99"))
		bytes = max(bytes, big.values["resident"])
	}
	for _, v := range [][]float64{rate, p50, p99} {
		slices.Sort(v)
	}
	const mid = largeRounds / 2
	fmt.Printf("large index: %.2f GiB resident; a lookup takes %.2f times the small index's p50, %.2f times its p99, %.2f "+
		"times its CPU time back to back\n",
		bytes/(1<<30), p50[mid], p99[mid], rate[mid])
	if !(p50[mid] <= largeFactor && p99[mid] <= largeFactor && bytes > 0 && bytes <= largeBytes) {
		return fmt.Errorf("large index: want at most %d GiB and %d times the small index's latency", largeBytes>>30, largeFactor)
	}
	return nil
}
