package serve

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/app/config"
)

// TestPreviousRelease checks what the previous release has left on people's machines, made by it and kept in testdata/rc1: a
// configuration with every key (serve --print-config) loads but for keys that CHANGELOG.md calls removed, and metrics on which
// dashboards and alerts are built still exist, or CHANGELOG.md names them.
func TestPreviousRelease(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	gone := strings.Join(regexp.MustCompile(`(?m)^.*\b(renamed|removed)\b.*$`).FindAllString(read("../../CHANGELOG.md"), -1), "\n")
	before := read("testdata/rc1/sightline.yaml")
	for _, key := range regexp.MustCompile("`models\\[\\]\\.([a-z_]+)` was removed").FindAllStringSubmatch(gone, -1) {
		line := regexp.MustCompile(`(?m)^ +` + key[1] + `:.*\n`)
		_, err := config.Parse([]byte("models: [{name: m, " + key[1] + ": false}]"))
		if err == nil || !strings.Contains(err.Error(), "no longer a key") {
			t.Errorf("%s, which CHANGELOG.md says was removed: %v", key[1], err)
		}
		before = line.ReplaceAllString(before, "")
	}
	cfg, err := config.Parse([]byte(before))
	if err != nil {
		t.Errorf("its configuration: %v", err)
	}
	if len(cfg.Workers) != 2 || len(cfg.Envoy.Sightlines) != 2 {
		t.Errorf("its configuration is read as %d workers, %d Sightlines", len(cfg.Workers), len(cfg.Envoy.Sightlines))
	}
	now := read("../../docs/signals.md")
	for name := range strings.FieldsSeq(read("testdata/rc1/metrics.txt")) {
		is := regexp.MustCompile(`\b` + name + `\b`)
		if !is.MatchString(now) && !is.MatchString(gone) {
			t.Errorf("the metric %s is gone, and no line of CHANGELOG.md says that it was renamed or removed", name)
		}
	}
}
