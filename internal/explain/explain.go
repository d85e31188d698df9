// Package explain shows what each stage makes of a request (text, tokens, image names, block hashes), and what an index holds
// of a worker. It reads a request by the very code that serve decides with, but waits ten seconds for images; what cannot be
// read is told as the request's error.
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
	"io"
	"os"
	"slices"
	"time"
)

// patience is how long an image is waited for; the router has its own, much smaller budget.
const patience = 10 * time.Second

// Options say which model reads which requests. With ModelDir a request is explained as given, a client's uuids for images
// included; with Config they are left out, as in what Sightline forwards.
type Options struct {
	File string // one request a line; "-": standard input

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
	JSONL         bool      // one JSON object a line

	Class  string // one of the model's classes
	Index  string // instead of requests: what is held by a worker, by an admin address or a snapshot's file
	Worker string
	Rank   int

	Admin string // a running Sightline's admin address: where it would send the requests, or
	ID    string // what it knew and what became of a past decision
	Token string // its admin_token
}

// Run writes to standard output what each stage makes of the requests, or what an index holds.
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
	err = eachRequest(in, func(request []byte) {
		if failed == nil {
			failed = explain(request)
			out.Flush()
		}
	})
	return cmp.Or(failed, err)
}

// explainer explains one request: by a model's files, or as a running Sightline would route it.
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

// eachRequest gives the requests of a file: one a line, or one that is written over several lines.
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
