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

// follow answers whatever Envoy sends after the decision, unchanged, until there is no more: what is left of a full-duplex
// request, the beginning of an answer of /v1/responses and, in the endpoint-picker protocol, the whole response.
//
// There no access log is needed: the response's headers tell the endpoint that served the request, and the end of the
// stream is the end of the request. Where a log comes all the same, each fact counts once. A stream that will show the
// response's body lasts as long as the request, so the first choice counts as being at it until the headers come, and a
// stream that ends before them was given up.
func (c *call) follow() {
	if c.strict && c.decided && c.answers {
		c.started()
	}
	defer func() {
		if c.strict && c.decided && (c.code != 0 || c.answers) {
			o := outcome(c.id, router.Ended)
			o.Code, o.Answered, o.FirstByte = c.code, c.told, c.firstByte
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
				ok = c.giveBack(fieldBodyResponse, body, c.requestEnded)
			} else {
				body.Free()
				ok = c.send(requestBody)
			}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			c.requestEnded = true
			ok = c.send(requestTrailers)
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			c.responded(m.ResponseHeaders)
			ok = c.send(responseHeaders)
			c.learns = c.learns && c.code == http.StatusOK
		case *extprocv3.ProcessingRequest_ResponseBody:
			c.learn(m.ResponseBody)
			if !c.duplexResponse {
				ok = c.send(responseBody)
				break
			}
			body := mem.BufferSlice{mem.SliceBuffer(m.ResponseBody.GetBody())}
			ok = c.giveBack(fieldAnswerResponse, body, m.ResponseBody.GetEndOfStream())
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			ok = c.send(responseTrailers)
		default:
			c.complain("unexpected message", "Envoy sent a second set of request headers on one stream")
			return
		}
		if !ok || !c.strict && !c.learns && c.requestEnded {
			return
		}
	}
}

// responded notes the response's status, and which endpoint gives it.
func (c *call) responded(h *extprocv3.HttpHeaders) {
	c.firstByte = time.Since(c.opened)
	for _, kv := range h.GetHeaders().GetHeaders() {
		if kv.GetKey() == ":status" {
			c.code, _ = strconv.Atoi(value(kv))
		}
	}
	// What the load balancer says (selected_host_key) or, from gateways that cannot be told to have it say so, Envoy's
	// attribute. Both name one address; a test tool may send a list, whose first counts.
	served := c.in.GetMetadataContext().GetFilterMetadata()[spaceLB].GetFields()[keyServed].GetStringValue()
	for _, space := range c.in.GetAttributes() {
		if v := space.GetFields()["upstream.address"].GetStringValue(); served == "" {
			served = v
		}
	}
	if served, _, _ = strings.Cut(served, ","); served != "" && c.decided {
		c.served, c.told = canonical(served), true
		c.started()
	}
}

// started reports the request at the worker that serves it, as far as is known.
func (c *call) started() {
	o := outcome(c.id, router.Started)
	o.Addr = c.served
	c.report(o)
}

// outcome is a report without token counts.
func outcome(id string, phase router.Phase) router.Outcome {
	return router.Outcome{ID: id, Phase: phase, CachedTokens: -1, PromptTokens: -1}
}

// report observes an outcome, unless the access log was faster.
func (c *call) report(o router.Outcome) {
	if c.ended.admit(o) {
		c.observeSafely(o)
	}
}
