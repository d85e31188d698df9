package explain

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
)

// explained is one line of -o json. Other programs read it: keep the names.
type explained struct {
	ID     string `json:"id,omitempty"`
	Family string `json:"family,omitempty"` // of docs/families.md; "" for a text model and an unknown one
	reading
	LocalHashes []string  `json:"local_hashes"`
	BlockHashes []string  `json:"block_hashes"`
	Exact       bool      `json:"exact"`
	Why         string    `json:"why"`
	Error       string    `json:"error,omitempty"`
	Prompts     []reading `json:"prompts,omitempty"` // all prompts of a request with several

	memory bool // no rule reads it
}

// reading is the result for one prompt.
type reading struct {
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

// explain runs the stages on a request: the body itself, or in an envelope {"id", "endpoint", "headers", "request"}.
func (m *model) explain(ctx context.Context, line []byte) explained {
	id, endpoint, request := unwrap(line)
	e := explained{ID: id, Family: m.Family(), reading: reading{TokenIDs: []uint32{}, MM: []mmItem{}}, LocalHashes: []string{},
		BlockHashes: []string{}}
	if err := m.stages(ctx, &e, endpoint, request); err != nil {
		e.Error = err.Error()
		e.Why = e.Error
		e.memory = errors.As(err, new(*prompt.Unpredicted))
	}
	return e
}

func unwrap(line []byte) (id, endpoint string, request []byte) {
	var env struct {
		ID       string          `json:"id"`
		Endpoint string          `json:"endpoint"`
		Request  json.RawMessage `json:"request"`
	}
	endpoint = denied.Chat
	if json.Unmarshal(line, &env) == nil && len(env.Request) > 0 {
		return env.ID, cmp.Or(env.Endpoint, endpoint), env.Request
	}
	if bytes.Contains(line, []byte(`"prompt"`)) && !bytes.Contains(line, []byte(`"messages"`)) {
		endpoint = denied.Completions
	}
	return "", endpoint, line
}

// stages scans and parses the body, makes its prompts and the hashes of the first, and fills in the results of each stage.
func (m *model) stages(ctx context.Context, e *explained, endpoint string, request []byte) error {
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{request}, &s, &req); err != nil {
		return err
	}
	lora := ""
	if slices.Contains(m.adapters, req.Model) {
		lora = req.Model
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ps, err := m.Read(ctx, endpoint, lora, &req)
	if err != nil {
		return err
	}
	p := &ps.List[0]
	e.reading, e.Exact, e.Why = readingOf(p), p.Exact, p.Why
	switch {
	case e.Exact && m.Server.Rules().Uncompared:
		e.Exact, e.Why = false, prompt.Uncompared
	case e.Exact:
		e.Why = "exact"
	}
	locals := p.Locals(nil, block.Form{Size: m.Server.BlockSize}, lora)
	for i, chain := range block.Fixed().Chain(nil, locals) {
		e.LocalHashes = append(e.LocalHashes, fmt.Sprintf("%016x", locals[i]))
		e.BlockHashes = append(e.BlockHashes, fmt.Sprintf("%016x", chain))
	}
	for i := range ps.List {
		if len(ps.List) > 1 {
			e.Prompts = append(e.Prompts, readingOf(&ps.List[i]))
		}
	}
	return nil
}

func readingOf(p *engine.Prompt) reading {
	r := reading{Rendered: p.Rendered, TokenIDs: p.IDs, MM: []mmItem{}}
	if r.TokenIDs == nil {
		r.TokenIDs = []uint32{}
	}
	for _, md := range p.Media {
		if md.Length == 0 { // unknown: the prompt ends before it
			continue
		}
		it := mmItem{Modality: md.Modality, Offset: md.Offset, Length: md.Length, Width: md.Facts.Width, Height: md.Facts.Height, Name: md.Name}
		if md.HasFacts {
			it.ContentID = md.Facts.ID.String()
		}
		r.MM = append(r.MM, it)
	}
	return r
}
