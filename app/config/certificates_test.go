package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
)

// TestUnfitFiles: a certificate that does not belong to its key, a token file without a token and a secret that is gone are named with
// their keys, since what was read before is still served; fit ones are not.
func TestUnfitFiles(t *testing.T) {
	dir := t.TempDir()
	pair := func(name string) (cert, key string) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(90 * 24 * time.Hour)}
		public, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: public}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
			if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return cert, key
	}
	oneCert, oneKey := pair("one")
	otherCert, _ := pair("other")
	tokens, none := filepath.Join(dir, "tokens"), filepath.Join(dir, "none")
	for file, text := range map[string]string{tokens: "0123456789abcdef", none: ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"nothing is configured": {func(*Config) {}, ""},
		"a pair":                {func(c *Config) { c.TLS = secure.Listener{Cert: oneCert, Key: oneKey} }, ""},
		"made by itself":        {func(c *Config) { c.TLS.Cert = secure.SelfSigned }, ""},
		"no pair":               {func(c *Config) { c.TLS = secure.Listener{Cert: otherCert, Key: oneKey} }, "tls: cert and key: "},
		"no pair for the page":  {func(c *Config) { c.AdminTLS = secure.Listener{Cert: otherCert, Key: oneKey} }, "admin_tls: cert and key: "},
		"no pair towards workers": {func(c *Config) {
			c.WorkerAccess = secure.Peer{CA: oneCert, Cert: otherCert, Key: oneKey}
		}, "worker_access: "},
		"an authority that is none": {func(c *Config) { c.Replicas.Access = secure.Peer{CA: tokens} }, "replicas: "},
		"tokens":                    {func(c *Config) { c.ListenTokenFile = tokens }, ""},
		"no token":                  {func(c *Config) { c.ListenTokenFile = none }, "listen_token_file: "},
		"a secret that is gone":     {func(c *Config) { c.NATS.User, c.NATS.PasswordFile = "u", dir+"/gone" }, "nats: password_file: "},
	} {
		cfg := Default()
		c.change(&cfg)
		list := cfg.Expiring(time.Now())
		switch {
		case c.want == "" && len(list) > 0:
			t.Errorf("%s: got %+v, want nothing", name, list)
		case c.want != "" && (len(list) != 1 || !list[0].Ended || !strings.HasPrefix(list[0].Text, c.want) ||
			!strings.HasSuffix(list[0].Text, "what was read before is still used")):
			t.Errorf("%s: got %+v, want one that begins with %q", name, list, c.want)
		}
	}
}
