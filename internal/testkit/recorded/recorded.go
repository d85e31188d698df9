// Package recorded holds recordings of a real vLLM for tests: requests, the token ids and media that the engine made of
// them, and the ZMQ frames that it sent, byte for byte. Only tests import it.
//
// testdata/ has a selection that every checkout can run (its README names the program and version); FromDir reads the
// whole set, or any other set of the same form.
package recorded

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sightline-router/sightline/mmhash/block"
)

//go:embed testdata/*.gz
var selection embed.FS

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

// Prompt is one sequence that the engine computed.
type Prompt struct {
	Tokens []uint32 // prompt and generated ids, without the last generated one, which is never cached
	Asked  int      // how many of them are the prompt
	Spans  []block.Span
	Names  []string // of the spans, as on the wire
}

// Step is one request, or another operation on a worker.
type Step struct {
	ID      string // of the case or sequence
	Op      string // "request", "restart", "reset_prefix_cache", "replay", …
	Model   string
	Salt    string
	Prompts []Prompt // empty where the recording has no token ids
	Blocks  []Block
	Frames  []Frame
	Cached  int        // cached_tokens as the engine answered; -1 if not told, or if it did not look
	Replay  [][][]byte // Op "replay": messages as a DEALER gets them
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

// Locals hashes a prompt of s from the request's side: its tokens, media, adapter and salt, by package block.
func (s Step) Locals(worker string, p Prompt) []uint64 {
	seed, spans := block.Seed, p.Spans
	if s.Model == "sql-lora" { // the adapter's name in the recordings
		seed = block.SeedFor(s.Model)
		if strings.Contains(worker, "towerlora") { // --enable-tower-connector-lora: events name media by adapter
			spans = nil
			for i, name := range p.Names {
				spans = append(spans, block.Span{Offset: p.Spans[i].Offset, Length: p.Spans[i].Length, Name: block.NameHash(s.Model + ":" + name)})
			}
		}
	}
	return block.Locals(nil, p.Tokens, BlockSize(worker), spans, seed, block.SaltHash(s.Salt))
}

// Selection is the set in testdata.
func Selection() (*Set, error) {
	return load(func(name string) (io.ReadCloser, error) {
		f, err := selection.Open("testdata/" + name + ".gz")
		if err != nil {
			return nil, err
		}
		return gzip.NewReader(f)
	}, []string{"cases.jsonl"}, []string{"sequences.jsonl"})
}

// FromDir reads the whole set from a directory with cases/ and sequences/.
func FromDir(dir string) (*Set, error) {
	names := func(pattern string) (list []string) {
		found, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, f := range found {
			rel, _ := filepath.Rel(dir, f)
			list = append(list, rel)
		}
		return list
	}
	cases, sequences := names("cases/*.jsonl"), names("sequences/*.jsonl")
	if len(cases) == 0 || len(sequences) == 0 {
		return nil, fmt.Errorf("%s: want cases/*.jsonl and sequences/*.jsonl", dir)
	}
	return load(func(name string) (io.ReadCloser, error) { return os.Open(filepath.Join(dir, name)) }, cases, sequences)
}

type rawStep struct {
	ID, Op, Worker string
	Status         int
	Request        struct {
		Model    string
		Salt     string `json:"cache_salt"`
		LogProbs *int   `json:"prompt_logprobs"`
	}
	Prompt          []json.RawMessage   `json:"prompt_token_rle"`
	PerChoice       [][]json.RawMessage `json:"prompt_token_rle_per_choice"`
	Output          json.RawMessage     `json:"output_token_ids"`
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

func load(open func(string) (io.ReadCloser, error), cases, sequences []string) (*Set, error) {
	set := &Set{Cases: map[string][]Step{}}
	for _, name := range cases {
		if err := lines(open, name, func(raw rawStep) error {
			step, err := raw.step()
			step.ID = raw.ID
			set.Cases[raw.Worker] = append(set.Cases[raw.Worker], step)
			return err
		}); err != nil {
			return nil, err
		}
	}
	for _, name := range sequences {
		if err := lines(open, name, func(raw rawStep) error {
			seq := Sequence{ID: raw.ID, Worker: raw.Worker}
			for _, s := range raw.Steps {
				step, err := s.step()
				if err != nil {
					return err
				}
				step.ID = raw.ID
				seq.Steps = append(seq.Steps, step)
			}
			set.Sequences = append(set.Sequences, seq)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return set, nil
}

func lines(open func(string) (io.ReadCloser, error), name string, each func(rawStep) error) error {
	f, err := open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var raw rawStep
			if err := json.Unmarshal(line, &raw); err != nil {
				return fmt.Errorf("%s:%d: %w", name, n, err)
			}
			if err := each(raw); err != nil {
				return fmt.Errorf("%s:%d (%s): %w", name, n, raw.ID, err)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
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
		s.Prompts = append(s.Prompts, one.Prompts...)
	}
	if r.Status != 200 {
		return s, nil
	}
	return s, r.prompts(&s)
}

func (r rawStep) prompts(s *Step) error {
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
		var p Prompt
		for _, item := range rle {
			var id uint32
			run := [2]uint32{0, 1}
			if json.Unmarshal(item, &id) == nil {
				run[0] = id
			} else if err := json.Unmarshal(item, &run); err != nil {
				return fmt.Errorf("prompt_token_rle: %w", err)
			}
			for range run[1] {
				p.Tokens = append(p.Tokens, run[0])
			}
		}
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
			p.Spans = append(p.Spans, block.Span{Offset: m.Offset, Length: m.Length, Name: block.NameHash(m.Hash)})
		}
		s.Prompts = append(s.Prompts, p)
	}
	return nil
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
