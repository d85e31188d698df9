package jsonread

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// read returns a text's value in the types of encoding/json.
func read(r *Reader) any {
	switch r.Peek() {
	case '{':
		out := map[string]any{}
		r.Object(func(key string) { out[key] = read(r) })
		return out
	case '[':
		out := []any{}
		r.List(func() { out = append(out, read(r)) })
		return out
	case '"':
		return r.Text()
	case 't', 'f', 'n':
		word := r.Word()
		if word == "null" {
			return nil
		}
		if word != "true" && word != "false" {
			r.Want("a value")
		}
		return word == "true"
	}
	lit, _ := r.Number()
	return json.Number(lit)
}

var texts = []string{
	`{"a": [1, -0.5, 1e9, 2E-3, 0], "b": {"c": null}, "": true, "a": false}`, `[]`, `{}`, `[[],{}]`,
	" \t\r\n\"\\u00e9\\uD83D\\uDE00\\n\\/\" ", `"é\"\\"`,
	`"\\"`, `{"a\\":"]}"}`, `-12`, `0`,
}

func TestReader(t *testing.T) {
	for _, text := range texts {
		check(t, text)
	}
	for _, text := range []string{``, `{`, `[1`, `[1,]`, `{"a"}`, `{"a":1,}`, `{a:1}`, `"`, `"\`, `"\x"`, `"\u12"`,
		`"\uD800"`, `"\uD800\u0041"`, `"\uDC00"`, "\"\n\"",
		`01`, `1.`, `.5`, `-`, `1e`, `tru`, `nulll`, `1 2`, `[1}`, `NaN`, `"a" x`, "1\x00"} {
		r := New(text)
		read(&r)
		r.End()
		if r.Err() == nil {
			t.Errorf("%q: want an error", text)
		}
	}
	r := New(`{"a": [{"b": "]\""}, 1], "c": "x\\", "d": -1.5, "e": null}`)
	var parts []string
	r.Object(func(string) { parts = append(parts, r.Skip()) })
	if want := []string{`[{"b": "]\""}, 1]`, `"x\\"`, `-1.5`, `null`}; r.Err() != nil || !reflect.DeepEqual(parts, want) {
		t.Errorf("%q, %v; want %q", parts, r.Err(), want)
	}
}

func check(t *testing.T, text string) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var want any
	err := d.Decode(&want)
	valid := err == nil && json.Valid([]byte(text))
	r := New(text)
	got := read(&r)
	r.End()
	switch {
	case r.Err() == nil && (!valid || !reflect.DeepEqual(got, want)):
		t.Errorf("%q: read %#v, want %#v (%v)", text, got, want, err)
	case r.Err() != nil && valid && !bytes.Contains([]byte(text), []byte(`\u`)): // encoding/json accepts unpaired surrogates
		t.Errorf("%q: %v", text, r.Err())
	}
	if valid {
		r := New(text)
		if part := r.Skip(); r.Err() != nil || part != strings.Trim(text, " \t\r\n") {
			t.Errorf("%q: skipped %q, %v, want no error, %q", text, part, r.Err(), strings.Trim(text, " \t\r\n"))
		}
	}
}

func FuzzReader(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if utf8.ValidString(text) && strings.Count(text, "[")+strings.Count(text, "{") < 1000 {
			check(t, text)
		}
	})
}

// A long text with escapes is copied once.
func TestLongTextIsCopiedOnce(t *testing.T) {
	for _, unit := range []string{`a\n`, `\"`, `\\\\`, `\\\"x`} {
		raw := `["` + strings.Repeat(unit, 100_000) + `","b"]`
		n := testing.AllocsPerRun(3, func() {
			r := New(raw)
			var texts []string
			r.List(func() { texts = append(texts, r.Text()) })
			r.End()
			if r.Err() != nil || len(texts) != 2 || texts[1] != "b" {
				t.Fatalf(`got %q: %v, want no error, len(texts) == 2, texts[1] == "b"`, unit, r.Err())
			}
		})
		if n > 6 {
			t.Errorf("%q: %v allocations, want one a text, and the list's", unit, n)
		}
	}
}
