package engine

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// example is the shipped model directory.
const example = "../examples/models/qwen2.5-vl"

// write creates files below dir. The text "-> x" makes a link to x, "<example>" copies the example's file of that name.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(to, p)
		} else {
			if text == "<example>" {
				b, err := os.ReadFile(filepath.Join(example, filepath.Base(name)))
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			err = os.WriteFile(p, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// modelFiles adds a whole model below a prefix, as files or as links into blobs.
func modelFiles(prefix, blobs string, into map[string]string) map[string]string {
	for _, n := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json"} {
		if blobs == "" {
			into[prefix+n] = "<example>"
			continue
		}
		into[blobs+n] = "<example>"
		into[prefix+n] = "-> ../../blobs/" + n
	}
	return into
}

const (
	repo  = "hub/models--Qwen--Qwen2.5-VL-7B-Instruct/"
	lfs   = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"
	first = "aaaa1111"
	other = "bbbb2222"
)

func TestDirectories(t *testing.T) {
	cached := func(extra map[string]string) map[string]string {
		files := modelFiles(repo+"snapshots/"+first+"/", repo+"blobs/", map[string]string{repo + "refs/main": first + "\n",
			repo + "refs/refs/pr/1": other})
		maps.Copy(files, extra)
		return files
	}
	two := map[string]string{repo + "snapshots/" + other + "/config.json": "{}"}
	for _, c := range []struct {
		what     string
		files    map[string]string
		dir      string
		revision string
		model    string
		template string
		at       string // where the model is expected
		change   string // a file of the directory that has "{" in it
		fault    string // what does not load, which costs only the requests that need it
		media    bool   // only those with media
	}{
		{what: "plain", files: modelFiles("m/", "", map[string]string{"m/model.safetensors": lfs}), dir: "m", at: "m"},
		{what: "plain, a pointer", files: map[string]string{"m/config.json": "{}", "m/tokenizer.json": lfs}, dir: "m",
			fault: "m/tokenizer.json: it is a Git LFS pointer"},
		{what: "plain, empty", files: map[string]string{"m/README.md": ""}, dir: "m", fault: "has no file of a model"},
		{what: "plain, settings of images that are no JSON", files: modelFiles("m/", "", map[string]string{}), dir: "m",
			change: "preprocessor_config.json", fault: "preprocessor_config.json: ", media: true},
		{what: "plain, a config that is no JSON", files: modelFiles("m/", "", map[string]string{}), change: "config.json", dir: "m",
			fault: "config.json: "},
		{what: "plain, settings of generation that are no JSON", files: modelFiles("m/", "", map[string]string{"m/generation_config.json": "{"}),
			dir: "m", at: "m"},
		{what: "plain, no tokenizer", files: map[string]string{"m/config.json": "{}"}, dir: "m", fault: "no tokenizer here"},
		{what: "a template of the server's, missing", files: modelFiles("m/", "", map[string]string{}), dir: "m",
			template: "m/none.jinja", fault: "chat_template: open "},
		{what: "a template of the server's, half of it", files: modelFiles("m/", "", map[string]string{"t.jinja": "{{ messages"}), dir: "m",
			template: "t.jinja", fault: "chat template: "},
		{what: "a template of the server's, a pointer", files: modelFiles("m/", "", map[string]string{"t.jinja": lfs}),
			dir: "m", template: "t.jinja", fault: "t.jinja: it is a Git LFS pointer"},
		{what: "missing", dir: "m", fault: "no such file"},
		{what: "a file", files: map[string]string{"m": ""}, dir: "m", fault: "is a file"},
		{what: "snapshot", files: cached(nil), dir: repo + "snapshots/" + first, at: repo + "snapshots/" + first},
		{what: "repository", files: cached(two), dir: repo, at: repo + "snapshots/" + first},
		{what: "repository, by commit", files: cached(two), dir: repo, revision: first, at: repo + "snapshots/" + first},
		{what: "repository, by a ref with a path", files: cached(nil), dir: repo, revision: "refs/pr/1", fault: "has no snapshot bbbb2222"},
		{what: "repository, unknown revision", files: cached(nil), dir: repo, revision: "v2", fault: `no snapshot v2 of revision "v2"`},
		{what: "repository, revision leads out", files: cached(nil), dir: repo, revision: "../../x", fault: "not the name of a branch"},
		{what: "repository, ref leads out", files: cached(map[string]string{repo + "refs/main": "../../../x"}), dir: repo,
			fault: "holds no commit"},
		{what: "repository, one snapshot and no ref", files: modelFiles(repo+"snapshots/"+first+"/", "", map[string]string{}),
			dir: repo, at: repo + "snapshots/" + first},
		{what: "repository, two snapshots and no ref", files: modelFiles(repo+"snapshots/"+first+"/", "",
			map[string]string{repo + "snapshots/" + other + "/config.json": "{}"}), dir: repo, fault: "has no refs/main and 2 snapshots"},
		{what: "cache", files: cached(nil), dir: "hub", model: "Qwen/Qwen2.5-VL-7B-Instruct", at: repo + "snapshots/" + first},
		{what: "home of a cache", files: cached(nil), dir: ".", model: "Qwen/Qwen2.5-VL-7B-Instruct", at: repo + "snapshots/" + first},
		{what: "cache, another model", files: cached(nil), dir: "hub", model: "Qwen/Qwen3", fault: `does not have "Qwen/Qwen3"`},
		{what: "a blob is missing",
			files: cached(map[string]string{repo + "snapshots/" + first + "/processor_config.json": "-> ../../blobs/gone"}), dir: repo,
			fault: "processor_config.json: it is a link to a file that is not there"},
		{what: "a blob is a pointer", files: cached(map[string]string{repo + "blobs/tokenizer.json": lfs}), dir: repo,
			fault: "is a Git LFS pointer"},
	} {
		t.Run(c.what, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, c.files)
			if c.change != "" {
				write(t, filepath.Join(root, c.dir), map[string]string{c.change: "{"})
			}
			media, err := NewMedia(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer media.Close()
			s := DefaultServer()
			s.EngineModel, s.Revision = c.model, c.revision
			if c.template != "" {
				s.ChatTemplate = filepath.Join(root, c.template)
			}
			m, err := Load("m", filepath.Join(root, c.dir), s, media)
			if err != nil {
				t.Fatal(err)
			}
			if fault := m.Fault(); (fault != nil) != (c.fault != "") || fault != nil && !strings.Contains(fault.Error(), c.fault) {
				t.Fatalf("fault %v, want %q", fault, c.fault)
			}
			if c.fault != "" {
				if w := strings.Join(m.Warnings(), "\n"); !strings.Contains(w, c.fault) ||
					!c.media && !strings.Contains(w, "requests are routed by what workers' events teach") && !strings.Contains(w, "chats are routed by") {
					t.Errorf("warnings %q", w)
				}
				return
			}
			if st := inspect(filepath.Join(root, c.dir), s); st.dir != filepath.Join(root, c.at) {
				t.Errorf("found %s, want %s", st.dir, c.at)
			}
		})
	}
}

// TestRulesDoNotGrow: models of the same server share the rule for images' names, however often they are loaded.
func TestRulesDoNotGrow(t *testing.T) {
	media, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	s := DefaultServer()
	for range 3 {
		if _, err := Load("m", example, s, media); err != nil {
			t.Fatal(err)
		}
	}
	s.EngineModel = "another"
	if len(media.keys) != 1 {
		t.Errorf("%d rules of one server, want 1", len(media.keys))
	}
	if _, err := Load("m", example, s, media); err != nil || len(media.keys) != 2 {
		t.Errorf("%d rules of two servers, %v, want no error, 2", len(media.keys), err)
	}
}
