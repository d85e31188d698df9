package fleet

import (
	"slices"
	"strings"
)

// LoRA adapters as workers list them (/v1/models), each with the path that it was loaded from. They come and go while a worker
// runs. If no worker of a model lists an adapter, any of them may get its requests; otherwise only those that list it, since an
// engine answers 404 for an adapter that it has not loaded.

// TellAdapters sets the adapters that a worker lists, path by name; it keeps the map. It returns the added ones, the removed
// ones, and those whose path has changed.
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

// Adapters returns what the worker listed last, path by name; nil: it has not been asked yet. The caller must not change the map.
func (w *Worker) Adapters() map[string]string {
	if listed := w.adapters.Load(); listed != nil {
		return *listed
	}
	return nil
}

// Lists reports whether the worker listed an adapter by its name in requests: the name itself, or any model's name, ":" and the
// name (SGLang).
func (w *Worker) Lists(adapter string) bool {
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
		if w.Lists(adapter) {
			return w.Model, strings.Clone(adapter)
		}
	}
	return "", ""
}

// With returns the slots of workers that list an adapter; all slots if none does.
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

// loadedNow is what a worker's metrics report about its adapters.
type loadedNow struct {
	using []string
	room  int
}

// TellLoaded sets the adapters that a worker's requests use, which it therefore has loaded, and how many it holds at once; 0: not
// reported.
func (w *Worker) TellLoaded(using []string, room int) {
	w.loaded.Store(&loadedNow{using, room})
}

// Uses reports whether a worker's requests use an adapter; room is how many it holds at once, 0 if it does not report that.
func (w *Worker) Uses(adapter string) (yes bool, room int) {
	now := w.loaded.Load()
	if now == nil {
		return false, 0
	}
	return slices.Contains(now.using, adapter), now.room
}
