package trtllm

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
)

// queue is a trtllm-serve whose events are removed when they are read. An entry "!" is a failure, "~" a truncated answer.
type queue struct {
	mu      sync.Mutex
	answers []string
}

func (q *queue) put(s ...string) {
	q.mu.Lock()
	q.answers = append(q.answers, s...)
	q.mu.Unlock()
}

func (q *queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := "[]"
	if len(q.answers) > 0 {
		a, q.answers = q.answers[0], q.answers[1:]
	}
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/kv_cache_events" || a == "!":
		w.WriteHeader(http.StatusServiceUnavailable)
	case a == "~":
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(`[{"event_id": 3, "data": {"type": "rem`))
	default:
		_, _ = w.Write([]byte(a))
	}
}

func TestDrain(t *testing.T) {
	q := new(queue)
	s := httptest.NewServer(q)
	defer s.Close()
	ix := indexer.New(indexer.Options{})
	drain := NewDrain(s.URL, 2, nil)
	var sinks [2]*stream.IndexSink
	var feeds [2]*stream.Feed
	for r := range feeds {
		sinks[r] = stream.Join(ix, indexer.SlotOptions{})
		feeds[r] = stream.Start(stream.Options{Source: drain.Source(), Decoder: &Decoder{Rank: r, BlockSize: 2}, Sink: sinks[r], BlockSize: 2})
		defer feeds[r].Close()
	}
	until := func(what string, held0, held1 int, more func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ix.HeldBlocks(sinks[0].Slot()) != held0 ||
			ix.HeldBlocks(sinks[1].Slot()) != held1 || !more(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d and %d blocks, want %d and %d; %+v", what, ix.HeldBlocks(sinks[0].Slot()),
					ix.HeldBlocks(sinks[1].Slot()), held0, held1, feeds[0].Stats())
			}
		}
	}
	yes := func() bool { return true }
	one := func(id, rank, engineHash string) string {
		return `{"event_id":` + id + `,"attention_dp_rank":` + rank +
			`,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":` + engineHash +
			`,"tokens":[{"token_id":` + engineHash + `},{"token_id":1}],"mm_keys":[]}]}}`
	}
	q.put("!", "["+one("0", "0", "1")+","+one("0", "1", "7")+"]", "["+one("1", "0", "2")+"]")
	until("each rank its own", 2, 1, func() bool { return !feeds[0].Stats().Partial && feeds[0].Stats().Connected })
	q.put("["+one("1", "1", "8")+"]", "["+one("2", "0", "3")+"]")
	until("more", 3, 2, yes)
	q.put("~")
	until("an answer that broke off leaves doubt", 3, 2, func() bool {
		return feeds[0].Stats().Doubtful == 3 && feeds[1].Stats().Doubtful == 2 && feeds[0].Stats().DecodeErrors == 1
	})
	q.put("[" + one("4", "0", "9") + "]")
	until("and the missing number is seen", 1, 2, func() bool { return feeds[0].Stats().Gaps == 1 && feeds[0].Stats().Connected })
	q.put("[" + one("0", "0", "5") + "]")
	until("a new life", 1, 2, func() bool { return !feeds[0].Stats().Partial })
}

func TestHoldsEvents(t *testing.T) {
	for text, want := range map[string]bool{"": false, "[]": false, " [\n] ": false, "[{": true, "[[": true, "nope": true, "[": false} {
		if holdsEvents([]byte(text)) != want {
			t.Errorf("got %q: %v, want holdsEvents([]byte(text)) == want", text, !want)
		}
	}
}

// TestAnswerIsBounded: an endless answer is given up, and takes of the room that all workers share; blocks outside the GPU that do not fit
// into the table count as removed.
func TestAnswerIsBounded(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	defer s.Close()
	budget := stream.NewBudget()
	hold, other := budget.Received(1), budget.Received(2)
	got, err := NewDrain(s.URL, 1, nil).post(t.Context(), nil, &hold)
	if err == nil || !strings.Contains(err.Error(), "an answer of more than 48 MiB") || cap(got) != maxAnswer {
		t.Errorf("got %d bytes, %v, want 48 MiB and an error", cap(got), err)
	}
	within, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if !other.Grow(t.Context(), 12<<20) || other.Grow(within, 13<<20) {
		t.Error("another worker got other than the 12 MiB that are its share beside 48 MiB of 64")
	}
	hold.Free()
	if !other.Grow(t.Context(), 16<<20) {
		t.Error("what was given back is not there")
	}
	d := Decoder{offGPU: map[uint64]kvevent.Tier{}}
	for i := range uint64(maxOffGPU + 10) {
		if d.offGPU.set(i, kvevent.CPU, d.room) != (i < maxOffGPU) {
			t.Fatalf("block %d", i)
		}
	}
}
