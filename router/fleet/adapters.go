package fleet

import (
	"slices"
	"strings"
)

// LoRA adapters as workers list them (/v1/models), each with the path that it was loaded from. They come and go while a worker
// runs. As long as no worker of a model lists an adapter, any of them may get its requests; else those that list it, as an engine
// answers 404 for an adapter that it has not loaded.

// TellAdapters takes the adapters that a worker lists, path by name; the map is kept. It gives those that have come, those that
// have gone, and those that lie at another path than before.
func (w *Worker) TellAdapters(listed map[string]string) (came, gone, moved []string) {
	before := w.Adapters()
	w.adapters.Store(&listed)
	for name, path := range listed {
		switch was, known := before[name]; {
		case !known:
			came = append(came, name)
		case was != path:
			moved = append(moved, name)
		}
	}
	for name := range before {
		if _, stays := listed[name]; !stays {
			gone = append(gone, name)
		}
	}
	return came, gone, moved
}

// Adapters are those that the worker listed last, path by name; nil: it was not heard. The caller must not change them.
func (w *Worker) Adapters() map[string]string {
	if listed := w.adapters.Load(); listed != nil {
		return *listed
	}
	return nil
}

// Lists tells whether the worker listed an adapter, by its name in requests: that, or any model's name and ":" before it (SGLang).
func (w *Worker) Lists(adapter string) bool {
	listed := w.Adapters()
	if _, has := listed[adapter]; has {
		return true
	}
	_, name, two := strings.Cut(adapter, ":")
	_, has := listed[name]
	return two && has
}

// ModelOf is the model of a worker that lists an adapter, and the adapter's name in memory of its own; "": none does.
func (f *Fleet) ModelOf(adapter string) (model, name string) {
	for _, w := range f.Workers() {
		if w.Lists(adapter) {
			return w.Model, strings.Clone(adapter)
		}
	}
	return "", ""
}

// With leaves of some slots those of workers that list an adapter; all, where none does.
func With(adapter string, slots []*Slot) []*Slot {
	var out []*Slot
	for _, s := range slots {
		if s.Worker.Lists(adapter) {
			out = append(out, s)
		}
	}
	if out == nil {
		return slots
	}
	return out
}

// loadedNow is what a worker's metrics tell of its adapters.
type loadedNow struct {
	using []string
	room  int
}

// TellLoaded takes the adapters that a worker's requests use, which it has loaded, and how many it holds at once; 0: not told.
func (w *Worker) TellLoaded(using []string, room int) {
	w.loaded.Store(&loadedNow{using, room})
}

// Uses tells whether a worker told that its requests use an adapter; room is how many it holds at once, 0 if it did not tell.
func (w *Worker) Uses(adapter string) (yes bool, room int) {
	now := w.loaded.Load()
	if now == nil {
		return false, 0
	}
	return slices.Contains(now.using, adapter), now.room
}
