package extproc

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sightline-router/sightline/internal/steering"
	"github.com/sightline-router/sightline/router"
)

// gate is what becomes of a request, decided by its headers alone. The values are a metric's.
type gate string

const (
	notOurs    gate = "not ours"   // no prompt: Envoy streams it through, we see no body and take no decision
	unreadable gate = "unreadable" // a prompt in a form that is not read here and that an engine might read: refused
	readable   gate = "readable"   // Envoy buffers the body and sends it
)

// unread are the answers to requests for an endpoint that takes a prompt, whose body would reach an engine unread,
// and so with whatever clients must not say. Engines ignore a content-encoding, and read a content-type up to its first
// semicolon (vLLM 0.32 and SGLang 0.5.23, validate_json_request; FastAPI 0.165). By the reason that is counted.
var unread = map[string]router.Refusal{
	"content type":     {Status: http.StatusUnsupportedMediaType, Message: "the content-type is not JSON (want application/json)"},
	"content encoding": {Status: http.StatusUnsupportedMediaType, Message: "the body is encoded (want no content-encoding)"},
	"too large":        {Status: http.StatusRequestEntityTooLarge, Message: tooLong},
	"tenants":          {Status: http.StatusBadRequest, Message: "the header that names the tenant is there more than once"},
	"no tenant":        {Status: http.StatusForbidden, Message: "the header that names the tenant is missing"},
	"tenant's path":    {Status: http.StatusForbidden, Message: "engines keep no tenants apart at this path"},
}

// unreadPath answers a request whose body nobody reads, where none may reach a worker so.
var unreadPath = router.Refusal{Status: http.StatusForbidden, Message: "this path takes no requests with a body here"}

// bodiless are the methods whose requests have no body that an engine's server reads; envoy.yaml.tmpl has the same.
var bodiless = []string{"GET", "HEAD", "OPTIONS", "DELETE"}

// passesUnread tells whether the body of a request that is not ours would reach a worker against an operator's will.
func (h *head) passesUnread(allowed []string) bool {
	return h.stored() == "" && !h.noBody && !slices.Contains(bodiless, h.method) && !slices.Contains(allowed, h.path)
}

// maxSession bounds what is kept of a client's session id, in bytes.
const maxSession = 256

// head is what the gate needs of the request headers.
type head struct {
	method, path  string
	notJSON       bool  // a content-type says so
	encoded       bool  // by anything but identity
	contentLength int64 // -1: not given
	session       string
	tenants       []string // values of the header that names one, but empty ones
	traceparent   string
	firstToken    time.Duration // the client wants it within
	noBody        bool          // Envoy said that no body follows
}

// value is a header's value. Envoy sends it as raw_value (value is empty since 1.27); tools that fill value instead are
// understood.
func value(kv *corev3.HeaderValue) string {
	if raw := kv.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return kv.GetValue()
}

// readHead collects the headers that matter; tenant is the one that names it, "" for none. Envoy sends names in lower case.
func readHead(hs []*corev3.HeaderValue, endOfStream bool, tenant string) head {
	h := head{contentLength: -1, noBody: endOfStream}
	for _, kv := range hs {
		v := value(kv)
		if kv.GetKey() == tenant && v != "" {
			h.tenants = append(h.tenants, v)
		}
		switch kv.GetKey() {
		case ":method":
			h.method = v
		case ":path":
			p, _, _ := strings.Cut(v, "?")
			h.path = steering.Canonical(p)
		case "content-type":
			h.notJSON = h.notJSON || !isJSON(v) // of several headers engines take the first, and others the last
		case "content-encoding":
			for word := range strings.SplitSeq(v, ",") { // a second header of the name counts too
				word = strings.TrimSpace(word)
				h.encoded = h.encoded || word != "" && !strings.EqualFold(word, "identity")
			}
		case "content-length":
			if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 {
				h.contentLength = n
			}
		case headerFirstToken:
			if ms, err := strconv.ParseUint(v, 10, 24); err == nil {
				h.firstToken = time.Duration(ms) * time.Millisecond
			}
		case headerTrace:
			h.traceparent = v
		case HeaderSession:
			if h.session == "" {
				h.session = v[:min(len(v), maxSession)]
			}
		}
	}
	return h
}

// judge applies the gate. The reason is a metric label; empty for readable.
func (h *head) judge(maxBody int, tenants *Tenants) (g gate, reason string) {
	switch {
	case !steering.IsEndpoint(h.path):
		return notOurs, "path"
	case h.method != "POST":
		return notOurs, "method"
	case h.noBody:
		return notOurs, "no body"
	case h.notJSON:
		return unreadable, "content type"
	case h.encoded:
		return unreadable, "content encoding"
	case h.contentLength > int64(maxBody):
		return unreadable, "too large"
	}
	if why := tenants.judge(h); why != "" {
		return unreadable, why
	}
	return readable, ""
}

// isJSON accepts application/json, any +json type, and no type at all (many clients forget it and engines do not mind),
// whatever stands behind a semicolon.
func isJSON(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "" && contentType == "" || t == "application/json" || strings.HasSuffix(t, "+json")
}
