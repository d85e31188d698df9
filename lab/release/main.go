// Command release makes the files of a release from the commit that HEAD names: for each platform an archive and a bill of
// materials (CycloneDX 1.6); an image of all Linux platforms and the Helm chart, as a registry takes them; a Homebrew formula; and
// SHA256SUMS of them all.
//
// It builds in its own clone, in which it sets the release's tag: the go command then writes version and commit into the binary,
// and uncommitted files cannot get in. Paths, times and users of the machine are left out, so every build of the same commit with
// the same Go gives the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// binaries are the commands that an archive contains.
var binaries = []string{"sightline", "sightline-lab"}

// beside lists what an archive contains besides the binaries and their man pages.
var beside = []string{"LICENSE", "NOTICE", "README.md", "CHANGELOG.md",
	"examples/systemd/sightline.service", "examples/systemd/sightline-agent@.service", "examples/systemd/sightline.yaml"}

const (
	platforms  = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"
	repository = "ghcr.io/sightline-router/sightline" // of the image; the chart is at …/charts/sightline
)

var semver = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func main() {
	r := release{}
	flag.StringVar(&r.version, "version", "", "the release's version, such as 0.1.0-rc.1")
	flag.StringVar(&r.out, "out", "bin/release", "folder of the results, emptied first")
	flag.StringVar(&r.image, "image", repository, "where the image will be, for the chart")
	of := flag.String("platforms", platforms, "systems and processors")
	flag.Parse()
	r.platforms = strings.Split(*of, ",")
	if err := r.make(); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// release is what is made of one commit.
type release struct {
	version, out, image string
	platforms           []string // such as linux/amd64

	src    string // its own clone
	commit string
	at     time.Time         // the commit's
	sums   map[string]string // of the files in out, by name
}

func (r *release) make() error {
	if !semver.MatchString(r.version) {
		return fmt.Errorf("version %q: want one such as 0.1.0-rc.1", r.version)
	}
	work, err := os.MkdirTemp("", "sightline-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := errors.Join(r.clone(filepath.Join(work, "src")), os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	r.sums = map[string]string{}
	pages, err := r.manPages(filepath.Join(work, "here"))
	if err != nil {
		return err
	}
	var images []platformImage
	for _, platform := range r.platforms {
		system, arch, _ := strings.Cut(platform, "/")
		bin := filepath.Join(work, system+"-"+arch)
		built, err := r.build(bin, "GOOS="+system, "GOARCH="+arch)
		if err != nil {
			return err
		}
		bill, err := materials(built)
		if err != nil {
			return err
		}
		files, err := r.archive(bin, pages)
		if err != nil {
			return err
		}
		name := "sightline-" + r.version + "-" + system + "-" + arch
		packed, err := r.pack(name+"/", files)
		if err := errors.Join(err, r.write(name+".tar.gz", packed), r.write(name+".cdx.json", bill)); err != nil {
			return err
		}
		if system == "linux" {
			images = append(images, platformImage{arch, bin})
		}
	}
	if err := errors.Join(r.writeImage(images), r.writeChart(), r.writeFormula()); err != nil {
		return err
	}
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.sums)) {
		fmt.Fprintf(&list, "%s  %s\n", r.sums[name], name)
	}
	fmt.Print(list.String())
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(list.String()), 0o644)
}

// clone makes the clone, and reads the commit that it is of.
func (r *release) clone(to string) error {
	r.src = to
	// The lightweight tag exists only in the clone; -f in case the repository has it already.
	for _, args := range [][]string{{"clone", "-q", "--shared", ".", to}, {"-C", to, "tag", "-f", "v" + r.version}} {
		if _, err := run("", nil, "git", args...); err != nil {
			return err
		}
	}
	said, err := run(to, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, stamp, _ := strings.Cut(strings.TrimSpace(said), " ")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	r.commit, r.at = commit, time.Unix(seconds, 0).UTC()
	return err
}

// build builds the binaries into a folder, and returns what the go command wrote into them.
func (r *release) build(bin string, target ...string) (built []*buildinfo.BuildInfo, err error) {
	env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off")
	if _, err := run(r.src, append(env, target...), "go", "build", "-trimpath", "-buildvcs=true", "-ldflags", "-s -w -buildid=", "-o", bin+"/",
		"./cmd/..."); err != nil {
		return nil, err
	}
	for _, name := range binaries {
		b, err := buildinfo.ReadFile(filepath.Join(bin, name))
		if err != nil {
			return nil, err
		}
		if b.Main.Version != "v"+r.version {
			return nil, fmt.Errorf("the go command wrote version %s into %s, want v%s", b.Main.Version, name, r.version)
		}
		built = append(built, b)
	}
	return built, nil
}

// manPages returns the man pages, which the binaries print; they are built for this machine into bin.
func (r *release) manPages(bin string) (pages []file, err error) {
	if _, err := r.build(bin, "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH); err != nil {
		return nil, err
	}
	for _, name := range binaries {
		page, err := run("", nil, filepath.Join(bin, name), "man")
		if err != nil {
			return nil, err
		}
		pages = append(pages, file{name + ".1", []byte(page), 0o644})
	}
	return pages, nil
}

// archive returns the files of a platform's archive.
func (r *release) archive(bin string, pages []file) (files []file, err error) {
	for _, name := range binaries {
		f, err := read(filepath.Join(bin, name), 0o755)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	for _, name := range beside {
		f, err := read(filepath.Join(r.src, name), 0o644)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return append(files, pages...), nil
}

// write writes a file of the release.
func (r *release) write(name string, data []byte) error {
	r.sums[name] = hexSum(data)
	return os.WriteFile(filepath.Join(r.out, name), data, 0o644)
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func run(dir string, env []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Env, c.Stderr = dir, env, os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", c, err)
	}
	return string(out), nil
}

// file is one of an archive. A name that ends in a slash is a folder's.
type file struct {
	name string
	data []byte
	mode int64
}

func read(path string, mode int64) (file, error) {
	data, err := os.ReadFile(path)
	return file{filepath.Base(path), data, mode}, err
}

// pack returns a tar.gz of files below a folder, owned by root, with the commit's time.
func (r *release) pack(folder string, files []file) ([]byte, error) {
	packed, err := r.tar(folder, files)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = zip.Write(packed)
	err = errors.Join(err, zip.Close())
	return out.Bytes(), err
}

func (r *release) tar(folder string, files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: folder + f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: r.at, Format: tar.FormatUSTAR}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag, h.Uid, h.Gid = tar.TypeDir, user, user
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

// materials returns the bill of materials: the modules linked into the binaries, as recorded by the go command.
func materials(built []*buildinfo.BuildInfo) ([]byte, error) {
	of := func(kind, path, version string) component {
		purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
		return component{kind, purl, path, version, purl}
	}
	main := of("application", built[0].Main.Path, built[0].Main.Version)
	libraries := []component{of("library", "std", built[0].GoVersion)}
	for _, b := range built {
		for _, d := range b.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			if l := of("library", d.Path, d.Version); !slices.Contains(libraries, l) {
				libraries = append(libraries, l)
			}
		}
	}
	uses := make([]string, len(libraries))
	for i, l := range libraries {
		uses[i] = l.Ref
	}
	text, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":     map[string]any{"component": main},
		"components":   libraries,
		"dependencies": []any{map[string]any{"ref": main.Ref, "dependsOn": uses}},
	}, "", "  ")
	return append(text, '\n'), err
}
