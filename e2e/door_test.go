package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
)

// What one client can take from the others at the door.

// limited runs the product before the world's workers, with a limit of requests.
func (w *world) limited(t *testing.T, limit int) {
	t.Helper()
	var workers []any
	for _, addr := range w.addrs() {
		workers = append(workers, map[string]any{"addr": addr})
	}
	w.runProduct(map[string]any{"max_in_flight": limit, "models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir)}},
		"workers": workers})
}

// deafClient sends chats over one HTTP/2 connection on which it allows the server to send no byte of a body, and reads no answer.
func deafClient(t *testing.T, addr string, bodies ...string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	_ = f.WriteSettingsAck()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for i, body := range bodies {
		block.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"},
			{":path", "/v1/chat/completions"}, {"content-type", "application/json"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		stream := uint32(1 + 2*i)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = f.WriteData(stream, true, []byte(body))
	}
	if _, err := conn.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// A client that reads none of its answers keeps no place of max_in_flight: the workers have answered.
func TestDeafClientKeepsNoPlace(t *testing.T) {
	w := start(t, 2, nil)
	w.limited(t, 8)
	body := chatOf(1000, 1)
	many := strings.Replace(body, "{", `{"n":128,`, 1)
	deaf := []string{many, many}
	for range 40 {
		deaf = append(deaf, body)
	}
	served := func() int32 { return w.workers[0].served.Load() + w.workers[1].served.Load() }
	deafClient(t, strings.TrimPrefix(w.url, "http://"), deaf...)
	eventually(t, "both workers have answered", func() bool { return w.workers[0].served.Load() > 0 && w.workers[1].served.Load() > 0 })
	eventually(t, "twenty in a row of others have a place", func() bool { // the deaf one's last requests are answered by then
		for range 20 {
			if r := w.post(body, nil); r.status != 200 || r.id() == "" {
				return false
			}
		}
		return true
	})
	t.Logf("%d requests served", served())
}

// Nor does one that leaves a large streamed answer unread for long: Envoy's buffer is full, so it sees no end of the worker's, but the
// worker reports that it has no request.
func TestUnreadStreamKeepsNoPlace(t *testing.T) {
	t.Parallel()
	const limit = 4
	w := start(t, 1, nil)
	w.workers[0].running.Store(-1)
	w.limited(t, limit)
	body := chatOf(1000, 1)
	eventually(t, "requests are decided", func() bool { return w.post(body, nil).id() != "" })
	stream := strings.Replace(body, "{", `{"stream":true,`, 1)
	eventually(t, "they take all places", func() bool { // one more, as long as another client finds a place
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		fmt.Fprintf(conn,
			"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Large: 1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(stream), stream)
		return w.post(body, nil).status == http.StatusTooManyRequests
	})
	for begin := time.Now(); w.post(body, nil).status != http.StatusOK; time.Sleep(200 * time.Millisecond) {
		if time.Since(begin) > 45*time.Second {
			t.Fatal("others have no place after 45 s")
		}
	}
	time.Sleep(2 * time.Second)
	for i := range 20 {
		if r := w.post(body, nil); r.status != http.StatusOK {
			t.Fatalf("request %d of another client: status %d, %s, want %d", i, r.status, r.body, http.StatusOK)
		}
	}
}

// With one place, a client that asks one after another is never refused: a place is free once its answer is read.
func TestOnePlaceOneClient(t *testing.T) {
	t.Parallel()
	w := start(t, 1, nil)
	w.limited(t, 1)
	body := chatOf(1000, 1)
	eventually(t, "requests are decided", func() bool { return w.post(body, nil).id() != "" })
	for i := range 50 {
		if r := w.post(body, nil); r.status != 200 {
			t.Fatalf("request %d: status %d, %s, want 200", i, r.status, r.body)
		}
	}
}

// A request that makes its worker break the connection, having been read, reaches no other worker; one that could not be sent does.
func TestRequestOfDeathIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, variant := range envoy.VariantNames()[:2] {
		t.Run(variant, func(t *testing.T) {
			w := start(t, 3, func(o *envoy.Options) {
				if err := o.Apply(variant); err != nil {
					t.Fatal(err)
				}
			})
			w.runSightline(extproc.Options{})
			read := func() (n int32) {
				for _, x := range w.workers {
					n += x.served.Load()
				}
				return n
			}
			for _, x := range w.workers {
				x.failing.Store(hangUp)
			}
			for _, s := range []script{{Targets: w.addrs()}, {}} {
				before := read()
				if r := w.post(chat(s), nil); r.status != 503 {
					t.Errorf("%v, status %d, want 503", r.err, r.status)
				}
				if n := read() - before; n != 1 {
					t.Errorf("%d workers have read it, want 1", n)
				}
			}
		})
	}
}

// HTTP/1.0 is answered; a POST that asks for an upgrade is refused at once on every path, and a WebSocket reaches its worker.
func TestOldAndUpgradingRequests(t *testing.T) {
	t.Parallel()
	w := start(t, 1, nil)
	w.runSightline(extproc.Options{})
	ask := func(head, body string) (*http.Response, error) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "%s\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", head, len(body), body)
		return http.ReadResponse(bufio.NewReader(conn), nil)
	}
	body := chat(script{Targets: w.addrs()})
	upgrade := "\r\nConnection: Upgrade\r\nUpgrade: websocket"
	for _, c := range []struct {
		head, body string
		want       int
	}{
		{"GET /v1/models HTTP/1.0\r\nX-Request-Id: a", "", 200},
		{"POST /v1/chat/completions HTTP/1.0", body, 200},
		{"POST /v1/chat/completions HTTP/1.1" + upgrade, body, 403},
		{"POST /v1/responses HTTP/1.1" + upgrade, body, 403},
		{"POST /tokenize HTTP/1.1" + upgrade, body, 403},
		{"GET /v1/models HTTP/1.1" + upgrade, "", 403},
		{"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: other", body, 403},
		{"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " +
			"AAMAAABkAAQAoAAAAAIAAAAA", body, 200},
		{"GET /v1/realtime HTTP/1.1" + upgrade, "", 200},
	} {
		r, err := ask(c.head, c.body)
		if err != nil || r.StatusCode != c.want {
			t.Errorf("%q: %v, %v, want %d", c.head, err, r, c.want)
		}
	}
}

// withheld is a body of zeros whose last byte comes when the context ends. It is sent at 20 MB/s: Envoy looks at its memory four times a
// second, and what arrives in between is above the limit.
type withheld struct {
	left int
	over <-chan struct{}
}

func (b *withheld) Read(p []byte) (int, error) {
	if b.left == 0 {
		<-b.over
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), b.left)
	time.Sleep(time.Duration(n) * time.Second / 20e6)
	clear(p[:n])
	b.left -= n
	return n, nil
}

// Clients that send large bodies and withhold their last byte do not fill Envoy's memory: their requests are ended, and others are
// served meanwhile.
func TestWithheldBodiesAreEnded(t *testing.T) {
	t.Parallel()
	const clients, size = 12, 60 << 20
	for _, version := range []string{"HTTP/1", "HTTP/2"} {
		t.Run(version, func(t *testing.T) {
			w := start(t, 1, func(o *envoy.Options) { o.HeapLimit = 256 << 20 })
			w.runSightline(extproc.Options{})
			client := &http.Client{Transport: w.client.Transport}
			if version == "HTTP/2" {
				client.Transport = w.h2.Transport
			}
			ended := make(chan error, clients)
			for range clients {
				req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/v1/chat/completions", &withheld{size - 1, t.Context().Done()})
				if err != nil {
					t.Fatal(err)
				}
				req.ContentLength = size
				req.Header.Set("content-type", "application/json")
				go func() { ended <- do(client, req).err }()
			}
			most, late := 0, time.After(3*time.Minute)
			for over := 0; over < clients-4; { // so many fit
				select {
				case <-ended:
					over++
				case <-late:
					t.Fatalf("%d of %d requests were ended; memory is %d %% of the limit", over, clients, most)
				case <-time.After(50 * time.Millisecond):
				}
				most = max(most, w.stat("overload.envoy.resource_monitors.fixed_heap.pressure"))
			}
			if most > 150 {
				t.Errorf("memory was %d %% of the limit, want at most 150", most)
			}
			eventually(t, "others are served", func() bool { return w.post(chat(script{Targets: w.addrs()}), nil).status == 200 })
			t.Logf("memory at most %d %% of the limit", most)
		})
	}
}
