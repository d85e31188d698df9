// Package secure controls who may connect to a listener, and how a peer is connected to: TLS and bearer tokens from files. Files
// are checked again at most once a second while connections are made, so that renewed ones need no restart. If they cannot be read,
// such as a new certificate beside the old key, the last good state stays in use and the log says why.
//
//	Listener   certificate, key and the authority of clients; of a listener
//	Tokens     a file of tokens, one per line; a caller must send one of them
//	Peer       the authority of servers, our own certificate, a key to send; towards workers and other replicas
package secure

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// checkEvery is how long a check of the files is valid.
const checkEvery = time.Second

// fileCache caches the parsed content of files. Safe for concurrent use.
type fileCache[T any] struct {
	files []string
	parse func(texts [][]byte) (T, error)
	log   *zap.Logger

	mu    sync.Mutex
	read  time.Time
	texts [][]byte
	now   T
}

// openCached reads the files for the first time.
func openCached[T any](log *zap.Logger, parse func([][]byte) (T, error), files ...string) (*fileCache[T], error) {
	h := &fileCache[T]{files: files, parse: parse, log: log}
	err := h.renew(time.Now())
	return h, err
}

func (h *fileCache[T]) renew(now time.Time) error {
	h.read = now
	texts := make([][]byte, len(h.files))
	for i, file := range h.files {
		if file == "" {
			continue
		}
		var err error
		texts[i], err = ReadFile(file)
		if err != nil {
			return err
		}
	}
	if slices.EqualFunc(texts, h.texts, bytes.Equal) {
		return nil
	}
	next, err := h.parse(texts)
	if err != nil {
		return err
	}
	h.texts, h.now = texts, next
	return nil
}

// get returns the files' current content, or the last that could be read.
func (h *fileCache[T]) get() T {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); now.Sub(h.read) >= checkEvery {
		if err := h.renew(now); err != nil {
			h.log.Error("a TLS or token file cannot be read; its previous content stays in use", zap.Strings("files", h.files), zap.Error(err))
		}
	}
	return h.now
}

// SelfSigned as a Listener's Cert makes a new certificate at each start, which no authority signs: for gateways that want TLS and verify
// nothing, as those of Gateway API's Inference Extension do with endpoint pickers.
const SelfSigned = "self-signed"

// Listener names PEM files. Off without Cert.
type Listener struct {
	Cert     string `yaml:"cert"`      // relative to the working directory; or SelfSigned
	Key      string `yaml:"key"`       //
	ClientCA string `yaml:"client_ca"` // if set, only clients with a certificate signed by it are accepted
}

// Check returns an error for an incomplete combination of keys.
func (l *Listener) Check() error {
	if l.Cert == SelfSigned && l.Key+l.ClientCA == "" {
		return nil
	}
	if (l.Cert == "") != (l.Key == "") || l.ClientCA != "" && l.Cert == "" {
		return errors.New("cert and key must both be given (client_ca may be, with them)")
	}
	return nil
}

// Config returns the TLS configuration of a listener for these protocols (ALPN); nil if TLS is off. Sessions are not resumed, so
// each connection is verified with the authority current at that time.
func (l *Listener) Config(log *zap.Logger, protocols ...string) (*tls.Config, error) {
	if l.Cert == "" {
		return nil, nil
	}
	if l.Cert == SelfSigned {
		pair, err := selfSigned()
		return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, SessionTicketsDisabled: true,
			Certificates: []tls.Certificate{pair}}, err
	}
	files, err := openCached(log, func(texts [][]byte) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, SessionTicketsDisabled: true}
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
		if l.ClientCA == "" {
			return c, nil
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs, err = authority(l.ClientCA, texts[2])
		if err != nil {
			return nil, fmt.Errorf("client_ca: %w", err)
		}
		return c, nil
	}, l.Cert, l.Key, l.ClientCA)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.get(), nil }}, nil
}

// selfSigned makes a certificate that is good for ten years.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	cert := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "sightline"},
		DNSNames: []string{"sightline"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Over wraps an HTTP/1.1 listener in TLS, if that is on.
func (l *Listener) Over(lis net.Listener, log *zap.Logger) (net.Listener, error) {
	c, err := l.Config(log, "http/1.1")
	if err != nil || c == nil {
		return lis, err
	}
	return tls.NewListener(lis, c), nil
}

func authority(file string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate (want PEM)", file)
	}
	return pool, nil
}

// Tokens are the tokens that a caller may send. During a rotation the file holds the old and the new one.
type Tokens struct {
	sums *fileCache[[][sha256.Size]byte]
}

const (
	minToken  = 16 // bytes
	maxTokens = 64
)

// OpenTokens reads a file of tokens, one per line. Without a file it returns nil, which admits everybody.
func OpenTokens(file string, log *zap.Logger) (*Tokens, error) {
	if file == "" {
		return nil, nil
	}
	sums, err := openCached(log, func(texts [][]byte) (out [][sha256.Size]byte, err error) {
		for token := range bytes.FieldsSeq(texts[0]) {
			if len(token) < minToken {
				return nil, fmt.Errorf("%s: a token of %d bytes (want %d or more, as openssl rand -hex 32 gives)", file, len(token), minToken)
			}
			out = append(out, sha256.Sum256(token))
		}
		if len(out) == 0 || len(out) > maxTokens {
			return nil, fmt.Errorf("%s holds %d tokens (want 1 to %d, one a line)", file, len(out), maxTokens)
		}
		return out, nil
	}, file)
	return &Tokens{sums}, err
}

// Admit reports whether the value of an authorization header, with or without "Bearer" before it, is one of the tokens.
func (t *Tokens) Admit(header string) bool {
	if t == nil {
		return true
	}
	if scheme, rest, two := strings.Cut(header, " "); two && strings.EqualFold(scheme, "Bearer") {
		header = rest
	}
	given, known := sha256.Sum256([]byte(strings.TrimSpace(header))), 0
	for _, sum := range t.sums.get() {
		known |= subtle.ConstantTimeCompare(given[:], sum[:])
	}
	return known == 1
}

// Peer says how to connect to servers. The zero value is plain HTTP without a key.
type Peer struct {
	CA   string `yaml:"ca"`   // PEM file of the authority of their certificates; enables TLS
	Cert string `yaml:"cert"` // PEM files of our own certificate, if they require one
	Key  string `yaml:"key"`
	Name string `yaml:"name"` // expected in their certificates; default: the address dialled
	// APIKeyFile holds what is sent as "Authorization: Bearer": its first line.
	APIKeyFile string `yaml:"api_key_file"`
}

// Check returns an error for an incomplete combination of keys.
func (p *Peer) Check() error {
	switch {
	case (p.Cert == "") != (p.Key == ""):
		return errors.New("cert and key must both be given, or neither")
	case p.CA == "" && p.Cert+p.Name != "":
		return errors.New("ca is missing, so TLS is off in spite of the other keys (want the PEM file of the authority)")
	}
	return nil
}

// Client is a Peer with its files open. A nil Client uses plain HTTP without a key.
type Client struct {
	tls *fileCache[*tls.Config]
	key *fileCache[string]
}

// Open reads the files. It returns nil if there are none.
func (p *Peer) Open(log *zap.Logger) (c *Client, err error) {
	if *p == (Peer{}) {
		return nil, nil
	}
	c = &Client{}
	if p.CA != "" {
		c.tls, err = openCached(log, p.parse, p.CA, p.Cert, p.Key)
	}
	if err == nil && p.APIKeyFile != "" {
		c.key, err = openCached(log, func(texts [][]byte) (string, error) {
			line, _, _ := bytes.Cut(bytes.TrimSpace(texts[0]), []byte("\n"))
			key := string(bytes.TrimSpace(line))
			if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
				return "", fmt.Errorf("api_key_file: %s holds no key (want one, ASCII without spaces)", p.APIKeyFile)
			}
			return key, nil
		}, p.APIKeyFile)
	}
	return c, err
}

func (p *Peer) parse(texts [][]byte) (*tls.Config, error) {
	roots, err := authority(p.CA, texts[0])
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: p.Name}
	if p.Cert != "" {
		pair, err := tls.X509KeyPair(texts[1], texts[2])
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// TLS returns the configuration for a new connection; nil: plain text.
func (c *Client) TLS() *tls.Config {
	if c == nil || c.tls == nil {
		return nil
	}
	return c.tls.get().Clone()
}

// APIKey returns the bearer token to send; "": none.
func (c *Client) APIKey() string {
	if c == nil || c.key == nil {
		return ""
	}
	return c.key.get()
}

// Transport returns t wrapped as the Peer says: with TLS, even for http:// URLs, and with the key.
func (c *Client) Transport(t *http.Transport) http.RoundTripper {
	if c == nil {
		return t
	}
	if c.tls != nil {
		dial := t.DialContext
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			plain, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			as := c.tls.get().Clone()
			if host, _, err := net.SplitHostPort(addr); err == nil {
				as.ServerName = cmp.Or(as.ServerName, host)
			}
			conn := tls.Client(plain, as)
			if err := conn.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, plain.Close())
			}
			return conn, nil
		}
		t.DialTLSContext = t.DialContext
	}
	return &transport{c, t}
}

type transport struct {
	*Client
	under *http.Transport
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.key != nil {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+t.key.get())
	}
	return t.under.RoundTrip(req)
}

// CloseIdleConnections implements the method that http.Client calls.
func (t *transport) CloseIdleConnections() { t.under.CloseIdleConnections() }
