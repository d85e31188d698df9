package serve

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/internal/config"
)

// TestPreviousRelease checks what the previous release has left on people's machines, made by it and kept in testdata/rc1: a
// configuration with every key (serve --print-config) loads, and metrics on which dashboards and alerts are built still exist, or
// CHANGELOG.md names them.
func TestPreviousRelease(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cfg, err := config.Parse([]byte(read("testdata/rc1/sightline.yaml")))
	if err != nil {
		t.Errorf("its configuration: %v", err)
	}
	if len(cfg.Workers) != 2 || len(cfg.Envoy.Sightlines) != 2 {
		t.Errorf("its configuration is read as %d workers, %d Sightlines", len(cfg.Workers), len(cfg.Envoy.Sightlines))
	}
	now := read("../../docs/signals.md")
	gone := strings.Join(regexp.MustCompile(`(?m)^.*\b(renamed|removed)\b.*$`).FindAllString(read("../../CHANGELOG.md"), -1), "\n")
	for name := range strings.FieldsSeq(read("testdata/rc1/metrics.txt")) {
		is := regexp.MustCompile(`\b` + name + `\b`)
		if !is.MatchString(now) && !is.MatchString(gone) {
			t.Errorf("the metric %s is gone, and no line of CHANGELOG.md says that it was renamed or removed", name)
		}
	}
}
