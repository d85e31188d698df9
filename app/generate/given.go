package generate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/discover"
)

// Ask returns the configuration of the workers given by address, without any file of a model, and its text: what Run writes where none can
// be had. A worker that cannot be asked is an error.
func Ask(ctx context.Context, o Options, say io.Writer) (cfg config.Config, text []byte, err error) {
	d, list, err := fileless(o, say)
	if err == nil {
		err = d.askAll(ctx, list)
	}
	if err == nil {
		d.models, err = modelsOf(list)
	}
	if err == nil {
		text = d.yaml()
		cfg, err = config.Parse(text)
	}
	if err == nil {
		cfg.Envoy.TokenUsage = true // as in Given's
		d.advise(all)
	}
	return cfg, text, err
}

// Given returns the workers given by address for a server, which asks them itself, and its configuration without them. What is found at
// them, and what should be enabled, is printed to say.
func Given(o Options, say io.Writer) (cfg config.Config, g *serve.Asking, err error) {
	d, list, err := fileless(o, say)
	if err == nil {
		cfg, err = config.Parse(d.yaml())
	}
	if err != nil {
		return cfg, nil, err
	}
	addrs := []netip.AddrPort{}
	for _, w := range list {
		at, _, _, _ := config.SplitAddr(w.Addr) // checked by listed
		addrs = append(addrs, at)
	}
	g, cfg.Asked = serve.NewGiven(addrs), true
	g.Usable = func(_ discover.Endpoint, f *rules.Facts, err error) (says error, ok bool) {
		says = usable(f, err)
		return says, says == nil
	}
	g.Say = func(worker string, err error) {
		if worker != "" {
			err = fmt.Errorf("%w; left out, and asked again every %v", err, g.Again)
		}
		fmt.Fprintln(d.out, err)
	}
	known := map[string]rules.Facts{}
	g.Fit = func(facts []rules.Facts) ([]config.Model, []config.Worker, error) {
		models, workers, wrong := d.fit(facts)
		fresh := func(w *worker) bool { return !reflect.DeepEqual(known[w.Addr], w.Facts) }
		d.printFound(fresh)
		d.advise(fresh)
		if len(known) == 0 {
			fmt.Fprintf(d.out, "No file of a model is read: a request is routed by its blocks from its second sighting on, a shared beginning from "+
				"the third. For exact routing from the first: sightline init\nEnvoy's configuration: %s > envoy.yaml; what your own lacks: "+
				"the same with --for FILE\n", d.envoyCommand())
		}
		for _, f := range facts {
			known[f.Addr] = f
		}
		return models, workers, wrong
	}
	return cfg, g, nil
}

// Envoy returns what Envoy's configuration depends on in Ask's and Given's: it asks no worker.
func Envoy(o Options) (config.Config, error) {
	cfg, _, err := Given(o, io.Discard)
	for _, addr := range o.Workers {
		cfg.Workers = append(cfg.Workers, config.Worker{Addr: addr})
	}
	return cfg, err
}

func fileless(o Options, say io.Writer) (*drafter, []*worker, error) {
	d, err := newDrafter(o, say)
	if err != nil {
		return nil, nil, err
	}
	d.fileless = true
	list, err := d.listed()
	if err == nil && len(list) > maxWorkers {
		err = fmt.Errorf("%d workers (want 1 to %d)", len(list), maxWorkers)
	}
	return d, list, err
}

// envoyCommand returns the command that prints the Envoy configuration for the same flags.
func (d *drafter) envoyCommand() string {
	words := []string{"sightline envoy"}
	for _, addr := range d.Workers {
		words = append(words, "--worker "+addr)
	}
	if d.Listen != "" {
		words = append(words, "--listen "+d.Listen)
	}
	if d.Access.CA != "" {
		words = append(words, "--ca "+strconv.Quote(d.Access.CA))
	}
	return strings.Join(words, " ")
}

// Fit returns the models that workers serve, and the workers with the keys that Sightline would be configured with. A worker that
// contradicts those before it, such as one that serves names of two models, is left out, and the error says why. Models' files are those
// of Hugging Face's cache or at the workers' own path, if they are here; a model without files is read by what events teach.
func Fit(facts []rules.Facts) (models []config.Model, workers []config.Worker, wrong error) {
	return (&drafter{Options: Options{Getenv: os.Getenv}}).fit(facts)
}

func (d *drafter) fit(facts []rules.Facts) (models []config.Model, workers []config.Worker, wrong error) {
	list := make([]*worker, len(facts))
	for i, f := range facts {
		f.Engine = cmp.Or(f.Engine, engine.DefaultServer().Engine)
		list[i] = &worker{Facts: f}
	}
	mostNamed(list)
	cfg, wrong, err := d.configure(list)
	if err != nil { // one that makes no configuration alone, such as of an unheard-of release, costs the others nothing
		var alone []*worker
		for _, w := range list {
			if _, _, err := d.configure([]*worker{w}); err == nil {
				alone = append(alone, w)
			} else {
				wrong = fmt.Errorf("worker %s: what it says makes no configuration: %w", w.Addr, err)
			}
		}
		left := wrong
		cfg, wrong, err = d.configure(alone)
		wrong = cmp.Or(wrong, left)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("what the workers say makes no configuration: %w", err)
	}
	return cfg.Models, cfg.Workers, wrong
}

// configure returns the configuration of workers. wrong is about those that were left out of it.
func (d *drafter) configure(list []*worker) (cfg config.Config, wrong, err error) {
	d.models, wrong = modelsOf(list)
	if wrong != nil {
		d.models, wrong = groupMost(list)
	}
	wrong = cmp.Or(wrong, takenAdapters(d.models))
	for _, m := range d.models {
		if !d.fileless {
			d.local(m)
		}
	}
	cfg, err = config.Parse(d.yaml())
	return cfg, wrong, err
}

// mostNamed puts those workers first whose names most have. Of these, one that says something else than before comes last, so that it
// alone cannot rename the others or their class, and one with more names, which may list other workers' names too.
func mostNamed(list []*worker) {
	names := func(w *worker) string { return fmt.Sprintf("%q", w.names()) }
	count := map[string]int{}
	for _, w := range list {
		count[names(w)]++
	}
	slices.SortStableFunc(list, func(a, b *worker) int {
		switch more := count[names(b)] - count[names(a)]; {
		case more != 0 || a.Changed == b.Changed:
			return cmp.Or(more, len(a.names())-len(b.names()))
		case a.Changed:
			return 1
		}
		return -1
	})
}

// takenAdapters removes adapters that have a model's name, or that of an adapter of a model before.
func takenAdapters(models []*model) (wrong error) {
	taken := map[string]bool{}
	for _, m := range models {
		for _, name := range append([]string{m.name}, m.aliases...) {
			taken[name] = true
		}
	}
	for _, m := range models {
		m.adapters = slices.DeleteFunc(m.adapters, func(name string) bool {
			if taken[name] {
				wrong = fmt.Errorf("model %s: its adapter %q has the name of another model or of its adapter, and gets no requests (want "+
					"different names)", m.name, name)
			}
			return taken[name]
		})
		for _, name := range m.adapters {
			taken[name] = true
		}
	}
	return wrong
}

// groupMost groups workers without those that contradict others before them. The error is about the last one.
func groupMost(list []*worker) (models []*model, wrong error) {
	var fit []*worker
	for _, w := range list {
		now, err := modelsOf(append(fit[:len(fit):len(fit)], w))
		if err != nil {
			wrong = err
			continue
		}
		fit, models = append(fit, w), now
	}
	return models, wrong
}
