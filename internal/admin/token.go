package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strings"
)

// Access says who may look, and who may have something done.
//
//	/healthz, /readyz, /metrics   everybody
//	all else, with a token        who gives it: "Authorization: Bearer TOKEN", or, for browsers, as the password of any user
//	GET, on loopback              also without, if the request's Host is loopback too: a page elsewhere whose name leads here is not
//
// What a browser is made to send from another site's page is refused, whatever it carries.
type Access struct {
	Token    func() string // the one that counts now; nil, or "": none is configured
	Loopback bool          // the listener is reached from this machine alone
}

// Guard lets through who may.
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
			http.Error(w, "a browser sent this from another site's page", http.StatusForbidden)
			return
		case known, here:
		case token == "" && a.Loopback && IsLoopback(r.Host):
			http.Error(w, "admin_token is not set, and without it nothing may be POSTed (set it in the configuration, and give it here: --token, or Authorization: Bearer)", http.StatusForbidden)
			return
		case token == "":
			http.Error(w, "admin_token is not set: beyond loopback there are /healthz, /readyz and /metrics alone, and nothing may be POSTed "+
				"(set admin_token in the configuration; to look, bind admin to 127.0.0.1 and call it so)", http.StatusForbidden)
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

// tokenOf is what a request gives as the token; "": nothing.
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

// IsLoopback tells whether host:port, or host, names this machine by an address that no DNS server gives away.
func IsLoopback(hostport string) bool {
	host := hostport
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexByte(host, ']') {
		host = host[:at]
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
