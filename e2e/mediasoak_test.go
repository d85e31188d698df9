package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestMediaSoak sends requests of four 3.7 MB images, four at a time, through a real Envoy, for SIGHTLINE_SOAK ("60s";
// else a few): each is decided with its images, memory stays where the first ones took it, and no stream stays open.
func TestMediaSoak(t *testing.T) {
	l := startLab(t, func(o *lab.Options) { o.Config = func(keys map[string]any) { keys["fixed"] = unprobed() } })
	long, _ := time.ParseDuration(os.Getenv("SIGHTLINE_SOAK"))
	var parts []any
	for i := range 4 {
		parts = append(parts, imagePart(dataURL(append(photo(uint64(50+i)), make([]byte, 2_700_000)...)), nil))
	}
	body := request("soak", "?", parts...)
	body["model"], body["max_tokens"] = lab.ModelName, 1
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	var sent, failed atomic.Int64
	round := func(until time.Time, least int) {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for i := 0; i < least || time.Now().Before(until); i++ {
					sent.Add(1)
					resp, err := http.Post(l.URL+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
					if err != nil {
						failed.Add(1)
						continue
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
						failed.Add(1)
					}
					resp.Body.Close()
				}
			})
		}
		all.Wait()
	}
	resident := func() float64 { return metric(t, l, "process_resident_memory_bytes", "") / (1 << 20) }
	round(time.Time{}, 2)
	warm, begun := resident(), time.Now()
	round(begun.Add(long), 2)
	after := resident()
	t.Logf("%d requests of %d bytes, %d failed; %.1f a second; resident %.0f MiB after 8, %.0f MiB at the end; decisions of %.1f ms",
		sent.Load(), len(raw), failed.Load(),
		float64(sent.Load()-8)/time.Since(begun).Seconds(), warm, after,
		1000*metric(t, l, "sightline_decision_seconds_sum", "")/metric(t, l, "sightline_decision_seconds_count", ""))
	if failed.Load() > 0 || after > max(320, 1.5*warm) {
		t.Errorf("%d of %d requests failed; %.0f MiB resident", failed.Load(), sent.Load(), after)
	}
	if n := metric(t, l, "sightline_extproc_errors_total", ""); n != 0 && long > 0 { // a machine that is too busy may go on without us
		t.Errorf("%v streams ended without a decision", n)
	}
	if d := lastDecision(t, l); d.Get("prompt_tokens").Int() < 1500 || d.Get("cached_tokens").Int() < 1400 {
		t.Errorf(`the last decision: got %s, want d.Get("prompt_tokens").Int() >= 1500, d.Get("cached_tokens").Int() >= 1400`, d.Raw)
	}
	eventually(t, "no request is left with Sightline", func() bool {
		stats, err := lab.Get("http://" + l.EnvoyAdmin +
			"/stats?filter=ext_proc.(streams_started|streams_closed|failure_mode_allowed)&format=json")
		if err != nil {
			return false
		}
		got := map[string]int64{}
		gjson.GetBytes(stats, "stats").ForEach(func(_, s gjson.Result) bool {
			name := s.Get("name").Str
			got[name[strings.LastIndexByte(name, '.')+1:]] += s.Get("value").Int()
			return true
		})
		return got["streams_started"] >= sent.Load() && got["streams_started"] == got["streams_closed"] &&
			(long == 0 || got["failure_mode_allowed"] == 0)
	})
}
