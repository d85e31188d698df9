package main

import (
	"fmt"
	"os"
	"strconv"
)

// The large index: 50 M held blocks of 64 workers. It must fit into largeBytes and answer within largeFactor of the time
// that an index of 1 M blocks and 16 workers needs for prompts of the same length.
const (
	largeBytes  = 8 << 30
	largeFactor = 3
)

// large measures the small index and the large one, each in a process of its own, and says where a bound is missed.
func large(lookups uint64) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	count := strconv.FormatUint(lookups, 10)
	small, err := runTool(true, self, "-one", "B", "-sequences", "5000", "-lookups", count)
	if err != nil {
		return err
	}
	big, err := runTool(true, self, "-one", "L", "-lookups", count)
	if err != nil {
		return err
	}
	times := small.values["lookups/s"] / big.values["lookups/s"]
	p50 := big.values["lookup p50"] / small.values["lookup p50"]
	bytes := big.values["resident"]
	fmt.Printf("large index: %.2f GiB resident, a lookup takes %.2f times the small index's CPU time, %.2f times its p50\n", bytes/(1<<30), times, p50)
	if !(times <= largeFactor && p50 <= largeFactor && bytes > 0 && bytes <= largeBytes) {
		return fmt.Errorf("large index: want at most %d GiB and %d times the small index's time", largeBytes>>30, largeFactor)
	}
	return nil
}
