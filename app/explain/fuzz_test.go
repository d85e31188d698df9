package explain

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// FuzzAnswers: any answer of a running Sightline, listing or file of requests is printed or gives an error.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"id":"a","ranked":[{"worker":"w","rank":0,"out":"full"},{"worker":"v","terms":{"prefill":1e308}}],"code":200,"finding":{"verdict":"x"}}`))
	f.Add([]byte(`{"block":0,"parent":-1,"local":"0a","tiers":["gpu"]}` + "\n" + `{"block":1}`))
	f.Add([]byte("{\"id\":\"x\",\"endpoint\":\"/v1/completions\",\"request\":{\"prompt\":\"a\"}}\n{\n}"))
	file := filepath.Join(f.TempDir(), "listing")
	f.Fuzz(func(t *testing.T, text []byte) {
		o := &Options{Index: file}
		_ = o.showExplained(io.Discard, text)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = o.showIndex(t.Context(), io.Discard)
		n := 0
		_ = eachRequest(bytes.NewReader(text), func(line []byte) {
			n += len(line)
			unwrap(line)
		})
		if n > len(text) {
			t.Fatalf("requests of %d bytes out of %d", n, len(text))
		}
	})
}
