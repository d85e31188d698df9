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
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
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
}

func startWorker(t testing.TB) *worker {
	t.Helper()
	lis := listen(t)
	return startWorkerOn(t, lis, lis.Addr().String())
}

func startWorkerOn(t testing.TB, lis net.Listener, addr string) *worker {
	w := &worker{addr: addr, held: map[string]chan struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
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
		for i := range 5 {
			fmt.Fprintf(rw, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
			rw.(http.Flusher).Flush()
			if key := r.Header.Get("x-step"); key != "" {
				<-w.hold(key + strconv.Itoa(i))
			}
		}
		fmt.Fprint(rw, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":130,\"completion_tokens\":5,\"total_tokens\":135,\"prompt_tokens_details\":{\"cached_tokens\":112}}}\n\ndata: [DONE]\n\n")
		return
	}
	sum := sha256.Sum256(body)
	rw.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{
		"echo":  echo{w.addr, r.URL.RequestURI(), r.Header, len(body), hex.EncodeToString(sum[:]), string(body[:min(len(body), 4096)])},
		"usage": map[string]any{"prompt_tokens": 130, "completion_tokens": 1, "total_tokens": 131, "prompt_tokens_details": map[string]any{"cached_tokens": 112}},
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
