package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/retry"
)

const (
	againEvery = 5 * time.Second // until the next round of asking workers that have not answered, or had no KV events
	allEvery   = 6               // rounds until all are asked: one may have been started anew with other arguments
)

// Ask returns the configuration of the workers given by address, without any file. A worker that cannot be asked is an error.
func Ask(ctx context.Context, o Options, say io.Writer) (cfg config.Config, err error) {
	d, list, err := fileless(o, say)
	if err == nil {
		err = errors.Join(d.askAll(ctx, list)...)
	}
	if err == nil {
		cfg, err = d.configure(list)
	}
	if err == nil {
		d.advise(all)
	}
	return cfg, err
}

// Follow is Ask for a server: it returns as soon as one worker has answered. All are asked again, until ctx ends, since they may be
// started again otherwise: every 30 seconds, and every 5 those that have not answered or have no KV events. Each further configuration has
// all that have answered so far. A worker that stops answering stays: the server sees to its health. If all have answered and none can be
// used, that is an error.
func Follow(ctx context.Context, o Options, say io.Writer) (first config.Config, next <-chan config.Config, err error) {
	d, list, err := fileless(o, say)
	if err != nil {
		return first, nil, err
	}
	f := &follower{drafter: d, list: list, told: make([]string, len(list)), every: againEvery}
	first, err = f.first(ctx)
	if err != nil {
		return first, nil, err
	}
	fmt.Fprintf(say, "No file of a model is read: a request is routed by its blocks from its second sighting on, a shared beginning from "+
		"the third. For exact routing from the first: sightline init\nEnvoy's configuration: %s > envoy.yaml\n", d.envoyCommand())
	later := make(chan config.Config)
	go f.follow(ctx, later)
	return first, later, nil
}

// Envoy returns what Envoy's configuration depends on in Ask's and Follow's: it asks no worker.
func Envoy(o Options) (config.Config, error) {
	cfg := config.Default()
	d, list, err := fileless(o, io.Discard)
	if err != nil {
		return cfg, err
	}
	for _, w := range list {
		cfg.Workers = append(cfg.Workers, config.Worker{Addr: w.Addr})
	}
	if d.Listen != "" {
		cfg.Listen = d.Listen
	}
	cfg.Envoy.TokenUsage, cfg.Envoy.WorkerTLS.CA = true, d.Access.CA
	return cfg, nil
}

func fileless(o Options, say io.Writer) (*drafter, []*worker, error) {
	d, err := newDrafter(o, say)
	if err != nil {
		return nil, nil, err
	}
	d.fileless = true
	list, err := d.listed()
	if err == nil && len(list) > maxWorkers {
		err = fmt.Errorf("%d workers (want 1 to %d)", len(list), maxWorkers)
	}
	return d, list, err
}

// configure returns the configuration of workers that have answered.
func (d *drafter) configure(list []*worker) (cfg config.Config, err error) {
	models, err := group(list)
	if err != nil {
		return cfg, err
	}
	d.models = models
	return config.Parse(d.yaml())
}

// envoyCommand returns the command that prints the Envoy configuration for the same flags.
func (d *drafter) envoyCommand() string {
	words := []string{"sightline envoy"}
	for _, addr := range d.Workers {
		words = append(words, "--worker "+addr)
	}
	if d.Listen != "" {
		words = append(words, "--listen "+d.Listen)
	}
	if d.Access.CA != "" {
		words = append(words, "--ca "+strconv.Quote(d.Access.CA))
	}
	return strings.Join(words, " ")
}

// follower asks workers until all have answered.
type follower struct {
	*drafter
	list  []*worker
	told  []string // by worker, the last error that was printed
	every time.Duration

	rounds int
	text   string // the last configuration's
}

// first asks until a worker has answered.
func (f *follower) first(ctx context.Context) (config.Config, error) {
	for {
		cfg, changed, err := f.round(ctx)
		if ctx.Err() != nil {
			return cfg, ctx.Err()
		}
		if err != nil || changed {
			return cfg, err
		}
		retry.Sleep(ctx, f.every)
	}
}

// follow sends further configurations until ctx ends.
func (f *follower) follow(ctx context.Context, later chan<- config.Config) {
	for ctx.Err() == nil {
		retry.Sleep(ctx, f.every)
		cfg, changed, err := f.round(ctx)
		if err != nil || !changed {
			continue
		}
		select {
		case later <- cfg:
		case <-ctx.Done():
		}
	}
}

// lacking reports whether a worker is to be asked again: it has not answered, or has no KV events.
func lacking(w *worker) bool {
	events, _ := eventsOf(w)
	return !w.answered || len(events) == 0
}

// round asks the workers that lack something, or all, prints what is new of them, and returns a configuration if it has changed. An error
// says that all have answered, and none can be used.
func (f *follower) round(ctx context.Context) (cfg config.Config, changed bool, err error) {
	f.rounds++
	asked, at := []*worker{}, []int{}
	for i, w := range f.list {
		if f.rounds%allEvery == 0 || lacking(w) {
			asked, at = append(asked, &worker{Facts: rules.Facts{Addr: w.Addr}}), append(at, i)
		}
	}
	was, wrong := slices.Clone(f.list), []error{}
	for i, err := range f.askAll(ctx, asked) {
		one := at[i]
		if _, is := errors.AsType[wrongWorker](err); is {
			wrong = append(wrong, err)
		}
		old, now := f.list[one], asked[i]
		now.answered = err == nil
		switch {
		case old.answered && (!now.answered || !old.Differs(&now.Facts)):
		case now.answered:
			f.list[one] = now
		default:
			f.tell(one, err)
		}
	}
	answered := slices.DeleteFunc(slices.Clone(f.list), func(w *worker) bool { return !w.answered })
	if len(answered) == 0 {
		if len(wrong) == len(f.list) {
			return cfg, false, errors.Join(wrong...)
		}
		return cfg, false, nil
	}
	cfg, err = f.configure(answered)
	if err != nil { // one of those that answered now
		if f.text == "" {
			return cfg, false, err
		}
		for i, w := range f.list {
			if w != was[i] {
				f.tell(i, err)
			}
		}
		copy(f.list, was)
		return cfg, false, nil
	}
	text := string(f.yaml())
	if text == f.text {
		return cfg, false, nil
	}
	f.text = text
	fresh := func(w *worker) bool { return !slices.Contains(was, w) }
	f.printFound(fresh)
	f.advise(fresh)
	return cfg, true, nil
}

// tell prints why a worker is left out, once.
func (f *follower) tell(i int, err error) {
	if text := err.Error(); text != f.told[i] {
		f.told[i] = text
		fmt.Fprintf(f.out, "%s; left out, and asked again every %v\n", text, f.every)
	}
}
