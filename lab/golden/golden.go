// Package golden reads what tests compare with: packed files of testdata, and what is no part of the repository, recordings of
// real engines and model directories, in the folders that SIGHTLINE_GOLDEN, SIGHTLINE_MODELS and SIGHTLINE_MISTRAL_COMMON
// name. Where its folder is not named, a test is skipped and says so; a file that is not there fails it.
package golden

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// Dir is the folder of recordings, or a path below it.
func Dir(t testing.TB, below ...string) string { return Folder(t, "SIGHTLINE_GOLDEN", below...) }

// Models is the folder of model directories, or a path below it.
func Models(t testing.TB, below ...string) string { return Folder(t, "SIGHTLINE_MODELS", below...) }

// MistralCommon is the data directory of the Python package mistral-common 1.13.1, or a path below it.
func MistralCommon(t testing.TB, below ...string) string {
	return Folder(t, "SIGHTLINE_MISTRAL_COMMON", below...)
}

// Folder is a path below what an environment variable names.
func Folder(t testing.TB, variable string, below ...string) string {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("%s is not set: what it names is no part of the repository", variable)
	}
	return filepath.Join(append([]string{dir}, below...)...)
}

// Read reads a file, unpacked if it is packed: where there is no file of the name, the one with .gz behind.
func Read(t testing.TB, path ...string) []byte {
	t.Helper()
	name := filepath.Join(path...)
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		b, err = os.ReadFile(name + ".gz")
	}
	if err != nil {
		t.Fatal(err)
	}
	return Plain(t, b)
}

// Plain is a file's content, unpacked if it is packed.
func Plain(t testing.TB, file []byte) []byte {
	t.Helper()
	if !bytes.HasPrefix(file, []byte{0x1f, 0x8b}) {
		return file
	}
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err == nil {
		file, err = io.ReadAll(z)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// JSON reads a file of JSON into v, packed or not.
func JSON(t testing.TB, v any, path ...string) {
	t.Helper()
	if err := json.Unmarshal(Read(t, path...), v); err != nil {
		t.Fatalf("%s: %v", filepath.Join(path...), err)
	}
}

// Lines reads a file of JSON lines, packed or not.
func Lines[T any](t testing.TB, path ...string) []T {
	t.Helper()
	return LinesOf[T](t, Read(t, path...))
}

// LinesOf reads JSON lines.
func LinesOf[T any](t testing.TB, text []byte) (all []T) {
	t.Helper()
	for line := range bytes.Lines(text) {
		var one T
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatalf("line %d: %v", len(all)+1, err)
		}
		all = append(all, one)
	}
	return all
}

// Files are the files below a folder that a pattern matches: one at least.
func Files(t testing.TB, path ...string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(path...))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s (%v)", filepath.Join(path...), err)
	}
	return files
}

// Unpacked is a directory with the files of others, packed ones unpacked; of equal names the last counts.
func Unpacked(t testing.TB, from ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range from {
		for _, file := range Files(t, f, "*") {
			name := strings.TrimSuffix(filepath.Base(file), ".gz")
			if err := os.WriteFile(filepath.Join(dir, name), Read(t, file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// Tokens reads token ids as recordings hold them: an id, or a pair of an id and how often it stands there.
func Tokens(rle gjson.Result) (ids []uint32) {
	for _, e := range rle.Array() {
		id, n := e, int64(1)
		if e.IsArray() {
			id, n = e.Get("0"), e.Get("1").Int()
		}
		for range n {
			ids = append(ids, uint32(id.Uint()))
		}
	}
	return ids
}

// Images are the image parts of a request's messages or input, in order.
func Images(request gjson.Result) (parts []gjson.Result) {
	var walk func(v gjson.Result)
	walk = func(v gjson.Result) {
		if v.IsObject() && (v.Get("image_url").Exists() || v.Get("type").Str == "image") {
			parts = append(parts, v)
		} else if v.IsObject() || v.IsArray() {
			v.ForEach(func(_, e gjson.Result) bool { walk(e); return true })
		}
	}
	walk(request.Get("messages"))
	walk(request.Get("input"))
	return parts
}

// Source is the text of the Go files in some folders, without tests.
func Source(t testing.TB, dirs ...string) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range dirs {
		for _, file := range Files(t, dir, "*.go") {
			if !strings.HasSuffix(file, "_test.go") {
				all.Write(Read(t, file))
			}
		}
	}
	return all.String()
}
