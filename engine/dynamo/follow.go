package dynamo

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"
)

// followEvery is how often a discovery folder is read: about 0.1 ms a record.
const followEvery = time.Second

// Follower keeps up with a deployment by its discovery folder.
type Follower struct {
	Root  string // the folder (DYN_FILE_KV)
	Scope Scope
	Plane *Plane // dials each publisher that is found, and lets go of those that went; nil: they are heard elsewhere (NATS)
	// Found is told the workers at the first reading and after each change.
	Found func([]Worker)
	// Failed is told why the folder or a publisher cannot be read; of the same cause once. Those known stay.
	Failed func(error)

	dials map[string]context.CancelFunc
	wait  sync.WaitGroup
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	defer f.wait.Wait()
	f.dials = map[string]context.CancelFunc{}
	var last []Worker
	failed, first := "", true
	for {
		d, err := Discover(f.Root, f.Scope, time.Now())
		switch {
		case err != nil && failed != err.Error():
			failed = err.Error()
			f.Failed(err)
		case err == nil:
			failed = ""
			f.dial(ctx, d.Endpoints)
			if first || !reflect.DeepEqual(d.Workers, last) {
				first, last = false, d.Workers
				f.Found(d.Workers)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// dial listens to every publisher, and to no other.
func (f *Follower) dial(ctx context.Context, endpoints []string) {
	if f.Plane == nil {
		return
	}
	for _, at := range endpoints {
		if f.dials[at] != nil {
			continue
		}
		dial, stop := context.WithCancel(ctx)
		f.dials[at] = stop
		f.wait.Go(func() {
			if err := f.Plane.DialZMQ(dial, at); err != nil && dial.Err() == nil {
				f.Failed(fmt.Errorf("dynamo: publisher %s: %w", at, err))
			}
		})
	}
	for at, stop := range f.dials {
		if !slices.Contains(endpoints, at) {
			stop()
			delete(f.dials, at)
		}
	}
}
