package fleetsim

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A trace has one JSON object per line, as Mooncake publishes them, gzipped or plain, with additions for images and adapters:
//
//	{"timestamp": 1250, "input_length": 1180, "output_length": 96, "hash_ids": [17, 18, 19],
//	 "images": [{"id": "9f86d081", "offset": 120, "tokens": 1036}], "session": 4, "adapter": "sql"}
//
// Sightline's decision log has this form too; lines of it whose prompt was not read are skipped. Lines may be in any order.
// timestamp is in milliseconds from any moment; hash_ids has one id for each 512 tokens of the input, the last perhaps for fewer:
// equal ids mean equal tokens after equal tokens. The ids of images, sessions and adapters are numbers or strings; images, session
// and adapter are optional. Generated traces also have the ids and tokens of the text around images, for those who send requests: it
// is not read here.
const (
	perHash   = 512     // tokens
	maxLine   = 1 << 20 // bytes
	maxTokens = 4 << 20 // of a prompt, and of an answer
	maxServed = 6000    // requests of a trace that are played
	maxTime   = 1e14    // milliseconds; Unix times are accepted, as in the decision log
	mooncake  = 3       // the capacity of Mooncake's conversations on 16 workers, as first determined
)

type traceLine struct {
	Timestamp    float64      `json:"timestamp"`
	InputLength  int          `json:"input_length"`
	OutputLength int          `json:"output_length"`
	HashIDs      []uint64     `json:"hash_ids"`
	Images       []traceImage `json:"images,omitempty"`
	Session      traceID      `json:"session,omitzero"`
	Adapter      traceID      `json:"adapter,omitzero"`
	Outcome      string       `json:"outcome"` // of a decision log
	logged
}

type traceImage struct {
	ID     traceID `json:"id"`
	Offset int     `json:"offset"`
	Tokens int     `json:"tokens"`
}

// traceID is a number or a string's hash; 0: none.
type traceID uint64

func (id *traceID) UnmarshalJSON(text []byte) error {
	var s string
	var n uint64
	switch {
	case json.Unmarshal(text, &n) == nil:
		*id = traceID(mix(n, 11))
	case json.Unmarshal(text, &s) == nil && s != "":
		*id = 12
		for _, c := range []byte(s) {
			*id = traceID(mix(uint64(*id), uint64(c)))
		}
	case string(text) == "null", string(text) == `""`:
		*id = 0
	default:
		return fmt.Errorf("want a number or a string as id, got %.40s", text)
	}
	return nil
}

// ReadTrace reads up to most requests. speed is the speed-up over the recording. Errors name the line.
func ReadTrace(r io.Reader, speed float64, most int) (trace []*Request, err error) {
	plain := bufio.NewReader(r)
	if magic, _ := plain.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		plain = bufio.NewReader(z)
	}
	scan := bufio.NewScanner(plain)
	scan.Buffer(nil, maxLine)
	var lines []traceLine
	n := 0
	for len(lines) < most && scan.Scan() {
		n++
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		var l traceLine
		err = json.Unmarshal(scan.Bytes(), &l)
		if err == nil {
			if l.Outcome != "" && l.InputLength == 0 {
				continue
			}
			err = l.check()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w (want a line that decision_log writes, or one of a trace in Mooncake's form)", n, err)
		}
		lines = append(lines, l)
	}
	switch {
	case scan.Err() != nil:
		return nil, fmt.Errorf("line %d: %w", n+1, scan.Err())
	case len(lines) == 0:
		return nil, fmt.Errorf("no request in %d lines (want what decision_log writes, or a trace in Mooncake's form)", n)
	}
	slices.SortStableFunc(lines, func(a, b traceLine) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	ends := make(map[uint64]int) // the last whole hash id of a prompt → its tokens, to recognize later turns
	for i := range lines {
		r := lines[i].request(i, ends)
		r.At = time.Duration((lines[i].Timestamp - lines[0].Timestamp) / speed * float64(time.Millisecond))
		trace = append(trace, r)
	}
	return trace, nil
}

// check returns what is invalid in a line.
func (l *traceLine) check() error {
	switch {
	case !(math.Abs(l.Timestamp) <= maxTime):
		return fmt.Errorf("timestamp %v, want milliseconds", l.Timestamp)
	case l.InputLength < 1 || l.InputLength > maxTokens:
		return fmt.Errorf("input_length %d, want 1 to %d", l.InputLength, maxTokens)
	case l.OutputLength < 0 || l.OutputLength > maxTokens:
		return fmt.Errorf("output_length %d, want 0 to %d", l.OutputLength, maxTokens)
	case len(l.HashIDs) > (l.InputLength+perHash-1)/perHash:
		return fmt.Errorf("%d hash_ids, want one for each %d of %d tokens", len(l.HashIDs), perHash, l.InputLength)
	}
	end := 0
	for i, m := range l.Images {
		if m.ID == 0 || m.Offset < end || m.Tokens < 1 || m.Tokens > l.InputLength-m.Offset {
			return fmt.Errorf("images[%d] at %d with %d tokens: want an id, in order, within %d tokens", i, m.Offset, m.Tokens, l.InputLength)
		}
		end = m.Offset + m.Tokens
	}
	return nil
}

// request converts a line. Tokens of the prompt beyond hash_ids are unique to it.
func (l *traceLine) request(n int, ends map[uint64]int) *Request {
	r := &Request{Session: uint64(l.Session), Adapter: uint64(l.Adapter), Answer: Segment{mix(uint64(n), 4), l.OutputLength},
		logged: &l.logged}
	for i, id := range l.HashIDs {
		r.add(Segment{mix(id, 3), min(perHash, l.InputLength-perHash*i)}, false)
	}
	if rest := l.InputLength - r.Input(); rest > 0 {
		r.add(Segment{mix(uint64(n), 5), rest}, false)
	}
	for _, m := range l.Images {
		r.Images = append(r.Images, Image{uint64(m.ID), m.Offset, m.Tokens})
	}
	if r.Session == 0 { // the second id is the first one that distinguishes conversations
		r.Session = r.Prompt[min(len(r.Prompt)-1, 1)].ID
	}
	whole := l.HashIDs[:min(len(l.HashIDs), l.InputLength/perHash)]
	for i := len(whole) - 1; i >= 0 && r.History == 0; i-- {
		r.History = ends[whole[i]]
	}
	if len(whole) > 0 {
		ends[whole[len(whole)-1]] = r.Input()
	}
	return r
}

// traces are those of examples/traces, by the names of their files: what is drawn, from the seed 2026, and how many requests are kept.
var traces = map[string]struct {
	draw func() []*Request
	most int
}{
	"images":      {func() []*Request { return images(2026, 23, 320, 0.05) }, 10000},
	"documents":   {func() []*Request { return pages(2026, 4, 600) }, 2000},
	"screenshots": {func() []*Request { return screenshots(2026, 0.5, 1200) }, 2000},
	"catalogue":   {func() []*Request { return catalogue(2026, 20, 120) }, 2000},
	"video":       {func() []*Request { return frames(2026, 3, 600) }, 2000},
}

// WriteTrace writes the trace of examples/traces that has a file's name, gzipped.
func WriteTrace(w io.Writer, file string) error {
	t, ok := traces[strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")]
	if !ok {
		return fmt.Errorf("no trace is called %q (want %s, each with .jsonl.gz)", filepath.Base(file),
			strings.Join(slices.Sorted(maps.Keys(traces)), ", "))
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTrace(z, t.draw(), t.most); err != nil {
		return err
	}
	return z.Close()
}

// writeTrace writes the first requests in a trace's form. Without real answers, a turn comes when the previous one would have ended
// at 20 ms per token.
func writeTrace(w io.Writer, requests []*Request, most int) error {
	at := make(map[*Request]time.Duration)
	for _, r := range requests {
		at[r] = r.At
		if r.Prev != nil {
			at[r] += at[r.Prev] + time.Duration(r.Prev.Answer.Tokens)*20*time.Millisecond
		}
	}
	requests = slices.Clone(requests)
	slices.SortStableFunc(requests, func(a, b *Request) int { return int(at[a] - at[b]) })
	numbers, sessions, texts := make(map[uint64]uint64), make(map[uint64]uint64), make(map[uint64]uint64)
	number := func(of map[uint64]uint64, x uint64) uint64 {
		if _, ok := of[x]; !ok {
			of[x] = uint64(len(of)) + 1
		}
		return of[x]
	}
	out := bufio.NewWriter(w)
	for _, r := range requests[:min(most, len(requests))] {
		line := struct {
			Timestamp    int64            `json:"timestamp"`
			InputLength  int              `json:"input_length"`
			OutputLength int              `json:"output_length"`
			HashIDs      []uint64         `json:"hash_ids"`
			Images       []map[string]any `json:"images,omitempty"`
			Text         [][2]uint64      `json:"text"` // what stands around the images: ids and tokens
			Session      uint64           `json:"session"`
		}{Timestamp: at[r].Milliseconds(), InputLength: r.Input(), OutputLength: r.Answer.Tokens, Session: number(sessions, r.Session)}
		chain, ids := uint64(1), r.read(nil).IDs
		for from := 0; from < len(ids); from += perHash {
			for _, id := range ids[from:min(len(ids), from+perHash)] {
				chain = mix(chain, uint64(id))
			}
			line.HashIDs = append(line.HashIDs, number(numbers, chain))
		}
		for _, m := range r.Images {
			line.Images = append(line.Images, map[string]any{"id": m.ID, "offset": m.Offset, "tokens": m.Tokens})
		}
		images, at := r.Images, 0
		for _, s := range r.Prompt {
			if len(images) > 0 && images[0].Offset == at {
				images = images[1:]
			} else {
				line.Text = append(line.Text, [2]uint64{number(texts, s.ID), uint64(s.Tokens)})
			}
			at += s.Tokens
		}
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		_, _ = out.Write(append(text, '\n'))
	}
	return out.Flush()
}

// readScenario makes a scenario of a trace file: its first 6,000 requests.
func readScenario(path string, workers int, others []Scenario) (Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Scenario{}, err
	}
	read := func(speed float64) ([]*Request, error) { return ReadTrace(bytes.NewReader(text), speed, maxServed) }
	if _, err := read(1); err != nil {
		return Scenario{}, fmt.Errorf("%s: %w", path, err)
	}
	name := filepath.Base(path)
	if end := strings.IndexAny(name, "._"); end > 0 {
		name = name[:end]
	}
	if slices.ContainsFunc(others, func(s Scenario) bool { return s.Name == name }) {
		name = "trace " + name
	}
	s := Scenario{Name: name, About: "the first requests of " + filepath.Base(path), Workers: workers, Until: time.Hour,
		Traffic: func(_ uint64, speed float64) []*Request {
			trace, _ := read(speed) // it was read successfully before
			return trace
		}}
	s.Capacity = mooncake
	if s.Name != "mooncake" || workers != 16 {
		s.Capacity, err = s.findCapacity()
		if err != nil {
			return Scenario{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return s, nil
}
