package dynamo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/retry"
)

// followEvery is the interval at which a discovery folder is read. A reading costs about 0.1 ms per record.
const followEvery = time.Second

// Follower follows a deployment's discovery folder.
type Follower struct {
	Root  string // the folder (DYN_FILE_KV)
	Scope Scope
	Plane *Plane // connects to each publisher; nil if events come over NATS
	// Found is called with all workers after the first reading and after each change.
	Found func([]Worker)
	// Failed is called when the folder or a publisher cannot be read, once per distinct reason. The known workers stay.
	Failed func(error)

	connections map[string]context.CancelFunc
	wait        sync.WaitGroup
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	defer f.wait.Wait()
	f.connections = map[string]context.CancelFunc{}
	var last []Worker
	failed, first := "", true
	for {
		d, err := discover(f.Root, f.Scope, time.Now())
		switch {
		case err != nil && failed != err.Error():
			failed = err.Error()
			f.Failed(err)
		case err == nil:
			failed = ""
			f.dial(ctx, d.Endpoints)
			if first || !slices.Equal(d.Workers, last) {
				first, last = false, d.Workers
				f.Found(d.Workers)
			}
		}
		if !retry.Sleep(ctx, followEvery) {
			return
		}
	}
}

// dial connects to new publishers and disconnects from those that are gone.
func (f *Follower) dial(ctx context.Context, endpoints []string) {
	if f.Plane == nil {
		return
	}
	for _, at := range endpoints {
		if f.connections[at] != nil {
			continue
		}
		dial, stop := context.WithCancel(ctx)
		f.connections[at] = stop
		f.wait.Go(func() {
			if err := f.Plane.DialZMQ(dial, at); err != nil && dial.Err() == nil {
				f.Failed(fmt.Errorf("dynamo: publisher %s: %w", at, err))
			}
		})
	}
	for at, stop := range f.connections {
		if !slices.Contains(endpoints, at) {
			stop()
			delete(f.connections, at)
		}
	}
}
