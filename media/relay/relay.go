// Package relay serves images that are already here to the workers, so that a worker need not download them again, and so that a
// worker that reads no data URLs (TensorRT-LLM, some configurations of others) gets them nevertheless. It saves the second
// download, not the preprocessing. The bytes are shared with the caller, not copied.
//
//	router ─ Offer(content id) ─▶ http://host:port/<content id>?e=<expiry>&s=<signature> ─ in the body ─▶ worker ─ GET ─▶ Relay
//
// A URL gives its holder access to one image for a short time. The signature is an HMAC by a key that exists only in this
// process, so URLs become invalid when it ends. With a key that several replicas share, a URL may lead to any of them: the signed
// URL names the replica that holds the image, and another replica fetches it from there.
//
// An image is kept until a worker has fetched it as often as it was offered, or until it expires; only then may it be evicted. If
// there is no room, Offer returns false and the part keeps its own URL. A worker that comes too late gets 410. One that fetches an
// image again after it was evicted (a retry on a second worker, say) gets 404, and its client an error.
package relay

import (
	"bytes"
	"cmp"
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/mmhash"
)

// Config holds a Relay's address and limits. Zero values mean the defaults in parentheses.
type Config struct {
	URL      string         // where workers reach the relay, such as http://10.0.0.2:9904; a path is kept
	TTL      time.Duration  // how long a URL is valid (2 minutes)
	MaxBytes int64          // of the images held (256 MiB)
	Key      []byte         // shared by all replicas, 32 bytes or more; nil: a random key of this process
	Self     string         // with Key: where the other replicas reach this one, ip:port
	As       *secure.Client // TLS and token settings towards them, or nil

	now func() time.Time
}

// Relay is safe for concurrent use.
type Relay struct {
	cfg  Config
	base string
	key  []byte
	peer http.Client

	mu    sync.Mutex
	held  map[mmhash.ContentID]*list.Element
	order list.List // of *image, most recently offered at the back
	stats Stats
}

// Stats counts the outcomes of offers and of workers' requests.
type Stats struct {
	Offered, Full            uint64 // URLs made; offers refused for want of room
	Served                   uint64
	Passed                   uint64 // forwarded to the replica that holds it
	Expired, Gone, Forbidden uint64 // 410; 404; 403: signature missing or wrong
	Bytes                    int64  // held now
	Images                   int
}

type image struct {
	id      mmhash.ContentID
	file    []byte
	expires time.Time
	awaited int // offers that no worker has fetched yet
}

// overhead is the memory of an image besides its bytes.
const overhead = 512

// New returns a relay. The error says what is wrong with the URL.
func New(c Config) (*Relay, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" ||
		strings.ContainsAny(c.URL, "\"\\ ") {
		return nil, errors.New("relay: url is not where workers could ask (want one such as http://10.0.0.2:9904)")
	}
	c.TTL, c.MaxBytes = cmp.Or(c.TTL, 2*time.Minute), cmp.Or(c.MaxBytes, 256<<20)
	if c.now == nil {
		c.now = time.Now
	}
	r := &Relay{cfg: c, base: strings.TrimRight(c.URL, "/"), key: c.Key, peer: newPeer(c.As),
		held: make(map[mmhash.ContentID]*list.Element)}
	switch _, err := netip.ParseAddrPort(c.Self); {
	case c.Key == nil && c.Self == "":
		r.key = make([]byte, 32)
		_, err := rand.Read(r.key)
		return r, err
	case len(c.Key) < 32:
		return nil, fmt.Errorf("relay: a key of %d bytes (want 32 or more, the same in all replicas)", len(c.Key))
	case err != nil:
		return nil, fmt.Errorf("relay: %q is not where replicas could ask (want ip:port)", c.Self)
	}
	return r, nil
}

// Offer returns a URL of an image. It calls file for the bytes if they are not held yet; they must not be changed later. ok is
// false if file returns none or there is no room.
func (r *Relay) Offer(id mmhash.ContentID, file func() ([]byte, bool)) (link string, ok bool) {
	if !r.renew(id) {
		b, ok := file()
		if !ok || !r.hold(id, b) {
			return "", false
		}
	}
	expiry := r.cfg.now().Add(r.cfg.TTL).Unix()
	link = r.base + "/" + id.String() + "?e=" + strconv.FormatInt(expiry, 10)
	if r.cfg.Self != "" {
		link += "&h=" + r.cfg.Self
	}
	return link + "&s=" + base64.RawURLEncoding.EncodeToString(r.sign(id, expiry, r.cfg.Self)), true
}

func (r *Relay) sign(id mmhash.ContentID, expiry int64, home string) []byte {
	h := hmac.New(sha256.New, r.key)
	h.Write(id[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(expiry)))
	h.Write([]byte(home))
	return h.Sum(nil)
}

// renew adds an offer of an image that is already held.
func (r *Relay) renew(id mmhash.ContentID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.held[id]
	if !ok {
		return false
	}
	p := e.Value.(*image)
	p.expires = r.cfg.now().Add(r.cfg.TTL)
	p.awaited++
	r.order.MoveToBack(e)
	r.stats.Offered++
	return true
}

// hold adds an image, evicting old ones if necessary.
func (r *Relay) hold(id mmhash.ContentID, file []byte) bool {
	if r.renew(id) { // another request was faster
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.now()
	need := int64(len(file)) + overhead
	r.sweep(now, r.cfg.MaxBytes-need)
	if r.stats.Bytes+need > r.cfg.MaxBytes {
		r.stats.Full++
		return false
	}
	if _, twice := r.held[id]; !twice {
		r.held[id] = r.order.PushBack(&image{id: id, file: file, expires: now.Add(r.cfg.TTL), awaited: 1})
		r.stats.Bytes += need
		r.stats.Images++
	}
	r.stats.Offered++
	return true
}

// sweepAtMost bounds the images that are examined to make room for one.
const sweepAtMost = 64

// sweep evicts images that no worker is expected to fetch, oldest offers first: all that have expired, and as many others as
// needed.
func (r *Relay) sweep(now time.Time, room int64) {
	for e, n := r.order.Front(), 0; e != nil && n < sweepAtMost; n++ {
		p, next := e.Value.(*image), e.Next()
		expired := now.After(p.expires)
		if !expired && r.stats.Bytes <= room {
			return
		}
		if expired || p.awaited == 0 {
			r.order.Remove(e)
			delete(r.held, p.id)
			r.stats.Bytes -= int64(len(p.file)) + overhead
			r.stats.Images--
		}
		e = next
	}
}

// ServeHTTP answers a worker: 200 with the image, 403 without a valid signature, 410 after the URL's expiry, 404 if the image
// was evicted, 502 if the replica that holds it does not answer.
func (r *Relay) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET only", http.StatusMethodNotAllowed)
		return
	}
	file, id, code := r.open(q)
	if code == codeForward {
		r.forward(w, q)
		return
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if code != http.StatusOK {
		h.Set("Cache-Control", "no-store")
		http.Error(w, http.StatusText(code), code)
		return
	}
	h.Set("Content-Type", contentType(file))
	h.Set("Content-Length", strconv.Itoa(len(file)))
	h.Set("ETag", `"`+id.String()+`"`)
	h.Set("Cache-Control", "private, immutable, max-age="+strconv.Itoa(int(r.cfg.TTL/time.Second)))
	if q.Method == http.MethodGet {
		_, _ = w.Write(file) // a client that hangs up asks again
	}
}

func (r *Relay) open(q *http.Request) (file []byte, id mmhash.ContentID, code int) {
	form := q.URL.Query()
	expiry, err1 := strconv.ParseInt(form.Get("e"), 10, 64)
	sig, err2 := base64.RawURLEncoding.Strict().DecodeString(form.Get("s"))
	name, err3 := hex.DecodeString(path.Base(q.URL.Path))
	home := form.Get("h")
	ok := errors.Join(err1, err2, err3) == nil && len(name) == len(id)
	copy(id[:], name)
	ok = ok && hmac.Equal(sig, r.sign(id, expiry, home))
	now := r.cfg.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok {
		r.stats.Forbidden++
		return nil, id, http.StatusForbidden
	}
	if now.Unix() > expiry {
		r.stats.Expired++
		return nil, id, http.StatusGone
	}
	e, held := r.held[id]
	if home != r.cfg.Self { // whether it is held here or not: there the image waits for its worker
		r.stats.Passed++
		return nil, id, codeForward
	}
	if !held {
		r.stats.Gone++
		return nil, id, http.StatusNotFound
	}
	p := e.Value.(*image)
	if q.Method == http.MethodGet {
		p.awaited = max(0, p.awaited-1)
		r.stats.Served++
	}
	return p.file, id, http.StatusOK
}

// contentType derives the content type from a file's first bytes.
func contentType(file []byte) string {
	head := file[:min(len(file), 512)]
	for _, tiff := range []string{"II*\x00", "MM\x00*", "II+\x00", "MM\x00+"} {
		if bytes.HasPrefix(head, []byte(tiff)) {
			return "image/tiff"
		}
	}
	if len(head) > 12 && (string(head[4:12]) == "ftypavif" || string(head[4:12]) == "ftypavis") {
		return "image/avif"
	}
	if t := http.DetectContentType(head); strings.HasPrefix(t, "image/") {
		return t
	}
	return "application/octet-stream" // nothing that a browser would execute
}

// Stats returns the counters.
func (r *Relay) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

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
