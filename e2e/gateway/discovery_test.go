package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap/zaptest"

	"github.com/sightline-router/sightline/workers/discover"
)

// fleet is who Sightline knows and how: "vllm-1:live vllm-2:not ready".
func fleet() string {
	var out []string
	for _, w := range gjson.Parse(get("http://127.0.0.1:9903/workers")).Array() {
		out = append(out, w.Get("name").Str+":"+w.Get("events").Str)
	}
	return strings.Join(out, " ")
}

func wantFleet(t *testing.T, want string) {
	t.Helper()
	eventually(t, want, func() bool { return fleet() == want })
}

// The production manifests and configuration before a real API server: pods come, turn unready, terminate and leave.
func TestDiscovery(t *testing.T) {
	c := startCluster(t)
	c.kubectl("apply", "-k", manifests+"base")
	c.kubectl("apply", "-k", manifests+"workers")

	// The ServiceAccount may do what Sightline does, and nothing else.
	for _, r := range []struct {
		verb, resource, namespace string
		want                      bool
	}{
		{"list", "endpointslices.discovery.k8s.io", "llm", true}, {"watch", "endpointslices.discovery.k8s.io", "llm", true},
		{"get", "endpointslices.discovery.k8s.io", "llm", false}, {"update", "endpointslices.discovery.k8s.io", "llm", false},
		{"list", "endpointslices.discovery.k8s.io", "default", false}, {"list", "pods", "llm", false}, {"list", "secrets", "llm", false},
		{"list", "services", "llm", false}, {"create", "pods", "llm", false},
	} {
		out, _ := c.try("", "auth", "can-i", r.verb, r.resource, "-n", r.namespace, "--as=system:serviceaccount:llm:sightline")
		if got := strings.HasSuffix(strings.TrimSpace(out), "yes"); got != r.want {
			t.Errorf("%s %s in %s: %q, want %t", r.verb, r.resource, r.namespace, out, r.want)
		}
	}

	startPods(t)
	c.put("vllm", "http", 8000, ready("10.0.0.11"))
	c.startSightline()
	wantFleet(t, "vllm-1:live")
	c.put("vllm", "http", 8000, ready("10.0.0.11"), ready("10.0.0.12"), notReady("10.0.0.13"))
	wantFleet(t, "vllm-1:live vllm-2:live vllm-3:not ready")
	c.put("vllm", "http", 8000, ready("10.0.0.11"), terminating("10.0.0.12"), ready("10.0.0.13"))
	wantFleet(t, "vllm-1:live vllm-2:not ready vllm-3:live")

	// The API server goes away: those known stay. It comes back, and what changed meanwhile is heard.
	c.api.kill()
	wantFleet(t, "vllm-1:live vllm-2:not ready vllm-3:live")
	c.startAPI()
	c.put("vllm", "http", 8000, ready("10.0.0.13"))
	wantFleet(t, "vllm-3:live")
	c.kubectl("delete", "endpointslice", "vllm-x", "-n", "llm")
	wantFleet(t, "")
	c.put("vllm", "http", 8000, ready("10.0.0.11"), ready("10.0.0.13"))
	wantFleet(t, "vllm-1:live vllm-3:live")
}

// between stands before the API server, so that a test sees what is asked and can age a watch's version.
type between struct {
	*httputil.ReverseProxy
	mu    sync.Mutex
	asked []string // list or watch, and 410 where the server's answer said so
}

func (b *between) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, what)
}

func (b *between) count(what string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.asked {
		if a == what {
			n++
		}
	}
	return n
}

// told reads along with a watch.
type told struct {
	io.ReadCloser
	b *between
}

func (r told) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if bytes.Contains(p[:n], []byte(`"code":410`)) {
		r.b.note("410")
	}
	return n, err
}

// The real server's way to say that a version is too old: the first watch is ended by it after two seconds, the second
// goes on from a version of long ago. One 410 inside a 200, one more list, and nothing is lost.
func TestExpiredWatch(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "namespace", "llm")
	c.put("vllm", "http", 8000, ready("10.0.0.11"))
	c.api.kill() // a new one remembers nothing of the versions before it
	c.startAPI()
	ca, err := os.ReadFile(c.dir + "/certs/apiserver.crt")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	b := &between{}
	b.ReverseProxy = &httputil.ReverseProxy{FlushInterval: -1, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: apiAddr})
			r.Out.Header.Set("Authorization", "Bearer admintoken")
			q := r.Out.URL.Query()
			if q.Get("watch") == "" {
				b.note("list")
				return
			}
			b.note("watch")
			switch b.count("watch") {
			case 1:
				q.Set("timeoutSeconds", "2")
			case 2:
				q.Set("resourceVersion", "1")
			}
			r.Out.URL.RawQuery = q.Encode()
		},
		ModifyResponse: func(r *http.Response) error {
			r.Body = told{r.Body, b}
			return nil
		}}
	front := httptest.NewServer(b)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var now []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		k := discover.Kubernetes{Cluster: discover.Cluster{API: front.URL, Namespace: "llm"},
			Selector: "kubernetes.io/service-name=vllm", Port: "http",
			Log: zaptest.NewLogger(t), Retry: 50 * time.Millisecond}
		k.Follow(ctx, func(list []discover.Endpoint) {
			mu.Lock()
			defer mu.Unlock()
			now = nil
			for _, e := range list {
				now = append(now, fmt.Sprint(e.Name, " ", e.Addr, " ", e.Ready))
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done; front.Close() })
	is := func(want ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(now, want)
		}
	}
	eventually(t, "the first pod", is("vllm-1 10.0.0.11:8000 true"))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		t.Logf("asked: %v", b.asked)
	})
	eventually(t, "an expired version", func() bool { return b.count("410") == 1 })
	c.put("vllm", "http", 8000, ready("10.0.0.11"), notReady("10.0.0.12"))
	eventually(t, "the second pod", is("vllm-1 10.0.0.11:8000 true", "vllm-2 10.0.0.12:8000 false"))
	l, w := b.count("list"), b.count("watch")
	if l != 2 || w != 3 {
		t.Errorf("%d lists and %d watches, want 2 and 3: %v", l, w, b.asked)
	}
}
