package extproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
)

// Process serves one HTTP request of Envoy's. In BUFFERED mode:
//
//	wait for headers ─┬─ not ours ────────▶ "no body, please" ─────────────────▶ end
//	                  ├─ unreadable ──────▶ an error for the client ───────────▶ end
//	                  └─ readable ────────▶ "go on" ─ wait for the body ─▶ decision ▶ end
//
// duplex.go has the same for FULL_DUPLEX_STREAMED.
//
// The server ends the stream itself, always with status OK: soon after the decision (linger), because Envoy would keep the stream
// open for the whole generation, and counts it in its circuit breaker. If there is no answer, it ends the stream without one, which
// Envoy takes as "go on unchanged". It does not wait for what Envoy sends after the decision (trailers), and ignores end_of_stream,
// which is false for a body with trailers and for one that a decompressor touched. Only with the endpoint-picker protocol does the
// stream continue to the response (follow.go).
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.recoverPanic("stream")

	c := call{Server: s, stream: stream, id: s.opt.Instance + newID(), opened: time.Now()}
	defer c.close()
	defer c.failClosed()
	if !c.receive() || !s.canServe(&c.in.ProcessingRequest) {
		return nil
	}
	c.streamSettings = s.settingsOf(stream.Context(), &c.in.ProcessingRequest)
	headers := c.in.GetRequestHeaders()
	c.head = readHead(headers.GetHeaders().GetHeaders(), headers.GetEndOfStream(), s.opt.Tenants.Header)
	c.tenant, c.priority = s.opt.Fair.parse(headers.GetHeaders().GetHeaders())
	if s.opt.Objective != nil && s.opt.Fair.Priority == "" {
		c.priority, c.urgent = s.opt.Objective(namedObjectives(headers.GetHeaders().GetHeaders()))
	}
	c.sender = c.client(stream.Context())
	if header := s.opt.Tenants.Header; header != "" {
		c.foreign = append(c.foreign, header) // its value must not reach the worker
	}
	c.head.path = strings.TrimPrefix(c.head.path, c.Path)
	if list := c.askedModels(); list != nil && !c.strict { // in the endpoint-picker protocol every request gets an endpoint
		s.metrics.gate(notOurs, "models")
		c.answerSent = true
		c.send(list)
		return nil
	}
	verdict, reason := c.head.judge(s.opt.MaxBody, &s.opt.Tenants)
	if verdict == readable && !c.bodyFits() {
		s.metrics.gate(unreadable, busy)
		c.refuse(http.StatusServiceUnavailable, tooBusy)
		return nil
	}
	s.metrics.gate(verdict, reason)
	if verdict == notOurs && s.opt.RefuseUnread && c.head.passesUnread(s.opt.Pass) {
		c.refuse(unreadPath.Status, unreadPath.Message)
		return nil
	}

	c.in.Reset() // the headers are processed, and the body may take long to arrive
	c.wantsAnswerID = c.head.path == denied.Responses && verdict == readable && (c.answers || !c.duplex)
	goOn := false
	switch {
	case c.head.stored() != "":
		d := c.decideBody(nil, time.Now())
		goOn = c.answer(d, c.headersAnswer(d))
	case verdict == unreadable:
		c.refuse(refusals[reason].Status, refusals[reason].Message)
	case verdict == notOurs && !c.strict:
		c.answerSent = true
		goOn = c.send(c.passAnswer())
	case verdict != readable:
		d := c.decideUnread(reason)
		goOn = c.answer(d, c.headersAnswer(d))
	case c.duplex:
		goOn = c.fullDuplex()
	default:
		goOn = c.buffered()
	}
	c.close() // release the body: the response may take minutes
	c.trace()
	if goOn && (c.strict || c.wantsAnswerID || c.duplex && !c.requestEnded) {
		c.relayRest()
	}
	if goOn && c.decided && !c.strict {
		c.linger()
	}
	return nil
}

// lingers is how long a stream stays open after a decision, to hear whether Envoy gave the request up before the answer came: it says so
// within 25 ms, even with both cores of a machine busy. This costs no measurable CPU time.
const lingers = 100 * time.Millisecond

// linger waits until Envoy has certainly read the decision. If the client leaves before that, Envoy only ends the stream, since
// it logs no decision that it has not read: without this, each such request would count as in flight for 30 s.
func (c *call) linger() {
	timer := time.NewTimer(c.lingers)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.stream.Context().Done():
		c.observeSafely(outcome(c.id, router.Gone))
	}
}

// call is one stream, which is one client request.
type call struct {
	*Server
	streamSettings
	stream   extprocv3.ExternalProcessor_ProcessServer
	in       inbound // the last received message
	head     head
	id       string // of the decision
	tenant   string // see Options.Fair
	urgent   bool   // see Options.Objective
	priority int
	sender   fair.Client
	opened   time.Time
	traced   *traced // nil: not requested, or no decision
	booked   int64   // bytes of this body in Server.bodyBytes

	sendMu   sync.Mutex // of stream
	bodyMu   sync.Mutex // guards the two below: the body against its timeout
	bodyHere bool
	bodyLate bool // the client was answered: the body took too long

	answerSent    bool            // an answer was sent, so the stream's end lets nothing pass unread
	requestEnded  bool            // Envoy has sent the whole request
	responseEnded bool            // Envoy has sent the whole response
	code          int             // status of the response, once it has begun
	decided       bool            // a decision was sent
	listed        bool            // with several endpoints
	targets       []router.Target // of the decision, if the response is to name the pod
	wantsAnswerID bool            // the response's id is still to be learned (responses.go)
	served        string
	servedKnown   bool   // the response named the worker that served it, so its status is the worker's
	responseBegin []byte // beginning of the response, while wantsAnswerID
	said          *learned.Said
	searched      int // bytes searched for the id; a byte that is searched twice counts twice
	firstByte     time.Duration
}

// close releases the body. It may be called again.
func (c *call) close() {
	c.in.free()
	c.reserveBody(0)
}

// receive waits for Envoy's next message; it returns false if there is none.
func (c *call) receive() bool {
	err := c.stream.RecvMsg(&c.in)
	if err != nil && err != io.EOF {
		// A body over the limit without a content-length ends here too: gRPC refuses the message, and Envoy sends the request on
		// without a decision. With request_body_buffer_limit set as advised, Envoy has answered 413 before.
		c.failed("receive", err)
	}
	return err == nil
}

// reserveBody sets the bytes of the call's body that are in memory to n. It returns false if all bodies together exceed the limit, or
// its client's bodies the client's share of it. What a client announces and does not send does not count.
func (c *call) reserveBody(n int64) bool {
	if n == c.booked {
		return true
	}
	n, c.booked = n-c.booked, n
	return c.bodyBytes.Put(c.sender, n, c.maxBodyBytes)
}

// bodyFits reports whether a body may come. A quarter of the limit is reserved for bodies that announce few bytes.
func (c *call) bodyFits() bool {
	most := c.maxBodyBytes
	if c.head.contentLength < 0 || c.head.contentLength > fewBytes {
		most -= most / 4
	}
	return c.bodyBytes.Fits(c.sender, 1, most)
}

// Reasons of refusals: metric labels and messages for the client.
const (
	busy    = "busy"
	late    = "body late"
	tooSlow = "decided too late"
	tooBusy = "too many request bodies at once; try again"
	tooLate = "the request body took too long to arrive"
	tooLong = "the request body exceeds the size limit; send less, or give media by URL"

	unreadBody = "the request could not be read; try again"
)

// refuse answers the client instead of routing: a body that cannot be read here could carry what clients must not say.
func (c *call) refuse(code int, why string) {
	c.answerSent = true
	d := router.Decision{ID: c.id, Refuse: &router.Refusal{Status: code, Message: why}}
	c.metrics.answered(d)
	c.send(c.refusal(c.head.path, d))
}

// failClosed refuses a request on which no answer was sent, whatever the reason, if no body may pass unread. Envoy takes a stream
// that ends with OK for "go on", whatever failure_mode_allow says; a stream that gRPC ended because a message was too large is an
// error to Envoy.
func (c *call) failClosed() {
	if c.opt.RefuseUnread && !c.answerSent && c.stream.Context().Err() == nil {
		c.refuse(http.StatusServiceUnavailable, unreadBody)
	}
}

// awaitBody refuses the request if its body does not arrive in time. Envoy holds a buffered body back until it is complete, so
// only a timer can notice one that never comes. The returned function ends the wait; it returns false if the client was answered
// already.
func (c *call) awaitBody() (arrived func() bool) {
	timer := time.AfterFunc(c.opt.BodyTimeout, func() {
		c.bodyMu.Lock()
		defer c.bodyMu.Unlock()
		if c.bodyHere {
			return
		}
		c.bodyLate = true
		c.metrics.gate(unreadable, late)
		c.refuse(http.StatusRequestTimeout, tooLate)
	})
	return func() bool {
		timer.Stop()
		c.bodyMu.Lock()
		defer c.bodyMu.Unlock()
		c.bodyHere = true
		return !c.bodyLate
	}
}

// buffered requests the body, which comes in one message, and answers it.
func (c *call) buffered() bool {
	ask := sendBody
	if c.wantsAnswerID {
		ask = sendBodyAndAnswer
	}
	if !c.send(ask) {
		return false
	}
	arrivedInTime := c.awaitBody()
	enough := c.askForTime()
	defer enough()
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
	c.reserveBody(int64(c.in.body.Len()))
	d := c.decideBody(pieces(c.in.body), arrived)
	enough()
	if len(d.Edits) == 0 || d.Refuse != nil {
		return c.answer(d, c.bodyAnswer(d))
	}
	body, err := splice(c.in.body, d.Edits)
	form := c.bodyAnswer(d)
	if err != nil {
		c.failed("edit", err)
		return !c.opt.RefuseUnread && c.answer(d, form)
	}
	return c.answer(d, &edited{answer: form, body: body})
}

// canServe reports whether the first message is one that this state machine can continue from. If not, the request passes without
// a decision, and the log says once a minute what to change.
func (s *Server) canServe(first *extprocv3.ProcessingRequest) bool {
	if first.GetRequestHeaders() == nil {
		s.complain("first message", "the first message of a stream is not the request headers; "+
			"set processing_mode.request_header_mode: SEND")
		return false
	}
	// Envoy before 1.33 and test tools send no protocol_config; they are assumed to be configured as we advise.
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

// decideUnread decides a request whose body is not requested, for the reason why.
func (c *call) decideUnread(why string) router.Decision {
	d := c.decideBody(nil, time.Now())
	d.Edits = nil
	if d.Refuse == nil {
		d.Why = why
	}
	return d
}

// decideBody decides with a body, nil for none. A panic costs the request only its choice. If the protocol demands an endpoint
// for every request, having none is a refusal.
func (c *call) decideBody(body [][]byte, arrived time.Time) router.Decision {
	if body != nil {
		c.metrics.bytesRead.Add(float64(c.booked))
	}
	ctx, cancel := c.stream.Context(), context.CancelFunc(func() {})
	if c.opt.EnvoyWaits > 0 {
		ctx, cancel = context.WithDeadline(ctx, arrived.Add(c.opt.EnvoyWaits/2))
	}
	defer cancel()
	d := c.decideSafely(ctx, &router.Request{
		ID: c.id, Source: connection(c.stream.Context()), Path: c.head.path, Stored: c.head.stored(), Pool: c.Pool, MustPick: c.strict,
		Only: c.only, Session: c.head.session, FirstToken: c.head.firstToken, Client: c.sender, Tenant: c.tenant,
		Priority: c.priority, UrgentExist: c.urgent, Salt: c.opt.Tenants.salt(&c.head), Body: body,
	})
	if c.opt.Traced != nil {
		c.traced = &traced{began: arrived, took: time.Since(arrived)}
	}
	if c.opt.EnvoyWaits > 0 && time.Since(arrived) >= c.opt.EnvoyWaits {
		c.late.add(time.Now())
		c.metrics.errors.WithLabelValues(tooSlow).Inc() // Envoy has already sent the request on unchanged
	}
	if c.strict && len(d.Targets) == 0 && d.Refuse == nil {
		d.Refuse = &router.Refusal{Status: http.StatusServiceUnavailable, Message: "no endpoint is eligible for this request"}
	}
	return d
}

func (s *Server) decideSafely(ctx context.Context, req *router.Request) (d router.Decision) {
	defer func() {
		if d.ID == "" {
			d = router.Decision{ID: req.ID, Reason: router.Load, Why: "internal error"}
			if s.opt.RefuseUnread && req.Body != nil {
				d.Refuse = &router.Refusal{Status: http.StatusServiceUnavailable, Message: unreadBody}
			}
		}
	}()
	defer s.recoverPanic("decide")
	d = s.decide(ctx, req)
	d.ID = req.ID
	return d
}

// answer sends a decision, as form, and withdraws it if Envoy is gone, since no access log entry will then report its end. It
// returns false if nothing more is to be sent on this stream.
func (c *call) answer(d router.Decision, form any) bool {
	c.answerSent = true
	c.metrics.answered(d)
	if c.traced != nil {
		c.traced.decision = d
	}
	if d.Refuse != nil {
		c.send(c.refusal(c.head.path, d))
		return false
	}
	c.decided, c.said = true, d.Said
	if len(d.Targets) > 0 {
		c.served = d.Targets[0].Addr
		c.listed = len(d.Targets) > 1 && !c.one
		if c.NamePod && c.strict && d.Targets[0].Prefill == "" {
			c.targets = d.Targets
		}
	}
	if !c.send(form) || c.stream.Context().Err() != nil {
		c.observeSafely(outcome(d.ID, router.Ended))
		return false
	}
	return true
}

// send writes one answer; it returns false if Envoy no longer listens.
func (c *call) send(msg any) bool {
	c.sendMu.Lock()
	err := c.stream.SendMsg(msg)
	c.sendMu.Unlock()
	if err != nil {
		c.failed("send", err)
		return false
	}
	return true
}

// failed counts an error of a stream. A client that disconnects is normal and not logged.
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

// recoverPanic is deferred around code that reads hostile input: it counts and logs a panic and stops it.
func (s *Server) recoverPanic(where string) {
	p := recover()
	if p == nil {
		return
	}
	s.metrics.errors.WithLabelValues("panic in " + where).Inc()
	s.log.Error("panic in "+where+"; the request goes on without a choice", zap.String("panic", guard.Fault(p)),
		zap.ByteString("stack", debug.Stack()))
}

// newID returns a decision id: 26 letters and digits with 128 random bits, so that no client can guess the id of another's request.
func newID() string { return rand.Text() }

// largeBody is the size in bytes from which Envoy is asked to wait longer: message_timeout covers copying the body here and back, and
// with several large ones at a time that alone takes longer. A request that Envoy stops waiting for goes on uncleaned.
const largeBody = 1 << 20

// askForTime asks Envoy to wait for the answer to a large body as long as its max_message_timeout allows. Envoy takes this only while it
// waits, and nothing says when it has begun to send the body, so it is asked again and again until it has the answer; what it does not
// take, it ignores. The caller must call stop before it answers.
func (c *call) askForTime() (stop func()) {
	if c.opt.EnvoyMayWait <= 0 || c.opt.EnvoyWaits <= 0 || c.head.contentLength >= 0 && c.head.contentLength < largeBody {
		return func() {}
	}
	ctx, over := context.WithCancel(c.stream.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for range retry.Every(ctx, c.opt.EnvoyWaits/8) {
			c.sendMu.Lock()
			err := c.stream.SendMsg(c.moreTime)
			c.sendMu.Unlock()
			if err != nil {
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		over()
		ended.Wait()
	})
}

// headerTrace is the W3C Trace Context header with a request's span.
const headerTrace = "traceparent"

// headerFirstToken is the time within which a client wants its first token, in milliseconds (from llm-d).
const headerFirstToken = "x-slo-ttft-ms"

// traced has the arguments of Options.Traced.
type traced struct {
	decision router.Decision
	began    time.Time
	took     time.Duration
}

// trace calls Options.Traced, if a decision was sent. If Envoy traces, it writes its own span to the metadata of the stream that
// it opens for the request; the request's header is still the client's, and counts only without that.
func (c *call) trace() {
	if c.traced == nil || c.traced.decision.ID == "" {
		return
	}
	under := c.head.traceparent
	if own := metadata.ValueFromIncomingContext(c.stream.Context(), headerTrace); len(own) == 1 {
		under = own[0]
	}
	c.opt.Traced(under, c.head.path, c.traced.decision, c.traced.began, c.traced.took)
	c.traced = nil // release it: the response may take long
}
