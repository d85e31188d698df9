package template

import (
	"errors"
	"strings"
	"testing"
)

func TestJSONOfManyValues(t *testing.T) {
	for n, fine := range map[int]bool{maxJSONValues - 2: true, maxJSONValues: false} {
		if _, err := FromJSON("[" + strings.Repeat("1,", n) + "1]"); (err == nil) != fine || !fine && !errors.Is(err, ErrLimit) {
			t.Errorf("%d values: %v", n+2, err)
		}
	}
}
