// Package explain shows what each stage makes of a request (text, tokens, image names, block hashes), and what an index
// holds of a worker.
package explain

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/serve"
	"github.com/sightline-router/sightline/mmhash/block"
)

// patience is how long an image is waited for; the router has its own, much smaller budget.
const patience = 10 * time.Second

// Options say which model reads which requests. With ModelDir a client's uuid is read as the engine reads it: the request is
// explained as given. With Config it is left out, as in what Sightline forwards.
type Options struct {
	File string // one request a line; "-": standard input

	ModelDir      string // a model directory, or
	Config        string // Sightline's configuration, with Model
	Model         string // a name of the configuration; empty: its only one
	Engine        string
	EngineVersion string
	EngineModel   string // the engine's own --model argument
	BlockSize     int
	MediaAllow    []string  // private networks that image URLs may point to
	Set           []string  // key=value for any other key of a model
	Now           time.Time // the date that templates print; zero: now
	JSONL         bool      // one JSON object a line

	Class  string // one of the model's classes
	Index  string // instead of requests: what is held by a worker, by an admin address or a snapshot's file
	Worker string
	Rank   int
}

// explainer is one call.
type explainer struct{ Options }

// explained is one line of --jsonl. Checkers read it: keep the names.
type explained struct {
	ID          string     `json:"id,omitempty"`
	Family      string     `json:"family,omitempty"` // of docs/families.md; none for a text model, and for one that is not known
	Rendered    string     `json:"rendered"`
	TokenIDs    []uint32   `json:"token_ids"`
	MM          []mmItem   `json:"mm"`
	LocalHashes []string   `json:"local_hashes"`
	BlockHashes []string   `json:"block_hashes"`
	Exact       bool       `json:"exact"`
	Why         string     `json:"why"`
	Error       string     `json:"error,omitempty"`
	Prompts     []oneOfSet `json:"prompts,omitempty"` // of a request with several prompts, the first included
}

type oneOfSet struct {
	Rendered string   `json:"rendered"`
	TokenIDs []uint32 `json:"token_ids"`
	MM       []mmItem `json:"mm"`
}

type mmItem struct {
	Modality  string `json:"modality"`
	Offset    int    `json:"offset"`
	Length    int    `json:"length"`
	ContentID string `json:"content_id"`
	Width     int    `json:"width"`
	Height    int    `json:"height"`
	Name      string `json:"name"`
}

// Run writes to standard output what each stage makes of the requests, or what an index holds.
func Run(ctx context.Context, o Options) error {
	c := &explainer{o}
	if c.Index != "" {
		out := bufio.NewWriterSize(os.Stdout, 1<<16)
		defer out.Flush()
		return c.showIndex(ctx, out)
	}
	m, err := c.model()
	if err != nil {
		return err
	}
	in := io.Reader(os.Stdin)
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	defer out.Flush()
	lines := bufio.NewReaderSize(in, 1<<20)
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if first && err == nil && !json.Valid(line) { // perhaps one request, written over several lines
			rest, e := io.ReadAll(lines)
			if whole := slices.Concat(line, rest); e == nil && json.Valid(whole) {
				line, err = whole, io.EOF
			} else {
				lines = bufio.NewReader(bytes.NewReader(rest))
			}
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			c.show(out, c.explain(ctx, m, line))
			out.Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// model is the model that the flags describe.
func (c *explainer) model() (*explainModel, error) {
	mc := config.Model{Name: "model", Server: engine.DefaultServer()}
	mc.TrustMMKwargs, mc.TrustUUID = true, true
	cfg := config.Default()
	switch {
	case c.Config != "":
		var err error
		if cfg, err = config.Load(c.Config); err != nil {
			return nil, err
		}
		found := false
		for _, m := range cfg.Models {
			if m.Name == c.Model || c.Model == "" && len(cfg.Models) == 1 {
				mc, found = m, true
			}
		}
		if !found {
			return nil, fmt.Errorf("--model %q is none of the %d models in %s", c.Model, len(cfg.Models), c.Config)
		}
		class, ok := mc.Class(c.Class)
		if !ok {
			return nil, fmt.Errorf("--class %q is no class of model %q", c.Class, mc.Name)
		}
		mc.Dir, mc.Server = class.Dir, class.Server
	case c.ModelDir != "":
		mc.Dir, mc.Name = c.ModelDir, filepath.Base(c.ModelDir)
	default:
		return nil, errors.New("give --model-dir DIR, or --config FILE with --model NAME")
	}
	for key, v := range map[string]string{"engine": c.Engine, "engine_version": c.EngineVersion, "engine_model": c.EngineModel} {
		if v != "" {
			if err := mc.Set(fmt.Sprintf("%s=%q", key, v)); err != nil {
				return nil, err
			}
		}
	}
	if c.BlockSize != 0 {
		mc.BlockSize = c.BlockSize
	}
	for _, s := range c.Set {
		if err := mc.Set(s); err != nil {
			return nil, fmt.Errorf("--set %w", err)
		}
	}
	if !c.Now.IsZero() {
		mc.Clock = func() time.Time { return c.Now }
	}
	if mc.EngineModel == "" {
		mc.EngineModel = mc.Name
	}
	if err := mc.Server.Check(); err != nil {
		return nil, err
	}
	cfg.Media.Allow = append(cfg.Media.Allow, c.MediaAllow...)
	for _, a := range cfg.Media.Allow {
		if _, err := netip.ParsePrefix(a); err != nil {
			return nil, fmt.Errorf("--media-allow %q is no network (want one such as 10.0.0.0/8)", a)
		}
	}
	cfg.Media.Budget = patience
	media, err := serve.NewMedia(cfg.Media)
	if err != nil {
		return nil, err
	}
	media.Patient = true
	m, err := engine.Load(mc.Name, mc.Dir, mc.Server, media)
	if err != nil {
		return nil, err
	}
	for _, w := range m.Warnings() {
		fmt.Fprintf(os.Stderr, "%s: %s\n", mc.Name, w)
	}
	return &explainModel{Model: m, adapters: mc.Adapters, cfg: mc}, nil
}

type explainModel struct {
	*engine.Model
	cfg      config.Model
	adapters []string
}

func (c *explainer) explain(ctx context.Context, m *explainModel, line []byte) (e explained) {
	e = explained{Family: m.Family(), TokenIDs: []uint32{}, MM: []mmItem{}, LocalHashes: []string{}, BlockHashes: []string{}}
	fail := func(format string, args ...any) explained {
		e.Error = fmt.Sprintf(format, args...)
		if e.Why == "" {
			e.Why = e.Error
		}
		return e
	}
	endpoint := "/v1/chat/completions"
	skeleton := line
	var env struct {
		ID       string          `json:"id"`
		Endpoint string          `json:"endpoint"`
		Request  json.RawMessage `json:"request"`
	}
	if json.Unmarshal(line, &env) == nil && len(env.Request) > 0 {
		e.ID, skeleton = env.ID, env.Request
		if env.Endpoint != "" {
			endpoint = env.Endpoint
		}
	} else if bytes.Contains(line, []byte(`"prompt"`)) && !bytes.Contains(line, []byte(`"messages"`)) {
		endpoint = "/v1/completions"
	}
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{skeleton}, &s, &req); err != nil {
		return fail("%v", err)
	}
	lora := ""
	for _, a := range m.adapters {
		if a == req.Model {
			lora = a
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ps, err := m.Read(ctx, endpoint, lora, &req)
	if err != nil {
		return fail("%v", err)
	}
	p := &ps.List[0]
	e.Rendered, e.TokenIDs, e.MM, e.Exact, e.Why = p.Rendered, ids(p), items(p), p.Exact, p.Why
	locals := m.Locals(nil, p, lora)
	for _, h := range locals {
		e.LocalHashes = append(e.LocalHashes, fmt.Sprintf("%016x", h))
	}
	for _, h := range block.Chain(nil, locals, 0, false) {
		e.BlockHashes = append(e.BlockHashes, fmt.Sprintf("%016x", h))
	}
	if e.Exact {
		e.Why = "exact"
	}
	if len(ps.List) > 1 {
		for i := range ps.List {
			p := &ps.List[i]
			e.Prompts = append(e.Prompts, oneOfSet{p.Rendered, ids(p), items(p)})
		}
	}
	return e
}

func ids(p *engine.Prompt) []uint32 {
	if p.IDs == nil {
		return []uint32{}
	}
	return p.IDs
}

func items(p *engine.Prompt) []mmItem {
	out := []mmItem{}
	for _, md := range p.Media {
		if md.Length == 0 { // not known: the prompt ends before it
			continue
		}
		it := mmItem{Modality: md.Modality, Offset: md.Offset, Length: md.Length, Width: md.Facts.Width, Height: md.Facts.Height, Name: md.Name}
		if md.Known {
			it.ContentID = md.Facts.ID.String()
		}
		out = append(out, it)
	}
	return out
}

func (c *explainer) show(w io.Writer, e explained) {
	if c.JSONL {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(e)
		return
	}
	head := e.ID
	if head == "" {
		head = "request"
	}
	fmt.Fprintf(w, "── %s\n", head)
	if e.Error != "" {
		fmt.Fprintf(w, "error     %s\n\n", e.Error)
		return
	}
	fmt.Fprintf(w, "family    %s\n", cmp.Or(e.Family, "none"))
	fmt.Fprintf(w, "text      %s\n", strings.ReplaceAll(e.Rendered, "\n", "\n          "))
	fmt.Fprintf(w, "tokens    %d: %s\n", len(e.TokenIDs), runs(e.TokenIDs))
	for _, it := range e.MM {
		fmt.Fprintf(w, "%-9s tokens %d to %d, %d×%d, content %.16s…, the engine's name %s\n", it.Modality, it.Offset, it.Offset+it.Length-1, it.Width, it.Height, it.ContentID, it.Name)
	}
	for i := range e.LocalHashes {
		fmt.Fprintf(w, "block %-3d local %s  chained %s\n", i, e.LocalHashes[i], e.BlockHashes[i])
	}
	if e.Exact {
		fmt.Fprintf(w, "exact     yes\n\n")
	} else {
		fmt.Fprintf(w, "exact     no: %s\n\n", e.Why)
	}
}

// runs writes token ids with repeats shortened: 151644 8948 151655×1196.
func runs(ids []uint32) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i
		for j < len(ids) && ids[j] == ids[i] {
			j++
		}
		if j-i > 3 {
			fmt.Fprintf(&b, "%d×%d ", ids[i], j-i)
		} else {
			j = i + 1
			fmt.Fprintf(&b, "%d ", ids[i])
		}
		i = j
	}
	return strings.TrimSpace(b.String())
}
