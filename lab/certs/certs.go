// Package certs makes authorities and certificates for tests, as PEM files.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA signs.
type CA struct {
	File string // DIR/NAME-ca.pem
	Pool *x509.CertPool
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Signed is a certificate for servers and clients, of 127.0.0.1, ::1 and its name.
type Signed struct {
	Pair      tls.Certificate
	Cert, Key string // DIR/NAME.pem, DIR/NAME-key.pem
}

// NewCA makes an authority that lasts an hour.
func NewCA(t testing.TB, dir, name string) CA {
	t.Helper()
	a := CA{File: filepath.Join(dir, name+"-ca.pem"), Pool: x509.NewCertPool(), dir: dir}
	der, key := create(t, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	a.cert, _ = x509.ParseCertificate(der)
	a.key = key
	a.Pool.AddCert(a.cert)
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
}

// Sign makes a certificate that is good for a time from now on; below zero it has expired.
func (a CA) Sign(t testing.TB, name string, lasts time.Duration) Signed {
	t.Helper()
	der, key := create(t, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(lasts),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert, a.key)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s := Signed{Cert: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+"-key.pem")}
	writePEM(t, s.Cert, "CERTIFICATE", der)
	writePEM(t, s.Key, "PRIVATE KEY", raw)
	s.Pair, err = tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t testing.TB, tmpl, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent, by = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
