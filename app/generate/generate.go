// Package generate makes a first configuration from what running workers report: `sightline init` writes it, `sightline serve --worker`
// serves it as it is.
//
//	addresses ─ inspect ─▶ facts ─ group.go ─▶ models, with a class for each way in which their workers were started
//	                              dynamo.go ─▶ or the one model of an NVIDIA Dynamo deployment, of its discovery folder and front ends
//	                               files.go ─▶ each model's directory: given, the workers' own, a cache's, or fetched from a hub
//	                               write.go ─▶ sightline.yaml, checked as `sightline serve --check` does, and envoy.yaml
//	                              advice.go ─▶ what was found, and what should be enabled at the workers
//	                              given.go ─▶ instead of files: what `serve` needs to ask the workers itself
//
// It overwrites nothing without Force, and writes nothing that does not pass the check.
package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/inspect"
)

// Options say which workers to ask and where to write.
type Options struct {
	Workers  []string            // host:port of each; with Dynamo, of its front ends
	Groups   []Pods              // of pods
	Dynamo   string              // the discovery folder of an NVIDIA Dynamo deployment
	Scope    string              // its namespace, if the folder has several
	ModelDir []string            // DIR, or NAME=DIR for several models
	Out      string              // the directory to write into
	Canary   bool                // make each worker compute two tokens, to see whether it counts cached ones
	Getenv   func(string) string // nil: os.Getenv
	Access   secure.Peer         // how workers are asked: a key, TLS; written as worker_access
	// Question asks the person at a terminal, "" if nothing is answered. nil: there is none, and what cannot be found is an error.
	Question func(string) string
	// Listen and Admin are written as the keys of these names; "": the defaults. For a configuration without a file.
	Listen, Admin string
}

// Pods are those behind the EndpointSlices that a label selector selects. Empty fields mean the values of the pod that this runs
// in.
type Pods struct{ API, Namespace, Selector, Port string }

// askTime bounds one request to a worker, answerTime the canary's.
const (
	askTime    = 5 * time.Second
	answerTime = 60 * time.Second
	maxWorkers = 1024
)

// drafter is one run.
type drafter struct {
	Options
	out    io.Writer
	as     *secure.Client // of Access
	client *http.Client
	models []*model
	// fileless: the configuration is no file, and names no files of models. See Given.
	fileless bool
}

func newDrafter(o Options, say io.Writer) (*drafter, error) {
	d := &drafter{Options: o, out: printable.Writer(say)}
	return d, d.open()
}

// open prepares the requests to workers, by Access.
func (d *drafter) open() (err error) {
	err = d.absolute()
	if err == nil {
		d.as, err = d.Access.Open(zap.NewNop())
	}
	d.client = rules.NewClient(askTime, d.as)
	return err
}

// Run asks the workers, writes sightline.yaml and envoy.yaml into Out, and prints what it found to say.
func Run(ctx context.Context, o Options, say io.Writer) error {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	d, err := newDrafter(o, say)
	if err != nil {
		return err
	}
	for err := d.free(); err != nil; err = d.free() {
		if !d.another(&d.Out, "Another directory to write into: ", err) {
			return err
		}
	}
	workers, err := d.found(ctx)
	if err != nil {
		return err
	}
	d.models, err = modelsOf(workers)
	if err != nil {
		return err
	}
	d.printFound(all)
	if err := os.MkdirAll(d.Out, 0o755); err != nil {
		return err
	}
	for _, m := range d.models {
		err := d.files(ctx, m)
		if err != nil && d.Question != nil && len(d.ModelDir) == 0 {
			fmt.Fprintf(d.out, "%s: %v\n", m.name, err)
			if dir := d.Question("A directory with its files, without weights (or nothing: its requests are learned): "); dir != "" {
				d.ModelDir = []string{m.name + "=" + dir}
				err = d.files(ctx, m)
				d.ModelDir = nil
			}
		}
		switch {
		case err == nil:
			fmt.Fprintf(d.out, "%s: files in %s, %s\n", m.name, m.dir, m.dirFrom)
		case len(d.ModelDir) == 0:
			m.dir = ""
			fmt.Fprintf(d.out, "%s: its requests are learned: %v\n", m.name, err)
		default:
			return fmt.Errorf("model %s: %w", m.name, err)
		}
	}
	if err := d.write(); err != nil {
		return err
	}
	d.advise(all)
	config, envoy := filepath.Join(d.Out, configFile), filepath.Join(d.Out, envoyFile)
	fmt.Fprintf(d.out, "Written and checked: %s, %s. Next:\n  sightline serve -c %[1]s\n  envoy -c %[2]s\n", config, envoy)
	return nil
}

// another asks on a terminal for another value of a field because of an error. It reports whether there is one.
func (d *drafter) another(field *string, question string, because error) bool {
	if d.Question == nil {
		return false
	}
	fmt.Fprintln(d.out, because)
	answer := d.Question(question)
	if answer != "" {
		*field = answer
	}
	return answer != ""
}

// free returns an error if something is there already that would be written.
func (d *drafter) free() error {
	for _, name := range []string{configFile, envoyFile} {
		if _, err := os.Lstat(filepath.Join(d.Out, name)); err == nil {
			return fmt.Errorf("%s is there already (move it away, or give another --out)", filepath.Join(d.Out, name))
		}
	}
	return nil
}

// found asks the workers what they are; on a terminal for what is missing for that: where they are, a key, an authority.
func (d *drafter) found(ctx context.Context) ([]*worker, error) {
	given := strings.Join(d.Workers, " ")
	field, question := &given, "Running workers, host:port each: "
	found := len(d.Groups) > 0 || d.Dynamo != "" // by other means: another address is no answer
	for {
		var list []*worker
		err := d.open()
		if err == nil {
			list, err = d.ask(ctx)
		} else if field == &d.Access.APIKeyFile { // it would repeat what was typed, which may be the key
			err = errors.New("that is no file with a key on this machine")
		}
		if err == nil {
			return list, nil
		}
		switch rules.FaultOf(err) {
		case rules.Key:
			field, question = &d.Access.APIKeyFile, "A file with the workers' --api-key: "
		case rules.TLS:
			field, question = &d.Access.CA, "A PEM file of the workers' authority: "
		}
		if ctx.Err() != nil || found && field == &given || !d.another(field, question, err) {
			return nil, err
		}
		d.Workers = strings.Fields(given)
	}
}

// absolute makes the paths of Access absolute, because the configuration is written elsewhere.
func (o *Options) absolute() (err error) {
	for _, file := range []*string{&o.Access.APIKeyFile, &o.Access.CA} {
		if *file != "" && err == nil {
			*file, err = filepath.Abs(*file)
		}
	}
	return err
}

// worker is a worker that answered.
type worker struct {
	rules.Facts
	group  *Pods       // nil: given by its address
	behind *deployment // of Dynamo: stands for all its workers
}

// ask finds out what each worker is. If one cannot be asked, that is an error, because a configuration without it would be incomplete.
func (d *drafter) ask(ctx context.Context) (list []*worker, err error) {
	if d.Dynamo != "" {
		w, err := d.deployed(ctx)
		return []*worker{w}, err
	}
	list, err = d.listed()
	if err != nil {
		return nil, err
	}
	for i := range d.Groups {
		g := &d.Groups[i]
		pods, err := g.pods(ctx)
		if err != nil {
			return nil, fmt.Errorf("--kubernetes %s: %w", g.Selector, err)
		}
		for _, p := range pods {
			if !p.Ready {
				continue
			}
			list = append(list, &worker{Facts: rules.Facts{Addr: p.Addr.String()}, group: g})
		}
	}
	if len(list) == 0 || len(list) > maxWorkers {
		return nil, fmt.Errorf("%d workers (want --worker host:port or --kubernetes SELECTOR for 1 to %d)", len(list), maxWorkers)
	}
	return list, d.askAll(ctx, list)
}

// listed returns the workers that are given by address.
func (d *drafter) listed() (list []*worker, err error) {
	known := map[string]bool{}
	for _, addr := range d.Workers {
		if strings.Contains(addr, "://") {
			return nil, fmt.Errorf("--worker %s: a URL (want host:port, such as 10.0.0.5:8000; for https also --ca FILE)", addr)
		}
		ip, name, port, err := config.SplitAddr(addr)
		if err != nil {
			return nil, fmt.Errorf("--worker %s: no address of a worker (want host:port, such as 10.0.0.5:8000)", addr)
		}
		if name != "" && d.fileless {
			return nil, fmt.Errorf("--worker %s: a name, whose addresses may change (want ip:port, such as 127.0.0.1:8000, or a "+
				"configuration: workers[].addr, with envoy.worker_networks)", addr)
		}
		at := fmt.Sprint(ip, strings.ToLower(name), port)
		if known[at] {
			return nil, fmt.Errorf("--worker %s is given twice", addr)
		}
		known[at] = true
		list = append(list, &worker{Facts: rules.Facts{Addr: addr}})
	}
	return list, nil
}

// askAll asks these workers.
func (d *drafter) askAll(ctx context.Context, list []*worker) error {
	failed := make([]error, len(list))
	inspect.Each(list, func(i int, w *worker) { failed[i] = d.one(ctx, w) })
	return errors.Join(failed...)
}

func (d *drafter) one(ctx context.Context, w *worker) (err error) {
	w.Facts, err = inspect.Ask(ctx, d.client, w.Addr)
	err = usable(&w.Facts, err)
	if err == nil && d.Canary {
		if err := inspect.Canary(ctx, rules.NewClient(answerTime, d.as), &w.Facts); err != nil {
			w.Lacks("counts_cached", err)
		}
	}
	return err
}

// usable returns why a worker that was asked cannot be used, and what to do.
func usable(f *rules.Facts, err error) error {
	if err != nil {
		hint, lasting := flagFor(err)
		err = fmt.Errorf("worker %s could not be identified: %w (%s)", f.Addr, err, hint)
		if lasting {
			err = inspect.Unusable(err)
		}
		return err
	}
	err = inspect.Usable(f, false)
	if err != nil {
		err = fmt.Errorf("worker %s: %w", f.Addr, err)
	}
	return err
}

// flagFor returns what to do about a server that could not be asked, and whether nothing else helps.
func flagFor(err error) (hint string, lasting bool) {
	switch rules.FaultOf(err) {
	case rules.TLS:
		return "here: --ca FILE", true
	case rules.Key:
		return "here: --api-key-file FILE, which holds what it was started with as --api-key", true
	}
	return "is it up, and is that the port of its OpenAI-style API?", false
}

// kubectlProxy is where `kubectl proxy` listens by default.
const kubectlProxy = "http://127.0.0.1:8001"

// pods lists them.
func (g *Pods) pods(ctx context.Context) ([]discover.Endpoint, error) {
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" && g.API == "" { // outside of a pod
		g.API = kubectlProxy
	}
	cluster, err := discover.Cluster{API: g.API, Namespace: g.Namespace}.Complete()
	if err != nil {
		return nil, fmt.Errorf("%w (give --namespace, and run `kubectl proxy`)", err)
	}
	k := discover.Kubernetes{Cluster: cluster, Selector: g.Selector, Port: g.Port, Log: zap.NewNop()}
	return k.List(ctx)
}
