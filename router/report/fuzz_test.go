package report

import (
	"strings"
	"testing"
)

// FuzzReadLog checks that no decision log makes its reader or the report panic.
func FuzzReadLog(f *testing.F) {
	f.Add(`{"timestamp":1700000000000,"arm":"steered","outcome":"ended","status":200,"input_length":100,"cached":40,"worker":"a","used":"a","first_byte_ms":3}` + "\n" +
		`{"timestamp":1,"arm":"unsteered","outcome":"ended","status":500,"input_length":-1,"would":{"cached":-3}}`)
	f.Add(`{"timestamp":1,"arm":"of another release","outcome":"ended","status":200}`)
	f.Add(`{"timestamp":9e18,"arm":"unsteered","outcome":"ended","input_length":9223372036854775807}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ReadLog(strings.NewReader(text), Range{})
		if out := r.String(); err == nil && out == "" {
			t.Fatal("got no error and an empty report, want one of both to say something")
		}
	})
}
