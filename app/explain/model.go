package explain

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine"
)

// model is the model that explains requests.
type model struct {
	*engine.Model
	adapters []string
	cfg      config.Config // what names it; the default for a directory
}

// model loads the model that the options name, and prints to standard error what keeps it from being exact.
func (o *Options) model() (*model, error) {
	mc, cfg, err := o.named()
	if err != nil {
		return nil, err
	}
	if err := o.change(&mc); err != nil {
		return nil, err
	}
	cfg.Media.Budget = patience
	media, err := serve.NewMedia(cfg.Media)
	if err != nil {
		return nil, err
	}
	media.DecodeInline = true
	m, err := engine.Load(mc.Name, mc.Dir, mc.Server, media)
	if err != nil {
		return nil, err
	}
	for _, w := range m.Warnings() {
		fmt.Fprintf(os.Stderr, "%s: %s\n", mc.Name, w)
	}
	return &model{m, mc.Adapters, cfg}, nil
}

// named returns the settings of the model from a configuration, which it returns as well, or from a directory.
func (o *Options) named() (config.Model, config.Config, error) {
	if o.Config == "" {
		mc := config.Model{Name: filepath.Base(o.ModelDir), Dir: o.ModelDir, Server: engine.DefaultServer()}
		mc.TrustMMKwargs, mc.TrustUUID = true, true
		if o.ModelDir == "" {
			return mc, config.Config{}, errors.New("give --model-dir DIR, or --config FILE with --model NAME")
		}
		return mc, config.Default(), nil
	}
	cfg, err := config.Load(o.Config)
	if err != nil {
		return config.Model{}, cfg, err
	}
	for _, mc := range cfg.Models {
		if mc.Name != o.Model && (o.Model != "" || len(cfg.Models) > 1) {
			continue
		}
		class, ok := mc.Class(o.Class)
		if !ok {
			return mc, cfg, fmt.Errorf("--class %q is not a class of model %q", o.Class, mc.Name)
		}
		mc.Dir, mc.Server = class.Dir, class.Server
		return mc, cfg, nil
	}
	return config.Model{}, cfg, fmt.Errorf("--model %q is none of the %d models in %s", o.Model, len(cfg.Models), o.Config)
}

// change sets the model's keys that the options give.
func (o *Options) change(mc *config.Model) error {
	for _, s := range o.Set {
		if err := mc.Set(s); err != nil {
			return fmt.Errorf("--set %w", err)
		}
	}
	mc.EngineModel = cmp.Or(mc.EngineModel, mc.Name)
	return mc.Server.Check()
}
