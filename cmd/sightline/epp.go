package main

import (
	"context"
	"os"
	"time"

	"github.com/sightline-router/sightline/internal/eppcheck"
)

// eppCmd has the fields of eppcheck.Options, as flags.
type eppCmd struct {
	Addr    string        `arg:"" help:"The picker's gRPC address: host:port, or unix:/path."`
	TLS     bool          `help:"Over TLS, without verifying the certificate."`
	Model   string        `default:"m" help:"The model that requests name."`
	Timeout time.Duration `default:"5s" help:"How long to wait for one answer."`
}

func (c *eppCmd) Run(ctx context.Context) error {
	return eppcheck.Report(ctx, eppcheck.Options(*c), os.Stdout)
}
