package generate

import (
	"fmt"
	"os"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/config"
)

// Fit returns the models that workers serve, and the workers with the keys that Sightline would be configured with. A worker that
// contradicts those before it, such as one that serves names of two models, is left out, and the error says why. Models' files are those
// of Hugging Face's cache or at the workers' own path, if they are here; a model without files is read by what events teach.
func Fit(facts []rules.Facts) (models []config.Model, workers []config.Worker, wrong error) {
	list := make([]*worker, len(facts))
	for i, f := range facts {
		if f.Engine == "" {
			f.Engine = engine.DefaultServer().Engine
		}
		list[i] = &worker{Facts: f}
	}
	d := &drafter{Options: Options{Getenv: os.Getenv}}
	d.models, wrong = group(list)
	if wrong != nil {
		d.models, wrong = groupMost(list)
	}
	for _, m := range d.models {
		d.local(m)
	}
	cfg, err := config.Parse(d.yaml())
	if err != nil {
		return nil, nil, fmt.Errorf("what the workers say makes no configuration: %w", err)
	}
	return cfg.Models, cfg.Workers, wrong
}

// groupMost groups workers without those that contradict others before them. The error is about the last one.
func groupMost(list []*worker) (models []*model, wrong error) {
	var fit []*worker
	for _, w := range list {
		now, err := group(append(fit[:len(fit):len(fit)], w))
		if err != nil {
			wrong = err
			continue
		}
		fit, models = append(fit, w), now
	}
	return models, wrong
}
