// Package repeat logs a lasting cause once: a message that comes again within a period, about the same worker, is only counted, and
// the next line tells how often it came.
package repeat

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// maxCauses bounds the causes that are remembered. Beyond, all are forgotten, so that some may be logged early.
const maxCauses = 1024

// Once returns a logger that writes each message, by the field "worker" if it has one, at most once in a period.
func Once(log *zap.Logger, period time.Duration) *zap.Logger {
	c := &causes{period: period, seen: map[cause]*count{}}
	return log.WithOptions(zap.WrapCore(func(to zapcore.Core) zapcore.Core { return &core{to, c} }))
}

type cause struct {
	level           zapcore.Level
	message, worker string
}

type count struct {
	written time.Time
	more    int // that came since
}

type causes struct {
	period time.Duration
	mu     sync.Mutex
	seen   map[cause]*count
}

// due reports whether a cause is to be written, and how often it came since it was.
func (c *causes) due(of cause, now time.Time) (more int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.seen[of]
	switch {
	case n == nil && len(c.seen) >= maxCauses:
		clear(c.seen)
		fallthrough
	case n == nil:
		c.seen[of] = &count{written: now}
		return 0, true
	case now.Sub(n.written) < c.period:
		n.more++
		return 0, false
	}
	more = n.more
	n.written, n.more = now, 0
	return more, true
}

type core struct {
	zapcore.Core
	*causes
}

func (c *core) With(fields []zapcore.Field) zapcore.Core { return &core{c.Core.With(fields), c.causes} }

func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	of := cause{level: e.Level, message: e.Message}
	for i := range fields {
		if fields[i].Key == "worker" {
			of.worker = fields[i].String
		}
	}
	more, due := c.due(of, e.Time)
	if !due {
		return nil
	}
	if more > 0 {
		fields = append(fields, zap.Int("times_since_the_last_line", more))
	}
	return c.Core.Write(e, fields)
}
