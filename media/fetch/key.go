package fetch

import (
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
)

// key identifies a URL. It is a digest, so that neither credentials nor long URLs stay in memory.
type key [16]byte

func keyOf(s string) (k key) {
	sum := blake3.Sum256([]byte(s))
	copy(k[:], sum[:])
	return k
}

// target is a URL that may be fetched.
type target struct {
	url    *url.URL
	host   string // as written, lower case, no port
	key    key    // without fragment and values of signing parameters
	full   key    // without fragment only
	signed bool   // it has signing parameters, of which key has only that there are any
}

// DefaultSigning lists the signing parameters of the large object stores.
var DefaultSigning = map[string][]string{
	"*.amazonaws.com":            {"X-Amz-*", "AWSAccessKeyId", "Signature", "Expires", "x-amz-security-token"},
	"*.cloudfront.net":           {"Expires", "Signature", "Key-Pair-Id", "Policy"},
	"storage.googleapis.com":     {"X-Goog-*", "GoogleAccessId", "Signature", "Expires"},
	"*.storage.googleapis.com":   {"X-Goog-*", "GoogleAccessId", "Signature", "Expires"},
	"*.blob.core.windows.net":    {"sv", "st", "se", "sr", "sp", "sip", "spr", "sig", "skoid", "sktid", "skt", "ske", "sks", "skv"},
	"*.r2.cloudflarestorage.com": {"X-Amz-*"},
}

const (
	maxURL  = 16 << 10 // bytes of a URL
	maxHost = 320      // of its host and port: DNS names have at most 253
)

// hostname normalizes a host for comparisons: lower case, no final dot.
func hostname(s string) string { return strings.TrimSuffix(strings.ToLower(s), ".") }

// parse checks a URL against the limits that need no network, and computes its keys. The target refers to no part of raw, because
// downloads outlive the request that raw may point into, and hosts outlive downloads.
func (f *Fetcher) parse(raw string) (target, error) {
	if len(raw) > maxURL {
		return target{}, &Error{Kind: Refused, Err: errScheme}
	}
	u, err := url.Parse(strings.Clone(raw))
	if err != nil || u.Opaque != "" || u.Host == "" || len(u.Host) > maxHost {
		return target{}, &Error{Kind: Refused, Err: errScheme}
	}
	u.Scheme = strings.ToLower(u.Scheme)
	t := target{url: u, host: strings.Clone(hostname(u.Hostname()))}
	if err := f.live.Load().permits(u); err != nil {
		return target{}, &Error{Kind: Refused, Host: t.host, Err: err}
	}
	u.Fragment, u.RawFragment = "", ""
	port := u.Port()
	if port == "80" && u.Scheme == "http" || port == "443" && u.Scheme == "https" {
		port = ""
	}
	base := u.Scheme + "://" + u.User.String() + "@" + net.JoinHostPort(t.host, port) + u.EscapedPath() + "?"
	t.full = keyOf(base + u.RawQuery)
	t.key = t.full
	if rest := dropParams(u.RawQuery, f.live.Load().signing(t.host)); len(rest) != len(u.RawQuery) {
		t.signed, t.key = true, keyOf("signed "+base+rest) // what a signature has shown is not for a URL without one
	}
	return t, nil
}

// permits applies scheme and domain rules. It is called for redirects too.
func (c *Config) permits(u *url.URL) error {
	if s := strings.ToLower(u.Scheme); s != "http" && s != "https" {
		return errScheme
	}
	if len(c.AllowedDomains) == 0 {
		return nil
	}
	h := hostname(u.Hostname())
	if slices.Contains(c.AllowedDomains, h) {
		return nil
	}
	return errDomain
}

// signing returns the signing parameters of a host: its own entry, else that of the nearest parent domain.
func (c *Config) signing(host string) []string {
	if p, ok := c.Signing[host]; ok {
		return p
	}
	for rest := host; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			return nil
		}
		if p, ok := c.Signing["*."+parent]; ok {
			return p
		}
		rest = parent
	}
}

// dropParams removes parameters from a raw query; order and spelling of the others are kept.
func dropParams(query string, drop []string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(part, "=")
		if n, err := url.QueryUnescape(name); err == nil && matches(n, drop) {
			continue
		}
		if out.Len() > 0 {
			out.WriteByte('&')
		}
		out.WriteString(part)
	}
	return out.String()
}

func matches(name string, patterns []string) bool {
	for _, p := range patterns {
		start := name
		prefix, ok := strings.CutSuffix(p, "*")
		if ok {
			start = name[:min(len(name), len(prefix))]
		}
		if strings.EqualFold(start, prefix) {
			return true
		}
	}
	return false
}
