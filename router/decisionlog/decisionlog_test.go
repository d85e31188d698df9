package decisionlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// lines returns what a log with a key writes for some decisions.
func lines(t *testing.T, key []byte, all ...*Line) (text string, out []Line) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	l, err := Open(Options{File: file, MaxBytes: 1 << 20, Keep: 1, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range all {
		l.Add(line)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for one := range bytes.Lines(b) {
		var line Line
		if err := json.Unmarshal(one, &line); err != nil {
			t.Fatalf("%s: got %v, want no error", one, err)
		}
		out = append(out, line)
	}
	return string(b), out
}

func sample(id string, chain ...uint64) *Line {
	return &Line{ID: id, Model: "m", Session: "client's own words", InputLength: 512 * len(chain), HashIDs: chain,
		Images: []Image{{ID: 77, Offset: 3, Tokens: 100}}}
}

// counted returns how many lines had that result.
func counted(t *testing.T, reg *prometheus.Registry, what string) (n float64) {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == what {
			n = m.GetCounter().GetValue()
		}
	}
	return n
}

// TestPseudonyms checks that equal things have the same pseudonym in all logs with the same key and in no other, and that unknown
// ones equal nothing.
func TestPseudonyms(t *testing.T) {
	key := bytes.Repeat([]byte("k"), 32)
	text, a := lines(t, key, sample("1", 10, 20, 0), sample("2", 10, 21, 0))
	_, b := lines(t, key, sample("3", 10))
	_, other := lines(t, nil, sample("4", 10))
	moved := sample("5", 20, 10)
	_, elsewhere := lines(t, key, moved)
	first := a[0].HashIDs[0]
	if a[1].HashIDs[0] != first || b[0].HashIDs[0] != first || a[1].HashIDs[1] == a[0].HashIDs[1] || a[0].HashIDs[2] == a[1].HashIDs[2] {
		t.Errorf("%v %v %v, want a[1].HashIDs[0] == %v, b[0].HashIDs[0] == %v, a[1].HashIDs[1] != a[0].HashIDs[1], "+
			"a[0].HashIDs[2] != a[1].HashIDs[2]", a[0].HashIDs, a[1].HashIDs, b[0].HashIDs, first, first)
	}
	if other[0].HashIDs[0] == first || other[0].Session == a[0].Session || other[0].Images[0].ID == a[0].Images[0].ID {
		t.Errorf("another key gives the same pseudonyms, want other[0].HashIDs[0] != %v, other[0].Session != a[0].Session, "+
			"other[0].Images[0].ID != a[0].Images[0].ID", first)
	}
	if elsewhere[0].HashIDs[1] == first || a[0].Session != b[0].Session || a[0].Images[0] != b[0].Images[0] || a[0].Images[0].ID == 77 {
		t.Errorf("%+v %+v, want elsewhere[0].HashIDs[1] != %v, a[0].Session == b[0].Session, a[0].Images[0] == b[0].Images[0], "+
			"a[0].Images[0].ID != 77", a[0], elsewhere[0], first)
	}
	for _, id := range append(a[0].HashIDs, a[0].Images[0].ID) {
		if id>>53 != 0 {
			t.Errorf("%d is no number that every reader of JSON holds: got %d, want 0", id, id>>53)
		}
	}
	for _, secret := range []string{"client", "words", string(key)} {
		if strings.Contains(text, secret) {
			t.Errorf("the log holds %q: got %s, want no %q in it", secret, text, secret)
		}
	}
}

// TestForm checks the names that readers of Mooncake's format, and of ours, look for.
func TestForm(t *testing.T) {
	text, _ := lines(t, nil, sample("1", 10))
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v", "timestamp", "input_length", "output_length", "hash_ids", "images", "session", "ranked", "outcome"} {
		if _, ok := got[name]; !ok && name != "ranked" {
			t.Errorf(`no %s: %s, want ok or name == "ranked"`, name, text)
		}
	}
	if string(got["v"]) != "1" || !bytes.Contains(got["images"], []byte(`"offset":3,"tokens":100`)) {
		t.Errorf("got %q, want string(got[\"v\"]) == \"1\", bytes.Contains(got[\"images\"], []byte(`\"offset\":3,\"tokens\":100`))", text)
	}
}

func TestSpans(t *testing.T) {
	chain := make([]uint64, 100) // of 16 tokens each
	for i := range chain {
		chain[i] = uint64(i + 1)
	}
	for _, c := range []struct {
		chain        []uint64
		size, tokens int
		want         []uint64
	}{
		{chain[:64], 16, 1024, []uint64{32, 64}},
		{chain[:64], 16, 1030, []uint64{32, 64, 64}}, // the rest of six tokens is no block
		{chain[:65], 16, 1045, []uint64{32, 64, 65}},
		{chain[:40], 16, 1536, []uint64{32, 0, 0}}, // partly known
		{nil, 16, 9, []uint64{0}},
		{chain[:1], 1024, 1030, []uint64{0, 1, 1}},
		{nil, 16, 0, nil},
	} {
		if got := Spans(c.chain, c.size, c.tokens); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%d blocks of %d, %d tokens: %v, want %v", len(c.chain), c.size, c.tokens, got, c.want)
		}
	}
}

// TestRotation checks that files are bounded in size and number, and not readable by others.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "decisions.jsonl")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLog(Options{File: file, MaxBytes: 1 << 20, Keep: 2})
	for i := range 5000 {
		l.write(&Line{ID: fmt.Sprint(i), Why: strings.Repeat("w", 1000)})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err := Open(Options{File: file, MaxBytes: 1 << 20, Keep: 2}); err != nil || l.Close() != nil {
		t.Fatal(err)
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		info, err := e.Info()
		// an old one may have gone meanwhile
		if err == nil && (info.Size() > 1<<20 || e.Name() == "decisions.jsonl" && info.Mode().Perm() != 0o600) {
			t.Errorf(`%s: %d bytes, %v, want an error or (info.Size() <= 1<<20, e.Name() != "decisions.jsonl" or `+
				`info.Mode().Perm() == 0o600)`, e.Name(), info.Size(), info.Mode())
		}
	}
	if len(all) < 2 {
		t.Errorf("%d files: none was put aside, want at least 2", len(all))
	}
}

func TestCannotBeOpened(t *testing.T) {
	if _, err := Open(Options{File: filepath.Join(t.TempDir(), "none", "decisions.jsonl")}); err == nil {
		t.Errorf("a file in a folder that is not there is open: got %v, want an error", err)
	}
}

// TestFullDisk checks that nothing waits for a full disk: lines are dropped and counted, and the log says so once.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	core, said := observer.New(zap.InfoLevel)
	reg := prometheus.NewRegistry()
	l := newLog(Options{File: "/dev/full", MaxBytes: 1 << 20, Keep: 1, Log: zap.New(core), Metrics: reg})
	for range 10 {
		l.write(sample("1", 10))
	}
	defer func() { _ = l.Close() }()
	if n := counted(t, reg, "failed"); n != 10 || said.Len() != 1 {
		t.Errorf("%v failures counted, %d lines in the log, want 10, 1", n, said.Len())
	}
	if why := l.Failing(); !strings.Contains(why, "no space left") {
		t.Errorf("failing: got %q, want %q in it", why, "no space left")
	}
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	if err := l.out.Close(); err != nil {
		t.Fatal(err)
	}
	l.out = newLog(Options{File: file, MaxBytes: 1 << 20}).out
	l.torn = true // as after a write that ended in the middle
	l.write(sample("2", 10))
	l.write(sample("3", 10))
	b, err := os.ReadFile(file)
	if err != nil || bytes.Count(b, []byte("\n")) != 3 || b[0] != '\n' || said.Len() != 2 {
		t.Errorf("%q, %v: want a line's end for what was written in part, and two lines; said %d times", b, err, said.Len())
	}
	if why := l.Failing(); why != "" {
		t.Errorf("failing after a line was written: got %q, want %q", why, "")
	}
}

// TestQueueIsBounded checks that a writer that hangs costs lines, never time.
func TestQueueIsBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := newLog(Options{Metrics: reg})
	for range queueLines + 7 {
		l.Add(&Line{})
	}
	if n := counted(t, reg, "dropped"); n != 7 || len(l.queue) != queueLines {
		t.Errorf("%v dropped, %d wait, want 7, %d", n, len(l.queue), queueLines)
	}
	if why := l.Failing(); why == "" {
		t.Errorf("a full queue is no failure: got %q, want some", why)
	}
	var none *Log
	none.Add(&Line{})
	if none.Close() != nil {
		t.Error("none cannot be closed, want none.Close() == nil")
	}
}
