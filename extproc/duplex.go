package extproc

import (
	"net/http"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// In FULL_DUPLEX_STREAMED mode Envoy sends the body as it arrives and forwards only what is returned to it. The answer to the
// headers lets the request go on, so it carries the decision and is sent after the whole body was received.
//
//	headers, chunk, chunk, chunk(end) ─▶ decision ─▶ H(decision) B B B(end)
//	headers, chunk, trailers          ─▶ decision ─▶ H(decision) B T
//	headers, trailers                 ─▶ decision ─▶ H(decision) T
//
// A body that turns out too large, or for which there is no room, is refused.

// pieceSize limits one part of a returned body, in bytes: Envoy accepts no message of more than 64 KiB.
const pieceSize = 62000

// fullDuplex collects the body, decides, and returns the body. It returns false if nothing more is to be sent on this stream.
func (c *call) fullDuplex() bool {
	var come pile
	defer func() { come.whole.Free() }()
	trailers := false
	arrivedInTime := c.awaitBody()
	defer arrivedInTime()
	for !c.requestEnded {
		if !c.receive() {
			return false
		}
		switch {
		case c.in.GetRequestBody() != nil:
			come.add(c.in.body)
			c.in.body = nil
			c.requestEnded = c.in.GetRequestBody().GetEndOfStream()
			switch room := c.reserveBody(int64(come.size)); {
			case come.size > c.opt.MaxBody:
				return arrivedInTime() && c.refuseLate(http.StatusRequestEntityTooLarge, "too large", tooLong)
			case !room && !c.requestEnded:
				return arrivedInTime() && c.refuseLate(http.StatusServiceUnavailable, busy, tooBusy)
			}
		case c.in.GetRequestTrailers() != nil:
			trailers, c.requestEnded = true, true
		default:
			c.complain("unexpected message", "Envoy sent something else than the request's body or trailers after its headers; set "+
				"request_trailer_mode: SEND with request_body_mode: FULL_DUPLEX_STREAMED")
			return false
		}
	}
	if !arrivedInTime() {
		return false
	}
	body := come.all()
	arrived := time.Now()
	d := c.decideBody(pieces(body), arrived)
	back, err := splice(body, d.Edits)
	if err != nil {
		c.failed("edit", err)
		if c.opt.RefuseUnread {
			return false
		}
		back, _ = splice(body, nil)
	}
	if !c.answer(d, c.headersAnswer(d)) {
		back.Free()
		return false
	}
	if trailers && back.Len() == 0 { // there was no body to return
		back.Free()
		return c.send(requestTrailers)
	}
	if !c.returnBody(fieldBodyResponse, back, c.requestEnded && !trailers) {
		return false
	}
	return !trailers || c.send(requestTrailers)
}

// pile collects a body that comes in pieces. A client may send it byte by byte, and each piece keeps its HTTP/2 frame's buffer, of
// 256 bytes at least: so small pieces are joined. A body of one piece is not copied.
type pile struct {
	whole mem.BufferSlice
	tail  []byte // joined pieces that follow whole
	size  int    // bytes of both
}

const (
	smallPiece  = 4 << 10  // larger pieces are not copied
	pieceJoined = 16 << 10 // a joined piece ends here
)

// add takes a piece over.
func (p *pile) add(piece mem.BufferSlice) {
	n := piece.Len()
	p.size += n
	if n > smallPiece || len(p.whole) == 0 {
		p.whole = append(p.all(), piece...)
		return
	}
	p.tail = walk(piece).copy(p.tail, n)
	if len(p.tail) >= pieceJoined {
		p.all()
	}
	piece.Free()
}

// all returns the body so far; the pile keeps it.
func (p *pile) all() mem.BufferSlice {
	if len(p.tail) > 0 {
		p.whole, p.tail = append(p.whole, mem.SliceBuffer(p.tail)), nil
	}
	return p.whole
}

// refuseLate refuses a request of which a part has come.
func (c *call) refuseLate(code int, why, message string) bool {
	c.metrics.gate(unreadable, why)
	c.refuse(code, message)
	return false
}

// returnBody returns a body, or a part of one, in pieces, and frees it. phase says whether it is the request's or the response's,
// which ends with it if last is set.
func (c *call) returnBody(phase protowire.Number, body mem.BufferSlice, last bool) bool {
	defer body.Free()
	for w := walk(body); ; {
		part := w.take(nil, min(w.left, pieceSize))
		if !c.send(&piece{phase, part, last && w.left == 0}) {
			return false
		}
		if w.left == 0 {
			return true
		}
	}
}

// Answers without a decision, encoded: each is an empty message, which changes nothing.
var (
	requestBody      = encode(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{}})
	requestTrailers  = encode(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{}})
	responseHeaders  = encode(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{}})
	responseBody     = encode(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{}})
	responseTrailers = encode(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{}})
)
