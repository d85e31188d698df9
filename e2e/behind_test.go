package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
)

// A client asks for an upgrade and sends a second request behind the first, before the answer and behind it. It must not reach a
// worker unread, as the upgraded connection's bytes: the worker here ignores upgrades, notes whatever comes, and is slow to answer.
// Upgrades of anything but GET are refused and reach no worker.
func TestNothingPassesBehindAnUpgrade(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "full_duplex", "1.36"} {
		t.Run("variant "+name, func(t *testing.T) {
			lis, seen := listen(t), &lockedBuffer{}
			go func() {
				for {
					conn, err := lis.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
						_, _ = io.Copy(seen, conn)
						_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
						_, _ = io.Copy(seen, conn)
					}()
				}
			}()
			w := start(t, 0, func(o *envoy.Options) {
				if name != "" {
					applyVariant(t, o, name)
				}
				o.Workers = []string{lis.Addr().String()}
			})
			w.runProduct(map[string]any{"models": []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}},
				"workers": []any{map[string]any{"addr": lis.Addr().String(), "model": "m"}}})
			for i, first := range []string{"GET /v1/realtime?%d HTTP/1.1\r\n", "POST /v1/embeddings?%d HTTP/1.1\r\n",
				"POST /v1/embeddings?%d HTTP/1.1\r\ncontent-length: 0\r\n"} {
				get := strings.HasPrefix(first, "GET")
				conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				second := "POST /v1/embeddings HTTP/1.1\r\nhost: smuggled\r\ncontent-length: 0\r\n\r\n"
				fmt.Fprintf(conn, first+"host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n%s", i, second)
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				answer := make([]byte, 4096)
				n, err := conn.Read(answer)
				if n == 0 {
					t.Errorf("no answer: %v; got %d, want some", err, n)
				}
				if refused := strings.HasPrefix(string(answer[:n]), "HTTP/1.1 403 "); refused == get {
					t.Errorf("%s: the answer is %q", first, answer[:n])
				}
				_, _ = io.WriteString(conn, second)
				_, _ = io.Copy(io.Discard, conn) // Envoy closes it
				_ = conn.Close()
				if text := seen.String(); strings.Contains(text, fmt.Sprintf("?%d HTTP", i)) != get || strings.Contains(text, "smuggled") {
					t.Errorf("%s: the worker saw\n%s", first, text)
				}
			}
		})
	}
}
