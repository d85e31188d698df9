package fetch

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/media"
)

// entry is what is known about a URL. It is immutable and only replaced.
type entry struct {
	facts    media.Facts // of the last good answer; Bytes 0 = none
	err      *Error      // the last answer was this
	etag     string
	modified string // Last-Modified
	full     key    // the exact URL that was asked
	fresh    time.Time
	stale    time.Time // until then it is used while a revalidation runs
}

// staleFor is how long an expired answer may be used while it is revalidated.
const staleFor = time.Hour

// usable reports whether the entry may be used without waiting. A URL with another signature is checked first: the host must
// confirm that it serves the same image for it.
func (e *entry) usable(now time.Time, t target) bool {
	return now.Before(e.stale) && (!t.signed || e.full == t.full)
}

// directives holds the parts of Cache-Control that are used.
type directives struct {
	noStore, noCache, must bool
	maxAge                 time.Duration
	hasMaxAge              bool
}

// cacheControl reads Cache-Control as a shared cache (RFC 9111): s-maxage before max-age, the first of repeated ones, an invalid
// value as expired.
func cacheControl(lines []string) (d directives) {
	shared := false
	for _, line := range lines {
		for part := range splitList(line) {
			name, arg, _ := strings.Cut(part, "=")
			arg = strings.Trim(strings.TrimSpace(arg), `"`)
			switch name = strings.ToLower(strings.TrimSpace(name)); name {
			case "no-store":
				d.noStore = true
			case "no-cache":
				d.noCache = d.noCache || arg == "" // with field names it concerns only headers
			case "must-revalidate", "proxy-revalidate":
				d.must = true
			case "max-age", "s-maxage":
				if shared && name == "max-age" || d.hasMaxAge && !(name == "s-maxage" && !shared) {
					continue
				}
				d.maxAge, d.hasMaxAge, shared = seconds(arg), true, name == "s-maxage"
			}
		}
	}
	return d
}

// splitList yields the members of a header list. Commas inside quotes do not separate them.
func splitList(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i < len(s); i++ {
			switch {
			case quoted && s[i] == '\\':
				i++
			case s[i] == '"':
				quoted = !quoted
			case s[i] == ',' && !quoted:
				if !yield(s[start:i]) {
					return
				}
				start = i + 1
			}
		}
		yield(s[start:])
	}
}

const maxFresh = 365 * 24 * time.Hour

// seconds reads delta-seconds; too large a value becomes a year, an invalid one 0.
func seconds(s string) time.Duration {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > int64(maxFresh/time.Second) {
		return maxFresh
	}
	return time.Duration(n) * time.Second
}

// freshness returns until when an answer is valid, and until when it may be used during revalidation. Without information from the
// host it is valid for a tenth of its age since Last-Modified, between one minute and one hour.
func freshness(h http.Header, now time.Time) (fresh, stale time.Time) {
	d := cacheControl(h.Values("Cache-Control"))
	if d.noStore || d.noCache {
		return now, now
	}
	life := time.Duration(0)
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		date = now
	}
	switch expires, modified := h.Get("Expires"), h.Get("Last-Modified"); {
	case d.hasMaxAge:
		life = d.maxAge - seconds(h.Get("Age"))
	case expires != "":
		if t, err := http.ParseTime(expires); err == nil {
			life = t.Sub(date)
		}
	default:
		life = time.Minute
		if t, err := http.ParseTime(modified); err == nil {
			life = min(max(date.Sub(t)/10, life), time.Hour)
		}
	}
	fresh = now.Add(min(max(life, 0), maxFresh))
	if d.must {
		return fresh, fresh
	}
	return fresh, fresh.Add(staleFor)
}

// validator returns an ETag or date for the next conditional request, "" if it is too long.
func validator(s string) string {
	if len(s) > 256 {
		return ""
	}
	return s
}
