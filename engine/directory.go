package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/internal/secure"
)

// A model directory is what an engine would load, without the weights: a plain directory, or a Hugging Face cache
//
//	hub/models--Qwen--Qwen2.5-VL-7B-Instruct/refs/main             the commit that a revision stands for
//	                                        /snapshots/<commit>/   links into …
//	                                        /blobs/                … the files
//
// given as the directory of links, as the models--… directory, or as the cache itself (hub, or the directory above it) with the
// repository's name in engine_model. In the last two forms every look resolves the revision again, so that the download of a newer
// one is followed.

// repository returns the directory that holds the model's files, for any of these forms of dir.
func repository(dir string, s Server) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("model directory: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("model directory: %s is a file", dir)
	}
	if isDir(dir, "snapshots") {
		return snapshot(dir, s.Revision)
	}
	hub := dir
	if isDir(dir, "hub") {
		hub = filepath.Join(dir, "hub")
	}
	if caches, _ := filepath.Glob(filepath.Join(globQuoted(hub), "models--*")); len(caches) == 0 {
		return dir, nil
	}
	repo := filepath.Join(hub, "models--"+strings.ReplaceAll(s.EngineModel, "/", "--"))
	if !isDir(repo, "snapshots") {
		return "", fmt.Errorf("model directory: the cache %s does not have %q (want engine_model as the repository's name, "+
			"such as Qwen/Qwen2.5-VL-7B-Instruct)", hub, s.EngineModel)
	}
	return snapshot(repo, s.Revision)
}

// snapshot returns the directory of a revision: a branch or tag by its file below refs, a commit by its own name. Without a
// revision it takes main, or the only snapshot there is.
func snapshot(repo, revision string) (string, error) {
	want := cmp.Or(revision, "main")
	if !filepath.IsLocal(want) {
		return "", fmt.Errorf("model directory: revision %q is not the name of a branch, a tag or a commit", revision)
	}
	commit := want
	ref, err := readBounded(filepath.Join(repo, "refs", want), 4096)
	switch {
	case err == nil:
		commit = strings.TrimSpace(string(ref))
		if !filepath.IsLocal(commit) {
			return "", fmt.Errorf("model directory: %s holds no commit", filepath.Join(repo, "refs", want))
		}
	case revision == "":
		entries, err := os.ReadDir(filepath.Join(repo, "snapshots"))
		if err != nil {
			return "", fmt.Errorf("model directory: %w", err)
		}
		if len(entries) != 1 {
			return "", fmt.Errorf("model directory: %s has no refs/main and %d snapshots "+
				"(give the revision, or name the snapshot's folder)", repo, len(entries))
		}
		commit = entries[0].Name()
	}
	if !isDir(repo, "snapshots", commit) {
		return "", fmt.Errorf("model directory: %s has no snapshot %s of revision %q (download it, or give another revision)",
			repo, commit, want)
	}
	return filepath.Join(repo, "snapshots", commit), nil
}

func isDir(elem ...string) bool {
	info, err := os.Stat(filepath.Join(elem...))
	return err == nil && info.IsDir()
}

func globQuoted(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// dirState describes a model directory at one look: its path, and its files by name, size and time. Equal states load to the same
// model.
type dirState struct {
	dir   string
	files []fileState
	err   string // why it cannot be read
}

type fileState struct {
	name string // relative to the directory
	file string // the path to open
	size int64
	at   time.Time
}

func (s *dirState) equal(t *dirState) bool {
	return s.dir == t.dir && s.err == t.err && slices.EqualFunc(s.files, t.files, func(a, b fileState) bool {
		return a.name == b.name && a.size == b.size && a.at.Equal(b.at)
	})
}

// maxFiles bounds the entries of a model directory that one look reads.
const maxFiles = 4096

// inspect finds the directory and lists the files that a model is read from. A dangling link is an error: the loaders would treat it
// as a file that the model does not have.
func inspect(dir string, s Server) (st dirState) {
	if dir == "" {
		return st
	}
	at, err := repository(dir, s)
	if err == nil {
		st.dir = at
		err = st.list()
	}
	if file := s.templateFile(""); err == nil && file != "" {
		_ = st.add(file, file) // the loader reports one that is missing, which costs only the chats
	}
	if err != nil {
		st.err = err.Error()
	}
	return st
}

// HasFiles reports whether there are files of a model in a directory of any of these forms.
func HasFiles(dir string, s Server) bool {
	st := inspect(dir, s)
	return st.err == "" && len(st.files) > 0
}

func (st *dirState) list() error {
	for _, sub := range []string{"", "additional_chat_templates"} {
		d, err := os.Open(filepath.Join(st.dir, sub))
		if errors.Is(err, fs.ErrNotExist) && sub != "" {
			continue
		}
		if err != nil {
			return err
		}
		names, err := d.Readdirnames(maxFiles)
		d.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		slices.Sort(names)
		for _, n := range names {
			if name := path.Join(sub, n); AffectsPrompts(name) {
				if err := st.add(name, filepath.Join(st.dir, sub, n)); err != nil {
					return err
				}
			}
		}
	}
	if len(st.files) == 0 {
		return fmt.Errorf("model directory: %s has no file of a model (want config.json, tokenizer.json and the like)", st.dir)
	}
	return nil
}

func (st *dirState) add(name, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		if _, e := os.Lstat(file); e == nil && errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: it is a link to a file that is not there (download the model again)", file)
		}
		return err
	}
	if info.Mode().IsRegular() {
		st.files = append(st.files, fileState{name, file, info.Size(), info.ModTime()})
	}
	return nil
}

// AffectsPrompts reports whether prompts depend on a file of this name in a model directory. Weights do not matter.
func AffectsPrompts(name string) bool {
	switch {
	case strings.HasSuffix(name, ".index.json"): // the index of weight shards
		return false
	case strings.HasPrefix(name, "tokenizer.model"), name == "merges.txt", name == "tiktoken.model":
		return true
	}
	switch path.Ext(name) {
	case ".json", ".jinja", ".tiktoken":
		return true
	}
	return false
}

// lfsMagic is the beginning of the file that Git leaves in place of a large one that was not downloaded (git-lfs specification,
// version 1).
const lfsMagic = "version https://git-lfs"

// IsLFSPointer reports whether a file's content is such a pointer.
func IsLFSPointer(content []byte) bool { return bytes.HasPrefix(content, []byte(lfsMagic)) }

// fault returns why the directory cannot be read; nil if it can.
func (st *dirState) fault() error {
	if st.err != "" {
		return errors.New(st.err)
	}
	return st.pointer()
}

// pointer returns an error that names a file that is a Git LFS pointer; nil if there is none. A pointer is shorter than 1,024 bytes.
func (st *dirState) pointer() error {
	for _, f := range st.files {
		if f.size >= 1024 {
			continue
		}
		if text, err := readBounded(f.file, 1024); err == nil && IsLFSPointer(text) {
			return fmt.Errorf("%s: it is a Git LFS pointer, not the file (run `git lfs pull` there)", f.file)
		}
	}
	return nil
}

// has reports whether at least one of the named files is there.
func (st *dirState) has(names ...string) bool {
	return slices.ContainsFunc(st.files, func(f fileState) bool { return slices.Contains(names, f.name) })
}

func readBounded(file string, most int64) ([]byte, error) {
	f, err := secure.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}
