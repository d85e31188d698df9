package discover

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
)

// Where a pod finds the credentials for its API server.
const (
	accountDir       = "/var/run/secrets/kubernetes.io/serviceaccount/"
	DefaultTokenFile = accountDir + "token"
	DefaultCAFile    = accountDir + "ca.crt"
	namespaceFile    = accountDir + "namespace"
)

// InCluster returns the API server's URL and the pod's own namespace; empty strings outside a pod.
func InCluster() (api, namespace string) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host != "" && port != "" {
		api = "https://" + net.JoinHostPort(host, port)
	}
	text, _ := os.ReadFile(namespaceFile)
	return api, strings.TrimSpace(string(text))
}

// Kubernetes follows the EndpointSlices that match a label selector, in one namespace. It needs only the verbs list and watch on
// endpointslices of discovery.k8s.io.
type Kubernetes struct {
	API       string // such as https://10.96.0.1:443; plain http (kubectl proxy) gets no token
	CAFile    string // the server's certificate authority
	TokenFile string // read again for each request: tokens of pods live an hour
	Namespace string
	Selector  string // such as kubernetes.io/service-name=vllm
	Port      string // name or number; "": the only one
	Log       *zap.Logger
	Retry     time.Duration // first wait after a failure, doubled up to 64 times that; 0: 500 ms
}

const (
	listTime = 30 * time.Second
	// watchTime is how long the server should keep one watch open. It ends it cleanly, and the next watch continues from there.
	watchTime = 5 * time.Minute
	// shortWatch is a duration below which the next watch must not follow at once.
	shortWatch   = time.Second
	maxListBytes = 64 << 20
	maxEvent     = 4 << 20
)

// errExpired means that the server no longer knows the version from which a watch was to continue.
var errExpired = errors.New("the watch's resource version has expired")

// Follow calls found with the whole set after each change, until ctx ends.
func (k *Kubernetes) Follow(ctx context.Context, found func([]Endpoint)) {
	first := k.Retry
	if first <= 0 {
		first = 500 * time.Millisecond
	}
	pause := retry.Backoff{First: first, Longest: 64 * first}
	var last []Endpoint
	known, said := false, ""
	tell := func(list map[string]*endpointSlice) {
		pause.Reset()
		now, err := endpointsOf(list, k.Port)
		if err != nil && err.Error() != said {
			said = err.Error()
			k.Log.Warn("not every endpoint can be used", zap.String("selector", k.Selector), zap.Error(err))
		}
		if !known || !slices.Equal(now, last) {
			known, last = true, now
			found(now)
		}
	}
	for ctx.Err() == nil {
		err := k.session(ctx, tell)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errExpired) {
			k.Log.Warn("cannot list or watch EndpointSlices; keeping the known workers", zap.String("namespace", k.Namespace),
				zap.String("selector", k.Selector), zap.Error(err))
		}
		pause.Wait(ctx)
	}
}

// List returns the current endpoints.
func (k *Kubernetes) List(ctx context.Context) ([]Endpoint, error) {
	client, err := k.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	list, _, err := k.list(ctx, client)
	if err != nil {
		return nil, err
	}
	return endpointsOf(list, k.Port)
}

// session lists, then watches until something fails.
func (k *Kubernetes) session(ctx context.Context, tell func(map[string]*endpointSlice)) error {
	client, err := k.client() // a new one each time: the authority's file may change
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	list, version, err := k.list(ctx, client)
	if err != nil {
		return err
	}
	tell(list)
	for {
		start := time.Now()
		version, err = k.watch(ctx, client, version, list, tell)
		if err != nil {
			return err
		}
		if time.Since(start) < shortWatch {
			return errors.New("the server ended the watch at once")
		}
	}
}

func (k *Kubernetes) client() (*http.Client, error) {
	t := &http.Transport{ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: listTime,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		HTTP2:       &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}} // a silent watch may be a dead one
	if strings.HasPrefix(k.API, "https:") {
		text, err := os.ReadFile(k.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificate authority: %s holds no PEM certificate", k.CAFile)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// get sends a request; the caller closes the body.
func (k *Kubernetes) get(ctx context.Context, c *http.Client, query url.Values) (*http.Response, error) {
	query.Set("labelSelector", k.Selector)
	u := strings.TrimSuffix(k.API, "/") + "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(k.Namespace) +
		"/endpointslices?" + query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if req.URL.Scheme == "https" {
		token, err := os.ReadFile(k.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := c.Do(req)
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	var s status
	_ = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&s)
	s.Code = resp.StatusCode
	return nil, s.err()
}

// status is the API server's error object.
type status struct {
	Code    int
	Message string
}

func (s status) err() error {
	switch s.Code {
	case http.StatusGone:
		return errExpired
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("status %d: %.300s (want a Role with list and watch on endpointslices, bound to this ServiceAccount)",
			s.Code, s.Message)
	}
	return fmt.Errorf("status %d: %.300s", s.Code, s.Message)
}

// list returns all slices by name, and the version from which a watch continues.
func (k *Kubernetes) list(ctx context.Context, c *http.Client) (map[string]*endpointSlice, string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	resp, err := k.get(ctx, c, url.Values{})
	if err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	defer resp.Body.Close()
	var page struct {
		Metadata struct{ ResourceVersion string }
		Items    []*endpointSlice
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxListBytes)).Decode(&page); err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	byName := make(map[string]*endpointSlice, len(page.Items))
	for _, s := range page.Items {
		if s != nil {
			byName[s.Metadata.Name] = s
		}
	}
	return byName, page.Metadata.ResourceVersion, nil
}

// watch applies events to list until the server ends the stream, and returns the version from which to continue. An expired
// version is reported as status 200 with an event of type ERROR and code 410.
func (k *Kubernetes) watch(ctx context.Context, c *http.Client, version string, list map[string]*endpointSlice,
	tell func(map[string]*endpointSlice)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+listTime)
	defer cancel()
	resp, err := k.get(ctx, c, url.Values{"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {fmt.Sprint(int(watchTime.Seconds()))}})
	if err != nil {
		return version, fmt.Errorf("watch: %w", err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		next, changed, err := apply(lines.Bytes(), list)
		if err != nil {
			return version, fmt.Errorf("watch: %w", err)
		}
		version = next
		if changed {
			tell(list)
		}
	}
	if err := lines.Err(); err != nil {
		return version, fmt.Errorf("watch: %w", err)
	}
	return version, nil
}

// apply applies one watch event.
func apply(line []byte, list map[string]*endpointSlice) (version string, changed bool, err error) {
	var e struct {
		Type   string
		Object json.RawMessage
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return "", false, err
	}
	if e.Type == "ERROR" {
		var s status
		if err := json.Unmarshal(e.Object, &s); err != nil {
			return "", false, err
		}
		return "", false, s.err()
	}
	var s endpointSlice
	if err := json.Unmarshal(e.Object, &s); err != nil {
		return "", false, err
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		list[s.Metadata.Name] = &s
		changed = true
	case "DELETED":
		delete(list, s.Metadata.Name)
		changed = true
	case "BOOKMARK":
	default:
		return "", false, fmt.Errorf("an event of type %.20q (want ADDED, MODIFIED, DELETED, BOOKMARK or ERROR)", e.Type)
	}
	return s.Metadata.ResourceVersion, changed, nil
}
