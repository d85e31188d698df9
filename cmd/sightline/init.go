package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/generate"
	"github.com/sightline-router/sightline/internal/secure"
)

type initCmd struct {
	Worker     []string `placeholder:"HOST:PORT" help:"A running worker; with --dynamo, a front end. Repeatable."`
	Kubernetes []string `sep:"none" placeholder:"SELECTOR[:PORT]" help:"Or: EndpointSlices by label, and the port's name. Repeatable."`
	Dynamo     string   `type:"existingdir" placeholder:"DIR" help:"Or: an NVIDIA Dynamo deployment's DYN_FILE_KV ($NATS_SERVER)."`
	Namespace  string   `kong:"-"` // Kubernetes', or Dynamo's; "": the only one
	ModelDir   []string `sep:"none" placeholder:"[NAME=]DIR" help:"A model's files, without weights; default: found, or fetched."`
	APIKeyFile string   `type:"existingfile" placeholder:"FILE" help:"The workers' --api-key."`
	CA         string   `name:"ca" type:"existingfile" placeholder:"FILE" help:"PEM file of the workers' authority."`
	Out        string   `default:"." placeholder:"DIR" help:"Where to write sightline.yaml and envoy.yaml."`
	FilesOnly  string   `type:"existingfile" placeholder:"FILE" help:"Only fetch what this configuration's models lack ($HF_ENDPOINT)."`
}

// Help is the text of `sightline init --help` besides the flags.
func (c *initCmd) Help() string {
	return "Workers are asked, and compute two tokens each. What should be switched on there is listed. What is missing is asked for " +
		"on a terminal. Outside of a pod, " +
		"--kubernetes goes through kubectl proxy at its port, 8001."
}

// AfterApply takes the flag that other commands have too.
func (c *initCmd) AfterApply(ctx *kong.Context) error { c.Namespace = of(ctx).Namespace; return nil }

func (c *initCmd) Run(ctx context.Context) error {
	switch {
	case c.FilesOnly != "":
		return c.files(ctx)
	case len(c.Kubernetes) == 0 && c.Namespace != "" && c.Dynamo == "":
		return errors.New("--namespace: it belongs to --kubernetes or --dynamo, and neither is given")
	case c.Dynamo != "" && len(c.Kubernetes) > 0:
		return errors.New("--dynamo does not go with --kubernetes (its workers answer no HTTP of their own)")
	}
	o := generate.Options{Workers: c.Worker, Dynamo: c.Dynamo, Scope: c.Namespace, ModelDir: c.ModelDir, Out: c.Out,
		Canary: true, Access: secure.Peer{CA: c.CA, APIKeyFile: c.APIKeyFile}}
	for _, at := range c.Kubernetes {
		selector, port, _ := strings.Cut(at, ":")
		o.Groups = append(o.Groups, generate.Pods{Namespace: c.Namespace, Selector: selector, Port: port})
	}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		lines := bufio.NewReader(os.Stdin)
		o.Question = func(question string) string { return answered(ctx, lines, question) }
	}
	return generate.Run(ctx, o, os.Stdout)
}

// answered asks on the terminal, and returns what is typed until ctx ends.
func answered(ctx context.Context, lines *bufio.Reader, question string) string {
	fmt.Print(question)
	typed := make(chan string, 1)
	go func() { line, _ := lines.ReadString('\n'); typed <- strings.TrimSpace(line) }()
	select {
	case line := <-typed:
		return line
	case <-ctx.Done():
		return ""
	}
}

func (c *initCmd) files(ctx context.Context) error {
	if len(c.Worker)+len(c.Kubernetes)+len(c.ModelDir) > 0 || c.Dynamo != "" {
		return errors.New("--files-only: no other flag goes with it (the configuration says what is needed)")
	}
	cfg, err := config.Load(c.FilesOnly)
	if err != nil {
		return err
	}
	if err := generate.Missing(ctx, &cfg, os.Getenv, os.Stdout); err != nil {
		fmt.Printf("%v\nRequests of these models are learned.\n", err)
	}
	return nil
}
