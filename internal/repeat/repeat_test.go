package repeat

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestOnce: sixty equal warnings are one line, another worker's is its own, and the next line after the period has the number.
func TestOnce(t *testing.T) {
	core, said := observer.New(zap.InfoLevel)
	log := Once(zap.New(core), time.Minute)
	for i := range 60 {
		log.Warn("not connected", zap.String("worker", "gpu-2"), zap.Int("request", i))
	}
	log.Warn("not connected", zap.String("worker", "gpu-3"))
	log.Debug("not enabled")
	if said.Len() != 2 {
		t.Errorf("%d lines: %v, want 2", said.Len(), said.All())
	}
	later := zapcore.Entry{Level: zap.WarnLevel, Message: "not connected", Time: time.Now().Add(2 * time.Minute)}
	if ce := log.Core().Check(later, nil); ce != nil {
		ce.Write(zap.String("worker", "gpu-2"))
	}
	last := said.All()[said.Len()-1]
	if said.Len() != 3 || last.ContextMap()["times_since_the_last_line"] != int64(59) {
		t.Errorf(`%d lines, the last: %v, want said.Len() == 3, last.ContextMap()["times_since_the_last_line"] == int64(59)`, said.Len(), last)
	}
}

// TestOnceIsBounded: the causes that are remembered have a bound.
func TestOnceIsBounded(t *testing.T) {
	c := &causes{period: time.Hour, seen: map[cause]*count{}}
	for i := range 3 * maxCauses {
		c.due(cause{message: fmt.Sprint(i)}, time.Now())
	}
	if len(c.seen) > maxCauses {
		t.Errorf("%d causes, want at most %d", len(c.seen), maxCauses)
	}
}
