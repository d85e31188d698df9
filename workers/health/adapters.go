package health

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Limits of what a worker may list.
const (
	adapterPeriod = 2 // interval, in health checks
	maxAdapters   = 1 << 12
)

// adapterPoll asks one worker for its adapters: models with a parent (vLLM and SGLang: /v1/models). If it fails to answer, its last
// list stays.
type adapterPoll struct {
	*Poller
	worker *fleet.Worker
}

func (l *adapterPoll) ask(ctx context.Context) (next time.Duration) {
	f := rules.Facts{Addr: l.worker.Addr}
	if err := rules.Models(ctx, l.health, &f); err != nil {
		if status, is := errors.AsType[*rules.StatusError](err); is && status.Status < http.StatusInternalServerError {
			return missingPause
		}
		return 0
	}
	listed := make(map[string]string)
	for _, m := range f.Served {
		if m.Parent != "" {
			listed[m.ID] = m.Root
		}
	}
	came, gone, moved := l.worker.SetAdapters(listed)
	for what, names := range map[string][]string{"has loaded": came, "has unloaded": gone} {
		if len(names) > 0 {
			slices.Sort(names)
			l.o.Log.Info("a worker "+what+" adapters", zap.String("worker", l.worker.Name),
				zap.Strings("adapters", names[:min(len(names), 16)]), zap.Int("count", len(names)))
		}
	}
	if len(moved) > 0 {
		l.reloaded.WithLabelValues(l.worker.Name).Add(float64(len(moved)))
		l.o.Log.Warn("a worker has reloaded adapters from other paths; blocks of the old ones count until answers disprove them",
			zap.String("worker", l.worker.Name), zap.Strings("adapters", moved[:min(len(moved), 16)]), zap.Int("count", len(moved)))
	}
	return 0
}
