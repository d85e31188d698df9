package extproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightline-router/sightline/router"
)

// Process serves one request of Envoy's, in BUFFERED mode:
//
//	wait for headers ─┬─ not ours ────────▶ "no body, please" ─────────────────▶ end
//	                  ├─ unreadable ──────▶ decision by load, "no body, please" ▶ end
//	                  └─ readable ────────▶ "go on" ─ wait for the body ─▶ decision ▶ end
//
// The server ends the stream itself, always with status OK: right after the decision, because Envoy would keep it open
// for the whole generation (and its circuit breaker counts it), and without an answer where there is none, which Envoy
// takes as "go on unchanged". What Envoy sends after the decision (trailers) is not waited for, and end_of_stream is
// not asked about: it is false for a body with trailers or one that a decompressor touched.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.survive("stream")

	var in inbound
	defer in.free()
	if err := stream.RecvMsg(&in); err != nil {
		s.failed("receive", err)
		return nil
	}
	if !s.canServe(&in.ProcessingRequest) {
		return nil
	}
	headers := in.GetRequestHeaders()
	h := readHead(headers.GetHeaders().GetHeaders(), headers.GetEndOfStream())
	verdict, reason := h.judge(s.maxBody)
	var booked int64 // of this body against the bytes in flight
	defer func() { s.inFlight.Add(-booked) }()
	if verdict == readable {
		booked = h.expected(s.maxBody)
		if s.inFlight.Add(booked) > s.maxInFlight {
			verdict, reason = unreadable, "busy"
		}
	}
	s.metrics.gate(verdict, reason)

	switch verdict {
	case notOurs:
		s.send(stream, passUnread)
		return nil
	case unreadable:
		d := s.decideUnread(stream.Context(), &h, reason)
		s.answer(stream, d, atHeaders(d))
		return nil
	}

	if !s.send(stream, sendBody) {
		return nil
	}
	if err := stream.RecvMsg(&in); err != nil {
		// A body over the limit that no content-length had announced ends here too: gRPC has refused it by itself, and
		// Envoy goes on unrouted. With request_body_buffer_limit set as advised, Envoy has answered 413 before.
		s.failed("receive", err)
		return nil
	}
	if in.GetRequestBody() == nil {
		s.complain("unexpected message", "Envoy sent something else than the request body after the headers; "+
			"set processing_mode {request_header_mode: SEND, request_body_mode: BUFFERED, response_header_mode: SKIP}")
		return nil
	}
	arrived := time.Now()
	size := int64(in.body.Len())
	s.inFlight.Add(size - booked)
	booked = size
	s.metrics.bodyBytes.Add(float64(size))
	d := s.safely(stream.Context(), &router.Request{
		ID: newID(), Path: h.path, Session: h.session, Body: in.pieces(), Arrived: arrived,
	})
	if len(d.Edits) > 0 && d.Refuse == nil {
		s.answerEdited(stream, d, &in)
	} else {
		s.answer(stream, d, atBody(d))
	}
	s.metrics.latency.Observe(time.Since(arrived).Seconds())
	return nil
}

// canServe tells whether the first message is one that this state machine knows how to go on from, and says once a
// minute what to change where it does not. Such traffic passes unrouted.
func (s *Server) canServe(first *extprocv3.ProcessingRequest) bool {
	if first.GetRequestHeaders() == nil {
		s.complain("first message", "the first message of a stream is not the request headers; "+
			"set processing_mode.request_header_mode: SEND")
		return false
	}
	// Envoy older than 1.33 and test tools send no protocol_config; they are taken to be configured as we advise.
	mode := first.GetProtocolConfig().GetRequestBodyMode()
	if first.GetProtocolConfig() != nil && mode != modev3.ProcessingMode_BUFFERED {
		s.complain("body mode", fmt.Sprintf("Envoy's request_body_mode is %s, which is not served; set processing_mode."+
			"request_body_mode: BUFFERED in the ext_proc filter (\"sightline envoy\" prints a filter that works)", mode))
		return false
	}
	return true
}

// decideUnread routes a request whose body is not here.
func (s *Server) decideUnread(ctx context.Context, h *head, why string) router.Decision {
	d := s.safely(ctx, &router.Request{ID: newID(), Path: h.path, Session: h.session, Arrived: time.Now()})
	d.Why, d.Edits = why, nil
	return d
}

// safely decides; a panic costs the request its choice, nothing else.
func (s *Server) safely(ctx context.Context, req *router.Request) (d router.Decision) {
	defer func() {
		if d.ID == "" {
			d = router.Decision{ID: req.ID, Reason: router.Load, Why: "internal error"}
		}
	}()
	defer s.survive("decide")
	d = s.decide(ctx, req)
	d.ID = req.ID
	return d
}

// answer sends a decision, in the form made for the phase, and takes it back if Envoy is gone: then no access log
// entry will ever tell how it ended.
func (s *Server) answer(stream extprocv3.ExternalProcessor_ProcessServer, d router.Decision, form *extprocv3.ProcessingResponse) {
	s.metrics.answered(d)
	if d.Refuse != nil {
		s.send(stream, refusal(d.Refuse))
		return
	}
	if !s.send(stream, form) || stream.Context().Err() != nil {
		s.observeSafely(router.Outcome{ID: d.ID, Phase: router.Ended, CachedTokens: -1, PromptTokens: -1})
	}
}

// answerEdited sends a decision together with the edited body.
func (s *Server) answerEdited(stream extprocv3.ExternalProcessor_ProcessServer, d router.Decision, in *inbound) {
	body, err := splice(in.body, d.Edits)
	form := atBody(d)
	if err != nil {
		s.failed("edit", err)
		s.answer(stream, d, form)
		return
	}
	s.metrics.answered(d)
	setContentLength(form, body.Len())
	if !s.send(stream, &edited{answer: form, body: body}) || stream.Context().Err() != nil {
		s.observeSafely(router.Outcome{ID: d.ID, Phase: router.Ended, CachedTokens: -1, PromptTokens: -1})
	}
}

// send writes one answer; false if Envoy no longer listens.
func (s *Server) send(stream extprocv3.ExternalProcessor_ProcessServer, msg any) bool {
	if err := stream.SendMsg(msg); err != nil {
		s.failed("send", err)
		return false
	}
	return true
}

// failed counts what went wrong on a stream. A client that leaves is everyday life and not logged.
func (s *Server) failed(what string, err error) {
	if status.Code(err) == codes.Canceled {
		what = "client left"
	}
	s.metrics.errors.WithLabelValues(what).Inc()
	if what != "client left" {
		s.log.Warn("ext_proc stream: "+what, zap.Error(err))
	}
}

// complain counts and logs a configuration of Envoy that cannot be served, and its cure.
func (s *Server) complain(what, cure string) {
	s.metrics.errors.WithLabelValues(what).Inc()
	s.log.Error("ext_proc: "+cure, zap.String("seen", what))
}

// survive is deferred around code that reads hostile input: a panic is counted and logged, and goes no further. Only
// errors of the runtime are shown; another panic's value might quote a prompt.
func (s *Server) survive(where string) {
	p := recover()
	if p == nil {
		return
	}
	s.metrics.errors.WithLabelValues("panic in " + where).Inc()
	text := fmt.Sprintf("%T", p)
	if e, ok := p.(runtime.Error); ok {
		text = e.Error()
	}
	s.log.Error("panic in "+where+"; the request goes on without a choice", zap.String("panic", text), zap.ByteString("stack", debug.Stack()))
}

// newID makes a decision id: 26 letters and digits, 128 random bits, so that nobody can name another's request.
func newID() string { return rand.Text() }
