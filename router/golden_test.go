package router

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/mmhash/block"
)

// The reference is a real vLLM: its token ids, media spans and image names for each recorded request, and its KV events byte for
// byte. Two workers' recordings are part of the project (testdata/vllm); all of them run under TestConformanceVLLM.

// goldenWorker is one server configuration of the recordings.
type goldenWorker struct {
	Engine    string   `json:"engine"` // "vllm 0.32.0"
	Flags     []string `json:"flags"`
	ModelID   string   `json:"model_id"`
	BlockSize int      `json:"block_size"`
}

// server turns the recorded command line into a configuration: flag names are key names.
func (w goldenWorker) server(t *testing.T, now float64) (s engine.Server, adapters []string) {
	t.Helper()
	s = engine.DefaultServer()
	s.AutoToolChoice = false
	s.EngineVersion = strings.TrimPrefix(w.Engine, "vllm ")
	s.EngineModel, s.BlockSize, s.TrustUUID = w.ModelID, w.BlockSize, true
	s.Clock = func() time.Time { return time.Unix(int64(now), 0) }
	take := map[string]bool{"mm_processor_kwargs": true, "media_io_kwargs": true, "mm_hasher_algorithm": true, "trust_request_mm_kwargs": true,
		"chat_template_content_format": true, "max_model_len": true, "tokenizer_mode": true}
	switches := map[string]*bool{"interleave_mm_strings": &s.InterleaveMM,
		"enable_auto_tool_choice": &s.AutoToolChoice, "enable_tower_connector_lora": &s.TowerLoRA}
	for i := 0; i < len(w.Flags); i++ {
		key := strings.ReplaceAll(strings.TrimPrefix(w.Flags[i], "--"), "-", "_")
		value := "true"
		if i+1 < len(w.Flags) && !strings.HasPrefix(w.Flags[i+1], "--") {
			value = w.Flags[i+1]
		}
		switch {
		case key == "lora_modules":
			name, _, _ := strings.Cut(value, "=")
			adapters = append(adapters, name)
		case key == "allowed_media_domains":
			s.AllowedMediaDomains = strings.Split(value, ",")
		case key == "mm_processor_cache_gb":
			gb, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("%s: got %v, want no error", key, err)
			}
			s.MMProcessorCacheGB = gb
		case switches[key] != nil:
			*switches[key] = true
		case take[key] && strings.HasPrefix(w.Flags[i], "--"):
			if err := yaml.Unmarshal([]byte(key+": "+value), &s); err != nil {
				t.Fatalf("%s: got %v, want no error", key, err)
			}
		}
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return s, adapters
}

type goldenMM struct {
	Modality string `json:"modality"`
	Hash     string `json:"hash"`
	Offset   int    `json:"offset"`
	Length   int    `json:"length"`
}

type goldenStep struct {
	Op       string          `json:"op"`
	Endpoint string          `json:"endpoint"`
	Request  json.RawMessage `json:"request"`
	Requests json.RawMessage `json:"requests"`
	Status   int             `json:"status"`
	TokenRLE []any           `json:"prompt_token_rle"`
	MM       []goldenMM      `json:"mm"`
	MMSource string          `json:"mm_source"`
	Frames   [][3]string     `json:"frames"`
	Usage    struct {
		Prompt  int `json:"prompt_tokens"`
		Input   int `json:"input_tokens"` // of /v1/messages: without the cached tokens, which are reported separately
		Created int `json:"cache_creation_input_tokens"`
		Read    int `json:"cache_read_input_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Prompts []struct {
		TokenRLE []any      `json:"token_rle"`
		MM       []goldenMM `json:"mm"`
	} `json:"render_prompts"`
	Events []json.RawMessage `json:"events"`
	Blocks []json.RawMessage `json:"blocks"`
}

type goldenCase struct {
	ID     string `json:"id"`
	Worker string `json:"worker"`
	goldenStep
	Steps []goldenStep `json:"steps"`
}

// goldenSet is a directory of recordings.
type goldenSet struct {
	workers map[string]goldenWorker
	images  fs.FS
	server  *httptest.Server
}

// serveImages serves the images of the recorded URLs.
func (g *goldenSet) serveImages(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/redir/{name}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/"+r.PathValue("name"), http.StatusFound)
	})
	mux.HandleFunc("/missing/{name}", http.NotFound)
	mux.Handle("/", http.FileServerFS(g.images))
	g.server = httptest.NewServer(mux)
	t.Cleanup(g.server.Close)
}

var imageMark = regexp.MustCompile(`@@([^@"]+)@@`)

// body puts the images into a recorded request and points its URLs to our image host.
func (g *goldenSet) body(t *testing.T, raw []byte) []byte {
	raw = imageMark.ReplaceAllFunc(raw, func(m []byte) []byte {
		data, err := fs.ReadFile(g.images, string(m[2:len(m)-2]))
		if err != nil {
			t.Fatal(err)
		}
		return []byte(base64.StdEncoding.EncodeToString(data))
	})
	return bytes.ReplaceAll(raw, []byte("127.0.0.1:18099"), []byte(strings.TrimPrefix(g.server.URL, "http://")))
}

func unroll(t *testing.T, rle []any) (ids []uint32) {
	for _, e := range rle {
		switch v := e.(type) {
		case float64:
			ids = append(ids, uint32(v))
		case []any:
			for range int(v[1].(float64)) {
				ids = append(ids, uint32(v[0].(float64)))
			}
		default:
			t.Fatalf("token_rle: got %T, want a number or a pair of them", e)
		}
	}
	return ids
}

func readCases(t *testing.T, r io.Reader) (cases []goldenCase) {
	lines := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var c goldenCase
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			cases = append(cases, c)
		}
		if err != nil {
			return cases
		}
	}
}

// replayed is one worker's model and index.
type replayed struct {
	t        *testing.T
	set      *goldenSet
	model    *engine.Model
	adapters []string
	index    *indexer.Index
	slot     indexer.SlotID
	decoder  vllm.Decoder
	locals   []uint64
	matches  indexer.Matches
	late     []late // cases whose events had not all come
}

// late is a case whose last events are among the next case's frames; a few recordings have such.
type late struct {
	id    string
	found func() bool
	lost  bool // the recording has fewer blocks than the prompts: its events were not all captured
	until int  // it must be found before this many cases have run
}

// settle drops the late cases that are found now.
func (r *replayed) settle() {
	r.late = slices.DeleteFunc(r.late, func(l late) bool { return l.found() })
}

func (g *goldenSet) open(t *testing.T, worker, dir string, cases []goldenCase) *replayed {
	t.Helper()
	w, ok := g.workers[worker]
	if !ok {
		t.Fatalf("no worker %s, want ok", worker)
	}
	var when float64
	for _, c := range cases {
		for _, s := range append([]goldenStep{c.goldenStep}, c.Steps...) {
			if when == 0 && len(s.Events) > 0 {
				var batch []json.RawMessage
				_ = json.Unmarshal(s.Events[0], &batch)
				_ = json.Unmarshal(batch[0], &when)
			}
		}
	}
	s, adapters := w.server(t, when)
	media, err := engine.NewMedia(&fetch.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Budget: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	m, err := engine.Load(w.ModelID, dir, s, media)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range m.Warnings() {
		t.Log(line)
	}
	r := &replayed{t: t, set: g, model: m, adapters: adapters, index: indexer.New(indexer.Options{})}
	r.slot = r.index.Join(indexer.SlotOptions{CountCopies: true})
	return r
}

// read runs a recorded request through the pipeline.
func (r *replayed) read(endpoint string, raw json.RawMessage) (*engine.Prompts, string, error) {
	skeleton := r.set.body(r.t, raw)
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{skeleton}, &s, &req); err != nil {
		return nil, "", err
	}
	lora := ""
	if slices.Contains(r.adapters, req.Model) {
		lora = req.Model
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ps, err := r.model.Read(ctx, endpoint, lora, &req)
	return ps, lora, err
}

// feed applies recorded frames.
func (r *replayed) feed(frames [][3]string) error {
	for _, f := range frames {
		payload, err := base64.StdEncoding.DecodeString(f[2])
		if err != nil {
			return err
		}
		batch, err := r.decoder.Decode(payload)
		if err != nil {
			return err
		}
		for i := range batch.Events {
			e := &batch.Events[i]
			switch e.Kind {
			case kvevent.Stored:
				if err := r.index.Store(r.slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals); err != nil {
					return err
				}
			case kvevent.Removed:
				if _, err := r.index.Remove(r.slot, e.Tier, e.EngineHashes); err != nil {
					return err
				}
			case kvevent.Cleared:
				if err := r.index.Clear(r.slot); err != nil {
					return err
				}
			}
			r.settle()
		}
	}
	return nil
}

// held returns how many leading blocks of a prompt the worker holds by the index.
func (r *replayed) held(p *engine.Prompt, lora string) (blocks, full int) {
	r.locals = p.Locals(r.locals[:0], block.Form{Size: r.model.Server.BlockSize}, lora)
	r.index.Match(r.locals, &r.matches)
	for _, m := range r.matches.Slots {
		if m.Slot == r.slot {
			blocks = int(m.Blocks)
		}
	}
	return blocks, len(r.locals)
}

// compare returns how a prompt differs from the engine's, "" if it does not.
func compare(t *testing.T, p *engine.Prompt, rle []any, mm []goldenMM, mmSource string) string {
	want := unroll(t, rle)
	if !slices.Equal(p.IDs, want) {
		n := 0
		for n < min(len(p.IDs), len(want)) && p.IDs[n] == want[n] {
			n++
		}
		return fmt.Sprintf("tokens differ at %d: %d against the engine's %d in all; ours %v, its %v", n, len(p.IDs), len(want),
			p.IDs[n:min(n+6, len(p.IDs))], want[n:min(n+6, len(want))])
	}
	if !p.Exact {
		return "not exact: " + p.Why
	}
	if len(mm) != len(p.Media) {
		return fmt.Sprintf("%d media, the engine had %d", len(p.Media), len(mm))
	}
	for i, m := range mm {
		got := p.Media[i]
		if got.Name != m.Hash {
			return fmt.Sprintf("media %d is named %s, by the engine %s", i, got.Name, m.Hash)
		}
		if got.Offset != m.Offset || got.Length != m.Length && mmSource == "" {
			return fmt.Sprintf("media %d at [%d,+%d), in the engine [%d,+%d)", i, got.Offset, got.Length, m.Offset, m.Length)
		}
	}
	return ""
}

// one runs one recorded case and returns "" or what differs.
func (r *replayed) one(c *goldenStep) string {
	ps, lora, err := r.read(c.Endpoint, c.Request)
	if c.Status != http.StatusOK {
		var refused *engine.Refused
		if !errors.As(err, &refused) {
			return fmt.Sprintf("the engine answered %d, we read it as good (%v)", c.Status, err)
		}
		return ""
	}
	if err != nil {
		return err.Error()
	}
	if len(c.Prompts) > 1 {
		if len(ps.List) != len(c.Prompts) {
			return fmt.Sprintf("%d prompts, the engine had %d", len(ps.List), len(c.Prompts))
		}
		for i := range c.Prompts {
			if d := compare(r.t, &ps.List[i], c.Prompts[i].TokenRLE, c.Prompts[i].MM, ""); d != "" {
				return fmt.Sprintf("prompt %d: %s", i, d)
			}
		}
	} else if len(c.TokenRLE) == 0 { // recorded by its events only: all full blocks must be found by them
		prompts := 0
		for i := range ps.List {
			prompts += len(ps.List[i].IDs)
			if !ps.List[i].Exact {
				return "not exact: " + ps.List[i].Why
			}
		}
		if want := c.Usage.Prompt + c.Usage.Input + c.Usage.Created + c.Usage.Read; prompts != want {
			return fmt.Sprintf("%d tokens, the engine had %d", prompts, want)
		}
	} else if d := compare(r.t, &ps.List[0], c.TokenRLE, c.MM, c.MMSource); d != "" {
		return d
	}
	if err := r.feed(c.Frames); err != nil {
		return "events: " + err.Error()
	}
	found := func() bool {
		for i := range ps.List {
			if held, full := r.held(&ps.List[i], lora); held != full {
				return false
			}
		}
		return true
	}
	if !found() {
		blocks := 0
		for i := range ps.List {
			blocks += len(ps.List[i].IDs) / r.model.Server.BlockSize
		}
		r.late = append(r.late, late{found: found, lost: len(c.Blocks) < blocks})
	}
	return ""
}

// unreadMedia are what the recorded requests have of media that no rule reads: a prompt is exact up to the first, and learned from there.
var unreadMedia = regexp.MustCompile(`"(video_url|audio_url|input_audio|image_embeds|audio_embeds)"|\.(bmp|tiff|avif)\b`)

// upToMedium runs a case whose prompt is learned from its first unread medium on: up to there it must be the engine's.
func (r *replayed) upToMedium(c *goldenStep) string {
	ps, _, err := r.read(c.Endpoint, c.Request)
	if c.Status == http.StatusOK {
		want := unroll(r.t, c.TokenRLE)
		switch {
		case err != nil:
			return err.Error()
		case ps.List[0].Exact:
			return "called exact"
		case len(c.TokenRLE) > 0 && !slices.Equal(ps.List[0].IDs, want[:min(len(ps.List[0].IDs), len(want))]):
			return fmt.Sprintf("the tokens before a medium differ: %d, the engine's are %v", ps.List[0].IDs, want)
		}
	}
	if err := r.feed(c.Frames); err != nil {
		return "events: " + err.Error()
	}
	return ""
}

// cases runs a worker's cases and returns the counts; those with unread media are counted apart.
func (r *replayed) cases(cases []goldenCase, endpoints func(string) bool) (equal, total, learned int) {
	for i := range cases {
		c := &cases[i]
		if !endpoints(c.Endpoint) {
			continue
		}
		if what := unreadMedia.Find(c.Request); what != nil {
			learned++
			if d := r.upToMedium(&c.goldenStep); d != "" {
				r.t.Errorf("%s (%d), learned because of %s: %s", c.ID, c.Status, what, d)
			}
			continue
		}
		total++
		if d := r.one(&c.goldenStep); d == "" {
			equal++
		} else {
			r.t.Errorf("%s (%d): %s", c.ID, c.Status, d)
		}
		if len(r.late) > 0 && r.late[len(r.late)-1].id == "" {
			r.late[len(r.late)-1].id, r.late[len(r.late)-1].until = c.ID, i+3
		}
		for len(r.late) > 0 && (r.late[0].until <= i || i == len(cases)-1) {
			if r.late[0].lost {
				r.t.Logf("%s: equal, but the recording lacks its events", r.late[0].id)
			} else {
				r.t.Errorf("%s: not all full blocks found after the engine's events", r.late[0].id)
				equal--
			}
			r.late = r.late[1:]
		}
	}
	return equal, total, learned
}

// gunzip opens a file of testdata.
func gunzip(t *testing.T, name string) io.Reader {
	f, err := os.Open(filepath.Join("testdata", "vllm", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

const shippedModel = "../examples/models/qwen2.5-vl"

func ownSet(t *testing.T) *goldenSet {
	raw, err := os.ReadFile("testdata/vllm/workers.json")
	if err != nil {
		t.Fatal(err)
	}
	g := new(goldenSet)
	if err := json.Unmarshal(raw, &g.workers); err != nil {
		t.Fatal(err)
	}
	z, err := zip.OpenReader("testdata/vllm/images.zip")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.Close() })
	g.images = z
	g.serveImages(t)
	return g
}

// TestVLLMRequests replays every recorded request of two real workers with the shipped model directory: token ids, spans, names
// and, after the worker's own events, every full block.
func TestVLLMRequests(t *testing.T) {
	g := ownSet(t)
	for _, w := range []string{"qwen2.5-vl-b16", "qwen2.5-vl-b16-api"} {
		t.Run(w, func(t *testing.T) {
			cases := readCases(t, gunzip(t, w+".jsonl.gz"))
			equal, total, learned := g.open(t, w, shippedModel, cases).cases(cases, served)
			t.Logf("vllm %s: %d of %d equal, %d more are learned", w, equal, total, learned)
			if total < 8 {
				t.Errorf("only %d cases ran, want at least 8", total)
			}
		})
	}
}

// served are the endpoints whose prompts are read.
func served(endpoint string) bool {
	switch endpoint {
	case "/v1/chat/completions", "/v1/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages":
		return true
	}
	return false
}

// TestVLLMCachedTokens checks that the engine's count of cached tokens in a series of requests against one cache is what the
// index says, except for the first request after a reset: vLLM reports a reset only with the next batch.
func TestVLLMCachedTokens(t *testing.T) {
	g := ownSet(t)
	for _, c := range readCases(t, gunzip(t, "qwen2.5-vl-b16.seq.jsonl.gz")) {
		t.Run(c.ID[strings.LastIndex(c.ID, "/")+1:], func(t *testing.T) {
			r := g.open(t, c.Worker, shippedModel, []goldenCase{c})
			r.sequence(c)
		})
	}
}

func (r *replayed) sequence(c goldenCase) (steps int) {
	afterReset := false
	for i, s := range c.Steps {
		switch {
		case s.Op == "request" && s.Status == http.StatusOK && len(s.TokenRLE) > 0:
			ps, lora, err := r.read(s.Endpoint, s.Request)
			if err != nil {
				r.t.Errorf("%s step %d: %v", c.ID, i, err)
				return steps
			}
			if d := compare(r.t, &ps.List[0], s.TokenRLE, s.MM, s.MMSource); d != "" {
				r.t.Errorf("%s step %d: %s", c.ID, i, d)
			}
			held, _ := r.held(&ps.List[0], lora)
			size := r.model.Server.BlockSize
			// An engine always computes the last token, so a prompt that is wholly cached loses its last block.
			predicted := min(held*size, (len(ps.List[0].IDs)-1)/size*size)
			noRead := bytes.Contains(s.Request, []byte(`"prompt_logprobs"`)) // disables prefix cache reads
			if predicted != s.Usage.Details.Cached && !afterReset && !noRead {
				r.t.Errorf("%s step %d: the engine had %d tokens cached, we predict %d", c.ID, i, s.Usage.Details.Cached, predicted)
			}
			afterReset = false
			steps++
		case s.Op == "reset_prefix_cache":
			afterReset = true
		}
		if err := r.feed(s.Frames); err != nil {
			r.t.Fatalf("%s step %d: %v", c.ID, i, err)
		}
	}
	return steps
}

// TestConformanceVLLM runs all recordings: SIGHTLINE_GOLDEN and SIGHTLINE_MODELS name their directories.
func TestConformanceVLLM(t *testing.T) {
	golden, models := os.Getenv("SIGHTLINE_GOLDEN"), os.Getenv("SIGHTLINE_MODELS")
	if golden == "" || models == "" {
		t.Skip("SIGHTLINE_GOLDEN and SIGHTLINE_MODELS are not set: the recordings and model directories are not part of the project")
	}
	root := filepath.Join(golden, "vllm")
	raw, err := os.ReadFile(filepath.Join(root, "workers.json"))
	if err != nil {
		t.Fatal(err)
	}
	g := &goldenSet{images: os.DirFS(filepath.Join(root, "images"))}
	if err := json.Unmarshal(raw, &g.workers); err != nil {
		t.Fatal(err)
	}
	g.serveImages(t)
	dirs := assemble(t, root, models)
	files, err := filepath.Glob(filepath.Join(root, "cases", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases below %s (%v): got %d, want no error, some", root, err, len(files))
	}
	sort.Strings(files)
	equal, total, learned := 0, 0, 0
	for _, file := range files {
		worker := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(worker, func(t *testing.T) {
			dir, ok := dirs[g.workers[worker].ModelID]
			if !ok {
				t.Skipf("no model directory for %s", g.workers[worker].ModelID)
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cases := readCases(t, f)
			e, n, l := g.open(t, worker, dir, cases).cases(cases, served)
			equal, total, learned = equal+e, total+n, learned+l
			t.Logf("conformance vllm %s: %d of %d equal, %d learned", worker, e, n, l)
		})
	}
	t.Logf("conformance vllm: %d of %d equal, %d learned", equal, total, learned)
}

// assemble builds the model directories that the recordings were made with, as their manifest says.
func assemble(t *testing.T, root, models string) map[string]string {
	raw, err := os.ReadFile(filepath.Join(root, "model_dirs", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest map[string]map[string]struct{ Here, From string }
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	tmp := t.TempDir()
next:
	for model, files := range manifest {
		dir := filepath.Join(tmp, model)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, where := range files {
			path := filepath.Join(models, where.From)
			if where.Here != "" {
				path = filepath.Join(root, "model_dirs", where.Here)
			}
			if strings.HasPrefix(where.From, "pip package") {
				data := os.Getenv("SIGHTLINE_MISTRAL_COMMON")
				if data == "" {
					t.Logf("%s: needs a file of mistral-common; SIGHTLINE_MISTRAL_COMMON names its data directory", model)
					continue next
				}
				path = filepath.Join(data, filepath.Base(where.From))
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(path, ".gz") {
				z, err := gzip.NewReader(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				data, err = io.ReadAll(z)
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		out[model] = dir
	}
	return out
}
