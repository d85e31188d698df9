package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
)

// What one client sends, or does not send, must not keep Sightline from reading and cleaning what others send.

// hostile is a small request with a field that clients must not send, and the digest of what the worker must get.
func hostile(i int) (body, want string) {
	form := `{%s"model":"known","messages":[{"role":"user","content":"question %d"}]}`
	sum := sha256.Sum256(fmt.Appendf(nil, form, "", i))
	return fmt.Sprintf(form, `"kv_transfer_params":{"remote_host":"10.0.0.1"},`, i), hex.EncodeToString(sum[:])
}

// cleaned sends n small requests of other clients, so many at once, and counts those that went on unread or uncleaned.
func (w *world) cleaned(n, atOnce int) (bad int, last string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i := range n {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			body, want := hostile(i)
			if r := w.post(body, nil); r.err != nil || r.status != http.StatusOK || r.id() == "" || r.SHA256 != want {
				mu.Lock()
				defer mu.Unlock()
				bad++
				last = fmt.Sprintf("%v, status %d, decision %q: %.200s", r.err, r.status, r.id(), r.Body)
			}
		})
	}
	all.Wait()
	return bad, last
}

func (w *world) runKnown(keys map[string]any) {
	w.t.Helper()
	keys["models"] = []any{map[string]any{"name": "known", "dir": absolute(w.t, modelDir)}}
	var workers []any
	for _, x := range w.workers {
		workers = append(workers, map[string]any{"addr": x.addr, "model": "known"})
	}
	keys["workers"] = workers
	w.runProduct(keys)
	eventually(w.t, "requests are decided", func() bool { bad, _ := w.cleaned(4, 1); return bad == 0 })
}

// A connection that announces a body and sends one byte of it costs what it has sent.
func TestIdleBodiesBlindNobody(t *testing.T) {
	for _, c := range []struct {
		name, length string
		n            int
	}{
		{"announced", "content-length: 67108864\r\n\r\n{", 16},
		{"chunked", "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", 1100},
	} {
		for variant, change := range map[string]func(*envoy.Options){"buffered": nil, "full_duplex": func(o *envoy.Options) {
			o.FullDuplex = true
		}} {
			t.Run(c.name+"_"+variant, func(t *testing.T) {
				w := start(t, 2, change)
				w.runKnown(map[string]any{})
				before := w.stat("http.ingress.ext_proc.streams_started")
				for range c.n {
					conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%s",
						c.length); err != nil {
						t.Fatal(err)
					}
				}
				eventually(t, "Sightline has been asked about each", func() bool {
					return w.stat("http.ingress.ext_proc.streams_started") >= before+c.n
				})
				if bad, last := w.cleaned(40, 4); bad > 0 {
					t.Errorf("%d of 40 requests of others went on unread or uncleaned; %s, want 0", bad, last)
				}
			})
		}
	}
}

// A body that does not come in time is answered by Sightline, also while Envoy still collects it.
func TestBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	for variant, change := range map[string]func(*envoy.Options){"buffered": nil, "full_duplex": func(o *envoy.Options) {
		o.FullDuplex = true
	}} {
		t.Run(variant, func(t *testing.T) {
			w := start(t, 1, change)
			w.runKnown(map[string]any{"fixed": unprobed("body_timeout", "1s")})
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			before := w.workers[0].served.Load()
			if _, err := fmt.Fprint(conn,
				"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 67108864\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusRequestTimeout {
				t.Errorf("status %d, want 408", res.StatusCode)
			}
			if n := w.workers[0].served.Load() - before; n != 0 {
				t.Errorf("a worker got the request")
			}
		})
	}
}

// A body that takes longer to read than Envoy waits for is answered on a lower rung, cleaned, and others do not wait for it.
func TestLargeBodiesStarveNobody(t *testing.T) {
	const wait = 4 * time.Second
	w := startEdited(t, 2, nil, func(printed string) string {
		return strings.Replace(printed, "message_timeout: 2s", "message_timeout: 4s", 1)
	})
	w.runKnown(map[string]any{"envoy": map[string]any{"message_timeout": wait.String()}})
	letters := make([]byte, (24<<20)/slowdown)
	r := rand.New(rand.NewPCG(17, 1))
	for i := range letters {
		letters[i] = 'a' + byte(r.IntN(26))
	}
	head, tail := `{"model":"known","messages":[{"role":"user","content":"`, `"}]`
	before := w.stat("http.ingress.ext_proc.streams_started")
	stop := make(chan struct{})
	var large sync.WaitGroup
	var mu sync.Mutex
	sent, bad := 0, 0
	for range 8 {
		large.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				sent++
				text := letters[sent:]
				mu.Unlock()
				clean := sha256.Sum256([]byte(head + string(text) + tail + "}"))
				r := w.post(head+string(text)+tail+`,"kv_transfer_params":{"remote_host":"10.0.0.1"}}`, nil)
				if r.err != nil || r.status != http.StatusOK || r.id() == "" || r.SHA256 != hex.EncodeToString(clean[:]) {
					mu.Lock()
					bad++
					mu.Unlock()
					t.Logf("large body: %v, status %d, decision %q, %d bytes at the worker", r.err, r.status, r.id(), r.Length)
				}
			}
		})
	}
	eventually(t, "all large bodies are at Sightline", func() bool { return w.stat("http.ingress.ext_proc.streams_started") >= before+8 })
	if bad, last := w.cleaned(300, 8); bad > 0 {
		t.Errorf("%d of 300 requests of others went on unread or uncleaned; %s, want 0", bad, last)
	}
	close(stop)
	large.Wait()
	if bad > 0 {
		t.Errorf("%d of %d large bodies reached a worker uncleaned or undecided, want 0", bad, sent)
	}
	t.Logf("%d large bodies", sent)
}
