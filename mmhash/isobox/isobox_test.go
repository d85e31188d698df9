package isobox

import (
	"errors"
	"strings"
	"testing"
)

// TestEach: how a list of boxes is split, strictly and as FFmpeg accepts it.
func TestEach(t *testing.T) {
	for _, c := range []struct {
		list, strict, lenient string // what is found; "!": followed by ErrBroken
	}{
		{"", "", ""},
		{"\x00\x00\x00\x08free\x00\x00\x00\x0bmoovabc", "free moov:abc ", "free moov:abc "},
		{"\x00\x00\x00\x01mdat\x00\x00\x00\x00\x00\x00\x00\x12xy", "mdat:xy ", "mdat:xy "},
		{"\x00\x00\x00\x00mdatxyz", "!", "mdat:xyz "},
		{"\x00\x00\x00\x08free\x00\x00\x00", "free !", "free "},
		{"\x00\x00\x00\x09free", "!", "!"},
		{"\x00\x00\x00\x07free", "!", "!"},
		{"\x00\x00\x00\x01mdat\x00\x00\x00\x00\x00\x00\x00\x0fxy", "!", "!"},
		{"\x00\x00\x00\x01mdat\x00\x00", "!", "!"},
		{"\x00\x00\x00\x01mdat\x00\x00\x00\x00\x00\x00\x00\x00", "!", "!"},
		{strings.Repeat("\x00\x00\x00\x08free", MaxBoxes+1), strings.Repeat("free ", MaxBoxes) + "!", strings.Repeat("free ", MaxBoxes) + "!"},
	} {
		for lenient, want := range map[bool]string{false: c.strict, true: c.lenient} {
			var got strings.Builder
			err := Each([]byte(c.list), lenient, func(kind string, body []byte) error {
				got.WriteString(kind)
				if len(body) > 0 {
					got.WriteString(":" + string(body))
				}
				got.WriteByte(' ')
				return nil
			})
			if err != nil {
				got.WriteByte('!')
			}
			if got.String() != want || err != nil && err != ErrBroken {
				t.Errorf("%.30q lenient %v: %.30q %v, want %.30q", c.list, lenient, got.String(), err, want)
			}
		}
	}
	stop := errors.New("stop")
	if err := Each([]byte("\x00\x00\x00\x08free"), false, func(string, []byte) error { return stop }); err != stop {
		t.Errorf("%v, want the callback's error", err)
	}
}
