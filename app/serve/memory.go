package serve

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// capMemory makes the collector keep the process below the memory limit of its control group, if any: at four fifths of it, since
// buffers outside of the heap and stacks need the rest. If the operator sets GOMEMLIMIT, that is kept.
func capMemory(log *zap.Logger) {
	limit := cgroupLimit(os.DirFS("/"))
	if limit == 0 || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetMemoryLimit(limit / 5 * 4)
	log.Info("the garbage collector keeps the process below its control group's memory limit", zap.Int64("bytes", limit/5*4))
}

// cgroupLimit returns the lowest memory limit of the process's control group and its ancestors, version 2 or 1, in bytes; 0:
// none.
func cgroupLimit(root fs.FS) int64 {
	const unlimited = 1 << 50 // version 1 reports that as a number near 1 << 63
	least := int64(math.MaxInt64)
	groups, _ := fs.ReadFile(root, "proc/self/cgroup") // lines such as 0::/a/b or 4:memory:/a/b
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		top, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			top, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
			if !slices.Contains(strings.Split(parts[1], ","), "memory") {
				continue
			}
		}
		for at := path.Join(top, path.Clean("/"+parts[2])); len(at) >= len(top); at = path.Dir(at) { // in a container the lower ones do not exist
			text, _ := fs.ReadFile(root, path.Join(at, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < unlimited {
				least = min(least, n)
			}
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}
