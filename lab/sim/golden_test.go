package sim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/lab/vllmcache"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// Recordings of real workers judge the simulated one: each recorded request is sent to a worker with the recorded
// server's options, its prompt and answer tokens given; cached tokens and every event frame must be the recorded ones,
// byte for byte but for the time. testdata holds the sequences against one cache (testdata/README.md); all single cases
// run where SIGHTLINE_GOLDEN is set.

// step is one recorded request or action.
type step struct {
	ID, Worker, Op, Endpoint string
	Headers                  map[string]string
	Request                  json.RawMessage
	Status                   int
	PromptTokenRLE           json.RawMessage `json:"prompt_token_rle"`
	MM                       []struct {
		Modality, Hash string
		Offset, Length int
	}
	MMSource       string          `json:"mm_source"`
	OutputTokenIDs json.RawMessage `json:"output_token_ids"`
	Usage          json.RawMessage
	Frames         [][3]string
	Note           string
	Requests       []step
}

// player holds what the worker's Prompt function gives for the request under way.
type player struct {
	worker   *Worker
	prompt   Prompt
	sequence bool
	lastName string // of the last image
}

// spansFromTokens takes the images' places from the placeholder tokens, where the recording has them only from the
// blocks that were stored: such requests hold one image, and a hit tells nothing of it.
func (p *player) spansFromTokens() {
	const pad = 151655 // Qwen's
	var m *Media
	for i, t := range p.prompt.Tokens {
		if t != pad {
			continue
		}
		if m == nil {
			p.prompt.Media = []Media{{Offset: i, Modality: "image", Identifier: p.lastName}}
			m = &p.prompt.Media[0]
		}
		m.Length++
	}
}

// play starts a worker with the options of a recorded one.
func play(t *testing.T, recorded gjson.Result) *player {
	t.Helper()
	p := &player{}
	cfg := Config{
		Model:     recorded.Get("model_id").Str,
		Version:   strings.TrimPrefix(recorded.Get("engine").Str, "vllm "),
		BlockSize: int(recorded.Get("block_size").Int()), Blocks: 3000,
		HashAlgo: vllmid.Algo(recorded.Get("block_hash_algo").Str), HashSeed: recorded.Get("none_hash_seed").Str,
		WholeDigests: recorded.Get("block_hash_on_wire").Str == "bytes",
		Prompt:       func(context.Context, string, []byte) ([]Prompt, error) { return []Prompt{p.prompt}, nil },
	}
	if strings.Contains(recorded.Get("flags").Raw, `"gemma3"`) {
		cfg.Groups, _ = vllmcache.ParseGroups(strings.Repeat("window:16:1024,", 6) + "full:16") // as its events show
	}
	flags := recorded.Get("flags").Array()
	for i, f := range flags {
		switch f.Str {
		case "--num-gpu-blocks-override":
			cfg.Blocks = int(flags[i+1].Int())
		case "--data-parallel-size":
			cfg.Ranks = int(flags[i+1].Int())
		case "--lora-modules":
			name, path, _ := strings.Cut(flags[i+1].Str, "=")
			cfg.Adapters = []Adapter{{Name: name, Path: path}}
		case "--kv-events-config":
			cfg.Topic = gjson.Get(flags[i+1].Str, "topic").Str
		}
	}
	p.worker = start(t, cfg)
	return p
}

// batches gives what a rank published since its batch from.
func (p *player) batches(rank int, from uint64) []batch {
	pub := p.worker.engines[rank].pub.(*publisher)
	pub.mu.Lock()
	defer pub.mu.Unlock()
	return slices.Clone(pub.recent[from-(pub.next-uint64(len(pub.recent))):])
}

func (p *player) published() []uint64 {
	var next []uint64
	for _, e := range p.worker.engines {
		n, _ := e.pub.told()
		next = append(next, n)
	}
	return next
}

// lateFrames: the recording lacks the request's events.
const lateFrames = "late"

// request sends one recorded request; how tells what differs from the recording, empty if nothing does.
func (p *player) request(t *testing.T, s *step) (how string) {
	t.Helper()
	var answer []uint32
	for _, id := range gjson.ParseBytes(s.OutputTokenIDs).Array() {
		answer = append(answer, uint32(id.Uint()))
	}
	p.prompt = Prompt{Tokens: golden.Tokens(gjson.ParseBytes(s.PromptTokenRLE)), Answer: answer}
	body := gjson.ParseBytes(s.Request)
	for _, m := range s.MM {
		id := m.Hash
		if strings.Contains(s.Worker, "towerlora") && body.Get("model").Str == "sql-lora" {
			id = "sql-lora:" + id
		}
		if id == "" {
			return "" // "" asks the worker to compute the name; the empty uuid is vllmid's to test
		}
		p.prompt.Media = append(p.prompt.Media, Media{m.Offset, m.Length, m.Modality, id})
		p.lastName = id
	}
	if p.sequence && (s.MMSource != "" || len(s.MM) == 0) {
		p.spansFromTokens()
	}
	sent := map[string]any{}
	for _, key := range []string{"model", "cache_salt", "max_tokens", "prompt_logprobs", "vllm_xargs"} {
		if v := body.Get(key); v.Exists() {
			sent[key] = v.Value()
		}
	}
	if len(answer) > 0 {
		sent["max_tokens"] = len(answer)
	}
	sent["messages"] = []any{}
	b, _ := json.Marshal(sent)
	var headers []string
	for k, v := range s.Headers {
		headers = append(headers, k, v)
	}
	before := p.published()
	path := "/v1/chat/completions"
	if s.Endpoint == "/v1/completions" {
		path = s.Endpoint
	}
	status, reply := call(t, p.worker, "POST", path, string(b), headers...)
	if status != s.Status {
		return fmt.Sprintf("status %d, recorded %d: %s", status, s.Status, reply)
	}
	if status != 200 {
		message, recorded := gjson.Get(reply, "error.message").Str, p.error(s)
		if recorded != "" && message != recorded {
			return fmt.Sprintf("error %q, recorded %q", message, recorded)
		}
		return ""
	}
	got, want := gjson.Get(reply, "usage.prompt_tokens_details"), gjson.GetBytes(s.Usage, "prompt_tokens_details")
	for _, key := range []string{"cached_tokens", "created_cache_tokens", "multimodal_tokens"} {
		if key == "multimodal_tokens" && s.MMSource != "" && !p.sequence {
			continue // the recorded spans end with the last full block
		}
		if w := want.Get(key); w.Exists() && w.Type != gjson.Null && got.Get(key).String() != compact(w.Raw) {
			return fmt.Sprintf("%s %s, recorded %s", key, got.Get(key), w)
		}
	}
	var published []batch
	rank := 0
	for r := range before {
		if b := p.batches(r, before[r]); len(b) > 0 {
			published, rank = b, r
		}
	}
	switch late := len(s.Frames) - len(published); {
	case late > 0: // batches of what went before came in late; the last ones are this request's
		s.Frames = s.Frames[late:]
	case len(s.Frames) == 0 && s.Endpoint == "/v1/completions": // this one's came in after the recording of it ended
		return lateFrames
	case late < 0:
		return fmt.Sprintf("%d batches, recorded %d", len(published), len(s.Frames))
	}
	for i, f := range s.Frames {
		payload, err := base64.StdEncoding.DecodeString(f[2])
		if err != nil {
			t.Fatal(err)
		}
		if topic := p.worker.engines[rank].pub.(*publisher).topic; f[0] != topic {
			return fmt.Sprintf("topic %q, recorded %q", topic, f[0])
		}
		if !sameBatch(published[i].payload, payload) {
			return fmt.Sprintf("batch %d:\n%s\nrecorded\n%s", i, hex.EncodeToString(published[i].payload), hex.EncodeToString(payload))
		}
	}
	return ""
}

func (p *player) error(s *step) string {
	if s.Headers["X-data-parallel-rank"] == "7" {
		return "data_parallel_rank 7 is out of range [0, 2)."
	}
	return ""
}

func compact(raw string) string {
	var b bytes.Buffer
	_ = json.Compact(&b, []byte(raw))
	return b.String()
}

// sameBatch compares two payloads except for their time: bytes 2 to 9, behind the array and float heads.
func sameBatch(a, b []byte) bool {
	return len(a) == len(b) && len(a) > 10 && bytes.Equal(a[:2], b[:2]) && bytes.Equal(a[10:], b[10:])
}

// playSequence runs one recorded sequence against one worker.
func playSequence(t *testing.T, line []byte, workers gjson.Result) {
	id := gjson.GetBytes(line, "id").Str
	t.Run(id, func(t *testing.T) {
		recorded := workers.Get(strings.ReplaceAll(gjson.GetBytes(line, "worker").Str, ".", `\.`))
		p := play(t, recorded)
		p.sequence = true
		var steps []step
		if err := json.Unmarshal([]byte(gjson.GetBytes(line, "steps").Raw), &steps); err != nil {
			t.Fatal(err)
		}
		for i := range steps {
			s := &steps[i]
			switch s.Op {
			case "request":
				if i == 1 && strings.HasSuffix(id, "seq-restart") { // the reset before the recording travels with this one
					p.worker.ResetPrefixCache()
				}
				if how := p.request(t, s); how != "" {
					t.Errorf("step %d: got %s, want %q", i, how, "")
				}
			case "reset_prefix_cache":
				if !p.worker.ResetPrefixCache() {
					t.Errorf("step %d: not reset", i)
				}
			case "restart":
				p = play(t, recorded)
				p.sequence = true
			case "GET /kv_event_sources", "replay", "parallel": // TestRanksAndRestart, checkReplay, TestMeetInOneStep
			default:
				t.Errorf("step %d: op %q is new", i, s.Op)
			}
		}
	})
}

func TestGoldenSequences(t *testing.T) {
	workers := gjson.ParseBytes(golden.Read(t, "../vllmid/testdata/workers.json.gz"))
	for line := range bytes.Lines(golden.Read(t, "testdata/sequences.jsonl.gz")) {
		playSequence(t, line, workers)
	}
}

func TestConformanceGolden(t *testing.T) {
	dir := golden.Dir(t, "vllm")
	workers := gjson.ParseBytes(golden.Read(t, dir, "workers.json"))
	for _, kind := range []string{"seq", "evict", "dp", "restart"} {
		for _, f := range golden.Files(t, dir, "sequences", "*."+kind+".jsonl") {
			for line := range bytes.Lines(golden.Read(t, f)) {
				playSequence(t, line, workers)
			}
		}
	}
	played, left := 0, map[string]int{}
	for _, f := range golden.Files(t, dir, "cases", "*.jsonl") {
		name := strings.TrimSuffix(filepath.Base(f), ".jsonl")
		recorded := workers.Get(strings.ReplaceAll(name, ".", `\.`))
		p := play(t, recorded)
		for line := range bytes.Lines(golden.Read(t, f)) {
			var s step
			if err := json.Unmarshal(line, &s); err != nil {
				left["several prompts"]++
				continue
			}
			switch {
			case s.Status != 200:
				left["refused"]++
				continue
			case gjson.GetBytes(s.Request, "n").Int() > 1:
				left["several answers to one prompt"]++
				continue
			case len(s.PromptTokenRLE) == 0 || gjson.GetBytes(line, "prompt_token_rle_per_choice").Exists():
				left["several prompts, or no tokens recorded"]++
				continue
			}
			// Every case begins with a reset, announced by as many events as its first batch shows.
			p.worker.ResetPrefixCache()
			for e := range p.worker.engines {
				want := 0
				batches := gjson.GetBytes(line, "events").Array()
				for k, b := range batches {
					if k > 0 && !strings.Contains(b.Raw, "AllBlocksCleared") {
						break
					}
					want = strings.Count(b.Raw, "AllBlocksCleared")
					if gjson.Get(b.Raw, "1.#").Int() == int64(want) && k+1 < len(batches) {
						want = 0 // a batch of its own: an empty step went before
					}
				}
				p.worker.engines[e].pool.events = slices.Repeat([]event{{kind: cleared}}, want)
			}
			switch how := p.request(t, &s); how {
			case "":
				played++
			case lateFrames:
				left["events recorded too late"]++
			default:
				t.Errorf("%s: %.600s", s.ID, how)
			}
		}
	}
	t.Logf("%d cases equal; not played: %v", played, left)
}

// Two requests that meet in one step share their blocks: stored once, a hit for the second.
func TestMeetInOneStep(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64})
	if status, body := call(t, w, "POST", "/v1/completions",
		`{"prompt":["a b c d e f g h i","a b c d e f g h i","a b c d e f g h j"],"max_tokens":1}`); status != 200 {
		t.Fatalf("got %d %s, want 200", status, body)
	}
	if s := w.Stats(); s.Batches != 1 || s.CachedTokens != 16 || s.Blocks != 2 {
		t.Errorf("%+v; want one batch, 16 cached tokens, 2 blocks", s)
	}
}
