package engine

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestHundredImages: half of them in the body, half on a host that sends very slowly. The first half is known, all of the rest
// share one budget, and no goroutine stays behind.
func TestHundredImages(t *testing.T) {
	var asked atomic.Int32
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte{0x89})
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}))
	defer host.Close()
	file, _ := pngFile(t)
	var parts []string
	for i := range 100 {
		url := fmt.Sprintf("%s/%d", host.URL, i)
		if i < 50 { // a polyglot: some readers see an image, others a web page or an archive
			more := fmt.Sprintf("<html>%d</html>PK\x05\x06%018d", i, 0)
			url = "data:image/png;base64," + base64.StdEncoding.EncodeToString(append(file[:len(file):len(file)], more...))
		}
		parts = append(parts, `{"type":"image_url","image_url":{"url":"`+url+`"}}`)
	}
	before := runtime.NumGoroutine()
	t.Run("read", func(t *testing.T) {
		m := loadShipped(t, func(_ *Server, x *Media) { x.budget.Store(int64(100 * time.Millisecond)) })
		p, _ := read(t, m, chatPath, one(strings.Join(parts, ",")))
		names := map[string]bool{}
		for i := range p.Media {
			if md := &p.Media[i]; md.HasFacts && md.HasName && md.Length == 10 {
				names[md.Name] = true
			}
		}
		if p.Exact || p.Why != inexactBudget || len(names) != 50 || p.HashableIDs < 50*10 {
			t.Errorf("exact %v, %q, %d ids sure; %d images named, want false, %q, 50, at least %d",
				p.Exact, p.Why, p.HashableIDs, len(names), inexactBudget, 50*10)
		}
		until(t, "the host is asked", func() bool { return asked.Load() > 0 }) // downloads continue
	})
	until(t, fmt.Sprintf("no more than %d goroutines", before), func() bool { return runtime.NumGoroutine() <= before })
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			all := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, all[:runtime.Stack(all, true)])
		}
	}
}
