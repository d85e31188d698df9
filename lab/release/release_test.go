package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestRelease builds a release as for users, and again from nothing, where nothing else is the same. It runs by `make release-test`,
// because it builds the program nine times.
func TestRelease(t *testing.T) {
	if os.Getenv("SIGHTLINE_RELEASE") == "" {
		t.Skip("make release-test builds a release")
	}
	const version = "0.0.1-test.1"
	t.Chdir("../..")
	out := filepath.Join(t.TempDir(), "out")
	r := release{version: version, out: out, image: repository, platforms: strings.Split(platforms, ",")}
	if err := r.make(); err != nil {
		t.Fatal(err)
	}
	if said := command(t, out, nil, "sha256sum", "-c", "SHA256SUMS"); strings.Count(said, ": OK") != 2*4+4 {
		t.Errorf("checksums: %s; got %d, want %d", said, strings.Count(said, ": OK"), 2*4+4)
	}
	commit := strings.TrimSpace(command(t, "", nil, "git", "rev-parse", "HEAD"))

	files := unpack(t, filepath.Join(out, "sightline-"+version+"-linux-amd64.tar.gz"))
	want := slices.Clone(binaries)
	for _, f := range beside {
		want = append(want, filepath.Base(f))
	}
	for _, name := range binaries {
		want = append(want, name+".1")
		check(t, filepath.Join(files.dir, name), "v"+version, commit)
	}
	slices.Sort(want)
	if !slices.Equal(files.names, want) {
		t.Errorf("the archive has %q, want %q", files.names, want)
	}
	if page, err := os.ReadFile(filepath.Join(files.dir, "sightline.1")); err != nil || !bytes.Contains(page, []byte(".SS serve")) {
		t.Errorf("the man page: %v\n%.200s", err, page)
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
		t.Errorf("bill of materials: %v, %+v; got %q, want no error, %q, Component.Version %q",
			err, bill.Metadata, bill.SpecVersion, "1.6", "v"+version)
	}
	if !slices.ContainsFunc(bill.Components, func(c component) bool { return c.Name == "google.golang.org/grpc" && c.Version != "" }) {
		t.Errorf("%d components without gRPC", len(bill.Components))
	}
	pushed(t, out, version, commit)
	chart := unpack(t, filepath.Join(out, "sightline-"+version+".tgz"))
	described, err := os.ReadFile(filepath.Join(chart.dir, "Chart.yaml"))
	if err != nil || !bytes.Contains(described, []byte("\nversion: "+version+"\nappVersion: "+version+"\n")) {
		t.Errorf("%v: the chart is\n%s", err, described)
	}
	formula(t, out)

	// Another folder, user's home, build cache, zone and file mode. The test's own environment stays as it is.
	for name, value := range map[string]string{"GOCACHE": t.TempDir(), "TMPDIR": t.TempDir(), "TZ": "Asia/Tokyo", "HOME": t.TempDir(),
		"GOMODCACHE": strings.TrimSpace(command(t, "", nil, "go", "env", "GOMODCACHE"))} {
		t.Setenv(name, value)
	}
	defer syscall.Umask(syscall.Umask(0o077))
	again := release{version: version, out: filepath.Join(t.TempDir(), "again"), image: repository,
		platforms: []string{"linux/amd64", "linux/arm64"}}
	if err := again.make(); err != nil {
		t.Fatal(err)
	}
	for name, sum := range again.sums {
		if name != "sightline.rb" && r.sums[name] != sum {
			t.Errorf("built again, %s has another checksum", name)
		}
	}
	if len(again.sums) != 2*2+4 {
		t.Errorf("built again, a release of %d files, want %d", len(again.sums), 2*2+4)
	}
}

// TestPack: an archive is whole, with a folder's owner.
func TestPack(t *testing.T) {
	packed, err := (&release{}).pack("x/", []file{{"a", []byte("text"), 0o644}, {"run/", nil, 0o755}})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := os.WriteFile(at, packed, 0o644); err != nil {
		t.Fatal(err)
	}
	if said := command(t, "", nil, "tar", "--numeric-owner", "-tvf", at); !strings.Contains(said, " 65532/65532 ") ||
		!strings.Contains(said, " 0/0 ") {
		t.Errorf("the archive has %s, want %q in it, %q in it", said, " 65532/65532 ", " 0/0 ")
	}
}

// pushed pushes the image to a registry, and reads from there what a node would run.
func pushed(t *testing.T, out, version, commit string) {
	t.Helper()
	crane := filepath.Join(t.TempDir(), "crane")
	command(t, "", []string{"GOBIN=" + filepath.Dir(crane)}, "go", "install", "github.com/google/go-containerregistry/cmd/crane@v0.22.1")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	registry := exec.Command(crane, "registry", "serve", "--address", addr)
	if err := registry.Start(); err != nil {
		t.Fatal(err)
	}
	defer registry.Wait()
	defer registry.Process.Kill()
	folder, name := t.TempDir(), addr+"/sightline:"+version
	command(t, "", nil, "tar", "xf", filepath.Join(out, "sightline-"+version+"-image.tar"), "-C", folder)
	command(t, "", nil, crane, "push", folder, name)
	digest, err := os.ReadFile(filepath.Join(out, "image-digest.txt"))
	if err != nil || command(t, "", nil, crane, "digest", name) != string(digest) {
		t.Errorf("%v: the registry has another digest than image-digest.txt says", err)
	}
	command(t, "", nil, crane, "validate", "--remote", name)
	for _, arch := range []string{"amd64", "arm64"} {
		var config struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
			}
		}
		platform := "linux/" + arch
		if err := json.Unmarshal([]byte(command(t, "", nil, crane, "config", "--platform", platform, name)), &config); err != nil ||
			config.Architecture != arch || config.Config.User != "65532" || !slices.Equal(config.Config.Entrypoint, []string{"/sightline"}) {
			t.Errorf("%v: of %s the image says %+v, want no error, Architecture %q, Config.User %q, Config.Entrypoint %q",
				err, platform, config, arch, "65532", []string{"/sightline"})
		}
		root := t.TempDir()
		command(t, "", nil, crane, "export", "--platform", platform, name, filepath.Join(root, "image.tar"))
		command(t, root, nil, "tar", "xf", "image.tar", "--no-same-owner")
		if runtime.GOARCH == arch {
			check(t, filepath.Join(root, "sightline"), "v"+version, commit)
		}
		if roots, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")); err != nil ||
			!x509.NewCertPool().AppendCertsFromPEM(roots) || bytes.Count(roots, []byte("BEGIN")) < 100 {
			t.Errorf("%v: the image has %d certificates", err, bytes.Count(roots, []byte("BEGIN")))
		}
		said := command(t, root, nil, "tar", "--numeric-owner", "-tf", "image.tar", "-v", "run/sightline")
		if !strings.Contains(said, " 65532/65532 ") {
			t.Errorf("the folder of sockets: got %s, want %q in it", said, " 65532/65532 ")
		}
	}
}

// formula checks the Homebrew formula: it is Ruby, where there is one, and names each archive with its checksum.
func formula(t *testing.T, out string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, "sightline.rb"))
	if err != nil {
		t.Fatal(err)
	}
	if ruby, err := exec.LookPath("ruby"); err == nil {
		command(t, out, nil, ruby, "-c", "sightline.rb")
	}
	archives, err := filepath.Glob(filepath.Join(out, "*.tar.gz"))
	if err != nil || len(archives) != 4 {
		t.Fatalf("%v: archives %q, want no error, 4 of them", err, archives)
	}
	for _, a := range archives {
		data, err := os.ReadFile(a)
		if err != nil || !bytes.Contains(text, []byte("/"+filepath.Base(a)+"\"\n      sha256 \""+hexSum(data)+`"`)) {
			t.Errorf("%v: the formula lacks %s, or its checksum:\n%s", err, filepath.Base(a), text)
		}
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
	said := command(t, "", nil, binary, "version")
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
