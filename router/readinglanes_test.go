package router

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/fair"
)

const steering = `"kv_transfer_params":{"remote_host":"10.0.0.1"},`

// hostile is a body with a field that clients must not send, of at least so many bytes.
func hostile(size int) string {
	return strings.Replace(chatBody("m", fmt.Sprintf("%q", strings.Repeat("many words ", size/11+1))), "{", "{"+steering, 1)
}

func wantClean(t *testing.T, what, body string, d Decision) {
	t.Helper()
	at := strings.Index(body, steering)
	if len(d.Edits) != 1 || d.Edits[0].From != at || d.Edits[0].To != at+len(steering) || len(d.Edits[0].Text) > 0 {
		t.Errorf("%s: edits %v, want the field at %d taken out", what, d.Edits, at)
	}
	if len(d.Targets) == 0 || d.Refuse != nil {
		t.Errorf("%s: targets %v, refusal %v, want some of them, nil", what, d.Targets, d.Refuse)
	}
}

// TestCleanedWhenNotRead checks that, whatever keeps a request from being read, its body is cleaned and it gets a worker, and
// that others are still read.
func TestCleanedWhenNotRead(t *testing.T) {
	w := newWorld(t, 2)
	small, large := hostile(100), hostile(largeBody)
	ask := func(ctx context.Context, body string) Decision {
		w.ids++
		return w.Decide(ctx, &Request{ID: fmt.Sprint("d", w.ids), Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	d := ask(over, small)
	wantClean(t, "time is over", small, d)
	if d.Reason != Load || d.Why != "no time left to read all of the prompt" {
		t.Errorf("time is over: got %s, %q, want %q, %q", d.Reason, d.Why, Load, "no time left to read all of the prompt")
	}

	busyLane := w.lanes.large
	if !busyLane.acquire(t.Context(), 0, 1<<30) {
		t.Fatal("got a lane that is not empty, want all its room")
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	d = ask(soon, large)
	wantClean(t, "large ones are being read", large, d)
	if d.Reason != Load || d.Why != "too many large requests are being read" {
		t.Errorf("large ones are being read: got %s, %q, want %q, %q", d.Reason, d.Why, Load, "too many large requests are being read")
	}
	d = ask(t.Context(), small)
	wantClean(t, "small beside large", small, d)
	if d.PromptTokens == 0 {
		t.Errorf("small beside large: %+v, want it read", d)
	}
	busyLane.release(0, 1<<30)
	d = ask(t.Context(), large)
	if d.PromptTokens == 0 || !w.lanes.large.empty() {
		t.Errorf("afterwards: got %+v, lane empty: %v, want the prompt read and the lane empty", d, w.lanes.large.empty())
	}

	index := w.opt.Index
	w.opt.Index = nil // so that everything after the cleaning panics
	d = ask(t.Context(), small)
	w.opt.Index = index
	wantClean(t, "panic", small, d)
	if d.Reason != Load || d.Why != "internal error" || !w.lanes.small.empty() {
		t.Errorf(`panic: %s, %q, lane empty: %v, want d.Reason == Load, d.Why == "internal error", w.lanes.small.empty()`,
			d.Reason, d.Why, w.lanes.small.empty())
	}
	all, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			if f.GetName() == "sightline_steps_down_total" {
				counted[m.Label[0].GetValue()] = m.Counter.GetValue()
			}
		}
	}
	for _, why := range []string{"no time left to read all of the prompt", "too many large requests are being read", "internal error"} {
		if counted[why] != 1 {
			t.Errorf("%q counted %v times, want 1", why, counted[why])
		}
	}
}

// empty reports whether no bytes are taken.
func (l *lane) empty() bool {
	return l.Taken() == 0
}

func TestLane(t *testing.T) { synctest.Test(t, testLane) }

func testLane(t *testing.T) {
	l := newLane(10)
	asked := func(n int) chan bool {
		got := make(chan bool, 1)
		go func() { got <- l.acquire(t.Context(), 0, n) }()
		synctest.Wait()
		return got
	}
	if !l.acquire(t.Context(), 0, 6) || !l.acquire(t.Context(), 0, 4) {
		t.Fatal("got an empty lane full, want room for 6 and 4")
	}
	first, second := asked(50), asked(1)
	l.release(0, 4)
	synctest.Wait()
	if len(first) > 0 || len(second) > 0 { // first come, first served
		t.Errorf("a turn came out of order: got %d, %d, want 0, 0", len(first), len(second))
	}
	l.release(0, 6)
	if !<-first { // more than the room: read alone
		t.Error("a body larger than the room was never read, want <-first")
	}
	synctest.Wait()
	if len(second) > 0 {
		t.Errorf("the room was exceeded: got %d, want 0", len(second))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if l.acquire(gone, 0, 1) {
		t.Error("a request without time left got a turn of a full lane")
	}
	start := time.Now()
	if l.acquire(t.Context(), 0, 1) || time.Since(start) != longestWait {
		t.Errorf("waited %v for a full lane, want %v", time.Since(start), longestWait)
	}
	if third := asked(1); <-second || <-third {
		t.Error("a turn came where none was free, want !<-second, !<-third")
	}
	second = asked(1)
	l.release(0, 50)
	if !<-second || l.empty() {
		t.Error("got a turn that came not counted, want the lane taken")
	}
	l.release(0, 1)
	if !l.empty() || l.Waiting() != 0 {
		t.Errorf("got %d waiting in a lane that all have left, want it empty", l.Waiting())
	}
	l.acquire(t.Context(), 0, 10)
	for range maxWaiting {
		go l.acquire(t.Context(), 0, 1)
	}
	synctest.Wait()
	start = time.Now()
	if l.acquire(t.Context(), 0, 1) || time.Since(start) != 0 || l.Waiting() != maxWaiting {
		t.Errorf("got %d waiting, want %d at most and the next refused at once", l.Waiting(), maxWaiting)
	}
}

// TestLanesAreShared: a client whose bodies fill a lane and its line makes another's wait for no more than one of them.
func TestLanesAreShared(t *testing.T) { synctest.Test(t, testLanesAreShared) }

func testLanesAreShared(t *testing.T) {
	w := newWorld(t, 1)
	const hostile, victim = fair.Client(1), fair.Client(2)
	lane := w.lanes.small
	lane.acquire(t.Context(), hostile, lane.room)
	for range 2 * maxWaiting {
		go func() {
			if lane.acquire(t.Context(), hostile, lane.room) {
				time.Sleep(50 * time.Millisecond)
				lane.release(hostile, lane.room)
			}
		}()
	}
	synctest.Wait()
	time.AfterFunc(50*time.Millisecond, func() { lane.release(hostile, lane.room) })
	for i := range 5 {
		start := time.Now()
		d := w.Decide(t.Context(), &Request{ID: fmt.Sprint(i), Path: "/v1/chat/completions", Client: victim,
			Body: [][]byte{[]byte(chatBody("m", `"hello"`))}})
		if took := time.Since(start); d.PromptTokens == 0 || took > 100*time.Millisecond {
			t.Errorf("request %d: %s (%s) after %v, want it read within two turns of 50 ms", i, d.Reason, d.Why, took)
		}
	}
	time.Sleep(2 * longestWait) // until the others have left
}

// Bodies that wait are worth little more than their bytes, however much was made of them, and are read and cleaned like others
// when their turn has come.
func TestWaitingBodiesAreLetGo(t *testing.T) { synctest.Test(t, testWaitingBodiesAreLetGo) }

func testWaitingBodiesAreLetGo(t *testing.T) {
	w := newWorld(t, 1)
	var keys strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&keys, `"k%d":0,`, i)
	}
	text := strings.Replace(chatBody("m", `"hello"`), "{", "{"+steering+keys.String(), 1)
	const n = 16
	w.lanes.large.acquire(t.Context(), 0, 1<<30)
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	got := make(chan Decision, n)
	for i := range n {
		go func() {
			got <- w.Decide(t.Context(), &Request{ID: fmt.Sprint(i), Path: "/v1/chat/completions", Body: [][]byte{[]byte(text)}})
		}()
	}
	synctest.Wait()
	if now := live(); w.lanes.large.Waiting() != n || now > before+uint64(2*n*len(text)) {
		t.Errorf("%d wait, with %d KiB each, want %d bodies of %d KiB", w.lanes.large.Waiting(), (now-min(now, before))/n>>10, n, len(text)>>10)
	}
	w.lanes.large.release(0, 1<<30)
	for range n {
		d := <-got
		wantClean(t, "one that waited", text, d)
		if d.PromptTokens == 0 {
			t.Errorf("one that waited: %+v, want it read", d)
		}
	}
}

// TestMemoryFor checks what requests are estimated to take: media are read where they are, texts become ids, everything else values.
func TestMemoryFor(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	image := `{"type":"image_url","image_url":{"url":"` + long + `"}}`
	for _, c := range []struct {
		name, content string
		need, weight  int // MiB
	}{
		{"a text", `"` + long + `"`, 15, 15},
		{"a text part", `[{"type":"text","text":"` + long + `"}]`, 15, 15},
		{"an image", `[` + image + `]`, 0, 4},
		{"an image of Anthropic's API", `[{"type":"image","source":{"type":"base64","data":"` + long + `"}}]`, 0, 4},
		{"an image in /v1/responses", `[{"role":"user","content":[{"type":"input_image","image_url":"` + long + `"}]}]`, 0, 4},
		{"texts in /v1/responses", `[{"role":"user","content":[{"type":"input_text","text":"` + long +
			`"}]},{"role":"user","content":"` + long + `"}]`, 26, 26},
		{"a text beside an image", `[{"type":"image_url","image_url":{"url":"data:"},"note":"` + long + `"}]`, 15, 15},
		{"a text and images", `[{"type":"text","text":"` + long + `"},` + image + `,` + image + `]`, 15, 23},
		{"32 texts", `[` + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"`+long+`"},`, 32), ",") + `]`, 116, 116},
		{"values", `[` + strings.Repeat("0,", 1<<19) + `0]`, 40, 40},
		{"8 MB of values", `[` + strings.Repeat("0,", 4<<20-100) + `0]`, 67, 67},
	} {
		var s body.Skeleton
		var req body.Request
		text := chatBody("m", c.content)
		if strings.Contains(c.name, "/v1/responses") {
			text = `{"model":"m","input":` + c.content + `}`
		}
		if err := body.Read([][]byte{[]byte(text)}, &s, &req); err != nil && !errors.Is(err, body.ErrTooMany) {
			t.Fatal(c.name, err)
		}
		own, _ := strings.CutSuffix(text, "}")
		if lane, _ := newLanes().laneFor(&req, 100); lane.room != 2*laneBytes*runtime.GOMAXPROCS(0) {
			t.Errorf("%s: got a small body in the lane of large ones, want it in the other", c.name)
		}
		if need, weight := memoryFor(&req); need>>20 != c.need || weight>>20 != c.weight {
			t.Errorf("%s: %d and %d MiB, want %d and %d", c.name, need>>20, weight>>20, c.need, c.weight)
		}
		s, req = body.Skeleton{}, body.Request{}
		if err := body.Read([][]byte{[]byte(own + `,"chat_template":"{{ 'x' * 30000000 }}"}`)}, &s, &req); err != nil &&
			!errors.Is(err, body.ErrTooMany) {
			t.Fatal(c.name, err)
		}
		if need, weight := memoryFor(&req); need>>20 < c.need+32 || weight>>20 < c.weight+32 {
			t.Errorf("%s, with a template of its own: got %d and %d MiB, want at least %d, at least %d",
				c.name, need>>20, weight>>20, c.need+32, c.weight+32)
		}
		lanes := newLanes()
		if lane, _ := lanes.laneFor(&req, 100); lane != lanes.large {
			t.Errorf("%s, with a template of its own: not in the lane of large ones; got %+v, want %+v", c.name, lane, lanes.large)
		}
	}
}

// TestMuchMemory checks that the garbage of one large body is collected before the next is read, and that other bodies do not wait
// for a collection.
func TestMuchMemory(t *testing.T) {
	w := newWorld(t, 1)
	forced := func(content string) uint32 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w.decide(chatBody("m", content))
		runtime.ReadMemStats(&after)
		return after.NumForcedGC - before.NumForcedGC
	}
	text := strings.Repeat("many words ", 10<<20/11)
	if n := forced(`"` + text + `"`); n != 1 {
		t.Errorf("10 MB of text: %d collections, want one", n)
	}
	for name, content := range map[string]string{"a chat": `"hello"`, "1 MB of text": `"` + text[:1<<20] + `"`,
		"16 MB of an image": `[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("a", 16<<20) + `"}}]`} {
		if n := forced(content); n != 0 {
			t.Errorf("%s: %d collections, want none", name, n)
		}
	}
}
