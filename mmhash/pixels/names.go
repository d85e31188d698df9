package pixels

import (
	"sync/atomic"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/mmhash"
)

// Names computes names that take a picture's pixels, beside the requests, since decoding takes milliseconds: whoever asks
// first gets none and has one computed for those who come later. At most half of one core, 64 pictures and 64 MiB of files
// wait; a picture that finds no room is taken up at its next sight. Safe for concurrent use.
type Names struct {
	store   *mmhash.Store
	worker  *Worker
	waiting atomic.Int64 // bytes
}

// Form is one way to name a picture.
type Form struct {
	Key [32]byte          // tells forms apart, and from every name.Recipe's key
	Of  func(*RGB) string // of the picture decoded with White
}

const (
	nameShare   = 0.5
	nameQueue   = 64
	nameWaiting = 64 << 20
)

// NewNames keeps its names in store, and tells panicked, if it is not nil, of decoding that panicked. Close it.
func NewNames(store *mmhash.Store, panicked func(error)) (*Names, error) {
	w, err := NewWorker(nameQueue, nameShare, panicked)
	return &Names{store: store, worker: w}, err
}

// Close drops what waits.
func (p *Names) Close() { p.worker.Close() }

// Get gives a picture's name if it was computed; known without a name says that it cannot be: the picture is none that we
// decode exactly.
func (p *Names) Get(id mmhash.ContentID, form Form) (n string, known bool) {
	return p.store.Get(id, form.Key)
}

// Want has the name of a picture of size bytes computed soon. It copies the file, unless src is one in memory, and only if
// there is room for it.
func (p *Names) Want(src mmhash.Source, id mmhash.ContentID, size int64, form Form) {
	job := blake3.Sum256(append(id[:len(id):len(id)], form.Key[:]...))
	if !p.worker.Takes(job) {
		return
	}
	if p.waiting.Add(size) > nameWaiting {
		p.waiting.Add(-size)
		return
	}
	file, err := src.Decode(size)
	if err != nil || int64(len(file)) != size || !p.worker.Submit(job, func() {
		defer p.waiting.Add(-size)
		p.compute(file, id, form)
	}) {
		p.waiting.Add(-size)
	}
}

// Now computes a picture's name at once, for tools that have time.
func (p *Names) Now(src mmhash.Source, id mmhash.ContentID, size int64, form Form) {
	if file, err := src.Decode(size); err == nil && int64(len(file)) == size {
		p.compute(file, id, form)
	}
}

func (p *Names) compute(file []byte, id mmhash.ContentID, form Form) {
	name := ""
	defer func() { p.store.Put(id, form.Key, name) }() // a picture that panics has no name, and is not tried again
	if rgb, err := Decode(file, White, Limits{}); err == nil {
		name = form.Of(rgb)
	}
}
