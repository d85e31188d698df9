package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAccess: who may do what. Each row is a request and its results: without a token configured and with one, on loopback and
// beyond.
func TestAccess(t *testing.T) {
	const token = "0123456789abcdef-secret"
	const closed, local, open = http.StatusForbidden, http.StatusUnauthorized, http.StatusOK
	basic := func(password string) string {
		r := httptest.NewRequest("GET", "/", nil)
		r.SetBasicAuth("anyone", password)
		return "Authorization=" + r.Header.Get("Authorization")
	}
	for _, c := range []struct {
		what, method, path, host, header string
		// on loopback without a token configured and with one; beyond loopback likewise
		want [4]int
	}{
		{"a probe", "GET", "/readyz", "10.0.0.5:9903", "", [4]int{open, open, open, open}},
		{"a scrape", "GET", "/metrics", "10.0.0.5:9903", "", [4]int{open, open, open, open}},
		{"a scrape by a name", "GET", "/metrics", "sightline.example:9903", "", [4]int{closed, local, open, open}},
		{"a probe by a name", "GET", "/healthz", "sightline.example:9903", "", [4]int{open, open, open, open}},
		{"a profile that another site's page asks for", "GET", "/debug/pprof/trace", "127.0.0.1:9903",
			"Sec-Fetch-Site=cross-site\nSec-Fetch-Mode=no-cors", [4]int{closed, closed, closed, closed}},
		{"the same from another port of this machine", "GET", "/debug/pprof/trace", "127.0.0.1:9903", "Sec-Fetch-Site=same-site",
			[4]int{closed, closed, closed, closed}},
		{"an older browser's stream for another site", "GET", "/events", "127.0.0.1:9903", "Origin=http://evil.example",
			[4]int{closed, closed, closed, closed}},
		{"another site's, of what is open", "GET", "/metrics", "10.0.0.5:9903", "Origin=http://evil.example",
			[4]int{closed, closed, closed, closed}},
		{"a link to the page", "GET", "/", "127.0.0.1:9903", "Sec-Fetch-Site=cross-site\nSec-Fetch-Mode=navigate\nSec-Fetch-Dest=document",
			[4]int{open, open, closed, local}},
		{"a frame with the page", "GET", "/", "127.0.0.1:9903", "Sec-Fetch-Site=cross-site\nSec-Fetch-Mode=navigate\nSec-Fetch-Dest=iframe",
			[4]int{closed, closed, closed, closed}},
		{"a link to a profile", "GET", "/debug/pprof/trace", "127.0.0.1:9903",
			"Sec-Fetch-Site=cross-site\nSec-Fetch-Mode=navigate\nSec-Fetch-Dest=document", [4]int{closed, closed, closed, closed}},
		{"our page's stream", "GET", "/events", "127.0.0.1:9903", "Sec-Fetch-Site=same-origin", [4]int{open, open, closed, local}},
		{"an address that was typed", "GET", "/workers", "127.0.0.1:9903", "Sec-Fetch-Site=none\nSec-Fetch-Mode=navigate",
			[4]int{open, open, closed, local}},
		{"a POST of what is open", "POST", "/metrics", "10.0.0.5:9903", "", [4]int{closed, local, closed, local}},
		{"the page", "GET", "/", "127.0.0.1:9903", "", [4]int{open, open, closed, local}},
		{"the page by name", "GET", "/", "LOCALHOST:9903", "", [4]int{open, open, closed, local}},
		{"the page over IPv6", "GET", "/", "[::1]:9903", "", [4]int{open, open, closed, local}},
		{"a name that leads here", "GET", "/", "evil.example:9903", "", [4]int{closed, local, closed, local}},
		{"a name that begins so", "GET", "/", "127.0.0.1.evil.example", "", [4]int{closed, local, closed, local}},
		{"no host", "GET", "/", "", "", [4]int{closed, local, closed, local}},
		{"the token", "GET", "/", "10.0.0.5:9903", "Authorization=Bearer " + token, [4]int{closed, open, closed, open}},
		{"the token as a password", "GET", "/", "10.0.0.5:9903", basic(token), [4]int{closed, open, closed, open}},
		{"another token", "GET", "/", "10.0.0.5:9903", "Authorization=Bearer " + token + "x", [4]int{closed, local, closed, local}},
		{"an empty token", "GET", "/", "10.0.0.5:9903", "Authorization=Bearer ", [4]int{closed, local, closed, local}},
		{"an empty password", "GET", "/", "10.0.0.5:9903", basic(""), [4]int{closed, local, closed, local}},
		{"another scheme", "GET", "/", "10.0.0.5:9903", "Authorization=Digest " + token, [4]int{closed, local, closed, local}},
		{"an operator's POST", "POST", "/", "127.0.0.1:9903", "", [4]int{closed, local, closed, local}},
		{"a POST to a name that leads here", "POST", "/", "evil.example:9903", "", [4]int{closed, local, closed, local}},
		{"a POST with the token", "POST", "/", "10.0.0.5:9903", "Authorization=bearer " + token, [4]int{closed, open, closed, open}},
		{"a browser's POST from our page", "POST", "/", "127.0.0.1:9903", "Sec-Fetch-Site=same-origin", [4]int{closed, local, closed, local}},
		{"an older browser's", "POST", "/", "127.0.0.1:9903", "Origin=http://127.0.0.1:9903", [4]int{closed, local, closed, local}},
		{"a POST from another site", "POST", "/", "127.0.0.1:9903", "Sec-Fetch-Site=cross-site", [4]int{closed, closed, closed, closed}},
		{"an older browser's from another site", "POST", "/", "127.0.0.1:9903", "Origin=http://evil.example",
			[4]int{closed, closed, closed, closed}},
		{"a form's, with the password that the browser knows", "POST", "/", "127.0.0.1:9903", basic(token) +
			"\nOrigin=http://evil.example", [4]int{closed, closed, closed, closed}},
		{"any other method", "DELETE", "/", "127.0.0.1:9903", "", [4]int{closed, local, closed, local}},
	} {
		for i, a := range []string{"", token, "", token} {
			a := Access{func() string { return a }, i < 2}
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Host = c.host
			for _, h := range strings.Split(c.header, "\n") {
				if name, value, ok := strings.Cut(h, "="); ok {
					r.Header.Set(name, value)
				}
			}
			w := httptest.NewRecorder()
			a.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != c.want[i] {
				t.Errorf("%s, token configured %t, on loopback %t: status %d, want %d", c.what, a.Token() != "", a.Loopback, w.Code, c.want[i])
			}
			if says := w.Body.String(); c.what == "an operator's POST" && i == 0 && (strings.Contains(says, "beyond loopback") ||
				!strings.Contains(says, "POST requires it")) {
				t.Errorf(`%s from this machine is told %q, want c.what != "an operator's POST" or i != 0 or (no "beyond `+
					`loopback" in says, "POST requires it" in says)`, c.what, says)
			}
			asks := w.Header().Get("WWW-Authenticate") != ""
			if says := w.Body.String(); w.Code >= 400 && !strings.Contains(says, "admin_token") &&
				!strings.Contains(says, "another site") || asks != (w.Code == local) || strings.Contains(says, token) {
				t.Errorf(`%s: it says %q, asks for a password %t, want w.Code < 400 or "admin_token" in says or "another site" `+
					`in says, asks == (w.Code == local), no %q in says`, c.what, says, asks, token)
			}
		}
	}
}
