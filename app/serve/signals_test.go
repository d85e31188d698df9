package serve

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/internal/buildinfo"
)

// These configurations together register all metrics. Nothing listens at their addresses.
const (
	ownEvents = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
models:
- {name: m, dir: DIR/model, engine_version: 0.32.0}
workers:
- {name: a, addr: "127.0.0.1:9", events: {zmq: "tcp://127.0.0.1:9"}}
decision_log: {file: DIR/decisions.jsonl}
tracing: {endpoint: "http://127.0.0.1:9"}
nats: {listen: "127.0.0.1:0"}
replicas: {addresses: ["127.0.0.1:9"]}
media: {relay: {listen: "127.0.0.1:0", url: "http://127.0.0.1:9904"}}
`
	dynamoEvents = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
models:
- {name: m, dir: DIR/model, engine_version: 0.32.0, block_hash: dynamo}
dynamo: {discovery: DIR/discovery}
`
)

var (
	ownName   = regexp.MustCompile(`\bsightline_[a-z_]*[a-z]\b`)
	envoyName = regexp.MustCompile(`\benvoy_[a-z_]*[a-z]\b`)
	descForm  = regexp.MustCompile(`^Desc\{fqName: "(sightline_[a-z0-9_]+)", help: ("(?:[^"\\]|\\.)*"), unit: "[a-z]*", ` +
		`constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constName = regexp.MustCompile(`([a-z_]+)="`)
	update    = flag.Bool("update", false, "write docs/signals.md")
)

// exporting is a metric as docs/signals.md describes it.
type exporting struct{ name, kind, labels, help string }

// registered returns the metrics that a server with this configuration has registered, by name.
func registered(t *testing.T, text string) map[string]exporting {
	t.Helper()
	dir := checkDir(t)
	if err := os.Mkdir(dir+"/discovery", 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse([]byte(strings.ReplaceAll(text, "DIR", dir)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Drain = 0
	s, err := Load(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop() // so that it starts completely and ends
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return described(s.metrics)
}

// described reads descriptions. They have no type: names of counters end in _total, which e2e's TestCountersAreCounters checks
// for all; the histograms are those of decision times.
func described(c prometheus.Collector) map[string]exporting {
	all, found := make(chan *prometheus.Desc), map[string]exporting{}
	go func() {
		c.Describe(all)
		close(all)
	}()
	for d := range all {
		m := descForm.FindStringSubmatch(d.String())
		if m == nil {
			continue
		}
		s := exporting{name: m[1], kind: "gauge", labels: m[4]}
		s.help, _ = strconv.Unquote(m[2])
		switch {
		case strings.HasSuffix(s.name, "_total"):
			s.kind = "counter"
		case strings.HasSuffix(s.name, "decision_seconds"):
			s.kind = "histogram"
		}
		for _, name := range constName.FindAllStringSubmatch(m[3], -1) {
			s.labels = strings.TrimPrefix(s.labels+","+name[1], ",")
		}
		found[s.name] = s
	}
	return found
}

func routerSignals(t *testing.T) map[string]exporting {
	all := registered(t, ownEvents)
	maps.Copy(all, registered(t, dynamoEvents))
	if len(all) < 50 {
		t.Fatalf("only %d metrics: %v, want at least 50", len(all), slices.Sorted(maps.Keys(all)))
	}
	return all
}

// descriptions are the metrics of agents, whose Describe sends nothing.
type descriptions struct{ prometheus.Collector }

func (descriptions) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range agentMetrics {
		ch <- prometheus.NewDesc("sightline_agent_"+m.name, m.help, []string{"rank"}, nil)
	}
	ch <- agentEvents
	buildinfo.Read().Metric().Describe(ch)
}

// table lists metrics with their labels and help; kinds follow from the names, as the page says.
func table(signals map[string]exporting) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(signals)) {
		s := signals[name]
		if s.labels != "" {
			s.labels = "{" + s.labels + "}"
		}
		fmt.Fprintf(&out, "- `%s%s`: %s\n", name, s.labels, s.help)
	}
	return out.String()
}

// TestSignalsDoc checks that docs/signals.md equals the registries. -update writes it.
func TestSignalsDoc(t *testing.T) {
	page := read(t, "docs/signals.md")
	written := page
	for mark, lines := range map[string]string{"router": table(routerSignals(t)),
		"agent": "`" + strings.Join(slices.Sorted(maps.Keys(described(descriptions{}))), "`, `") + "`\n"} {
		before, rest, ok := strings.Cut(written, "<!-- "+mark+" -->\n")
		_, after, end := strings.Cut(rest, "<!-- end -->")
		if !ok || !end {
			t.Fatalf("docs/signals.md has no place for the metrics of the %s: got %v, %v, want true, true", mark, ok, end)
		}
		written = before + "<!-- " + mark + " -->\n\n" + lines + "\n<!-- end -->" + after
	}
	if *update {
		if err := os.WriteFile("../../docs/signals.md", []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if written != page {
		t.Errorf("docs/signals.md is not what is registered; go test ./app/serve -run TestSignalsDoc -update writes it, want "+
			"written == %v", page)
	}
}

// TestSignalsAreFew: whoever adds a metric takes another away.
func TestSignalsAreFew(t *testing.T) {
	all := routerSignals(t)
	maps.Copy(all, described(descriptions{}))
	const most = 110
	if len(all) > most {
		t.Errorf("got %d metrics of routers and agents, want %d at most: %v", len(all), most, slices.Sorted(maps.Keys(all)))
	}
}

// TestSignalsAreNamedWell checks names, units and help with Prometheus' own linter.
func TestSignalsAreNamedWell(t *testing.T) {
	all := routerSignals(t)
	maps.Copy(all, described(descriptions{}))
	kinds := map[string]*dto.MetricType{"counter": dto.MetricType_COUNTER.Enum(), "gauge": dto.MetricType_GAUGE.Enum(),
		"histogram": dto.MetricType_HISTOGRAM.Enum()}
	var families []*dto.MetricFamily
	for _, s := range all {
		labels := []*dto.LabelPair{}
		for name := range strings.SplitSeq(s.labels, ",") {
			labels = append(labels, &dto.LabelPair{Name: &name, Value: new(string)})
		}
		families = append(families, &dto.MetricFamily{Name: &s.name, Help: &s.help, Type: kinds[s.kind], Metric: []*dto.Metric{{Label: labels}}})
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: got %s, want no problem", p.Metric, p.Text)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSignalsAreExported checks that each metric that the documentation, the rules and the dashboard name is exported.
func TestSignalsAreExported(t *testing.T) {
	names := routerSignals(t)
	maps.Copy(names, described(descriptions{}))
	cockpit := read(t, "docs/cockpit.md") // e2e asks Envoy for each name there
	files := []string{"examples/prometheus/rules.yml", "examples/prometheus/rules_test.yml", "examples/grafana/sightline.json"}
	for _, page := range strings.Fields("operations decisions agents rollout doctor start security") {
		files = append(files, "docs/"+page+".md")
	}
	for _, file := range files {
		text := read(t, file)
		for _, name := range ownName.FindAllString(text, -1) {
			series := name
			for _, of := range []string{"_bucket", "_sum", "_count"} {
				series = strings.TrimSuffix(series, of)
			}
			_, exported := names[name]
			_, timed := names[series]
			if !exported && !(timed && strings.HasSuffix(series, "_seconds")) && name != "sightline_agent" {
				t.Errorf(`%s: nothing exports %s, want exported or (timed, strings.HasSuffix(series, "_seconds")) or name == `+
					`"sightline_agent"`, file, name)
			}
		}
		for _, name := range envoyName.FindAllString(text, -1) {
			if !strings.Contains(cockpit, name) {
				t.Errorf("%s: docs/cockpit.md, whose names are asked of Envoy, has no %s, want it in cockpit", file, name)
			}
		}
	}
}

// TestSignalsHoldTogether checks that the dashboard is JSON, that it, docs/signals.md and the autoscaling use only recordings
// that the rules make, and that each alert's runbook is an existing heading.
func TestSignalsHoldTogether(t *testing.T) {
	rules, dashboard := read(t, "examples/prometheus/rules.yml"), read(t, "examples/grafana/sightline.json")
	if !json.Valid([]byte(dashboard)) {
		t.Error("the dashboard is no JSON, want json.Valid([]byte(dashboard))")
	}
	for _, name := range regexp.MustCompile(`sightline:[a-z0-9_]+:[a-z0-9_]+`).FindAllString(rules+dashboard+
		read(t, "docs/signals.md")+read(t, "examples/prometheus/keda.yaml"), -1) {
		if !strings.Contains(rules, "- record: "+name+"\n") {
			t.Errorf("nothing records %s, want \"- record: \"+name+\"\\n\" in rules", name)
		}
	}
	for _, m := range regexp.MustCompile(`runbook: ([a-z/.]+)#?(.*)`).FindAllStringSubmatch(rules, -1) {
		heading := "(?mi)^##+ " + strings.ReplaceAll(regexp.QuoteMeta(m[2]), "-", " ") + "$"
		if page := read(t, m[1]); m[2] != "" && !regexp.MustCompile(heading).MatchString(page) {
			t.Errorf(`%s has no heading %s, want m[2] == "" or regexp.MustCompile(heading).MatchString(page)`, m[1], m[2])
		}
	}
	if n := strings.Count(rules, "- alert: "); n < 8 || n != strings.Count(rules, "runbook: ") ||
		n != strings.Count(rules, "severity: ") || n != strings.Count(rules, "summary: ") {
		t.Errorf("%d alerts, not each with severity, summary and runbook, want at least 8, %d, %d, %d",
			n, strings.Count(rules, "runbook: "), strings.Count(rules, "severity: "), strings.Count(rules, "summary: "))
	}
}
