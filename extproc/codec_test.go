package extproc

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// cut splits wire bytes into buffers of size bytes, as HTTP/2 frames do.
func cut(wire []byte, size int) mem.BufferSlice {
	var bufs mem.BufferSlice
	for len(wire) > size {
		bufs, wire = append(bufs, mem.SliceBuffer(wire[:size])), wire[size:]
	}
	return append(bufs, mem.SliceBuffer(wire))
}

// sameAsStock decodes wire bytes with our codec and with protobuf, and compares the results.
func sameAsStock(t *testing.T, wire []byte, size int) {
	t.Helper()
	var want extprocv3.ProcessingRequest
	wantErr := proto.Unmarshal(wire, &want)
	var got inbound
	gotErr := codec{}.Unmarshal(cut(wire, size), &got)
	if (wantErr == nil) != (gotErr == nil) {
		t.Fatalf("cut at %d: got error %v, want what protobuf says: %v", size, gotErr, wantErr)
	}
	if wantErr != nil {
		return
	}
	body := []byte{}
	if b := want.GetRequestBody(); b != nil {
		body, b.Body = b.Body, nil
	}
	if g := bytes.Join(pieces(got.body), nil); !bytes.Equal(g, body) {
		t.Fatalf("cut at %d: body of %d bytes, want %d", size, len(g), len(body))
	}
	if b := got.GetRequestBody(); len(b.GetBody()) > 0 {
		t.Fatalf("cut at %d: got %d bytes of the body in the message too, want none", size, len(b.GetBody()))
	}
	for _, m := range []*extprocv3.ProcessingRequest{&want, &got.ProcessingRequest} { // unknown fields may be encoded differently
		m.ProtoReflect().SetUnknown(nil)
		if b := m.GetRequestBody(); b != nil {
			b.ProtoReflect().SetUnknown(nil)
		}
	}
	if !proto.Equal(&want, &got.ProcessingRequest) {
		t.Fatalf("cut at %d:\n got %v\nwant %v", size, &got.ProcessingRequest, &want)
	}
	got.free()
}

func wireOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func field(num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), value)
}

func samples(t testing.TB) map[string][]byte {
	attrs, err := structpb.NewStruct(map[string]any{"source.address": "10.0.0.1:5", "n": 3.5})
	if err != nil {
		t.Fatal(err)
	}
	body := wireOf(t, &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(`{"model":"m","messages":[]}`),
			EndOfStream: true}},
		Attributes:      map[string]*structpb.Struct{"envoy.filters.http.ext_proc": attrs},
		ProtocolConfig:  &extprocv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_BUFFERED},
		MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"a": attrs}},
	})
	headers := wireOf(t,
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":path", RawValue: []byte("/v1/models")}}}}}})
	eos := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	return map[string][]byte{
		"empty":   nil,
		"headers": headers,
		"body":    body,
		"empty body": wireOf(t,
			&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{EndOfStream: true}}}),
		"end_of_stream first":       field(4, append(bytes.Clone(eos), field(1, []byte("abc"))...)),
		"body twice in one":         field(4, append(field(1, []byte("abc")), field(1, []byte("de"))...)),
		"body in two, merged":       append(field(4, field(1, []byte("abc"))), field(4, eos)...),
		"body, then headers":        append(bytes.Clone(body), headers...),
		"headers, then body":        append(bytes.Clone(headers), body...),
		"body, headers, empty body": append(append(bytes.Clone(body), headers...), field(4, eos)...),
		"unknown fields": append(append(field(99, []byte("x")), body...),
			protowire.AppendFixed64(protowire.AppendTag(nil, 98, protowire.Fixed64Type), 7)...),
		"body as varint":        protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 7),
		"inner body as fixed32": field(4, protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), 7)),
		"group": append(protowire.AppendTag(protowire.AppendTag(nil, 50, protowire.StartGroupType), 50,
			protowire.EndGroupType), body...),
		"cut short":       body[:len(body)/2],
		"length too long": {0x22, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x0a},
		"endless varint":  bytes.Repeat([]byte{0xff}, 20),
		"field number 0":  {0x00, 0x01},
	}
}

func TestCodecReadsWhatProtobufReads(t *testing.T) {
	for name, wire := range samples(t) {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(wire)+1; size++ {
				sameAsStock(t, wire, size)
			}
		})
	}
}

func FuzzInbound(f *testing.F) {
	for _, wire := range samples(f) {
		f.Add(wire, 3)
		f.Add(wire, 1<<14)
	}
	f.Fuzz(func(t *testing.T, wire []byte, size int) {
		sameAsStock(t, wire, max(size, 1))
	})
}

func TestBodyIsNotCopied(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 100_000)
	wire := wireOf(t,
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body}}})
	var in inbound
	if err := (codec{}).Unmarshal(cut(wire, 16384), &in); err != nil {
		t.Fatal(err)
	}
	if n := len(pieces(in.body)); n != 7 {
		t.Errorf("%d pieces, want 7", n)
	}
	at := bytes.IndexByte(wire, 'x')
	wire[at] = 'y' // visible through the reference
	if got := pieces(in.body)[0][0]; got != 'y' {
		t.Errorf("first byte %q, want a reference into the received buffer", got)
	}
}

// TestBodyHoldsItsBuffers checks that a received buffer returns to its pool only after the body that references it was freed.
func TestBodyHoldsItsBuffers(t *testing.T) {
	pool := &countingPool{}
	wire := wireOf(t,
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: make([]byte,
			40_000)}}})
	var bufs mem.BufferSlice
	for _, b := range cut(wire, 16384) {
		data := bytes.Clone(b.ReadOnlyData())
		bufs = append(bufs, mem.NewBuffer(&data, pool))
	}
	var in inbound
	if err := (codec{}).Unmarshal(bufs, &in); err != nil {
		t.Fatal(err)
	}
	bufs.Free() // as gRPC does after Unmarshal
	if pool.back != 0 {
		t.Fatalf("%d buffers went back while the body is in use, want 0", pool.back)
	}
	in.free()
	if pool.back != len(bufs) {
		t.Fatalf("%d buffers went back, want %d", pool.back, len(bufs))
	}
}

type countingPool struct{ back int }

func (p *countingPool) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p *countingPool) Put(*[]byte)       { p.back++ }
