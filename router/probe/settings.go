package probe

import (
	"context"
	"fmt"
	"slices"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
)

// served is one model of /v1/models; the first is the base model, adapters follow.
type served struct {
	ID     string `json:"id"`
	Root   string `json:"root"`
	MaxLen int    `json:"max_model_len"`
	Parent string `json:"parent"` // for a LoRA adapter: the base model
}

// maxServed limits the models that a worker may list, each of which may become a finding and a log line.
const maxServed = 1024

// settings compares what a server reports about itself with the configuration: /v1/models gives its names, max_model_len and, if
// the engine reports its settings, --model as root; then /version gives the release. How large its blocks are is known
// by its events. A missing endpoint, or one that wants a key, is a finding that says what was not compared. SGLang's
// /server_info is never asked, since it reveals keys.
func (p *Prober) settings(ctx context.Context, w *Worker, m *engine.Model) (found []Finding) {
	paths := []string{"/v1/models"}
	if m.Rules().ReportsSettings {
		paths = append(paths, "/version")
	}
	for _, path := range paths {
		answer, err := p.ask(ctx, w.Addr, path, nil)
		if err != nil {
			f := Finding{What: path, Verdict: verdictOf(err), Detail: fmt.Sprintf("not compared: GET %s: %v", path, err)}
			if f.Verdict == Refused { // of a question about its settings, this is no answer
				f.Verdict = Absent
			}
			found = append(found, f)
			if f.Verdict == Unreachable && path == "/v1/models" {
				return found
			}
			continue
		}
		wrong := func(key, format string, args ...any) {
			found = append(found, Finding{What: key, Verdict: Configuration, Detail: fmt.Sprintf(format, args...)})
		}
		switch path {
		case "/v1/models":
			err = compareModels(answer, w, m, wrong)
		case "/version":
			err = compareRelease(answer, &m.Server, wrong)
		}
		if err != nil {
			found = append(found, Finding{What: path, Verdict: Unreachable, Detail: err.Error()})
		}
	}
	return found
}

func compareModels(answer []byte, w *Worker, m *engine.Model, wrong func(key, format string, args ...any)) error {
	var models struct {
		Data []served `json:"data"`
	}
	if err := decode(answer, &models); err != nil || len(models.Data) == 0 {
		return err
	}
	models.Data = models.Data[:min(len(models.Data), maxServed)]
	serves := func(name string) bool {
		return slices.ContainsFunc(models.Data, func(one served) bool { return one.ID == name })
	}
	for _, name := range w.Names {
		if !serves(name) {
			wrong("name", "the worker serves no model called %q", name)
		}
	}
	for _, one := range models.Data {
		if one.Parent != "" && !slices.Contains(w.Adapters, one.ID) {
			wrong("adapters", "the worker serves the adapter %.200q, which adapters does not name: requests for it are routed by load", one.ID)
		}
	}
	for _, name := range w.Adapters {
		if !serves(name) {
			wrong("adapters", "the worker serves no adapter called %q", name)
		}
	}
	base, s := models.Data[0], &m.Server
	if m.Rules().ReportsSettings && base.Root != "" && base.Root != s.EngineModel {
		wrong("engine_model", "configured %q, the worker reports %.200q: its image hashes differ from Sightline's", s.EngineModel, base.Root)
	}
	if s.MaxModelLen > 0 && base.MaxLen > 0 && base.MaxLen != s.MaxModelLen {
		wrong("max_model_len", "configured %d, the worker reports %d", s.MaxModelLen, base.MaxLen)
	}
	return nil
}

func compareRelease(answer []byte, s *engine.Server, wrong func(key, format string, args ...any)) error {
	var release struct {
		Version string `json:"version"`
	}
	if err := decode(answer, &release); err != nil || release.Version == "" {
		return err
	}
	ours, _ := rules.ParseVersion(s.EngineVersion)
	if theirs, err := rules.ParseVersion(release.Version); err != nil || theirs != ours {
		wrong("engine_version", "configured %s, the worker reports %.100q (give it a class with its engine_version)",
			s.EngineVersion, release.Version)
	}
	return nil
}
