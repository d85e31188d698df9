package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Access says who may read, and who may change something.
//
//	/healthz, /readyz, /metrics   everybody; on loopback /metrics wants an address or localhost as Host
//	all else, with a token        who sends it: "Authorization: Bearer TOKEN" or, for browsers, as the password of any user
//	GET, on loopback              also without, if the request's Host is loopback too, which excludes other names that resolve to here
//
// Requests that a browser makes for another site's page are refused, whatever their method and whatever they carry. A link to the
// page itself works.
type Access struct {
	Token    func() string // the current one; nil, or "": none is configured
	Loopback bool          // the listener is reachable from this machine only
}

// transferTime bounds how long a request's body and its answer may take, unless a page sets another time.
const transferTime = time.Minute

// Guard passes permitted requests on to next.
func (a Access) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		here := a.Loopback && IsLoopback(r.Host) && reads
		token := ""
		if a.Token != nil {
			token = a.Token()
		}
		want := sha256.Sum256([]byte(token))
		given := sha256.Sum256([]byte(tokenOf(r)))
		known := token != "" && subtle.ConstantTimeCompare(given[:], want[:]) == 1
		switch {
		case fromOtherSite(r):
			http.Error(w, "a browser sent this from a page of another site", http.StatusForbidden)
			return
		case reads && (r.URL.Path == "/healthz" || r.URL.Path == "/readyz"):
		case reads && r.URL.Path == "/metrics" && (!a.Loopback || isAddress(r.Host)):
		case known, here:
		case token == "" && a.Loopback && IsLoopback(r.Host):
			http.Error(w,
				"admin_token is not set, and POST requires it (set it in the configuration and send it: $"+TokenVariable+
					" of a command, or Authorization: Bearer)",
				http.StatusForbidden)
			return
		case token == "":
			http.Error(w, "admin_token is not set: beyond loopback only /healthz, /readyz and /metrics are served, and no POST "+
				"(set admin_token in the configuration; to see the page without one, bind admin to 127.0.0.1 and use that address)",
				http.StatusForbidden)
			return
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="Sightline: any user, admin_token as password", charset="UTF-8"`)
			http.Error(w, "want Authorization: Bearer, with the configuration's admin_token", http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		limit := http.NewResponseController(w)
		_ = limit.SetWriteDeadline(time.Now().Add(transferTime))
		if !reads {
			_ = limit.SetReadDeadline(time.Now().Add(transferTime))
		}
		next.ServeHTTP(w, r)
	})
}

// fromOtherSite reports whether a browser sent this for a page of another site, by Sec-Fetch-Site or Origin. What follows a link to
// the page is not counted: only the person who clicked sees the answer.
func fromOtherSite(r *http.Request) bool {
	post := http.Request{Method: http.MethodPost, Header: r.Header, Host: r.Host, URL: r.URL} // Check looks at no GET
	if http.NewCrossOriginProtection().Check(&post) == nil {
		return false
	}
	link := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return r.Method != http.MethodGet || r.URL.Path != "/" || !link
}

// tokenOf returns the token that a request sends; "": none.
func tokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// IsLoopback reports whether host:port, or host, is this machine by an address that does not depend on DNS.
func IsLoopback(hostport string) bool {
	ip, ok := hostAddr(hostport)
	return ok && ip.Unmap().IsLoopback()
}

// isAddress reports whether host:port, or host, does not depend on DNS, so that no other site's name can stand there.
func isAddress(hostport string) bool {
	_, ok := hostAddr(hostport)
	return ok
}

// hostAddr returns the address in host:port, or host; localhost counts as one.
func hostAddr(hostport string) (netip.Addr, bool) {
	host := hostport
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexByte(host, ']') {
		host = host[:at]
	}
	if strings.EqualFold(host, "localhost") {
		return netip.IPv6Loopback(), true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return ip, err == nil
}
