package docs

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign lists names in comments that are not this module's: projects, standards, and code of engines, gateways and libraries.
var foreign = strings.Fields(`
	BoringSSL FastAPI GitHub HighwayHash ImageMagick MessagePack NumPy OpenMetrics OpenTelemetry SipHash W3C WebSocket
	AttributeError ByteReader CacheConfig ChunkedLocalAttentionManager DefaultWorkerSelector FullAttentionManager FullAttentionSpec
	GotOcr2ImageProcessor HybridKVCacheCoordinator ImageOps InstructRequestNormalizer LookupError MambaManager MediaConnector
	MistralCommonBackend ModelDeploymentCard PrefillRouter PyMapping_Check RouterEvent RouterEvents RuntimeError SentencePieceProcessor
	ServerArgs SlidingWindowManager ToTensor TypeError UnifiedRadixCache UnitaryKVCacheCoordinator ValueError WebPGetFeatures
	BodyMutation DownstreamEnd ErrNoResponders StreamedBodyResponse Image.MAX_IMAGE_PIXELS Image.convert config.KEY image.KEY video.KEY nonCachedTokens publishNotReadyAddresses
	InferenceObjective InferenceObjectives InferenceModelRewrite InferenceModelRewrites
	TestContract camelCase tArGeT uXXXX
	connector_ec_common.go connector_epd_shared_storage.go filestore.go llm_d_router_metrics.go logger.go metrics.go plugin.go
	prefix_based_pd_decider.go`)

var (
	humps   = regexp.MustCompile(`\b([a-z][a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*)\b`)
	members = regexp.MustCompile(`\b([A-Za-z]\w*)\.([A-Z]\w*)\b`)
	goFile  = regexp.MustCompile(`\b[a-z0-9_]+\.go\b`)
	opening = regexp.MustCompile(`^//\s([a-z]\w*)\s\w+s\s`)
	words   = regexp.MustCompile(`\w+`)
)

// goTree is what the module's Go files name.
type goTree struct {
	names    map[string]bool            // identifiers, and words of strings
	files    map[string]bool            // base names
	packages map[string][]string        // folders by package name
	types    map[string][]string        // folders by type name
	inFolder map[string]map[string]bool // identifiers by folder
}

// TestComments resolves what comments name: identifiers of more than one word, members of packages and types, files. A name that
// changed is found where a comment still has the old one; the comment of a function begins with its present name.
func TestComments(t *testing.T) {
	tree := goTree{map[string]bool{}, map[string]bool{}, map[string][]string{}, map[string][]string{}, map[string]map[string]bool{}}
	list := goFiles(t)
	for _, name := range foreign {
		tree.names[name], tree.files[name] = true, true
	}
	var parsed []*ast.File
	files := token.NewFileSet()
	for _, name := range list {
		src, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(files, name, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		tree.add(name, src, file)
		parsed = append(parsed, file)
	}
	for i, file := range parsed {
		folder := path.Dir(list[i])
		for _, group := range file.Comments {
			for _, comment := range group.List {
				for _, bad := range tree.unresolved(folder, comment.Text) {
					t.Errorf("%s: the comment names %s, which is nowhere in this module (docs/comments_test.go lists other projects' names)",
						files.Position(comment.Pos()), bad)
				}
			}
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Doc != nil {
				if m := opening.FindStringSubmatch(f.Doc.List[0].Text); m != nil && m[1] != f.Name.Name {
					t.Errorf("%s: the comment of %s begins with %s", files.Position(f.Pos()), f.Name.Name, m[1])
				}
			}
		}
	}
}

// goFiles returns the module's Go files, apart from those of modules within it.
func goFiles(t *testing.T) (list []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != ".." {
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || nested == nil {
				return filepath.SkipDir
			}
		}
		if strings.HasSuffix(name, ".go") {
			list = append(list, filepath.ToSlash(strings.TrimPrefix(name, "../")))
		}
		return nil
	})
	if err != nil || len(list) < 100 {
		t.Fatal(err, len(list))
	}
	return list
}

func (g *goTree) add(name string, src []byte, file *ast.File) {
	folder := path.Dir(name)
	g.files[path.Base(name)] = true
	pkg := strings.TrimSuffix(file.Name.Name, "_test")
	if !slices.Contains(g.packages[pkg], folder) {
		g.packages[pkg] = append(g.packages[pkg], folder)
	}
	if g.inFolder[folder] == nil {
		g.inFolder[folder] = map[string]bool{}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			g.names[n.Name], g.inFolder[folder][n.Name] = true, true
		case *ast.TypeSpec:
			g.types[n.Name.Name] = append(g.types[n.Name.Name], folder)
		}
		return true
	})
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", -1, len(src)), src, nil, 0)
	for _, kind, text := s.Scan(); kind != token.EOF; _, kind, text = s.Scan() {
		if kind == token.STRING {
			for _, w := range words.FindAllString(text, -1) {
				g.names[w] = true
			}
		}
	}
}

// unresolved returns the names in a comment that are not found.
func (g *goTree) unresolved(folder, comment string) (bad []string) {
	for _, w := range humps.FindAllString(comment, -1) {
		if !g.names[w] {
			bad = append(bad, w)
		}
	}
	for _, m := range members.FindAllStringSubmatch(comment, -1) {
		folders := slices.Concat(g.packages[m[1]], g.types[m[1]])
		found := len(folders) == 0 || g.names[m[0]] || g.inFolder[folder][m[2]]
		for _, f := range folders {
			found = found || g.inFolder[f][m[2]]
		}
		if !found {
			bad = append(bad, m[0])
		}
	}
	for _, f := range goFile.FindAllString(comment, -1) {
		if !g.files[f] {
			bad = append(bad, f)
		}
	}
	return bad
}
