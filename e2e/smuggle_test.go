package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/lab/smuggle"
)

// Random hostile requests through a real Envoy, Sightline and uvicorn with Starlette's routes: what the server reads has
// nothing in it that clients must not say, in no header either. SIGHTLINE_SMUGGLE_ENVOY is how many (make smuggle THROUGH=…).
func TestNothingIsSmuggledThroughEnvoy(t *testing.T) {
	t.Parallel()
	n := 500
	if more, err := strconv.Atoi(os.Getenv("SIGHTLINE_SMUGGLE_ENVOY")); err == nil {
		n = more
	}
	smuggle.Python(t)
	w := start(t, 1, nil)
	w.workers[0].kill()
	_, port, _ := net.SplitHostPort(w.workers[0].addr)
	w.fork(smuggle.Command(t, port))
	w.runProduct(map[string]any{"models": []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"addr": w.workers[0].addr, "model": "m"}}})
	eventually(t, "uvicorn answers a request that was decided", func() bool {
		r := w.post(`{"model":"m","messages":[{"role":"user","content":"hi"}],"rid":"x"}`, nil)
		return r.status == http.StatusOK && strings.Contains(string(r.body), `"found":[]`) && strings.Contains(string(r.body), `"x-sightline-id"`)
	})
	var mu sync.Mutex
	statuses, read := map[int]int{}, 0
	var all sync.WaitGroup
	next := make(chan int)
	for range 8 {
		all.Go(func() {
			var c client
			defer c.close()
			for i := range next {
				q := smuggle.Hostile(rand.New(rand.NewPCG(2, uint64(i))))
				h := denied.Headers[i%len(denied.Headers)]
				status, answer := c.post(strings.TrimPrefix(w.url, "http://"), q, h.Name)
				var said struct {
					Read    bool
					Found   [][2]string
					Spoofed bool
				}
				if status == http.StatusOK && json.Unmarshal(answer, &said) != nil {
					t.Errorf("%q: answered with %.200s", q.Path, answer)
				}
				mu.Lock()
				statuses[status]++
				if said.Read {
					read++
				}
				mu.Unlock()
				if len(said.Found) > 0 || said.Spoofed {
					t.Errorf("smuggled %v, header %s %t: %+v %q, want 0 of them, false", said.Found, h.Name, said.Spoofed, q.Path, q.Body)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	t.Logf("smuggle: %d requests through Envoy, %d read as JSON by uvicorn's application; statuses %v", n, read, statuses)
	if read*20 < n || statuses[0]*20 > n {
		t.Errorf("hardly any request reached the application: the test says little; got %d, %d, want at least %d, at most %d",
			read*20, statuses[0]*20, n, n)
	}
}

// client is a connection that is kept while it can be.
type client struct {
	conn net.Conn
	in   *bufio.Reader
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// post sends a request as it is, with a header that steers. The status is 0 where there was no answer.
func (c *client) post(addr string, q smuggle.Request, header string) (status int, answer []byte) {
	if c.conn == nil {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return 0, nil
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
	}
	_ = c.conn.SetDeadline(time.Now().Add(30 * time.Second))
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nhost: x\r\n%s: smuggled\r\ncontent-length: %d\r\n", q.Path, header, len(q.Body))
	if q.Type != "" {
		fmt.Fprintf(&b, "content-type: %s\r\n", q.Type)
	}
	if q.Encoding != "" {
		fmt.Fprintf(&b, "content-encoding: %s\r\n", q.Encoding)
	}
	if _, err := io.WriteString(c.conn, b.String()+"\r\n"+string(q.Body)); err != nil {
		c.close()
		return 0, nil
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.close()
		return 0, nil
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	if err != nil || res.Close {
		c.close()
	}
	return res.StatusCode, answer
}
