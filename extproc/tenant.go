package extproc

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/sightline-router/sightline/internal/steering"
)

// Tenants have a header that Envoy, or a filter in front of ours, sets say whose a request is. A tenant's requests get a cache_salt
// of its own, so that engines keep its blocks apart from all others'; what the client says under that name does not count.
type Tenants struct {
	Header   string // in lower case; "": there are no tenants
	Required bool   // a request without one is refused; otherwise it shares with all that have none
}

// salted are the endpoints whose requests take a cache_salt (vLLM 0.32, the protocol.py of each below vllm/entrypoints/openai); that
// of Anthropic's form has no such field, and what vLLM does with one is to leave it out.
var salted = []string{steering.Chat, steering.Completions, steering.Responses}

// judge says why a request cannot be given its tenant's salt, as a key of unread; "" if it can.
func (t *Tenants) judge(h *head) string {
	switch {
	case t.Header == "":
	case len(h.tenants) > 1: // one of them may be the client's
		return "tenants"
	case t.Required && len(h.tenants) == 0:
		return "no tenant"
	case len(h.tenants) > 0 && !slices.Contains(salted, h.path):
		return "tenant's path"
	}
	return ""
}

// salt is the request's, as router.Request has it: of the tenant's name 128 bits of a hash, which stay the same in all replicas.
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
