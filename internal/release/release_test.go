package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestRelease builds a release as for users. It runs by `make release-test`, because it builds the program three times.
func TestRelease(t *testing.T) {
	if os.Getenv("SIGHTLINE_RELEASE") == "" {
		t.Skip("make release-test builds a release")
	}
	const version = "0.0.1-test.1"
	t.Chdir("../..")
	out := filepath.Join(t.TempDir(), "out")
	if err := release(version, out, []string{"amd64", "arm64"}); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if said := command(t, out, nil, "sha256sum", "-c", "SHA256SUMS"); strings.Count(said, ": OK") != 4 {
		t.Errorf("checksums: %s", said)
	}
	commit := strings.TrimSpace(command(t, "", nil, "git", "rev-parse", "HEAD"))

	files := unpack(t, filepath.Join(out, "sightline-"+version+"-linux-amd64.tar.gz"))
	want := slices.Clone(binaries)
	for _, f := range beside {
		want = append(want, filepath.Base(f))
	}
	slices.Sort(want)
	if !slices.Equal(files.names, want) {
		t.Errorf("the archive has %q, want %q", files.names, want)
	}
	for _, name := range binaries {
		check(t, filepath.Join(files.dir, name), "v"+version, commit)
	}

	text, err := os.ReadFile(filepath.Join(out, "sightline-"+version+"-linux-arm64.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		SpecVersion string
		Metadata    struct{ Component component }
		Components  []component
	}
	if err := json.Unmarshal(text, &bill); err != nil || bill.SpecVersion != "1.6" || bill.Metadata.Component.Version != "v"+version {
		t.Errorf("bill of materials: %v, %+v", err, bill.Metadata)
	}
	if !slices.ContainsFunc(bill.Components, func(c component) bool { return c.Name == "google.golang.org/grpc" && c.Version != "" }) {
		t.Errorf("%d components without gRPC", len(bill.Components))
	}

	again := filepath.Join(t.TempDir(), "again")
	if err := release(version, again, []string{"amd64", "arm64"}); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(filepath.Join(again, "SHA256SUMS")); err != nil || string(second) != string(sums) {
		t.Errorf("%v: built again, the same commit gives\n%s, not\n%s", err, second, sums)
	}
}

// TestGoInstall: `go install …@version` finds everything in the module that a proxy serves, which contains no nested modules, no
// replacements, and only committed files. The proxy is a folder; dependencies come from the go command's own module cache.
func TestGoInstall(t *testing.T) {
	if os.Getenv("SIGHTLINE_RELEASE") == "" {
		t.Skip("make release-test builds a release")
	}
	m := module.Version{Path: "github.com/sightline-router/sightline", Version: "v0.0.1-test.1"}
	t.Chdir("../..")
	proxy := t.TempDir()
	at := filepath.Join(proxy, m.Path, "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	packed, err := os.Create(filepath.Join(at, m.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "src")
	command(t, "", nil, "git", "clone", "-q", "--shared", ".", src)
	if err := errors.Join(zip.CreateFromVCS(packed, m, src, "HEAD", ""), packed.Close()); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{m.Version + ".mod": string(mod),
		m.Version + ".info": fmt.Sprintf(`{"Version":%q}`, m.Version), "list": m.Version} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	store := strings.TrimSpace(command(t, "", nil, "go", "env", "GOMODCACHE"))
	bin := t.TempDir()
	command(t, t.TempDir(), []string{"GOPROXY=file://" + proxy + ",file://" + filepath.Join(store, "cache", "download"),
		"GOSUMDB=off", "GOFLAGS=-modcacherw",
		"GOBIN=" + bin, "GOMODCACHE=" + t.TempDir(), "CGO_ENABLED=0", "GOWORK=off"}, "go", "install", m.Path+"/cmd/sightline@"+
		m.Version, m.Path+"/cmd/sightline-lab@"+m.Version)
	for _, name := range binaries {
		check(t, filepath.Join(bin, name), m.Version, "")
	}
}

// check asks a binary what it is.
func check(t *testing.T, binary, version, commit string) {
	t.Helper()
	var is struct {
		Version, Commit string
		Dirty           bool
	}
	said := command(t, "", nil, binary, "version", "--json")
	if err := json.Unmarshal([]byte(said), &is); err != nil || is.Version != version || is.Commit != commit || is.Dirty {
		t.Errorf("%s (%v), want %s of %s", said, err, version, commit)
	}
}

func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}

type unpacked struct {
	dir   string
	names []string // sorted
}

func unpack(t *testing.T, archive string) unpacked {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := unpacked{dir: t.TempDir()}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(out.names)
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(h.Name)
		out.names = append(out.names, name)
		if err := os.WriteFile(filepath.Join(out.dir, name), data, os.FileMode(h.Mode)); err != nil {
			t.Fatal(err)
		}
	}
}
