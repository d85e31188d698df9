package pixels

import (
	"context"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
)

// Names computes names that depend on an image's pixels, in the background, because decoding takes milliseconds: the first request
// gets no name and triggers the computation for later ones. One image is decoded at a time, and then nothing for as long as that
// took, so it takes at most half of one core. Clients take turns, each counting for the pixels to decode. 64 names and 64 MiB of files
// may wait, of which no client gets all; an image that does not fit is retried when it is seen again. Safe for concurrent use.
type Names struct {
	store    *mmhash.Store
	decode   func(file []byte) (*RGB, error)
	panicked func(error)
	full     func()

	places, bytes *fair.Room // of the images in known, and of their files
	turns         *fair.Room // one: to be decoded

	mu    sync.Mutex
	known map[nameRequest]bool // waiting, or being decoded

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Form is one way of naming an image.
type Form struct {
	Key [32]byte          // distinguishes forms from each other and from every enginehash.Recipe's key
	Of  func(*RGB) string // of the decoded image
}

// Image is an image whose name is wanted.
type Image struct {
	Client fair.Client // whose request has it
	Source media.Source
	ID     mmhash.ContentID
	Bytes  int64 // size of the file
	Pixels int64
}

// nameRequest is a requested name. Two clients that want the same one each have a place, as one's may come much later.
type nameRequest struct {
	id     mmhash.ContentID
	form   [32]byte
	client fair.Client
}

const (
	maxWaiting      = 64
	maxWaitingBytes = 64 << 20
)

// NewNames stores names in store. It calls panicked when decoding panics, and full for images that do not fit among those that
// wait. The caller must Close it.
func NewNames(store *mmhash.Store, panicked func(error), full func()) *Names {
	p := &Names{store: store, decode: Decode, panicked: panicked, full: full, known: map[nameRequest]bool{},
		places: fair.Shared(maxWaiting, 0), bytes: fair.Shared(maxWaitingBytes, 0), turns: fair.New(1, 4*maxWaiting)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Close drops the images that wait and returns when the running decoding has finished.
func (p *Names) Close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.running.Wait()
}

// Get returns an image's name if it was computed. known without a name means that there is none: the image cannot be decoded
// exactly.
func (p *Names) Get(id mmhash.ContentID, form Form) (n string, known bool) {
	return p.store.Get(id, form.Key)
}

// Name returns an image's name, "" if there is none yet. One that was not computed is queued (later), or with now computed at once.
func (p *Names) Name(pic Image, form Form, now bool) (n string, later bool) {
	n, known := p.Get(pic.ID, form)
	switch {
	case known:
	case now:
		p.Now(pic, form)
		n, _ = p.Get(pic.ID, form)
	default:
		p.Want(pic, form)
		later = true
	}
	return n, later
}

// Want has an image's name computed later. It copies the file, unless the source is one in memory, and only if there is room for it.
func (p *Names) Want(pic Image, form Form) {
	if !p.reserve(pic, form) {
		return
	}
	file, err := pic.Source.Decode(pic.Bytes)
	if err != nil || int64(len(file)) != pic.Bytes {
		p.release(pic, form)
		p.running.Done()
		return
	}
	pic.Source = media.Source{} // of the request's memory
	go p.run(pic, form, file)
}

// Now computes an image's name synchronously, for tools.
func (p *Names) Now(pic Image, form Form) {
	if file, err := pic.Source.Decode(pic.Bytes); err == nil && int64(len(file)) == pic.Bytes {
		p.compute(pic.ID, form, file)
	}
}

// reserve takes a place for an image that has none yet. If it returns true, running counts it.
func (p *Names) reserve(pic Image, form Form) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := nameRequest{pic.ID, form.Key, pic.Client}
	if p.known[a] || p.ctx.Err() != nil {
		return false
	}
	switch {
	case !p.places.TryTake(pic.Client, 1):
		p.full()
		return false
	case !p.bytes.TryTake(pic.Client, pic.Bytes):
		p.places.Give(pic.Client, 1)
		p.full()
		return false
	}
	p.known[a] = true
	p.running.Add(1)
	return true
}

func (p *Names) release(pic Image, form Form) {
	p.mu.Lock()
	delete(p.known, nameRequest{pic.ID, form.Key, pic.Client})
	p.mu.Unlock()
	p.places.Give(pic.Client, 1)
	p.bytes.Give(pic.Client, pic.Bytes)
}

// run waits for an image's turn and computes its name.
func (p *Names) run(pic Image, form Form, file []byte) {
	defer p.running.Done()
	if !p.turns.Take(p.ctx, pic.Client, 1, max(pic.Bytes, pic.Pixels)) {
		p.release(pic, form)
		return
	}
	defer p.turns.Give(pic.Client, 1)
	_, known := p.Get(pic.ID, form) // another client's turn may have come first
	start := time.Now()
	if !known && p.ctx.Err() == nil {
		if err := guard.Call(func() error { p.compute(pic.ID, form, file); return nil }); err != nil {
			p.panicked(err)
		}
	}
	p.release(pic, form)
	select {
	case <-time.After(time.Since(start)):
	case <-p.ctx.Done():
	}
}

func (p *Names) compute(id mmhash.ContentID, form Form, file []byte) {
	name := ""
	defer func() { p.store.Put(id, form.Key, name) }() // after a panic the name stays empty, and is not tried again
	if rgb, err := p.decode(file); err == nil {
		name = form.Of(rgb)
	}
}
