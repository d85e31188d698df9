package secure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// FuzzTokens: for any file of tokens, a header with one of its words is admitted, and no other.
func FuzzTokens(f *testing.F) {
	f.Add("0123456789abcdef\nfedcba9876543210\n", "Bearer fedcba9876543210")
	f.Add("0123456789abcdef", "bearer  0123456789abcdef ")
	f.Add("0123456789abcdef", "Basic 0123456789abcdef")
	f.Add(" \n", "")
	file := filepath.Join(f.TempDir(), "tokens")
	f.Fuzz(func(t *testing.T, text, header string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := OpenTokens(file, zap.NewNop())
		if err != nil {
			return
		}
		known := false
		for _, word := range strings.Fields(text) {
			known = known || strings.HasSuffix(strings.TrimSpace(header), word)
			if !tokens.Admit("Bearer "+word) || !tokens.Admit(word) || tokens.Admit("Bearer "+word+"x") && !strings.Contains(text, word+"x") {
				t.Fatalf("token %q", word)
			}
		}
		if tokens.Admit(header) && !known {
			t.Fatalf("%q is let in", header)
		}
	})
}

// FuzzPEM: no file of TLS makes its reader panic.
func FuzzPEM(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
		[]byte("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		l := Listener{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "cert")}
		p := Peer{CA: l.Cert, Cert: l.Cert, Key: l.Key, APIKeyFile: l.Key}
		for file, text := range map[string][]byte{l.Cert: cert, l.Key: key} {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = l.Config(zap.NewNop())
		_, _ = p.Open(zap.NewNop())
	})
}
