package fleet

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// TestTold runs one worker's reports, step by step: b books a request of ours, e ends the oldest; "r w u" reports r running and w
// waiting requests and usage u; "+n" lets n tenths of a second pass; "-" withdraws all. After each: requests in flight, and other
// senders' among them.
func TestTold(t *testing.T) {
	for _, c := range []struct{ name, steps, want string }{
		{"nothing told", "b|b|e|e|e", "1 0|2 0|1 0|0 0|0 0"},
		{"others on top of ours", "b|b|2 3 .2|b|e", "1 0|2 0|5 3|6 3|5 3"},
		{"fewer than ours change nothing", "b|b|b|0 0 0|1 1 .5|e", "1 0|2 0|3 0|3 0|3 0|2 0"},
		{"ours that ended while it was asked are not others'", "b|b|b|b|e|e|e|4 0 .1|e", "1 0|2 0|3 0|4 0|3 0|2 0|1 0|1 0|0 0"},
		{"nor those of the time before", "b|b|+19|0 2 0|+19|e|e|0 2 0", "1 0|2 0|2 0|2 0|2 0|1 0|0 0|0 0"},
		{"but later they are", "b|b|0 2 0|+10|e|e|0 0 0|+10|0 0 0|+19|0 2 0|+1|0 2 0", "1 0|2 0|2 0|2 0|1 0|0 0|0 0|0 0|0 0|0 0|0 0|0 0|2 2"},
		{"ours that it has not told of yet", "0 4 0|b|b|0 5 0", "4 4|5 4|6 4|5 3"},
		{"old: it counts for three seconds", "9 0 .9|+29|b|+1|e", "9 9|9 9|10 9|1 0|0 0"},
		{"taken back", "9 0 .9|-|b", "9 9|0 0|1 0"},
	} {
		now := time.Unix(1000, 0)
		f := newRequests(func() time.Time { return now })
		w := NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
		s := w.Slots[0]
		s.report.periodStart = now
		var got []string
		booked, ended := 0, 0
		for _, step := range strings.Split(c.steps, "|") {
			told, tenths := LoadReport{MaxAge: 2 * time.Second, ValidFor: 3 * time.Second}, 0
			switch {
			case step == "b":
				f.Book(fmt.Sprint(booked), s, Work{})
				booked++
			case step == "e":
				f.End(fmt.Sprint(ended))
				ended++
			case step == "-":
				s.SetReport(LoadReport{}, now)
			case step[0] == '+':
				_, _ = fmt.Sscan(step[1:], &tenths)
				now = now.Add(time.Duration(tenths) * time.Second / 10)
			default:
				_, _ = fmt.Sscan(step, &told.Running, &told.Waiting, &told.Usage)
				s.SetReport(told, now)
			}
			l := s.Load(now)
			got = append(got, fmt.Sprint(l.Inflight, l.OtherSenders))
		}
		if g := strings.Join(got, "|"); g != c.want {
			t.Errorf("%s: %s\n got %s\nwant %s", c.name, c.steps, g, c.want)
		}
	}
}

// TestToldUsage checks that the share of the KV cache in use counts while it is reported, and that an unreported one is not taken
// for an empty cache.
func TestToldUsage(t *testing.T) {
	w, now := NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 }), time.Unix(1000, 0)
	s := w.Slots[0]
	want := func(usage float64, tells bool, age time.Duration) {
		t.Helper()
		_, shown, old, ok := s.CurrentReport(now)
		if (ok && shown >= 0) != tells || tells && shown != usage || ok && old != age || ok != (age >= 0) {
			t.Errorf("shown %v of %v ago, %v", shown, old, ok)
		}
	}
	want(0, false, -1)
	s.SetReport(LoadReport{Usage: 0.5, ValidFor: time.Second}, now)
	want(0.5, true, 0)
	now = now.Add(900 * time.Millisecond)
	want(0.5, true, 900*time.Millisecond)
	s.SetReport(LoadReport{Usage: -1, ValidFor: time.Second}, now)
	want(0, false, 0)
	s.SetReport(LoadReport{Usage: 0, ValidFor: time.Second}, now)
	want(0, true, 0)
	now = now.Add(time.Second)
	want(0, false, -1)
}

// TestFullCache checks how much of a prompt waits for room in the KV cache, by the latest report and what was booked and ended since.
func TestFullCache(t *testing.T) {
	now := time.Unix(1000, 0)
	f := newRequests(func() time.Time { return now })
	s := NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 }).Slots[0]
	want := func(of int, waits float64) {
		t.Helper()
		l := s.Load(now)
		if got := l.Waits(of); math.Abs(got-waits) > 1e-6 {
			t.Errorf("%v of %d tokens wait, want %v", got, of, waits)
		}
	}
	f.Book("a", s, Work{Context: 60000})
	f.Book("b", s, Work{Context: 30000})
	want(50000, 0)
	report := LoadReport{Running: 2, Usage: 0.9, ValidFor: time.Second}
	s.SetReport(report, now)
	want(8000, 0) // there is room for 10,000
	want(12000, 2000)
	f.Book("c", s, Work{Context: 15000})
	want(1000, 1000)
	f.End("b")
	want(30000, 5000)
	now = now.Add(time.Second)
	want(30000, 0) // the report is too old
	report.Running = 5
	s.SetReport(report, now)
	want(30000, 0) // others' requests hold an unknown part of it
	report.Running, report.Usage = 2, 0.7
	s.SetReport(report, now)
	want(200000, 0) // it is far from full
}

func FuzzParseTold(f *testing.F) {
	f.Add([]byte(`{"num_waiting_reqs": 5, "kv_cache_usage": 0.25}`))
	for _, bad := range []string{``, `[]`, `{}`, `{"num_waiting_reqs": -1, "kv_cache_usage": 0}`,
		`{"num_waiting_reqs": 1, "kv_cache_usage": 1e9}`, `{"num_waiting_reqs": 1}`} {
		if got, err := ParseLoadReport([]byte(bad)); err == nil {
			f.Errorf("%s: %+v; got %v, want an error", bad, got, err)
		}
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := ParseLoadReport(b); err == nil && (got.Waiting < 0 || !(got.Usage >= 0 && got.Usage <= 1)) {
			t.Errorf("%q: %+v", b, got)
		}
	})
}
