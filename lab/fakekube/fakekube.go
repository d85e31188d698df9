// Package fakekube is as much of a Kubernetes API server as a watcher of EndpointSlices sees, for tests: list and watch
// over TLS with a bearer token, resource versions, bookmarks, and versions that expire, told as the real one does (status
// 200, then an ERROR event with code 410 inside; seen with kube-apiserver 1.36).
package fakekube

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Pod is one endpoint.
type Pod struct {
	Name        string
	IP          string
	Ready       bool
	Terminating bool
}

// Server is the API server. Its methods may be called from any goroutine.
type Server struct {
	URL, CAFile, TokenFile string

	http  *httptest.Server
	path  string // of the one namespace that may be read
	token string

	mu      sync.Mutex
	version int
	oldest  int // versions below are expired
	slices  map[string]map[string]any
	events  []event
	wake    chan struct{} // closed at each change
	cut     chan struct{} // closed to break watches off
	lists   int           // that were answered
	watches int           // that were begun
	refused int           // requests with a wrong token or path
}

type event struct {
	version int
	line    []byte
}

// Start runs a server for one namespace; dir takes its files.
func Start(dir, namespace string) (*Server, error) {
	s := &Server{path: "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices", token: "secret-token",
		version: 100, oldest: 100,
		slices: map[string]map[string]any{}, wake: make(chan struct{}), cut: make(chan struct{})}
	s.http = httptest.NewUnstartedServer(s)
	s.http.EnableHTTP2 = true
	s.http.StartTLS()
	s.URL, s.CAFile, s.TokenFile = s.http.URL, filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	if err := os.WriteFile(s.CAFile, ca, 0o600); err != nil {
		return nil, err
	}
	return s, os.WriteFile(s.TokenFile, []byte(s.token+"\n"), 0o600)
}

// Close ends the server and all watches.
func (s *Server) Close() {
	s.Cut()
	s.http.CloseClientConnections()
	s.http.Close()
}

// Put writes an EndpointSlice of a Service with one port.
func (s *Server) Put(name, service string, port int, pods ...Pod) {
	var eps []any
	for _, p := range pods {
		eps = append(eps, map[string]any{"addresses": []string{p.IP}, "targetRef": map[string]any{"kind": "Pod", "name": p.Name},
			"conditions": map[string]any{"ready": p.Ready, "serving": p.Ready, "terminating": p.Terminating}})
	}
	family := "IPv4"
	if len(pods) > 0 && strings.Contains(pods[0].IP, ":") {
		family = "IPv6"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "MODIFIED"
	if s.slices[name] == nil {
		kind = "ADDED"
	}
	s.slices[name] = map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"kubernetes.io/service-name": service}},
		"addressType": family, "endpoints": eps, "ports": []any{map[string]any{"name": "http", "port": port, "protocol": "TCP"}}}
	s.tell(kind, s.slices[name])
}

// Delete takes a slice away.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := s.slices[name]
	delete(s.slices, name)
	s.tell("DELETED", gone)
}

// tell makes a new version with one event.
func (s *Server) tell(kind string, slice map[string]any) {
	s.version++
	slice["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	line, _ := json.Marshal(map[string]any{"type": kind, "object": slice})
	s.events = append(s.events, event{s.version, line})
	s.awake()
}

func (s *Server) awake() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// Expire forgets the past: watches that run are told 410 and end.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += 100
	s.oldest, s.events = s.version, nil
	s.awake()
}

// Cut breaks all watches off without a word.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// Count gives how many lists and watches there were and how many requests were refused.
func (s *Server) Count() (lists, watches, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.watches, s.refused
}

// SetToken changes what is accepted, and the file if told so.
func (s *Server) SetToken(token string, inFile bool) error {
	s.mu.Lock()
	s.token = token
	s.mu.Unlock()
	if inFile {
		return os.WriteFile(s.TokenFile, []byte(token), 0o600)
	}
	return nil
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	allowed := r.Method == http.MethodGet && r.URL.Path == s.path && r.Header.Get("Authorization") == "Bearer "+s.token
	if !allowed {
		s.refused++
	}
	s.mu.Unlock()
	if !allowed {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","message":"endpointslices is forbidden: User cannot list resource","code":403}`)
		return
	}
	q := r.URL.Query()
	if q.Get("watch") != "" {
		s.watch(w, r)
		return
	}
	s.mu.Lock()
	s.lists++
	items := []any{}
	for _, sl := range s.slices {
		if s.selected(sl, q.Get("labelSelector")) {
			items = append(items, sl)
		}
	}
	text, _ := json.Marshal(map[string]any{"kind": "EndpointSliceList",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
	s.mu.Unlock()
	_, _ = w.Write(text)
}

func (s *Server) selected(slice map[string]any, selector string) bool {
	key, value, _ := strings.Cut(selector, "=")
	labels := slice["metadata"].(map[string]any)["labels"].(map[string]any)
	return selector == "" || labels[key] == value
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	at, _ := strconv.Atoi(q.Get("resourceVersion"))
	s.mu.Lock()
	s.watches++
	cut := s.cut
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	if q.Get("allowWatchBookmarks") != "" {
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"%d"}}}`+"\n", at)
	}
	for {
		s.mu.Lock()
		wake, expired := s.wake, at < s.oldest
		var due [][]byte
		for _, e := range s.events {
			if e.version > at {
				due, at = append(due, e.line), e.version
			}
		}
		s.mu.Unlock()
		if expired {
			fmt.Fprintln(w,
				`{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old resource version","reason":"Expired","code":410}}`)
			return
		}
		for _, line := range due {
			_, _ = w.Write(append(line, '\n'))
		}
		w.(http.Flusher).Flush()
		select {
		case <-wake:
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
	}
}
