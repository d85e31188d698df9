package engine

import (
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/media/relay"
)

// TestPanicCostsOneMedium: a panic over one image only ends the exact part there; everything before it is known.
func TestPanicCostsOneMedium(t *testing.T) {
	file, _ := pngFile(t)
	data := base64.StdEncoding.EncodeToString(file)
	var told atomic.Int32
	m := loadShipped(t, func(s *Server, x *Media) {
		x.Relay, x.RelayDataURLs = new(relay.Relay), true // without a clock, so that it panics when it is offered an image
		x.Panicked = func(where string, err error) { told.Add(1) }
	})
	for n, media := range []string{
		fmt.Sprintf(`{"type":"image","source":{"type":"url","url":"data:image/png;base64,%s"}}`, data),
		fmt.Sprintf(`{"type":"image","source":{"type":"url","url":"data:image/png;base64,%s"}},{"type":"image","source":{"type":"url","url":"http://127.0.0.1:1/x"}}`, data),
	} {
		body := fmt.Sprintf(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[`+
			`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}},%s,{"type":"text","text":"What?"}]}]}`, data, media)
		p, _ := read(t, m, "/v1/messages", body)
		if p.Exact || p.Why != inexactPanic || len(p.Media) != 2 || !p.Media[0].HasFacts || p.Media[1].HasFacts ||
			p.HashableIDs < p.Media[0].Offset+p.Media[0].Length {
			t.Errorf("exact %v (%s), %d of %d tokens, %+v", p.Exact, p.Why, p.HashableIDs, len(p.IDs), p.Media)
		}
		if told.Load() != int32(n+1) {
			t.Errorf("told %d times, want %d", told.Load(), int32(n+1))
		}
	}
}

// TestPanicBeside: a panic in the background goroutine ends the wait at once and frees its slot.
func TestPanicBeside(t *testing.T) {
	x := newLocalFiles(func() {})
	told := make(chan string, 1)
	var none []int
	for range 2 * maxOpenFiles {
		if n, ok := inBackground(t.Context(), 0, &x, func(where string, _ error) { told <- where }, func() int { return none[1] }); ok {
			t.Fatalf("found %d", n)
		}
		if where := <-told; where != "local file" {
			t.Errorf("told of %q, want %q", where, "local file")
		}
	}
	if n, ok := inBackground(t.Context(), 0, &x, nil, func() int { return 7 }); n != 7 || !ok {
		t.Errorf("got %d, %v, want 7, true", n, ok)
	}
}
