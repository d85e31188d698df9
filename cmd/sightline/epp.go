package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sightline-router/sightline/internal/eppcheck"
)

type eppCmd struct {
	Addr    string        `arg:"" help:"The picker's gRPC address: host:port, or unix:/path."`
	TLS     bool          `help:"Over TLS, without verifying the certificate."`
	Model   string        `default:"m" help:"The model that requests name."`
	Timeout time.Duration `default:"5s" help:"How long to wait for one answer."`
}

func (c *eppCmd) Run(ctx context.Context) error {
	results, err := eppcheck.Run(ctx, eppcheck.Options{Addr: c.Addr, TLS: c.TLS, Model: c.Model, Timeout: c.Timeout})
	if err != nil {
		return err
	}
	failed := 0
	for i, r := range results {
		if r.Err == nil {
			fmt.Printf("ok   %2d  %s\n", i+1, r.Name)
			continue
		}
		failed++
		fmt.Printf("FAIL %2d  %s: %v\n", i+1, r.Name, r.Err)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d cases failed", failed, len(results))
	}
	fmt.Printf("%d cases passed\n", len(results))
	return nil
}
