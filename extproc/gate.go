package extproc

import (
	"mime"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// The gate decides from the request headers alone what becomes of a request:
//
//	not ours      no chat or completion: Envoy streams it through, we see no body and take no decision
//	unreadable    ours, but its body cannot be read here: routed by load, body unseen
//	readable      ours: Envoy buffers the body and sends it
type gate uint8

const (
	notOurs gate = iota
	unreadable
	readable
)

// inferencePaths are the endpoints whose body names a prompt. All take a POST of one JSON object. The route "inference"
// of our envoy.yaml (package envoy) lists them too, so that Envoy asks about nothing else.
var inferencePaths = map[string]bool{
	"/v1/chat/completions":       true,
	"/v1/chat/completions/batch": true,
	"/v1/completions":            true,
	"/v1/responses":              true,
	"/v1/messages":               true,
}

// maxSession bounds what is kept of a client's session id, in bytes.
const maxSession = 256

// head is what the gate needs of the request headers.
type head struct {
	method, path    string
	contentType     string
	contentEncoding string
	contentLength   int64 // -1: not given
	session         string
	noBody          bool // Envoy said that no body follows
}

// value is a header's value. Envoy sends it as raw_value (value is empty since 1.27); tools that fill value instead are
// understood.
func value(kv *corev3.HeaderValue) string {
	if raw := kv.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return kv.GetValue()
}

// readHead collects the headers that matter. Envoy sends names in lower case.
func readHead(hs []*corev3.HeaderValue, endOfStream bool) head {
	h := head{contentLength: -1, noBody: endOfStream}
	for _, kv := range hs {
		v := value(kv)
		switch kv.GetKey() {
		case ":method":
			h.method = v
		case ":path":
			h.path, _, _ = strings.Cut(v, "?")
		case "content-type":
			h.contentType = v
		case "content-encoding":
			h.contentEncoding = v
		case "content-length":
			if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 {
				h.contentLength = n
			}
		case HeaderSession:
			if h.session == "" {
				h.session = v[:min(len(v), maxSession)]
			}
		}
	}
	return h
}

// judge applies the gate. The reason is a metric label; empty for readable.
func (h *head) judge(maxBody int) (g gate, reason string) {
	switch {
	case !inferencePaths[h.path]:
		return notOurs, "path"
	case h.method != "POST":
		return notOurs, "method"
	case h.noBody || h.contentLength == 0:
		return notOurs, "no body"
	case !isJSON(h.contentType):
		return notOurs, "content type"
	case h.contentEncoding != "" && !strings.EqualFold(h.contentEncoding, "identity"):
		return unreadable, "content encoding"
	case h.contentLength > int64(maxBody):
		return unreadable, "too large"
	}
	return readable, ""
}

// isJSON accepts application/json, any +json type, and no type at all (many clients forget it and engines do not mind).
func isJSON(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}
