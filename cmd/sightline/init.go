package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/generate"
	"github.com/sightline-router/sightline/internal/secure"
)

type initCmd struct {
	Worker     []string `placeholder:"HOST:PORT" help:"Address of a running worker; with --dynamo, of a front end. Repeatable."`
	Kubernetes []string `sep:"none" placeholder:"SELECTOR" help:"Or: a label selector of EndpointSlices, such as kubernetes.io/service-name=vllm. Repeatable."`
	Dynamo     string   `type:"existingdir" placeholder:"DIR" help:"Or: the discovery folder of an NVIDIA Dynamo deployment, its DYN_FILE_KV. $NATS_SERVER is its NATS, where events go over that."`
	Namespace  string   `help:"With --kubernetes: their namespace; default: the pod's own. With --dynamo: its namespace, where there are several."`
	KubePort   string   `help:"With --kubernetes: the port to dial, its name or number; default: the only one."`
	KubeAPI    string   `name:"kube-api" help:"With --kubernetes, outside of a pod: the API server, such as http://127.0.0.1:8001 of kubectl proxy."`
	ModelDir   []string `sep:"none" placeholder:"[NAME=]DIR" help:"Directory of a model's files without the weights. Default: the workers' own path, Hugging Face's cache, or the hub of $HF_ENDPOINT."`
	Out        string   `default:"." help:"Where to write sightline.yaml and envoy.yaml."`
	Force      bool     `help:"Overwrite what is there."`
	APIKeyFile string   `type:"existingfile" placeholder:"FILE" help:"File with the key that workers started with --api-key want."`
	CA         string   `name:"ca" type:"existingfile" placeholder:"FILE" help:"PEM file of the authority of the workers' certificates."`
	FilesOnly  string   `type:"existingfile" placeholder:"FILE" help:"Instead: fetch the files that this configuration's models lack into their dir, from the hub of $HF_ENDPOINT. No worker is asked."`
	Optional   bool     `help:"Go on though the files of some models could not be had. Requests of such a model are learned."`
	Canary     bool     `help:"Have each worker compute two tokens, to see whether its answers report cached tokens."`
}

// Help is the text of `sightline init --help` besides the flags.
func (c *initCmd) Help() string {
	return "Queries running workers, finds their models' files, writes sightline.yaml and envoy.yaml, checks them, and " +
		"lists what should be switched on at the workers."
}

func (c *initCmd) Run(ctx context.Context) error {
	switch {
	case c.FilesOnly != "":
		return c.files(ctx)
	case len(c.Kubernetes) == 0 && (c.KubePort+c.KubeAPI != "" || c.Namespace != "" && c.Dynamo == ""):
		return errors.New("--namespace, --kube-port and --kube-api belong to --kubernetes, which is not given")
	case c.Dynamo != "" && (len(c.Kubernetes) > 0 || c.Canary):
		return errors.New("--dynamo goes with none of --kubernetes and --canary (its workers answer no HTTP of their own)")
	}
	o := generate.Options{Workers: c.Worker, Dynamo: c.Dynamo, Scope: c.Namespace, ModelDir: c.ModelDir, Out: c.Out, Force: c.Force,
		Canary: c.Canary, Optional: c.Optional, Access: secure.Peer{CA: c.CA, APIKeyFile: c.APIKeyFile}}
	for _, selector := range c.Kubernetes {
		o.Groups = append(o.Groups, generate.Group{API: c.KubeAPI, Namespace: c.Namespace, Selector: selector, Port: c.KubePort})
	}
	return generate.Run(ctx, o, os.Stdout)
}

func (c *initCmd) files(ctx context.Context) error {
	if len(c.Worker)+len(c.Kubernetes)+len(c.ModelDir) > 0 || c.Dynamo != "" || c.Canary {
		return errors.New("--files-only goes with --optional alone")
	}
	cfg, err := config.Load(c.FilesOnly)
	if err != nil {
		return err
	}
	err = generate.Missing(ctx, &cfg, os.Getenv, os.Stdout)
	if err != nil && c.Optional {
		fmt.Printf("%v\nRequests of these models are learned.\n", err)
		return nil
	}
	return err
}
