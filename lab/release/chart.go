package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
)

// writeChart writes the Helm chart, with the release's version and image.
func (r *release) writeChart() error {
	var files []file
	folder := filepath.Join(r.src, "examples/helm")
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := read(path, 0o644)
		f.name, _ = filepath.Rel(folder, path)
		files = append(files, f)
		return err
	})
	if err != nil {
		return err
	}
	for _, change := range []struct{ file, line, to string }{
		{"Chart.yaml", `version: .*`, "version: " + r.version},
		{"Chart.yaml", `appVersion: .*`, "appVersion: " + r.version},
		{"values.yaml", `  repository: .*`, "  repository: " + r.image},
	} {
		line, found := regexp.MustCompile(`(?m)^`+change.line+`$`), false
		for i := range files {
			if f := &files[i]; f.name == change.file && line.Match(f.data) {
				f.data, found = line.ReplaceAllLiteral(f.data, []byte(change.to)), true
			}
		}
		if !found {
			return fmt.Errorf("examples/helm/%s has no line %s", change.file, change.line)
		}
	}
	packed, err := r.pack("sightline/", files)
	if err != nil {
		return err
	}
	return r.write("sightline-"+r.version+".tgz", packed)
}

// writeFormula writes the Homebrew formula, which installs the archives.
func (r *release) writeFormula() error {
	var out bytes.Buffer
	fmt.Fprintf(&out, `class Sightline < Formula
  desc "KV-cache-aware routing of chat requests with images, behind Envoy"
  homepage "https://github.com/sightline-router/sightline"
  version "%s"
  license "Apache-2.0"

`, r.version)
	systems := map[string]string{"linux": "linux", "darwin": "macos"}
	processors := map[string]string{"amd64": "intel", "arm64": "arm"}
	for _, platform := range r.platforms {
		system, arch, _ := strings.Cut(platform, "/")
		name := "sightline-" + r.version + "-" + system + "-" + arch + ".tar.gz"
		fmt.Fprintf(&out, `  on_%s do
    on_%s do
      url "https://github.com/sightline-router/sightline/releases/download/v%s/%s"
      sha256 "%s"
    end
  end

`, systems[system], processors[arch], r.version, name, r.sums[name])
	}
	out.WriteString(`  def install
    bin.install "sightline", "sightline-lab"
    man1.install "sightline.1", "sightline-lab.1"
    generate_completions_from_executable(bin/"sightline", "completion")
    generate_completions_from_executable(bin/"sightline-lab", "completion")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/sightline version")
  end
end
`)
	return r.write("sightline.rb", out.Bytes())
}
