package name

import (
	"fmt"
	"strconv"
	"strings"
)

// Generation is one form of vLLM's image hash. Releases: interop checks of the wheels 0.10.2 to 0.33.0.
type Generation uint8

const (
	H0 Generation = iota // up to 0.10: pixels as RGBA
	H1                   // 0.11, 0.12: pixels
	H2                   // 0.13 to 0.15: file bytes, fields in call order
	H3                   // 0.16 to 0.26: fields sorted by name
	H4                   // 0.27 to 0.29: files that are not RGB say how they were made so
	H5                   // 0.30: request options in fields of their own, media options too
	H6                   // 0.31 and later: every field framed with its length
)

func (g Generation) String() string { return "H" + strconv.Itoa(int(g)) }

// GenerationOf gives the form that a vLLM release uses. Versions look like "0.32.0", "v0.30.1rc2" or "0.31.0+cpu".
func GenerationOf(version string) (Generation, error) {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(rest[:end])
	if errA != nil || errB != nil || a < 0 {
		return 0, fmt.Errorf("vLLM version %q: want major.minor, such as 0.32.0", version)
	}
	switch {
	case a > 0 || b >= 31:
		return H6, nil
	case b >= 30:
		return H5, nil
	case b >= 27:
		return H4, nil
	case b >= 16:
		return H3, nil
	case b >= 13:
		return H2, nil
	case b >= 11:
		return H1, nil
	}
	return H0, nil
}
