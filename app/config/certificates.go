package config

import (
	"time"

	"github.com/sightline-router/sightline/internal/secure"
)

// Expiring lists the certificates that end within a week or have ended, each with its key. It reads the files.
func (c *Config) Expiring(now time.Time) (list []secure.Expiry) {
	for _, one := range []struct{ key, file string }{
		{"tls.cert", c.TLS.Cert},
		{"admin_tls.cert", c.AdminTLS.Cert},
		{"media.relay.tls.cert", c.Media.Relay.TLS.Cert},
		{"worker_access.cert", c.WorkerAccess.Cert},
		{"replicas.cert", c.Replicas.Access.Cert},
		{"nats.tls_cert", c.NATS.TLSCert},
	} {
		if e, soon := secure.ExpiryOf(one.file, now); soon {
			e.Text = one.key + ": " + e.Text
			list = append(list, e)
		}
	}
	return list
}
