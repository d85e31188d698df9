// Package explain shows the result of each stage of reading a request (text, tokens, image names, block hashes), and what an index
// holds of a worker. It uses the same code as serve's decisions, but waits ten seconds for images; a request that cannot be read
// yields an error in the output.
//
//	explain.go  options, requests read   model.go  the model that they name   request.go  the stages   print.go  for people
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

// Options say which model reads which requests. With ModelDir a request is explained as given, including a client's uuids for
// images; with Config they are removed, as in what Sightline forwards.
type Options struct {
	File string // one request per line; "-": standard input

	ModelDir      string // a model directory, or
	Config        string // Sightline's configuration, with Model
	Model         string // a name of the configuration; empty: its only one
	Engine        string
	EngineVersion string
	EngineModel   string // the engine's own --model argument
	BlockSize     int
	MediaAllow    []string  // private networks that image URLs may point to
	Set           []string  // key=value for any other key of a model
	Now           time.Time // the date that templates print; zero: now
	JSONL         bool      // one JSON object per line

	Class  string // one of the model's classes
	Index  string // instead of requests: print what a worker holds, by an admin address or a snapshot file
	Worker string
	Rank   int

	Admin string // a running Sightline's admin address: where it would send the requests, or
	ID    string // a past decision and its outcome
	Token string // its admin_token
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
		if in, err = os.Open(o.File); err != nil {
			return err
		}
		defer in.Close()
	}
	var failed error
	n := 0
	err = eachRequest(in, func(request []byte) {
		if n++; failed == nil {
			failed = explain(request)
			out.Flush()
		}
	})
	if n == 0 && err == nil {
		failed = fmt.Errorf("no request in %s (want the body that a client would send, or --id of a decision)", map[bool]string{true: "standard input", false: o.File}[o.File == "-"])
	}
	return cmp.Or(failed, err)
}

// explainer returns a function that explains one request: by a model's files, or as a running Sightline would route it.
func (o *Options) explainer(ctx context.Context, out io.Writer) (func(request []byte) error, error) {
	if o.Admin != "" {
		return func(request []byte) error { return o.showRoute(ctx, out, request) }, nil
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
		if line = bytes.TrimSpace(line); len(line) > 0 {
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
