package extproc

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"

	"github.com/sightline-router/sightline/router"
)

// relayRest answers all that Envoy sends after the decision, unchanged, until the stream ends: the rest of a full-duplex request,
// the beginning of a response of /v1/responses and, in the endpoint-picker protocol, the whole response.
//
// That protocol needs no access log: the response's headers name the endpoint that served the request, and the end of the stream
// is the end of the request. If there is a log nevertheless, each fact counts once. A stream with the response's body lasts as
// long as the request, so the request counts as started at the first choice until the headers come, and a stream that ends before
// them was abandoned.
func (c *call) relayRest() {
	if c.strict && c.decided && c.answers {
		c.started()
	}
	defer func() {
		if c.strict && c.decided && (c.code != 0 || c.answers) {
			o := outcome(c.id, router.Ended)
			o.Code, o.Answered, o.FirstByte = c.code, c.servedKnown, c.firstByte
			o.Cut = c.answers && !c.responseEnded
			c.report(o)
		}
	}()
	for c.receive() {
		var ok bool
		switch m := c.in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestBody:
			body := c.in.body
			c.in.body = nil
			c.requestEnded = m.RequestBody.GetEndOfStream()
			if c.duplex {
				ok = c.returnBody(fieldBodyResponse, body, c.requestEnded)
			} else {
				body.Free()
				ok = c.send(requestBody)
			}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			c.requestEnded = true
			ok = c.send(requestTrailers)
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			c.responseEnded = m.ResponseHeaders.GetEndOfStream()
			c.responded(m.ResponseHeaders)
			ok = c.send(c.namedPod())
			c.wantsAnswerID = c.wantsAnswerID && c.code == http.StatusOK
		case *extprocv3.ProcessingRequest_ResponseBody:
			c.responseEnded = m.ResponseBody.GetEndOfStream()
			c.learnAnswerID(m.ResponseBody)
			c.said.Write(m.ResponseBody.GetBody(), c.responseEnded)
			if !c.duplexResponse {
				ok = c.send(responseBody)
				break
			}
			body := mem.BufferSlice{mem.SliceBuffer(m.ResponseBody.GetBody())}
			ok = c.returnBody(fieldAnswerResponse, body, m.ResponseBody.GetEndOfStream())
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			c.responseEnded = true
			c.said.Write(nil, true)
			ok = c.send(responseTrailers)
		default:
			c.complain("unexpected message", "Envoy sent a second set of request headers on one stream")
			return
		}
		if !ok || !c.strict && !c.wantsAnswerID && c.requestEnded {
			return
		}
	}
}

// responded records the response's status and the endpoint that sent it.
func (c *call) responded(h *extprocv3.HttpHeaders) {
	c.firstByte = time.Since(c.opened)
	for _, kv := range h.GetHeaders().GetHeaders() {
		if kv.GetKey() == ":status" {
			c.code, _ = strconv.Atoi(value(kv))
		}
	}
	// From the load balancer (selected_host_key) or, behind gateways that cannot be configured so, from Envoy's attribute. Both
	// name one address; a test tool may send a list, of which the first counts.
	served := c.in.GetMetadataContext().GetFilterMetadata()[spaceLB].GetFields()[keyServed].GetStringValue()
	for _, space := range c.in.GetAttributes() {
		if v := space.GetFields()["upstream.address"].GetStringValue(); served == "" {
			served = v
		}
	}
	served, _, _ = strings.Cut(served, ",")
	if served != "" && c.decided {
		c.served, c.servedKnown = canonical(served), true
		c.started()
	}
	c.judgeList()
}

// Whether a gateway of the endpoint-picker protocol takes a list of endpoints.
const (
	listsUnknown int32 = iota
	listsWork
	listsFail
)

// judgeList learns from the first answer to a request with a list of endpoints. An Envoy that takes one address has no upstream for a list,
// and answers 503 itself, without an endpoint that served. From then on one address is named; a list that has worked is not doubted again.
func (c *call) judgeList() {
	if !c.strict || !c.listed || c.code == 0 {
		return
	}
	if c.code != http.StatusServiceUnavailable || c.servedKnown {
		c.lists.CompareAndSwap(listsUnknown, listsWork)
	} else if c.lists.CompareAndSwap(listsUnknown, listsFail) {
		c.log.Warn("the gateway had no upstream for the first list of endpoints: from now on one address is named, so a worker that cannot be " +
			"reached is not replaced by the second choice. Set route.one_address for a gateway that takes one address")
	}
}

// TakesOne reports whether a gateway was found to take one address by its answer to a list.
func (s *Server) TakesOne() bool { return s.lists.Load() == listsFail }

// namedPod answers the response's headers: with the name of the pod that served it, if that is asked for and known.
func (c *call) namedPod() encoded {
	for _, t := range c.targets {
		if c.servedKnown && t.Addr == c.served {
			m := make(mutation, 0, 64)
			m.set(HeaderPod, t.Worker)
			return decisionAnswer(fieldAnswerHeaders, m, nil)
		}
	}
	return responseHeaders
}

// started reports that the worker that serves the request, as far as known, has it.
func (c *call) started() {
	o := outcome(c.id, router.Started)
	o.Addr = c.served
	c.report(o)
}

// outcome returns a report without token counts.
func outcome(id string, phase router.Phase) router.Outcome {
	return router.Outcome{ID: id, Phase: phase, CachedTokens: -1, PromptTokens: -1}
}

// report observes an outcome, unless the access log has reported it already.
func (c *call) report(o router.Outcome) {
	if c.outcomes.admit(o) {
		c.observeSafely(o)
	}
}
