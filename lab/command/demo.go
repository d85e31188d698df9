package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sightline-router/sightline/app/program"
	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab/demo"
)

type demoCmd struct {
	ModelDir  string `type:"existingdir" default:"examples/models/qwen2.5-vl" help:"Model directory (without weights)."`
	Sightline string `type:"existingfile" placeholder:"FILE" help:"The sightline binary to run; default: the one in this program's folder, otherwise the one on PATH."`
	Stay      bool   `help:"Leave everything running and print a request to try."`
}

func (c *demoCmd) Run(ctx context.Context) error {
	router, err := c.router()
	if err != nil {
		return err
	}
	bin, err := envoy.Binary(ctx, "", fetching)
	if err != nil {
		return err
	}
	return demo.Run(ctx, demo.Options{Sightline: router, Envoy: bin, ModelDir: c.ModelDir, Stay: c.Stay,
		Color: program.Colored(os.Stdout), Out: os.Stdout})
}

// router finds the sightline binary.
func (c *demoCmd) router() (string, error) {
	if c.Sightline != "" {
		return c.Sightline, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), "sightline")
	if path, err := exec.LookPath(beside); err == nil {
		return path, nil
	}
	path, err := exec.LookPath("sightline")
	if err != nil {
		return "", fmt.Errorf("no sightline binary: neither %s nor one on PATH (make build makes both; --sightline names another)", beside)
	}
	return path, nil
}

// fetching logs that Envoy is being downloaded.
func fetching(format string, args ...any) { fmt.Fprintf(os.Stderr, "envoy: "+format+"\n", args...) }
