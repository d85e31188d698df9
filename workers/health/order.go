package health

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/fleet"
)

// orderPoll asks one worker in which order it serves waiting requests: at each beat until it has answered, then once a minute. If it
// fails to answer, its last answer stays until its process is another one.
type orderPoll struct {
	*Poller
	worker *fleet.Worker
	order  rules.Order
	next   time.Time // when it is asked again; before that, only once it is another process
}

func (l *orderPoll) ask(ctx context.Context) time.Duration {
	if now := time.Now(); l.worker.Serving() != rules.Unsaid && now.Before(l.next) {
		return 0
	}
	serves, err := l.order.Ask(ctx, l.health, l.worker.Addr)
	if status, is := errors.AsType[*rules.StatusError](err); is && status.Status < http.StatusInternalServerError {
		l.worker.SetServing(rules.Unsaid)
		return missingPause
	}
	if err != nil {
		return 0
	}
	l.next = time.Now().Add(missingPause)
	if was := l.worker.Serving(); was != serves {
		l.worker.SetServing(serves)
		l.o.Log.Info("a worker says in which order it serves waiting requests", zap.String("worker", l.worker.Name),
			zap.Stringer("order", serves))
	}
	return 0
}
