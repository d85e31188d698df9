package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Route is what holds for requests of Envoy routes that do not say otherwise in their gRPC metadata.
type Route struct {
	Mode   string `yaml:"mode"`   // sightline or epp; "": both
	Pool   string `yaml:"pool"`   // only workers of this model; "": of the model that the body names
	Header string `yaml:"header"` // the header that carries the choice; "": x-target-worker
}

// TLS protects the listener for Envoy. Off without Cert.
type TLS struct {
	Cert     string `yaml:"cert"`      // PEM files; relative to the working directory
	Key      string `yaml:"key"`       //
	ClientCA string `yaml:"client_ca"` // if given: only clients with a certificate that it signed
}

// Pool ties a model to Envoy routes; at least one condition must be given.
type Pool struct {
	Model  string `yaml:"model"`
	Path   string `yaml:"path"`   // prefix such as /qwen, taken off before the worker sees it
	Host   string `yaml:"host"`   // host name, any port
	Header string `yaml:"header"` // name=value
}

// PeerTLS is what Envoy needs for TLS towards a peer: PEM files, as Envoy sees them. Off without CA.
type PeerTLS struct {
	CA    string   `yaml:"ca"`
	Cert  string   `yaml:"cert"` // Envoy's own, where the peer asks for one
	Key   string   `yaml:"key"`
	Names []string `yaml:"names"` // IP addresses or names that the peer's certificate may bear; default: its addresses
}

// Server loads the files; nil without a certificate. A file that changes on disk, as cert-manager's do, is read again
// with the next connection.
func (t TLS) Server() (*tls.Config, error) {
	if t.Cert == "" {
		return nil, nil
	}
	if _, err := tls.LoadX509KeyPair(t.Cert, t.Key); err != nil {
		return nil, fmt.Errorf("tls.cert and tls.key: %w", err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	out.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		return &pair, err
	}
	if t.ClientCA != "" {
		pool, err := authority(t.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("tls.client_ca: %w", err)
		}
		out.ClientCAs, out.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return out, nil
}

// authority reads a file of certificates.
func authority(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate (want PEM)", file)
	}
	return pool, nil
}
