package docs

import (
	"cmp"
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
	BoringSSL FastAPI GitHub HighwayHash ImageMagick MessagePack NumPy OpenMetrics OpenTelemetry ReplicaSet SipHash W3C WebSocket
	AttributeError ByteReader CacheConfig ChunkedLocalAttentionManager DefaultWorkerSelector FullAttentionManager FullAttentionSpec
	ActivePodsWithRanks controller_utils.go
	GotOcr2ImageProcessor HybridKVCacheCoordinator ImageOps InstructRequestNormalizer LookupError MambaManager MediaConnector
	MistralCommonBackend ModelDeploymentCard PrefillRouter PyMapping_Check RouterEvent RouterEvents RuntimeError SentencePieceProcessor
	ServerArgs SlidingWindowManager ToTensor TypeError UnifiedRadixCache UnitaryKVCacheCoordinator ValueError WebPGetFeatures
	BodyMutation DownstreamEnd ErrNoResponders StreamedBodyResponse Image.MAX_IMAGE_PIXELS Image.convert config.KEY image.KEY video.KEY nonCachedTokens publishNotReadyAddresses
	InferenceObjective InferenceObjectives InferenceModelRewrite InferenceModelRewrites
	TestContract camelCase tArGeT uXXXX
	connector_ec_common.go connector_epd_shared_storage.go filestore.go llm_d_router_metrics.go logger.go metrics.go plugin.go
	prefix_based_pd_decider.go`)

// endings are those of files, sections those of the configuration that a package shares its name with: no members of a package or type.
var (
	endings  = strings.Fields("go sh json yaml yml proto py md txt gz jinja html tmpl model so")
	sections = strings.Fields("dynamo envoy media index")
)

var (
	humps   = regexp.MustCompile(`\b([a-z][a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*)\b`)
	members = regexp.MustCompile(`\b([A-Za-z]\w*)\.([A-Z]\w*)\b`)
	private = regexp.MustCompile(`(^|[^\w./"-])([A-Za-z]\w*)\.([a-z]\w*)([^\w./:(-]|$)`) // a lower-case member, in no path, URL or call
	pointed = regexp.MustCompile(`(?:^|\s)(?:\[\])?\*?\[?\]?\*([A-Za-z]\w*)\b`)          // a type: *Name, []*Name
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
		begins := func(doc *ast.CommentGroup, names ...*ast.Ident) {
			if doc == nil {
				return
			}
			if m := opening.FindStringSubmatch(doc.List[0].Text); m != nil &&
				!slices.ContainsFunc(names, func(n *ast.Ident) bool { return n.Name == m[1] }) {
				t.Errorf("%s: the comment begins with %s, want %s", files.Position(doc.Pos()), m[1], names[0].Name)
			}
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				begins(d.Doc, d.Name)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					doc := d.Doc
					if d.Lparen.IsValid() { // of a group, each has its own
						doc = nil
					}
					switch s := s.(type) {
					case *ast.TypeSpec:
						begins(cmp.Or(s.Doc, doc), s.Name)
					case *ast.ValueSpec:
						begins(cmp.Or(s.Doc, doc), s.Names...)
					}
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
	for _, m := range private.FindAllStringSubmatch(comment, -1) {
		folders := slices.Concat(g.packages[m[2]], g.types[m[2]])
		found := len(folders) == 0 || slices.Contains(endings, m[3]) || slices.Contains(sections, m[2]) && g.names[m[3]] ||
			strings.Contains(m[3], "_") || g.inFolder[folder][m[3]]
		for _, f := range folders {
			found = found || g.inFolder[f][m[3]]
		}
		if !found {
			bad = append(bad, m[2]+"."+m[3])
		}
	}
	for _, m := range pointed.FindAllStringSubmatch(comment, -1) {
		if !g.names[m[1]] {
			bad = append(bad, m[1])
		}
	}
	for _, f := range goFile.FindAllString(comment, -1) {
		if !g.files[f] {
			bad = append(bad, f)
		}
	}
	return bad
}
