// Command release makes the files of a release from the commit that HEAD names: for each platform an archive and a bill of
// materials (CycloneDX 1.6), and SHA256SUMS of them all.
//
// It builds in its own clone, in which it sets the release's tag: the go command then writes version and commit into the binary,
// and uncommitted files cannot get in. Paths, times and users of the machine are left out, so every build of the same commit with
// the same Go gives the same bytes.
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// binaries are the commands that an archive contains.
var binaries = []string{"sightline", "sightline-lab"}

// beside lists what an archive contains besides the binaries.
var beside = []string{"LICENSE", "NOTICE", "README.md", "CHANGELOG.md",
	"examples/systemd/sightline.service", "examples/systemd/sightline-agent@.service", "examples/systemd/sightline.yaml"}

var semver = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func main() {
	version := flag.String("version", "", "the release's version, such as 0.1.0-rc.1")
	out := flag.String("out", "bin/release", "folder of the results, emptied first")
	arch := flag.String("arch", "amd64,arm64", "processors, for Linux")
	flag.Parse()
	if err := release(*version, *out, strings.Split(*arch, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func release(version, out string, archs []string) error {
	if !semver.MatchString(version) {
		return fmt.Errorf("version %q: want one such as 0.1.0-rc.1", version)
	}
	work, err := os.MkdirTemp("", "sightline-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	src := filepath.Join(work, "src")
	// The lightweight tag exists only in the clone; -f in case the repository has it already.
	for _, args := range [][]string{{"clone", "-q", "--shared", ".", src}, {"-C", src, "tag", "-f", "v" + version}} {
		if _, err := run("", nil, "git", args...); err != nil {
			return err
		}
	}
	stamp, err := run(src, nil, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(stamp), 10, 64)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	var sums strings.Builder
	for _, arch := range archs {
		bin := filepath.Join(work, arch)
		env := append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0",
			"GOEXPERIMENT=", "GOWORK=off")
		if _, err := run(src, env, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags", "-s -w -buildid=", "-o", bin+"/",
			"./cmd/..."); err != nil {
			return err
		}
		var built []*buildinfo.BuildInfo
		for _, name := range binaries {
			b, err := buildinfo.ReadFile(filepath.Join(bin, name))
			if err != nil {
				return err
			}
			if b.Main.Version != "v"+version {
				return fmt.Errorf("the go command wrote version %s into %s, want v%s", b.Main.Version, name, version)
			}
			built = append(built, b)
		}
		name := "sightline-" + version + "-linux-" + arch
		archive, bill := filepath.Join(out, name+".tar.gz"), filepath.Join(out, name+".cdx.json")
		if err := pack(archive, name, src, bin, time.Unix(seconds, 0)); err != nil {
			return err
		}
		text, err := materials(built)
		if err != nil {
			return err
		}
		if err := os.WriteFile(bill, text, 0o644); err != nil {
			return err
		}
		for _, f := range []string{archive, bill} {
			data, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), filepath.Base(f))
		}
	}
	fmt.Print(sums.String())
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o644)
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

// pack writes the archive. Its files are in a folder of its name, owned by root, with the commit's time.
func pack(archive, folder, src, bin string, at time.Time) (err error) {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zip)
	add := func(path string, mode int64) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: folder + "/" + filepath.Base(path), Mode: mode, Size: int64(len(data)), ModTime: at, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = io.Copy(w, strings.NewReader(string(data)))
		return err
	}
	for _, name := range binaries {
		if err := add(filepath.Join(bin, name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range beside {
		if err := add(filepath.Join(src, name), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), zip.Close())
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
