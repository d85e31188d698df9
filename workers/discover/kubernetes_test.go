package discover

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/lab/fakekube"
)

// watcher is a finder that a test follows.
type watcher struct {
	api  *fakekube.Server
	log  *observer.ObservedLogs
	stop func()

	mu   sync.Mutex
	now  string // the set as formatted by show
	told int
}

// show formats endpoints as name=addr, with a ! after those that are not ready, and a - after those that are being deleted.
func show(list []Endpoint) string {
	var out []string
	for _, e := range list {
		text := e.Name + "=" + e.Addr.String()
		if !e.Ready {
			text += "!"
		}
		if e.Terminating {
			text += "-"
		}
		if e.Zone != "" {
			text += "@" + e.Zone
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (w *watcher) found(list []Endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = show(list)
	w.told++
}

func (w *watcher) state() (string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.told
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (w *watcher) want(t testing.TB, set string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			now, _ := w.state()
			t.Logf("now %q, want %q", now, set)
		}
	}()
	eventually(t, set, func() bool { now, told := w.state(); return told > 0 && now == set })
}

type finder interface {
	Follow(context.Context, func([]Endpoint))
}

// follows starts an API server and follows a finder that asks it.
func follows(t testing.TB, of func(*fakekube.Server, *zap.Logger) finder) *watcher {
	t.Helper()
	api, err := fakekube.Start(t.TempDir(), "llm")
	if err != nil {
		t.Fatal(err)
	}
	core, seen := observer.New(zap.InfoLevel)
	w := &watcher{api: api, log: seen}
	finder := of(api, zap.New(core))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); finder.Follow(ctx, w.found) }()
	w.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(func() { w.stop(); api.Close() })
	return w
}

func watch(t testing.TB, before func(*fakekube.Server)) *watcher {
	t.Helper()
	return follows(t, func(api *fakekube.Server, log *zap.Logger) finder {
		before(api)
		return &Kubernetes{Cluster: Cluster{API: api.URL, CAFile: api.CAFile, TokenFile: api.TokenFile, Namespace: "llm"},
			Selector: "kubernetes.io/service-name=vllm", Log: log, Retry: 5 * time.Millisecond}
	})
}

func podIn(n int, ready bool) fakekube.Pod {
	return fakekube.Pod{Name: fmt.Sprint("p", n), IP: fmt.Sprint("10.0.0.", n), Ready: ready}
}

// TestPodsComeAndGo runs a fleet's life: pods come, become ready, unready, terminate, and go; other Services are ignored.
func TestPodsComeAndGo(t *testing.T) {
	w := watch(t, func(api *fakekube.Server) {
		api.Put("vllm-a", "vllm", 8000, podIn(1, true), podIn(2, false))
		api.Put("other", "redis", 6379, fakekube.Pod{Name: "r", IP: "10.0.9.9", Ready: true})
	})
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000!")
	w.api.Put("vllm-a", "vllm", 8000, podIn(1, true), podIn(2, true))
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	w.api.Put("vllm-b", "vllm", 8000, podIn(3, true))
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000 p3=10.0.0.3:8000")
	// with publishNotReadyAddresses a terminating pod is still reported ready
	w.api.Put("vllm-b", "vllm", 8000, fakekube.Pod{Name: "p3", IP: "10.0.0.3", Ready: true, Terminating: true})
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000 p3=10.0.0.3:8000!-")
	w.api.Delete("vllm-b")
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	w.api.Put("vllm-a", "vllm", 8000)
	w.want(t, "")
	if lists, watches, refused := w.api.Count(); lists != 1 || watches != 1 || refused != 0 {
		t.Errorf("%d lists, %d watches, %d refused: want one list and one watch", lists, watches, refused)
	}
}

// TestExpiredWatch checks that an expired watch, which comes as status 200 with an ERROR event, is followed by another list, with
// what happened meanwhile.
func TestExpiredWatch(t *testing.T) {
	w := watch(t, func(api *fakekube.Server) { api.Put("a", "vllm", 8000, podIn(1, true)) })
	w.want(t, "p1=10.0.0.1:8000")
	eventually(t, "a watch", func() bool { _, n, _ := w.api.Count(); return n == 1 })
	w.api.Expire()
	eventually(t, "another list and watch", func() bool { l, n, _ := w.api.Count(); return l >= 2 && n >= 2 })
	if _, told := w.state(); told != 1 {
		t.Errorf("told %d times, but nothing changed, want 1", told)
	}
	w.api.Put("a", "vllm", 8000, podIn(1, true), podIn(2, true))
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	if n := w.log.FilterMessageSnippet("cannot list or watch").Len(); n != 0 {
		t.Errorf("an expired version is no failure, but %d warnings, want 0", n)
	}
}

// TestFailures checks that workers stay and later changes arrive after a broken connection, a server that ends watches at once,
// and a refused token.
func TestFailures(t *testing.T) {
	w := watch(t, func(api *fakekube.Server) { api.Put("a", "vllm", 8000, podIn(1, true)) })
	w.want(t, "p1=10.0.0.1:8000")
	for i := range 3 {
		eventually(t, "a watch", func() bool { _, n, _ := w.api.Count(); return n > i })
		w.api.Cut()
	}
	w.api.Put("a", "vllm", 8000, podIn(2, true))
	w.want(t, "p2=10.0.0.2:8000")

	if err := w.api.SetToken("another", false); err != nil {
		t.Fatal(err)
	}
	w.api.Cut()
	eventually(t, "refusals", func() bool { _, _, n := w.api.Count(); return n >= 2 })
	w.want(t, "p2=10.0.0.2:8000")
	if n := w.log.FilterMessageSnippet("keeping the known workers").Len(); n == 0 {
		t.Errorf("nothing was logged: got %d, want some", n)
	}
	for _, e := range w.log.All() {
		if strings.Contains(fmt.Sprint(e.ContextMap()), "secret-token") {
			t.Error("a token in the log")
		}
	}
	if err := w.api.SetToken("another", true); err != nil { // rotated: the file is read again
		t.Fatal(err)
	}
	w.api.Put("a", "vllm", 8000, podIn(3, true))
	w.want(t, "p3=10.0.0.3:8000")
}

// TestWrongCertificate checks that a server with another certificate gets no token.
func TestWrongCertificate(t *testing.T) {
	ours, err := fakekube.Start(t.TempDir(), "llm")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	k := &Kubernetes{Cluster: Cluster{API: ours.URL, CAFile: "testdata/another-ca.crt", TokenFile: ours.TokenFile, Namespace: "llm"},
		Log: zap.NewNop()}
	err = session(t.Context(), k.server(), k.resource(), func(map[string]*endpointSlice) { t.Error("it was believed") })
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, want a complaint about the certificate", err)
	}
	if lists, _, refused := ours.Count(); lists+refused != 0 {
		t.Errorf("a request went out: got %d, want 0", lists+refused)
	}
}

func TestEndpointsOf(t *testing.T) {
	yes, no := true, false
	type ep = struct {
		Addresses  []string
		Conditions struct{ Ready, Serving, Terminating *bool }
		TargetRef  *struct{ Kind, Name string }
		Zone       string
	}
	type ports = []struct {
		Name *string
		Port *int
	}
	one := func(ip, pod string, ready *bool) (e ep) {
		e.Addresses, e.Conditions.Ready = []string{ip, "10.9.9.9"}, ready
		if pod != "" {
			e.TargetRef = &struct{ Kind, Name string }{"Pod", pod}
		}
		return e
	}
	zoned := one("10.0.0.1", "a", &yes)
	zoned.Zone = "eu-1a"
	unserving := one("10.0.0.1", "a", &yes)
	unserving.Conditions.Serving = &no
	http, grpc, p8000, p9000 := "http", "grpc", 8000, 9000
	single, double := ports{{&http, &p8000}}, ports{{&http, &p8000}, {&grpc, &p9000}}
	for _, c := range []struct {
		what  string
		port  string
		list  []*endpointSlice
		want  string
		wrong string
	}{
		{"ready not given is ready", "", []*endpointSlice{{AddressType: "IPv4", Ports: single, Endpoints: []ep{one("10.0.0.1", "", nil)}}},
			"=10.0.0.1:8000", ""},
		{"called ready, and its probe fails", "", []*endpointSlice{{AddressType: "IPv4", Ports: single, Endpoints: []ep{unserving}}},
			"a=10.0.0.1:8000!", ""},
		{"by number, though the slice has no ports", "8001",
			[]*endpointSlice{{AddressType: "IPv4", Endpoints: []ep{one("10.0.0.1", "a", &yes)}}}, "a=10.0.0.1:8001", ""},
		{"with a zone", "", []*endpointSlice{{AddressType: "IPv4", Ports: single, Endpoints: []ep{zoned}}}, "a=10.0.0.1:8000@eu-1a", ""},
		{"by name", "grpc", []*endpointSlice{{AddressType: "IPv4", Ports: double, Endpoints: []ep{one("10.0.0.1", "a", &yes)}}},
			"a=10.0.0.1:9000", ""},
		{"two ports and none named", "", []*endpointSlice{{AddressType: "IPv4", Ports: double, Endpoints: []ep{one("10.0.0.1", "a", &yes)}}},
			"", "2 ports fit"},
		{"in two slices, ready in one", "", []*endpointSlice{
			{AddressType: "IPv4", Ports: single, Endpoints: []ep{one("10.0.0.1", "a", &yes)}},
			{AddressType: "IPv4", Ports: single, Endpoints: []ep{one("10.0.0.1", "a", &no)}}}, "a=10.0.0.1:8000", ""},
		{"two families are one worker", "", []*endpointSlice{
			{AddressType: "IPv6", Ports: single, Endpoints: []ep{one("fd00::1", "a", &yes), one("fd00::2", "b", &yes)}},
			{AddressType: "IPv4", Ports: single, Endpoints: []ep{one("10.0.0.1", "a", &yes)}}}, "a=10.0.0.1:8000 b=[fd00::2]:8000", ""},
		{"names of hosts are left out", "", []*endpointSlice{{AddressType: "FQDN", Ports: single, Endpoints: []ep{one("a.example", "", nil)}}},
			"", ""},
		{"no address", "", []*endpointSlice{{AddressType: "IPv4", Ports: single, Endpoints: []ep{one("nonsense", "", nil), {}}}},
			"", "is not an address"},
	} {
		byName := map[string]*endpointSlice{}
		for i, s := range c.list {
			s.Metadata.Name = fmt.Sprint(i)
			byName[s.Metadata.Name] = s
		}
		got, err := endpointsOf(byName, c.port)
		if show(got) != c.want || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %q, %v", c.what, show(got), err)
		}
	}
}

// FuzzApply checks that what a server sends is read within limits and without panics.
func FuzzApply(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true}}],"ports":[{"name":"","port":8000}]}}`))
	f.Add([]byte(`{"type":"ERROR","object":{"code":410}}`))
	f.Add([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`))
	f.Add([]byte(`{"type":"DELETED","object":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		list := map[string]*endpointSlice{}
		if _, _, err := apply(line, "endpointslices", list); err != nil {
			return
		}
		got, _ := endpointsOf(list, "")
		for _, e := range got {
			if e.Addr.Port() == 0 || !e.Addr.Addr().IsValid() || e.Addr.Addr() == (netip.Addr{}) {
				t.Fatalf("got %+v, want an address and a port", e)
			}
		}
	})
}
