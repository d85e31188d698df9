package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/inspect"
)

// deployment is an NVIDIA Dynamo deployment: workers without HTTP, known by their model cards, behind front ends each of which
// serves all of them.
type deployment struct {
	*dynamo.Endpoint
	root      string
	prefill   string // the component whose workers prefill; "": none
	nats      yaml.MapSlice
	login     bool // NATS requires a name and a password, which configurations take from a file
	frontends []string
}

// deployed finds out what the discovery folder holds, and whether the front ends serve it.
func (d *drafter) deployed(ctx context.Context) (*worker, error) {
	root, err := filepath.Abs(d.Dynamo)
	if err != nil {
		return nil, err
	}
	b := &deployment{root: root, frontends: d.Workers}
	list, err := dynamo.Endpoints(root, time.Now())
	if err != nil {
		return nil, err
	}
	names := []string{}
	list = slices.DeleteFunc(list, func(e *dynamo.Endpoint) bool { return e.Workers == 0 || d.Scope != "" && e.Namespace != d.Scope })
	for _, e := range list {
		if !e.Prefill {
			b.Endpoint, names = e, append(names, e.String())
		}
	}
	if len(names) != 1 {
		return nil,
			fmt.Errorf("--dynamo %s: live workers of %d endpoints that answer, %s (want 1: another DYN_FILE_KV, or --namespace; "+
				"records older than 30 s are dead)",
				d.Dynamo, len(names), strings.Join(names, ", "))
	}
	for _, e := range list {
		if e.Prefill && e.Namespace == b.Namespace && e.Scope.Endpoint == b.Scope.Endpoint {
			b.prefill = e.Component
		}
	}
	switch getenv := d.Getenv; {
	case len(b.Cards) > 1:
		return nil, fmt.Errorf("the workers of %s are not all started alike (want one model, block size and length): %+v", b, b.Cards)
	case b.Plane == "nats" && getenv("NATS_SERVER") == "":
		return nil,
			errors.New("its KV events go over NATS (give the server as its processes have it: NATS_SERVER=nats://HOST:4222 sightline init …)")
	case b.Plane == "nats":
		b.nats = yaml.MapSlice{{Key: "url", Value: getenv("NATS_SERVER")}}
		if file := getenv("NATS_AUTH_CREDENTIALS_FILE"); file != "" {
			b.nats = append(b.nats, yaml.MapItem{Key: "auth", Value: file})
		}
		b.login = getenv("NATS_AUTH_USERNAME") != "" || getenv("NATS_AUTH_TOKEN") != "" || getenv("NATS_AUTH_NKEY") != ""
	case b.Plane != "zmq":
		return nil, fmt.Errorf("%s publishes no KV events over ZeroMQ or NATS, but %q (want DYN_EVENT_PLANE=zmq or nats)", b, b.Plane)
	case len(b.frontends) == 0:
		return nil,
			errors.New("no front end is named (give --worker ip:port of each `dynamo.frontend --router-mode direct`)")
	}
	c := b.Cards[0]
	for _, addr := range b.frontends {
		f, err := inspect.Ask(ctx, d.client, addr)
		switch {
		case err != nil:
			hint, _ := flagFor(err)
			return nil, fmt.Errorf("front end %s: %w (%s)", addr, err, hint)
		case !f.FrontEnd:
			return nil, fmt.Errorf("front end %s: owned_by of its /v1/models is %q (want a front end of NVIDIA Dynamo)", addr, f.Owner)
		case !slices.ContainsFunc(f.Served, func(s rules.Served) bool { return s.ID == c.Model }):
			return nil, fmt.Errorf("front end %s: it does not serve %q, which the workers of %s do", addr, c.Model, b)
		}
	}
	w := &worker{behind: b, Facts: rules.Facts{Addr: b.String(), Engine: engine.DefaultServer().Engine, EngineModel: c.Path,
		BlockSize: c.BlockSize, MaxModelLen: c.MaxModelLen,
		Served: []rules.Served{{ID: c.Model}}}}
	for _, a := range strings.FieldsFunc(c.Aliases, func(r rune) bool { return r == '\n' }) {
		w.Served = append(w.Served, rules.Served{ID: a})
	}
	for _, a := range b.Adapters {
		w.Served = append(w.Served, rules.Served{ID: a, Parent: c.Model})
	}
	return w, nil
}

func (b *deployment) found(say io.Writer) {
	c := b.Cards[0]
	fmt.Fprintf(say, "%s: %d workers of NVIDIA Dynamo, serve %s, blocks of %d tokens, KV events over %s, behind %s\n",
		b, b.Workers, c.Model, c.BlockSize, b.Plane, strings.Join(b.frontends, ", "))
	if b.prefill != "" {
		fmt.Fprintf(say, "%s/%s: prefills for it\n", b.Namespace, b.prefill)
	}
}

// advise prints what neither the folder nor the front ends report.
func (b *deployment) advise(do, unknown func(format string, args ...any)) {
	do("its front ends must run with --router-mode direct: others choose a worker by themselves")
	if b.login {
		do("NATS requires credentials: auth in dynamo.nats, a file with user:password, the token or the nkey")
	}
	unknown("engine, engine_version: model cards do not say (written: vLLM's). With TensorRT-LLM also block_hash: dynamo_suffix")
}

// write writes the configuration's section.
func (b *deployment) write(f *file) {
	or, answers := config.Default().Dynamo, b.Component
	if b.Scope.Endpoint != "generate" {
		answers += "/" + b.Scope.Endpoint
	}
	f.WriteString("dynamo:\n")
	f.line("  ", "discovery", b.root, "its DYN_FILE_KV")
	if len(b.nats) > 0 {
		f.line("  ", "nats", b.nats, "its NATS_SERVER")
	}
	for _, k := range []struct{ name, value, or string }{{"namespace", b.Namespace, or.Namespace}, {"component", answers, or.Component},
		{"prefill_component", b.prefill, ""}} {
		if k.value != k.or && (k.name != "prefill_component" || k.value != or.PrefillComponent) {
			f.line("  ", k.name, k.value, "")
		}
	}
	f.line("  ", "frontends", b.frontends, "in direct mode")
}
