package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

// dial returns a function that asks Sightline in Envoy's place. No worker gets a request, and no end is reported to Sightline: its
// bookings expire, and its view of the fleet's load consists of the benchmark's requests.
func dial(addr string) (func(ctx context.Context, body []byte) (Answer, error), error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("%s: %w (want host:port or unix:/path)", addr, err)
	}
	client := extprocv3.NewExternalProcessorClient(conn) // open until the process ends
	return func(ctx context.Context, body []byte) (Answer, error) { return decide(ctx, client, body) }, nil
}

func decide(ctx context.Context, client extprocv3.ExternalProcessorClient, body []byte) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return a, err
	}
	header := func(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, RawValue: []byte(v)} }
	start := time.Now()
	if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{header(":method", "POST"), header(":path", "/v1/chat/completions"),
				header("content-type", "application/json"), header("content-length", strconv.Itoa(len(body)))}}}}}); err != nil {
		return a, err
	}
	if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}}}); err != nil {
		return a, err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return a, err
		}
		if i := r.GetImmediateResponse(); i != nil {
			return a, fmt.Errorf("status %d: %.300s", i.GetStatus().GetCode(), i.GetBody())
		}
		told := r.GetDynamicMetadata().GetFields()["sightline"].GetStructValue().GetFields()
		if len(told) == 0 && r.GetRequestBody() == nil {
			continue
		}
		a.First = time.Since(start)
		a.End, a.Reason = a.First, told["reason"].GetStringValue()
		a.Prompt, a.Cached = count(told["prompt_tokens"]), count(told["cached_tokens"])
		return a, errors.Join(stream.CloseSend())
	}
}

// count reads a number, given as a number or as text.
func count(v *structpb.Value) int {
	if n, err := strconv.Atoi(v.GetStringValue()); err == nil {
		return n
	}
	return int(v.GetNumberValue())
}
