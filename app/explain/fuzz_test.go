package explain

import (
	"bytes"
	"io"
	"testing"
)

// FuzzAnswers: any answer of a running Sightline or file of requests is printed or gives an error.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"id":"a","ranked":[{"worker":"w","rank":0,"out":"full"},{"worker":"v","terms":{"prefill":1e308}}],"code":200,"finding":{"verdict":"x"}}`))
	f.Add([]byte("{\"id\":\"x\",\"endpoint\":\"/v1/completions\",\"request\":{\"prompt\":\"a\"}}\n{\n}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		o := &Options{}
		_ = o.showExplained(io.Discard, text)
		n := 0
		_ = eachRequest(bytes.NewReader(text), func(line []byte) {
			n += len(line)
			unwrap(line)
		})
		if n > len(text) {
			t.Fatalf("requests of %d bytes out of %d, want at most %d", n, len(text), len(text))
		}
	})
}
