package sim

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net/http"
	"time"
)

// What a worker's HTTP port may speak (Config.Speaks).
const (
	PlainHTTP = "http"
	OverTLS   = "tls"   // with a certificate of its own
	HTTP2Only = "http2" // in plain text, from the first byte on
)

// speak prepares the server for it.
func (w *Worker) speak() error {
	switch w.cfg.Speaks {
	case PlainHTTP:
	case HTTP2Only:
		w.server.Protocols = new(http.Protocols)
		w.server.Protocols.SetUnencryptedHTTP2(true)
	case OverTLS:
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		about := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"worker"}, NotAfter: time.Now().Add(24 * time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
		if err != nil {
			return err
		}
		w.http = tls.NewListener(w.http, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	default:
		return fmt.Errorf("simulated worker: it cannot speak %q (want http, tls or http2)", w.cfg.Speaks)
	}
	return nil
}
