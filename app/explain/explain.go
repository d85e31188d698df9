// Package explain shows the result of each stage of reading a request (text, tokens, image names, block hashes), and what a
// running Sightline decides. It uses the same code as serve's decisions, but waits ten seconds for images; a request that cannot be read
// yields an error in the output.
//
//	explain.go  options, requests read, for people   model.go  the model that they name   request.go  the stages
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
	"strings"
	"time"

	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/prompt"
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

// show prints an explained request, for people or as one line of JSON.
func (o *Options) show(w io.Writer, e explained) {
	if o.JSONL {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(e)
		return
	}
	fmt.Fprintf(w, "── %s\n", cmp.Or(e.ID, "request"))
	if e.memory && e.Error != "" {
		fmt.Fprintf(w, "exact     no, all of it is learned: %s\n\n", e.Error)
		return
	}
	if e.Error != "" {
		fmt.Fprintf(w, "error     %s\n\n", e.Error)
		return
	}
	fmt.Fprintf(w, "family    %s\n", cmp.Or(e.Family, "none"))
	fmt.Fprintf(w, "text      %s\n", strings.ReplaceAll(e.Rendered, "\n", "\n          "))
	fmt.Fprintf(w, "tokens    %d: %s\n", len(e.TokenIDs), runs(e.TokenIDs))
	for _, it := range e.MM {
		fmt.Fprintf(w, "%-9s tokens %d to %d, %d×%d, content %.16s…, the engine's name %s\n", it.Modality,
			it.Offset, it.Offset+it.Length-1, it.Width, it.Height, it.ContentID, it.Name)
	}
	for i := range e.LocalHashes {
		fmt.Fprintf(w, "block %-3d local %s  chained %s\n", i, e.LocalHashes[i], e.BlockHashes[i])
	}
	switch {
	case e.Exact:
		fmt.Fprintf(w, "exact     yes\n\n")
	case e.Why == prompt.Uncompared:
		fmt.Fprintf(w, "exact     no, predicted: %s\n\n", e.Why)
	default:
		fmt.Fprintf(w, "exact     the first %d tokens; what follows is learned: %s\n\n", len(e.TokenIDs), e.Why)
	}
}

// runs writes token ids with repeats shortened: 151644 8948 151655×1196.
func runs(ids []uint32) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i
		for j < len(ids) && ids[j] == ids[i] {
			j++
		}
		if j-i > 3 {
			fmt.Fprintf(&b, "%d×%d ", ids[i], j-i)
		} else {
			j = i + 1
			fmt.Fprintf(&b, "%d ", ids[i])
		}
		i = j
	}
	return strings.TrimSpace(b.String())
}
