package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// comparison is what an alert waits for: without it, its expression gives a series while all is well.
var comparison = regexp.MustCompile(` (?:==|<|>|<=|>=) [0-9.]+( or |$)| > 0\.5 \* sightline_workers$`)

// Every rule and every panel of the dashboard is asked of a real Prometheus that scrapes Sightline and Envoy under load: each
// gives a series, alerts without their threshold, and no alert is heard. Run by make signals, which needs Debian's package
// prometheus.
func TestSignalsInPrometheus(t *testing.T) {
	if os.Getenv("SIGHTLINE_PROMETHEUS") == "" {
		t.Skip("no part of make e2e: make signals")
	}
	// Faults that some expressions are about: the third worker reads a token of each prompt otherwise than configured.
	l := startLab(t, func(o *lab.Options) {
		o.Sim = func(i int, c *sim.Config) {
			read := c.Prompt
			if i != 2 {
				c.Prompt = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
					if bytes.Contains(body, []byte("a request that workers refuse")) {
						return nil, errors.New("refused")
					}
					return read(ctx, path, body)
				}
				return
			}
			c.Prompt = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
				list, err := read(ctx, path, body)
				for i := range list {
					list[i].Tokens = slices.Clone(list[i].Tokens)
					list[i].Tokens[len(list[i].Tokens)-20]++
				}
				return list, err
			}
		}
	})
	for range 6 {
		ask(t, l, "a request that workers refuse")
	}
	at, dir := freeAddr(t), t.TempDir()
	rules := filepath.Join(dir, "rules.yml")
	text, err := os.ReadFile("../examples/prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rules, bytes.ReplaceAll(text, []byte("interval: 1m"), []byte("interval: 1s")), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{rules},
		"scrape_configs": []any{
			map[string]any{"job_name": "sightline", "static_configs": []any{map[string]any{"targets": []string{l.Admin}}}},
			map[string]any{"job_name": "envoy", "metrics_path": "/stats/prometheus",
				"static_configs": []any{map[string]any{"targets": []string{l.EnvoyAdmin}}}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	prometheus := exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+at)
	prometheus.Stdout, prometheus.Stderr = &log, &log
	if err := prometheus.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = prometheus.Process.Kill()
		_ = prometheus.Wait()
		if t.Failed() {
			t.Logf("Prometheus:\n%s", log.String())
		}
	})
	query := func(expr string) (series []gjson.Result, err error) {
		raw, err := lab.Get("http://" + at + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			return nil, err
		}
		if gjson.GetBytes(raw, "status").Str != "success" {
			return nil, fmt.Errorf("%s", raw)
		}
		return gjson.GetBytes(raw, "data.result").Array(), nil
	}
	image := dataURL(photo(71))
	n := 0
	load := func() {
		n++
		ask(t, l, fmt.Sprint("What is this, for the ", n%7, "th time?"), image)
		ask(t, l, strings.Repeat(fmt.Sprint("Something new, number ", n, ". "), 20))
	}
	eventually(t, "Prometheus scrapes both", func() bool {
		up, err := query("up == 1")
		return err == nil && len(up) == 2
	})
	asked := 0
	for _, e := range expressions(t) {
		asked++
		expr := strings.NewReplacer("$__rate_interval", "1m", "$model", ".*", "$worker", ".*", "[5m]",
			"[1m]").Replace(comparison.ReplaceAllString(e, "$1"))
		eventually(t, "a series of "+expr, func() bool {
			series, err := query(expr)
			if err != nil {
				t.Logf("%s: %v", expr, err)
			}
			if len(series) == 0 {
				load()
				if n == 100 {
					l.Sims[0].Close() // what it holds is lost: regret
				}
			}
			return len(series) > 0
		})
	}
	if asked < 25 {
		t.Errorf("only %d expressions, want at least 25", asked)
	}
	alerts, err := query(`ALERTS{alertstate="firing"}`)
	planted := map[string]bool{"SightlineFinding": true, "SightlineFindingError": true}
	for _, a := range alerts {
		if !planted[a.Get("metric.alertname").Str] {
			t.Errorf("%s is heard, and nothing of it was planted", a)
		}
	}
	if err != nil {
		t.Error(err)
	}
	t.Logf("signals: %d expressions of rules and dashboard, each has given a series", asked)
}

// expressions are those of the rules and of the dashboard.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	type groups struct {
		Groups []struct {
			Rules []struct{ Expr string }
		}
	}
	var rules, names groups
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	for file, read := range map[string]func([]byte) error{
		"examples/prometheus/rules.yml":   func(b []byte) error { return yaml.Unmarshal(b, &rules) },
		"examples/prometheus/names.yml":   func(b []byte) error { return yaml.Unmarshal(b, &names) },
		"examples/grafana/sightline.json": func(b []byte) error { return json.Unmarshal(b, &board) },
	} {
		raw, err := os.ReadFile("../" + file)
		if err == nil {
			err = read(raw)
		}
		if err != nil {
			t.Fatalf("%q: got %v, want no error", file, err)
		}
	}
	for _, g := range append(rules.Groups, names.Groups...) {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
		}
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}
