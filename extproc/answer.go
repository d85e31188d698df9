package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/report"
)

// The headers that steer a request. Envoy must remove them, and all others of package denied's table, from client requests
// (early header mutation in our envoy.yaml). If a gateway does not, the answers below still replace or remove every one of them.
const (
	HeaderWorker = "x-target-worker"      // ip:port that Envoy dials
	HeaderSecond = "x-target-worker-2"    // where a retry goes
	HeaderReason = "x-route-reason"       // exact, learned, predicted, affinity or load
	HeaderRank   = "x-data-parallel-rank" // read by the front ends of vLLM and SGLang
	// Read by llm-d's sidecar beside a worker: which workers it asks to prefill, to encode, and for KV blocks, each as ip:port.
	HeaderPrefiller = "x-prefiller-host-port"
	HeaderEncoder   = "x-encoder-hosts-ports"
	HeaderSource    = "x-kv-cache-source-host-port"

	HeaderPod     = "x-inference-pod" // of a response, as llm-d's simulator names it
	HeaderID      = "x-sightline-id"  // joins decision and access log
	HeaderSession = "x-session-id"    // read by vLLM, whose events name the request by it
	MetadataSpace = "sightline"       // namespace of the dynamic metadata
)

// refused replaces the reason in metrics and metadata for requests that we answered instead of a worker.
const refused = string(router.RefusedByUs)

// choiceHeaders lists the headers by which a server at the target picks a worker or a rank. Each is set or removed.
var choiceHeaders = []string{HeaderRank, HeaderInstance, HeaderInstanceRank, HeaderPrefill, HeaderPrefillRank,
	HeaderPrefiller, HeaderEncoder, HeaderSource}

// noBody is the mode override by which Envoy does not send us the body. Envoy replaces each body mode by its value here: NONE for
// request and response; other modes keep theirs.
var noBody = &modev3.ProcessingMode{RequestBodyMode: modev3.ProcessingMode_NONE, ResponseBodyMode: modev3.ProcessingMode_NONE}

// Constant answers or parts of answers, encoded.
var (
	sendBody       = encode(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{}})
	overrideNoBody = encode(&extprocv3.ProcessingResponse{ModeOverride: noBody})
)

// passAnswer is the answer to a request that is not ours: it removes steering headers that the client may have sent, and does not
// request the body.
func (t *streamSettings) passAnswer() encoded {
	m := make(mutation, 0, 256)
	m.remove(t.headersToRemove()...)
	m.remove(HeaderReason, HeaderID)
	m.remove(t.foreign...)
	return t.unread(m, nil)
}

// headersToRemove lists the headers that must be removed if we set none of them.
func (t *streamSettings) headersToRemove() []string {
	names := append([]string{t.Header, t.secondHeader()}, choiceHeaders...)
	if t.Mode != Sightline {
		names = append(names, HeaderEndpoint, HeaderSubset)
	}
	return names
}

// secondHeader returns the name of the header with the second choice.
func (t *streamSettings) secondHeader() string { return t.Header + "-2" }

// encode encodes constant messages, which cannot fail.
func encode(m proto.Message) encoded {
	b, _ := proto.Marshal(m)
	return b
}

// bodyAnswer returns a decision as the answer to the body.
func (t *streamSettings) bodyAnswer(d router.Decision) encoded {
	return decisionAnswer(fieldBodyResponse, t.steer(d), t.metadata(d))
}

// headersAnswer returns a decision as the answer to the headers, without requesting the body.
func (t *streamSettings) headersAnswer(d router.Decision) encoded {
	return t.unread(t.steer(d), t.metadata(d))
}

// unread answers the headers without requesting the body, unless Envoy does not allow that: a full-duplex body must pass through
// here, and a gateway with the endpoint-picker protocol does not permit an override.
func (t *streamSettings) unread(headers mutation, metadata members) encoded {
	a := decisionAnswer(fieldHeadersResponse, headers, metadata)
	if !t.duplex && !t.strict {
		a = append(a, overrideNoBody...)
	}
	return a
}

// steer writes the decision into request headers. The second choice is always set: Envoy 1.39 answers 503 on a retry if its
// header is missing (1.40 moves on). With one worker it is that worker again, and the attempt after that goes to any. Without a
// target (no worker is known, or the request is not steered), all steering headers are removed and Envoy's fallback takes the
// request.
func (t *streamSettings) steer(d router.Decision) mutation {
	m := make(mutation, 0, 768)
	m.set(HeaderID, d.ID)
	m.set(HeaderReason, string(d.Reason))
	m.remove(t.foreign...)
	if d.Session != "" {
		m.set(HeaderSession, d.Session)
	}
	if len(d.Targets) == 0 {
		m.remove(t.headersToRemove()...)
		m.setDue(d.UnsteeredChoice.Due)
		return m
	}
	if t.Mode != Sightline {
		m.remove(HeaderSubset)
	}
	first, second := d.Targets[0], d.Targets[0]
	if len(d.Targets) > 1 {
		second = d.Targets[1]
	}
	if t.strict {
		m.remove(t.Header, t.secondHeader())
	} else {
		m.set(t.Header, first.Addr)
		m.set(t.secondHeader(), second.Addr)
	}
	if t.Mode != Sightline {
		m.set(HeaderEndpoint, t.ranked(d))
	}
	rank, prefiller := number(first.Rank), first.Prefill
	if m.nameInstances(&first) {
		rank, prefiller = "", ""
	}
	m.setOrRemove(HeaderRank, rank)
	m.setOrRemove(HeaderPrefiller, prefiller)
	m.setOrRemove(HeaderEncoder, d.Encoder)
	m.setOrRemove(HeaderSource, d.Source)
	m.setDue(first.Due)
	if !t.strict && second.Due.Ahead {
		m.set(t.secondHeader()+"-"+second.Due.Header, second.Due.Value)
	}
	return m
}

// setDue sets the header by which a worker serves waiting requests, if the decision has one. A client's own is removed as all of package
// denied's table.
func (m *mutation) setDue(d router.Due) {
	if d.Value != "" {
		m.set(d.Header, d.Value)
	}
}

// number formats a rank; "" for none.
func number(rank int) string {
	if rank < 0 {
		return ""
	}
	return strconv.Itoa(rank)
}

// ranked lists the targets as load balancers with fallbacks read them: ip:port,ip:port, best first; or the best alone, for one that takes
// one address.
func (t *streamSettings) ranked(d router.Decision) string {
	if t.one && len(d.Targets) > 0 {
		return d.Targets[0].Addr
	}
	var b strings.Builder
	for i, t := range d.Targets {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(t.Addr)
	}
	return b.String()
}

// header sets one header, replacing existing ones. Only raw_value works: Envoy ignores value and would set an empty header.
func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// metadata returns the dynamic metadata about the decision for access logs and the stats logger, as
// %DYNAMIC_METADATA(sightline:reason)%, and the endpoints for load balancers that read them there: Istio's has no other source.
func (t *streamSettings) metadata(d router.Decision) members {
	m := make(members, 0, 384)
	m.text("id", d.ID)
	m.text("reason", string(d.Reason))
	m.number("matched_blocks", d.MatchedBlocks)
	m.number("cached_tokens", d.CachedTokens)
	m.number("prompt_tokens", d.PromptTokens)
	if d.Model != "" {
		m.text("model", d.Model)
	}
	if d.Why != "" {
		m.text("why", d.Why)
	}
	if d.Arm == report.Unsteered {
		m.text("arm", string(d.Arm))
	}
	all := make(members, 0, 512)
	if len(d.Targets) > 0 {
		endpoints := t.ranked(d)
		m.text("endpoint", d.Targets[0].Addr)
		m.text("endpoints", endpoints)
		m.text("worker", d.Targets[0].Worker)
		if t.Mode != Sightline {
			var lb members
			lb.text(HeaderEndpoint, endpoints)
			all.object(spaceLB, lb)
		}
	}
	all.object(MetadataSpace, m)
	return all
}
