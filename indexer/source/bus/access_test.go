package bus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// secured starts a nats-server with a configuration, on a port (0: any), and returns the port.
func secured(t *testing.T, conf string, port int) (*server.Server, int) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "nats.conf"), conf)
	s := Server{Listen: fmt.Sprint("127.0.0.1:", port), Config: filepath.Join(dir, "nats.conf")}
	e, err := s.start(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return e.Server, e.Addr().(*net.TCPAddr).Port
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// selfSigned writes cert.pem and key.pem, which serve as authority, server and client at once.
func selfSigned(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, &of, &of, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	writeFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
}

func newSeed(t *testing.T, make func() (nkeys.KeyPair, error)) (key nkeys.KeyPair, public, seed string) {
	t.Helper()
	key, err := make()
	if err != nil {
		t.Fatal(err)
	}
	public, _ = key.PublicKey()
	s, _ := key.Seed()
	return key, public, string(s)
}

var aSeed = regexp.MustCompile(`\bSU[A-Z2-7]{56}\b`)

// TestAccess checks every way to authenticate, each against a server that admits nobody else: with the secret in a file, then
// with another secret on both sides, which a running connection uses when it reconnects. A wrong secret is refused, logged once,
// counted, and not printed.
func TestAccess(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "secret")
	for name, c := range map[string]struct {
		access Access
		secret func() (secret, conf string) // returns a new one
	}{
		"password": {Access{Auth: file}, func() (string, string) {
			_, _, word := newSeed(t, nkeys.CreateUser)
			return "agent:" + word + "\n", fmt.Sprintf(`authorization {user: agent, password: %q}`, word)
		}},
		"token": {Access{Auth: file}, func() (string, string) {
			_, word, _ := newSeed(t, nkeys.CreateUser)
			return word + "\n", fmt.Sprintf(`authorization {token: %q}`, word)
		}},
		"credentials": {Access{Auth: file}, func() (string, string) {
			operator, operatorKey, _ := newSeed(t, nkeys.CreateOperator)
			account, accountKey, _ := newSeed(t, nkeys.CreateAccount)
			_, system, _ := newSeed(t, nkeys.CreateAccount)
			_, userKey, seed := newSeed(t, nkeys.CreateUser)
			oc, ac, uc := jwt.NewOperatorClaims(operatorKey), jwt.NewAccountClaims(accountKey), jwt.NewUserClaims(userKey)
			oc.SystemAccount = system
			ac.Limits.JetStreamLimits.DiskStorage = 1 << 20
			ot, _ := oc.Encode(operator)
			at, _ := ac.Encode(operator)
			st, _ := jwt.NewAccountClaims(system).Encode(operator)
			ut, _ := uc.Encode(account)
			creds, err := jwt.FormatUserConfig(ut, []byte(seed))
			if err != nil {
				t.Fatal(err)
			}
			return string(creds), fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {%s: %s, %s: %s}",
				ot, system, accountKey, at, system, st)
		}},
		"certificate": {Access{TLSCA: filepath.Join(dir, "cert.pem"), TLSCert: filepath.Join(dir, "cert.pem"),
			TLSKey: filepath.Join(dir, "key.pem"), Auth: file}, func() (string, string) {
			selfSigned(t, dir)
			return "a-word", fmt.Sprintf("authorization {token: a-word}\ntls {cert_file: %[1]q, key_file: %[2]q, ca_file: %[1]q, verify: true}",
				filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			secret, conf := c.secret()
			writeFile(t, file, secret)
			s, port := secured(t, conf, 0)
			core, seen := observer.New(zapcore.DebugLevel)
			var refused atomic.Int64
			var failing Failing
			c.access.URL = fmt.Sprint("nats://127.0.0.1:", port)
			conn, err := c.access.Connect(ConnectOptions{Name: "agent", Log: zap.New(core), Failing: &failing, Refused: func() { refused.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.Flush(); err != nil {
				t.Fatal(err)
			}
			s.Shutdown()
			s.WaitForShutdown()
			old := secret
			secret, conf = c.secret()
			if name != "certificate" {
				writeFile(t, file, old)
				until(t, "the log to say that the server is away", func() bool {
					return seen.FilterMessageSnippet("cannot connect to NATS").Len() == 1
				})
			}
			_, _ = secured(t, conf, port)
			if name != "certificate" {
				until(t, "refusals", func() bool { return refused.Load() > 1 })
				if n := seen.FilterMessageSnippet("NATS rejects").Len(); n != 1 || conn.IsConnected() {
					t.Errorf("got it logged %d times that it is refused, connected %v, want once, and not connected", n, conn.IsConnected())
				}
				if why, is := failing.Why(); !is || !strings.Contains(why, "rejects the credentials") {
					t.Errorf("got %q, refused %t, want that the server rejects the credentials", why, is)
				}
				writeFile(t, file, secret)
			}
			until(t, "a connection with the new secret", conn.IsConnected)
			until(t, "no failure any more", func() bool { why, _ := failing.Why(); return why == "" })

			for _, e := range seen.All() {
				if text := fmt.Sprint(e.Message, e.ContextMap()); strings.Contains(text, strings.TrimSpace(secret)) || aSeed.MatchString(text) {
					t.Errorf("the log holds a secret: got %s, want !strings.Contains(text, strings.TrimSpace(secret)), !aSeed.MatchString(text)", text)
				}
			}
		})
	}
}

// TestRefusedFromTheStart checks that a client that is refused from the start logs that, and is admitted once the server knows
// it.
func TestRefusedFromTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, "wrong")
	_, port := secured(t, "authorization {token: right}", 0)
	core, seen := observer.New(zapcore.DebugLevel)
	var refused atomic.Int64
	c, err := Access{URL: fmt.Sprint("nats://127.0.0.1:", port), Auth: file}.Connect(ConnectOptions{Log: zap.New(core),
		Refused: func() { refused.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until(t, "a refusal", func() bool { return refused.Load() > 0 && seen.FilterMessageSnippet("NATS rejects").Len() == 1 })
	writeFile(t, file, "right")
	until(t, "a connection", c.IsConnected)
}

// TestTLSIsAMust checks that a server without TLS is not used if an authority is configured.
func TestTLSIsAMust(t *testing.T) {
	dir := t.TempDir()
	selfSigned(t, dir)
	writeFile(t, filepath.Join(dir, "token"), "word")
	_, port := secured(t, "authorization {token: word}", 0)
	core, seen := observer.New(zapcore.DebugLevel)
	c, err := Access{URL: fmt.Sprint("nats://127.0.0.1:", port), TLSCA: filepath.Join(dir, "cert.pem"),
		Auth: filepath.Join(dir, "token")}.
		Connect(ConnectOptions{Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until(t, "the log's word", func() bool { return seen.FilterMessageSnippet("cannot connect to NATS").Len() == 1 })
	if c.IsConnected() {
		t.Error("connected without TLS")
	}
}
