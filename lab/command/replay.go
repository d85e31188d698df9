package command

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/lab/fleetsim"
)

type replayCmd struct {
	Files       []string `arg:"" type:"existingfile" help:"Decision logs, in the order of time."`
	Config      string   `short:"c" required:"" type:"existingfile" help:"The other configuration; only its mode, enforce, number of workers and block_size are used."`
	CacheTokens int      `default:"400000" help:"Tokens that a worker's KV cache holds, as its log says at startup (vLLM: GPU KV cache size)."`
}

func (c *replayCmd) Run() error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	var logs []io.Reader
	for _, name := range c.Files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		logs = append(logs, f)
	}
	err = (fleetsim.Replay{Config: cfg, Name: filepath.Base(c.Config), Log: io.MultiReader(logs...), Cache: c.CacheTokens}).Run(os.Stdout)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(c.Files, ", "), err)
	}
	return nil
}
