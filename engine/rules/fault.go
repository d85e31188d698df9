package rules

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"

	"github.com/sightline-router/sightline/internal/guard"
)

// Fault is the kind of what keeps a server from answering as a worker does, in a word or two: log, metrics, page and doctor decide by it.
// The number of a status is one too. A Fault is an error, where no more is known.
type Fault string

// The faults.
const (
	Refused    Fault = "refused" // nothing listens there
	Timeout    Fault = "timeout"
	Unreadable Fault = "unreadable" // an answer that no engine gives, which is not quoted
	Page       Fault = "a page of HTML"
	Key        Fault = "wants a key"
	TLS        Fault = "speaks TLS"
	HTTP2      Fault = "speaks HTTP/2 alone"
	NoHTTP     Fault = "speaks no HTTP"
	NotFound   Fault = "404"
	Unresolved Fault = "name does not resolve"
	BrokenOff  Fault = "broken off" // an answer that ends too early
	OtherRanks Fault = "other ranks"
	Broken     Fault = "broken" // anything else
)

// faults has what is said about a fault, and what mends it whoever sees it.
var faults = map[Fault]struct{ says, fix string }{
	Unreadable: {"an answer that is not in the engine's format", ""},
	Page:       {PageHint, ownPort},
	Key:        {KeyHint, "worker_access: {api_key_file: FILE}, which holds what the worker was started with as --api-key"},
	TLS: {"it speaks TLS: worker_access.ca, the PEM file of its certificate's authority",
		"worker_access: {ca: FILE}, the PEM file of the authority of the workers' certificates, and envoy.worker_tls"},
	HTTP2:    {"it speaks HTTP/2 alone", "start it with HTTP/1.1, which Envoy speaks to workers too"},
	NoHTTP:   {"it speaks no HTTP: addr is the port of its API, not of its events", ownPort},
	NotFound: {"status 404", ownPort},
	Unresolved: {"its name does not resolve here", "addr: a name that this machine resolves (Kubernetes: NAME.NAMESPACE.svc), or an " +
		"address; see its DNS server"},
	OtherRanks: {"its page is of other data-parallel ranks than the worker is configured to have: ranks",
		"ranks: as many as this server itself has (vLLM: --data-parallel-size-local)"},
	BrokenOff: {"its answer is broken off in the middle", "see its log, and that of a proxy before it: a crash, a limit of time or size"},
}

const (
	// PageHint says what a page of HTML means.
	PageHint = "a page of HTML: a proxy or another program answers in the worker's place"
	// KeyHint says what to do about a worker that wants a key.
	KeyHint = "the worker wants a key, or another one: worker_access.api_key_file"

	ownPort = "addr: the engine's own port, of its OpenAI-style API, not that of a proxy, of its events or of another program"
)

// Error implements error.
func (f Fault) Error() string {
	if one, ok := faults[f]; ok {
		return one.says
	}
	return string(f)
}

// Fix returns what mends a fault; "": that depends on more.
func (f Fault) Fix() string { return faults[f].fix }

// FaultOf returns the kind of an error of asking a server.
func FaultOf(err error) Fault {
	fault, is := errors.AsType[Fault](err)
	status, answered := errors.AsType[*StatusError](err)
	var timeout net.Error
	var unresolved *net.DNSError
	var panicked *guard.Panic
	switch {
	case is:
		return fault
	case answered && status.Page:
		return Page
	case answered && WantsKey(status.Status):
		return Key
	case answered:
		return Fault(strconv.Itoa(status.Status))
	case errors.As(err, &unresolved):
		return Unresolved
	case errors.As(err, &panicked):
		return Unreadable
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	}
	return Broken
}

// WantsKey reports whether a status means that a key is missing or is not the right one.
func WantsKey(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}
