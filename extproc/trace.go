package extproc

import (
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sightline-router/sightline/router"
)

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
