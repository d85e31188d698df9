package eppcheck

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"
)

type testCase struct {
	name string
	run  func(context.Context, *kit) error
}

var (
	duplexMode   = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	bufferedMode = modev3.ProcessingMode_BUFFERED
)

func cases() []testCase {
	list := []testCase{
		{"request without a body: endpoint in header and metadata", func(ctx context.Context, k *kit) error {
			return k.talk(ctx, &duplexMode, nil, func(x *exchange) { k.known = x.ask(request{bodiless: true}) })
		}},
		{"full duplex, one chunk", duplex(100)},
		{"full duplex, a chunk and an empty last one", duplex(100, 1<<30)},
		{"full duplex, many chunks", duplex(73_000, 5, 3000, 70_000)},
		{"full duplex, 200 kB in one chunk comes back in parts of 64 KiB at most", duplex(200_000)},
		{"full duplex, an empty chunk first", duplex(100, 0)},
		{"full duplex, body ended by trailers", withTrailers(true)},
		{"full duplex, trailers and no body", withTrailers(false)},
		{"buffered: an answer to the headers at once, endpoint with the body", buffered(&bufferedMode)},
		{"without protocol_config: as buffered", buffered(nil)},
	}
	for _, s := range []struct {
		name string
		hint func(string) any
	}{
		{"a list", func(e string) any { return []any{"203.0.113.9:1", e} }},
		{"a string with commas", func(e string) any { return "203.0.113.9:1," + e }},
		{"blanks and empty elements", func(e string) any { return " , 203.0.113.9:1 ,, " + e + " ," }},
		{"a string with commas in a list", func(e string) any { return []any{"203.0.113.9:1, " + e} }},
		{"an address without a port", func(e string) any { return []any{netip.MustParseAddrPort(e).Addr().String()} }},
		{"a list with IPv6 elements", func(e string) any { return []any{"[2001:db8::9]:1", "2001:db8::9", e} }},
		{"a string with IPv6 elements", func(e string) any { return "[2001:db8::9]:1,2001:db8::9, " + e }},
	} {
		list = append(list, testCase{"subset hint as " + s.name, inSubset(s.hint)})
	}
	return append(list,
		testCase{"subset hint without an eligible endpoint: 503", refused(true, []any{"203.0.113.9:1"})},
		testCase{"subset hint of IPv6 endpoints that are not there: 503", refused(true, "[2001:db8::9]:1,2001:db8::9")},
		testCase{"empty subset hint: 503", refused(true, []any{})},
		testCase{"subset hint's namespace without the key: any endpoint", func(ctx context.Context, k *kit) error {
			other := &structpb.Struct{Fields: map[string]*structpb.Value{"other": structpb.NewBoolValue(true)}}
			return k.talk(ctx, &duplexMode, other, func(x *exchange) { x.ask(request{bodiless: true}) })
		}},
		testCase{"a client's own endpoint header is not obeyed", func(ctx context.Context, k *kit) error {
			own := request{bodiless: true, headers: []string{endpoint, "203.0.113.9:1", endpoint, "203.0.113.9:2"}}
			return k.talk(ctx, &duplexMode, nil, func(x *exchange) {
				x.within(x.ask(own), func(e netip.AddrPort) bool { return e.Addr().String() != "203.0.113.9" })
			})
		}},
		testCase{"no eligible endpoint and a body: 503 after the body", refused(false, []any{"203.0.113.9:1"})},
		testCase{"response that names its endpoint, with body chunks", response(true)},
		testCase{"response that names no endpoint", response(false)},
		testCase{"gRPC health: liveness", healthy("liveness")},
		testCase{"gRPC health: readiness", healthy("readiness")},
		testCase{"gRPC health: envoy.service.ext_proc.v3.ExternalProcessor", healthy(extprocv3.ExternalProcessor_ServiceDesc.ServiceName)},
	)
}

// request describes the request of most cases.
type request struct {
	bodiless bool
	headers  []string
	chunks   []string // none: a small body in one chunk
}

func hint(v any) *structpb.Struct {
	value, err := structpb.NewValue(v)
	if err != nil { // a bug in this file
		value = structpb.NewNullValue()
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{subset: value}}
}

// ask sends a full-duplex request and checks everything on the request side: the endpoints, the body returned.
func (x *exchange) ask(r request) []netip.AddrPort {
	x.headers(r.bodiless, r.headers...)
	if !r.bodiless && len(r.chunks) == 0 {
		r.chunks = []string{x.body(100)}
	}
	for i, c := range r.chunks {
		x.chunk(c, i == len(r.chunks)-1)
	}
	a := x.recv("request headers")
	picked := x.pick(a, a.GetRequestHeaders().GetResponse().GetHeaderMutation())
	if !r.bodiless {
		x.bodyBack(strings.Join(r.chunks, ""), true)
	}
	return picked
}

// bodyBack reads parts until they are all of want, and checks where the end is marked.
func (x *exchange) bodyBack(want string, end bool) {
	got, ended := "", false
	for x.err == nil && !ended && (len(got) < len(want) || end) {
		s := x.recv("request body (streamed)").GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if len(s.GetBody()) > largest {
			x.fail("one part has %d bytes, want %d at most", len(s.GetBody()), largest)
		}
		got += string(s.GetBody())
		ended = s.GetEndOfStream()
		if !strings.HasPrefix(want, got) {
			x.fail("the body that came back differs within its first %d bytes", len(got))
		}
	}
	if len(got) != len(want) || ended != end {
		x.fail("%d bytes came back, end_of_stream %t; want %d, %t", len(got), ended, len(want), end)
	}
}

// duplex sends a prompt of n bytes in a body split at the given offsets; an offset past its end makes an empty last chunk.
func duplex(n int, cuts ...int) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		body, from := k.body(n), 0
		var chunks []string
		for _, to := range append(slices.Clone(cuts), len(body)) {
			to = min(to, len(body))
			chunks, from = append(chunks, body[from:to]), to
		}
		return k.talk(ctx, &duplexMode, nil, func(x *exchange) { x.ask(request{chunks: chunks}) })
	}
}

// withTrailers ends a request with trailers, after one chunk of body or none.
func withTrailers(chunk bool) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		return k.talk(ctx, &duplexMode, nil, func(x *exchange) {
			x.headers(false)
			body := ""
			if chunk {
				body = k.body(100)
				x.chunk(body, false)
			}
			x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
				RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap("x-check", "1")}}})
			a := x.recv("request headers")
			x.pick(a, a.GetRequestHeaders().GetResponse().GetHeaderMutation())
			x.bodyBack(body, false)
			x.recv("request trailers")
		})
	}
}

func buffered(mode *modev3.ProcessingMode_BodySendMode) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		return k.talk(ctx, mode, nil, func(x *exchange) {
			x.headers(false)
			x.recv("request headers") // a proxy sends the body only after this
			x.chunk(k.body(100), true)
			a := x.recv("request body (plain)")
			x.pick(a, a.GetRequestBody().GetResponse().GetHeaderMutation())
		})
	}
}

// within checks every endpoint of an answer.
func (x *exchange) within(picked []netip.AddrPort, ok func(netip.AddrPort) bool) {
	for _, e := range picked {
		if !ok(e) {
			x.fail("endpoint %s is not one of those allowed", e)
		}
	}
}

// inSubset allows one known endpoint, and one that no picker has.
func inSubset(form func(string) any) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		if len(k.known) == 0 {
			return errNotAsked
		}
		for _, one := range slices.Backward(k.known) {
			named := form(one.String())
			bare := !strings.Contains(fmt.Sprint(named), one.String()) // an address without a port: any of its ports
			if err := k.talk(ctx, &duplexMode, hint(named), func(x *exchange) {
				x.within(x.ask(request{bodiless: true}), func(e netip.AddrPort) bool { return e.Addr() == one.Addr() && (bare || e == one) })
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

func refused(bodiless bool, only any) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		return k.talk(ctx, &duplexMode, hint(only), func(x *exchange) {
			x.headers(bodiless)
			if !bodiless {
				x.chunk(k.body(100), true)
			}
			x.recv("immediate response 503")
		})
	}
}

// response runs the response side, with a full-duplex body if the endpoint is named.
func response(named bool) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		return k.talk(ctx, &duplexMode, nil, func(x *exchange) {
			picked := x.ask(request{})
			if x.err != nil {
				return
			}
			msg := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
				ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":status", "200"), EndOfStream: !named}}}
			if named {
				msg.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
					spaceLB: {Fields: map[string]*structpb.Value{served: structpb.NewStringValue(picked[0].String())}}}}
			}
			x.send(msg)
			x.recv("response headers")
			if named {
				x.responseBody("data: 1\n\n", false)
				x.responseBody("data: [DONE]\n\n", true)
			}
		})
	}
}

// responseBody sends a part of a response's body and checks that it comes back.
func (x *exchange) responseBody(part string, end bool) {
	x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(part), EndOfStream: end}}})
	s := x.recv("response body").GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
	if string(s.GetBody()) != part || s.GetEndOfStream() != end {
		x.fail("a response body with %q, end_of_stream %t; want %q, %t", s.GetBody(), s.GetEndOfStream(), part, end)
	}
}

func healthy(service string) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		r, err := healthpb.NewHealthClient(k.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err == nil && r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			err = fmt.Errorf("status %s, want SERVING", r.GetStatus())
		}
		return err
	}
}
