package serve

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/workers/fleet"
)

// A load message of NVIDIA's standalone example is made in one iteration of the worker and sent in the next. A worker that sends
// none for loadLasts is idle or hangs.
const loadOld, loadLasts = time.Second, 5 * time.Second

// readLoadMessages follows the load messages of a worker of NVIDIA's standalone example, until ctx ends. While it is not connected only
// our own requests are counted.
func readLoadMessages(ctx context.Context, endpoint string, slot *fleet.Slot, log *zap.Logger) {
	sub := zmq.Sub{Endpoint: endpoint, Bare: true, Most: 1 << 16, Down: func(error) { slot.SetReport(fleet.LoadReport{}, time.Now()) }}
	err := sub.Run(ctx, func(m zmq.Message) {
		told, err := fleet.ParseLoadReport(m.Payload)
		if err != nil {
			log.Warn("a worker's load message cannot be read", zap.String("worker", slot.Worker.Name), zap.Error(err))
			return
		}
		told.MaxAge, told.ValidFor = loadOld, loadLasts
		slot.SetReport(told, time.Now())
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Error("cannot receive the worker's load", zap.String("worker", slot.Worker.Name), zap.Error(err))
	}
}
