package serve

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/config"
)

// Between them these configurations have all that registers metrics. Nothing listens where they point.
const (
	ownEvents = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
models:
- {name: m, dir: DIR/model, engine_version: 0.32.0}
workers:
- {name: a, addr: "127.0.0.1:9", events: {zmq: "tcp://127.0.0.1:9"}}
decision_log: {file: DIR/decisions.jsonl}
nats: {listen: "127.0.0.1:0", dir: DIR/streams}
media: {relay: {listen: "127.0.0.1:0", url: "http://127.0.0.1:9904"}}
`
	dynamoEvents = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
models:
- {name: m, dir: DIR/model, engine_version: 0.32.0, block_hash: dynamo}
dynamo: {discovery: DIR/discovery, plane: zmq}
`
)

var (
	ownName   = regexp.MustCompile(`\bsightline_[a-z_]*[a-z]\b`)
	envoyName = regexp.MustCompile(`\benvoy_[a-z_]*[a-z]\b`)
	descName  = regexp.MustCompile(`^Desc\{fqName: "(sightline_[a-z_]+)"`)
	agentRows = regexp.MustCompile("(?s)all `sightline_agent_`:\n(.*?)\n\n")
	agentName = regexp.MustCompile("(?m)^\\| ((?:`[a-z_{}]+`(?:, )?)+) \\|")
)

// registered are the names that a Sightline with this configuration has registered when it serves.
func registered(t *testing.T, text string) map[string]bool {
	t.Helper()
	dir := checkDir(t)
	if err := os.Mkdir(dir+"/discovery", 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse([]byte(strings.ReplaceAll(text, "DIR", dir)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Load(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop() // it starts all of it and ends
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return described(s.metrics)
}

func described(c prometheus.Collector) map[string]bool {
	all, names := make(chan *prometheus.Desc), map[string]bool{}
	go func() {
		c.Describe(all)
		close(all)
	}()
	for d := range all {
		if m := descName.FindStringSubmatch(d.String()); m != nil {
			names[m[1]] = true
		}
	}
	return names
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Each metric that is registered stands in docs/operations.md, and each that the documentation, the rules and the dashboard
// name is registered: a metric that was renamed is found in all of them.
func TestSignalsAreExported(t *testing.T) {
	names := registered(t, ownEvents)
	maps.Copy(names, registered(t, dynamoEvents))
	if len(names) < 50 {
		t.Fatalf("only %d metrics: %v", len(names), slices.Sorted(maps.Keys(names)))
	}
	docs := read(t, "docs/operations.md")
	told := map[string]bool{}
	for _, name := range ownName.FindAllString(docs, -1) {
		told[name] = true
	}
	for name := range names {
		if !told[name] {
			t.Errorf("docs/operations.md does not tell of %s", name)
		}
	}
	agent := map[string]bool{"sightline_agent": true, "sightline_agent_events_total": true}
	for _, m := range agentMetrics {
		agent["sightline_agent_"+m.name] = true
	}
	inDocs := map[string]bool{"sightline_agent": true}
	for _, row := range agentName.FindAllStringSubmatch(agentRows.FindString(docs), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			name, _, _ = strings.Cut(strings.Trim(name, "`"), "{")
			inDocs["sightline_agent_"+name] = true
		}
	}
	if !maps.Equal(agent, inDocs) {
		t.Errorf("agents export\n%v, docs/operations.md has\n%v", slices.Sorted(maps.Keys(agent)), slices.Sorted(maps.Keys(inDocs)))
	}
	maps.Copy(names, agent)
	cockpit := read(t, "docs/cockpit.md") // e2e asks Envoy for each name there
	for _, file := range []string{"docs/operations.md", "examples/prometheus/rules.yml", "examples/prometheus/rules_test.yml", "examples/grafana/sightline.json"} {
		text := read(t, file)
		for _, name := range ownName.FindAllString(text, -1) {
			series := name
			for _, of := range []string{"_bucket", "_sum", "_count"} {
				series = strings.TrimSuffix(series, of)
			}
			if !names[name] && !(strings.HasSuffix(series, "_seconds") && names[series]) {
				t.Errorf("%s: nothing exports %s", file, name)
			}
		}
		for _, name := range envoyName.FindAllString(text, -1) {
			if !strings.Contains(cockpit, name) {
				t.Errorf("%s: docs/cockpit.md, whose names are asked of Envoy, has no %s", file, name)
			}
		}
	}
}

// The dashboard is JSON and shows only recordings that the rules make, and each alert's runbook is a heading that is there.
func TestSignalsHoldTogether(t *testing.T) {
	rules, dashboard := read(t, "examples/prometheus/rules.yml"), read(t, "examples/grafana/sightline.json")
	if !json.Valid([]byte(dashboard)) {
		t.Error("the dashboard is no JSON")
	}
	for _, name := range regexp.MustCompile(`sightline:[a-z0-9_:]+`).FindAllString(rules+dashboard, -1) {
		if !strings.Contains(rules, "- record: "+name+"\n") {
			t.Errorf("nothing records %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`runbook: ([a-z/.]+)#?(.*)`).FindAllStringSubmatch(rules, -1) {
		heading := "(?mi)^##+ " + strings.ReplaceAll(regexp.QuoteMeta(m[2]), "-", " ") + "$"
		if page := read(t, m[1]); m[2] != "" && !regexp.MustCompile(heading).MatchString(page) {
			t.Errorf("%s has no heading %s", m[1], m[2])
		}
	}
	if n := strings.Count(rules, "- alert: "); n < 10 || n != strings.Count(rules, "runbook: ") || n != strings.Count(rules, "severity: ") || n != strings.Count(rules, "summary: ") {
		t.Errorf("%d alerts, not each with severity, summary and runbook", n)
	}
}
