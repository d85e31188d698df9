package extproc

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/router"
)

// gate is what happens to a request, decided by its headers alone. The values are metric labels.
type gate string

const (
	notOurs    gate = "not ours"   // no prompt: Envoy streams it through; we see no body and take no decision
	unreadable gate = "unreadable" // a prompt in a form that we do not read but an engine might: refused
	readable   gate = "readable"   // Envoy buffers the body and sends it
)

// refusals has the refusals of requests to an endpoint that takes a prompt, whose body would reach an engine unread, with whatever
// clients must not say. Engines ignore a content-encoding, and read a content-type up to its first semicolon (vLLM 0.32 and
// SGLang 0.5.23, validate_json_request; FastAPI 0.165). The keys are metric labels.
var refusals = map[string]router.Refusal{
	"content type":     {Status: http.StatusUnsupportedMediaType, Message: "the content-type is not JSON (want application/json)"},
	"content encoding": {Status: http.StatusUnsupportedMediaType, Message: "the body is encoded (want no content-encoding)"},
	"too large":        {Status: http.StatusRequestEntityTooLarge, Message: tooLong},
	"tenants":          {Status: http.StatusBadRequest, Message: "the header that names the tenant occurs more than once"},
	"no tenant":        {Status: http.StatusForbidden, Message: "the header that names the tenant is missing"},
	"tenant's path":    {Status: http.StatusForbidden, Message: "engines do not separate tenants at this path"},
}

// unreadPath refuses a request whose body is not read, if none may pass unread.
var unreadPath = router.Refusal{Status: http.StatusForbidden, Message: "this path accepts no request bodies here"}

// bodilessMethods lists the methods whose requests have no body that an engine's server reads; envoy.yaml.tmpl has the same.
var bodilessMethods = []string{"GET", "HEAD", "OPTIONS", "DELETE"}

// passesUnread reports whether the body of a request that is not ours would reach a worker unread without being allowed.
func (h *head) passesUnread(allowed []string) bool {
	return !h.cancels() && !h.noBody && !slices.Contains(bodilessMethods, h.method) && !slices.Contains(allowed, h.path)
}

// maxSession limits what is kept of a client's session id, in bytes.
const maxSession = 256

// head has the request headers that the gate needs.
type head struct {
	method, path  string
	notJSON       bool  // by its content-type
	encoded       bool  // by anything but identity
	contentLength int64 // -1: not given
	session       string
	tenants       []string // non-empty values of the tenant header
	traceparent   string
	firstToken    time.Duration // time within which the client wants its first token
	noBody        bool          // Envoy said that no body follows
}

// value returns a header's value. Envoy sends raw_value (value is empty since 1.27); tools may send value instead.
func value(kv *corev3.HeaderValue) string {
	if raw := kv.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return kv.GetValue()
}

// readHead reads the relevant headers; tenant is the tenant header's name, "" for none. Envoy sends names in lower case.
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
			h.path = denied.Canonical(p)
		case "content-type":
			h.notJSON = h.notJSON || !isJSON(v) // of several headers some engines take the first, others the last
		case "content-encoding":
			for word := range strings.SplitSeq(v, ",") { // of a repeated header all values count
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
			h.session = cmp.Or(h.session, v[:min(len(v), maxSession)])
		}
	}
	return h
}

// judge applies the gate. The reason is a metric label; empty for readable.
func (h *head) judge(maxBody int, tenants *Tenants) (g gate, reason string) {
	switch {
	case !denied.IsEndpoint(h.path):
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

// isJSON accepts application/json, any +json type, and no type at all (many clients omit it, and engines accept that), whatever
// follows a semicolon.
func isJSON(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "" && contentType == "" || t == "application/json" || strings.HasSuffix(t, "+json")
}

// Tenants names a header, set by Envoy or a filter before ours, with the tenant of a request. Each tenant's requests get a
// cache_salt of their own, so that engines keep its blocks separate from all others'; a cache_salt from the client is ignored.
type Tenants struct {
	Header   string // in lower case; "": there are no tenants
	Required bool   // refuse a request without the header; otherwise all such requests share one cache
}

// saltedEndpoints lists the endpoints whose requests take a cache_salt (vLLM 0.32, the protocol.py of each below vllm/entrypoints/openai).
// Anthropic's has no such field, and vLLM ignores it there.
var saltedEndpoints = []string{denied.Chat, denied.Completions, denied.Responses}

// judge returns why a request cannot get its tenant's salt, as a key of refusals; "" if it can.
func (t *Tenants) judge(h *head) string {
	switch {
	case t.Header == "":
	case len(h.tenants) > 1: // one of them may be the client's
		return "tenants"
	case t.Required && len(h.tenants) == 0:
		return "no tenant"
	case len(h.tenants) > 0 && !slices.Contains(saltedEndpoints, h.path):
		return "tenant's path"
	}
	return ""
}

// salt returns router.Request.Salt: 128 bits of a hash of the tenant's name, the same in all replicas.
func (t *Tenants) salt(h *head) *string {
	if t.Header == "" {
		return nil
	}
	if len(h.tenants) == 0 {
		return new(string)
	}
	sum := sha256.Sum256([]byte("sightline tenant\x00" + h.tenants[0]))
	return new(hex.EncodeToString(sum[:16]))
}
