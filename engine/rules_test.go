package engine

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/prompt"
)

// TestEnginesAreNamedOnlyHere: what differs by engine is in the engine's package; elsewhere its name is a configuration value,
// never a condition.
func TestEnginesAreNamedOnlyHere(t *testing.T) {
	values := map[string]int{ // file: how often it contains a name
		"engine/rules.go":      6, // the switch, and the list
		"engine/server.go":     3, // the default and values of block_hash
		"engine/media.go":      1, // a value of block_hash
		"app/config/config.go": 1, // Dynamo's own default namespace
		"app/config/dynamo.go": 2, // keys
	}
	found := map[string]int{}
	for _, room := range []string{"engine", "router", "indexer", "app/config", "app/serve", "mmhash", "prompt", "body", "extproc"} {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case room == "engine" && d.IsDir() && d.Name() != room:
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok {
					switch lit.Value {
					case `"vllm"`, `"sglang"`, `"trtllm"`, `"dynamo"`:
						found[strings.TrimPrefix(filepath.ToSlash(path), "../")]++
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for file, n := range found {
		if n != values[file] {
			t.Errorf("%s names engines %d times, want %d: ask a fact of engine/rules, or put it into the engine's folder", file, n, values[file])
		}
	}
}

// TestExactReleases: of SGLang exact are the releases of which a running server was recorded, of TensorRT-LLM none: it could not be run.
func TestExactReleases(t *testing.T) {
	readme, err := os.ReadFile("sglang/testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	recorded := regexp.MustCompile("(?m)^\\| `server_.*SGLang ([0-9.]+)").FindAllStringSubmatch(string(readme), -1)
	if len(recorded) == 0 {
		t.Fatal("got no recorded server of SGLang, want one")
	}
	for patch := range 40 {
		release := fmt.Sprint("0.5.", patch)
		ran := slices.ContainsFunc(recorded, func(m []string) bool { return m[1] == release })
		if got := RulesOf("sglang", release).Uncompared; got == ran {
			t.Errorf("SGLang %s: got uncompared %v, want %v", release, got, !ran)
		}
	}
	for _, release := range []string{"1.0.0", "1.2.0", "1.3.0", "1.4.0"} {
		if !RulesOf("trtllm", release).Uncompared {
			t.Errorf("TensorRT-LLM %s: got exact, want predicted", release)
		}
	}
}

// TestOldReleases: of a release older than those that are read, no request is read and the sentence says what to do; its events are
// taken to tell no media, salts or adapters.
func TestOldReleases(t *testing.T) {
	media, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	for _, c := range []struct{ engine, old, oldest string }{{"vllm", "0.22.1", "0.23.0"}, {"sglang", "0.5.19", "0.5.20"}} {
		s := DefaultServer()
		s.Engine, s.EngineVersion = c.engine, c.old
		m, err := Load("m", "../examples/models/qwen2.5-vl", s, media)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(t, m, chatPath, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`); err != prompt.ErrRelease {
			t.Errorf("%s %s: got %v, want %v", c.engine, c.old, err, prompt.ErrRelease)
		}
		if r := m.Rules(); r.TakesSalt || r.EventsIncludeMedia || r.EventsIncludeAdapter {
			t.Errorf("%s %s: got events that tell media, salts or adapters, want none", c.engine, c.old)
		}
		want := c.engine + " " + c.old + " is older than " + c.oldest + ", the first release that is read (update it, or keep Sightline 0.1.0"
		if got := m.ReadBy(); !strings.Contains(got, want) {
			t.Errorf("%s %s: got %q, want it to say %q", c.engine, c.old, got, want)
		}
		if r := RulesOf(c.engine, c.oldest); r.TooOld != "" || !r.EventsIncludeMedia {
			t.Errorf("%s %s: got %q, want it to be read", c.engine, c.oldest, r.TooOld)
		}
	}
}

// TestDefaultsOfEngines: if a configuration names no release, the engine's default applies, whose events tell images and salts
// apart.
func TestDefaultsOfEngines(t *testing.T) {
	for name, want := range map[string]struct {
		release   string
		blockSize int
	}{"vllm": {"0.32.0", 16}, "sglang": {"0.5.23", 1}, "trtllm": {"1.3.0", 16}} {
		s := DefaultServer()
		s.Engine = name
		s.DefaultsOf(func(string) bool { return false })
		r := s.Rules()
		if s.EngineVersion != want.release || s.BlockSize != want.blockSize || !r.EventsIncludeMedia {
			t.Errorf("%s: release %s, blocks of %d, events tell media %v, want %q, %d, true",
				name, s.EngineVersion, s.BlockSize, r.EventsIncludeMedia, want.release, want.blockSize)
		}
	}
}
