package mmhash

import (
	"sync/atomic"

	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/mmhash/pixels"
)

// PixelNames computes names that are digests of decoded pixels (TensorRT-LLM's), beside the requests: whoever asks first
// gets none and has one computed for those who come later. At most half of one core, 64 pictures and 64 MiB of files
// wait; a picture that finds no room is taken up at its next sight. Safe for concurrent use.
type PixelNames struct {
	store   *Store
	worker  *pixels.Worker
	waiting atomic.Int64 // bytes
}

const (
	pixelShare   = 0.5
	pixelQueue   = 64
	pixelWaiting = 64 << 20
)

// NewPixelNames keeps its names in store, and tells panicked, if it is not nil, of decoding that panicked. Close it.
func NewPixelNames(store *Store, panicked func(error)) (*PixelNames, error) {
	w, err := pixels.NewWorker(pixelQueue, pixelShare, panicked)
	return &PixelNames{store: store, worker: w}, err
}

// Close drops what waits.
func (p *PixelNames) Close() { p.worker.Close() }

// Name gives a picture's name if it was computed; known without a name says that it cannot be: the picture is none that
// we decode exactly.
func (p *PixelNames) Name(id ContentID, rule name.TRTLLM) (n string, known bool) {
	return p.store.names.GetIfPresent(nameKey{id, rule.Key()})
}

// Want has the names of a picture of size bytes computed soon. It copies the file, unless src is one in memory, and only
// if there is room for it.
func (p *PixelNames) Want(src Source, id ContentID, size int64, rules ...name.TRTLLM) {
	if !p.worker.Takes(id) {
		return
	}
	if p.waiting.Add(size) > pixelWaiting {
		p.waiting.Add(-size)
		return
	}
	file, err := src.Decode(size)
	if err != nil || int64(len(file)) != size || !p.worker.Submit(id, func() {
		defer p.waiting.Add(-size)
		p.compute(file, id, rules)
	}) {
		p.waiting.Add(-size)
	}
}

// Now computes a picture's names at once, for tools that have time.
func (p *PixelNames) Now(src Source, id ContentID, size int64, rules ...name.TRTLLM) {
	if file, err := src.Decode(size); err == nil && int64(len(file)) == size {
		p.compute(file, id, rules)
	}
}

func (p *PixelNames) compute(file []byte, id ContentID, rules []name.TRTLLM) {
	names := make([]string, len(rules))
	defer func() { // a picture that panics has no name, and is not tried again
		for i, r := range rules {
			p.store.names.Set(nameKey{id, r.Key()}, names[i])
		}
	}()
	if rgb, err := pixels.Decode(file, pixels.White, pixels.Limits{}); err == nil {
		for i, r := range rules {
			names[i] = r.Name(rgb, "")
		}
	}
}
