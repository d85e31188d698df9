package extproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightline-router/sightline/internal/steering"
	"github.com/sightline-router/sightline/router"
)

// Process serves one request of Envoy's. In BUFFERED mode:
//
//	wait for headers ─┬─ not ours ────────▶ "no body, please" ─────────────────▶ end
//	                  ├─ unreadable ──────▶ an error for the client ───────────▶ end
//	                  └─ readable ────────▶ "go on" ─ wait for the body ─▶ decision ▶ end
//
// duplex.go has the same for FULL_DUPLEX_STREAMED.
//
// The server ends the stream itself, always with status OK: right after the decision, because Envoy would keep it open
// for the whole generation (and its circuit breaker counts it), and without an answer where there is none, which Envoy
// takes as "go on unchanged". What Envoy sends after the decision (trailers) is not waited for, and end_of_stream is
// not asked about: it is false for a body with trailers or one that a decompressor touched. Only the endpoint-picker
// protocol goes on, to the response (follow.go).
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.survive("stream")

	c := call{Server: s, stream: stream, id: s.opt.Instance + newID(), opened: time.Now()}
	defer c.close()
	defer c.failClosed()
	if !c.receive() || !s.canServe(&c.in.ProcessingRequest) {
		return nil
	}
	c.terms = s.termsOf(stream.Context(), &c.in.ProcessingRequest)
	headers := c.in.GetRequestHeaders()
	c.head = readHead(headers.GetHeaders().GetHeaders(), headers.GetEndOfStream(), s.opt.Tenants.Header)
	c.tenant, c.priority = s.opt.Fair.of(headers.GetHeaders().GetHeaders())
	if header := s.opt.Tenants.Header; header != "" {
		c.foreign = append(c.foreign, header) // its value stays here
	}
	c.head.path = strings.TrimPrefix(c.head.path, c.Path)
	if list := c.askedModels(); list != nil && !c.strict { // there every request gets an endpoint
		s.metrics.gate(notOurs, "models")
		c.settled = true
		c.send(list)
		return nil
	}
	verdict, reason := c.head.judge(s.opt.MaxBody, &s.opt.Tenants)
	if verdict == readable && !c.room() {
		s.metrics.gate(unreadable, busy)
		c.refuse(http.StatusServiceUnavailable, tooBusy)
		return nil
	}
	s.metrics.gate(verdict, reason)
	if verdict == notOurs && s.opt.RefuseUnread && c.head.passesUnread(s.opt.Pass) {
		c.refuse(unreadPath.Status, unreadPath.Message)
		return nil
	}

	c.in.Reset() // the headers are read, and the body may be long in coming
	c.learns = c.head.path == steering.Responses && verdict == readable && (c.answers || !c.duplex)
	goOn := false
	switch {
	case c.head.stored() != "":
		d := c.decideBody(nil, time.Now())
		goOn = c.answer(d, c.atHeaders(d))
	case verdict == unreadable:
		c.refuse(unread[reason].Status, unread[reason].Message)
	case verdict == notOurs && !c.strict:
		c.settled = true
		goOn = c.send(c.pass())
	case verdict != readable:
		d := c.decideUnread(reason)
		goOn = c.answer(d, c.atHeaders(d))
	case c.duplex:
		goOn = c.fullDuplex()
	default:
		goOn = c.buffered()
	}
	c.close() // an answer may take minutes to come, and the body is done with
	c.trace()
	if goOn && (c.strict || c.learns || c.duplex && !c.requestEnded) {
		c.follow()
	}
	return nil
}

// call is one stream: one request of a client's.
type call struct {
	*Server
	terms
	stream   extprocv3.ExternalProcessor_ProcessServer
	in       inbound // the message received last
	head     head
	id       string // the decision's
	tenant   string // Options.Fair
	priority int
	opened   time.Time
	traced   *traced // nil: not asked for, or no decision
	booked   int64   // bytes of this body that are here

	patience sync.Mutex // between the body and the end of its time
	bodyHere bool
	bodyLate bool // answered: it took too long

	settled      bool // answered, so that nothing goes on without our word
	requestEnded bool // Envoy has sent all of the request
	code         int  // status of the response, once it has begun
	decided      bool // a decision was sent
	learns       bool // the answer's id is still to be learned (responses.go)
	served       string
	told         bool   // the response said who served, so its status is a worker's
	answered     []byte // the beginning of the answer, while learns
	firstByte    time.Duration
}

// close gives back what the call holds: the body. It may be called again.
func (c *call) close() {
	c.in.free()
	c.book(0)
}

// receive waits for Envoy's next message; false if there is none.
func (c *call) receive() bool {
	err := c.stream.RecvMsg(&c.in)
	if err != nil && err != io.EOF {
		// A body over the limit that no content-length had announced ends here too: gRPC has refused it by itself, and
		// Envoy goes on unrouted. With request_body_buffer_limit set as advised, Envoy has answered 413 before.
		c.failed("receive", err)
	}
	return err == nil
}

// book counts n bytes of the call's body as here, in place of those counted before; false if all bodies together are more
// than may be here. What a client announces and does not send does not count.
func (c *call) book(n int64) bool {
	n, c.booked = n-c.booked, n
	return c.inFlight.Add(n) <= c.maxInFlight
}

// room tells whether a body may come: of the bytes that may be here a quarter is for those that announce few.
func (c *call) room() bool {
	most := c.maxInFlight
	if c.head.contentLength < 0 || c.head.contentLength > fewBytes {
		most -= most / 4
	}
	return c.inFlight.Load() < most
}

// Why requests are refused: as it is counted, and as the client is told.
const (
	busy    = "busy"
	late    = "body late"
	tooSlow = "decided too late"
	tooBusy = "too many request bodies at once; try again"
	tooLate = "the request body took too long to come"
	tooLong = "the request body is larger than this server reads; send less, or name media by URL"

	unreadBody = "the request could not be read; try again"
)

// refuse answers the client in the workers' stead: a body that cannot be read here could carry what clients must not say.
func (c *call) refuse(code int, why string) {
	c.settled = true
	d := router.Decision{ID: c.id, Refuse: &router.Refusal{Status: code, Message: why}}
	c.metrics.answered(d)
	c.send(c.refusal(d))
}

// failClosed ends a stream that nothing was answered on, for whatever reason, where no body may pass unread. Envoy takes a
// stream that ends in good order for "go on", whatever failure_mode_allow says; one that gRPC has ended for a message that
// was too large is an error for it.
func (c *call) failClosed() {
	if c.opt.RefuseUnread && !c.settled && c.stream.Context().Err() == nil {
		c.refuse(http.StatusServiceUnavailable, unreadBody)
	}
}

// awaitBody refuses the request if its body is not here in time. Envoy holds a buffered body back until all of it is there,
// so nothing but the clock tells of one that does not come. The function given back ends the wait; false: it was too late,
// and the client has its answer.
func (c *call) awaitBody() (arrived func() bool) {
	timer := time.AfterFunc(c.opt.BodyTimeout, func() {
		c.patience.Lock()
		defer c.patience.Unlock()
		if c.bodyHere {
			return
		}
		c.bodyLate = true
		c.metrics.gate(unreadable, late)
		c.refuse(http.StatusRequestTimeout, tooLate)
	})
	return func() bool {
		timer.Stop()
		c.patience.Lock()
		defer c.patience.Unlock()
		c.bodyHere = true
		return !c.bodyLate
	}
}

// buffered asks for the body, which comes in one message, and answers that.
func (c *call) buffered() bool {
	ask := sendBody
	if c.learns {
		ask = sendBodyAndAnswer
	}
	if !c.send(ask) {
		return false
	}
	arrivedInTime := c.awaitBody()
	ok := c.receive()
	if !arrivedInTime() || !ok {
		return false
	}
	if c.in.GetRequestBody() == nil {
		c.complain("unexpected message", "Envoy sent something else than the request body after the headers; "+
			"set processing_mode {request_header_mode: SEND, request_body_mode: BUFFERED, response_header_mode: SKIP}")
		return false
	}
	arrived := time.Now()
	c.requestEnded = c.in.GetRequestBody().GetEndOfStream()
	c.book(int64(c.in.body.Len()))
	d := c.decideBody(pieces(c.in.body), arrived)
	defer func() { c.metrics.took(c.id, time.Since(arrived)) }()
	if len(d.Edits) == 0 || d.Refuse != nil {
		return c.answer(d, c.atBody(d))
	}
	body, err := splice(c.in.body, d.Edits)
	form := c.atBody(d)
	if err != nil {
		c.failed("edit", err)
		return !c.opt.RefuseUnread && c.answer(d, form)
	}
	return c.answer(d, &edited{answer: form, body: body})
}

// canServe tells whether the first message is one that this state machine can go on from. Where it cannot, the request
// passes without a decision, and the log says once a minute what to change.
func (s *Server) canServe(first *extprocv3.ProcessingRequest) bool {
	if first.GetRequestHeaders() == nil {
		s.complain("first message", "the first message of a stream is not the request headers; "+
			"set processing_mode.request_header_mode: SEND")
		return false
	}
	// Envoy older than 1.33 and test tools send no protocol_config; they are taken to be configured as we advise.
	mode := first.GetProtocolConfig().GetRequestBodyMode()
	served := mode == modev3.ProcessingMode_BUFFERED || mode == modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	if first.GetProtocolConfig() == nil || served {
		return true
	}
	s.complain("body mode", fmt.Sprintf("Envoy's request_body_mode is %s, which is not served: a decision needs the whole body; "+
		"set processing_mode.request_body_mode to BUFFERED or FULL_DUPLEX_STREAMED in the ext_proc filter (\"sightline envoy\" prints "+
		"a filter that works)", mode))
	return false
}

// decideUnread decides for a request whose body is not asked for; why says for which reason.
func (c *call) decideUnread(why string) router.Decision {
	d := c.decideBody(nil, time.Now())
	d.Edits = nil
	if d.Refuse == nil {
		d.Why = why
	}
	return d
}

// decideBody decides with a body, nil for none; a panic costs the request its choice, nothing else. Where the protocol
// wants an endpoint for every request, none is a refusal.
func (c *call) decideBody(body [][]byte, arrived time.Time) router.Decision {
	if body != nil {
		c.metrics.bodyBytes.Add(float64(c.booked))
	}
	ctx, cancel := c.stream.Context(), context.CancelFunc(func() {})
	if c.opt.EnvoyWaits > 0 {
		ctx, cancel = context.WithDeadline(ctx, arrived.Add(c.opt.EnvoyWaits/2))
	}
	defer cancel()
	d := c.safely(ctx, &router.Request{
		ID: c.id, Source: connection(c.stream.Context()), Path: c.head.path, Stored: c.head.stored(), Pool: c.Pool, MustPick: c.strict,
		Only: c.only, Session: c.head.session, FirstToken: c.head.firstToken, Tenant: c.tenant, Priority: c.priority, Salt: c.opt.Tenants.salt(&c.head), Body: body, Arrived: arrived,
	})
	if c.opt.Traced != nil {
		c.traced = &traced{began: arrived, took: time.Since(arrived)}
	}
	if c.opt.EnvoyWaits > 0 && time.Since(arrived) >= c.opt.EnvoyWaits {
		c.metrics.errors.WithLabelValues(tooSlow).Inc() // Envoy has gone on, with the request as it came
	}
	if c.strict && len(d.Targets) == 0 && d.Refuse == nil {
		d.Refuse = &router.Refusal{Status: http.StatusServiceUnavailable, Message: "no endpoint is eligible for this request"}
	}
	return d
}

func (s *Server) safely(ctx context.Context, req *router.Request) (d router.Decision) {
	defer func() {
		if d.ID == "" {
			d = router.Decision{ID: req.ID, Reason: router.Load, Why: "internal error"}
			if s.opt.RefuseUnread && req.Body != nil {
				d.Refuse = &router.Refusal{Status: http.StatusServiceUnavailable, Message: unreadBody}
			}
		}
	}()
	defer s.survive("decide")
	d = s.decide(ctx, req)
	d.ID = req.ID
	return d
}

// answer sends a decision, in the form made for the phase, and takes it back if Envoy is gone: then no access log
// entry will ever tell how it ended. False: nothing more is to be said on this stream.
func (c *call) answer(d router.Decision, form any) bool {
	c.settled = true
	c.metrics.answered(d)
	if c.traced != nil {
		c.traced.decision = d
	}
	if d.Refuse != nil {
		c.send(c.refusal(d))
		return false
	}
	c.decided = true
	if len(d.Targets) > 0 {
		c.served = d.Targets[0].Addr
	}
	if !c.send(form) || c.stream.Context().Err() != nil {
		c.observeSafely(outcome(d.ID, router.Ended))
		return false
	}
	return true
}

// send writes one answer; false if Envoy no longer listens.
func (c *call) send(msg any) bool {
	if err := c.stream.SendMsg(msg); err != nil {
		c.failed("send", err)
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
	s.log.Error("panic in "+where+"; the request goes on without a choice", zap.String("panic", text),
		zap.ByteString("stack", debug.Stack()))
}

// newID makes a decision id: 26 letters and digits, 128 random bits, so that nobody can name another's request.
func newID() string { return rand.Text() }
