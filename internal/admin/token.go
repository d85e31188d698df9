package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strings"
)

// Access says who may read, and who may change something.
//
//	/healthz, /readyz, /metrics   everybody
//	all else, with a token        who sends it: "Authorization: Bearer TOKEN" or, for browsers, as the password of any user
//	GET, on loopback              also without, if the request's Host is loopback too, which excludes other names that resolve to here
//
// Requests that a browser makes for another site's page are refused, whatever they carry.
type Access struct {
	Token    func() string // the current one; nil, or "": none is configured
	Loopback bool          // the listener is reachable from this machine only
}

// Guard passes permitted requests on to next.
func (a Access) Guard(next http.Handler) http.Handler {
	sameSite := http.NewCrossOriginProtection()
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
		case reads && (r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics"):
		case sameSite.Check(r) != nil:
			http.Error(w, "a browser sent this from a page of another site", http.StatusForbidden)
			return
		case known, here:
		case token == "" && a.Loopback && IsLoopback(r.Host):
			http.Error(w, "admin_token is not set, and POST requires it (set it in the configuration and send it: --token, or Authorization: Bearer)", http.StatusForbidden)
			return
		case token == "":
			http.Error(w, "admin_token is not set: beyond loopback only /healthz, /readyz and /metrics are served, and no POST "+
				"(set admin_token in the configuration; to see the page without one, bind admin to 127.0.0.1 and use that address)", http.StatusForbidden)
			return
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="Sightline: any user, admin_token as password", charset="UTF-8"`)
			http.Error(w, "want Authorization: Bearer, with the configuration's admin_token", http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
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
	host := hostport
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexByte(host, ']') {
		host = host[:at]
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
