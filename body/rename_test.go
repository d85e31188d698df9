package body

import (
	"strings"
	"testing"
)

// TestRename: the model gets its new name wherever the body names it, and the rest stays as it is.
func TestRename(t *testing.T) {
	long := strings.Repeat("m", 4096)
	for given, want := range map[string]string{
		`{"model":"m","n":1}`:                                     `{"model":"a/\"b\"","n":1}`,
		`{"image":"` + long + `", "model" : "m" }`:                `{"image":"` + long + `", "model" : "a/\"b\"" }`,
		`{"model":"x","mod\u0065l":"m","metadata":{"model":"m"}}`: `{"model":"a/\"b\"","mod\u0065l":"a/\"b\"","metadata":{"model":"m"}}`,
		`{"model":"` + long + `"}`:                                `{"model":"` + long + `"}`,
	} {
		var s Skeleton
		var req Request
		if err := Read([][]byte{[]byte(given[:9]), []byte(given[9:])}, &s, &req); err != nil {
			t.Fatal(err)
		}
		got, moved := given, 0
		for _, e := range Rename(&req, `a/"b"`) {
			got = got[:e.From+moved] + string(e.Text) + got[e.To+moved:]
			moved += len(e.Text) - (e.To - e.From)
		}
		if got != want {
			t.Errorf("%.80s: %.80s", given, got)
		}
	}
}
