package fetch

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strconv"

	"code.dny.dev/ssrf"

	"github.com/sightline-router/sightline/internal/sockets"
	"github.com/sightline-router/sightline/media/header"
)

// Kind is why an image has no identity.
type Kind uint8

const (
	Budget      Kind = iota // the request's time is over; the download continues
	Refused                 // by rule: scheme, domain, address, port, redirects
	Status                  // the host answered with a status that is not 200 or 304
	TooLarge                // more than MaxBytes
	NotAnImage              // the bytes are not a readable image
	Unreachable             // DNS, connection, TLS, a truncated body
	Timeout                 // the download exceeded Timeout
	Busy                    // too many downloads are queued, or too many bytes in flight
	Open                    // the host's circuit breaker is open after repeated failures
	Closed                  // the Fetcher is closed
	Panicked                // a bug here in reading the body
	kinds
)

var kindNames = [kinds]string{"budget spent", "refused", "status", "too large", "not an image", "unreachable", "timeout", "busy",
	"circuit open", "closed", "internal error"}

func (k Kind) String() string { return kindNames[k] }

// Error is why an image was not fetched. It contains the host and nothing else of the URL.
type Error struct {
	Kind   Kind
	Host   string
	Status int   // of Kind Status
	Err    error // the cause, without URLs; may be nil
}

func (e *Error) Error() string {
	s := "fetch from " + strconv.Quote(e.Host) + ": " + e.why()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// why is the kind of failure, with the status if there is one. It has nothing of the URL.
func (e *Error) why() string {
	if e.Status != 0 {
		return e.Kind.String() + " " + strconv.Itoa(e.Status)
	}
	return e.Kind.String()
}

// lasting reports whether a failure concerns the URL, not the host's state.
func (e *Error) lasting() bool {
	switch e.Kind {
	case Refused, NotAnImage, TooLarge, Panicked:
		return true
	}
	return e.Kind == Status && e.Status < 500 && e.Status != 408 && e.Status != 429
}

var (
	errRedirects = errors.New("too many redirects")
	errDomain    = errors.New("host is not in allowed_domains")
	errScheme    = errors.New("not an http or https URL")
	errAddress   = errors.New("address is not public and not allowed")
	errShort     = errors.New("the body ends before its announced length")
)

// failure classifies the HTTP client's error. Its *url.Error contains the whole URL and is dropped; so is the text of errors that
// quote it.
func failure(host string, err error) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	e := &Error{Kind: Unreachable, Host: host}
	var op *net.OpError
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		e.Kind = Closed
	case sockets.Exhausted(err): // our own limit, whatever the host does
		e.Kind = Busy
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = Timeout
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, errAddress):
		e.Kind, e.Err = Refused, errAddress
	case errors.Is(err, ssrf.ErrProhibitedPort):
		e.Kind, e.Err = Refused, ssrf.ErrProhibitedPort
	case errors.Is(err, ssrf.ErrProhibitedNetwork):
		e.Kind, e.Err = Refused, ssrf.ErrProhibitedNetwork
	case errors.Is(err, errRedirects), errors.Is(err, errDomain), errors.Is(err, errScheme):
		e.Kind, e.Err = Refused, err
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Err = errShort
	case errors.As(err, &dns):
		e.Err = errors.New("name not resolved")
	case errors.As(err, &op):
		e.Err = errors.New(op.Op + " failed")
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Kind = Timeout
	default:
		e.Err = errors.New("HTTP or TLS error")
	}
	return e
}

// unreadable returns the error for bytes that are not an image.
func unreadable(host string, err error) *Error {
	if header.KindOf(err) == 0 {
		err = nil
	}
	return &Error{Kind: NotAnImage, Host: host, Err: err}
}
