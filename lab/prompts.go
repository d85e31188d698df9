package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/media/fetch"
)

// Prompts is how simulated workers read requests.
type Prompts func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error)

// patience is how long a simulated worker waits for an image.
const patience = 10 * time.Second

// NewPrompts reads requests with the product's own prompt stage. What a worker calls an image it computes by itself
// (package sim), so that a mistake in our names would show.
func NewPrompts(dir string, engine_ sim.Engine, engineModel string, blockSize int) (Prompts, error) {
	s := engine.DefaultServer()
	s.EngineModel, s.BlockSize, s.TrustMMKwargs, s.TrustUUID = engineModel, blockSize, true, true
	switch engine_ {
	case sim.SGLang:
		s.Engine, s.EngineVersion = "sglang", "0.5.23"
	case sim.TRTLLM, sim.TRTLLMZMQ, sim.Standalone:
		s.Engine, s.EngineVersion = "trtllm", "1.3.0"
	}
	media, err := engine.NewMedia(&fetch.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128")}, Budget: patience})
	if err != nil {
		return nil, err
	}
	m, err := engine.Load(engineModel, dir, s, media)
	if err == nil {
		err = m.Fault()
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, path string, skeleton []byte) ([]sim.Prompt, error) {
		var sk body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{skeleton}, &sk, &req); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ps, err := m.Read(ctx, path, "", &req)
		if refused, ok := errors.AsType[*engine.Refused](err); ok {
			return nil, &sim.Refusal{Status: refused.Status, Type: "BadRequestError", Message: refused.Reason}
		}
		if err != nil {
			return nil, err
		}
		out := make([]sim.Prompt, 0, len(ps.List))
		for _, p := range ps.List {
			if !p.Exact && p.HashableIDs == len(p.IDs) { // more is missing than names
				return nil, fmt.Errorf("not exact: %s", p.Why)
			}
			sp := sim.Prompt{Tokens: p.IDs}
			for _, md := range p.Media {
				sp.Media = append(sp.Media, sim.Media{Modality: md.Modality, Offset: md.Offset, Length: md.Length})
			}
			out = append(out, sp)
		}
		return out, nil
	}, nil
}

// RunWorker runs one simulated worker of a model directory until ctx ends, and prints where it is reached. c lacks Prompt only.
func RunWorker(ctx context.Context, modelDir string, c sim.Config) error {
	prompts, err := NewPrompts(modelDir, c.Engine, c.Model, c.BlockSize)
	if err != nil {
		return err
	}
	c.Prompt = prompts
	w, err := sim.New(c)
	if err != nil {
		return err
	}
	w.Start()
	defer w.Close()
	fmt.Printf("simulated %s worker %s on http://%s, events %s, replay %s\n", c.Engine, c.ServedName, w.Addr(), w.EventsAddr(), w.ReplayAddr())
	<-ctx.Done()
	return nil
}
