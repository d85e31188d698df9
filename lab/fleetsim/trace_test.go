package fleetsim

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"image"
	_ "image/png"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/router/decisionlog"
)

const twoLines = `{"timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 4000, "input_length": 1030, "output_length": 7, "hash_ids": [1, 3, 4], "images": [{"id": "9f", "offset": 520, "tokens": 80}, {"id": 7, "offset": 600, "tokens": 1}], "session": "a", "adapter": 3}
`

// TestReadTrace: a trace's blocks are equal if its ids are, prompts have the recorded lengths, and images and adapters count.
func TestReadTrace(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = io.WriteString(w, twoLines)
	_ = w.Close()
	for name, text := range map[string]io.Reader{"plain": strings.NewReader(twoLines), "gzipped": &z} {
		trace, err := ReadTrace(text, 2, 10)
		if err != nil || len(trace) != 2 || trace[1].At != 1500*time.Millisecond || trace[0].Input() != 1000 ||
			trace[1].Input() != 1030 || trace[1].Answer.Tokens != 7 {
			t.Fatalf("%s: %v %+v", name, err, trace)
		}
		if m := trace[1].Images; len(m) != 2 || m[0].Offset != 520 || m[0].Tokens != 80 || m[0].ID == m[1].ID ||
			trace[1].Session == 0 || trace[1].Adapter == 0 {
			t.Errorf("%s: %+v", name, trace[1])
		}
		trace[1].Adapter = 0
		prepare(trace, 16)
		a, b := trace[0].blocks, trace[1].blocks
		if !slices.Equal(a[:32], b[:32]) || a[32] == b[32] {
			t.Errorf("%s: the first 512 tokens are not equal, or the next ones are, want slices.Equal(a[:32], b[:32]), a[32] != b[32]", name)
		}
		trace[1].Adapter = 9
		prepare(trace, 16)
		if trace[0].blocks[0] == trace[1].blocks[0] {
			t.Errorf("%s: an adapter's blocks are the model's", name)
		}
	}
}

// TestDecisionLogAsItLies: a decision log can be played as written: its lines are in the order of ends, and some have no prompt.
func TestDecisionLogAsItLies(t *testing.T) {
	trace, err := ReadTrace(strings.NewReader(`{"v": 1, "timestamp": 1795375000500, "id": "b", "adapter": "sql", "session": "c0ffee", "input_length": 20, "output_length": 3, "hash_ids": [17876543210987654321], "outcome": "ended"}
{"v": 1, "timestamp": 1795375000200, "id": "c", "input_length": 0, "output_length": 0, "hash_ids": null, "outcome": "refused"}
{"v": 1, "timestamp": 1795375000000, "id": "a", "input_length": 600, "output_length": 9, "hash_ids": [5, 6], "images": [{"id": 18446744073709551615, "offset": 4, "tokens": 500}], "outcome": "expired"}
`), 1, 10)
	if err != nil || len(trace) != 2 || trace[0].Input() != 600 || trace[0].At != 0 || trace[1].At != 500*time.Millisecond ||
		trace[1].Adapter == 0 || len(trace[0].Images) != 1 {
		t.Errorf("%v %+v", err, trace)
	}
}

// TestBadTraces: invalid lines are refused with the line's number.
func TestBadTraces(t *testing.T) {
	good := `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "no request"},
		{good + "{", "line 2: unexpected end"},
		{good + "\n" + `{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}`, "line 3: input_length 0"},
		{good + `{"timestamp": 0, "input_length": 9, "output_length": -1}`, "line 2: output_length -1"},
		{`{"timestamp": 1e300, "input_length": 9, "output_length": 1}`, "line 1: timestamp"},
		{`{"timestamp": 0, "input_length": 9000000000, "output_length": 1}`, "line 1: input_length"},
		{`{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}`, "line 1: 2 hash_ids"},
		{`{"timestamp": 0, "input_length": 9, "output_length": 1, "images": [{"id": 1, "offset": 8, "tokens": 2}]}`, "line 1: images[0]"},
		{`{"timestamp": 0, "input_length": 9, "output_length": 1, "images": [{"id": 1, "offset": 4, "tokens": 2}, {"id": 1, "offset": 5, "tokens": 2}]}`, "line 1: images[1]"},
		{`{"timestamp": 0, "input_length": 9, "output_length": 1, "images": [{"offset": 4, "tokens": 2}]}`, "line 1: images[0]"},
		{`{"timestamp": 0, "input_length": 9, "output_length": 1, "session": {}}`, "line 1: want a number or a string as id"},
		{good + strings.Repeat(" ", maxLine+1), "line 2: "},
		{"\x1f\x8bno gzip", "gzip"},
	} {
		if _, err := ReadTrace(strings.NewReader(c.text), 1, 10); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.text, err, c.want)
		}
	}
	bad := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(bad, []byte("no trace"), 0o600); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short") // too short to load a fleet at any speed
	if err := os.WriteFile(short, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{Trace: bad}, {Trace: short, Workers: 2}, {Scenarios: []string{"nope"}}, {Pickers: []string{"nope"}}} {
		if err := Play(io.Discard, o); err == nil {
			t.Errorf("%+v is played: got %v, want an error", o, err)
		}
	}
}

// TestTracesAreAsWritten: the traces in examples/traces equal their generators' output; only their content is compared, since Go's
// gzip may change.
func TestTracesAreAsWritten(t *testing.T) {
	for name, of := range traces {
		file := "../../examples/traces/" + name + ".jsonl.gz"
		var made bytes.Buffer
		if err := WriteTrace(&made, file); err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var text [2][]byte
		for i, z := range [][]byte{kept, made.Bytes()} {
			r, err := gzip.NewReader(bytes.NewReader(z))
			if err != nil {
				t.Fatal(err)
			}
			text[i], err = io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(text[0], text[1]) || len(kept) > 1e6 || bytes.Count(text[0], []byte("\n")) != of.most {
			t.Errorf("%s: %d bytes with %d lines, want under 1 MB with the %d that sightline-lab sim --write-trace writes",
				name, len(kept), bytes.Count(text[0], []byte("\n")), of.most)
		}
		trace, err := ReadTrace(bytes.NewReader(kept), 1, 1e6)
		if err != nil || len(trace) != of.most {
			t.Fatalf("%q: got %d %v, want no error, %d", name, len(trace), err, of.most)
		}
		images, known, seen := 0, 0, map[uint64]bool{}
		for _, r := range trace {
			for _, m := range r.Images {
				images++
				if seen[m.ID] {
					known++
				}
				seen[m.ID] = true
			}
		}
		if images < of.most || known < images/3 {
			t.Errorf("%s: got %d images, %d of them again, in %d requests, want at least %d, at least %d",
				name, images, known, of.most, of.most, images/3)
		}
	}
	if err := WriteTrace(io.Discard, "nope.jsonl.gz"); err == nil {
		t.Errorf("an unknown trace is written: got %v, want an error", err)
	}
}

// TestDecisionLogIsATrace: the router's decision log is a valid trace, with prompts of a common beginning, an image and a session.
func TestDecisionLogIsATrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	log, err := decisionlog.Open(decisionlog.Options{File: file, MaxBytes: 1 << 20, Keep: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2) {
		log.Add(&decisionlog.Line{Timestamp: time.Date(2030, 1, 1, 0, 0, int(i), 0, time.UTC).UnixMilli(), ID: "d",
			Model: "m", Adapter: "lora", Session: "a client's",
			InputLength: 1100, OutputLength: 9, HashIDs: []uint64{7, 8 + i, 0}, Images: []decisionlog.Image{{ID: 5, Offset: 3, Tokens: 100}},
			ReportedCached: -1})
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := ReadTrace(f, 1, 10)
	if err != nil || len(trace) != 2 {
		t.Fatalf("got %+v, %v, want no error, 2 of them", trace, err)
	}
	a, b := trace[0], trace[1]
	prepare(trace, 16)
	if b.At != time.Second || b.Input() != 1100 || b.Answer.Tokens != 9 || a.Session == 0 || a.Session != b.Session ||
		a.Images[0] != b.Images[0] || a.Adapter == 0 ||
		a.blocks[31] != b.blocks[31] || a.blocks[32] == b.blocks[32] {
		t.Errorf("%+v %+v", a, b)
	}
}

// TestLoader: examples/traces/load.py writes what aiperf and guidellm read: the trace's times and lengths, words and images of about
// the trace's tokens, the same for the same ids.
func TestLoader(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	for name, tool := range map[string]string{"images": "aiperf", "video": "aiperf", "catalogue": "guidellm"} {
		file := "../../examples/traces/" + name + ".jsonl.gz"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		trace, err := ReadTrace(bytes.NewReader(text), 1, 8)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(python, "../../examples/traces/load.py", file, "--to", tool, "-n", "8").Output()
		if err != nil {
			t.Fatal(err)
		}
		tokens, images := 0, map[string]bool{}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		for _, line := range lines {
			l := gjson.Parse(line)
			for _, part := range l.Get("messages.0.content").Array() {
				tokens += len(strings.Fields(part.Get("text").Str))
				if url := part.Get("image_url.url").Str; url != "" {
					images[url] = true
					png, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(url, "data:image/png;base64,"))
					size, _, err := image.DecodeConfig(bytes.NewReader(png))
					if err != nil {
						t.Fatalf("%q: got %v, want no error", name, err)
					}
					tokens += size.Width / 28 * size.Height / 28
				}
			}
			if l.Get("output_length").Int()+l.Get("output_tokens_count").Int() == 0 ||
				!l.Get("timestamp").Exists() && !l.Get("relative_timestamp").Exists() {
				t.Errorf("%s for %s: %.200s", name, tool, line)
			}
		}
		want, ids := 0, map[uint64]bool{}
		for _, r := range trace {
			want += r.Input()
			for _, m := range r.Images {
				ids[m.ID] = true
			}
		}
		if len(lines) != 8 || math.Abs(float64(tokens)/float64(want)-1) > .03 || len(images) != len(ids) {
			t.Errorf("%s for %s: %d lines, %d tokens (the trace %d), %d images (%d); got %v, want 8, at most .03, %d",
				name, tool, len(lines), tokens, want, len(images), len(ids), math.Abs(float64(tokens)/float64(want)-1), len(ids))
		}
	}
}
