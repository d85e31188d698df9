package config

import (
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/secure"
)

// Expiring lists the certificates that end within a week or have ended, and the files of certificates, keys and tokens that cannot be
// used, so that their previous content is, each with its key. It reads the files.
func (c *Config) Expiring(now time.Time) (list []secure.Expiry) {
	log := zap.NewNop()
	check := func(key, certKey, cert string, open func() error) {
		if e, soon := secure.ExpiryOf(cert, now); soon {
			e.Text = key + "." + certKey + ": " + e.Text
			list = append(list, e)
		}
		if err := open(); err != nil {
			list = append(list, secure.Expiry{Text: key + ": " + err.Error() + "; what was read before is still used", Ended: true})
		}
	}
	listener := func(key string, l *secure.Listener) {
		check(key, "cert", l.Cert, func() (err error) {
			if l.Cert != secure.SelfSigned {
				_, err = l.Config(log)
			}
			return err
		})
	}
	peer := func(key string, p *secure.Peer) {
		check(key, "cert", p.Cert, func() error { _, err := p.Open(log); return err })
	}
	nats := func(key string, n *bus.Access) {
		check(key, "tls_cert", n.TLSCert, func() error { _, err := n.Options(); return err })
	}
	listener("tls", &c.TLS)
	listener("admin_tls", &c.AdminTLS)
	listener("media.relay.tls", &c.Media.Relay.TLS)
	peer("worker_access", &c.WorkerAccess)
	peer("replicas", c.Replicas.Access(""))
	check("listen_token_file", "", "", func() error { _, err := secure.OpenTokens(c.ListenTokenFile, log); return err })
	nats("nats", &c.NATS.Access)
	nats("dynamo.nats", &c.Dynamo.NATS)
	return list
}
