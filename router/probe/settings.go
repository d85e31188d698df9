package probe

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
)

// served is one model of /v1/models; the first is the base model, adapters follow.
type served struct {
	ID     string `json:"id"`
	Root   string `json:"root"`
	MaxLen int    `json:"max_model_len"`
	Parent string `json:"parent"` // of a LoRA adapter: the base model
}

// settings compares what a server says of itself with the configuration: /v1/models gives its names, max_model_len and,
// where the engine tells its settings, --model as root; then /version gives the release. SGLang's /server_info is never
// asked: it shows keys.
func (p *Prober) settings(ctx context.Context, w *Worker, m *engine.Model) (found []Finding) {
	s, r := &m.Server, m.Rules()
	wrong := func(key, format string, args ...any) {
		found = append(found, Finding{What: key, Verdict: Configuration, Detail: fmt.Sprintf(format, args...)})
	}
	// missing keeps an endpoint that is not there from being news, and one that does not answer from being silent.
	missing := func(path string, err error) bool {
		if err != nil && verdictOf(err) == Unreachable {
			found = append(found, Finding{What: path, Verdict: Unreachable, Detail: err.Error()})
		}
		return err != nil
	}
	var models struct {
		Data []served `json:"data"`
	}
	if err := p.asker.ask(ctx, w.Addr, "/v1/models", nil, &models); !missing("/v1/models", err) && len(models.Data) > 0 {
		for _, name := range w.Names {
			if !slices.ContainsFunc(models.Data, func(one served) bool { return one.ID == name }) {
				wrong("name", "the worker serves no model called %q", name)
			}
		}
		for _, one := range models.Data {
			if one.Parent != "" && !slices.Contains(w.Adapters, one.ID) {
				wrong("adapters", "the worker serves the adapter %.200q, which adapters does not name: requests for it are routed by load", one.ID)
			}
		}
		for _, name := range w.Adapters {
			if !slices.ContainsFunc(models.Data, func(one served) bool { return one.ID == name }) {
				wrong("adapters", "the worker serves no adapter called %q", name)
			}
		}
		base := models.Data[0]
		if r.TellsSettings && base.Root != "" && base.Root != s.EngineModel {
			wrong("engine_model", "configured %q, the worker says %.200q: its names of pictures differ from ours", s.EngineModel, base.Root)
		}
		if s.MaxModelLen > 0 && base.MaxLen > 0 && base.MaxLen != s.MaxModelLen {
			wrong("max_model_len", "configured %d, the worker says %d", s.MaxModelLen, base.MaxLen)
		}
	} else if len(found) > 0 {
		return found
	}
	if !r.TellsSettings {
		return found
	}
	var release struct {
		Version string `json:"version"`
	}
	if err := p.asker.ask(ctx, w.Addr, "/version", nil, &release); !missing("/version", err) && release.Version != "" {
		ours, _ := rules.ParseVersion(s.EngineVersion)
		if theirs, err := rules.ParseVersion(release.Version); err != nil || theirs != ours {
			wrong("engine_version", "configured %s, the worker says %.100q (give it a class with its engine_version)", s.EngineVersion, release.Version)
		}
	}
	var page text
	if err := p.asker.ask(ctx, w.Addr, "/metrics", nil, &page); !missing("/metrics", err) && w.BlockSize > 0 {
		if size := cacheBlockSize(string(page)); size > 0 && size != w.BlockSize {
			wrong("block_size", "configured %d, the worker says %d: nothing it holds would be found (give it a class with its block_size)", w.BlockSize, size)
		}
	}
	return found
}

// cacheBlockSize reads block_size of vLLM's vllm:cache_config_info, a gauge whose labels are the cache's settings; 0 if it
// is not there.
func cacheBlockSize(page string) int {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "vllm:cache_config_info{") {
			continue
		}
		for _, before := range []string{`{block_size="`, `,block_size="`} {
			if _, rest, ok := strings.Cut(line, before); ok {
				value, _, _ := strings.Cut(rest, `"`)
				size, _ := strconv.Atoi(value)
				return size
			}
		}
	}
	return 0
}
