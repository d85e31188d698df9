package calibrate

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// engine answers after a time by its own clock: 10 ms, 100 µs for each token not cached in blocks of 16, and 300 ms for a new
// image.
type engine struct {
	mu         sync.Mutex
	now        time.Time
	seen       map[string]bool
	counts     bool // usage reports cached tokens
	noImages   bool
	forgetful  bool
	asked, max int
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	var body struct {
		Max      int `json:"max_tokens"`
		Messages []struct{ Content any }
	}
	_ = json.Unmarshal(raw, &body)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked, e.max = e.asked+1, max(e.max, body.Max)
	tokens, image := 0, false
	if text, ok := body.Messages[0].Content.(string); ok {
		tokens = 5 + len(strings.Fields(text))
	} else {
		tokens, image = 1029, true
		if e.noImages {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	cached, took := 0, 10*time.Millisecond
	if key := string(raw); e.seen[key] && !e.forgetful {
		cached = (tokens - 1) / 16 * 16
	} else {
		e.seen[key] = true
		if image {
			took += 300 * time.Millisecond
		}
	}
	e.now = e.now.Add(took + time.Duration(tokens-cached)*100*time.Microsecond)
	details := "null"
	if e.counts {
		details = fmt.Sprintf(`{"cached_tokens":%d}`, cached)
	}
	fmt.Fprintf(w, `{"usage":{"prompt_tokens":%d,"prompt_tokens_details":%s}}`, tokens, details)
}

func TestMeasure(t *testing.T) {
	idle, busy, no := 0, 3, false
	for name, c := range map[string]struct {
		engine       *engine
		facts        rules.Facts
		force        bool
		rate, encode float64 // 0: none
		refused      string
		asked        int
	}{
		"counts":          {&engine{counts: true}, rules.Facts{Requests: &idle, MaxModelLen: 40000}, false, 10000, 3000, "", 5},
		"does not count":  {&engine{}, rules.Facts{Requests: &idle, MaxModelLen: 40000}, false, 10000, 3000, "", 5},
		"takes no images": {&engine{counts: true, noImages: true}, rules.Facts{Requests: &idle}, false, 10000, 0, "", 4},
		"busy":            {&engine{}, rules.Facts{Requests: &busy}, false, 0, 0, "3 requests", 0},
		"busy, forced":    {&engine{counts: true}, rules.Facts{Requests: &busy}, true, 10000, 3000, "", 5},
		"does not say":    {&engine{}, rules.Facts{}, false, 0, 0, "--force", 0},
		"no cache":        {&engine{}, rules.Facts{Requests: &idle, PrefixCaching: &no}, false, 0, 0, "caching is off", 0},
		"forgets":         {&engine{forgetful: true}, rules.Facts{Requests: &idle}, false, 0, 0, "as long as the first", 3},
	} {
		t.Run(name, func(t *testing.T) {
			e := c.engine
			e.seen = map[string]bool{}
			s := httptest.NewServer(e)
			defer s.Close()
			c.facts.Addr, c.facts.Served = strings.TrimPrefix(s.URL, "http://"), []rules.Served{{ID: "m"}}
			clock := func() time.Time { e.mu.Lock(); defer e.mu.Unlock(); return e.now }
			r, err := Measure(t.Context(), &c.facts, Options{Force: c.force, Now: clock}, io.Discard)
			if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
				t.Fatalf("%v (want %q)", err, c.refused)
			}
			near := func(got, want float64) bool { return math.Abs(got-want) <= want/50 }
			if !near(r.Rate, c.rate) || !near(r.Encode, c.encode) || e.asked != c.asked || e.max > 1 {
				t.Errorf("%+v after %d requests, want %g tokens a second and %g for an image after %d", r, e.asked, c.rate, c.encode, c.asked)
			}
		})
	}
}
