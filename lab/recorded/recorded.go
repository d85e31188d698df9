// Package recorded holds recordings of a real vLLM for tests: requests, the token ids and media that the engine made of
// them, and the ZMQ frames that it sent, byte for byte. Only tests import it.
//
// testdata/ has a selection that every checkout can run (its README names the program and version); All is the whole set,
// which is no part of the repository.
package recorded

import (
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
)

var (
	//go:embed testdata/cases.jsonl.gz
	someCases []byte
	//go:embed testdata/sequences.jsonl.gz
	someSequences []byte
)

// Frame is one ZMQ message of a publisher.
type Frame struct {
	Topic   string
	Seq     uint64
	Payload []byte
}

// Block is one full-attention block as the engine announced it.
type Block struct {
	Handle uint64
	Keys   json.RawMessage // extra keys; null if none
}

// Computed is what the engine computed for one prompt: it, and its answer.
type Computed struct {
	Tokens []uint32 // prompt and generated ids, without the last generated one, which is never cached
	Asked  int      // how many of them are the prompt
	Spans  []block.Span
	Names  []string // of the spans, as on the wire
}

// Step is one request, or another operation on a worker.
type Step struct {
	ID       string // of the case or sequence
	Op       string // "request", "restart", "reset_prefix_cache", "replay", …
	Model    string
	Salt     string
	Computed []Computed // empty where the recording has no token ids
	Blocks   []Block
	Frames   []Frame
	Cached   int        // cached_tokens as the engine answered; -1 if not told, or if it did not look
	Replay   [][][]byte // Op "replay": messages as a DEALER gets them
}

// Sequence is several steps against one cache.
type Sequence struct {
	ID, Worker string
	Steps      []Step
}

// Set is one collection of recordings.
type Set struct {
	Cases     map[string][]Step // by worker; the cache was emptied before each step
	Sequences []Sequence
}

// Payloads are all messages of a worker's cases.
func (set *Set) Payloads(worker string) (all [][]byte) {
	for _, s := range set.Cases[worker] {
		for _, f := range s.Frames {
			all = append(all, f.Payload)
		}
	}
	return all
}

// BlockSize reads a worker's block size from its name, which holds it as -b16.
func BlockSize(worker string) int {
	size := 0
	for _, part := range strings.Split(worker, "-") {
		if n := 0; len(part) > 1 && part[0] == 'b' {
			if _, err := fmt.Sscanf(part[1:], "%d", &n); err == nil {
				size = n
			}
		}
	}
	return size
}

// Locals hashes what was computed of s from the request's side: its tokens, media, adapter and salt, by package block.
func (s Step) Locals(worker string, p Computed) []uint64 {
	adapter, spans := "", p.Spans
	if s.Model == "sql-lora" { // the adapter's name in the recordings
		adapter = s.Model
		if strings.Contains(worker, "towerlora") { // --enable-tower-connector-lora: events name media by adapter
			spans = nil
			for i, name := range p.Names {
				spans = append(spans, block.Span{Offset: p.Spans[i].Offset, Length: p.Spans[i].Length, Name: block.Fixed().Name(s.Model + ":" + name)})
			}
		}
	}
	return block.Fixed().Locals(nil, p.Tokens, block.Form{Size: BlockSize(worker)}, spans, block.Fixed().Root(adapter, s.Salt))
}

// Selection is the set in testdata.
func Selection(t testing.TB) *Set {
	t.Helper()
	set := &Set{Cases: map[string][]Step{}}
	set.addCases(t, golden.LinesOf[rawStep](t, golden.Plain(t, someCases)))
	set.addSequences(t, golden.LinesOf[rawStep](t, golden.Plain(t, someSequences)))
	return set
}

// All is the whole set; without it the test is skipped.
func All(t testing.TB) *Set {
	t.Helper()
	set := &Set{Cases: map[string][]Step{}}
	for _, f := range golden.Files(t, golden.Dir(t, "vllm", "cases", "*.jsonl")) {
		set.addCases(t, golden.Lines[rawStep](t, f))
	}
	for _, f := range golden.Files(t, golden.Dir(t, "vllm", "sequences", "*.jsonl")) {
		set.addSequences(t, golden.Lines[rawStep](t, f))
	}
	return set
}

func (set *Set) addCases(t testing.TB, cases []rawStep) {
	for _, c := range cases {
		set.Cases[c.Worker] = append(set.Cases[c.Worker], c.of(t, c.ID))
	}
}

func (set *Set) addSequences(t testing.TB, sequences []rawStep) {
	for _, raw := range sequences {
		seq := Sequence{ID: raw.ID, Worker: raw.Worker}
		for _, s := range raw.Steps {
			seq.Steps = append(seq.Steps, s.of(t, raw.ID))
		}
		set.Sequences = append(set.Sequences, seq)
	}
}

type rawStep struct {
	ID, Op, Worker string
	Status         int
	Request        struct {
		Model    string
		Salt     string `json:"cache_salt"`
		LogProbs *int   `json:"prompt_logprobs"`
	}
	Prompt          json.RawMessage   `json:"prompt_token_rle"`
	PerChoice       []json.RawMessage `json:"prompt_token_rle_per_choice"`
	Output          json.RawMessage   `json:"output_token_ids"`
	MM              []rawMedia
	RenderPrompts   []struct{ MM []rawMedia } `json:"render_prompts"`
	Blocks          [][2]json.RawMessage
	Frames          [][3]string
	FramesHex       [][]string `json:"frames_hex"`
	Requests, Steps []rawStep
	Usage           struct {
		Details struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

type rawMedia struct {
	Hash           string
	Offset, Length int
}

// of is the step of a case or sequence.
func (r rawStep) of(t testing.TB, id string) Step {
	t.Helper()
	step, err := r.step()
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	step.ID = id
	return step
}

func (r rawStep) step() (Step, error) {
	s := Step{Op: r.Op, Model: r.Request.Model, Salt: r.Request.Salt, Cached: -1}
	if r.Usage.Details.Cached != nil && r.Request.LogProbs == nil { // prompt_logprobs: the cache is not read
		s.Cached = *r.Usage.Details.Cached
	}
	for _, f := range r.Frames {
		seq, err := hex.DecodeString(f[1])
		if err != nil || len(seq) != 8 {
			return s, fmt.Errorf("frame seq %q", f[1])
		}
		payload, err := base64.StdEncoding.DecodeString(f[2])
		if err != nil {
			return s, err
		}
		s.Frames = append(s.Frames, Frame{f[0], binary.BigEndian.Uint64(seq), payload})
	}
	for _, message := range r.FramesHex {
		var frames [][]byte
		for _, f := range message {
			b, err := hex.DecodeString(f)
			if err != nil {
				return s, err
			}
			frames = append(frames, b)
		}
		s.Replay = append(s.Replay, frames)
	}
	for _, b := range r.Blocks {
		h, err := handle(b[0])
		if err != nil {
			return s, err
		}
		s.Blocks = append(s.Blocks, Block{h, b[1]})
	}
	for _, sub := range r.Requests { // parallel requests: their prompts belong to this step
		one, err := sub.step()
		if err != nil {
			return s, err
		}
		s.Model, s.Salt = one.Model, one.Salt
		s.Computed = append(s.Computed, one.Computed...)
	}
	if r.Status != 200 {
		return s, nil
	}
	r.prompts(&s)
	return s, nil
}

func (r rawStep) prompts(s *Step) {
	all := r.PerChoice
	var outputs [][]uint32
	if json.Unmarshal(r.Output, &outputs) != nil {
		var one []uint32
		_ = json.Unmarshal(r.Output, &one)
		outputs = [][]uint32{one}
	}
	if len(all) == 0 && r.Prompt != nil {
		for range outputs {
			all = append(all, r.Prompt)
		}
	}
	for i, rle := range all {
		p := Computed{Tokens: golden.Tokens(gjson.ParseBytes(rle))}
		p.Asked = len(p.Tokens)
		if i < len(outputs) && len(outputs[i]) > 1 {
			p.Tokens = append(p.Tokens, outputs[i][:len(outputs[i])-1]...)
		}
		media := r.MM
		if media == nil && i < len(r.RenderPrompts) {
			media = r.RenderPrompts[i].MM
		}
		for _, m := range media {
			p.Names = append(p.Names, m.Hash)
			p.Spans = append(p.Spans, block.Span{Offset: m.Offset, Length: m.Length, Name: block.Fixed().Name(m.Hash)})
		}
		s.Computed = append(s.Computed, p)
	}
}

// handle reads a block hash, an integer or {"$bytes": hex}, as the engine's own integer form.
func handle(raw json.RawMessage) (uint64, error) {
	var n uint64
	if err := json.Unmarshal(raw, &n); err == nil {
		return n, nil
	}
	var digest struct {
		Bytes string `json:"$bytes"`
	}
	if err := json.Unmarshal(raw, &digest); err != nil {
		return 0, fmt.Errorf("block hash %s: %w", raw, err)
	}
	b, err := hex.DecodeString(digest.Bytes)
	if err != nil || len(b) < 8 {
		return 0, fmt.Errorf("block hash %s", raw)
	}
	return binary.BigEndian.Uint64(b[len(b)-8:]), nil
}
