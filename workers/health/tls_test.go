package health

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sightline-router/sightline/engine/rules"
)

// TestTLSIsNamed: a worker that speaks TLS and closes connections in plain text is named so, not "broken"; one that closes every
// connection is broken.
func TestTLSIsNamed(t *testing.T) {
	with := httptest.NewUnstartedServer(nil)
	with.StartTLS()
	defer with.Close()
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"speaks TLS":     {func(c net.Conn) { _ = tls.Server(c, with.TLS).Handshake() }, "speaks TLS"},
		"closes at once": {func(net.Conn) {}, "broken"},
	} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		go func() {
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				c.serve(conn)
				conn.Close()
			}
		}()
		_, err = get(t.Context(), rules.NewClient(healthTime, nil), "http://"+lis.Addr().String()+"/health", nil)
		if err == nil {
			t.Fatalf("it answered: got %v, want an error", err)
		}
		if got := faultOf(t.Context(), lis.Addr().String(), err); string(got) != c.want {
			t.Errorf("%s: %q after %v", name, got, err)
		}
	}
	if f := hint(t.Context(), with.Listener.Addr().String(), http.StatusBadRequest); f.String != rules.TLS.Error() {
		t.Errorf("got %+v, want String %q", f, rules.TLS.Error())
	}
	if f := hint(t.Context(), "127.0.0.1:1", http.StatusUnauthorized); f.String != rules.KeyHint {
		t.Errorf("got %+v, want String %q", f, rules.KeyHint)
	}
}
