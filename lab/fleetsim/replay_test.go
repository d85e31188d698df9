package fleetsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/app/config"
)

// recorded returns the decision log of a fleet of four that got chats in turn, with caches and speed as replay assumes.
func recorded(t *testing.T) []byte {
	t.Helper()
	requests, err := Shape("chats", 5, 6, 60, 0.8)
	if err != nil {
		t.Fatal(err)
	}
	var trace, log bytes.Buffer
	if err := writeTrace(&trace, requests, len(requests)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(trace.String()), "\n")
	requests, err = ReadTrace(&trace, 1, len(lines))
	if err != nil {
		t.Fatal(err)
	}
	setup := Setup{Workers: 4, Engine: defaultEngine(), Delays: defaultDelays(), Seed: 1}
	setup.Engine.Prefill, setup.Engine.Pair = 1e-4, 0
	served := make(map[*Request]Served)
	for _, s := range Run(setup, prepare(requests, 16), roundRobin).Served {
		served[s.Req] = s
	}
	for i, r := range requests {
		var line map[string]any
		d := json.NewDecoder(strings.NewReader(lines[i]))
		d.UseNumber()
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		line["id"], line["model"], line["outcome"], line["used"], line["rank"] = fmt.Sprint("d", i), "m", "ended",
			fmt.Sprint("w", served[r].Worker), -1
		line["reported_cached_tokens"], line["first_byte_ms"] = served[r].Cached, 1e3*served[r].TTFT.Seconds()
		line["session"] = fmt.Sprint("s", line["session"])
		line["ranked"] = []any{map[string]any{"rate": 10000}}
		if err := json.NewEncoder(&log).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	return log.Bytes()
}

// numbers returns the integers of the line with this beginning.
func numbers(t *testing.T, out, begins string) (list []int) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(begins) + `.*`).FindString(out)
	for _, word := range regexp.MustCompile(`[-+]?\d+`).FindAllString(line, -1) {
		var n int
		_, _ = fmt.Sscan(word, &n)
		list = append(list, n)
	}
	if list == nil {
		t.Fatalf("no line %q in\n%s", begins, out)
	}
	return list
}

// TestReplay: the log replayed as it was gives the logged results; steering finds more, leaving everything alone equals round
// robin, and a half is in between.
func TestReplay(t *testing.T) {
	log := recorded(t)
	cached := map[string]int{}
	for _, c := range []struct{ name, keys string }{{"all", ""}, {"half", "enforce: 50%\n"}, {"none", "enforce: 0%\n"}} {
		cfg, err := config.Parse([]byte(c.keys + "models: [{name: m, dir: d}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := (Replay{Config: cfg, Name: c.name, Log: bytes.NewReader(log)}).Run(&out); err != nil {
			t.Fatal(err)
		}
		if testing.Verbose() {
			t.Log(out.String())
		}
		row := numbers(t, out.String(), "cached of them") // three pairs of tokens and percent
		if row[0] != row[4] {
			t.Errorf("%s: round robin was logged, and is played otherwise: got %v, want [0] %d", c.name, row, row[4])
		}
		if told := numbers(t, out.String(), "For "); told[1] != told[2] || told[1] != row[1] {
			t.Errorf("%s: engines told otherwise: %v, %v, want told[1] == told[2], told[1] == row[1]", c.name, told, row)
		}
		if more := numbers(t, out.String(), "Against what was logged:"); more[0] != row[2]-row[0] {
			t.Errorf("%s: got %d tokens more, of %v, want %d", c.name, more[0], row, row[2]-row[0])
		}
		cached[c.name] = row[2]
		if c.name == "none" && (row[2] != row[4] || !strings.Contains(out.String(), "No request would have waited")) {
			t.Errorf("observe is not round robin: %v\n%s", row, &out)
		}
	}
	if !(cached["none"] < cached["half"] && cached["half"] < cached["all"]) {
		t.Errorf("cached tokens %v", cached)
	}
	cfg, _ := config.Parse([]byte("models: [{name: other, dir: d}]\n"))
	if err := (Replay{Config: cfg, Name: "x", Log: bytes.NewReader(log)}).Run(io.Discard); err == nil ||
		!strings.Contains(err.Error(), "no request") {
		t.Errorf("a model that is not in the log: got %v, want an error, %q in it", err, "no request")
	}
}
