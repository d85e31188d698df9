package extproc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sightline-router/sightline/router"
)

// The headers that steer a request. Envoy must drop them from what clients send (early header mutation in our
// envoy.yaml); where it does not, the answers below still replace or remove every one of them.
const (
	HeaderWorker = "x-target-worker"      // ip:port that Envoy dials
	HeaderSecond = "x-target-worker-2"    // where a retry goes
	HeaderReason = "x-route-reason"       // exact, predicted, affinity or load
	HeaderRank   = "x-data-parallel-rank" // read by vLLM's and SGLang's front ends
	// Read by NVIDIA Dynamo's front ends in direct mode.
	HeaderInstance     = "x-dynamo-worker-instance-id"
	HeaderInstanceRank = "x-dynamo-dp-rank"
	HeaderPrefill      = "x-dynamo-prefill-instance-id"
	HeaderPrefillRank  = "x-dynamo-prefill-dp-rank"
	HeaderID           = "x-sightline-id" // joins decision and access log
	MetadataSpace      = "sightline"      // namespace of the dynamic metadata
)

// refused stands where a reason is counted, for requests that got an answer of ours and no worker.
const refused = "refused"

// never are headers of Dynamo's front ends that we never set and that would steer all the same: its own gateway's mode,
// the order to go past the prefill worker that was chosen, and the name that its releases before 1.6 read.
var never = []string{"x-dynamo-routing-mode", "x-bypass-remote-prefill", "x-worker-instance-id"}

// choice are headers by which a server at the target picks a worker or a rank behind it: each is set or removed.
var choice = []string{HeaderRank, HeaderInstance, HeaderInstanceRank, HeaderPrefill, HeaderPrefillRank}

// noBody is the mode override that keeps the body from us. Body modes are taken literally, so NONE is all it says.
var noBody = &modev3.ProcessingMode{RequestBodyMode: modev3.ProcessingMode_NONE, ResponseBodyMode: modev3.ProcessingMode_NONE}

// Two answers that hardly ever change, in wire form.
var (
	sendBody = encode(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
	})
	passUnread = encode(pass(terms{Route: Route{Mode: Sightline, Header: HeaderWorker}}))
)

// pass is "not ours": what a client may have smuggled in is removed, and the body is not asked for.
func (t *terms) pass() any {
	if t.Mode == Sightline && t.Header == HeaderWorker && !t.duplex {
		return passUnread
	}
	return pass(*t)
}

func pass(t terms) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
				RemoveHeaders: slices.Concat(t.smuggled(), []string{HeaderReason, HeaderID}, never),
			}},
		}},
		ModeOverride: t.noBody(),
	}
}

// smuggled lists the headers that must not stay if we set none of them.
func (t *terms) smuggled() []string {
	names := append([]string{t.Header, t.second()}, choice...)
	if t.Mode != Sightline {
		names = append(names, HeaderEndpoint, HeaderSubset)
	}
	return names
}

// second is the header of the second choice.
func (t *terms) second() string { return t.Header + "-2" }

// noBody keeps the body from us where Envoy may do that: a full-duplex body must pass through here, and a gateway that
// follows the endpoint-picker protocol does not allow an override.
func (t *terms) noBody() *modev3.ProcessingMode {
	if t.duplex || t.strict {
		return nil
	}
	return noBody
}

// encode is for messages made of constants, which always encode.
func encode(m proto.Message) encoded {
	b, _ := proto.Marshal(m)
	return b
}

// atBody is a decision as the answer to the body.
func (t *terms) atBody(d router.Decision) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: t.steer(d)},
		}},
		DynamicMetadata: t.metadata(d),
	}
}

// atHeaders is a decision as the answer to the headers; the body will not come here.
func (t *terms) atHeaders(d router.Decision) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: t.steer(d)},
		}},
		DynamicMetadata: t.metadata(d),
		ModeOverride:    t.noBody(),
	}
}

// steer writes the decision into request headers. The second choice is always there: Envoy 1.39 answers 503 on a retry
// whose header is missing (1.40 moves on); with one worker it is that worker again, and the attempt after that goes
// to any. Without a target, whatever a client may have smuggled in is removed and Envoy's fallback takes the request.
func (t *terms) steer(d router.Decision) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
		header(HeaderID, d.ID), header(HeaderReason, string(d.Reason)),
	}, RemoveHeaders: slices.Clone(never)}
	if len(d.Targets) == 0 {
		m.RemoveHeaders = append(m.RemoveHeaders, t.smuggled()...)
		return m
	}
	if t.Mode != Sightline {
		m.RemoveHeaders = append(m.RemoveHeaders, HeaderSubset)
	}
	first, second := d.Targets[0], d.Targets[0]
	if len(d.Targets) > 1 {
		second = d.Targets[1]
	}
	if t.strict {
		m.RemoveHeaders = append(m.RemoveHeaders, t.Header, t.second())
	} else {
		m.SetHeaders = append(m.SetHeaders, header(t.Header, first.Addr), header(t.second(), second.Addr))
	}
	if t.Mode != Sightline {
		m.SetHeaders = append(m.SetHeaders, header(HeaderEndpoint, ranked(d)))
	}
	rank := HeaderRank
	if first.Instance != "" {
		rank = HeaderInstanceRank
	}
	says := map[string]string{HeaderInstance: first.Instance, HeaderPrefill: first.Prefill}
	if first.Rank >= 0 {
		says[rank] = strconv.Itoa(first.Rank)
	}
	if first.Prefill != "" && first.PrefillRank >= 0 {
		says[HeaderPrefillRank] = strconv.Itoa(first.PrefillRank)
	}
	for _, name := range choice {
		if says[name] != "" {
			m.SetHeaders = append(m.SetHeaders, header(name, says[name]))
		} else {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	}
	return m
}

// ranked lists the targets as load balancers with fallbacks read them: ip:port,ip:port, best first.
func ranked(d router.Decision) string {
	var b strings.Builder
	for i, t := range d.Targets {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(t.Addr)
	}
	return b.String()
}

// header sets one header, replacing what is there. Only raw_value works: Envoy ignores value and would set it empty.
func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

func setContentLength(answer *extprocv3.ProcessingResponse, n int) {
	m := answer.GetRequestBody().GetResponse().GetHeaderMutation()
	m.SetHeaders = append(m.SetHeaders, header("content-length", strconv.Itoa(n)))
}

// metadata is what access logs and the stats logger can read of the decision, as %DYNAMIC_METADATA(sightline:reason)%,
// and the endpoints for load balancers that read them here: Istio's looks nowhere else.
func (t *terms) metadata(d router.Decision) *structpb.Struct {
	fields := map[string]*structpb.Value{
		"id":             structpb.NewStringValue(d.ID),
		"reason":         structpb.NewStringValue(string(d.Reason)),
		"matched_blocks": structpb.NewNumberValue(float64(d.MatchedBlocks)),
		"cached_tokens":  structpb.NewNumberValue(float64(d.CachedTokens)),
		"prompt_tokens":  structpb.NewNumberValue(float64(d.PromptTokens)),
	}
	if d.Model != "" {
		fields["model"] = structpb.NewStringValue(d.Model)
	}
	if d.Why != "" {
		fields["why"] = structpb.NewStringValue(d.Why)
	}
	if len(d.Targets) > 0 {
		fields["endpoint"] = structpb.NewStringValue(d.Targets[0].Addr)
		fields["endpoints"] = structpb.NewStringValue(ranked(d))
		fields["worker"] = structpb.NewStringValue(d.Targets[0].Worker)
	}
	spaces := map[string]*structpb.Value{MetadataSpace: structpb.NewStructValue(&structpb.Struct{Fields: fields})}
	if t.Mode != Sightline && len(d.Targets) > 0 {
		spaces[spaceLB] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{HeaderEndpoint: fields["endpoints"]}})
	}
	return &structpb.Struct{Fields: spaces}
}

// refusal answers the client in the workers' stead, with an error body in OpenAI's form. In the metadata its reason is
// refused.
func (t *terms) refusal(d router.Decision) *extprocv3.ProcessingResponse {
	d.Reason = refused
	code, r := d.Refuse.Status, d.Refuse
	if code < 400 || code > 599 { // Envoy turns anything below 200 into a 200
		code = http.StatusServiceUnavailable
	}
	kind := "invalid_request_error"
	headers := []*corev3.HeaderValueOption{header("content-type", "application/json")}
	switch {
	case code == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case code >= 500:
		kind = "server_error"
	}
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		headers = append(headers, header("retry-after", "1"))
	}
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	text, _ := json.Marshal(map[string]body{"error": {Message: r.Message, Type: kind}}) // strings always encode
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(code)},
			Headers: &extprocv3.HeaderMutation{SetHeaders: headers},
			Body:    text,
			Details: "sightline_refused",
		}},
		DynamicMetadata: t.metadata(d),
	}
}

// splice applies edits to a body without copying what stays: the result references the received buffers, and holds
// references of its own, so both must be freed.
func splice(body mem.BufferSlice, edits []router.Edit) (mem.BufferSlice, error) {
	size, at := body.Len(), 0
	for i, e := range edits {
		if e.From < at || e.To < e.From || e.To > size {
			return nil, fmt.Errorf("edit %d replaces bytes %d to %d: want edits in order, without overlap, inside a body of %d bytes",
				i, e.From, e.To, size)
		}
		at = e.To
	}
	out := make(mem.BufferSlice, 0, len(body)+2*len(edits))
	rest, at := body, 0 // at: position in rest[0]
	keep := func(n int, use bool) {
		for n > 0 {
			k := min(n, rest[0].Len()-at)
			if use && k > 0 {
				out = append(out, rest[0].Slice(at, at+k))
			}
			at, n = at+k, n-k
			if at == rest[0].Len() {
				rest, at = rest[1:], 0
			}
		}
	}
	done := 0
	for _, e := range edits {
		keep(e.From-done, true)
		keep(e.To-e.From, false)
		if len(e.Text) > 0 {
			out = append(out, mem.SliceBuffer(e.Text))
		}
		done = e.To
	}
	keep(size-done, true)
	return out, nil
}
