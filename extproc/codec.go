package extproc

import (
	"strconv"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// How a body gets from the socket to the hash: the kernel copies it into the connection's read buffer (once), gRPC copies
// it from there into pooled 16 KB frame buffers (twice), and that is all. The stock codec copies twice more: it joins the
// frames into one buffer, and protobuf copies the body out of that.
//
// codec walks the protobuf tags of a ProcessingRequest over the frame buffers, keeps the body as a list of references
// into them, and hands the rest (a few hundred bytes) to protobuf as usual. Measured against the stock codec, a whole
// decision over a unix socket (BenchmarkDecision): 3.7 MB 0.57x the time, 0.05 MB instead of 3.9 MB allocated; 15 MB
// 0.57x; 4 KB 0.94x. Every other message takes the stock codec.
type codec struct{}

// Field numbers of envoy.service.ext_proc.v3 that the walk knows.
const (
	fieldRequestBody = 4 // ProcessingRequest.request_body, an HttpBody
	fieldFirstOneof  = 2 // ProcessingRequest.request: fields 2 to 7 exclude each other
	fieldLastOneof   = 7
	fieldBody        = 1 // HttpBody.body
)

// inbound is a ProcessingRequest whose request body stands aside.
type inbound struct {
	extprocv3.ProcessingRequest // everything but request_body.body, which is always empty here
	body                        mem.BufferSlice
}

// pieces lists the body's parts in order, never nil: a body of no bytes is still a body. They are valid until free.
func (in *inbound) pieces() [][]byte {
	p := make([][]byte, len(in.body))
	for i, b := range in.body {
		p[i] = b.ReadOnlyData()
	}
	return p
}

// free gives the body's buffers back to gRPC's pool. Nothing may read the pieces afterwards.
func (in *inbound) free() {
	in.body.Free()
	in.body = nil
}

// encoded is a message already in wire form: answers that never change are built once.
type encoded []byte

// edited is an answer that replaces the request body. The parts that stay are references into the received frames.
type edited struct {
	answer encoded         // a request_body answer without a body mutation
	body   mem.BufferSlice // the new body; gRPC frees it after sending
}

// piece is an answer that gives a part of a full-duplex request body back.
type piece struct {
	body mem.BufferSlice // gRPC frees it after sending
	last bool
}

// Name is gRPC's content-subtype: on the wire this is plain protobuf.
func (codec) Name() string { return grpcproto.Name }

func stock() encoding.CodecV2 { return encoding.GetCodecV2(grpcproto.Name) }

// Marshal encodes one message for gRPC.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case encoded:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	case *edited:
		return v.marshal(), nil
	case *piece:
		return v.marshal(), nil
	}
	return stock().Marshal(v)
}

// marshal leans on a rule of protobuf: a message field that occurs twice is merged. So the body's new length and its
// mutation follow the answer as further occurrences of the same field, the body's bytes by reference.
func (e *edited) marshal() mem.BufferSlice {
	var length mutation
	length.set("content-length", strconv.Itoa(e.body.Len()))
	head := append(nested(e.answer, len(length), fieldBodyResponse, fieldCommon, fieldHeaderMutation), length...)
	head = nested(head, e.body.Len(), fieldBodyResponse, fieldCommon, fieldBodyMutation, fieldMutationsBody)
	return append(mem.BufferSlice{mem.SliceBuffer(head)}, e.body...)
}

func (p *piece) marshal() mem.BufferSlice {
	end := protowire.AppendVarint(protowire.AppendTag(nil, fieldStreamedEnd, protowire.VarintType), protowire.EncodeBool(p.last))
	n := p.body.Len()
	inner := protowire.AppendVarint(protowire.AppendTag(end, fieldStreamedBody, protowire.BytesType), uint64(n))
	head := nested(nil, len(inner)+n, fieldBodyResponse, fieldCommon, fieldBodyMutation, fieldStreamed)
	return append(mem.BufferSlice{mem.SliceBuffer(append(head, inner...))}, p.body...)
}

// Unmarshal decodes one message; data is freed by gRPC afterwards, so an inbound body takes its own references.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inbound)
	if !ok {
		return stock().Unmarshal(data, v)
	}
	in.free()
	w := walker{bufs: data}
	rest, ok := w.request(in)
	if ok {
		return proto.Unmarshal(rest, &in.ProcessingRequest)
	}
	// Cut short, or a form of field that nobody writes: let protobuf itself say what it thinks of it.
	in.free()
	if err := stock().Unmarshal(data, &in.ProcessingRequest); err != nil {
		return err
	}
	if b := in.GetRequestBody(); len(b.GetBody()) > 0 {
		in.body = mem.BufferSlice{mem.SliceBuffer(b.Body)}
		b.Body = nil
	}
	return nil
}

// walker reads a protobuf message that lies in several buffers.
type walker struct {
	bufs mem.BufferSlice
	at   int // next byte of bufs[0]
}

// request separates a ProcessingRequest into its body (into in.body) and the rest. False: not in the expected form.
func (w *walker) request(in *inbound) (rest []byte, ok bool) {
	var inner []byte
	for left := w.bufs.Len(); left > 0; {
		num, typ, n, ok := w.tag()
		if left -= n; !ok || left < 0 {
			return nil, false
		}
		if num != fieldRequestBody || typ != protowire.BytesType {
			if num >= fieldFirstOneof && num <= fieldLastOneof && typ == protowire.BytesType {
				in.free() // another member of the oneof replaces the body
			}
			if rest, n, ok = w.copyField(rest, num, typ, left); !ok {
				return nil, false
			}
			left -= n
			continue
		}
		size, n, ok := w.varint()
		if left -= n; !ok || left < 0 || size > uint64(left) {
			return nil, false
		}
		left -= int(size)
		if inner, ok = w.httpBody(in, inner[:0], int(size)); !ok {
			return nil, false
		}
		rest = protowire.AppendTag(rest, fieldRequestBody, protowire.BytesType)
		rest = protowire.AppendBytes(rest, inner)
	}
	return rest, true
}

// httpBody does the same for the HttpBody inside, of left bytes.
func (w *walker) httpBody(in *inbound, rest []byte, left int) ([]byte, bool) {
	for left > 0 {
		num, typ, n, ok := w.tag()
		if left -= n; !ok || left < 0 {
			return nil, false
		}
		if num != fieldBody || typ != protowire.BytesType {
			if rest, n, ok = w.copyField(rest, num, typ, left); !ok {
				return nil, false
			}
			left -= n
			continue
		}
		size, n, ok := w.varint()
		if left -= n; !ok || left < 0 || size > uint64(left) {
			return nil, false
		}
		left -= int(size)
		in.free() // the last occurrence counts
		in.body = w.take(int(size))
	}
	return rest, true
}

// tag reads a field's tag; n is its length in bytes.
func (w *walker) tag() (num protowire.Number, typ protowire.Type, n int, ok bool) {
	v, n, ok := w.varint()
	if !ok {
		return 0, 0, n, false
	}
	num, typ = protowire.DecodeTag(v)
	return num, typ, n, num >= protowire.MinValidNumber
}

// copyField appends a field whose tag was just read, tag included, to dst. Values longer than left are refused.
func (w *walker) copyField(dst []byte, num protowire.Number, typ protowire.Type, left int) (out []byte, n int, ok bool) {
	dst = protowire.AppendTag(dst, num, typ)
	switch typ {
	case protowire.VarintType:
		v, n, ok := w.varint()
		return protowire.AppendVarint(dst, v), n, ok && n <= left
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	case protowire.BytesType:
		size, m, ok := w.varint()
		if !ok || m > left || size > uint64(left-m) {
			return nil, 0, false
		}
		dst = protowire.AppendVarint(dst, size)
		return w.copy(dst, int(size)), m + int(size), true
	default: // groups: proto2 only
		return nil, 0, false
	}
	if n > left {
		return nil, 0, false
	}
	return w.copy(dst, n), n, true
}

// varint reads one varint of n bytes.
func (w *walker) varint() (v uint64, n int, ok bool) {
	for shift := 0; shift < 64; shift += 7 {
		for len(w.bufs) > 0 && w.at == w.bufs[0].Len() {
			w.bufs, w.at = w.bufs[1:], 0
		}
		if len(w.bufs) == 0 {
			return 0, n, false
		}
		b := w.bufs[0].ReadOnlyData()[w.at]
		w.at++
		n++
		if shift == 63 && b > 1 {
			return 0, n, false // more than 64 bits
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, n, true
		}
	}
	return 0, n, false
}

// copy appends the next n bytes to dst. The caller has checked that they are there.
func (w *walker) copy(dst []byte, n int) []byte {
	for n > 0 {
		chunk := w.bufs[0].ReadOnlyData()[w.at:]
		chunk = chunk[:min(n, len(chunk))]
		dst = append(dst, chunk...)
		w.advance(len(chunk))
		n -= len(chunk)
	}
	return dst
}

// take references the next n bytes. The caller has checked that they are there, and frees the result.
func (w *walker) take(n int) mem.BufferSlice {
	var out mem.BufferSlice
	for n > 0 {
		size := min(n, w.bufs[0].Len()-w.at)
		if size > 0 {
			if out == nil {
				out = make(mem.BufferSlice, 0, len(w.bufs))
			}
			out = append(out, w.bufs[0].Slice(w.at, w.at+size))
		}
		w.advance(size)
		n -= size
	}
	return out
}

func (w *walker) advance(n int) {
	w.at += n
	for len(w.bufs) > 0 && w.at == w.bufs[0].Len() {
		w.bufs, w.at = w.bufs[1:], 0
	}
}
