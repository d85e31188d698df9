package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/sim"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/chat"
)

type simCmd struct {
	ModelDir      string        `type:"existingdir" required:"" help:"Model directory (without weights)."`
	ServedName    string        `default:"sim-vl" help:"What requests call the model."`
	EngineModel   string        `help:"The --model argument to act as; default: the served name."`
	EngineVersion string        `default:"0.32.0" help:"The vLLM release to act as, 0.22 to 0.33."`
	Listen        string        `default:"127.0.0.1:8001" help:"HTTP address."`
	Events        string        `default:"127.0.0.1:5557" help:"ZeroMQ PUB address of rank 0; rank r is at port + r."`
	Replay        string        `default:"127.0.0.1:5657" help:"ZeroMQ replay address of rank 0."`
	BlockSize     int           `default:"16" help:"Tokens a KV block."`
	Blocks        int           `default:"4096" help:"Blocks in the cache."`
	Ranks         int           `default:"1" help:"Data-parallel ranks."`
	Speed         float64       `default:"1" help:"How much faster than a 7B model on one large GPU; 0: no delay at all."`
	Wait          time.Duration `hidden:""`
}

func (c *simCmd) Run(ctx context.Context) error {
	name := c.EngineModel
	if name == "" {
		name = c.ServedName
	}
	prompts, err := simPrompts(c.ModelDir, name, c.BlockSize)
	if err != nil {
		return err
	}
	w, err := sim.New(sim.Config{Model: name, ServedName: c.ServedName, Version: c.EngineVersion, Listen: c.Listen, Events: c.Events, Replay: c.Replay,
		BlockSize: c.BlockSize, Blocks: c.Blocks, Ranks: c.Ranks, Speed: c.Speed, Prompt: prompts})
	if err != nil {
		return err
	}
	w.Start()
	defer w.Close()
	fmt.Printf("simulated worker %s on http://%s, events %s, replay %s\n", c.ServedName, w.Addr(), w.EventsAddr(), w.ReplayAddr())
	<-ctx.Done()
	return nil
}

// simPrompts reads requests for simulated workers with the product's own prompt stage; what a worker calls an image it
// computes by itself (package vllmid), so that a mistake in our names would show.
func simPrompts(dir, engineModel string, blockSize int) (func(context.Context, string, []byte) ([]sim.Prompt, error), error) {
	s := mmhash.DefaultServer()
	s.EngineModel, s.BlockSize, s.TrustMMKwargs, s.ClientUUID = engineModel, blockSize, true, "trust"
	mc := config.Default().Media
	mc.Allow, mc.Budget = []string{"127.0.0.0/8", "::1/128"}, fetchPatience
	media, err := newMedia(mc)
	if err != nil {
		return nil, err
	}
	m, err := mmhash.Load(engineModel, dir, s, media)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
		var sk chat.Skeleton
		if err := sk.Scan([][]byte{body}); err != nil {
			return nil, err
		}
		var req chat.Request
		if err := chat.Parse(&sk, &req); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, fetchPatience)
		defer cancel()
		ps, err := m.Read(ctx, path, "", &req)
		var refused *mmhash.Refused
		if errors.As(err, &refused) {
			return nil, &sim.Refusal{Status: refused.Status, Type: "BadRequestError", Message: refused.Reason}
		}
		if err != nil {
			return nil, err
		}
		out := make([]sim.Prompt, 0, len(ps.List))
		for _, p := range ps.List {
			if !p.Exact {
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
