package fetch

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/header"
)

// exchange asks the host once, conditionally if an answer is cached, and returns the entry now valid. Errors are *Error.
func (f *Fetcher) exchange(ctx context.Context, c fair.Client, t target, old *entry) (e *entry, err error) {
	h, err := f.hosts.acquire(ctx, c, t.host)
	if err != nil {
		return nil, err
	}
	began := f.cfg.now()
	h.begins(began)
	defer func() { h.release(c, began, f.cfg.now(), err) }()
	if !f.total.Take(ctx, c, 1, 1) {
		return nil, waitError(ctx, t.host)
	}
	defer f.total.Give(c, 1)

	if old != nil && (old.err != nil || old.facts.Bytes == 0) {
		old = nil
	}
	resp, err := f.ask(ctx, t, old)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // an unread body is dropped with its connection

	e = &entry{etag: validator(resp.Header.Get("ETag")), modified: validator(resp.Header.Get("Last-Modified")), full: t.full}
	e.fresh, e.stale = freshness(resp.Header, f.cfg.now())
	switch {
	case resp.StatusCode == http.StatusNotModified && old != nil:
		e.facts = old.facts
		e.etag, e.modified = cmp.Or(e.etag, old.etag), cmp.Or(e.modified, old.modified)
		f.stats.unchanged.Add(1)
		return e, nil
	case resp.StatusCode != http.StatusOK:
		return nil, &Error{Kind: Status, Host: t.host, Status: resp.StatusCode}
	case old != nil && unchanged(old, e, resp):
		e.facts = old.facts
		f.stats.unchanged.Add(1)
		return e, nil
	case resp.ContentLength > f.cfg.MaxBytes:
		return nil, &Error{Kind: TooLarge, Host: t.host}
	}
	err = f.read(ctx, c, resp, t.host, func(body []byte) error {
		f.stats.downloads.Add(1)
		if err := f.take(c, t, e, body); err != nil {
			return err
		}
		if e.err == nil && !cacheControl(resp.Header.Values("Cache-Control")).noStore {
			f.bytes.add(c, fair.ClientOf(t.host), e.facts.ID, body, weight(body))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// ask sends the request; old is the cached valid answer, or nil.
func (f *Fetcher) ask(ctx context.Context, t target, old *entry) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url.String(), nil)
	if err != nil {
		return nil, &Error{Kind: Refused, Host: t.host, Err: errScheme}
	}
	req.Header.Set("User-Agent", "sightline")
	req.Header.Set("Accept", "*/*")
	if old != nil && old.etag != "" {
		req.Header.Set("If-None-Match", old.etag)
	}
	if old != nil && old.modified != "" {
		req.Header.Set("If-Modified-Since", old.modified)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, failure(t.host, err)
	}
	return resp, nil
}

// take identifies the body and fills in the entry. An image of a format that is not read is identified by its bytes alone.
func (f *Fetcher) take(c fair.Client, t target, e *entry, body []byte) error {
	facts, bad := media.Identify(media.File(body))
	if header.KindOf(bad) == header.Unsupported {
		bad = nil
	}
	e.facts = facts
	switch {
	case bad != nil && t.signed: // it may be an error page about the signature
		return unreadable(t.host, bad)
	case bad != nil:
		e.err = unreadable(t.host, bad)
		if least := f.cfg.now().Add(missingFor); e.fresh.Before(least) {
			e.fresh = least
		}
	case f.cfg.Seen != nil:
		f.cfg.Seen(c, facts, body)
	}
	return nil
}

// unchanged accepts a full answer without reading it if it has the same strong ETag or, from hosts without ETags, the same date and
// length.
func unchanged(old, now *entry, resp *http.Response) bool {
	if old.etag != "" || now.etag != "" {
		return old.etag == now.etag && old.etag[0] == '"'
	}
	return old.modified != "" && old.modified == now.modified && !resp.Uncompressed && resp.ContentLength == old.facts.Bytes
}

// pieceBytes is the size of the buffers that collect a download. They are pooled, so a host that sends without end creates no
// garbage.
const pieceBytes = 256 << 10

var pieces = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

// read reads a body of at most MaxBytes and calls use with it, for bodies of no more than MaxBytes at once: only these are in memory
// twice. Memory grows with the bytes received, not with the announced length, and all unfinished downloads together stay below
// InFlightBytes.
func (f *Fetcher) read(ctx context.Context, c fair.Client, resp *http.Response, host string, use func(body []byte) error) (err error) {
	var gathered []*[pieceBytes]byte
	giveBack := func() {
		for _, p := range gathered {
			pieces.Put(p)
		}
		f.inFlight.Give(c, int64(len(gathered))*pieceBytes)
		gathered = nil
	}
	defer giveBack() // also where reading panics
	size := 0
	for err == nil {
		if !f.inFlight.TryTake(c, pieceBytes) {
			return &Error{Kind: Busy, Host: host}
		}
		p := pieces.Get().(*[pieceBytes]byte)
		gathered = append(gathered, p)
		for n, filled := 0, 0; err == nil && filled < len(p); filled += n {
			n, err = resp.Body.Read(p[filled:])
			size += n
			if int64(size) > f.cfg.MaxBytes {
				return &Error{Kind: TooLarge, Host: host}
			}
		}
	}
	if err != io.EOF {
		return failure(host, err)
	}
	if !f.processed.Take(ctx, c, int64(size), int64(size)) {
		return waitError(ctx, host)
	}
	defer f.processed.Give(c, int64(size))
	body := make([]byte, size)
	for i, p := range gathered {
		copy(body[i*pieceBytes:], p[:])
	}
	giveBack()
	return use(body)
}
