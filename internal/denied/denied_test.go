package denied

import (
	"regexp"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, h := range Headers {
		if h.Name != strings.ToLower(h.Name) || !strings.HasPrefix(h.Name, "x-") || h.Reader == "" || h.Source == "" ||
			h.Why == "" || seen[h.Name] {
			t.Errorf("%+v: want a new name in lower case that begins with x-, who reads it, where that is written, and why", h)
		}
		seen[h.Name] = true
		longer := h.Name + "y"
		if !h.Match(strings.ToUpper(h.Name)) || h.Match(longer) != h.Prefix || h.Match(h.Name[:len(h.Name)-1]) {
			t.Errorf("%s: matches %s: %t, want h.Match(strings.ToUpper(h.Name)), h.Match(longer) == h.Prefix, !h.Match(h.Name[:len(h.Name)-1])",
				h.Name, longer, h.Match(longer))
		}
	}
	for _, f := range Fields {
		if FieldOf(f.Name) == nil || FieldOf(f.Name).Name != f.Name || f.In == Nowhere || f.Reader == "" || f.Source == "" ||
			f.Why == "" || seen[f.Name] || len(f.Name) > 40 {
			t.Errorf("%+v: want a new name, places, who reads it, where that is written, and why", f)
		}
		seen[f.Name] = true
	}
	if FieldOf("bootstrap_new").Label() != "bootstrap_*" || InMessage.Field("uuid") != nil || InPart.Field("uuid") == nil ||
		FieldOf("UUID") != nil {
		t.Error("fields are found by other rules than they are written by")
	}
}

func TestCanonical(t *testing.T) {
	for p, want := range map[string]string{
		"/v1/chat/completions": "/v1/chat/completions", "/v1/chat%2Fcompletions": "/v1/chat/completions",
		"/v1/ch%61t%2fcompletions/": "/v1/chat/completions", "//v1///chat/completions//": "/v1/chat/completions",
		`/v1\chat%5ccompletions`: "/v1/chat/completions", "/v1/x%2F..%2Fchat/completions": "/v1/chat/completions",
		"/v1/./messages":  "/v1/messages",
		"/v1/messages%0a": "/v1/messages", "/v1/chat%252Fcompletions": "/v1/chat%2Fcompletions",
		"/v1/chat%2Fcompletions%": "/v1/chat%2Fcompletions%", "/": "/", "": "", "*": "*",
	} {
		if got := Canonical(p); got != want {
			t.Errorf("%q: %q, want %q", p, got, want)
		}
	}
}

// FuzzCanonical: Envoy asks about every path that is an endpoint to a server behind us, either as written or as an odd one. It
// resolves dots itself, including escaped ones.
func FuzzCanonical(f *testing.F) {
	for _, p := range []string{"/v1/chat%2Fcompletions", "//v1/messages", `/v1\responses`, "/v1/completions/",
		"/v1/chat/%63ompletions%2Fbatch", "/v1/x%2F../messages"} {
		f.Add(p)
	}
	odd := regexp.MustCompile("^(?s:" + Odd + ")$")
	f.Fuzz(func(t *testing.T, p string) {
		if !strings.HasPrefix(p, "/") || strings.Contains(p, "/.") {
			return
		}
		c := Canonical(p)
		if c != p && !odd.MatchString(p) {
			t.Errorf("%q is read as %q, and not asked about", p, c)
		}
		if IsEndpoint(c) && !IsEndpoint(p) && !odd.MatchString(p) {
			t.Errorf("%q is an endpoint, and not asked about", p)
		}
	})
}
