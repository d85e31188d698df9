package extproc

import (
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/router"
)

// Envoy's access log reports the further life of a decided request, within 100 ms (buffer_flush_interval of envoy.yaml):
//
//	UpstreamPoolReady   a connection to worker X is ready, the request goes there   → Started; again after a retry
//	UpstreamEnd         the request is over at worker X: with flags, it failed there → Failed; else it was answered → Done
//	DownstreamEnd       the request is over: status, timings, tokens                → Ended
//
// Entries carry the request header x-sightline-id, the decision's id. Other entry types, and entries without an id (requests that
// were not ours, or that Envoy sent on without us), are counted and dropped. Envoy loses entries while we are down, and entries
// of two Envoy threads may come in any order: outcomeFilter removes repeated and late ones. Reports on another replica's decision are
// forwarded to it.

// tokenUsageKey is the metadata of the filter ai_protocol_manager (Envoy 1.40), with the engine's own token counts.
const tokenUsageKey = "envoy.ai.token_usage"

// StreamAccessLogs serves one of Envoy's log streams: one for each Envoy thread and kind of logger, open while Envoy runs. Its
// end means that an Envoy died, or lost its connection and will open another with the next entry. An Envoy in a hot restart keeps
// its streams until its last request is over. Starts and ends may come over two streams, so the source of a report is their
// connection: the end of either stream is taken as the end of both.
func (s *Server) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	source := connection(stream.Context())
	defer s.lost(source)
	done := make(chan error, 1)
	go func() {
		for {
			msg, err := stream.Recv()
			if err != nil {
				done <- err
				return
			}
			for _, e := range msg.GetHttpLogs().GetLogEntry() {
				s.entrySafely(source, e)
			}
		}
	}()
	select {
	case <-s.stopping: // returning ends the stream, and with it the goroutine's Recv
		return nil
	case err := <-done:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

func (s *Server) logEntry(source uint64, e *accessv3.HTTPAccessLogEntry) {
	common, code := e.GetCommonProperties(), int(e.GetResponse().GetResponseCode().GetValue())
	kind, fault := common.GetAccessLogType(), ""
	if kind == accessv3.AccessLogType_UpstreamEnd {
		fault = faultOf(common.GetResponseFlags())
	}
	answered := kind == accessv3.AccessLogType_UpstreamEnd && code > 0
	if kind != accessv3.AccessLogType_UpstreamPoolReady && kind != accessv3.AccessLogType_DownstreamEnd && fault == "" && !answered {
		s.metrics.entries.WithLabelValues("other type").Inc()
		return
	}
	id := e.GetRequest().GetRequestHeaders()[HeaderID]
	if id == "" || len(id) > maxID {
		s.stray(kind, e)
		s.metrics.entries.WithLabelValues("no decision id").Inc()
		return
	}
	o := outcome(id, router.Started)
	o.Addr, o.Source = hostPort(common.GetUpstreamRemoteAddress()), source
	switch {
	case fault != "":
		o.Phase, o.Fault = router.Failed, fault
	case answered:
		o.Phase, o.Code = router.Done, code
	case kind == accessv3.AccessLogType_DownstreamEnd:
		o.Phase, o.Code = router.Ended, code
		details := e.GetResponse().GetResponseCodeDetails()
		o.Answered = details == "via_upstream"
		o.Retried = common.GetUpstreamRequestAttemptCount() > 1
		o.Denied = o.Addr != "" && strings.HasPrefix(details, "rbac_access_denied") // with an address: not by a filter before the choice
		o.Cut, o.Fault = brokeOff(common.GetResponseFlags()), flagsOf(common.GetResponseFlags())
		o.FirstByte = common.GetTimeToFirstUpstreamRxByte().AsDuration()
		readUsage(common.GetMetadata(), &o)
	}
	if o.Phase != router.Failed && !s.outcomes.admit(o) { // a worker may fail a request twice, and after its end was reported
		s.metrics.entries.WithLabelValues("repeated or late").Inc()
		return
	}
	if o.Phase != router.Failed && s.forward(&o) {
		s.metrics.entries.WithLabelValues("forwarded").Inc()
		return
	}
	kinds := [...]string{router.Started: "started", router.Ended: "ended", router.Failed: "failed", router.Done: "done"}
	s.metrics.entries.WithLabelValues(kinds[o.Phase]).Inc()
	s.observeSafely(o)
}

// forward passes a report on another replica's decision to that replica. Failures of workers are handled by the replica that
// received them.
func (s *Server) forward(o *router.Outcome) bool {
	if s.opt.Forward == nil || len(o.ID) <= len(s.opt.Instance) {
		return false
	}
	to := o.ID[:len(s.opt.Instance)]
	return to != s.opt.Instance && s.opt.Forward(to, *o)
}

// lost reports that a log stream has ended.
func (s *Server) lost(source uint64) {
	o := router.Outcome{Phase: router.Lost, Source: source}
	s.observeSafely(o)
	if s.opt.Forward != nil {
		s.opt.Forward("", o)
	}
}

// Reported processes a report forwarded by another replica like one from Envoy.
func (s *Server) Reported(o router.Outcome) {
	if o.Phase != router.Lost && !s.outcomes.admit(o) {
		s.metrics.entries.WithLabelValues("repeated or late").Inc()
		return
	}
	s.observeSafely(o)
}

// faultOf returns how an upstream failed a request; "" if it did not, or if Envoy or the client caused the end.
func faultOf(f *accessv3.ResponseFlags) string {
	switch {
	case f.GetUpstreamConnectionFailure():
		return "connect"
	case f.GetUpstreamConnectionTermination(), f.GetUpstreamRemoteReset():
		return "reset"
	case f.GetUpstreamProtocolError():
		return "protocol"
	case f.GetUpstreamRequestTimeout():
		return "timeout"
	}
	return ""
}

// brokeOff reports whether the client or the upstream ended a request before its answer was whole.
func brokeOff(f *accessv3.ResponseFlags) bool {
	return f.GetDownstreamConnectionTermination() || f.GetDownstreamRemoteReset() ||
		f.GetUpstreamConnectionTermination() || f.GetUpstreamRemoteReset()
}

// entrySafely processes an entry; a panic costs only that entry.
func (s *Server) entrySafely(source uint64, e *accessv3.HTTPAccessLogEntry) {
	defer s.recoverPanic("access log")
	s.logEntry(source, e)
}

func (s *Server) observeSafely(o router.Outcome) {
	defer s.recoverPanic("observe")
	s.observe(o)
}

// readUsage fills in the engine's token counts if Envoy extracted them from the response.
func readUsage(m *corev3.Metadata, o *router.Outcome) {
	packed := m.GetTypedFilterMetadata()[tokenUsageKey]
	if packed == nil {
		return
	}
	var u aiv3.TokenUsage
	if packed.UnmarshalTo(&u) != nil {
		return
	}
	if n := u.GetInputTokens(); n != nil {
		o.PromptTokens = int(n.GetValue())
	}
	o.OutputTokens = int(u.GetOutputTokens().GetValue())
	if n := u.GetInputTokenDetails().GetCachedTokens(); n != nil {
		o.CachedTokens = int(n.GetValue())
	}
}

// hostPort returns "ip:port" for an address in the log; empty if none was dialled.
func hostPort(a *corev3.Address) string {
	s := a.GetSocketAddress()
	if s.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
}

const (
	maxID           = 64      // longer ids are not ours
	maxSeenOutcomes = 1 << 16 // requests remembered; at 1000 a second more than a minute's worth
)

// outcomeFilter lets every fact through once: a start for each worker tried, the end, and nothing after the end. It remembers the last
// capacity requests at about 200 bytes each. Entries of a request that it has evicted pass again; the router has forgotten that
// request too by then, and drops them.
type outcomeFilter struct {
	mu   sync.Mutex
	seen *simplelru.LRU[string, seenOutcome]
}

type seenOutcome struct {
	addr  string // the worker of the last start
	ended bool
}

func newOutcomeFilter(capacity int) *outcomeFilter {
	seen, _ := simplelru.NewLRU[string, seenOutcome](capacity, nil) // fails only for a capacity below 1
	return &outcomeFilter{seen: seen}
}

// admit reports whether an outcome is new.
func (j *outcomeFilter) admit(o router.Outcome) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	seen, known := j.seen.Peek(o.ID)
	if known && (seen.ended || o.Phase == router.Started && seen.addr == o.Addr) {
		return false
	}
	j.seen.Add(o.ID, seenOutcome{addr: o.Addr, ended: o.Phase == router.Ended})
	return true
}
