package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/lab/certs"
)

// TestUnfitFiles: a certificate that does not belong to its key, a token file without a token and a secret that is gone are named with
// their keys, since what was read before is still served; fit ones are not.
func TestUnfitFiles(t *testing.T) {
	dir := t.TempDir()
	ca := certs.NewCA(t, dir, "authority")
	one, other := ca.Sign(t, "one", 90*24*time.Hour), ca.Sign(t, "other", 90*24*time.Hour)
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
		"a pair":                {func(c *Config) { c.TLS = secure.Listener{Cert: one.Cert, Key: one.Key} }, ""},
		"made by itself":        {func(c *Config) { c.TLS.Cert = secure.SelfSigned }, ""},
		"no pair":               {func(c *Config) { c.TLS = secure.Listener{Cert: other.Cert, Key: one.Key} }, "tls: cert and key: "},
		"no pair for the page": {func(c *Config) {
			c.AdminTLS = secure.Listener{Cert: other.Cert, Key: one.Key}
		}, "admin_tls: cert and key: "},
		"no pair towards workers": {func(c *Config) {
			c.WorkerAccess = secure.Peer{CA: one.Cert, Cert: other.Cert, Key: one.Key}
		}, "worker_access: "},
		"an authority that is none": {func(c *Config) { c.Replicas.CA = tokens }, "replicas: "},
		"tokens":                    {func(c *Config) { c.ListenTokenFile = tokens }, ""},
		"no token":                  {func(c *Config) { c.ListenTokenFile = none }, "listen_token_file: "},
		"a secret that is gone":     {func(c *Config) { c.NATS.Auth = dir + "/gone" }, "nats: auth: "},
		"one of Dynamo's":           {func(c *Config) { c.Dynamo.NATS.Auth = dir + "/gone" }, "dynamo.nats: auth: "},
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
