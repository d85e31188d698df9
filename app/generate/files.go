package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/hub"
	"github.com/sightline-router/sightline/engine"
)

// files finds a model's directory: the given one; the workers' own path, if it exists here; the repository in Hugging Face's cache;
// or a hub's, fetched at one commit into the output directory.
func (d *drafter) files(ctx context.Context, m *model) (err error) {
	for _, given := range d.ModelDir {
		name, dir, named := strings.Cut(given, "=")
		if !named {
			name, dir = m.name, given
		}
		if name == m.name && (named || len(d.models) == 1) {
			m.dirFrom = "as given"
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				return fmt.Errorf("--model-dir %s is not a directory on this machine (want one with config.json, tokenizer.json "+
					"and the like; weights are not needed)", dir)
			}
			m.dir, err = filepath.Abs(dir)
			return err
		}
	}
	path, found := d.local(m)
	if found {
		return nil
	}
	if filepath.IsAbs(path) {
		return fmt.Errorf("its workers load it from %s, which is not here (give --model-dir with a copy of its files without the weights)", path)
	}
	return d.fetch(ctx, m, path)
}

// local finds a model's directory on this machine: the workers' own path, or the repository in Hugging Face's cache. It returns what the
// workers load the model by.
func (d *drafter) local(m *model) (path string, found bool) {
	for _, c := range m.classes {
		for _, w := range c.workers {
			path = cmp.Or(path, w.EngineModel)
		}
	}
	path = cmp.Or(path, m.name) // TensorRT-LLM reports no path
	if filepath.IsAbs(path) {
		if isModel(path) {
			m.dir, m.dirFrom = path, "the workers' own path"
		}
		return path, m.dir != ""
	}
	m.dir = d.cached(path)
	if m.dir != "" {
		m.dirFrom = "Hugging Face's cache"
		m.follow()
	}
	return path, m.dir != ""
}

// Missing fetches the files of a configuration's models and classes that are not in their dir, at revision, and says what it did. One
// that cannot be had does not stop the others.
func Missing(ctx context.Context, cfg *config.Config, getenv func(string) string, say io.Writer) error {
	var failed []error
	from := map[string]string{} // what a directory was filled with
	for i := range cfg.Models {
		m := &cfg.Models[i]
		own, _ := m.Class("")
		for _, class := range append([]config.Class{own}, m.Classes...) {
			repo := class.EngineModel
			if repo == "" || filepath.IsAbs(repo) {
				repo = m.Name
			}
			what := repo + " at " + cmp.Or(class.Revision, "main")
			switch before, twice := from[class.Dir]; {
			case class.Dir == "" || before == what:
			case twice:
				failed = append(failed, fmt.Errorf("%s: %s, and %s (want a dir for each)", class.Dir, before, what))
			case engine.HasFiles(class.Dir, class.Server):
				fmt.Fprintf(say, "%s: there already\n", class.Dir)
			default:
				from[class.Dir] = what
				commit, err := download(ctx, getenv, repo, class.Revision, class.Dir)
				if err != nil {
					failed = append(failed, fmt.Errorf("model %s: %w", m.Name, err))
					continue
				}
				fmt.Fprintf(say, "%s: fetched %s, commit %s\n", class.Dir, repo, commit)
			}
		}
	}
	return errors.Join(failed...)
}

func download(ctx context.Context, getenv func(string) string, repo, revision, dir string) (commit string, err error) {
	h, err := hub.FromEnvironment(getenv)
	if err != nil {
		return "", fmt.Errorf("its files are not on this machine: %w", err)
	}
	commit, err = h.Fetch(ctx, repo, revision, dir)
	if errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("%s is there, and holds no model (want its files there, or remove it)", dir)
	}
	return commit, err
}

// isModel reports whether a directory holds a model.
func isModel(dir string) bool {
	for _, name := range []string{"config.json", "tokenizer.json", "params.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// cached finds a repository's folder in a cache, from where its revision is followed.
func (d *drafter) cached(repo string) string {
	folder := "models--" + strings.ReplaceAll(repo, "/", "--")
	if !filepath.IsLocal(folder) || strings.ContainsRune(folder, filepath.Separator) {
		return ""
	}
	for _, cache := range []string{d.Getenv("HF_HUB_CACHE"), d.Getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(hub.Home(d.Getenv), "hub")} {
		if at := filepath.Join(cache, folder); filepath.IsAbs(at) {
			if entries, err := os.ReadDir(filepath.Join(at, "snapshots")); err == nil && len(entries) > 0 {
				return at
			}
		}
	}
	return ""
}

// follow sets the revision of a cache's folder to the one with which the workers were started; without one it is main.
func (m *model) follow() {
	if m.revision != "" && filepath.IsLocal(m.revision) {
		m.classes[0].keys = append(m.classes[0].keys, key{"revision", "the workers' argument", m.revision, ""})
	}
}

// fetch downloads the small files from a hub, unless they were downloaded before.
func (d *drafter) fetch(ctx context.Context, m *model, repo string) error {
	folder := strings.ReplaceAll(repo, "/", "--")
	if folder == "" || strings.HasPrefix(folder, ".") || strings.ContainsRune(folder, filepath.Separator) {
		return fmt.Errorf("%q is not a repository's name (give --model-dir)", repo)
	}
	at := filepath.Join(d.Out, "models", folder)
	m.dir = filepath.Join("models", folder)
	if isModel(at) {
		m.dirFrom = "fetched before"
		return nil
	}
	commit, err := download(ctx, d.Getenv, repo, m.revision, at)
	if err != nil {
		return fmt.Errorf("%w; or give --model-dir", err)
	}
	m.dirFrom = "fetched at commit " + commit
	return nil
}
