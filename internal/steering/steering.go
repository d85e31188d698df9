// Package steering lists what a client must not say to engines and to the routers in front of them, and the endpoints
// where it could: one list for Envoy's configuration, for the gate that asks for bodies and for the cleaning of bodies.
//
// The names are meant for routers and proxies. Whoever may send them chooses a worker or a rank, has a worker take KV
// blocks from an address, or reads other clients' pictures. Each entry names who reads it, as of which release, and where
// its source has the name.
//
// What is not listed: a priority in the body, cache_salt and session_id. They are part of the engines' public API, weigh
// only for requests of one's own, and priority counts only where an operator has turned it on.
package steering

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

// The paths whose body names a prompt. All take a POST of one JSON object.
const (
	Chat        = "/v1/chat/completions"
	Batch       = "/v1/chat/completions/batch"
	Completions = "/v1/completions"
	Responses   = "/v1/responses"
	Messages    = "/v1/messages"
)

// Endpoints are all of them: Envoy asks Sightline about these and Sightline reads nothing else.
var Endpoints = []string{Chat, Batch, Completions, Responses, Messages}

// Odd is a regular expression (RE2, whole match) for paths that servers may read otherwise than they are spelt: Canonical
// changes no other path in which Envoy has resolved the dots.
const Odd = `/(.*(%|//|\\).*|/.*|.*/)`

// Canonical is a path as servers behind us may read it: uvicorn decodes escapes once before it looks for a route
// (unquote, all releases), Starlette's routes match a path with the end of a line behind it ($ of Python's re), others read a backslash or several slashes as one, follow dots, or redirect from a path with a
// slash at its end to one without.
func Canonical(p string) string {
	if strings.IndexByte(p, '%') >= 0 {
		if plain, err := url.PathUnescape(p); err == nil { // else a % stays, which no endpoint has
			p = plain
		}
		p = strings.TrimSuffix(p, "\n")
	}
	p = strings.ReplaceAll(p, `\`, "/")
	if strings.HasSuffix(p, "/") || strings.Contains(p, "//") || strings.Contains(p, "/.") {
		p = path.Clean(p)
	}
	return p
}

// IsEndpoint reports whether a canonical path is one of the Endpoints.
func IsEndpoint(path string) bool { return slices.Contains(Endpoints, path) }
