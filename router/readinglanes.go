package router

import (
	"context"
	"runtime"
	rtmetrics "runtime/metrics"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/prompt"
)

// The memory for the bodies that are read at once is limited, in two lanes, so that a small request never waits for a large one. A
// request that finds its lane full waits a while, and is then routed by load. Clients take turns, each counting for its bytes. Bodies
// are cleaned before they wait; large ones only as many at once as there are cores, which takes no longer in all than sharing the cores.
const (
	largeBody   = 256 << 10 // bytes from which a body is large: tens of milliseconds if it is all text
	laneBytes   = 16 << 20  // for each core; the lane of small bodies has twice as much; a body that needs more is read when its lane is empty
	maxWaiting  = 1024      // in each lane; further requests are routed by load at once
	longestWait = time.Second

	maxScans = 1 << 20 // large bodies that wait to be scanned; the limit of bodies' bytes allows fewer

	largeSkeleton = 64 << 10 // bytes from which a skeleton is dropped while its body waits
	muchMemory    = 48 << 20 // bytes of memory from which a body is read after a collection
)

// memoryFor estimates the memory, in bytes, that a request takes while it is read, and its weight in a lane. The factors are those
// of the worst bodies that are known: 37 for values and keys, whose number is bounded; 21 for a text of 1 MB, of whose ids there is
// a bound, so that one of 32 MB takes three times its size. Media take none, but their bytes take time and weigh.
func memoryFor(req *body.Request) (need, weight int) {
	media := prompt.MediaBytes(req)
	text, skeleton := req.Body.Long()-media, len(req.Body.JSON())
	need = 3*text + min(12*text, 20<<20) + 4*skeleton + min(36*skeleton, 36<<20)
	if prompt.HasOwnTemplate(req) {
		need += prompt.OwnTemplateBytes
	}
	return need, need + 4*media
}

// makeRoom collects the garbage before a body is read that takes much memory. Much of what the one before it took is garbage then,
// and would stay until the heap has grown by as much again. If a collection would have to read more than four times as much, that
// is left to the runtime.
func makeRoom(need int) {
	if need < muchMemory {
		return
	}
	scanned := []rtmetrics.Sample{{Name: "/gc/scan/heap:bytes"}}
	rtmetrics.Read(scanned)
	if scanned[0].Value.Uint64()/4 <= uint64(need) {
		runtime.GC()
	}
}

// lanes are the lane of small bodies and that of large ones. scans limits how many large bodies are scanned and cleaned at once.
type lanes struct {
	small, large *lane
	scans        *fair.Room
}

func newLanes() *lanes {
	cores := runtime.GOMAXPROCS(0)
	return &lanes{small: newLane(2 * laneBytes * cores), large: newLane(laneBytes * cores), scans: fair.New(int64(cores), maxScans)}
}

// laneFor returns the lane of a request with a body of n bytes, and the Decision.Why if the lane is full. One with its own template
// may take as much memory as a large one.
func (l *lanes) laneFor(req *body.Request, n int) (one *lane, busy string) {
	if n >= largeBody || prompt.HasOwnTemplate(req) {
		return l.large, "too many large requests are being read"
	}
	return l.small, "too many requests are being read"
}

// scan waits until a client's body of n bytes may be scanned: as long as it takes, since nothing passes uncleaned. The caller must call
// done after that.
func (l *lanes) scan(c fair.Client, n int) (done func()) {
	if n < largeBody || !l.scans.Take(context.Background(), c, 1, int64(n)) {
		return func() {}
	}
	return func() { l.scans.Give(c, 1) }
}

// lane limits the memory for what is read at once.
type lane struct {
	*fair.Room
	room int
}

func newLane(room int) *lane { return &lane{fair.New(int64(room), maxWaiting), room} }

// acquire waits for room for a client's body that needs n bytes, for half of the remaining time at most. It returns false if there
// was none; after true the caller must call release.
func (l *lane) acquire(ctx context.Context, c fair.Client, n int) bool {
	patience := longestWait
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.Take(ctx, c, int64(n), int64(n))
}

// release returns the room of a body that needed n bytes.
func (l *lane) release(c fair.Client, n int) { l.Give(c, int64(n)) }
