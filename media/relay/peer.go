package relay

import (
	"io"
	"net"
	"net/http"
	"path"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
)

// codeForward is open's code for an image that another replica holds.
const codeForward = 0

// newPeer returns a client for other replicas: no proxy, no redirects.
func newPeer(as *secure.Client) http.Client {
	return http.Client{Timeout: 30 * time.Second, Transport: as.Transport(&http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 5 * time.Second,
	}), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// forward forwards a request to the replica that the URL names. The signature covers the name, so only a replica can have chosen it.
// That replica serves the image or answers 404; it forwards nothing.
func (r *Relay) forward(w http.ResponseWriter, q *http.Request) {
	link := "http://" + q.URL.Query().Get("h") + "/" + path.Base(q.URL.Path) + "?" + q.URL.RawQuery
	ask, err := http.NewRequestWithContext(q.Context(), q.Method, link, nil)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusBadGateway), http.StatusBadGateway)
		return
	}
	resp, err := r.peer.Do(ask)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusBadGateway), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for _, key := range []string{"Content-Type", "Content-Length", "ETag", "Cache-Control", "X-Content-Type-Options"} {
		if v := resp.Header.Get(key); v != "" {
			w.Header().Set(key, v)
		}
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // a client that hangs up asks again
}

// Address returns where others reach a listener of this process: its own address or, if it listens on all of them, the machine's
// first one that is not loopback.
func Address(listen net.Addr) string {
	at, ok := listen.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return listen.String()
	}
	own := *at
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && (own.IP.IsUnspecified() || own.IP.To4() == nil && n.IP.To4() != nil) {
			own.IP = n.IP // an IPv4 address if there is one
		}
	}
	return own.String()
}
