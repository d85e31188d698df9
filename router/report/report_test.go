package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/decisionlog"
)

var began = time.UnixMilli(1_800_000_000_000)

// one returns the i-th request of an arm: 1000 tokens, 10 ms and more to the first byte; if unsteered, the chosen worker held
// 500, the used one 100 or, each tenth, 600.
func one(arm Arm, i int) Request {
	r := Request{Arm: arm, OK: true, Prompt: 1000, Cached: 500, Counted: i%2 == 0, FirstByte: time.Duration(10+i) * time.Millisecond,
		End: time.Second, Steps: i%3 - 1, Waited: time.Duration(i) * time.Millisecond}
	if arm == Unsteered {
		r.Would = &decisionlog.Hypothetical{Cached: 500, UsedCached: 100, Encode: 50, Rate: 10000}
		if i%10 == 0 {
			r.Would.UsedCached, r.Would.Rate = 600, 0
		}
	}
	return r
}

func line(r Request, at time.Time) *decisionlog.Line {
	l := &decisionlog.Line{Timestamp: at.UnixMilli(), Arm: string(r.Arm), Outcome: decisionlog.Ended, Status: 200,
		InputLength: r.Prompt, ReportedCached: -1,
		Worker: "a", Used: "a", Cached: r.Cached, Would: r.Would, FirstByte: r.FirstByte.Seconds() * 1e3, End: r.End.Seconds() * 1e3,
		Steps: r.Steps, Waited: r.Waited.Seconds() * 1e3}
	if !r.OK {
		l.Status = 503
	}
	if r.Counted {
		l.ReportedCached = r.Cached
	}
	return l
}

// TestLogAndTotalsAgree checks that a running router's report equals that of its decision log.
func TestLogAndTotalsAgree(t *testing.T) {
	live, log := New("", time.Time{}), ""
	for i := range 200 {
		for _, r := range []Request{one(Steered, i), one(Unsteered, i), {Arm: Unsteered, Cached: -1}} {
			at := began.Add(time.Duration(i) * time.Second)
			if text, err := json.Marshal(line(r, at)); err == nil {
				log += string(text) + "\n"
			}
			if r.Would != nil && !r.Counted {
				r.Cached = r.Would.UsedCached
			}
			live.Add(r, at)
		}
	}
	log += `{"outcome":"refused","status":429}` + "\n\n" + `{"arm":"unsteered","outcome":"expired"}` + "\n"
	read, err := ReadLog(strings.NewReader(log), Range{})
	if err != nil {
		t.Fatal(err)
	}
	torn, err := ReadLog(strings.NewReader(log+log[:100]+"\n"+log), Range{})
	if err != nil || torn.Unreadable != 1 || torn.Steered.Requests != 2*read.Steered.Requests ||
		!strings.Contains(torn.String(), "1 lines are cut off") {
		t.Errorf("with a line that is cut off: got %v, %d unreadable, %d steered requests; want no error, 1 that the text tells of, %d",
			err, torn.Unreadable, torn.Steered.Requests, 2*read.Steered.Requests)
	}
	want, got := fmt.Sprintf("%+v", live.Report()), fmt.Sprintf("%+v", read)
	if got != want {
		t.Errorf("got of the log\n%s\nwant as of the totals\n%s", got, want)
	}
	// Each even request is counted by the engine, each tenth among them.
	if s := read.Unsteered; s.Requests != 400 || s.Failed != 200 || s.Known != 200 || s.Counted != 100 || s.Prompt != 200_000 ||
		s.Cached != 100*500+100*100 {
		t.Errorf("unsteered: got %+v, want 400 requests, 200 failed, 200 known, 100 counted, 200000 tokens, 60000 of them cached", s)
	}
	w := read.Would
	if w.Requests != 200 || w.Better != 180 || w.Spared != 180*400 || w.Worse != 20 || w.Cost != 2000 || w.Encode != 10000 ||
		w.Timed != 180 || math.Abs(w.Millis-180*45) > 1e-6 || w.Mean != 350 {
		t.Errorf("compared: got %+v; want 200 requests, 180 better that spare 72000 tokens, 20 worse that cost 2000, 10000 to encode, "+
			"180 timed by 8100 ms, 350 on average", w)
	}
	if w.Uncertainty < 20 || w.Uncertainty > 22 { // 1.96 × 150 ÷ √199
		t.Errorf("350 ± %v, want at least 20, at most 22", w.Uncertainty)
	}
	if p := read.Steered.FirstByte; math.Abs(p.P50/109.5-1) > 0.1 || math.Abs(p.P95/199.5-1) > 0.1 {
		t.Errorf("%+v, want 109.5 and 199.5 within a tenth", p)
	}
}

// TestWaitedByBand checks that a report tells how long requests of each priority waited at their workers, where that is known.
func TestWaitedByBand(t *testing.T) {
	totals := New("", began)
	for i := range 300 {
		for steps, waited := range map[int]time.Duration{-2: 2 * time.Second, 0: 200 * time.Millisecond, 6: time.Microsecond, 1: 0} {
			totals.Add(Request{Arm: Steered, OK: true, Cached: -1, Steps: steps, Waited: waited}, began.Add(time.Duration(i)*time.Second))
		}
	}
	r := totals.Of(Range{}, totals.Told(Range{}))
	for band, want := range [bands]Times{{600, 2000, 2000, 2000}, {600, 200, 200, 200}, {N: 600}} {
		got := r.Waited[band]
		if got.N != want.N || math.Abs(got.P50-want.P50) > 0.1*want.P50+1 || math.Abs(got.P95-want.P95) > 0.1*want.P95+1 {
			t.Errorf("band %d of two replicas: got %+v, want %+v within a tenth", band, got, want)
		}
	}
	const want = "Before they were computed at their workers, 600 urgent requests waited a median of 0 ms (p95 0 ms), 600 usual requests "
	if text := r.String(); !strings.Contains(text, want) || !strings.Contains(text, ", 600 low requests waited a median of ") {
		t.Errorf("got %s, want it to contain %q, then those of a low priority", text, want)
	}
}

// TestUnknownArm: lines of an arm with another name are counted apart and said, those without an arm or an end are not.
func TestUnknownArm(t *testing.T) {
	log := ""
	for _, arm := range []Arm{Steered, Unsteered, "left", "left", ""} {
		text, _ := json.Marshal(line(Request{Arm: arm, OK: true, Prompt: 10}, began))
		log += string(text) + "\n"
	}
	r, err := ReadLog(strings.NewReader(log+`{"arm":"left","outcome":"expired"}`), Range{})
	if err != nil || r.UnknownArm != 2 || r.Steered.Requests != 1 || r.Unsteered.Requests != 1 {
		t.Errorf("got %d lines of an unknown arm, %d and %d requests, %v, want 2, 1 and 1", r.UnknownArm, r.Steered.Requests,
			r.Unsteered.Requests, err)
	}
	const want = "\n2 lines are left out: want the arm steered or unsteered (0.1.0 wrote \"left\" for the second).\n"
	if got := r.String(); !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want its end %q", got, want)
	}
}

// TestTooFew checks that numbers from few requests are omitted, and that unreported values do not count as zero.
func TestTooFew(t *testing.T) {
	totals := New("10%", began)
	for i := range 19 {
		totals.Add(one(Unsteered, i), began)
	}
	totals.Add(Request{Arm: Steered, OK: true, Prompt: 100, Cached: -1}, began)
	totals.Add(Request{OK: true, Prompt: 100}, began) // without an arm
	r := totals.Report()
	if r.Unsteered.FirstByte != (Times{N: 19}) || r.Would.Uncertainty != 0 || r.Steered.Known != 0 || r.Steered.Requests != 1 ||
		r.Steered.FirstByte.N != 0 {
		t.Errorf("got %+v; want 19 first bytes of unsteered requests, too few for times and an uncertainty, and a steered one of which "+
			"nothing is known", r)
	}
	for _, want := range []string{"enforce: 10%", "too few: 19", "too few for a mean: 19", "less          2 (11 %): 200 tokens less"} {
		if text := r.String(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s, want it in text", want, text)
		}
	}
	if _, err := ReadLog(strings.NewReader("no json\n"), Range{}); err == nil || !strings.HasPrefix(err.Error(), "line 1: ") {
		t.Errorf("%v, want one that names the line", err)
	}
}

// TestRange: the totals of a range of time and of a model, kept by minute, equal those of the log's lines; the parts have a bound.
func TestRange(t *testing.T) {
	live, log := New("0%", time.Time{}), ""
	for i := range 300 {
		r := one([]Arm{Steered, Unsteered}[i%2], i)
		r.Model = []string{"a", "b"}[i%3%2]
		at := began.Truncate(time.Minute).Add(time.Duration(i) * time.Second)
		l := line(r, at)
		l.Model = r.Model
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		log += string(text) + "\n"
		if r.Would != nil && !r.Counted {
			r.Cached = r.Would.UsedCached
		}
		live.Add(r, at)
	}
	live.SetMode("10%")
	from := began.Truncate(time.Minute)
	for _, of := range []Range{{}, {Model: "a"}, {Since: from.Add(2 * time.Minute)},
		{Since: from.Add(time.Minute), Until: from.Add(3 * time.Minute), Model: "b"},
		{Until: from}} {
		read, err := ReadLog(strings.NewReader(log), of)
		if err != nil {
			t.Fatal(err)
		}
		got := live.Of(of)
		if got.Mode != "10%" {
			t.Errorf("mode %q, want %q", got.Mode, "10%")
		}
		got.Mode, got.Since, read.Since, got.Until, read.Until = "", time.Time{}, time.Time{}, time.Time{}, time.Time{}
		got.Would.Millis, read.Would.Millis = math.Round(got.Would.Millis), math.Round(read.Would.Millis)
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", read) {
			t.Errorf("%+v\nof the totals\n%+v\nof the log\n%+v, want fmt.Sprintf(\"%%+v\", got) == fmt.Sprintf(\"%%+v\", read)",
				of, got, read)
		}
	}
	for i := range 2 * maxParts {
		live.Add(one(Unsteered, i), began.Add(time.Duration(i)*time.Minute))
	}
	if len(live.parts) > maxParts || live.Report().Unsteered.Requests != 150+2*maxParts {
		t.Errorf("%d parts, %d requests, want at most %d, %d", len(live.parts), live.Report().Unsteered.Requests, maxParts, 150+2*maxParts)
	}
}

// TestCauses checks the first line: why tokens were not cached, of both arms, in points of all prompt tokens; of a log the same.
func TestCauses(t *testing.T) {
	live, log := New("", time.Time{}), ""
	for _, arm := range []Arm{Steered, Unsteered} {
		r := Request{Arm: arm, OK: true, Prompt: 1000, Cached: 390, Counted: true, End: time.Second, Accounted: 1000,
			Uncached: account.Sums{account.Block: 4, account.Evicted: 146, account.Changed: 160, account.New: 300}, ID: "d1", Model: "m",
			Changed: &account.Change{Part: "the system text", Token: 214, Kind: "a time of day"}}
		if arm == Unsteered {
			r.Changed = &account.Change{Part: "message 7 (assistant)", Token: 3104, Kind: "reasoning dropped"}
			r.Uncached[account.Changed], r.Uncached[account.New] = 140, 320
		}
		r.Kept, r.Rate = 97, 100
		live.Add(r, began)
		l := line(r, began)
		l.ID, l.Model, l.Uncached, l.Changed, l.Kept, l.Rate = r.ID, r.Model, r.Uncached, r.Changed, r.Kept, r.Rate
		text, _ := json.Marshal(l)
		log += string(text) + "\n"
	}
	read, err := ReadLog(strings.NewReader(log), Range{})
	want := "Of 61 % uncached: 31 points seen for the first time; 15 points evicted (a fifth more cache would keep at least 10 of them); " +
		"8 points a time of day at token 214 of the system text of model m (move it to the end); 7 points reasoning dropped in a message of " +
		"assistant of model m (send answers back as they came); 0.4 points of other causes. " +
		"Workers took 12.2 s of prefill for them: 1.6 s for a time of day in the system text, 1.4 s for reasoning dropped in a message of " +
		"assistant, 2.9 s for what was evicted.\n"
	for _, r := range []Report{live.Report(), live.Of(Range{Since: began}), read} {
		if got := r.String(); !strings.HasPrefix(got, want) || err != nil {
			t.Errorf("%q, %v; want it to begin with %q", got, err, want)
		}
		if len(r.Departures) != 2 || r.Departures[0].Tokens != 160 || r.Departures[0].Example != "d1" || r.Departures[0].Requests != 1 {
			t.Errorf("got the departures %+v, want two, the first of 160 tokens with an example", r.Departures)
		}
	}
}

// TestReplicas checks that what two have told adds up to the report of one that had all requests, that a replica which says nothing, or
// nonsense, is counted as silent, and that departures are the same whatever the order.
func TestReplicas(t *testing.T) {
	all, parts := New("100%", began), [2]*Totals{New("100%", began), New("100%", began)}
	for i := range 300 {
		r := one([]Arm{Steered, Unsteered}[i/2%2], i)
		r.ID, r.Model, r.Accounted, r.Rate = "d1", "m", 1000, 500
		r.Uncached = account.Sums{account.Changed: 100 + i, account.New: 400}
		r.Changed = &account.Change{Part: "the system text", Token: i % 100, Kind: "a date"}
		all.Add(r, began.Add(time.Duration(i)*time.Second))
		parts[i%2].Add(r, began.Add(time.Duration(i)*time.Second))
	}
	for _, of := range []Range{{}, {Model: "m"}, {Since: began.Add(time.Minute)}} {
		want := all.Of(of)
		told := parts[1].Told(of)
		got, back := parts[0].Of(of, told), parts[1].Of(of, parts[0].Told(of))
		if got.Replicas != 2 || got.Silent != 0 {
			t.Errorf("got %d replicas, %d silent, want 2 and none", got.Replicas, got.Silent)
		}
		got.Replicas, back.Replicas = 0, 0
		for _, r := range []*Report{&want, &got, &back} { // sums of fractions, and which departures of more than 64 are left
			r.Would.Millis, r.Would.Uncertainty = math.Round(r.Would.Millis), math.Round(r.Would.Uncertainty)
			for c := range r.Seconds {
				r.Seconds[c] = math.Round(r.Seconds[c])
			}
			r.Departures = r.Departures[:min(len(r.Departures), 3)]
		}
		if fmt.Sprintf("%+v", got.Departures) != fmt.Sprintf("%+v", back.Departures) {
			t.Errorf("%+v: the departures are\n%+v\nand the other way round\n%+v, want fmt.Sprintf(\"%%+v\", got.Departures) == "+
				"fmt.Sprintf(\"%%+v\", back.Departures)", of, got.Departures, back.Departures)
		}
		got.Departures, want.Departures = nil, nil
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("%+v: two tell\n%+v\none tells\n%+v, want fmt.Sprintf(\"%%+v\", got) == fmt.Sprintf(\"%%+v\", want)", of, got, want)
		}
	}
	for _, told := range [][]byte{nil, []byte("{"), []byte(`{"Arms":{"steered":null}}`),
		[]byte(`{"Arms":{"steered":{},"unsteered":{}},"Accounted":1,"Uncached":{"new":-5}}`),
		[]byte(`{"Arms":{"steered":{},"unsteered":{}},"Places":[{"tokens":-1}]}`),
		[]byte(`{"Arms":{"steered":{"requests":-1},"unsteered":{}}}`), []byte(`{"Arms":{"steered":{},"unsteered":{}},"Would":{"ms":1e300}}`),
		[]byte(`{"Arms":{"steered":{},"unsteered":{}},"Seconds":{"new":1e308,"changed":1e308}}`),
		[]byte(`{"Arms":{"steered":{},"unsteered":{}},"Places":[{"seconds":1e308}]}`)} {
		if r := parts[0].Of(Range{}, told, parts[1].Told(Range{})); r.Replicas != 2 || r.Silent != 1 {
			t.Errorf("%s: got %d replicas, %d silent, want 2 and 1", told, r.Replicas, r.Silent)
		} else if !strings.Contains(r.String(), ", 2 replicas (1 more did not answer)") {
			t.Errorf(`the report does not say who is silent: %s, want ", 2 replicas (1 more did not answer)" in r.String()`, r)
		}
	}
}

// TestIdleReplica: another replica that had no request of a range tells nothing of when it began.
func TestIdleReplica(t *testing.T) {
	busy, idle := New("100%", began), New("100%", began)
	r := one(Steered, 1)
	r.Model = "m"
	busy.Add(r, began.Add(time.Hour))
	of := Range{Model: "m"}
	if got := busy.Of(of, idle.Told(of)); got.Replicas != 2 || !got.Since.Equal(began.Add(time.Hour)) {
		t.Errorf("got %d replicas, since %v, want 2, since %v", got.Replicas, got.Since, began.Add(time.Hour))
	}
}
