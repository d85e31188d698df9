package extproc

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/router"
)

// script is a stream without a network: the incoming messages, and the answers.
type script struct {
	grpc.ServerStream
	ctx     context.Context
	come    []*extprocv3.ProcessingRequest
	asked   string   // the message received last, by its kind
	answers []string // their kinds, each after the message that came before it
	broken  error
}

func (s *script) Context() context.Context                  { return s.ctx }
func (*script) Send(*extprocv3.ProcessingResponse) error    { return nil }
func (*script) Recv() (*extprocv3.ProcessingRequest, error) { return nil, io.EOF }
func name(request, response any) (of, answer string) {
	cut := func(v any) string {
		_, kind, _ := strings.Cut(fmt.Sprintf("%T", v), "ing")
		_, kind, _ = strings.Cut(kind, "_")
		return kind
	}
	return cut(request), cut(response)
}

func (s *script) RecvMsg(m any) error {
	if len(s.come) == 0 {
		return io.EOF
	}
	wire, err := proto.Marshal(s.come[0])
	if err != nil {
		return err
	}
	s.asked, _ = name(s.come[0].GetRequest(), nil)
	s.come = s.come[1:]
	return codec{}.Unmarshal(cut(wire, 7), m)
}

func (s *script) SendMsg(m any) error {
	var a extprocv3.ProcessingResponse
	wire, err := codec{}.Marshal(m)
	if err == nil {
		err = proto.Unmarshal(wire.Materialize(), &a)
	}
	if err != nil {
		s.broken = err
	}
	_, kind := name(nil, a.GetResponse())
	s.answers = append(s.answers, s.asked+">"+kind)
	return nil
}

// orders returns the messages that a byte of FuzzOrders stands for.
func orders(text string) []*extprocv3.ProcessingRequest {
	whole := headersMsg(nil, true, chat()...)
	headers := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}}}}
	return []*extprocv3.ProcessingRequest{
		headersMsg(&buffered, false, chat()...), headersMsg(&duplexed, false, chat()...),
		headersMsg(nil, false, chat(":path", "/v1/responses")...), whole,
		headersMsg(&duplexed, false, ":method", "GET", ":path", "/v1/models"), headersMsg(nil, false, chat("content-encoding", "br")...),
		bodyMsg(text, true), bodyMsg(text, false), bodyMsg("", true),
		{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(text)}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}},
		{},
	}
}

// FuzzOrders checks that, in whatever order ext_proc messages come, the stream ends with OK, nothing panics, no body stays
// counted, and no answer is for another phase than Envoy has sent (which would break the stream); and that, if no body may pass
// unread, a stream that began with a request is answered.
func FuzzOrders(f *testing.F) {
	for _, s := range []string{"\x00\x06", "\x01\x07\x07\x06", "\x01\x07\x09", "\x02\x06\x0a\x0b\x0c", "\x01\x09\x0a\x0c\x0d",
		"\x00\x00", "\x06", "\x0e", "\x00\x07\x06", "\x03", "\x04\x06\x0a", "\x05\x06"} {
		for how := range byte(4) {
			f.Add([]byte(s), "{\"model\":\"m\"}", how)
		}
	}
	core, logs := observer.New(zap.ErrorLevel)
	var servers [2]*Server // one that lets unread bodies pass, and one that refuses them
	for i := range servers {
		var err error
		servers[i], err = New(always(pick), func(router.Outcome) {}, Options{MaxBody: 1 << 10, RefuseUnread: i > 0, Log: zap.New(core)})
		if err != nil {
			f.Fatal(err)
		}
		servers[i].lingers = 0
		defer servers[i].grpc.Stop()
	}
	f.Fuzz(func(t *testing.T, order []byte, text string, how byte) {
		if len(order) > 32 || len(text) > 1<<10 {
			return
		}
		server, md := servers[how&1], metadata.MD{}
		if how&2 != 0 {
			md = metadata.Pairs(keyMode, "epp")
		}
		s := &script{ctx: metadata.NewIncomingContext(t.Context(), md)}
		all := orders(text)
		for _, b := range order {
			s.come = append(s.come, all[int(b)%len(all)])
		}
		first := len(s.come) > 0 && s.come[0].GetRequestHeaders() != nil
		if err := server.Process(s); err != nil || s.broken != nil {
			t.Fatalf("got %v %v, want no error, no error", err, s.broken)
		}
		if panics := logs.FilterMessageSnippet("panic").All(); len(panics) > 0 {
			t.Fatalf("%v: got %d, want 0", panics[0].ContextMap(), len(panics))
		}
		if n := server.bodyBytes.Taken(); n != 0 {
			t.Fatalf("%d bytes stay counted, want 0", n)
		}
		if server.opt.RefuseUnread && first && len(s.answers) == 0 {
			t.Fatal("a stream that began with a request ended without an answer, want !server.opt.RefuseUnread or !first or " +
				"len(s.answers) != 0")
		}
		for i, a := range s.answers {
			asked, kind, _ := strings.Cut(a, ">")
			// What is answered at the end of a full-duplex body answers all messages before it: headers, pieces, trailers.
			request := strings.HasPrefix(asked, "Request") && strings.HasPrefix(kind, "Request")
			if kind != asked && kind != "ImmediateResponse" && !request {
				t.Fatalf(`answer %d of %q, want kind == %v or kind == "ImmediateResponse" or request`, i, s.answers, asked)
			}
		}
	})
}

// FuzzGate checks that a request with a body for an endpoint, however its path is written, is never taken for one that is not
// ours, and that a readable one is JSON by its type, not encoded and not too long.
func FuzzGate(f *testing.F) {
	for _, h := range []string{":method: POST\n:path: /v1/chat/completions\ncontent-type: application/json",
		":method: POST\n:path: //v1/%63ompletions/?a=/../b\ncontent-length: 99999999999999999999",
		":method: POST\n:path: /v1/messages\ncontent-type: text/plain; x=application/json\ncontent-type: application/json",
		":method: POST\n:path: /v1/responses\ncontent-encoding: identity, gzip",
		":method: POST\n:path: /v1/chat/completions\nx-tenant: a\nx-tenant: b"} {
		f.Add(h, false)
	}
	tenants := &Tenants{Header: "x-tenant"}
	f.Fuzz(func(t *testing.T, lines string, end bool) {
		var list []*corev3.HeaderValue
		method, asked, types, encodings := "", "", []string(nil), ""
		for line := range strings.SplitSeq(lines, "\n") {
			key, v, _ := strings.Cut(line, ": ")
			list = append(list, &corev3.HeaderValue{Key: key, RawValue: []byte(v)})
			switch key {
			case ":method":
				method = v
			case ":path":
				asked = v
			case "content-type":
				types = append(types, v)
			case "content-encoding":
				encodings += v
			}
		}
		h := readHead(list, end, tenants.Header)
		verdict, reason := h.judge(1<<20, tenants)
		if _, known := refusals[reason]; verdict == unreadable && !known {
			t.Fatalf("got the refusal %q without an answer, want one of refusals", reason)
		}
		plain, _, _ := strings.Cut(asked, "?")
		if p, err := url.PathUnescape(plain); err == nil && method == "POST" && !end && verdict == notOurs &&
			denied.IsEndpoint(path.Clean(strings.TrimSuffix(p, "\n"))) {
			t.Fatalf("%q: got %q (%s), want a prompt's endpoint to be ours", asked, verdict, reason)
		}
		if verdict != readable {
			return
		}
		for _, v := range types {
			if !strings.Contains(strings.ToLower(v), "json") {
				t.Fatalf(`a body of type %q is read, want "json" in strings.ToLower(v)`, v)
			}
		}
		if strings.Trim(strings.ReplaceAll(strings.ToLower(encodings), "identity", ""), " ,\t\r\v\f") != "" &&
			!strings.ContainsAny(encodings, "\u0085\u00a0\u2000\u3000") || h.contentLength > 1<<20 {
			t.Fatalf("encoding %q, length %d, want strings.Trim(strings.ReplaceAll(strings.ToLower(encodings), \"identity\", "+
				"\"\"), \" ,\\t\\r\\v\\f\") == \"\" or strings.ContainsAny(encodings, \"\\u0085\\u00a0\\u2000\\u3000\"), "+
				"h.contentLength <= 1<<20", encodings, h.contentLength)
		}
	})
}

// readOf is what logEntry reads of an entry.
func readOf(e *accessv3.HTTPAccessLogEntry) *accessv3.HTTPAccessLogEntry {
	c := e.GetCommonProperties()
	return &accessv3.HTTPAccessLogEntry{
		CommonProperties: &accessv3.AccessLogCommon{AccessLogType: c.GetAccessLogType(), UpstreamRemoteAddress: c.GetUpstreamRemoteAddress(),
			ResponseFlags: c.GetResponseFlags(), TimeToFirstUpstreamRxByte: c.GetTimeToFirstUpstreamRxByte(),
			Metadata: &corev3.Metadata{TypedFilterMetadata: c.GetMetadata().GetTypedFilterMetadata()}},
		Request: &accessv3.HTTPRequestProperties{RequestHeaders: e.GetRequest().GetRequestHeaders()},
		Response: &accessv3.HTTPResponseProperties{ResponseCode: e.GetResponse().GetResponseCode(),
			ResponseCodeDetails: e.GetResponse().GetResponseCodeDetails()},
	}
}

// FuzzAccessLog checks that no entry makes its reader panic, that no outcome has an impossible number, and that what the codec passes
// on of an entry is what protobuf reads.
func FuzzAccessLog(f *testing.F) {
	for _, e := range []proto.Message{entry(start, "A", worker, 0), entry(ready, "A", worker, 0),
		entry(ended, "A", worker, 200), entry(upEnd, "", "", 0), full(f)} {
		f.Add(wireOf(f, e))
	}
	s, err := New(always(pick), func(o router.Outcome) {
		if len(o.ID) > maxID || o.ID == "" {
			panic("an id of no decision")
		}
	}, Options{})
	if err != nil {
		f.Fatal(err)
	}
	defer s.grpc.Stop()
	f.Fuzz(func(t *testing.T, wire []byte) {
		e := entry(ready, "", "", 0)
		if proto.Unmarshal(wire, e) != nil {
			return
		}
		s.logEntry(1, e)
		entries := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), wire)
		all := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), entries)
		var m accesslogv3.StreamAccessLogsMessage
		err := codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(all)}, &m)
		if err != nil || len(m.GetHttpLogs().GetLogEntry()) != 1 || !proto.Equal(readOf(e), readOf(m.GetHttpLogs().LogEntry[0])) {
			t.Fatalf("%v; passed on: %v, want %v", err, &m, readOf(e))
		}
	})
}

// full is an entry with every field that is read, and some that are not.
func full(f *testing.F) *accessv3.HTTPAccessLogEntry {
	e := entry(ended, "A", worker, 200)
	e.Response.ResponseCodeDetails, e.Response.ResponseHeadersBytes = "via_upstream", 300
	e.Request.Path, e.Request.UserAgent = "/v1/chat/completions", "curl"
	c := e.CommonProperties
	c.StreamId, c.Duration, c.ResponseFlags = "1", durationpb.New(time.Second), &accessv3.ResponseFlags{UpstreamRemoteReset: true}
	packed, err := anypb.New(&aiv3.TokenUsage{InputTokens: wrapperspb.UInt64(7)})
	ours, err2 := structpb.NewStruct(map[string]any{"id": "A", "prompt_tokens": 7})
	if err != nil || err2 != nil {
		f.Fatalf("got %v %v, want no error, no error", err, err2)
	}
	c.Metadata = &corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{tokenUsageKey: packed},
		FilterMetadata: map[string]*structpb.Struct{MetadataSpace: ours}}
	return e
}

// FuzzDiscovery checks that, whatever clusters an Envoy asks for, it is answered once for each.
func FuzzDiscovery(f *testing.F) {
	f.Add(wireOf(f, &discoveryv3.DiscoveryRequest{ResourceNames: []string{"all", "model/m", "model/", "x", "all"}}))
	workers := []Endpoint{{"10.0.0.1:8000", "m"}, {"a.name:1", "m"}}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var req discoveryv3.DiscoveryRequest
		if proto.Unmarshal(wire, &req) != nil {
			return
		}
		out, err := discovery(req.GetResourceNames(), workers, "1")
		if err != nil || len(out.GetResources()) != len(req.GetResourceNames()) {
			t.Fatalf("%d answers to %d names: %v, want no error, %d",
				len(out.GetResources()), len(req.GetResourceNames()), err, len(req.GetResourceNames()))
		}
	})
}
