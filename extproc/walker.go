package extproc

import (
	"fmt"
	"io"

	"google.golang.org/grpc/mem"

	"github.com/sightline-router/sightline/router"
)

// walker iterates over bytes that lie in several buffers, without joining them. What take returns are additional references to
// those buffers, which must be freed as well.
type walker struct {
	bufs mem.BufferSlice
	at   int // offset of the next byte in bufs[0]
	left int // remaining bytes
}

func walk(bufs mem.BufferSlice) *walker { return &walker{bufs: bufs, left: bufs.Len()} }

// step advances by at most n bytes within one buffer, and returns their position. At least one byte must be left.
func (w *walker) step(n int) (b mem.Buffer, from, to int) {
	for w.at == w.bufs[0].Len() {
		w.bufs, w.at = w.bufs[1:], 0
	}
	b, from = w.bufs[0], w.at
	to = min(from+n, b.Len())
	w.at, w.left = to, w.left-(to-from)
	return b, from, to
}

// ReadByte implements io.ByteReader for binary.ReadUvarint.
func (w *walker) ReadByte() (byte, error) {
	if w.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	b, at, _ := w.step(1)
	return b.ReadOnlyData()[at], nil
}

// copy appends the next n bytes, which must exist.
func (w *walker) copy(dst []byte, n int) []byte {
	for n > 0 {
		b, from, to := w.step(n)
		dst = append(dst, b.ReadOnlyData()[from:to]...)
		n -= to - from
	}
	return dst
}

// take appends references to the next n bytes, which must exist.
func (w *walker) take(dst mem.BufferSlice, n int) mem.BufferSlice {
	for n > 0 {
		b, from, to := w.step(n)
		dst = append(dst, b.Slice(from, to))
		n -= to - from
	}
	return dst
}

// skip skips the next n bytes, which must exist.
func (w *walker) skip(n int) {
	for n > 0 {
		_, from, to := w.step(n)
		n -= to - from
	}
}

// splice applies edits to a body without copying the unchanged parts: the result holds its own references to the received
// buffers, so both must be freed.
func splice(body mem.BufferSlice, edits []router.Edit) (mem.BufferSlice, error) {
	w, at, size := walk(body), 0, body.Len()
	out := make(mem.BufferSlice, 0, len(body)+2*len(edits))
	for i, e := range edits {
		if e.From < at || e.To < e.From || e.To > size {
			out.Free()
			return nil, fmt.Errorf("edit %d replaces bytes %d to %d: want edits in order, without overlap, inside a body of %d bytes",
				i, e.From, e.To, size)
		}
		out = w.take(out, e.From-at)
		w.skip(e.To - e.From)
		if len(e.Text) > 0 {
			out = append(out, mem.SliceBuffer(e.Text))
		}
		at = e.To
	}
	return w.take(out, w.left), nil
}
