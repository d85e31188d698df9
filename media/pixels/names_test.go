package pixels

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
)

var (
	four = &RGB{W: 2, H: 2, Pix: make([]byte, 12)}
	form = Form{Key: [32]byte{1}, Of: func(p *RGB) string { return fmt.Sprint(p.W) }}
)

// newNames returns Names with the test's decode function, and a channel of panics.
func newNames(t *testing.T, decode func([]byte) (*RGB, error)) (p *Names, panics chan error) {
	t.Helper()
	store, err := mmhash.NewStore(100, func() {})
	if err != nil {
		t.Fatal(err)
	}
	panics = make(chan error, 1)
	p = NewNames(store, func(err error) { panics <- err }, func() {})
	p.decode = decode
	t.Cleanup(p.Close)
	return p, panics
}

// TestNamesAreBounded: a name is computed once, in the background; an image that does not fit is not queued.
func TestNamesAreBounded(t *testing.T) {
	running, free := make(chan bool), make(chan bool)
	p, _ := newNames(t, func([]byte) (*RGB, error) { running <- true; <-free; return four, nil })
	full := 0
	p.full = func() { full++ }
	file := []byte("file")
	want := func(id byte, size int64) {
		p.Want(Image{Source: media.File(file), ID: mmhash.ContentID{id}, Bytes: size}, form)
	}
	want(1, 4)
	<-running
	want(1, 4) // is being decoded
	want(2, 3) // of another size than announced
	want(2, maxWaitingBytes)
	if len(p.known) != 1 || p.bytes.Taken() != 4 {
		t.Errorf("%d images, %d bytes known, want one of 4", len(p.known), p.bytes.Taken())
	}
	for id := range byte(maxWaiting + 10) {
		want(id, 4)
	}
	if len(p.known) != maxWaiting || full != 1+10 {
		t.Errorf("%d images known, want %d; %d counted", len(p.known), maxWaiting, full)
	}
	free <- true
	<-running // the next one
	if n, known := p.Get(mmhash.ContentID{1}, form); !known || n != form.Of(four) {
		t.Errorf("name %q %v, want known, n == form.Of(four)", n, known)
	}
	go func() { free <- true }()
	p.Close() // drops the queue
}

// TestNamesRest: the worker sleeps for as long as it has worked, and closing ends the sleep.
func TestNamesRest(t *testing.T) {
	starts := make(chan time.Time, 2)
	p, _ := newNames(t, func([]byte) (*RGB, error) {
		starts <- time.Now()
		time.Sleep(20 * time.Millisecond)
		return four, nil
	})
	for id := range byte(2) {
		p.Want(Image{Source: media.File([]byte("file")), ID: mmhash.ContentID{id}, Bytes: 4}, form)
	}
	first, second := <-starts, <-starts
	if second.Sub(first) < 40*time.Millisecond {
		t.Errorf("the second began %v after the first, which took 20 ms, want at least %v", second.Sub(first), 40*time.Millisecond)
	}
}

// TestNamesPanic: an image whose decoding panics gets no name, affects no other, and is not tried again.
func TestNamesPanic(t *testing.T) {
	p, panics := newNames(t, func(file []byte) (*RGB, error) { file[9]++; return four, nil })
	for id := range byte(2) {
		p.Want(Image{Source: media.File([]byte("file")), ID: mmhash.ContentID{id}, Bytes: 4}, form)
		if err := <-panics; err == nil {
			t.Errorf("a panic without an error: got %v, want an error", err)
		}
		if n, known := p.Get(mmhash.ContentID{id}, form); !known || n != "" {
			t.Errorf("name %q, known %v, want true, %q", n, known, "")
		}
	}
}

// TestNamesAreShared: a client with many images of many pixels neither fills the queue nor has its turn before another's image,
// and an image that two clients want does not wait for the later turn.
func TestNamesAreShared(t *testing.T) { synctest.Test(t, testNamesAreShared) }

func testNamesAreShared(t *testing.T) {
	const hostile, victim = fair.Client(1), fair.Client(2)
	running, free := make(chan string), make(chan bool)
	p, _ := newNames(t, func(file []byte) (*RGB, error) { running <- string(file); <-free; return four, nil })
	want := func(c fair.Client, id byte, file string, pixels int64) {
		p.Want(Image{Client: c, Source: media.File([]byte(file)), ID: mmhash.ContentID{id}, Bytes: int64(len(file)), Pixels: pixels}, form)
	}
	for id := range byte(maxWaiting) {
		want(hostile, id, "large", 25e6)
	}
	<-running
	const others, shared = 8, 40
	for id := range byte(others) {
		want(victim, 100+id, "small", 1e6)
	}
	want(victim, shared, "wanted by both", 1e6)
	synctest.Wait()
	if n := len(p.known); n != maxWaiting*3/4+others+1 {
		t.Errorf("%d images wait, want three quarters of %d and the other client's %d", n, maxWaiting, others+1)
	}
	var order []string
	for range others + 2 {
		free <- true
		order = append(order, <-running)
	}
	slices.Sort(order)
	if n := len(order); order[0] != "large" || order[1] != "small" || order[n-1] != "wanted by both" {
		t.Errorf("decoded %q, want all of the other client's and at most one large one", order)
	}
	go func() { free <- true }()
	p.Close()
}
