package trtllm

import (
	"sync/atomic"

	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/pixels"
)

// PixelNames computes names beside the requests, since decoding takes milliseconds: whoever asks first gets none and has one
// computed for those who come later. At most half of one core, 64 pictures and 64 MiB of files wait; a picture that finds no
// room is taken up at its next sight. Safe for concurrent use.
type PixelNames struct {
	store   *mmhash.Store
	worker  *pixels.Worker
	waiting atomic.Int64 // bytes
}

const (
	pixelShare   = 0.5
	pixelQueue   = 64
	pixelWaiting = 64 << 20
)

// NewPixelNames keeps its names in store, and tells panicked, if it is not nil, of decoding that panicked. Close it.
func NewPixelNames(store *mmhash.Store, panicked func(error)) (*PixelNames, error) {
	w, err := pixels.NewWorker(pixelQueue, pixelShare, panicked)
	return &PixelNames{store: store, worker: w}, err
}

// Close drops what waits.
func (p *PixelNames) Close() { p.worker.Close() }

// Name gives a picture's name if it was computed; known without a name says that it cannot be: the picture is none that
// we decode exactly.
func (p *PixelNames) Name(id mmhash.ContentID, form Names) (n string, known bool) {
	return p.store.Get(id, form.key())
}

// Want has the names of a picture of size bytes computed soon. It copies the file, unless src is one in memory, and only
// if there is room for it.
func (p *PixelNames) Want(src mmhash.Source, id mmhash.ContentID, size int64, forms ...Names) {
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
		p.compute(file, id, forms)
	}) {
		p.waiting.Add(-size)
	}
}

// Now computes a picture's names at once, for tools that have time.
func (p *PixelNames) Now(src mmhash.Source, id mmhash.ContentID, size int64, forms ...Names) {
	if file, err := src.Decode(size); err == nil && int64(len(file)) == size {
		p.compute(file, id, forms)
	}
}

func (p *PixelNames) compute(file []byte, id mmhash.ContentID, forms []Names) {
	names := make([]string, len(forms))
	defer func() { // a picture that panics has no name, and is not tried again
		for i, n := range forms {
			p.store.Put(id, n.key(), names[i])
		}
	}()
	if rgb, err := pixels.Decode(file, pixels.White, pixels.Limits{}); err == nil {
		for i, n := range forms {
			names[i] = n.Of(rgb)
		}
	}
}
