package extproc

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/sightline-router/sightline/internal/denied"
)

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
