package serve

import (
	"testing"
	"testing/fstest"
)

func TestCgroupLimit(t *testing.T) {
	for _, c := range []struct {
		what  string
		files map[string]string
		want  int64
	}{
		{"none", nil, 0},
		{"version 2, the one above is less", map[string]string{"proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "3000\n", "sys/fs/cgroup/a/memory.max": "2000\n"}, 2000},
		{"version 2, no limit", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		{"version 2 in a container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4000"}, 4000},
		{"version 2, begun outside", map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "4000"}, 4000},
		{"version 1", map[string]string{"proc/self/cgroup": "5:cpu:/d\n4:hugetlb,memory:/d/e\n0::/\n",
			"sys/fs/cgroup/memory/d/e/memory.limit_in_bytes": "5000",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712"}, 5000},
		{"version 1, not seen from here", map[string]string{"proc/self/cgroup": "4:memory:/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "6000"}, 6000},
		{"nonsense", map[string]string{"proc/self/cgroup": "a\n:::\n0::\n", "sys/fs/cgroup/memory.max": "-7"}, 0},
	} {
		root := fstest.MapFS{}
		for name, text := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupLimit(root); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}
