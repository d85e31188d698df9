package vllm

import "testing"

// TestUUIDText: Python's str() of JSON values (CPython 3.11).
func TestUUIDText(t *testing.T) {
	for raw, want := range map[string]string{
		`12345`: "12345", `-0`: "0", `123456789012345678901234567890`: "123456789012345678901234567890", `true`: "True", `false`: "False",
		`1.0`: "1.0", `1e3`: "1000.0", `1e16`: "1e+16", `123456789.125`: "123456789.125", `1e-5`: "1e-05", `0.0001`: "0.0001",
		`1e999`: "inf", `-2.5e-7`: "-2.5e-07", `1E22`: "1e+22",
	} {
		if got, ok := uuidText(raw); got != want || !ok {
			t.Errorf("%s: %q %v, want %q", raw, got, ok, want)
		}
	}
	if text, ok := uuidText(`["a"]`); ok {
		t.Errorf("a list is read as %q", text)
	}
}
