// Package denied lists what a client must not send to engines and to the routers in front of them, and the endpoints that accept
// it. One list serves Envoy's configuration, the gate that requests bodies, and the cleaning of bodies.
//
// The names are meant for routers and proxies. A client that could send them could choose a worker or a rank, make a worker take KV
// blocks from an address, or read other clients' images. Each entry names the reader, its release, and where its source has the
// name.
//
// Not listed are a priority in the body, cache_salt and session_id: they are part of the engines' public API and affect only the
// client's own requests, and priority has an effect only if an operator has enabled it.
package denied

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

// The paths whose body contains a prompt. All take a POST of one JSON object.
const (
	Chat        = "/v1/chat/completions"
	Batch       = "/v1/chat/completions/batch"
	Completions = "/v1/completions"
	Responses   = "/v1/responses"
	Messages    = "/v1/messages"
)

// Endpoints lists all of them: Envoy asks Sightline about these, and Sightline reads no others.
var Endpoints = []string{Chat, Batch, Completions, Responses, Messages}

// Odd is a regular expression (RE2, whole match) for paths that servers may read differently from how they are spelled: Canonical
// changes no other path whose dots Envoy has resolved.
const Odd = `/(.*(%|//|\\).*|/.*|.*/)`

// Canonical returns a path as the servers behind us may read it: uvicorn decodes escapes once before it looks up a route (unquote,
// all releases), Starlette's routes match a path that ends in a line break ($ of Python's re), others treat a backslash or several
// slashes as one slash, resolve dots, or redirect from a path with a trailing slash to the one without.
func Canonical(p string) string {
	if strings.IndexByte(p, '%') >= 0 {
		if plain, err := url.PathUnescape(p); err == nil { // otherwise a % stays, and no endpoint has one
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
