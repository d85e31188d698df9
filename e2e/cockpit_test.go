package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
)

// Envoy's counters move as the requests do: by model, reason, worker and outcome.
func TestCockpit(t *testing.T) {
	t.Parallel()
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	a, b := w.workers[0], w.workers[1]
	name := func(reason, at, code, flags string) string {
		return fmt.Sprintf("sightline.decisions.model.e2e.reason.%s.worker.%s.outcome.%s.flags.%s", reason, at, code, flags)
	}
	count := func(reason string, n int, at, code, flags string, send func() reply) {
		t.Helper()
		class, full := "vhost.llm.vcluster."+reason+".upstream_rq_total", name(reason, at, code, flags)
		was, before := w.stat(full), w.stat(class)
		for range n {
			send()
		}
		eventually(t, fmt.Sprintf("%d more in %s", n, full), func() bool { return w.stat(full) == was+n })
		if got := w.stat(class) - before; got != n && reason != "refused" {
			t.Errorf("%s: %d more, want %d", class, got, n)
		}
	}
	said := func(s script, h http.Header) func() reply { return func() reply { return w.post(chat(s), h) } }
	matched := "sightline.matched_blocks.model.e2e.worker." + b.addr
	for reason, n := range map[string]int{"exact": 3, "predicted": 2, "affinity": 1} {
		count(reason, n, b.addr, "200", "-", said(script{Targets: []string{b.addr}, Reason: reason, Blocks: 5}, nil))
	}
	count("load", 2, a.addr, "200", "-", said(script{Targets: []string{a.addr}}, nil))
	count("load", 1, a.addr, "200", "UPE", said(script{Targets: []string{a.addr}}, http.Header{"X-Hang-Up": {"1"}})) // broken off
	count("refused", 2, "", "400", "-", said(script{Refuse: 400}, nil))
	if got := w.stat(matched); got != 30 {
		t.Errorf("%s: %d, want 30", matched, got)
	}
	gauge := "sightline.inflight.worker." + b.addr
	done := make(chan reply, 1)
	go func() { done <- w.post(chat(script{Targets: []string{b.addr}}), http.Header{"X-Hold": {"gauge"}}) }()
	eventually(t, gauge+" is 1", func() bool { return w.stat(gauge) == 1 })
	close(b.hold("gauge"))
	<-done
	eventually(t, gauge+" is 0", func() bool { return w.stat(gauge) == 0 })
	for _, histogram := range []string{"body", "headers"} {
		eventually(t, histogram+": times are there", func() bool {
			page, err := w.envoy.Get(t.Context(), "/stats?filter=^sightline.ext_proc_"+histogram)
			return err == nil && strings.Contains(page, "P50(")
		})
	}
	if n := w.stat("http.ingress.ext_proc.rejected_header_mutations"); n != 0 {
		t.Errorf("Envoy has refused %d headers of ours, want 0", n)
	}
	t.Run("docs/cockpit.md", w.cockpitPage)
}

// Workers come and go at new addresses: what Envoy counts by address ends with them, but not while a request is at one.
func TestStatsEndWithTheirWorkers(t *testing.T) {
	t.Parallel()
	const each = 8
	w := startEdited(t, 1, func(o *envoy.Options) {
		o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.0.0/8"), FirstPort: 1, LastPort: 65535}}
	}, func(printed string) string {
		short := strings.Replace(withPatience(t, printed), "stats_eviction_interval: 1800s",
			"stats_flush_interval: 0.5s\nstats_eviction_interval: 1s", 1)
		if !strings.Contains(short, "stats_eviction_interval: 1s") {
			t.Fatal("the printed configuration has no eviction of half an hour")
		}
		return short
	})
	w.runSightline(extproc.Options{})
	held := w.workers[0]
	done := make(chan reply, 1)
	go func() { done <- w.post(chat(script{Targets: []string{held.addr}}), http.Header{"X-Hold": {"long"}}) }()
	gauge := "sightline.inflight.worker." + held.addr
	eventually(t, gauge+" is 1", func() bool { return w.stat(gauge) == 1 })
	of := func(round int) string { return fmt.Sprintf("127.0.%d.", round) }
	series := func() (all int, text string) {
		text, err := w.envoy.Get(t.Context(), "/stats?filter=%5Esightline%5C..*worker")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(text, "\n"), text
	}
	most := 0
	for round := 1; round <= 4; round++ {
		for i := range each {
			lis, err := net.Listen("tcp", fmt.Sprintf("%s%d:0", of(round), 1+i))
			if err != nil {
				t.Fatal(err)
			}
			at := startWorkerOn(t, lis, lis.Addr().String())
			if r := w.post(chat(script{Targets: []string{at.addr}, Blocks: 5}), nil); r.status != http.StatusOK {
				t.Fatalf("at %s: status %d, %v, want %d", at.addr, r.status, r.err, http.StatusOK)
			}
			at.kill()
		}
		n, text := series()
		if strings.Count(text, of(round)) < 2*each {
			t.Fatalf("%d series, want some of each worker:\n%s", n, text)
		}
		most = max(most, n)
		eventually(t, "those of the workers that have gone have ended", func() bool {
			_, text := series()
			return !strings.Contains(text, of(round))
		})
		if w.stat(gauge) != 1 {
			t.Fatalf("%s has ended, with a request there", gauge)
		}
	}
	t.Logf("%d series at most, of %d workers", most, 4*each)
	if n, text := series(); n != 1 {
		t.Errorf("%d series, want the one of the request that goes on:\n%s", n, text)
	}
	close(held.hold("long"))
	<-done
	eventually(t, "its own have ended", func() bool { n, _ := series(); return n == 0 })
}

var (
	docAddr  = regexp.MustCompile(`127\\?\.0\\?\.0\\?\.1:\d+`)
	docName  = regexp.MustCompile("`((?:http|vhost|cluster|sightline)\\.[a-z_.]+)`")
	docProm  = regexp.MustCompile(`(envoy_[a-z_]+)[^=a-z_]`)
	docLabel = regexp.MustCompile(`(?:by \(|[{,])([a-z_]+)(?:\)|=)`)
)

// cockpitPage asks Envoy each query of the page and looks for each line and name that the page shows.
func (w *world) cockpitPage(t *testing.T) {
	file, err := os.ReadFile("../docs/cockpit.md")
	if err != nil {
		t.Fatal(err)
	}
	// As regular expressions: any worker, and this test's model.
	like := func(line string) *regexp.Regexp {
		return regexp.MustCompile("(?m)^" + docAddr.ReplaceAllString(strings.ReplaceAll(regexp.QuoteMeta(line), "sim-vl", "e2e"),
			`127\.0\.0\.1:\d+`) + "[:} ]")
	}
	get := func(path string) string {
		page, err := w.envoy.Get(t.Context(), path)
		if err != nil {
			t.Fatalf("%q: got %v, want no error", path, err)
		}
		return page
	}
	answer, lines := "", 0
	for i, block := range strings.Split(string(file), "```") {
		if i%2 == 0 {
			continue
		}
		for line := range strings.Lines(strings.TrimSpace(block)) {
			line = strings.TrimSpace(line)
			if query, ok := strings.CutPrefix(line, "$ curl -s 'localhost:9901"); ok {
				answer = get(strings.ReplaceAll(strings.TrimSuffix(query, "'"), "^", "%5E"))
				continue
			}
			name, _, _ := strings.Cut(line, ": ")
			name, _, _ = strings.Cut(name, "} ")
			lines++
			if !like(name).MatchString(answer) {
				t.Errorf("not in Envoy's answer: %s\n%s", line, answer)
			}
		}
	}
	all, prom := get("/stats"), get("/stats/prometheus")
	for _, m := range docName.FindAllStringSubmatch(string(file), -1) {
		lines++
		if !like(m[1]).MatchString(all) {
			t.Errorf("Envoy has no %s", m[1])
		}
	}
	for _, m := range docProm.FindAllStringSubmatch(string(file), -1) {
		lines++
		if !regexp.MustCompile(`(?m)^` + m[1] + `\{`).MatchString(prom) {
			t.Errorf("Envoy has no %s", m[1])
		}
	}
	for _, m := range docLabel.FindAllStringSubmatch(string(file), -1) {
		if !regexp.MustCompile(`[{,]` + m[1] + `="`).MatchString(prom) {
			t.Errorf("no series of Envoy's has a label %s", m[1])
		}
	}
	if lines < 15 {
		t.Errorf("got %d names on the page, want 15 and more", lines)
	}
}
