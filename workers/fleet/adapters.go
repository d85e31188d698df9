package fleet

import (
	"slices"
	"strings"
)

// LoRA adapters as workers list them (/v1/models), each with the path that it was loaded from. They come and go while a worker
// runs. If no worker of a model lists an adapter, any of them may get its requests; otherwise only those that list it, since an
// engine answers 404 for an adapter that it has not loaded.

// SetAdapters sets the adapters that a worker lists, path by name; it keeps the map. It returns the added ones, the removed
// ones, and those whose path has changed.
func (w *Worker) SetAdapters(listed map[string]string) (came, gone, moved []string) {
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

// Adapters returns what the worker listed last, path by name; nil: it has not been asked yet. The caller must not change the map.
func (w *Worker) Adapters() map[string]string {
	if listed := w.adapters.Load(); listed != nil {
		return *listed
	}
	return nil
}

// HasAdapter reports whether the worker listed an adapter by its name in requests: the name itself, or any model's name, ":" and the
// name (SGLang).
func (w *Worker) HasAdapter(adapter string) bool {
	listed := w.Adapters()
	if _, has := listed[adapter]; has {
		return true
	}
	_, name, two := strings.Cut(adapter, ":")
	_, has := listed[name]
	return two && has
}

// ModelOf returns the model of a worker that lists an adapter, and a copy of the adapter's name; "": no worker does.
func (f *Fleet) ModelOf(adapter string) (model, name string) {
	for _, w := range f.Workers() {
		if w.HasAdapter(adapter) {
			return w.Model, strings.Clone(adapter)
		}
	}
	return "", ""
}

// WithAdapter returns the slots of workers that list an adapter; all slots if none does.
func WithAdapter(adapter string, slots []*Slot) []*Slot {
	var out []*Slot
	for _, s := range slots {
		if s.Worker.HasAdapter(adapter) {
			out = append(out, s)
		}
	}
	if out == nil {
		return slots
	}
	return out
}

// loadedAdapters is what a worker's metrics report about its adapters.
type loadedAdapters struct {
	using    []string
	capacity int
}

// SetLoadedAdapters sets the adapters that a worker's requests use, which it therefore has loaded, and how many it holds at once; 0: not
// reported.
func (w *Worker) SetLoadedAdapters(using []string, room int) {
	w.loaded.Store(&loadedAdapters{using, room})
}

// UsesAdapter reports whether a worker's requests use an adapter; room is how many it holds at once, 0 if it does not report that.
func (w *Worker) UsesAdapter(adapter string) (yes bool, room int) {
	now := w.loaded.Load()
	if now == nil {
		return false, 0
	}
	return slices.Contains(now.using, adapter), now.capacity
}
