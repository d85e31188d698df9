// Package explain shows the result of each stage of reading a request (text, tokens, image names, block hashes), and what a
// running Sightline decides. It uses the same code as serve's decisions, but waits ten seconds for images; a request that cannot be read
// yields an error in the output.
//
//	explain.go  options, requests read   model.go  the model that they name   request.go  the stages   print.go  for people
//	against.go  explain --against: a request beside what a worker makes of it
//	live.go     explain --admin: where a running Sightline sends a request, and why
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

	"github.com/sightline-router/sightline/internal/printable"
)

// patience is how long to wait for an image. The router's own budget is much smaller.
const patience = 10 * time.Second

// Options are the arguments and flags of `sightline explain`. With ModelDir a request is explained as given, a client's uuids for
// images included; with Config they are left out, as in what Sightline forwards.
type Options struct {
	File string `arg:"" optional:"" default:"-" help:"Requests, one a line, or - for standard input: the body, or {\"id\", \"endpoint\", \"headers\", \"request\"}."`

	Config   string   `kong:"-"` // Sightline's configuration
	Model    string   `kong:"-"` // name of one of its models; "": the only one
	Class    string   `placeholder:"NAME" help:"One of the model's classes; default: the model's own keys."`
	ModelDir string   `type:"existingdir" placeholder:"DIR" help:"Instead of -c: a model's directory, without weights."`
	Set      []string `sep:"none" placeholder:"KEY=VALUE" help:"A key of the model, such as engine=sglang. Repeatable."`
	Against  string   `placeholder:"URL" help:"Compare what is read with what this worker makes of it: the first difference, and where to look."`

	Admin string `kong:"-"` // a running Sightline's admin page: where requests would go, and why; "": they are read here
	Token string `kong:"-"` // the page's admin_token; "": that in the environment
	ID    string `placeholder:"ID" help:"A past decision of a running Sightline, and its outcome."`
	JSONL bool   `kong:"-"` // print one JSON object a line
}

// Run writes the stages' results for the requests to standard output.
func Run(ctx context.Context, o Options) error {
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	defer out.Flush()
	to := io.Writer(out)
	if !o.JSONL {
		to = printable.Writer(out)
	}
	if o.ID != "" {
		return o.showDecision(ctx, to)
	}
	explain, err := o.explainer(ctx, to)
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
