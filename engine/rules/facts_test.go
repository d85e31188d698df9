package rules

import (
	"errors"
	"testing"
)

// TestDiffers: a server that was started otherwise differs; one that merely left a query unanswered does not.
func TestDiffers(t *testing.T) {
	lost := errors.New("no answer")
	for what, c := range map[string]struct {
		change func(*Facts)
		want   bool
	}{
		"nothing":                              {func(*Facts) {}, false},
		"its load":                             {func(f *Facts) { n := 7; f.Requests = &n }, false},
		"another model":                        {func(f *Facts) { f.Served = []Served{{ID: "b"}}; f.Lacks("events", lost) }, true},
		"another release":                      {func(f *Facts) { f.Version, f.FindsEvents = "0.30.0", false; f.Lacks("events", lost) }, true},
		"another size":                         {func(f *Facts) { f.BlockSize = 32 }, true},
		"no events":                            {func(f *Facts) { off := false; f.Publishes, f.FindsEvents = &off, false }, true},
		"busy":                                 {func(f *Facts) { f.BlockSize = 0; f.Lacks("requests", lost) }, false},
		"busy, its events were asked for last": {func(f *Facts) { f.FindsEvents = false }, false},
	} {
		was := Facts{Served: []Served{{ID: "a"}}, Version: "0.32.0", BlockSize: 16, FindsEvents: true}
		now := was
		c.change(&now)
		if got := was.Differs(&now); got != c.want {
			t.Errorf("%s: got %v, want %v", what, got, c.want)
		}
	}
}
