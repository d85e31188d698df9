package discover

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
)

// AccountDir is where a pod finds the credentials for its API server.
const AccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Cluster is an API server and a namespace there.
type Cluster struct {
	API       string // such as https://10.96.0.1:443; plain http (kubectl proxy) gets no token
	CAFile    string // the server's certificate authority
	TokenFile string // read again for each request: tokens of pods live an hour
	Namespace string
}

// Complete fills in what a pod knows by itself.
func (p Cluster) Complete() (Cluster, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if p.API == "" && host != "" && port != "" {
		p.API = "https://" + net.JoinHostPort(host, port)
	}
	text, _ := os.ReadFile(AccountDir + "/namespace")
	p.Namespace = cmp.Or(p.Namespace, strings.TrimSpace(string(text)))
	p.CAFile, p.TokenFile = cmp.Or(p.CAFile, AccountDir+"/ca.crt"), cmp.Or(p.TokenFile, AccountDir+"/token")
	if p.API == "" || p.Namespace == "" {
		return p, errors.New("this is not a pod with a ServiceAccount's token")
	}
	return p, nil
}

// server is an API server, and how it is asked.
type server struct {
	Cluster
	log   *zap.Logger
	retry time.Duration // first wait after a failure; 0: 500 ms
}

// resource is the objects of one kind in one namespace, or some of them.
type resource struct {
	group, version, namespace, kind string     // kind in the plural: endpointslices; group "" for Kubernetes' own v1
	name                            string     // of one object; "": all
	query                           url.Values // labelSelector, fieldSelector
	optional                        bool       // that it is not defined, or may not be read, is no failure: it has no objects
}

func (r *resource) path() string {
	root := "/apis/" + r.group + "/"
	if r.group == "" {
		root = "/api/"
	}
	path := root + r.version + "/namespaces/" + url.PathEscape(r.namespace) + "/" + r.kind
	if r.name != "" {
		path += "/" + url.PathEscape(r.name)
	}
	return path
}

// String names the resource as a Role does.
func (r *resource) String() string {
	if r.group == "" {
		return r.kind
	}
	return r.kind + "." + r.group
}

// metadata is the part of an object's metadata that is used.
type metadata struct {
	Name, UID, ResourceVersion           string
	CreationTimestamp, DeletionTimestamp string
	Labels, Annotations                  map[string]string
}

// described is embedded in each kind of objects.
type described struct{ Metadata metadata }

func (d *described) meta() *metadata { return &d.Metadata }

// object is a kind of objects.
type object[T any] interface {
	*T
	meta() *metadata
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

var (
	errExpired   = errors.New("the watch's resource version has expired") // the server no longer knows it
	errUndefined = errors.New("is its definition installed?")
	errDenied    = errors.New("want a Role with list and watch on it, bound to this ServiceAccount")
)

// follow calls tell with all objects by name after each change, until ctx ends. The map is valid during the call.
func follow[T any, P object[T]](ctx context.Context, s *server, r resource, tell func(map[string]P)) {
	first := s.retry
	if first <= 0 {
		first = 500 * time.Millisecond
	}
	pause, absent := retry.Backoff{First: first, Longest: 64 * first}, retry.Backoff{First: 64 * first, Longest: 64 * first}
	said := false // that it may not be read
	for ctx.Err() == nil {
		err := session(ctx, s, r, func(list map[string]P) {
			pause.Reset()
			tell(list)
		})
		if ctx.Err() != nil {
			return
		}
		if r.optional && (errors.Is(err, errUndefined) || errors.Is(err, errDenied)) {
			if !said && errors.Is(err, errDenied) {
				said = true
				s.log.Info("no "+r.String()+" are followed", zap.String("namespace", r.namespace), zap.Error(err))
			}
			absent.Wait(ctx)
			continue
		}
		if !errors.Is(err, errExpired) {
			s.log.Warn("cannot list or watch "+r.String()+"; keeping the known workers", zap.String("namespace", r.namespace),
				zap.String("selector", r.query.Encode()), zap.Error(err))
		}
		pause.Wait(ctx)
	}
}

// list returns the current objects by name.
func list[T any, P object[T]](ctx context.Context, s *server, r resource) (map[string]P, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	all, _, err := listWith[T, P](ctx, s, client, r)
	return all, err
}

// session lists, then watches until something fails.
func session[T any, P object[T]](ctx context.Context, s *server, r resource, tell func(map[string]P)) error {
	client, err := s.client() // a new one each time: the authority's file may change
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	all, version, err := listWith[T, P](ctx, s, client, r)
	if err != nil {
		return err
	}
	tell(all)
	for {
		start := time.Now()
		version, err = watchFrom(ctx, s, client, r, version, all, tell)
		if err != nil {
			return err
		}
		if time.Since(start) < shortWatch {
			return errors.New("the server ended the watch at once")
		}
	}
}

func (s *server) client() (*http.Client, error) {
	t := &http.Transport{ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: listTime,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		HTTP2:       &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}} // a silent watch may be a dead one
	if strings.HasPrefix(s.API, "https:") {
		text, err := secure.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificate authority: %s holds no PEM certificate", s.CAFile)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// get sends a request; the caller closes the body.
func (s *server) get(ctx context.Context, c *http.Client, r resource, query url.Values) (*http.Response, error) {
	maps.Copy(query, r.query)
	resp, err := s.do(ctx, c, http.MethodGet, r, "?"+query.Encode(), nil)
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	told := readStatus(resp)
	return nil, told.err(r.String())
}

// do sends a request; the caller closes the body. A body of a request is a merge patch.
func (s *server) do(ctx context.Context, c *http.Client, method string, r resource, query string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.API, "/")+r.path()+query, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if req.URL.Scheme == "https" {
		token, err := secure.ReadFile(s.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	return c.Do(req)
}

// readStatus reads the error of a response.
func readStatus(resp *http.Response) (told status) {
	_ = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&told)
	told.Code = resp.StatusCode
	return told
}

// status is the API server's error object.
type status struct {
	Code    int
	Message string
}

func (s status) err(what string) error {
	switch s.Code {
	case http.StatusGone:
		return errExpired
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s: status %d: %.300s (%w)", what, s.Code, s.Message, errDenied)
	case http.StatusNotFound:
		return fmt.Errorf("%s: status %d: %.300s (%w)", what, s.Code, s.Message, errUndefined)
	}
	return fmt.Errorf("status %d: %.300s", s.Code, s.Message)
}

// listWith returns all objects by name, and the version from which a watch continues.
func listWith[T any, P object[T]](ctx context.Context, s *server, c *http.Client, r resource) (map[string]P, string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	resp, err := s.get(ctx, c, r, url.Values{})
	if err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	defer resp.Body.Close()
	var page struct {
		Metadata struct{ ResourceVersion string }
		Items    []P
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxListBytes)).Decode(&page); err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	byName := make(map[string]P, len(page.Items))
	for _, o := range page.Items {
		if o != nil {
			byName[o.meta().Name] = o
		}
	}
	return byName, page.Metadata.ResourceVersion, nil
}

// watchFrom applies events to list until the server ends the stream, and returns the version from which to continue. An expired
// version is reported as status 200 with an event of type ERROR and code 410.
func watchFrom[T any, P object[T]](ctx context.Context, s *server, c *http.Client, r resource, version string, list map[string]P,
	tell func(map[string]P)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+listTime)
	defer cancel()
	resp, err := s.get(ctx, c, r, url.Values{"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"},
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
		next, changed, err := apply(lines.Bytes(), r.String(), list)
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
func apply[T any, P object[T]](line []byte, what string, list map[string]P) (version string, changed bool, err error) {
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
		return "", false, s.err(what)
	}
	o := P(new(T))
	if err := json.Unmarshal(e.Object, o); err != nil {
		return "", false, err
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		list[o.meta().Name] = o
		changed = true
	case "DELETED":
		delete(list, o.meta().Name)
		changed = true
	case "BOOKMARK":
	default:
		return "", false, fmt.Errorf("an event of type %.20q (want ADDED, MODIFIED, DELETED, BOOKMARK or ERROR)", e.Type)
	}
	return o.meta().ResourceVersion, changed, nil
}
