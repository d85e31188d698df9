package secure

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Expiry is the end of a certificate's validity.
type Expiry struct {
	Text  string // with the file and the time
	Ended bool
}

// expirySoon is how long before its end a certificate is worth a warning.
const expirySoon = 7 * 24 * time.Hour

// ExpiryOf reports whether the first certificate of a PEM file has ended or ends within a week. A file that cannot be read, which
// is reported elsewhere, does neither.
func ExpiryOf(file string, now time.Time) (e Expiry, soon bool) {
	if file == "" || file == SelfSigned {
		return Expiry{}, false
	}
	text, err := ReadFile(file)
	if err != nil {
		return Expiry{}, false
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return Expiry{}, false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.NotAfter.Sub(now) > expirySoon {
		return Expiry{}, false
	}
	e = Expiry{Text: fmt.Sprintf("the certificate %s ends at %s", file, cert.NotAfter.Format(time.RFC3339))}
	if now.After(cert.NotAfter) {
		e = Expiry{Text: fmt.Sprintf("the certificate %s ended at %s", file, cert.NotAfter.Format(time.RFC3339)), Ended: true}
	}
	return e, true
}
