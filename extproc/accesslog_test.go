package extproc

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	start  = accessv3.AccessLogType_DownstreamStart
	ready  = accessv3.AccessLogType_UpstreamPoolReady
	upEnd  = accessv3.AccessLogType_UpstreamEnd
	ended  = accessv3.AccessLogType_DownstreamEnd
	worker = "10.0.0.1"
)

func entry(kind accessv3.AccessLogType, id, ip string, code uint32) *accessv3.HTTPAccessLogEntry {
	e := &accessv3.HTTPAccessLogEntry{
		CommonProperties: &accessv3.AccessLogCommon{AccessLogType: kind},
		Request:          &accessv3.HTTPRequestProperties{RequestHeaders: map[string]string{HeaderID: id}},
	}
	if ip != "" {
		e.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8000}}}}
	}
	if kind == ended {
		e.CommonProperties.TimeToFirstUpstreamRxByte = durationpb.New(1500 * time.Microsecond)
	}
	if kind == ended || code > 0 {
		e.Response = &accessv3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(code)}
	}
	return e
}

func usage(t *testing.T, e *accessv3.HTTPAccessLogEntry, m proto.Message) *accessv3.HTTPAccessLogEntry {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	e.CommonProperties.Metadata = &corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{tokenUsageKey: packed}}
	return e
}

func TestAccessLog(t *testing.T) {
	started := func(addr string) router.Outcome {
		return router.Outcome{ID: "A", Phase: router.Started, Addr: addr, Source: 1, CachedTokens: -1, PromptTokens: -1}
	}
	over := func(addr string, code, cached, prompt int) router.Outcome {
		return router.Outcome{ID: "A", Phase: router.Ended, Addr: addr, Code: code, Source: 1, FirstByte: 1500 * time.Microsecond,
			CachedTokens: cached, PromptTokens: prompt}
	}
	wrote := func(o router.Outcome, tokens int) router.Outcome {
		o.OutputTokens = tokens
		return o
	}
	cut := func(o router.Outcome, flags string) router.Outcome {
		o.Cut, o.Fault = true, flags
		return o
	}
	with := func(e *accessv3.HTTPAccessLogEntry, flags *accessv3.ResponseFlags) *accessv3.HTTPAccessLogEntry {
		e.CommonProperties.ResponseFlags = flags
		return e
	}
	attempts := func(e *accessv3.HTTPAccessLogEntry, n uint32) *accessv3.HTTPAccessLogEntry {
		e.CommonProperties.UpstreamRequestAttemptCount = n
		return e
	}
	retried := func(o router.Outcome) router.Outcome {
		o.Retried = true
		return o
	}
	failed := func(fault string) router.Outcome {
		return router.Outcome{ID: "A", Phase: router.Failed, Addr: "10.0.0.1:8000", Fault: fault, Source: 1, CachedTokens: -1, PromptTokens: -1}
	}
	done := func(code int) router.Outcome {
		return router.Outcome{ID: "A", Phase: router.Done, Addr: "10.0.0.1:8000", Code: code, Source: 1, CachedTokens: -1, PromptTokens: -1}
	}
	flagged := func(id string, f *accessv3.ResponseFlags) *accessv3.HTTPAccessLogEntry {
		e := entry(upEnd, id, worker, 0)
		e.CommonProperties.ResponseFlags = f
		return e
	}
	const one, two = "10.0.0.1:8000", "10.0.0.2:8000"
	for _, c := range []struct {
		name    string
		entries []*accessv3.HTTPAccessLogEntry
		want    []router.Outcome
	}{
		{"as usual", []*accessv3.HTTPAccessLogEntry{entry(start, "A", "", 0), entry(ready, "A", worker, 0),
			entry(upEnd, "A", worker, 200), entry(ended, "A", worker, 200)},
			[]router.Outcome{started(one), done(200), over(one, 200, -1, -1)}},
		{"no status: the client has left", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0),
			entry(upEnd, "A", worker, 0), entry(ended, "A", worker, 0)},
			[]router.Outcome{started(one), over(one, 0, -1, -1)}},
		{"the worker's end after the request's", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0),
			entry(ended, "A", worker, 200), entry(upEnd, "A", worker, 200)},
			[]router.Outcome{started(one), over(one, 200, -1, -1)}},
		{"done, then at another worker", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0),
			entry(upEnd, "A", worker, 503), entry(ready, "A", "10.0.0.2", 0), entry(ended, "A", "10.0.0.2", 200)},
			[]router.Outcome{started(one), done(503), started(two), over(two, 200, -1, -1)}},
		{"twice", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0), entry(ready, "A", worker, 0),
			entry(ended, "A", worker, 200), entry(ended, "A", worker, 200)},
			[]router.Outcome{started(one), over(one, 200, -1, -1)}},
		{"end before start", []*accessv3.HTTPAccessLogEntry{entry(ended, "A", worker, 200), entry(ready, "A", worker, 0)},
			[]router.Outcome{over(one, 200, -1, -1)}},
		{"retry", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0), entry(ready, "A", "10.0.0.2", 0),
			entry(ended, "A", "10.0.0.2", 200)},
			[]router.Outcome{started(one), started(two), over(two, 200, -1, -1)}},
		{"Envoy counts the attempts", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", "10.0.0.2", 0),
			attempts(entry(ended, "A", "10.0.0.2", 200), 2)},
			[]router.Outcome{started(two), retried(over(two, 200, -1, -1))}},
		{"one attempt", []*accessv3.HTTPAccessLogEntry{attempts(entry(ended, "A", worker, 200), 1)}, []router.Outcome{over(one, 200, -1, -1)}},
		{"no connection, retry", []*accessv3.HTTPAccessLogEntry{flagged("A", &accessv3.ResponseFlags{UpstreamConnectionFailure: true}),
			entry(ready, "A", "10.0.0.2", 0), entry(ended, "A", "10.0.0.2", 200)},
			[]router.Outcome{failed("connect"), started(two), over(two, 200, -1, -1)}},
		{"breaks off, told late", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0), entry(ended, "A", worker, 200),
			flagged("A", &accessv3.ResponseFlags{UpstreamConnectionTermination: true})},
			[]router.Outcome{started(one), over(one, 200, -1, -1), failed("reset")}},
		{"the client leaves in the middle of the answer", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0),
			with(entry(ended, "A", worker, 200), &accessv3.ResponseFlags{DownstreamConnectionTermination: true})},
			[]router.Outcome{started(one), cut(over(one, 200, -1, -1), "DC")}},
		{"the worker breaks off", []*accessv3.HTTPAccessLogEntry{entry(ready, "A", worker, 0),
			with(entry(ended, "A", worker, 200), &accessv3.ResponseFlags{UpstreamRemoteReset: true})},
			[]router.Outcome{started(one), cut(over(one, 200, -1, -1), "UR")}},
		{"the client leaves, the pool is full",
			[]*accessv3.HTTPAccessLogEntry{flagged("A", &accessv3.ResponseFlags{DownstreamConnectionTermination: true}),
				flagged("A", &accessv3.ResponseFlags{UpstreamOverflow: true})}, nil},
		{"never sent on", []*accessv3.HTTPAccessLogEntry{entry(ended, "A", "", 0)}, []router.Outcome{over("", 0, -1, -1)}},
		{"no id", []*accessv3.HTTPAccessLogEntry{entry(ready, "", worker, 0), entry(ended, "", worker, 200)}, nil},
		{"long id", []*accessv3.HTTPAccessLogEntry{entry(ended, fmt.Sprintf("%065d", 1), worker, 200)}, nil},
		{"empty entry", []*accessv3.HTTPAccessLogEntry{{}}, nil},
		{"usage", []*accessv3.HTTPAccessLogEntry{usage(t, entry(ended, "A", worker, 200), &aiv3.TokenUsage{
			InputTokens: wrapperspb.UInt64(130), InputTokenDetails: &aiv3.InputTokenDetails{CachedTokens: wrapperspb.UInt64(0)}})},
			[]router.Outcome{over(one, 200, 0, 130)}},
		{"usage with output", []*accessv3.HTTPAccessLogEntry{usage(t, entry(ended, "A", worker, 200),
			&aiv3.TokenUsage{OutputTokens: wrapperspb.UInt64(77)})},
			[]router.Outcome{wrote(over(one, 200, -1, -1), 77)}},
		{"usage without details", []*accessv3.HTTPAccessLogEntry{usage(t, entry(ended, "A", worker, 200),
			&aiv3.TokenUsage{InputTokens: wrapperspb.UInt64(130)})},
			[]router.Outcome{over(one, 200, -1, 130)}},
		{"usage of another type", []*accessv3.HTTPAccessLogEntry{usage(t, entry(ended, "A", worker, 200), &corev3.Address{})},
			[]router.Outcome{over(one, 200, -1, -1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, always(pick), Options{})
			stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range append(c.entries, entry(ended, "LAST", worker, 200)) {
				if err := stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
					HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: []*accessv3.HTTPAccessLogEntry{e}}}}); err != nil {
					t.Fatal(err)
				}
			}
			var got []router.Outcome
			eventually(t, "the last entry arrives", func() bool {
				_, got = r.seen()
				return len(got) > 0 && got[len(got)-1].ID == "LAST"
			})
			got = got[:len(got)-1]
			if len(got) != len(c.want) || len(got) > 0 && !reflect.DeepEqual(got, c.want) {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestAccessLogOfOneEnvoy checks that the status is the worker's own only if Envoy says so, and that the end of a stream is
// reported for its requests.
func TestAccessLogOfOneEnvoy(t *testing.T) {
	r := newRig(t, always(pick), Options{})
	ctx, leave := context.WithCancel(t.Context())
	stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	own, envoys := entry(ended, "A", worker, 503), entry(ended, "B", worker, 503)
	own.Response.ResponseCodeDetails, envoys.Response.ResponseCodeDetails = "via_upstream", "upstream_reset_before_response_started"
	denied, earlier := entry(ended, "C", worker, 403), entry(ended, "D", "", 403) // the second by a filter before the choice
	denied.Response.ResponseCodeDetails, earlier.Response.ResponseCodeDetails = "rbac_access_denied_matched_policy[none]",
		"rbac_access_denied_matched_policy[none]"
	if err := stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: []*accessv3.HTTPAccessLogEntry{own,
			envoys, denied, earlier}}}}); err != nil {
		t.Fatal(err)
	}
	var got []router.Outcome
	seen := func(n int) func() bool { return func() bool { _, got = r.seen(); return len(got) >= n } }
	eventually(t, "all entries arrive", seen(4))
	if got[0].Denied || !got[2].Denied || got[2].Answered || got[3].Denied {
		t.Errorf("whom Envoy denies: got %+v, want [0].Denied false, [2].Denied true, [2].Answered false, [3].Denied false", got)
	}
	if !got[0].Answered || got[1].Answered || got[0].Source == 0 || got[0].Source != got[1].Source {
		t.Errorf("got %+v, want the first answered and the second not, both under one source, not 0", got)
	}
	leave()
	eventually(t, "the end of the stream is told", seen(5))
	if got[4].Phase != router.Lost || got[4].Source != got[0].Source {
		t.Errorf("got %+v, want the last one Lost, under source %d as the first", got[4], got[0].Source)
	}
}

// TestEndsAreLostWithTheirStream checks that, if Envoy reports starts over one stream and ends over another, and the latter
// breaks alone with ends on their way, which are then never reported, the bookings expire, whether the Envoy reports another of
// its requests or none.
func TestEndsAreLostWithTheirStream(t *testing.T) {
	for _, goesOn := range []bool{false, true} {
		t.Run(fmt.Sprintf("it tells of another: %v", goesOn), func(t *testing.T) {
			var ahead atomic.Int64 // of the clock
			now := func() time.Time { return time.Unix(1000, 0).Add(time.Duration(ahead.Load())) }
			fl, index := fleet.New(now), indexer.New(indexer.Options{})
			fl.Set([]*fleet.Worker{fleet.NewWorker("w", netip.MustParseAddrPort(worker+":8000"), "m", 0,
				func(int) indexer.SlotID { return index.Join(indexer.SlotOptions{}) })})
			booked := ledger.New(fl, now)
			rt := router.New(router.Options{Models: []router.Model{{Name: "m",
				Prompts: engine.NewUnloaded(engine.Server{Engine: "vllm", EngineVersion: "0.32.0", BlockSize: 16})}},
				Fleet: fl, Ledger: booked, Index: index, PredictedTTL: time.Minute, Now: now})
			r := newRig(t, always(pick), Options{})
			heard := 0
			hear := func(n int) { // what serve does, for the next n outcomes
				t.Helper()
				var all []router.Outcome
				eventually(t, "they are told", func() bool { _, all = r.seen(); return len(all) >= heard+n })
				for _, o := range all[heard : heard+n] {
					rt.Observe(o)
				}
				heard += n
			}
			open := func(ctx context.Context) func(accessv3.AccessLogType, ...string) {
				stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return func(kind accessv3.AccessLogType, ids ...string) {
					t.Helper()
					var entries []*accessv3.HTTPAccessLogEntry
					for _, id := range ids {
						entries = append(entries, entry(kind, id, worker, 200))
					}
					if err := stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
						HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries}}}); err != nil {
						t.Fatal(err)
					}
					hear(len(ids))
				}
			}
			ids := []string{"A", "B", "C", "D", "E"}
			for i, id := range ids {
				rt.DecidePrompt(id, "m", 0, &engine.Prompt{IDs: slices.Repeat([]uint32{uint32(i)}, 100), HashableIDs: 100, Exact: true})
			}
			ctx, breaks := context.WithCancel(t.Context())
			upstream, downstream := open(t.Context()), open(ctx)
			upstream(ready, ids...)
			downstream(ended, "A")
			ahead.Add(int64(time.Minute)) // they are generating
			booked.Expire()
			if n := booked.Open(); n != 4 {
				t.Fatalf("%d booked before the break, want 4", n)
			}
			breaks()
			hear(1)
			if goesOn {
				open(t.Context())(ended, "B")
			}
			ahead.Add(int64(30 * time.Second))
			booked.Expire()
			if n := booked.Open(); n != 0 {
				t.Errorf("%d are booked 30 s after their ends were lost, want 0", n)
			}
		})
	}
}

func TestJoinerIsBounded(t *testing.T) {
	j := newOutcomeFilter(100)
	for i := range 1000 {
		if !j.admit(router.Outcome{ID: fmt.Sprint(i), Phase: router.Started}) {
			t.Fatalf("%d: not admitted, want j.admit(router.Outcome{ID: fmt.Sprint(i), Phase: router.Started})", i)
		}
	}
	if j.seen.Len() != 100 {
		t.Errorf("%d remembered, want 100", j.seen.Len())
	}
	if j.admit(router.Outcome{ID: "999", Phase: router.Started}) || !j.admit(router.Outcome{ID: "999", Phase: router.Ended}) ||
		j.admit(router.Outcome{ID: "999", Phase: router.Ended}) {
		t.Error(`the last one is not remembered, want !j.admit(router.Outcome{ID: "999", Phase: router.Started}), ` +
			`j.admit(router.Outcome{ID: "999", Phase: router.Ended}), !j.admit(router.Outcome{ID: "999", Phase: router.Ended})`)
	}
}

// TestPanicInObserve checks that an observer that panics costs one outcome.
func TestPanicInObserve(t *testing.T) {
	s, err := New(always(pick), func(router.Outcome) { panic("x") }, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.grpc.Stop()
	s.logEntry(0, entry(ended, "A", worker, 200))
}

// TestForwarded checks that a report on another replica's request goes to that replica only; that reports without a deciding
// replica, and failures of workers, are processed here; and that a forwarded report is processed once, whoever else sends it.
func TestForwarded(t *testing.T) {
	var here, there []string
	s, err := New(nil, func(o router.Outcome) {
		here = append(here, o.ID)
	}, Options{Instance: "OURS2222", Forward: func(to string, o router.Outcome) bool {
		if to == "THEIRS22" || to == "" {
			there = append(there, to+o.ID)
			return true
		}
		return false
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.grpc.Stop()
	fault := entry(upEnd, "THEIRS22F", worker, 0)
	fault.CommonProperties.ResponseFlags = &accessv3.ResponseFlags{UpstreamRemoteReset: true}
	for _, e := range []*accessv3.HTTPAccessLogEntry{entry(ready, "OURS2222A", worker, 0), entry(ready, "THEIRS22A", worker, 0),
		entry(ended, "THEIRS22A", worker, 200),
		entry(ended, "THEIRS22A", worker, 200), entry(ended, "NOBODY22A", worker, 200), entry(ended, "SHORT", worker, 200), fault} {
		s.logEntry(1, e)
	}
	s.Reported(router.Outcome{ID: "OURS2222A", Phase: router.Started, Addr: worker + ":8000"})
	s.Reported(router.Outcome{ID: "OURS2222B", Phase: router.Ended})
	s.lost(1)
	if want := []string{"OURS2222A", "NOBODY22A", "SHORT", "THEIRS22F", "OURS2222B", ""}; !slices.Equal(here, want) {
		t.Errorf("taken here: %q, want %q", here, want)
	}
	if want := []string{"THEIRS22THEIRS22A", "THEIRS22THEIRS22A", ""}; !slices.Equal(there, want) {
		t.Errorf("forwarded: %q, want %q", there, want)
	}
}
