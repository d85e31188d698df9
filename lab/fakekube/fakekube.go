// Package fakekube is as much of a Kubernetes API server as a watcher of EndpointSlices, pools and pods sees, for tests: list
// and watch over TLS with a bearer token, selectors of labels and names, resource versions, bookmarks, and versions that expire,
// told as the real one does (status 200, then an ERROR event with code 410 inside; seen with kube-apiserver 1.36).
package fakekube

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
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

	http      *httptest.Server
	namespace string // the one that may be read
	token     string

	mu      sync.Mutex
	version int
	oldest  int                                  // versions below are expired
	objects map[string]map[string]map[string]any // by path of the kind, and name
	events  []event
	wake    chan struct{} // closed at each change
	cut     chan struct{} // closed to break watches off
	lists   int           // that were answered
	watches int           // that were begun
	refused int           // requests with a wrong token or path
	patches []Patch       // of pods
	patch   bool          // they are allowed
}

// Patch is a change of a pod's annotations that was allowed.
type Patch struct {
	Pod         string
	At          time.Time
	Annotations map[string]string
}

// event is a change of one object; was is nil for a new one, now for one that is gone.
type event struct {
	version  int
	path     string
	was, now map[string]any
}

// The kinds of objects that are served, as the ends of their paths.
const (
	Slices   = "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices"
	Pools    = "/apis/inference.networking.k8s.io/v1/namespaces/%s/inferencepools"
	Imports  = "/apis/inference.networking.x-k8s.io/v1alpha1/namespaces/%s/inferencepoolimports"
	Pods     = "/api/v1/namespaces/%s/pods"
	Goals    = "/apis/llm-d.ai/v1alpha2/namespaces/%s/inferenceobjectives"
	OldGoals = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/%s/inferenceobjectives"
	Renames  = "/apis/llm-d.ai/v1alpha2/namespaces/%s/inferencemodelrewrites"
)

// Start runs a server for one namespace; dir takes its files.
func Start(dir, namespace string) (*Server, error) {
	s := &Server{namespace: namespace, token: "secret-token", version: 100, oldest: 100, objects: map[string]map[string]map[string]any{},
		wake: make(chan struct{}), cut: make(chan struct{})}
	for _, kind := range []string{Slices, Pools, Imports, Pods, Goals, OldGoals, Renames} {
		s.objects[fmt.Sprintf(kind, namespace)] = map[string]map[string]any{}
	}
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
	s.Set(Slices, name, map[string]string{"kubernetes.io/service-name": service}, map[string]any{"addressType": family, "endpoints": eps,
		"ports": []any{map[string]any{"name": "http", "port": port, "protocol": "TCP"}}})
}

// PutPool writes an InferencePool.
func (s *Server) PutPool(name string, matchLabels map[string]string, ports ...int) {
	var numbers []any
	for _, p := range ports {
		numbers = append(numbers, map[string]any{"number": p})
	}
	selector := map[string]any{"matchLabels": matchLabels}
	s.Set(Pools, name, nil, map[string]any{"spec": map[string]any{"selector": selector, "targetPorts": numbers}})
}

// PutPod writes a Pod.
func (s *Server) PutPod(p Pod, labels, annotations map[string]string) {
	ready := map[bool]string{true: "True", false: "False"}[p.Ready]
	rest := map[string]any{"status": map[string]any{"phase": "Running", "podIP": p.IP, "conditions": []any{
		map[string]any{"type": "Initialized", "status": "True"}, map[string]any{"type": "Ready", "status": ready}}}}
	meta := map[string]any{"annotations": annotations}
	if p.Terminating {
		meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	rest["metadata"] = meta
	s.Set(Pods, p.Name, labels, rest)
}

// Set writes an object of a kind.
func (s *Server) Set(kind, name string, labels map[string]string, o map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	meta, _ := o["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["name"], meta["labels"], meta["created"] = name, labels, s.version
	o["metadata"] = meta
	path := fmt.Sprintf(kind, s.namespace)
	was := s.objects[path][name]
	meta["uid"] = fmt.Sprint("uid-", s.version)
	if was != nil {
		meta["uid"], meta["created"] = was["metadata"].(map[string]any)["uid"], was["metadata"].(map[string]any)["created"]
	}
	s.objects[path][name] = o
	s.tell(path, was, o)
}

// Delete takes a slice away.
func (s *Server) Delete(name string) { s.Remove(Slices, name) }

// Remove takes an object of a kind away.
func (s *Server) Remove(kind, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := fmt.Sprintf(kind, s.namespace)
	gone := s.objects[path][name]
	delete(s.objects[path], name)
	s.tell(path, gone, nil)
}

// tell makes a new version with one event.
func (s *Server) tell(path string, was, now map[string]any) {
	s.version++
	for _, o := range []map[string]any{now, was} {
		if o != nil {
			o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
			break
		}
	}
	s.events = append(s.events, event{s.version, path, was, now})
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

// AllowPatch says whether pods may be patched; at first they may not.
func (s *Server) AllowPatch(allowed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patch = allowed
}

// Patches returns the changes of pods so far.
func (s *Server) Patches() []Patch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.patches)
}

// annotations returns those of an object.
func annotations(o map[string]any) map[string]string {
	of, _ := o["metadata"].(map[string]any)["annotations"].(map[string]string)
	return of
}

// patchPod merges a patch of annotations into a pod.
func (s *Server) patchPod(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Metadata struct {
			UID         string
			Annotations map[string]string
		}
	}
	wrong := json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, name := path.Split(r.URL.Path)
	kind = strings.TrimSuffix(kind, "/")
	o := s.objects[kind][name]
	code := http.StatusOK
	switch {
	case kind != fmt.Sprintf(Pods, s.namespace) || !s.patch || r.Header.Get("Authorization") != "Bearer "+s.token:
		s.refused++
		code = http.StatusForbidden
	case wrong != nil || r.Header.Get("Content-Type") != "application/merge-patch+json":
		code = http.StatusUnsupportedMediaType
	case o == nil:
		code = http.StatusNotFound
	case body.Metadata.UID != "" && body.Metadata.UID != o["metadata"].(map[string]any)["uid"]:
		code = http.StatusUnprocessableEntity // as the real one says of an immutable field
	}
	if code != http.StatusOK {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","status":"Failure","message":"pods %q: cannot be patched","code":%d}`, name, code)
		return
	}
	now, meta := maps.Clone(o), maps.Clone(o["metadata"].(map[string]any))
	merged := maps.Clone(annotations(o))
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, body.Metadata.Annotations)
	meta["annotations"], now["metadata"] = merged, meta
	s.objects[kind][name] = now
	s.patches = append(s.patches, Patch{name, time.Now(), body.Metadata.Annotations})
	s.tell(kind, o, now)
	_ = json.NewEncoder(w).Encode(now)
}

// ScaleDown removes pods as a ReplicaSet does until so many with these labels are left, and returns which: those that are not ready first,
// then those of the lowest deletion cost, then the youngest (kube-controller-manager 1.36, pkg/controller/controller_utils.go,
// ActivePodsWithRanks).
func (s *Server) ScaleDown(label, value string, left int) (removed []string) {
	s.mu.Lock()
	all := s.objects[fmt.Sprintf(Pods, s.namespace)]
	var names []string
	for name, o := range all {
		if meta := o["metadata"].(map[string]any); meta["labels"].(map[string]string)[label] == value && meta["deletionTimestamp"] == nil {
			names = append(names, name)
		}
	}
	cost := func(name string) int {
		n, _ := strconv.Atoi(annotations(all[name])["controller.kubernetes.io/pod-deletion-cost"])
		return n
	}
	ready := func(name string) int {
		return strings.Count(fmt.Sprint(all[name]["status"]), "status:True type:Ready")
	}
	created := func(name string) int { n, _ := all[name]["metadata"].(map[string]any)["created"].(int); return n }
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(ready(a)-ready(b), cmp.Compare(cost(a), cost(b)), created(b)-created(a))
	})
	names = names[:max(0, len(names)-left)]
	s.mu.Unlock()
	for _, name := range names {
		s.Remove(Pods, name)
	}
	return names
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPatch {
		s.patchPod(w, r)
		return
	}
	s.mu.Lock()
	allowed := r.Method == http.MethodGet && s.objects[r.URL.Path] != nil && r.Header.Get("Authorization") == "Bearer "+s.token
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
	for _, o := range s.objects[r.URL.Path] {
		if selected(o, q) {
			items = append(items, o)
		}
	}
	text, _ := json.Marshal(map[string]any{"kind": "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
	s.mu.Unlock()
	_, _ = w.Write(text)
}

// selected reports whether an object is there and fits a query's selectors.
func selected(o map[string]any, q url.Values) bool {
	if o == nil {
		return false
	}
	meta := o["metadata"].(map[string]any)
	labels, _ := meta["labels"].(map[string]string)
	for term := range strings.SplitSeq(q.Get("labelSelector"), ",") {
		if key, value, _ := strings.Cut(term, "="); term != "" && labels[key] != value {
			return false
		}
	}
	name, given := strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	return !given || meta["name"] == name
}

// line is an event as a watch with these selectors is told of it; nil: it concerns only others. An object whose labels fit no longer
// is told as deleted.
func (e *event) line(path string, q url.Values) []byte {
	was, now := selected(e.was, q), selected(e.now, q)
	kind, o := "MODIFIED", e.now
	switch {
	case e.path != path || !was && !now:
		return nil
	case !was:
		kind = "ADDED"
	case !now:
		kind = "DELETED"
		if o == nil {
			o = e.was
		}
	}
	text, _ := json.Marshal(map[string]any{"type": kind, "object": o})
	return text
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
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":"Object","metadata":{"resourceVersion":"%d"}}}`+"\n", at)
	}
	for {
		s.mu.Lock()
		wake, expired := s.wake, at < s.oldest
		var due [][]byte
		for _, e := range s.events {
			if e.version > at {
				at = e.version
				if line := e.line(r.URL.Path, q); line != nil {
					due = append(due, line)
				}
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
