package serve

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/router/fleet"
)

// A message of NVIDIA's standalone example is made with its worker's iteration, and comes with the next one. One that has none
// for so long has nothing to do, or hangs.
const loadOld, loadLasts = time.Second, 5 * time.Second

// hearLoad follows what a worker of NVIDIA's standalone example tells of its load, until ctx ends. While it is not heard
// only our own requests there are counted.
func hearLoad(ctx context.Context, endpoint string, slot *fleet.Slot, log *zap.Logger) {
	sub := zmq.Sub{Endpoint: endpoint, Bare: true, Down: func(error) { slot.Tell(fleet.Told{}, time.Now()) }}
	err := sub.Run(ctx, func(m zmq.Message) {
		told, err := fleet.ParseTold(m.Payload)
		if err != nil {
			log.Warn("a worker's load message cannot be read", zap.String("worker", slot.Worker.Name), zap.Error(err))
			return
		}
		told.Old, told.Lasts = loadOld, loadLasts
		slot.Tell(told, time.Now())
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Error("a worker's load is not heard", zap.String("worker", slot.Worker.Name), zap.Error(err))
	}
}
