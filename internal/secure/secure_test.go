package secure_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/lab/certs"
)

// serve runs a server that answers with the authorization header it received.
func serve(t *testing.T, l secure.Listener) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	lis, err = l.Over(lis, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	})}
	go func() { _ = web.Serve(lis) }()
	t.Cleanup(func() { _ = web.Close() })
	return addr
}

// ask sends a request over a new connection.
func ask(t *testing.T, addr string, p secure.Peer) (string, error) {
	t.Helper()
	as, err := p.Open(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: as.Transport(&http.Transport{DisableKeepAlives: true})}
	resp, err := client.Get("http://" + addr)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	return string(text), err
}

// TestMutual: a client without a certificate, with an expired one or one of another authority is refused, and a server with another
// identity is not used.
func TestMutual(t *testing.T) {
	dir := t.TempDir()
	ours, other := certs.NewCA(t, dir, "ours"), certs.NewCA(t, dir, "other")
	server, client := ours.Sign(t, "server", time.Hour), ours.Sign(t, "client", time.Hour)
	stranger, expired := other.Sign(t, "stranger", time.Hour), ours.Sign(t, "expired", -time.Minute)
	key := filepath.Join(dir, "key")
	write(t, key, "of-the-workers\n")
	addr := serve(t, secure.Listener{Cert: server.Cert, Key: server.Key, ClientCA: ours.File})
	for what, c := range map[string]struct {
		secure.Peer
		fails string // "": it succeeds
	}{
		"known":          {secure.Peer{CA: ours.File, Cert: client.Cert, Key: client.Key, APIKeyFile: key}, ""},
		"by name":        {secure.Peer{CA: ours.File, Cert: client.Cert, Key: client.Key, APIKeyFile: key, Name: "server"}, ""},
		"no certificate": {secure.Peer{CA: ours.File}, "certificate required"},
		"expired":        {secure.Peer{CA: ours.File, Cert: expired.Cert, Key: expired.Key}, "expired certificate"},
		"another CA's":   {secure.Peer{CA: ours.File, Cert: stranger.Cert, Key: stranger.Key}, "certificate required"},
		"plain":          {secure.Peer{APIKeyFile: key}, "400 Bad Request"},
		"another server": {secure.Peer{CA: ours.File, Cert: client.Cert, Key: client.Key, Name: "else"}, "not else"},
		"a CA of others": {secure.Peer{CA: other.File, Cert: client.Cert, Key: client.Key}, "signed by unknown authority"},
	} {
		got, err := ask(t, addr, c.Peer)
		if c.fails == "" && (err != nil || got != "Bearer of-the-workers") || c.fails != "" &&
			(err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %q, %v; want %q", what, got, err, c.fails)
		}
	}
}

// TestRotation: certificates, keys and the clients' authority are replaced file by file during calls, each over a new connection:
// none fails, and in the end clients of the old authority are refused.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	before, after := certs.NewCA(t, dir, "before"), certs.NewCA(t, dir, "after")
	at := func(name string) string { return filepath.Join(dir, "live-"+name) }
	first, next := before.Sign(t, "server", time.Hour), after.Sign(t, "server2", time.Hour)
	old, renewed := before.Sign(t, "client", time.Hour), after.Sign(t, "client2", time.Hour)
	both := read(t, before.File) + read(t, after.File)
	write(t, at("ca"), both)
	write(t, at("cert"), read(t, first.Cert))
	write(t, at("key"), read(t, first.Key))
	addr := serve(t, secure.Listener{Cert: at("cert"), Key: at("key"), ClientCA: at("ca")})
	roots := filepath.Join(dir, "roots")
	write(t, roots, both)
	stop, calls := make(chan struct{}), atomic.Int64{}
	var callers sync.WaitGroup
	for _, c := range []certs.Signed{old, renewed} {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := ask(t, addr, secure.Peer{CA: roots, Cert: c.Cert, Key: c.Key}); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	await := func() { // files are checked once a second
		for began, n := time.Now(), calls.Load(); time.Since(began) < 1100*time.Millisecond || calls.Load() < n+4; time.Sleep(time.Millisecond) {
			if t.Failed() {
				return
			}
		}
	}
	write(t, at("cert"), read(t, next.Cert)) // beside the old key
	await()
	write(t, at("key"), read(t, next.Key)[:40]) // incomplete
	await()
	write(t, at("key"), read(t, next.Key))
	await()
	close(stop)
	callers.Wait()
	write(t, at("ca"), read(t, after.File))
	ends := time.Now().Add(2 * time.Minute)
	for _, err := ask(t, addr, secure.Peer{CA: roots, Cert: old.Cert, Key: old.Key}); err == nil; _,
		err = ask(t, addr, secure.Peer{CA: roots, Cert: old.Cert, Key: old.Key}) {
		if time.Now().After(ends) {
			t.Fatal("who only the old authority knew is still let in")
		}
	}
	if _, err := ask(t, addr, secure.Peer{CA: after.File, Cert: renewed.Cert, Key: renewed.Key}); err != nil {
		t.Errorf("all renewed: got %v, want no error", err)
	}
}

func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, "the-first-of-two-tokens\nthe-second-of-two-tokens\n")
	tokens, err := secure.OpenTokens(file, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]bool{"Bearer the-first-of-two-tokens": true, "bearer the-second-of-two-tokens": true,
		"the-first-of-two-tokens": true,
		"":                        false, "Bearer ": false, "Bearer the-first-of-two-token": false,
		"Basic the-first-of-two-tokens": false, "the-first-of-two-tokens the-second-of-two-tokens": false} {
		if tokens.Admit(header) != want {
			t.Errorf("%q: want %t", header, want)
		}
	}
	write(t, file, "a-third-one-of-them-all\n")
	for ends := time.Now().Add(2 * time.Minute); tokens.Admit("the-first-of-two-tokens"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(ends) {
			t.Fatal("a token that is gone still opens")
		}
	}
	if !tokens.Admit("a-third-one-of-them-all") {
		t.Error("a new token does not open")
	}
	for text, says := range map[string]string{"": "0 tokens", "short": "5 bytes",
		strings.Repeat("the-first-of-two-tokens\n", 65): "65 tokens"} {
		write(t, file, text)
		if _, err := secure.OpenTokens(file, zap.NewNop()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v, want %q", text, err, says)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
