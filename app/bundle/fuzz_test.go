package bundle

import (
	"bytes"
	"testing"
)

// FuzzRedacted: whatever else an Envoy's dump contains, a text below a key that may hold a secret is removed.
func FuzzRedacted(f *testing.F) {
	f.Add([]byte(`{"name":"x","value":[1,{"a":null}]}`), "inline_string")
	f.Add([]byte(`[1e999,"\ud800"]`), "private_key")
	f.Add([]byte(`{"key":"x-api-key"}`), "AUTHORIZATION")
	f.Fuzz(func(t *testing.T, beside []byte, key string) {
		const secret = "a-secret-of-tests"
		if bytes.Contains(beside, []byte("secret")) || !secretKey.MatchString(key) || bytes.ContainsAny([]byte(key), "\"\\\n") {
			return
		}
		out, err := redacted([]byte(`{"beside":` + string(beside) + `,"` + key + `":{"a":[{"name":"` + secret + `","b":"` + secret + `"}]}}`))
		if err == nil && bytes.Contains(out, []byte(secret)) {
			t.Fatalf("%s, want an error or no %q in out", out, secret)
		}
	})
}
