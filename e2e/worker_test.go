package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/lab/smuggle"
)

// worker is a stub engine: it says what reached it, or streams.
type worker struct {
	addr    string
	srv     *http.Server
	mu      sync.Mutex
	held    map[string]chan struct{} // requests to hold back until closed, by the header x-hold
	served  atomic.Int32             // requests that came whole
	waiting atomic.Int32             // of them
	failing atomic.Int32             // the status of all answers; 0: as they should be; hangUp: none, the connection breaks
	health  atomic.Int32             // the status of /health; 0: 200
	running atomic.Int32             // requests that /metrics tells of; below 0: none; 0: there is no such page
}

const hangUp = -1

// echo is a worker's answer.
type echo struct {
	Worker  string
	Path    string
	Headers map[string][]string
	Length  int
	SHA256  string
	Body    string // the first 4 KB
	// Steered are the fields of package denied's table that an engine would find anywhere in the body.
	Steered []string
}

func startWorker(t testing.TB) *worker {
	t.Helper()
	lis := listen(t)
	return startWorkerOn(t, lis, lis.Addr().String())
}

func startWorkerOn(t testing.TB, lis net.Listener, addr string) *worker {
	w := &worker{addr: addr, held: map[string]chan struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(rw http.ResponseWriter, _ *http.Request) {
		if status := int(w.health.Load()); status > 0 {
			rw.WriteHeader(status)
		}
	})
	mux.HandleFunc("GET /metrics", func(rw http.ResponseWriter, r *http.Request) {
		n := w.running.Load()
		if n == 0 {
			http.NotFound(rw, r)
			return
		}
		fmt.Fprintf(rw,
			"vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n",
			max(n, 0))
	})
	mux.HandleFunc("GET /server_info", http.NotFound)
	mux.HandleFunc("GET /v1/models", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Request-Id") != "" { // of a client's, through Envoy; Sightline asks for adapters
			w.serve(rw, r)
		}
	})
	mux.HandleFunc("/", w.serve)
	w.srv = &http.Server{Handler: mux}
	go func() { _ = w.srv.Serve(lis) }()
	t.Cleanup(w.kill)
	return w
}

func (w *worker) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.served.Add(1)
	switch status := int(w.failing.Load()); status {
	case 0:
	case hangUp:
		panic(http.ErrAbortHandler)
	default:
		rw.WriteHeader(status)
		return
	}
	for k, v := range r.Trailer {
		if len(v) > 0 { // else announced, and never sent
			r.Header[k] = append(r.Header[k], v...)
		}
	}
	rw.Header().Set("x-worker", w.addr)
	if key := r.Header.Get("x-hold"); key != "" {
		w.waiting.Add(1)
		defer w.waiting.Add(-1)
		select {
		case <-w.hold(key):
		case <-r.Context().Done():
			return
		}
	}
	if key := r.Header.Get("x-hang-up"); key != "" { // break off after the first bytes
		rw.Header().Set("content-length", "100")
		_, _ = rw.Write([]byte("half"))
		rw.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	if bytes.Contains(body, []byte(`"stream":true`)) {
		rw.Header().Set("content-type", "text/event-stream")
		if r.Header.Get("x-large") != "" { // more than the buffers between here and the client hold
			_, _ = rw.Write(bytes.Repeat([]byte(": \n\n"), 8<<20))
		}
		for i := range 5 {
			fmt.Fprintf(rw, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
			rw.(http.Flusher).Flush()
			if key := r.Header.Get("x-step"); key != "" {
				<-w.hold(key + strconv.Itoa(i))
			}
		}
		fmt.Fprint(rw,
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":130,\"completion_tokens\":5,\"total_tokens\":135,"+
				"\"prompt_tokens_details\":{\"cached_tokens\":112}}}\n\ndata: [DONE]\n\n")
		return
	}
	sum := sha256.Sum256(body)
	rw.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{
		"echo": echo{w.addr, r.URL.RequestURI(), r.Header, len(body), hex.EncodeToString(sum[:]),
			string(body[:min(len(body), 4096)]), steered(r, body)},
		"usage": map[string]any{"prompt_tokens": 130, "completion_tokens": 1, "total_tokens": 131,
			"prompt_tokens_details": map[string]any{"cached_tokens": 112}},
	})
}

// hold is the channel that a held-back request waits for.
func (w *worker) hold(key string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[key] == nil {
		w.held[key] = make(chan struct{})
	}
	return w.held[key]
}

// kill closes the listener and every connection, as the death of the process would.
func (w *worker) kill() { _ = w.srv.Close() }

// steered lists what of a request's body steers, read as leniently as any engine's server does: whatever the content-type and the
// content-encoding, the body is what json.loads of Python 3.13 makes of its bytes (decompressed, if x-body-compressed says so), and
// the path is unquoted once, its slashes merged. Requests for other endpoints steer nothing.
func steered(r *http.Request, body []byte) (names []string) {
	path, err := url.PathUnescape(r.URL.EscapedPath())
	if err != nil || r.Method != http.MethodPost {
		return nil
	}
	path = strings.TrimSuffix(path, "\n") // Starlette's $
	path = strings.TrimSuffix(slashes.ReplaceAllString(path, "/"), "/")
	if !slices.Contains(denied.Endpoints, path) {
		return nil
	}
	if r.Header.Get("x-body-compressed") == "zstd" {
		body = smuggle.Unframe(body)
	}
	var tree any
	if json.Unmarshal(numbers.ReplaceAll(decodeText(body), []byte("${1}0")), &tree) != nil {
		return nil
	}
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				look(e)
			}
		case map[string]any:
			for k, e := range v {
				if denied.FieldOf(k) != nil {
					names = append(names, k)
				}
				look(e)
			}
		}
	}
	look(tree)
	return names
}

var (
	slashes = regexp.MustCompile(`[/\\]+`)
	numbers = regexp.MustCompile(`([:,\[]\s*)(NaN|-?Infinity)`)
)

// decodeText finds a JSON text's encoding by its first bytes, as json.detect_encoding does, and gives it in UTF-8.
func decodeText(b []byte) []byte {
	var unit, at int
	big := false
	has := func(mark string) bool { return bytes.HasPrefix(b, []byte(mark)) }
	switch {
	case has("\x00\x00\xfe\xff"), has("\xff\xfe\x00\x00"):
		unit, at, big = 4, 4, b[0] == 0
	case has("\xfe\xff"), has("\xff\xfe"):
		unit, at, big = 2, 2, b[0] == 0xfe
	case has("\xef\xbb\xbf"):
		return b[3:]
	case len(b) >= 4 && b[0] == 0:
		unit, big = 2, true
		if b[1] == 0 {
			unit = 4
		}
	case len(b) >= 4 && b[1] == 0:
		unit = 2
		if b[2] == 0 && b[3] == 0 {
			unit = 4
		}
	default:
		return b
	}
	out := make([]byte, 0, len(b)/unit)
	for ; at+unit <= len(b); at += unit { // what matters here is ASCII
		c := b[at]
		if big {
			c = b[at+unit-1]
		}
		out = append(out, c)
	}
	return out
}
