package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"time"
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

// checkGateway checks what Envoy's side is told.
func (c *Config) checkGateway(bad func(path, format string, args ...any)) {
	if c.MaxInFlight < 0 {
		bad("max_in_flight", "%d is no number of requests (want 1 or more, or 0 for no limit)", c.MaxInFlight)
	}
	if t := c.Envoy.MessageTimeout; t < 200*time.Millisecond || t > time.Minute {
		bad("envoy.message_timeout", "%v (want 200ms to 1m, such as 2s: how long Envoy waits for an answer)", t)
	}
	if t := c.BodyTimeout; t < time.Second {
		bad("body_timeout", "%v (want 1s or more, such as 5m: how long a request body may take to come)", t)
	}
	switch c.Route.Mode {
	case "", "sightline", "epp":
	default:
		bad("route.mode", "%q is not known (want sightline or epp, or leave it out)", c.Route.Mode)
	}
	for i, p := range c.Envoy.Pools {
		if !slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == p.Model }) {
			bad(fmt.Sprintf("envoy.pools[%d].model", i), "%q is no name of models (give the name of one of them)", p.Model)
		}
	}
	if c.Route.Pool != "" && !slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == c.Route.Pool }) {
		bad("route.pool", "%q is no name of models (give the name of one of them)", c.Route.Pool)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") || c.TLS.ClientCA != "" && c.TLS.Cert == "" {
		bad("tls", "cert and key must both be given (client_ca may be, with them)")
	}
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
		pem, err := os.ReadFile(t.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("tls.client_ca: %w", err)
		}
		out.ClientCAs, out.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !out.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.client_ca: %s holds no certificate (want PEM)", t.ClientCA)
		}
	}
	return out, nil
}
