package extproc

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sightline-router/sightline/lab/eppcheck"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
)

// within picks among three endpoints like the router: those that the request allows, best first.
func within(_ context.Context, req *router.Request) router.Decision {
	d := router.Decision{Reason: router.Load, Model: "m"}
	for _, t := range []router.Target{{Worker: "a", Addr: "10.0.0.1:8000", Rank: -1}, {Worker: "b", Addr: "10.0.0.2:8000", Rank: -1},
		{Worker: "c", Addr: "[2001:db8::3]:8000", Rank: -1}} {
		host, _, _ := net.SplitHostPort(t.Addr)
		if req.Only == nil || slices.Contains(req.Only, t.Addr) || slices.Contains(req.Only, host) {
			d.Targets = append(d.Targets, t)
		}
	}
	return d
}

// TestEndpointPickerConformance checks that every case of the kit passes, and that each fails against a server that lacks what it
// checks (below).
func TestEndpointPickerConformance(t *testing.T) {
	r := newRig(t, within, Options{Route: Route{Mode: EndpointPicker}})
	results, err := eppcheck.Run(t.Context(), eppcheck.Options{Addr: r.conn.Target(), Model: "m", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range results {
		if c.Err != nil {
			t.Errorf("%s: got %v, want no error", c.Name, c.Err)
		}
	}
	if len(results) != 28 {
		t.Errorf("%d cases, want 28", len(results))
	}
	// The same as a report; and what it says of a picker that names no endpoint.
	for name, mode := range map[string]Mode{"Passed: 28": EndpointPicker, "Skipped: 7": Sightline} {
		o := Options{Route: Route{Mode: mode}}
		file, said := filepath.Join(t.TempDir(), "report.yaml"), &strings.Builder{}
		at := newRig(t, within, o).conn.Target()
		of := eppcheck.Implementation{Organization: "o", Project: "p", URL: "u", Version: "v1", Contact: []string{"c"}}
		err := eppcheck.Report(t.Context(),
			eppcheck.Options{Addr: at, Model: "m", Timeout: time.Minute, Report: file, Implementation: of}, said)
		text, _ := os.ReadFile(file)
		for _, want := range []string{name, "kind: ConformanceReport", "GatewayAPIInferenceExtensionVersion: v1.", "  organization: o\n",
			"name: EPP"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%v: no %q in\n%s, want it in string(text)", err, want, text)
			}
		}
		failed, told := strings.Contains(name, "Skipped"), strings.Contains(said.String(), "checks (Destination Endpoint)")
		if failed != (err != nil) || failed != told {
			t.Errorf("%s: got %v\n%s\nwant it to fail, and to say so: %v", name, err, said, failed)
		}
	}
	for _, r := range results {
		if section, demands := r.Clause(); section == "" || demands == "" {
			t.Errorf("%s: it says nothing of the protocol; got %q, %q, want some, some", r.Name, section, demands)
		}
	}
	// The protocol need not be configured: a full-duplex body or a hint is enough.
	r = newRig(t, within, Options{})
	results, _ = eppcheck.Run(t.Context(), eppcheck.Options{Addr: r.conn.Target(), Model: "m", Timeout: time.Minute})
	for _, c := range results {
		if c.Err != nil {
			t.Errorf("without configuration: %s: got %v, want no error", c.Name, c.Err)
		}
	}
	// A route in our own mode fails all but the ones about gRPC health and order.
	r = newRig(t, within, Options{Route: Route{Mode: Sightline}})
	results, _ = eppcheck.Run(t.Context(), eppcheck.Options{Addr: r.conn.Target(), Model: "m", Timeout: time.Minute})
	passed := 0
	for _, c := range results {
		if c.Err == nil {
			passed++
		}
	}
	if passed != 3 {
		t.Errorf("a server that names no endpoint passes %d cases, want the 3 of gRPC health", passed)
	}
}

// line is one stream as Envoy would run it, message by message.
type line struct {
	t *testing.T
	extprocv3.ExternalProcessor_ProcessClient
}

func (r *rig) open(t *testing.T, md ...string) line {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), md...), time.Minute)
	t.Cleanup(cancel)
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return line{t, s}
}

func (l line) ask(msg *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	l.t.Helper()
	if err := l.Send(msg); err != nil {
		l.t.Fatal(err)
	}
	return l.next()
}

func (l line) next() *extprocv3.ProcessingResponse {
	l.t.Helper()
	a, err := l.Recv()
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

var (
	duplexed = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered = modev3.ProcessingMode_BUFFERED
)

// TestRouteSettings checks that a route's metadata decides the mode, whatever the server's default.
func TestRouteSettings(t *testing.T) {
	for _, c := range []struct {
		name   string
		server Route
		md     []string
		want   map[string]string
		pool   string
	}{
		{"nothing said: both", Route{}, nil, map[string]string{HeaderWorker: "10.0.0.1:8000", HeaderSecond: "10.0.0.2:8000",
			HeaderEndpoint: "10.0.0.1:8000,10.0.0.2:8000,[2001:db8::3]:8000"}, ""},
		{"sightline", Route{}, []string{keyMode, "sightline"}, map[string]string{HeaderWorker: "10.0.0.1:8000", HeaderEndpoint: ""}, ""},
		{"epp", Route{Mode: Sightline}, []string{keyMode, "epp", keyPool, "p"}, map[string]string{HeaderWorker: "-",
			HeaderEndpoint: "10.0.0.1:8000,10.0.0.2:8000,[2001:db8::3]:8000"}, "p"},
		{"another header", Route{}, []string{keyHeader, "x-to", keyMode, "sightline"},
			map[string]string{"x-to": "10.0.0.1:8000", "x-to-2": "10.0.0.2:8000", HeaderWorker: ""}, ""},
		{"wrong mode", Route{Mode: Sightline}, []string{keyMode, "eep"}, map[string]string{HeaderWorker: "10.0.0.1:8000",
			HeaderEndpoint: ""}, ""},
		{"the server's pool", Route{Pool: "q"}, nil, map[string]string{HeaderWorker: "10.0.0.1:8000"}, "q"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, within, Options{Route: c.server})
			l := r.open(t, c.md...)
			if h := l.ask(headersMsg(&buffered, false, chat()...)); h.GetRequestHeaders() == nil {
				t.Fatalf("got %v first, want an answer to the headers", h)
			}
			got := told(l.ask(bodyMsg(`{}`, true)).GetRequestBody().GetResponse().GetHeaderMutation())
			for name, v := range c.want {
				if got[name] != v {
					t.Errorf("%s: %q, want %q", name, got[name], v)
				}
			}
			if reqs, _ := r.seen(); reqs[0].Pool != c.pool {
				t.Errorf("pool %q, want %q", reqs[0].Pool, c.pool)
			} else if reqs[0].MustPick != (c.name == "epp") {
				t.Errorf(`the router must pick: %t, want reqs[0].MustPick == (c.name == "epp")`, reqs[0].MustPick)
			}
			if n := r.logs.FilterMessageSnippet("x-sightline-mode").Len(); (n > 0) != (c.name == "wrong mode") {
				t.Errorf(`%d complaints about the mode, want (n > 0) == (c.name == "wrong mode")`, n)
			}
		})
	}
}

// TestSubsetHint checks that the hint is accepted from the gateway's metadata on any route, from a header only if the route is a
// gateway's, and never on a route of our own mode.
func TestSubsetHint(t *testing.T) {
	header := chat(HeaderSubset, "10.0.0.2:8000,", HeaderSubset, "[fd00::1]:9, 10.0.0.9")
	for _, c := range []struct {
		name string
		mode Mode
		kv   []string
		meta *structpb.Value
		want []string
	}{
		{"header, epp", EndpointPicker, header, nil, []string{"10.0.0.2:8000", "[fd00::1]:9", "10.0.0.9"}},
		{"header, nothing said", Auto, header, nil, nil},
		{"header, sightline", Sightline, header, nil, nil},
		{"metadata, nothing said", Auto, chat(), structpb.NewStringValue("10.0.0.1:8000"), []string{"10.0.0.1:8000"}},
		{"metadata, sightline", Sightline, chat(), structpb.NewStringValue("10.0.0.1:8000"), nil},
		{"both: the metadata", EndpointPicker, header, structpb.NewStringValue("[::ffff:10.0.0.1]:8000"), []string{"10.0.0.1:8000"}},
		{"no list", EndpointPicker, chat(), structpb.NewNumberValue(3), []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, always(pick), Options{Route: Route{Mode: c.mode}})
			msg := headersMsg(&buffered, false, c.kv...)
			if c.meta != nil {
				msg.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
					spaceSubset: {Fields: map[string]*structpb.Value{HeaderSubset: c.meta}}}}
			}
			l := r.open(t)
			l.ask(msg)
			l.ask(bodyMsg(`{}`, true))
			if reqs, _ := r.seen(); !slices.Equal(reqs[0].Only, c.want) || (reqs[0].Only == nil) != (c.want == nil) {
				t.Errorf("%q, want %q", reqs[0].Only, c.want)
			}
		})
	}
}

// TestServedEndpoint checks that the response says who served the request, in both ways, and the stream's end that it is over,
// and that an access log with the same facts is not counted twice.
func TestServedEndpoint(t *testing.T) {
	lb := func(m *extprocv3.ProcessingRequest) {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			spaceLB: {Fields: map[string]*structpb.Value{keyServed: structpb.NewStringValue("10.0.0.2:8000")}}}}
	}
	attribute := func(m *extprocv3.ProcessingRequest) {
		m.Attributes = map[string]*structpb.Struct{
			"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{"upstream.address": structpb.NewStringValue("10.0.0.2:8000")}}}
	}
	for name, say := range map[string]func(*extprocv3.ProcessingRequest){"metadata": lb, "attribute": attribute} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, within, Options{Route: Route{Mode: EndpointPicker}})
			l := r.open(t)
			l.ask(headersMsg(&buffered, false, chat()...))
			l.ask(bodyMsg(`{}`, true))
			back := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
				ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status",
					RawValue: []byte("200")}}}}}}
			say(back)
			if a := l.ask(back); a.GetResponseHeaders() == nil {
				t.Errorf("answer %v, want one to the response headers", a)
			}
			_ = l.CloseSend()
			if _, err := l.Recv(); err != io.EOF {
				t.Errorf("the stream ended with %v, want OK", err)
			}
			var outcomes []router.Outcome
			eventually(t, "both outcomes", func() bool { _, outcomes = r.seen(); return len(outcomes) == 2 })
			if o := outcomes[0]; o.Phase != router.Started || o.Addr != "10.0.0.2:8000" {
				t.Errorf("first %+v, want Phase %d, Addr %q", o, router.Started, "10.0.0.2:8000")
			}
			if o := outcomes[1]; o.Phase != router.Ended || o.Code != 200 || o.FirstByte <= 0 || o.ID != outcomes[0].ID {
				t.Errorf("got %+v second, want the same request's end with status 200 and the time of its first byte", o)
			}
		})
	}
}

// TestAnswerThatIsCutOff: a stream that has the response's body tells whether it came whole, and what it said.
func TestAnswerThatIsCutOff(t *testing.T) {
	for _, whole := range []bool{true, false} {
		said := learned.NewHasher(nil).NewSaid()
		r := newRig(t, func(ctx context.Context, req *router.Request) router.Decision {
			d := within(ctx, req)
			d.Said = said
			return d
		}, Options{Route: Route{Mode: EndpointPicker}})
		l := r.open(t)
		first := headersMsg(&duplexed, false, chat()...)
		first.ProtocolConfig.ResponseBodyMode = duplexed
		for _, m := range []*extprocv3.ProcessingRequest{first, bodyMsg(`{}`, true),
			{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{
				Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}}}}}},
			{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
				Body: []byte(`{"choices":[{"message":{"content":"Yes."},"finish_reason":"stop"}]}`), EndOfStream: whole}}},
		} {
			if err := l.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		_ = l.CloseSend()
		for err := error(nil); err == nil; {
			_, err = l.Recv()
		}
		ended := func() (o router.Outcome) {
			_, outcomes := r.seen()
			at := slices.IndexFunc(outcomes, func(o router.Outcome) bool { return o.Phase == router.Ended })
			if at >= 0 {
				o = outcomes[at]
			}
			return o
		}
		eventually(t, "the end", func() bool { return ended().ID != "" })
		if o := ended(); o.Code != 200 || o.Cut == whole {
			t.Errorf("whole %v: got %+v, want Code 200, Cut other than %v", whole, o, whole)
		}
		if known := said.Sum() != 0; known != whole {
			t.Errorf("whole %t: what it said is known: got %t, want %v", whole, known, whole)
		}
	}
}

// TestFullDuplex checks a full-duplex body in our own mode: edits are in the returned body, and the stream ends with the request.
func TestFullDuplex(t *testing.T) {
	d := pick
	d.Edits = []router.Edit{{From: 2, To: 4, Text: []byte("XYZ")}}
	r := newRig(t, always(d), Options{MaxBody: 100_000, Route: Route{Mode: Sightline}})
	l := r.open(t)
	send := func(m *extprocv3.ProcessingRequest) {
		if err := l.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(headersMsg(&duplexed, false, chat()...))
	long := strings.Repeat("x", 70_000)
	send(bodyMsg("{01", false))
	send(bodyMsg("2"+long+"}", true))
	h := l.next()
	if got := told(h.GetRequestHeaders().GetResponse().GetHeaderMutation()); got[HeaderWorker] != "10.0.0.1:8000" || h.ModeOverride != nil {
		t.Fatalf("first answer %v: got %q, want %q, ModeOverride nil", h, got[HeaderWorker], "10.0.0.1:8000")
	}
	back := func() (text string) {
		for {
			a := l.next()
			s := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			if s == nil || len(s.Body) > 64<<10 {
				t.Fatalf("answer %.100v, want a part of the body", a)
			}
			text += string(s.Body)
			if s.EndOfStream {
				return text
			}
		}
	}
	if got := back(); got != "{0XYZ"+long+"}" {
		t.Errorf("%d bytes came back, want the body with its edit", len(got))
	}
	if _, err := l.Recv(); err != io.EOF {
		t.Errorf("after the request: %v, want the end of the stream", err)
	}
	// Not ours: passed on unread.
	l.ExternalProcessor_ProcessClient = r.open(t).ExternalProcessor_ProcessClient
	send(headersMsg(&duplexed, false, ":method", "POST", ":path", "/v1/embeddings"))
	if a := l.next(); a.GetRequestHeaders() == nil {
		t.Fatalf("got %v, want an answer to the headers", a)
	}
	send(bodyMsg("abc", false))
	if s := l.next().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(s.GetBody()) != "abc" ||
		s.GetEndOfStream() {
		t.Errorf(`%v came back, want string(s.GetBody()) == "abc", !s.GetEndOfStream()`, s)
	}
	send(bodyMsg("", true))
	if got := back(); got != "" {
		t.Errorf("%q came back, want %q", got, "")
	}
	// Too large, detected while it arrives: refused, since it was not checked for what a client must not say.
	l.ExternalProcessor_ProcessClient = r.open(t).ExternalProcessor_ProcessClient
	send(headersMsg(&duplexed, false, chat()...))
	send(bodyMsg(long, false))
	send(bodyMsg(long, false))
	if a := l.next(); a.GetImmediateResponse().GetStatus().GetCode() != 413 {
		t.Errorf("answer %v to a body too large, want 413", a)
	}
	eventually(t, "no bytes are booked", func() bool { return r.bodyBytes.Taken() == 0 })
}

// TestNamedPod: a response names the pod that served it, also after a retry, if that is asked for and the gateway says who served.
func TestNamedPod(t *testing.T) {
	for _, c := range []struct {
		asked        bool
		served, want string
	}{{true, "10.0.0.2:8000", "b"}, {true, "", ""}, {true, "10.0.0.9:8000", ""}, {false, "10.0.0.1:8000", ""}} {
		r := newRig(t, within, Options{Route: Route{Mode: EndpointPicker, NamePod: c.asked}})
		l := r.open(t)
		l.ask(headersMsg(&buffered, false, chat()...))
		l.ask(bodyMsg(`{}`, true))
		a := l.ask(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}}}}},
			MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				spaceLB: {Fields: map[string]*structpb.Value{keyServed: structpb.NewStringValue(c.served)}}}}})
		if got := told(a.GetResponseHeaders().GetResponse().GetHeaderMutation())[HeaderPod]; got != c.want || a.GetResponseHeaders() == nil {
			t.Errorf("%+v: got the pod %q, want %q in an answer to the response's headers", c, got, c.want)
		}
	}
}

// TestOneAddress checks that only the first choice is named if the route says so, and from the first list on that a gateway could not
// use: it answers 503 itself, without an endpoint that served. A list that has worked is not doubted again.
func TestOneAddress(t *testing.T) {
	const all, best = "10.0.0.1:8000,10.0.0.2:8000,[2001:db8::3]:8000", "10.0.0.1:8000"
	r := newRig(t, within, Options{Route: Route{Mode: EndpointPicker}})
	ask := func(status, served string) string {
		t.Helper()
		l := r.open(t)
		l.ask(headersMsg(&buffered, false, chat()...))
		a := l.ask(bodyMsg(`{}`, true))
		back := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte(status)}}}}}}
		if served != "" {
			back.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				spaceLB: {Fields: map[string]*structpb.Value{keyServed: structpb.NewStringValue(served)}}}}
		}
		l.ask(back)
		named := told(a.GetRequestBody().GetResponse().GetHeaderMutation())[HeaderEndpoint]
		if lb := a.GetDynamicMetadata().GetFields()[spaceLB].GetStructValue().GetFields()[HeaderEndpoint].GetStringValue(); lb != named {
			t.Errorf("%q in the metadata, %q in the header, want %q", lb, named, named)
		}
		return named
	}
	for i, c := range []struct{ status, served, want string }{{"503", "", all}, {"200", "", best}, {"503", "", best}} {
		if got := ask(c.status, c.served); got != c.want {
			t.Errorf("request %d names %q, want %q", i, got, c.want)
		}
	}
	if n := r.logs.FilterMessageSnippet("one address").Len(); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
	r = newRig(t, within, Options{Route: Route{Mode: EndpointPicker}})
	for i, c := range []struct{ status, served string }{{"503", best}, {"503", ""}, {"200", ""}} { // the first is a worker's own
		if got := ask(c.status, c.served); got != all {
			t.Errorf("where lists work, request %d names %q, want %q", i, got, all)
		}
	}
	r = newRig(t, within, Options{Route: Route{Mode: EndpointPicker, OneAddress: true}})
	if got := ask("200", ""); got != best {
		t.Errorf("with one_address: got %q, want %q", got, best)
	}
}
