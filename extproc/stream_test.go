package extproc

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/router"
)

// rig is a server on a unix socket, a client that acts as Envoy, and what the server's callbacks saw.
type rig struct {
	*Server
	conn *grpc.ClientConn
	stop context.CancelFunc
	gone chan error // what Serve returned

	mu       sync.Mutex
	requests []router.Request // bodies copied
	outcomes []router.Outcome
	logs     *observer.ObservedLogs
}

func newRig(t testing.TB, decide Decide, opt Options) *rig {
	t.Helper()
	sock := "unix:" + t.TempDir() + "/s"
	lis, err := Listen(sock)
	if err != nil {
		t.Fatal(err)
	}
	return newRigAt(t, decide, opt, lis, sock)
}

// newStillRig is a rig in memory, for synctest: its clock stands still while anything runs.
func newStillRig(t testing.TB, decide Decide, opt Options) *rig {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	return newRigAt(t, decide, opt, lis, "passthrough:///rig",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
}

func newRigAt(t testing.TB, decide Decide, opt Options, lis net.Listener, at string, dial ...grpc.DialOption) *rig {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	r := &rig{gone: make(chan error, 1), logs: logs}
	opt.Log = zap.New(core)
	var err error
	r.Server, err = New(func(ctx context.Context, req *router.Request) router.Decision {
		kept := *req
		kept.Body = [][]byte{bytes.Join(req.Body, nil)}
		r.mu.Lock()
		r.requests = append(r.requests, kept)
		r.mu.Unlock()
		return decide(ctx, req)
	}, func(o router.Outcome) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outcomes = append(r.outcomes, o)
	}, opt)
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.gone <- r.Serve(ctx, lis) }()
	r.conn, err = grpc.NewClient(at, append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.stop(); _ = r.conn.Close() })
	return r
}

func (r *rig) seen() ([]router.Request, []router.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests, r.outcomes
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s, want it in time", what)
		}
	}
}

func headersMsg(mode *modev3.ProcessingMode_BodySendMode, eos bool, kv ...string) *extprocv3.ProcessingRequest {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	req := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: m, EndOfStream: eos}}}
	if mode != nil {
		req.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: *mode}
	}
	return req
}

func bodyMsg(body string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos}}}
}

// chat returns a chat request's headers, with changes.
func chat(kv ...string) []string {
	return append([]string{":method", "POST", ":path", "/v1/chat/completions?x=1", "content-type", "application/json"}, kv...)
}

// talk sends messages, each after the answer to the previous one, until the server ends the stream.
func (r *rig) talk(t testing.TB, msgs ...*extprocv3.ProcessingRequest) []*extprocv3.ProcessingResponse {
	t.Helper()
	return r.talkIn(context.Background(), t, msgs...)
}

// talkIn is talk with the stream's metadata.
func (r *rig) talkIn(ctx context.Context, t testing.TB, msgs ...*extprocv3.ProcessingRequest) []*extprocv3.ProcessingResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var answers []*extprocv3.ProcessingResponse
	for i := 0; ; i++ {
		if i < len(msgs) {
			if err := stream.Send(msgs[i]); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
		a, err := stream.Recv()
		if err == io.EOF { // status OK
			return answers
		}
		if err != nil {
			t.Fatalf("after %d answers: %v; want the stream to end with OK", len(answers), err)
		}
		answers = append(answers, a)
	}
}

func always(d router.Decision) Decide {
	return func(context.Context, *router.Request) router.Decision { return d }
}

var pick = router.Decision{Reason: router.Exact, Model: "m", MatchedBlocks: 7, CachedTokens: 112, PromptTokens: 130,
	Targets: []router.Target{{Worker: "w1", Addr: "10.0.0.1:8000", Rank: -1}, {Worker: "w2", Addr: "10.0.0.2:8000", Rank: -1}}}

func TestReadableRequest(t *testing.T) {
	r := newRig(t, always(pick), Options{})
	for _, eos := range []bool{true, false} {
		buffered := modev3.ProcessingMode_BUFFERED
		answers := r.talk(t, headersMsg(&buffered, false, chat("x-session-id", "s1", "x-target-worker", "6.6.6.6:6")...), bodyMsg(`{"a":1}`, eos))
		if len(answers) != 2 {
			t.Fatalf("%d answers, want 2", len(answers))
		}
		if h := answers[0]; h.GetRequestHeaders() == nil || h.ModeOverride != nil {
			t.Errorf("first answer %v, want: go on", h)
		}
		h := told(answers[1].GetRequestBody().GetResponse().GetHeaderMutation())
		if h[HeaderWorker] != "10.0.0.1:8000" || h[HeaderSecond] != "10.0.0.2:8000" || h[HeaderReason] != "exact" || h[HeaderID] == "" {
			t.Errorf("headers %v, want [HeaderWorker] %q, [HeaderSecond] %q, [HeaderReason] %q, [HeaderID] some",
				h, "10.0.0.1:8000", "10.0.0.2:8000", "exact")
		}
		md := answers[1].GetDynamicMetadata().AsMap()["sightline"].(map[string]any)
		if md["endpoint"] != "10.0.0.1:8000" || md["matched_blocks"] != 7.0 || md["id"] != h[HeaderID] || md["model"] != "m" {
			t.Errorf("metadata %v, want endpoint %q, matched_blocks 7.0, id %q, model %q", md, "10.0.0.1:8000", h[HeaderID], "m")
		}
	}
	reqs, _ := r.seen()
	q := reqs[0]
	if string(q.Body[0]) != `{"a":1}` || q.Path != "/v1/chat/completions" || q.Session != "s1" || q.ID == "" {
		t.Errorf("got the request %+v, want its body, path and session s1, and an id", q)
	}
}

func TestGate(t *testing.T) {
	const limit = 1000
	r := newRig(t, always(pick), Options{MaxBody: limit})
	for _, c := range []struct {
		name string
		kv   []string
		eos  bool
		want gate
	}{
		{"chat", chat(), false, readable},
		{"completions", []string{":method", "POST", ":path", "/v1/completions"}, false, readable},
		{"charset", []string{":method", "POST", ":path", "/v1/completions", "content-type", "application/JSON; charset=utf-8"}, false, readable},
		{"json suffix", []string{":method", "POST", ":path", "/v1/completions", "content-type", "application/vnd.x+json"}, false, readable},
		{"identity", chat("content-encoding", "identity"), false, readable},
		{"at the limit", chat("content-length", "1000"), false, readable},
		{"length unreadable", chat("content-length", "x"), false, readable},
		{"parameters that no parser takes", []string{":method", "POST", ":path", "/v1/completions", "content-type",
			"application/json;a=1;a=2;;/"}, false, readable},
		{"length 0, and a body", chat("content-length", "0"), false, readable},
		{"escaped path", []string{":method", "POST", ":path", "/v1/chat%2Fcompletion%73?x"}, false, readable},
		{"slashes", []string{":method", "POST", ":path", "//v1/chat//completions/"}, false, readable},
		{"backslash and dots", []string{":method", "POST", ":path", `/v1%5cx/%2e./chat/completions`}, false, readable},
		{"escaped twice", []string{":method", "POST", ":path", "/v1/chat%252Fcompletions"}, false, notOurs},
		{"gzip", chat("content-encoding", "gzip"), false, unreadable},
		{"any encoding", chat("content-encoding", "identity, x"), false, unreadable},
		{"two encodings", chat("content-encoding", "x", "content-encoding", "identity"), false, unreadable},
		{"two types", chat("content-type", "text/plain", "content-type", "application/json"), false, unreadable},
		{"over the limit", chat("content-length", "1001"), false, unreadable},
		{"GET", []string{":method", "GET", ":path", "/v1/chat/completions"}, true, notOurs},
		{"models", []string{":method", "GET", ":path", "/v1/models"}, true, notOurs},
		{"other path", []string{":method", "POST", ":path", "/v1/chat/completions/x"}, false, notOurs},
		{"other path, encoded", []string{":method", "POST", ":path", "/v1/embeddings", "content-encoding", "gzip",
			"content-length", "9999"}, false, notOurs},
		{"path only in the query", []string{":method", "POST", ":path", "/x?/v1/completions"}, false, notOurs},
		{"no body", chat(), true, notOurs},
		{"form", []string{":method", "POST", ":path", "/v1/completions", "content-type", "multipart/form-data; boundary=x"}, false, unreadable},
		{"content type garbage", []string{":method", "POST", ":path", "/v1/completions", "content-type", ";;;"}, false, unreadable},
		{"no headers at all", nil, false, notOurs},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, _ := r.seen()
			msgs := []*extprocv3.ProcessingRequest{headersMsg(nil, c.eos, c.kv...)}
			if c.want == readable {
				msgs = append(msgs, bodyMsg("{}", true))
			}
			answers := r.talk(t, msgs...)
			after, _ := r.seen()
			first := answers[0]
			none := first.GetModeOverride() != nil && first.GetModeOverride().RequestBodyMode == modev3.ProcessingMode_NONE
			h := told(first.GetRequestHeaders().GetResponse().GetHeaderMutation())
			switch c.want {
			case readable:
				if len(answers) != 2 || none || len(after) != len(before)+1 {
					t.Errorf("%d answers, override %v, %d decisions: got %d, want 2, false, %d",
						len(answers), none, len(after)-len(before), len(after), len(before)+1)
				}
			case unreadable:
				if code := first.GetImmediateResponse().GetStatus().GetCode(); len(answers) != 1 || len(after) != len(before) ||
					code != 413 && code != 415 {
					t.Errorf("got %d answers, the first %v, and %d decisions, want one with status 413 or 415 and none",
						len(answers), first, len(after)-len(before))
				}
			case notOurs:
				if len(answers) != 1 || !none || len(after) != len(before) || h[HeaderWorker] != "-" {
					t.Errorf("%d answers, override %v, headers %v: got %d, want 1, true, %d, [HeaderWorker] %q",
						len(answers), none, h, len(after), len(before), "-")
				}
			}
		})
	}
}

// TestForeignHeadersAreRemoved checks that, if a gateway lets clients' headers through, all that are in the table of what clients
// must not say are removed.
func TestForeignHeadersAreRemoved(t *testing.T) {
	for _, mode := range []Mode{Auto, Sightline} {
		r := newRig(t, always(pick), Options{Route: Route{Mode: mode}})
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
			kv := []string{":method", "POST", ":path", path, "content-type", "application/json", "x-mine", "1", "x-request-id",
				"___prefill_addr_10.0.0.9:1___decode_addr_10.0.0.9:2_1"}
			for _, h := range denied.Headers {
				if h.Prefix && h.Name != "x-target-worker" && h.Name != "x-gateway-destination-endpoint" {
					kv = append(kv, h.Name+"foreign", "10.0.0.9:1")
				} else if h.Name != "x-request-id" {
					kv = append(kv, h.Name, "10.0.0.9:1")
				}
			}
			answers := r.talk(t, headersMsg(nil, false, kv...), bodyMsg("{}", true))
			last := answers[len(answers)-1]
			m := last.GetRequestHeaders().GetResponse().GetHeaderMutation()
			if m == nil {
				m = last.GetRequestBody().GetResponse().GetHeaderMutation()
			}
			got := told(m)
			for i := 8; i < len(kv); i += 2 {
				if v, changed := got[kv[i]]; !changed && kv[i] != HeaderEndpoint || v == kv[i+1] {
					t.Errorf("%q, %s: got %s left at the client's %q, want it removed or replaced", mode, path, kv[i], v)
				}
			}
			if _, changed := got["x-mine"]; changed {
				t.Errorf("%q, %s: removes what is the client's own, want !changed", mode, path)
			}
		}
		kept := told(r.talk(t, headersMsg(nil, false, chat("x-request-id", "0d6f-4e1b")...),
			bodyMsg("{}", true))[1].GetRequestBody().GetResponse().GetHeaderMutation())
		if _, changed := kept["x-request-id"]; changed {
			t.Errorf("%q: an id without an address is removed, want !changed", mode)
		}
	}
}

func TestUnannouncedBodyOverTheLimit(t *testing.T) {
	r := newRig(t, always(pick), Options{MaxBody: 1000})
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(headersMsg(nil, false, chat()...))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(bodyMsg(strings.Repeat("x", 1000+headroom+1), true))
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want ResourceExhausted", err)
	}
	if reqs, _ := r.seen(); len(reqs) != 0 {
		t.Errorf("%d decisions, want none", len(reqs))
	}
	answers := r.talk(t, headersMsg(nil, false, chat("content-length", "1001")...))
	if n := testutil.ToFloat64(r.metrics.gates.WithLabelValues(string(unreadable), "too large")); n != 1 ||
		answers[0].GetImmediateResponse().GetStatus().GetCode() != 413 {
		t.Errorf("one that is announced: got %v, %v counted, want status 413, counted once", answers, n)
	}
}

func TestTooManyBodyBytes(t *testing.T) {
	r := newRig(t, always(pick), Options{MaxBody: 2 << 20})
	fits := func(length string) bool {
		answers := r.talk(t, headersMsg(nil, false, chat("content-length", length)...), bodyMsg("{}", true))
		if len(answers) == 1 && answers[0].GetImmediateResponse().GetStatus().GetCode() != 503 {
			t.Fatalf("answers %v, want a decision or a 503", answers)
		}
		return len(answers) == 2
	}
	r.bodyBytes.Put(0, r.maxBodyBytes*3/4, r.maxBodyBytes)
	if fits("2000000") || !fits("900") {
		t.Error("three quarters of the room are taken: want the rest for those that announce little")
	}
	r.bodyBytes.Put(0, r.maxBodyBytes/4, r.maxBodyBytes)
	if fits("900") {
		t.Error(`the room is full, and a body was asked for, want !fits("900")`)
	}
	if n := testutil.ToFloat64(r.metrics.gates.WithLabelValues(string(unreadable), busy)); n != 2 {
		t.Errorf("%v counted as refused, want 2", n)
	}
	r.bodyBytes.Put(0, -r.maxBodyBytes, r.maxBodyBytes)
	eventually(t, "no bytes are booked", func() bool { return r.bodyBytes.Taken() == 0 })
}

// TestBodiesThatDoNotCome checks that bodies that are announced but do not come take no room from others, and time out.
func TestBodiesThatDoNotCome(t *testing.T) {
	for name, mode := range map[string]*modev3.ProcessingMode_BodySendMode{"buffered": nil, "full duplex": &duplexed} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newStillRig(t, always(pick), Options{MaxBody: 1 << 20, BodyTimeout: 2 * time.Second, Route: Route{Mode: Sightline}})
				var idle []line
				for range 2 * bodiesAtOnce {
					l := r.open(t)
					if err := l.Send(headersMsg(mode, false, chat("content-length", "1048576")...)); err != nil {
						t.Fatal(err)
					}
					idle = append(idle, l)
					if mode == nil {
						l.next() // "send the body"
					} else if err := l.Send(bodyMsg("{", false)); err != nil {
						t.Fatal(err)
					}
				}
				if mode != nil {
					eventually(t, "what has come is booked", func() bool { return r.bodyBytes.Taken() == int64(len(idle)) })
				}
				if answers := r.talk(t, headersMsg(nil, false, chat("content-length", "1048576")...), bodyMsg("{}", true)); len(answers) != 2 {
					t.Fatalf("answers %v, want a decision", answers)
				}
				before, _ := r.seen()
				for _, l := range idle {
					if code := l.next().GetImmediateResponse().GetStatus().GetCode(); code != 408 {
						t.Fatalf("status %d for a body that does not come, want 408", code)
					}
					_ = l.Send(bodyMsg("{}", true)) // too late
					if a, err := l.Recv(); err != io.EOF {
						t.Errorf("%v, %v after the 408, want the end", a, err)
					}
				}
				if after, _ := r.seen(); len(after) != len(before) {
					t.Errorf("a request was decided after its 408: got %d, want %d", len(after), len(before))
				}
				if n := testutil.ToFloat64(r.metrics.gates.WithLabelValues(string(unreadable), late)); n != float64(len(idle)) {
					t.Errorf("%v counted as late, want %d", n, len(idle))
				}
				eventually(t, "no bytes are booked", func() bool { return r.bodyBytes.Taken() == 0 })
			})
		})
	}
}

// TestRoomForBodiesIsShared checks that a client whose bodies stay incomplete in any number leaves room for another's.
func TestRoomForBodiesIsShared(t *testing.T) {
	r := newRig(t, always(pick), Options{MaxBody: 1 << 20, Route: Route{Mode: Sightline}})
	refused := func() int64 {
		return int64(testutil.ToFloat64(r.metrics.gates.WithLabelValues(string(unreadable), busy)))
	}
	var open [bodiesAtOnce]line
	send := func(l line, msg *extprocv3.ProcessingRequest) {
		if err := l.Send(msg); err != nil {
			t.Fatal(err)
		}
	}
	for i := range open {
		open[i] = r.open(t, keyClient, "10.0.0.66")
		send(open[i], headersMsg(&duplexed, false, chat()...))
		send(open[i], bodyMsg("{", false))
	}
	eventually(t, "all have begun", func() bool { return r.bodyBytes.Taken() == bodiesAtOnce })
	for _, l := range open {
		send(l, bodyMsg(strings.Repeat(" ", 1<<20-1), false))
	}
	eventually(t, "their bytes are booked or refused", func() bool { return r.bodyBytes.Taken()>>20+refused() == bodiesAtOnce })
	other := r.open(t, keyClient, "10.0.0.7")
	if a := other.ask(headersMsg(nil, false, chat("content-length", "900")...)); a.GetRequestHeaders() == nil {
		t.Fatalf("another client's body: %v, want it asked for", a)
	}
	if a := other.ask(bodyMsg("{}", true)); a.GetRequestBody() == nil {
		t.Errorf("another client's body: %v, want a decision", a)
	}
}

// TestLongAnswersHoldNoBody checks that the request's body is not held while we wait for the response's id, which may take
// minutes.
func TestLongAnswersHoldNoBody(t *testing.T) {
	r := newRig(t, always(pick), Options{})
	l := r.open(t)
	_ = l.Send(headersMsg(nil, false, ":method", "POST", ":path", "/v1/responses", "content-type", "application/json"))
	l.next()
	_ = l.Send(bodyMsg(`{"input":"x"}`, true))
	l.next()
	eventually(t, "no bytes are booked", func() bool { return r.bodyBytes.Taken() == 0 })
}

// TestDecisionHasADeadline checks that a decision has half of the time that Envoy waits.
func TestDecisionHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waits = 20 * time.Second
		for _, mode := range []*modev3.ProcessingMode_BodySendMode{nil, &duplexed} {
			var left time.Duration
			r := newStillRig(t, func(ctx context.Context, req *router.Request) router.Decision {
				if end, ok := ctx.Deadline(); ok {
					left = time.Until(end)
				}
				return pick
			}, Options{EnvoyWaits: waits, Route: Route{Mode: Sightline}})
			l := r.open(t)
			_ = l.Send(headersMsg(mode, false, chat()...))
			if mode == nil {
				l.next()
			}
			_ = l.Send(bodyMsg("{}", true))
			l.next()
			if left != waits/2 {
				t.Errorf("got %v left for a decision, want half of %v", left, waits)
			}
		}
	})
}

func TestRefuseAndEdit(t *testing.T) {
	refuse := newRig(t, always(router.Decision{Refuse: &router.Refusal{Status: 404, Message: "no such model"}}), Options{})
	answers := refuse.talk(t, headersMsg(nil, false, chat()...), bodyMsg(`{}`, true))
	if im := answers[len(answers)-1].GetImmediateResponse(); im.GetStatus().GetCode() != 404 {
		t.Errorf("answers %v, want a 404", answers)
	}

	d := pick
	d.Edits = []router.Edit{{From: 1, To: 4, Text: []byte(`"b":2,"c"`)}}
	edit := newRig(t, always(d), Options{})
	answers = edit.talk(t, headersMsg(nil, false, chat()...), bodyMsg(`{"a":1}`, true))
	r := answers[1].GetRequestBody().GetResponse()
	if got := string(r.GetBodyMutation().GetBody()); got != `{"b":2,"c":1}` {
		t.Errorf("body %s, want %q", got, `{"b":2,"c":1}`)
	}
	if h := told(r.GetHeaderMutation()); h["content-length"] != "13" || h[HeaderWorker] == "" {
		t.Errorf("headers %v, want content-length %q, [HeaderWorker] some", h, "13")
	}

	d.Edits = []router.Edit{{From: 1, To: 400}}
	wrong := newRig(t, always(d), Options{})
	answers = wrong.talk(t, headersMsg(nil, false, chat()...), bodyMsg(`{"a":1}`, true))
	r = answers[1].GetRequestBody().GetResponse()
	if r.GetBodyMutation() != nil || told(r.GetHeaderMutation())[HeaderWorker] == "" {
		t.Errorf("answer %v, want the decision without the impossible edit", r)
	}
}

func TestPanicCostsOnlyTheChoice(t *testing.T) {
	secret := "the prompt"
	r := newRig(t, func(context.Context, *router.Request) router.Decision { panic(secret) }, Options{})
	answers := r.talk(t, headersMsg(nil, false, chat()...), bodyMsg(`{}`, true))
	if h := told(answers[1].GetRequestBody().GetResponse().GetHeaderMutation()); h[HeaderWorker] != "-" {
		t.Errorf("headers %v, want no target", h)
	}
	for _, e := range r.logs.All() {
		for _, f := range e.Context {
			if strings.Contains(f.String, secret) {
				t.Errorf("the panic's value was logged: got %s, want no %q in it", f.String, secret)
			}
		}
	}
	if r.logs.FilterMessageSnippet("panic").Len() != 1 {
		t.Errorf("logs %v, want one panic", r.logs.All())
	}
}

func TestModesThatCannotBeServed(t *testing.T) {
	for _, mode := range []modev3.ProcessingMode_BodySendMode{modev3.ProcessingMode_NONE, modev3.ProcessingMode_STREAMED,
		modev3.ProcessingMode_BUFFERED_PARTIAL} {
		r := newRig(t, always(pick), Options{})
		for range 3 {
			if answers := r.talk(t, headersMsg(&mode, false, chat()...)); len(answers) != 0 {
				t.Errorf("%s: answers %v, want the stream ended at once", mode, answers)
			}
		}
		if n := r.logs.FilterMessageSnippet(mode.String()).Len(); n != 1 {
			t.Errorf("%s: logged %d times, want once", mode, n)
		}
	}
}

func TestMessagesOutOfOrder(t *testing.T) {
	r := newRig(t, always(pick), Options{})
	for name, msgs := range map[string][]*extprocv3.ProcessingRequest{
		"body first":       {bodyMsg("{}", true)},
		"empty message":    {{}},
		"response headers": {{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{}}}},
		"headers twice":    {headersMsg(nil, false, chat()...), headersMsg(nil, false, chat()...)},
		"trailers instead": {headersMsg(nil, false, chat()...),
			{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}},
	} {
		t.Run(name, func(t *testing.T) { r.talk(t, msgs...) }) // ends with OK
	}
	if reqs, _ := r.seen(); len(reqs) != 0 {
		t.Errorf("%d decisions, want none", len(reqs))
	}
}

func TestClientGoneDuringTheDecision(t *testing.T) {
	started, gone := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(ctx context.Context, _ *router.Request) router.Decision {
		close(started)
		<-ctx.Done()
		close(gone)
		return pick
	}, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(headersMsg(nil, false, chat()...))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(bodyMsg(`{}`, true))
	<-started
	cancel()
	<-gone
	eventually(t, "the decision is taken back", func() bool {
		reqs, outs := r.seen()
		return len(outs) == 1 && outs[0].Phase == router.Ended && outs[0].ID == reqs[0].ID && outs[0].Code == 0
	})
}

// TestRefuseUnread checks that, if no body may pass unread, every failure is answered; otherwise the stream ends and Envoy goes
// on.
func TestRefuseUnread(t *testing.T) {
	other := func(method, path string) *extprocv3.ProcessingRequest {
		return headersMsg(nil, false, ":method", method, ":path", path, "content-type", "application/json")
	}
	streamed, broken := modev3.ProcessingMode_STREAMED, pick
	broken.Edits = []router.Edit{{From: 1, To: 400}}
	for _, c := range []struct {
		name   string
		decide Decide
		send   []*extprocv3.ProcessingRequest
		want   int
	}{
		{"read", always(pick), []*extprocv3.ProcessingRequest{headersMsg(nil, false, chat()...), bodyMsg("{}", true)}, 0},
		{"no headers", always(pick), []*extprocv3.ProcessingRequest{bodyMsg("{}", true)}, 503},
		{"body mode", always(pick), []*extprocv3.ProcessingRequest{headersMsg(&streamed, false, chat()...)}, 503},
		{"no body", always(pick), []*extprocv3.ProcessingRequest{headersMsg(nil, false, chat()...), headersMsg(nil, false, chat()...)}, 503},
		{"panic", func(context.Context, *router.Request) router.Decision {
			panic("told to")
		}, []*extprocv3.ProcessingRequest{headersMsg(nil, false, chat()...), bodyMsg("{}", true)}, 503},
		{"edit", always(broken), []*extprocv3.ProcessingRequest{headersMsg(nil, false, chat()...), bodyMsg("{}", true)}, 503},
		{"edit, full duplex", always(broken), []*extprocv3.ProcessingRequest{headersMsg(&duplexed, false, chat()...), bodyMsg("{}", true)}, 503},
		{"another path", always(pick), []*extprocv3.ProcessingRequest{other("POST", "/generate?x")}, 403},
		{"another path, spelt otherwise", always(pick), []*extprocv3.ProcessingRequest{other("PUT", "/%67enerate/")}, 403},
		{"a path that may pass", always(pick), []*extprocv3.ProcessingRequest{other("POST", "/v1%2Fembeddings")}, 0},
		{"a stored answer", always(pick), []*extprocv3.ProcessingRequest{other("POST", "/v1/responses/a/cancel")}, 0},
		{"GET", always(pick), []*extprocv3.ProcessingRequest{other("GET", "/generate")}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, strict := range []bool{true, false} {
				r := newRig(t, c.decide, Options{MaxBody: 1000, RefuseUnread: strict, Pass: []string{"/v1/embeddings"}, Route: Route{Mode: Sightline}})
				l, code := r.open(t), 0
				for _, m := range c.send {
					_ = l.Send(m)
				}
				for a, err := l.Recv(); err == nil; a, err = l.Recv() {
					code = max(code, int(a.GetImmediateResponse().GetStatus().GetCode()))
				}
				if strict && code != c.want || !strict && code != 0 {
					t.Errorf("refused %t: status %d, want %d, or 0 where unread bodies are routed", strict, code, c.want)
				}
			}
		})
	}
}

// TestGone checks that the end of a stream right after its decision is reported, since the client may have left before Envoy read
// the decision, and a later one is not.
func TestGone(t *testing.T) {
	r := newRig(t, always(pick), Options{})
	for _, leaves := range []bool{true, false} {
		if !leaves {
			r.lingers = 0
		}
		_, before := r.seen()
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*extprocv3.ProcessingRequest{headersMsg(nil, false, chat()...), bodyMsg("{}", true)} {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if leaves {
			cancel()
			eventually(t, "it is reported", func() bool {
				_, seen := r.seen()
				return len(seen) == len(before)+1 && seen[len(before)].Phase == router.Gone && seen[len(before)].ID != ""
			})
			continue
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("the stream goes on: got %v, want %v", err, io.EOF)
		}
		cancel()
		if _, seen := r.seen(); len(seen) != len(before) {
			t.Errorf("%+v: got %d, want %d", seen[len(before):], len(seen), len(before))
		}
	}
}

// TestBodyByteByByte checks that a full-duplex body that comes byte by byte costs about its size: each piece would keep 256 bytes.
func TestBodyByteByByte(t *testing.T) {
	const text = `{"model":"m"}`
	for name, sizes := range map[string][]int{"bytes": {1}, "empty pieces": {0, 1}, "small and large": {1, smallPiece + 1, 7},
		"kilobytes": {1000}} {
		got := make(chan [][]byte, 1)
		r := newRig(t, func(_ context.Context, req *router.Request) router.Decision {
			r := *req
			got <- r.Body
			return pick
		}, Options{})
		whole := []byte(text + strings.Repeat(" ", 40_000))
		duplex := modev3.ProcessingMode_FULL_DUPLEX_STREAMED
		stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		send := func(m *extprocv3.ProcessingRequest) {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		send(headersMsg(&duplex, false, chat()...))
		for i, at := 0, 0; at < len(whole); i++ {
			to := min(len(whole), at+sizes[i%len(sizes)])
			send(bodyMsg(string(whole[at:to]), to == len(whole)))
			at = to
		}
		body := <-got
		if most := 2*len(whole)/smallPiece + 4; len(body) > most {
			t.Errorf("%s: %d pieces are kept, want %d at most", name, len(body), most)
		}
		var back []byte
		for len(back) < len(whole) {
			a, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			back = append(back, a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
		}
		if !bytes.Equal(back, whole) {
			t.Errorf("%s: %d bytes come back changed, want bytes.Equal(back, whole)", name, len(back))
		}
	}
}
