package enginehash

import (
	"encoding/hex"
	"testing"

	"github.com/zeebo/blake3"
)

func TestRecipe(t *testing.T) {
	want := blake3.Sum256([]byte("before file after"))
	r := Recipe{Before: []byte("before "), After: []byte(" after")}
	if got := r.Of([]byte("file")); got != hex.EncodeToString(want[:]) {
		t.Errorf("name %s, want %x", got, want)
	}
	if got := (Recipe{Ready: true, Known: "cat"}).Of([]byte("file")); got != "cat" {
		t.Errorf("a known name: got %s, want %q", got, "cat")
	}
	keys := map[[32]byte]bool{}
	for _, r := range []Recipe{{}, r, {Before: []byte("before"), After: []byte("  after")}, {Algorithm: SHA256}, {Ready: true, Known: "cat"}} {
		keys[r.Key()] = true
	}
	if len(keys) != 5 {
		t.Errorf("%d keys of 5 recipes, want 5", len(keys))
	}
}

func FuzzParseFields(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"a":{"b":[1,2.5,null,true,"x"]},"a":3}`, `{"a":1e999}`, `[1]`,
		`{"a":` + "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := ParseFields(b)
		if _, ok := k.Get("a"); err != nil && ok {
			t.Fatal("fields of text that is not an object")
		}
	})
}
