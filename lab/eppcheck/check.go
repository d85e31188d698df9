// Package eppcheck runs the cases of the endpoint-picker protocol (Gateway API Inference Extension, version 1.0.0) against any
// picker's gRPC address, acting as Envoy. It needs no proxy, no Kubernetes and no worker: it learns the endpoints from the picker's
// first answer. cases.go has the cases, one stream each; a Result says what was wrong.
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

// Options are the arguments and flags of `sightline-lab epp-conformance`: how to reach the picker and what to ask it. Certificates of
// pickers are often their own, so none is verified.
type Options struct {
	Addr    string        `arg:"" help:"The picker's gRPC address: host:port, or unix:/path."`
	TLS     bool          `help:"Over TLS, without verifying the certificate."`
	Model   string        `default:"m" help:"The model that requests name."`
	Timeout time.Duration `default:"5s" help:"How long to wait for one answer."`
	Report  string        `placeholder:"FILE" help:"Also write the results as a ConformanceReport of Gateway API's Inference Extension."`
	Implementation
}

// Result is one case's outcome.
type Result struct {
	Name string
	Err  error // nil: passed
}

// errNotAsked is the error of a case that needs an endpoint, where the picker has named none.
var errNotAsked = errors.New("not asked: the first case has told no endpoint")

// Skipped reports whether the case could not be asked.
func (r *Result) Skipped() bool { return errors.Is(r.Err, errNotAsked) }

// Run runs all cases in order. An error means that the picker cannot be asked at all.
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

// Report runs all cases and prints a line for each; an error says how many failed.
func Report(ctx context.Context, o Options, out io.Writer) error {
	results, err := Run(ctx, o)
	if err != nil {
		return err
	}
	failed := 0
	for i, r := range results {
		if r.Err == nil {
			fmt.Fprintf(out, "ok   %2d  %s\n", i+1, r.Name)
			continue
		}
		failed++
		section, demands := r.Clause()
		fmt.Fprintf(out, "FAIL %2d  %s: %v\n         checks (%s): %s\n", i+1, r.Name, r.Err, section, demands)
	}
	if o.Report != "" {
		if err := write(o.Report, results, o.Implementation, time.Now()); err != nil {
			return err
		}
		fmt.Fprintf(out, "written: %s\n", o.Report)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d cases failed", failed, len(results))
	}
	fmt.Fprintf(out, "%d cases passed\n", len(results))
	return nil
}

// kit is what the cases share.
type kit struct {
	Options
	conn  *grpc.ClientConn
	known []netip.AddrPort // endpoints that the picker has named
}

// body returns a request with a prompt of n bytes.
func (k *kit) body(n int) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"%s"}]}`, k.Model, strings.Repeat("a", n))
}

// exchange is one stream on which this acts as Envoy. After its first fault it sends and receives nothing more, so that a case can
// be written without error checks: answers are then nil, whose getters return zero values.
type exchange struct {
	*kit
	stream extprocv3.ExternalProcessor_ProcessClient
	mode   *modev3.ProcessingMode_BodySendMode // nil: not announced
	hint   *structpb.Struct                    // of envoy.lb.subset_hint
	cancel context.CancelFunc
	spoken bool
	err    error
}

// talk opens a stream, runs a case on it, and returns the first fault.
func (k *kit) talk(ctx context.Context, mode *modev3.ProcessingMode_BodySendMode, hint *structpb.Struct, play func(x *exchange)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := extprocv3.NewExternalProcessorClient(k.conn).Process(ctx)
	if err != nil {
		return fmt.Errorf("open a stream: %w", err)
	}
	x := &exchange{kit: k, stream: s, mode: mode, hint: hint, cancel: cancel}
	play(x)
	return x.err
}

func (x *exchange) fail(format string, args ...any) {
	if x.err == nil {
		x.err = fmt.Errorf(format, args...)
	}
}

func (x *exchange) send(r *extprocv3.ProcessingRequest) {
	if x.err != nil {
		return
	}
	if !x.spoken && x.mode != nil {
		r.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: *x.mode, ResponseBodyMode: *x.mode}
	}
	x.spoken = true
	if x.hint != nil {
		r.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{spaceSubset: x.hint}}
	}
	if err := x.stream.Send(r); err != nil && !errors.Is(err, io.EOF) { // at EOF, recv returns the reason
		x.fail("send: %w", err)
	}
}

// headers sends the headers of a chat request plus more; end means that there is no body.
func (x *exchange) headers(end bool, more ...string) {
	kv := append([]string{":method", "POST", ":path", "/v1/chat/completions", ":authority", "example.com", "content-type",
		"application/json"}, more...)
	if end {
		kv[1], kv[3] = "GET", "/v1/models"
	}
	x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(kv...), EndOfStream: end}}})
}

func headerMap(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func (x *exchange) chunk(body string, end bool) {
	x.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end}}})
}

// recv waits for an answer of the wanted kind, at most Options.Timeout.
func (x *exchange) recv(want string) *extprocv3.ProcessingResponse {
	if x.err != nil {
		return nil
	}
	late := time.AfterFunc(x.Timeout, x.cancel)
	r, err := x.stream.Recv()
	switch {
	case !late.Stop():
		x.fail("no answer within %v, want %s", x.Timeout, want)
	case errors.Is(err, io.EOF):
		x.fail("the stream was ended; want %s", want)
	case err != nil:
		x.fail("gRPC error in place of %s: %w", want, err)
	case kind(r) != want:
		x.fail("answer %s, want %s", kind(r), want)
	}
	return r
}

// pick reads the endpoints of an answer: in a header by raw_value and in the metadata, which must agree.
func (x *exchange) pick(r *extprocv3.ProcessingResponse, m *extprocv3.HeaderMutation) (picked []netip.AddrPort) {
	header, n := "", 0
	for _, h := range m.GetSetHeaders() {
		if strings.EqualFold(h.GetHeader().GetKey(), endpoint) {
			header, n = string(h.GetHeader().GetRawValue()), n+1
		}
	}
	meta := r.GetDynamicMetadata().GetFields()[spaceLB].GetStructValue().GetFields()[endpoint].GetStringValue()
	switch {
	case n == 0:
		x.fail("no header %s in the answer %s", endpoint, kind(r))
	case n > 1:
		x.fail("header %s is set %d times", endpoint, n)
	case header == "":
		x.fail("header %s is empty (raw_value must be used)", endpoint)
	case r.GetModeOverride() != nil:
		x.fail("mode_override is set; gateways of the protocol do not allow one")
	case meta != header:
		x.fail("metadata %s/%s is %q, want the header's %q", spaceLB, endpoint, meta, header)
	}
	for e := range strings.SplitSeq(header, ",") {
		ap, err := netip.ParseAddrPort(strings.TrimSpace(e))
		if err != nil {
			x.fail("endpoint %q: want ip:port", e)
		}
		picked = append(picked, ap)
	}
	if x.err != nil {
		return nil
	}
	return picked
}

// kind returns the name of an answer's member, for messages.
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
