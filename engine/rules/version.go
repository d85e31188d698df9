package rules

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is an engine release: major, minor, patch.
type Version [3]int

// ParseVersion reads "0.32.0", "v0.32", "0.32.0+cpu", "0.32.0rc1".
func ParseVersion(s string) (v Version, err error) {
	text := strings.TrimPrefix(strings.TrimSpace(s), "v")
	parts := strings.SplitN(text, ".", 3)
	for i, p := range parts {
		end := 0
		for end < len(p) && p[end] >= '0' && p[end] <= '9' {
			end++
		}
		n, e := strconv.Atoi(p[:end])
		if e != nil || (end < len(p) && i < len(parts)-1) || len(parts) < 2 {
			return v, fmt.Errorf("%q is not a release number (want one such as 0.32.0)", s)
		}
		v[i] = n
	}
	return v, nil
}

// AtLeast reports whether v ≥ major.minor.patch.
func (v Version) AtLeast(major, minor, patch int) bool {
	for i, n := range [3]int{major, minor, patch} {
		if v[i] != n {
			return v[i] > n
		}
	}
	return true
}

// Plausible reports whether there may be such a release of an engine of which another one is known: one of the next major number, or
// some minor ones further.
func (v Version) Plausible(known Version) bool {
	return v[0] <= known[0]+1 && (v[0] != known[0] || v[1] <= known[1]+50)
}
