package hub

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

type answers string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(a))), Request: r}, nil
}

// FuzzList: whatever a hub lists for a repository, the files to be fetched are few, small, and stay below the directory.
func FuzzList(f *testing.F) {
	f.Add(`{"sha":"` + commit +
		`","siblings":[{"rfilename":"config.json","size":18},{"rfilename":"additional_chat_templates/x.jinja"},{"rfilename":"../config.json"},{"rfilename":"tokenizer.json","size":9223372036854775807,"lfs":{"size":1}}]}`)
	f.Add(`{"sha":"` + commit + `","siblings":[{"rfilename":"additional_chat_templates/../../a.json","size":-1}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, files, err := Hub{Endpoint: "http://h"}.list(t.Context(), &http.Client{Transport: answers(text)}, "o/m", "main")
		if err != nil {
			return
		}
		var all int64
		for _, one := range files {
			at := filepath.Join("/d", one.Name)
			all += one.Size
			if !strings.HasPrefix(at, "/d/") || at == "/d/" || one.Size < 0 || one.Size > maxFile {
				t.Fatalf(`got %+v, want strings.HasPrefix(at, "/d/"), at != "/d/", one.Size >= 0, one.Size <= maxFile`, one)
			}
		}
		if len(files) > maxFiles || all > maxAll || !isHex(got, 40) {
			t.Fatalf("%d files of %d bytes at %q, want len(files) <= maxFiles, all <= maxAll, isHex(got, 40)", len(files), all, got)
		}
	})
}
