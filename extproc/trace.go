package extproc

import (
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sightline-router/sightline/router"
)

// headerTrace is where W3C Trace Context has a request's span.
const headerTrace = "traceparent"

// headerFirstToken is by when a client wants its first token, in milliseconds (llm-d has it).
const headerFirstToken = "x-slo-ttft-ms"

// traced is what Options.Traced is told of a call's decision.
type traced struct {
	decision router.Decision
	began    time.Time
	took     time.Duration
}

// trace tells of the decision, if one was sent. Envoy writes its own span to the metadata of the stream that it opens for
// the request, where it traces; the request's header is still the client's, and counts only where Envoy says nothing.
func (c *call) trace() {
	if c.traced == nil || c.traced.decision.ID == "" {
		return
	}
	under := c.head.traceparent
	if own := metadata.ValueFromIncomingContext(c.stream.Context(), headerTrace); len(own) == 1 {
		under = own[0]
	}
	c.opt.Traced(under, c.head.path, c.traced.decision, c.traced.began, c.traced.took)
	c.traced = nil // what follows is as long as the answer
}
