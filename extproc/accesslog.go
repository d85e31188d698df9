package extproc

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/router"
)

// Envoy's access log tells how a request that we decided went on, 20 ms after the fact at most (buffer_flush_interval of
// envoy.yaml):
//
//	UpstreamPoolReady   a connection to worker X is ready, the request goes there   → Started; again after a retry
//	UpstreamEnd         the request is over at worker X: with flags, it failed there → Failed; else nothing new
//	DownstreamEnd       the request is over: status, timings, tokens                → Ended
//
// Entries carry the request header x-sightline-id, which is the decision's id. Other entry types, and entries without an
// id (requests that were not ours, or that Envoy sent on without us), are counted and dropped. Envoy loses entries while
// we are away, and entries of two Envoy threads can come in any order: joiner makes one clean story of what does come.
// What is told of another replica's decision goes to that one.

// tokenUsageKey is where the filter ai_protocol_manager (Envoy 1.40) leaves the engine's own token counts.
const tokenUsageKey = "envoy.ai.token_usage"

// StreamAccessLogs serves one of Envoy's log streams: one per Envoy thread and kind of logger, open for as long as Envoy runs.
// Its end means that an Envoy died, or lost its connection and will open another with the next entry. An Envoy that restarts
// hot keeps its streams until its last request is over. Starts and ends may come over two streams; the connection that both
// come over is the source of what they tell, so that the end of either is heeded for all of it.
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
	common := e.GetCommonProperties()
	kind, fault := common.GetAccessLogType(), ""
	if kind == accessv3.AccessLogType_UpstreamEnd {
		fault = faultOf(common.GetResponseFlags())
	}
	if kind != accessv3.AccessLogType_UpstreamPoolReady && kind != accessv3.AccessLogType_DownstreamEnd && fault == "" {
		s.metrics.entries.WithLabelValues("other type").Inc()
		return
	}
	id := e.GetRequest().GetRequestHeaders()[HeaderID]
	if id == "" || len(id) > maxID {
		s.metrics.entries.WithLabelValues("no decision id").Inc()
		return
	}
	o := outcome(id, router.Started)
	o.Addr, o.Source = hostPort(common.GetUpstreamRemoteAddress()), source
	switch kind {
	case accessv3.AccessLogType_UpstreamEnd:
		o.Phase, o.Fault = router.Failed, fault
	case accessv3.AccessLogType_DownstreamEnd:
		o.Phase = router.Ended
		o.Answered = e.GetResponse().GetResponseCodeDetails() == "via_upstream"
		o.Code = int(e.GetResponse().GetResponseCode().GetValue())
		o.FirstByte = common.GetTimeToFirstUpstreamRxByte().AsDuration()
		readUsage(common.GetMetadata(), &o)
	}
	if o.Phase != router.Failed && !s.ended.admit(o) { // a worker may fail a request twice, also after its end is known
		s.metrics.entries.WithLabelValues("repeated or late").Inc()
		return
	}
	if o.Phase != router.Failed && s.forward(&o) {
		s.metrics.entries.WithLabelValues("forwarded").Inc()
		return
	}
	kinds := [...]string{router.Started: "started", router.Ended: "ended", router.Failed: "failed"}
	s.metrics.entries.WithLabelValues(kinds[o.Phase]).Inc()
	s.observeSafely(o)
}

// forward sends what is another replica's to it. How a worker fails is for who hears of it.
func (s *Server) forward(o *router.Outcome) bool {
	if s.opt.Forward == nil || len(o.ID) <= len(s.opt.Instance) {
		return false
	}
	to := o.ID[:len(s.opt.Instance)]
	return to != s.opt.Instance && s.opt.Forward(to, *o)
}

// lost tells of a log stream that has ended.
func (s *Server) lost(source uint64) {
	o := router.Outcome{Phase: router.Lost, Source: source}
	s.observeSafely(o)
	if s.opt.Forward != nil {
		s.opt.Forward("", o)
	}
}

// Reported takes what another replica forwards, as if Envoy had told it here.
func (s *Server) Reported(o router.Outcome) {
	if o.Phase != router.Lost && !s.ended.admit(o) {
		s.metrics.entries.WithLabelValues("repeated or late").Inc()
		return
	}
	s.observeSafely(o)
}

// faultOf names what an upstream did to a request; "" if nothing, or if it was Envoy's or the client's doing.
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

// entrySafely: a panic costs one entry.
func (s *Server) entrySafely(source uint64, e *accessv3.HTTPAccessLogEntry) {
	defer s.survive("access log")
	s.logEntry(source, e)
}

func (s *Server) observeSafely(o router.Outcome) {
	defer s.survive("observe")
	s.observe(o)
}

// readUsage fills in the engine's token counts where Envoy extracted them from the response.
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

// hostPort is "ip:port" of an address in the log; empty where none was dialled.
func hostPort(a *corev3.Address) string {
	s := a.GetSocketAddress()
	if s.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
}

const (
	maxID        = 64      // longer ids are not ours
	joinCapacity = 1 << 16 // requests remembered; at 1000 a second more than a minute's worth
)

// joiner lets every fact through once: a start per worker tried, the end, and nothing after the end. It remembers the
// last capacity requests at about 200 bytes each. Entries of a request that it has forgotten pass again; the router has
// forgotten it too by then, and drops them.
type joiner struct {
	mu   sync.Mutex
	seen *simplelru.LRU[string, joined]
}

type joined struct {
	addr  string // the worker last started on
	ended bool
}

func newJoiner(capacity int) *joiner {
	seen, _ := simplelru.NewLRU[string, joined](capacity, nil) // fails for a capacity below 1
	return &joiner{seen: seen}
}

// admit tells whether an outcome is news.
func (j *joiner) admit(o router.Outcome) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	seen, known := j.seen.Peek(o.ID)
	if known && (seen.ended || o.Phase == router.Started && seen.addr == o.Addr) {
		return false
	}
	j.seen.Add(o.ID, joined{addr: o.Addr, ended: o.Phase == router.Ended})
	return true
}
