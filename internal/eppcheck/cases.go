package eppcheck

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
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
			picked, err := k.ask(ctx, request{bodiless: true})
			k.known = picked
			return err
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
		testCase{"subset hint without an eligible endpoint: 503", refused(request{bodiless: true, hint: hint([]any{"203.0.113.9:1"})})},
		testCase{"subset hint of IPv6 endpoints that are not there: 503", refused(request{bodiless: true, hint: hint("[2001:db8::9]:1,2001:db8::9")})},
		testCase{"empty subset hint: 503", refused(request{bodiless: true, hint: hint([]any{})})},
		testCase{"subset hint's namespace without the key: any endpoint", func(ctx context.Context, k *kit) error {
			_, err := k.ask(ctx, request{bodiless: true, hint: &structpb.Struct{Fields: map[string]*structpb.Value{"other": structpb.NewBoolValue(true)}}})
			return err
		}},
		testCase{"a client's own endpoint header is not obeyed", func(ctx context.Context, k *kit) error {
			picked, err := k.ask(ctx, request{bodiless: true, headers: []string{endpoint, "203.0.113.9:1", endpoint, "203.0.113.9:2"}})
			return errors.Join(err, within(picked, func(e netip.AddrPort) bool { return e.Addr().String() != "203.0.113.9" }))
		}},
		testCase{"no eligible endpoint and a body: 503 after the body", refused(request{hint: hint([]any{"203.0.113.9:1"})})},
		testCase{"response that names its endpoint, with body chunks", response(true)},
		testCase{"response that names no endpoint", response(false)},
		testCase{"gRPC health: liveness", healthy("liveness")},
		testCase{"gRPC health: readiness", healthy("readiness")},
		testCase{"gRPC health: envoy.service.ext_proc.v3.ExternalProcessor", healthy(extprocv3.ExternalProcessor_ServiceDesc.ServiceName)},
	)
}

// request is what most cases send.
type request struct {
	bodiless bool
	headers  []string
	hint     *structpb.Struct
	chunks   []string // full duplex; none: a small body in one
}

func hint(v any) *structpb.Struct {
	value, err := structpb.NewValue(v)
	if err != nil { // a mistake in this file
		value = structpb.NewNullValue()
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{subset: value}}
}

// ask sends a full-duplex request and checks the whole of the request's way: the endpoints, the body given back.
func (k *kit) ask(ctx context.Context, r request) ([]netip.AddrPort, error) {
	x, err := k.open(ctx, &duplexMode, r.hint)
	if err != nil {
		return nil, err
	}
	defer x.cancel()
	return x.ask(r)
}

func (x *exchange) ask(r request) ([]netip.AddrPort, error) {
	if err := x.headers(r.bodiless, r.headers...); err != nil {
		return nil, err
	}
	if !r.bodiless && len(r.chunks) == 0 {
		r.chunks = []string{x.body(100)}
	}
	for i, c := range r.chunks {
		if err := x.chunk(c, i == len(r.chunks)-1); err != nil {
			return nil, err
		}
	}
	a, err := x.recv()
	if err != nil {
		return nil, err
	}
	if a.GetRequestHeaders() == nil {
		return nil, fmt.Errorf("first answer is %s, want request headers", kind(a))
	}
	picked, err := x.pick(a, a.GetRequestHeaders().GetResponse().GetHeaderMutation())
	if err != nil || r.bodiless {
		return picked, err
	}
	return picked, x.bodyBack(strings.Join(r.chunks, ""), true)
}

// bodyBack reads parts until they are all of want, and checks where the end is marked.
func (x *exchange) bodyBack(want string, end bool) error {
	got, ended := "", false
	for !ended && (len(got) < len(want) || end) {
		a, err := x.recv()
		if err != nil {
			return fmt.Errorf("after %d of %d body bytes: %w", len(got), len(want), err)
		}
		s := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil {
			return fmt.Errorf("after %d of %d body bytes: answer %s, want a request body with streamed_response", len(got), len(want), kind(a))
		}
		if len(s.GetBody()) > largest {
			return fmt.Errorf("one part has %d bytes, want %d at most", len(s.GetBody()), largest)
		}
		got += string(s.GetBody())
		ended = s.GetEndOfStream()
		if !strings.HasPrefix(want, got) {
			return fmt.Errorf("the body that came back differs within its first %d bytes", len(got))
		}
	}
	if len(got) != len(want) || ended != end {
		return fmt.Errorf("%d bytes came back, end_of_stream %t; want %d, %t", len(got), ended, len(want), end)
	}
	return nil
}

// duplex sends a prompt of n bytes in a body cut at the given offsets; a cut behind its end makes an empty last chunk.
func duplex(n int, cuts ...int) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		body, from := k.body(n), 0
		var chunks []string
		for _, to := range append(slices.Clone(cuts), len(body)) {
			to = min(to, len(body))
			chunks, from = append(chunks, body[from:to]), to
		}
		_, err := k.ask(ctx, request{chunks: chunks})
		return err
	}
}

// withTrailers ends a request by trailers, behind one chunk of body or none.
func withTrailers(chunk bool) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		x, err := k.open(ctx, &duplexMode, nil)
		if err != nil {
			return err
		}
		defer x.cancel()
		body := ""
		if err = x.headers(false); chunk {
			body = k.body(100)
			err = errors.Join(err, x.chunk(body, false))
		}
		err = errors.Join(err, x.send(&extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap("x-check", "1")}}}))
		if err != nil {
			return err
		}
		a, err := x.recv()
		if err != nil {
			return err
		}
		if _, err := k.pick(a, a.GetRequestHeaders().GetResponse().GetHeaderMutation()); err != nil {
			return err
		}
		if err := x.bodyBack(body, false); err != nil {
			return err
		}
		if a, err = x.recv(); err == nil && a.GetRequestTrailers() == nil {
			err = fmt.Errorf("answer %s, want request trailers", kind(a))
		}
		return err
	}
}

func buffered(mode *modev3.ProcessingMode_BodySendMode) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		x, err := k.open(ctx, mode, nil)
		if err != nil {
			return err
		}
		defer x.cancel()
		if err := x.headers(false); err != nil {
			return err
		}
		a, err := x.recv() // a proxy sends the body only then
		if err != nil {
			return fmt.Errorf("headers alone: %w", err)
		}
		if a.GetRequestHeaders() == nil {
			return fmt.Errorf("answer %s, want request headers", kind(a))
		}
		if err := x.chunk(k.body(100), true); err != nil {
			return err
		}
		if a, err = x.recv(); err != nil {
			return err
		}
		if kind(a) != "request body (plain)" {
			return fmt.Errorf("answer %s, want a plain request body", kind(a))
		}
		_, err = k.pick(a, a.GetRequestBody().GetResponse().GetHeaderMutation())
		return err
	}
}

// within checks every endpoint of an answer.
func within(picked []netip.AddrPort, ok func(netip.AddrPort) bool) error {
	for _, e := range picked {
		if !ok(e) {
			return fmt.Errorf("endpoint %s is not one of those allowed", e)
		}
	}
	return nil
}

// inSubset allows one known endpoint, and one that no picker has.
func inSubset(form func(string) any) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		if len(k.known) == 0 {
			return errors.New("not asked: the first case has told no endpoint")
		}
		for _, one := range slices.Backward(k.known) {
			named := form(one.String())
			bare := !strings.Contains(fmt.Sprint(named), one.String()) // an address without a port: any of its ports
			picked, err := k.ask(ctx, request{bodiless: true, hint: hint(named)})
			if err == nil {
				err = within(picked, func(e netip.AddrPort) bool { return e.Addr() == one.Addr() && (bare || e == one) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func refused(r request) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		x, err := k.open(ctx, &duplexMode, r.hint)
		if err != nil {
			return err
		}
		defer x.cancel()
		if err := x.headers(r.bodiless); err != nil {
			return err
		}
		if !r.bodiless {
			if err := x.chunk(k.body(100), true); err != nil {
				return err
			}
		}
		a, err := x.recv()
		if err == nil && a.GetImmediateResponse().GetStatus().GetCode() != typev3.StatusCode_ServiceUnavailable {
			err = fmt.Errorf("answer %s, want an immediate response 503", kind(a))
		}
		return err
	}
}

// response plays the way back, with a full-duplex body where the endpoint is named.
func response(named bool) func(context.Context, *kit) error {
	return func(ctx context.Context, k *kit) error {
		x, err := k.open(ctx, &duplexMode, nil)
		if err != nil {
			return err
		}
		defer x.cancel()
		picked, err := x.ask(request{})
		if err != nil {
			return err
		}
		msg := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
			ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":status", "200"), EndOfStream: !named}}}
		if named {
			msg.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				spaceLB: {Fields: map[string]*structpb.Value{served: structpb.NewStringValue(picked[0].String())}}}}
		}
		if err := x.send(msg); err != nil {
			return err
		}
		a, err := x.recv()
		if err != nil {
			return err
		}
		if a.GetResponseHeaders() == nil {
			return fmt.Errorf("answer %s, want response headers", kind(a))
		}
		if !named {
			return nil
		}
		for i, part := range []string{"data: 1\n\n", "data: [DONE]\n\n"} {
			if err := x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
				ResponseBody: &extprocv3.HttpBody{Body: []byte(part), EndOfStream: i == 1}}}); err != nil {
				return err
			}
			if a, err = x.recv(); err != nil {
				return err
			}
			s := a.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			if string(s.GetBody()) != part || s.GetEndOfStream() != (i == 1) {
				return fmt.Errorf("answer %s with %q, end_of_stream %t; want a response body with %q, %t", kind(a), s.GetBody(), s.GetEndOfStream(), part, i == 1)
			}
		}
		return nil
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
