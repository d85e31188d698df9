// Package eppcheck runs the cases of the endpoint-picker protocol (Gateway API Inference Extension, version 1.0.0) against
// any picker's gRPC address, in Envoy's place. No proxy, no Kubernetes and no worker is needed.
//
// Run asks each case of cases.go, one stream each. What endpoints there are is learned from the picker's own first
// answer, so that the subset hints of later cases name some of them.
package eppcheck

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

// The protocol's names.
const (
	endpoint    = "x-gateway-destination-endpoint"
	subset      = "x-gateway-destination-endpoint-subset"
	served      = "x-gateway-destination-endpoint-served"
	spaceLB     = "envoy.lb"
	spaceSubset = "envoy.lb.subset_hint"
	largest     = 64 << 10 // bytes of one part of a body
)

// Options say how to reach the picker and what to ask it.
type Options struct {
	Addr    string        // host:port, or unix:/path
	TLS     bool          // over TLS, without verifying the certificate: pickers often sign their own
	Model   string        // of the requests
	Timeout time.Duration // of one answer
}

// Result is one case's outcome.
type Result struct {
	Name string
	Err  error // nil: passed
}

// Run runs all cases in order; an error means that the picker cannot be asked at all.
func Run(ctx context.Context, o Options) ([]Result, error) {
	creds := insecure.NewCredentials()
	if o.TLS {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	}
	conn, err := grpc.NewClient(o.Addr, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w (want host:port or unix:/path)", o.Addr, err)
	}
	defer conn.Close()
	k := &kit{Options: o, conn: conn}
	var out []Result
	for _, c := range cases() {
		ctx, cancel := context.WithTimeout(ctx, 10*o.Timeout)
		out = append(out, Result{c.name, c.run(ctx, k)})
		cancel()
	}
	return out, nil
}

// kit is what the cases share.
type kit struct {
	Options
	conn  *grpc.ClientConn
	known []netip.AddrPort // endpoints that the picker has named
}

// body is a request of n bytes of prompt.
func (k *kit) body(n int) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"%s"}]}`, k.Model, strings.Repeat("a", n))
}

// exchange is one stream in Envoy's place.
type exchange struct {
	*kit
	stream extprocv3.ExternalProcessor_ProcessClient
	mode   *modev3.ProcessingMode_BodySendMode
	hint   *structpb.Struct // of envoy.lb.subset_hint
	cancel context.CancelFunc
	first  bool
}

func (k *kit) open(ctx context.Context, mode *modev3.ProcessingMode_BodySendMode, hint *structpb.Struct) (*exchange, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := extprocv3.NewExternalProcessorClient(k.conn).Process(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	return &exchange{kit: k, stream: s, mode: mode, hint: hint, cancel: cancel, first: true}, nil
}

func (x *exchange) send(r *extprocv3.ProcessingRequest) error {
	if x.first && x.mode != nil {
		r.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: *x.mode, ResponseBodyMode: *x.mode}
	}
	x.first = false
	if x.hint != nil {
		r.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{spaceSubset: x.hint}}
	}
	if err := x.stream.Send(r); err != nil && !errors.Is(err, io.EOF) { // at EOF, recv tells why
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// headers sends the request headers of a chat request, with more of them.
func (x *exchange) headers(end bool, more ...string) error {
	kv := append([]string{":method", "POST", ":path", "/v1/chat/completions", ":authority", "example.com", "content-type", "application/json"}, more...)
	if end {
		kv[1], kv[3] = "GET", "/v1/models"
	}
	return x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(kv...), EndOfStream: end}}})
}

func headerMap(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func (x *exchange) chunk(body string, end bool) error {
	return x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end}}})
}

// recv waits for one answer, Options.Timeout at most.
func (x *exchange) recv() (*extprocv3.ProcessingResponse, error) {
	late := time.AfterFunc(x.Timeout, x.cancel)
	r, err := x.stream.Recv()
	switch {
	case !late.Stop():
		return nil, fmt.Errorf("no answer within %v", x.Timeout)
	case errors.Is(err, io.EOF):
		return nil, errors.New("the stream was ended; want an answer")
	case err != nil:
		return nil, fmt.Errorf("gRPC error in place of an answer: %w", err)
	}
	return r, nil
}

// pick reads the endpoints of an answer: in a header by raw_value and in the metadata, the same in both.
func (k *kit) pick(r *extprocv3.ProcessingResponse, m *extprocv3.HeaderMutation) ([]netip.AddrPort, error) {
	header, n := "", 0
	for _, h := range m.GetSetHeaders() {
		if strings.EqualFold(h.GetHeader().GetKey(), endpoint) {
			header, n = string(h.GetHeader().GetRawValue()), n+1
		}
	}
	meta := r.GetDynamicMetadata().GetFields()[spaceLB].GetStructValue().GetFields()[endpoint].GetStringValue()
	switch {
	case n == 0:
		return nil, fmt.Errorf("no header %s in the answer %s", endpoint, kind(r))
	case n > 1:
		return nil, fmt.Errorf("header %s is set %d times", endpoint, n)
	case header == "":
		return nil, fmt.Errorf("header %s is empty (raw_value must be used)", endpoint)
	case r.GetModeOverride() != nil:
		return nil, errors.New("mode_override is set; gateways of the protocol do not allow one")
	case meta != header:
		return nil, fmt.Errorf("metadata %s/%s is %q, want the header's %q", spaceLB, endpoint, meta, header)
	}
	var out []netip.AddrPort
	for e := range strings.SplitSeq(header, ",") {
		ap, err := netip.ParseAddrPort(strings.TrimSpace(e))
		if err != nil {
			return nil, fmt.Errorf("endpoint %q: want ip:port", e)
		}
		out = append(out, ap)
	}
	return out, nil
}

// kind names an answer by its member, for messages.
func kind(r *extprocv3.ProcessingResponse) string {
	if b := r.GetRequestBody(); b != nil {
		if b.GetResponse().GetBodyMutation().GetStreamedResponse() != nil {
			return "request body (streamed)"
		}
		return "request body (plain)"
	}
	switch r.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return "request headers"
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return "request trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return "response headers"
	case *extprocv3.ProcessingResponse_ResponseBody:
		return "response body"
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return "response trailers"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return fmt.Sprintf("immediate response %d", r.GetImmediateResponse().GetStatus().GetCode())
	}
	return "nothing"
}
