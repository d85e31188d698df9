// Package explain shows the result of each stage of reading a request (text, tokens, image names, block hashes), and what an index
// holds of a worker. It uses the same code as serve's decisions, but waits ten seconds for images; a request that cannot be read
// yields an error in the output.
//
//	explain.go  options, requests read   model.go  the model that they name   request.go  the stages   print.go  for people
//	against.go  explain --against: a request beside what a worker makes of it
//	index.go    explain --index                  live.go   explain --admin: where a running Sightline sends a request, and why
package explain

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// patience is how long to wait for an image. The router's own budget is much smaller.
const patience = 10 * time.Second

// Options are the arguments and flags of `sightline explain`. With ModelDir a request is explained as given, a client's uuids for
// images included; with Config they are left out, as in what Sightline forwards.
type Options struct {
	File string `arg:"" optional:"" default:"-" help:"File with one request per line, or - for standard input: the body, or {\"id\", \"endpoint\", \"headers\", \"request\"}."`

	ModelDir      string    `type:"existingdir" xor:"from" help:"Model directory (without weights)."`
	Config        string    `short:"c" type:"existingfile" xor:"from" help:"Sightline's configuration; with --model."`
	Model         string    `help:"Name of one of the configuration's models; default: its only one."`
	Engine        string    `enum:"vllm,sglang,trtllm," default:"" help:"vllm, sglang or trtllm."`
	EngineVersion string    `help:"The engine's release, such as 0.32.0."`
	EngineModel   string    `help:"The engine's own --model argument, part of vLLM's image names."`
	BlockSize     int       `help:"Tokens per KV block."`
	MediaAllow    []string  `sep:"none" help:"Private network that image URLs may point to, as CIDR; all are refused otherwise. Repeatable."`
	Set           []string  `sep:"none" help:"key=value for any other key of a model's configuration. Repeatable."`
	Now           time.Time `help:"Date that templates print, such as 2026-11-21T00:00:00Z; default: now."`
	JSONL         bool      `name:"jsonl" aliases:"json" help:"Print one JSON object per line."`

	Class  string `help:"One of the model's classes in the configuration; default: the model's own keys."`
	Index  string `xor:"from" help:"Instead of requests, print the blocks that a worker holds: a running Sightline's admin address such as http://127.0.0.1:9903, or a file with the output of its /index."`
	Worker string `help:"With --index: the worker's name."`
	Rank   int    `help:"With --index: the worker's data-parallel rank."`

	Admin   string `xor:"from" placeholder:"URL" help:"Ask a running Sightline where it would send the requests, and why: its admin address, such as http://127.0.0.1:9903."`
	Against string `placeholder:"URL" help:"Compare, with --config or --model-dir, what is read here with what a worker makes of the request: its own address, such as http://10.0.0.5:8000. Prints the first difference, and where to look."`
	ID      string `help:"With --admin: show a past decision by its id, and its outcome."`
	Token   string `env:"SIGHTLINE_ADMIN_TOKEN" help:"With --admin or --index: the running Sightline's admin_token."`
}

// Run writes the stages' results for the requests, or the contents of an index, to standard output.
func Run(ctx context.Context, o Options) error {
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	defer out.Flush()
	if o.Index != "" {
		return o.showIndex(ctx, out)
	}
	if o.ID != "" {
		return o.showDecision(ctx, out)
	}
	explain, err := o.explainer(ctx, out)
	if err != nil {
		return err
	}
	in := os.Stdin
	if o.File != "-" {
		in, err = os.Open(o.File)
		if err != nil {
			return err
		}
		defer in.Close()
	}
	var failed error
	n := 0
	err = eachRequest(in, func(request []byte) {
		n++
		if failed == nil {
			failed = explain(request)
			out.Flush()
		}
	})
	if n == 0 && err == nil {
		failed = fmt.Errorf("no request in %s (want the body that a client would send, or --id of a decision)",
			map[bool]string{true: "standard input", false: o.File}[o.File == "-"])
	}
	return cmp.Or(failed, err)
}

// explainer returns a function that explains one request: by a model's files, or as a running Sightline would route it.
func (o *Options) explainer(ctx context.Context, out io.Writer) (func(request []byte) error, error) {
	if o.Admin != "" {
		return func(request []byte) error { return o.showRoute(ctx, out, request) }, nil
	}
	if o.Against != "" {
		compare, err := o.against(out)
		return func(request []byte) error { return compare(ctx, request) }, err
	}
	m, err := o.model()
	return func(request []byte) error {
		o.show(out, m.explain(ctx, request))
		return nil
	}, err
}

// eachRequest calls do for each request of a file: one per line, or a single one that spans several lines.
func eachRequest(in io.Reader, do func(request []byte)) error {
	lines := bufio.NewReaderSize(in, 1<<20)
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if first && err == nil && !json.Valid(line) {
			rest, e := io.ReadAll(lines)
			if whole := slices.Concat(line, rest); e == nil && json.Valid(whole) {
				line, err = whole, io.EOF
			} else {
				lines = bufio.NewReader(bytes.NewReader(rest))
			}
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 {
			do(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
