package pixels

import (
	"context"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/mmhash"
)

// Names computes names that depend on a picture's pixels, in the background, because decoding takes milliseconds: the first request
// gets no name and triggers the computation for later ones. One goroutine sleeps for as long as it has worked, so it takes at most
// half of one core. 64 names and 64 MiB of files may be queued; a picture that does not fit is retried when it is seen again. Safe
// for concurrent use.
type Names struct {
	store    *mmhash.Store
	decode   func(file []byte) (*RGB, error)
	panicked func(error)
	full     func()

	mu    sync.Mutex
	known map[nameRequest]bool // queued, or being decoded
	bytes int64                // of their files
	jobs  chan job             // has capacity for all in known

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done chan struct{}
}

// Form is one way of naming a picture.
type Form struct {
	Key [32]byte          // distinguishes forms from each other and from every name.Recipe's key
	Of  func(*RGB) string // of the decoded picture
}

// nameRequest is a requested name.
type nameRequest struct {
	id   mmhash.ContentID
	form [32]byte
}

type job struct {
	file []byte
	id   mmhash.ContentID
	form Form
}

const (
	maxWaiting      = 64
	maxWaitingBytes = 64 << 20
)

// NewNames stores names in store. It calls panicked when decoding panics, and full for pictures that do not fit into the queue. The
// caller must Close it.
func NewNames(store *mmhash.Store, panicked func(error), full func()) *Names {
	p := &Names{store: store, decode: Decode, panicked: panicked, full: full,
		known: map[nameRequest]bool{}, jobs: make(chan job, maxWaiting), done: make(chan struct{})}
	p.ctx, p.stop = context.WithCancel(context.Background())
	go p.run()
	return p
}

// Close drops the queue and returns when the running decoding has finished.
func (p *Names) Close() {
	p.stop()
	<-p.done
}

// Get returns a picture's name if it was computed. known without a name means that there is none: the picture cannot be decoded
// exactly.
func (p *Names) Get(id mmhash.ContentID, form Form) (n string, known bool) {
	return p.store.Get(id, form.Key)
}

// Want queues the computation of the name of a picture of size bytes. It copies the file, unless src is one in memory, and only if
// there is room for it.
func (p *Names) Want(src mmhash.Source, id mmhash.ContentID, size int64, form Form) {
	if !p.reserve(nameRequest{id, form.Key}, size) {
		return
	}
	file, err := src.Decode(size)
	if err != nil || int64(len(file)) != size {
		p.release(nameRequest{id, form.Key}, size)
		return
	}
	p.jobs <- job{file, id, form}
}

// Now computes a picture's name synchronously, for tools.
func (p *Names) Now(src mmhash.Source, id mmhash.ContentID, size int64, form Form) {
	if file, err := src.Decode(size); err == nil && int64(len(file)) == size {
		p.compute(job{file, id, form})
	}
}

func (p *Names) reserve(a nameRequest, size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[a] {
		return false
	}
	if len(p.known) == maxWaiting || p.bytes+size > maxWaitingBytes {
		p.full()
		return false
	}
	p.known[a] = true
	p.bytes += size
	return true
}

func (p *Names) release(a nameRequest, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, a)
	p.bytes -= size
}

func (p *Names) run() {
	defer close(p.done)
	for p.ctx.Err() == nil {
		select {
		case <-p.ctx.Done():
		case j := <-p.jobs:
			start := time.Now()
			if err := guard.Call(func() error { p.compute(j); return nil }); err != nil {
				p.panicked(err)
			}
			p.release(nameRequest{j.id, j.form.Key}, int64(len(j.file)))
			select {
			case <-time.After(time.Since(start)):
			case <-p.ctx.Done():
			}
		}
	}
}

func (p *Names) compute(j job) {
	name := ""
	defer func() { p.store.Put(j.id, j.form.Key, name) }() // after a panic the name stays empty, and is not tried again
	if rgb, err := p.decode(j.file); err == nil {
		name = j.form.Of(rgb)
	}
}
