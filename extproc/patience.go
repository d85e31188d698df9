package extproc

import (
	"context"
	"sync"

	"github.com/sightline-router/sightline/internal/retry"
)

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
