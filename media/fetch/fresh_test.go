package fetch

import (
	"net/http"
	"net/url"
	"testing"
	"time"
)

func TestCacheControl(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  directives
	}{
		{nil, directives{}},
		{[]string{"max-age=60"}, directives{maxAge: time.Minute, hasMaxAge: true}},
		{[]string{"public, MAX-AGE = 60"}, directives{maxAge: time.Minute, hasMaxAge: true}},
		{[]string{`max-age="60"`}, directives{maxAge: time.Minute, hasMaxAge: true}},
		{[]string{"max-age=60, s-maxage=5"}, directives{maxAge: 5 * time.Second, hasMaxAge: true}},
		{[]string{"s-maxage=5", "max-age=60"}, directives{maxAge: 5 * time.Second, hasMaxAge: true}},
		{[]string{"max-age=60, max-age=5"}, directives{maxAge: time.Minute, hasMaxAge: true}},
		{[]string{"max-age=-1"}, directives{hasMaxAge: true}},
		{[]string{"max-age=x"}, directives{hasMaxAge: true}},
		{[]string{"max-age"}, directives{hasMaxAge: true}},
		{[]string{"max-age=99999999999999999999"}, directives{maxAge: maxFresh, hasMaxAge: true}},
		{[]string{"no-store, no-cache"}, directives{noStore: true, noCache: true}},
		{[]string{`no-cache="Set-Cookie, max-age=1"`}, directives{}},
		{[]string{`x="a,b\",no-store", must-revalidate`}, directives{must: true}},
	} {
		if got := cacheControl(c.lines); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.lines, got, c.want)
		}
	}
}

func TestFreshnessRules(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		name         string
		h            map[string]string
		fresh, stale time.Duration
	}{
		{"nothing said", nil, time.Minute, time.Minute + staleFor},
		{"max-age", map[string]string{"Cache-Control": "max-age=90"}, 90 * time.Second, 90*time.Second + staleFor},
		{"age", map[string]string{"Cache-Control": "max-age=90", "Age": "60"}, 30 * time.Second, 30*time.Second + staleFor},
		{"too old already", map[string]string{"Cache-Control": "max-age=90", "Age": "600"}, 0, staleFor},
		{"expires", map[string]string{"Expires": date(time.Minute), "Date": date(-time.Minute)}, 2 * time.Minute, 2*time.Minute + staleFor},
		{"expires nonsense", map[string]string{"Expires": "0"}, 0, staleFor},
		{"heuristic", map[string]string{"Last-Modified": date(-100 * time.Minute)}, 10 * time.Minute, 10*time.Minute + staleFor},
		{"heuristic, old", map[string]string{"Last-Modified": date(-10000 * time.Hour)}, time.Hour, time.Hour + staleFor},
		{"must-revalidate", map[string]string{"Cache-Control": "max-age=5, must-revalidate"}, 5 * time.Second, 5 * time.Second},
		{"no-cache", map[string]string{"Cache-Control": "no-cache, max-age=500"}, 0, 0},
	} {
		h := http.Header{}
		for k, v := range c.h {
			h.Set(k, v)
		}
		if f, s := freshness(h, now); f.Sub(now) != c.fresh || s.Sub(now) != c.stale {
			t.Errorf("%s: fresh %v stale %v, want %v %v", c.name, f.Sub(now), s.Sub(now), c.fresh, c.stale)
		}
	}
}

func TestKeys(t *testing.T) {
	f := open(t, Config{})
	same := func(a, b string) bool {
		x, err := f.parse(a)
		y, err2 := f.parse(b)
		if err != nil || err2 != nil {
			t.Fatalf("%q: got %v %q %v, want no error, no error", a, err, b, err2)
		}
		return x.key == y.key
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"http://h/a", "HTTP://H:80/a", true}, {"https://h/a", "https://h.:443/a#x", true}, {"http://h/a", "https://h/a", false},
		{"http://h/a", "http://h:8080/a", false},
		{"http://h/a?x=1", "http://h/a?x=2", false}, {"http://u:p@h/a", "http://h/a", false},
		{"http://u:p@h/a", "http://u:q@h/a", false}, {"http://h/a", "http://h/A", false},
		{"https://b.s3.us-east-1.amazonaws.com/k?versionId=1&X-Amz-Signature=1&X-Amz-Date=2",
			"https://b.s3.us-east-1.amazonaws.com/k?X-Amz-Date=7&versionId=1&x-amz-signature=9", true},
		{"https://b.s3.amazonaws.com/k?versionId=1&Signature=1", "https://b.s3.amazonaws.com/k?versionId=2&Signature=1", false},
		{"https://a.blob.core.windows.net/k?sig=1", "https://a.blob.core.windows.net/k?sig=2", true},
		{"https://h.example/k?sig=1", "https://h.example/k?sig=2", false},
		{"https://evilamazonaws.com/k?Signature=1", "https://evilamazonaws.com/k?Signature=2", false},
	} {
		if got := same(c.a, c.b); got != c.same {
			t.Errorf("%s and %s: same %v, want %v", c.a, c.b, got, c.same)
		}
	}
	for _, u := range []string{"", "h/a", "ftp://h/a", "file:///etc/passwd", "http:///a", "http:h", "javascript:alert(1)",
		"http://[::1", "data:;base64,AA", "//h/a"} {
		if _, err := f.parse(u); err == nil {
			t.Errorf("%q is accepted: got %v, want an error", u, err)
		}
	}
}

func FuzzCacheControl(f *testing.F) {
	for _, s := range []string{"max-age=60, s-maxage=5", `no-cache="a,b", x="\"`, "max-age=9999999999999999999999", ",,,=,="} {
		f.Add(s, "10", "Mon, 02 Jan 2006 15:04:05 GMT")
	}
	now := time.Unix(1.7e9, 0)
	f.Fuzz(func(t *testing.T, cc, age, date string) {
		h := http.Header{"Cache-Control": {cc}, "Age": {age}, "Date": {date}, "Expires": {date}, "Last-Modified": {date}}
		for range 2 {
			fresh, stale := freshness(h, now)
			if fresh.Before(now) || stale.Before(fresh) || fresh.Sub(now) > maxFresh {
				t.Fatalf("%q: got fresh until %v, stale until %v, want now or later, in this order, fresh for %v at most", h, fresh, stale, maxFresh)
			}
			h.Del("Cache-Control")
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"http://h/a?x-amz-a=1&b", "https://u:p@[::1]:99/%zz?&&=&sig#f", "HTTP://H.:080/"} {
		f.Add(s)
	}
	fe, err := New(Config{Proxy: func(*url.URL) (*url.URL, error) { return nil, nil }, Signing: map[string][]string{"h": {"x-amz-*", "sig"}}})
	if err != nil {
		f.Fatal(err)
	}
	defer fe.Close()
	f.Fuzz(func(t *testing.T, s string) {
		a, err := fe.parse(s)
		if err != nil {
			return
		}
		b, err := fe.parse(a.url.String())
		if err != nil || a.full != b.full || a.key != b.key {
			t.Fatalf("%q and its normal form %q are not the same: %v; got %v, %v, want no error, %v, %v",
				s, a.url, err, a.full, a.key, b.full, b.key)
		}
	})
}

func BenchmarkGetKnown(b *testing.B) {
	f, err := New(Config{Proxy: func(*url.URL) (*url.URL, error) { return nil, nil }})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const u = "https://images.example.com/some/path/to/a/picture.png?width=1280"
	t, _ := f.parse(u)
	e := &entry{full: t.full, fresh: time.Now().Add(time.Hour), stale: time.Now().Add(time.Hour)}
	f.urls.add(0, 0, t.key, e, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Get(b.Context(), 0, u); err != nil {
			b.Fatal(err)
		}
	}
}
