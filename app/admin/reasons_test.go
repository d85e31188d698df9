package admin

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/report"
)

// TestReasonsAreWhole: each reason that the router's code gives is in router.Reasons, and the page counts it.
func TestReasonsAreWhole(t *testing.T) {
	text, err := os.ReadFile("../../router/request.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []router.Reason
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ +Reason = "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		declared = append(declared, router.Reason(m[1]))
	}
	if all := router.Reasons(); len(declared) < 6 || !slices.Equal(declared, all) {
		t.Errorf("router.Reasons: got %v, want %v", all, declared)
	}
	var kept []router.Recent
	for _, r := range declared {
		kept = append(kept, router.Recent{Reason: r})
	}
	var v view
	v.judge(kept)
	sum := 0
	for _, s := range v.Reasons {
		sum += s.Count
	}
	if len(v.Reasons) != len(declared) || sum != len(kept) {
		t.Errorf("the page's reasons: got %v, want each of %v once", v.Reasons, declared)
	}
	envoy, err := os.ReadFile("../../envoy/view.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range declared { // a refused request reaches no worker, so Envoy has no counter of it
		if r != router.RefusedByUs && !strings.Contains(string(envoy), `"`+string(r)+`"`) {
			t.Errorf("envoy/view.go's counters: got none for %q, want one", r)
		}
	}
}

// TestWhere: the bar has the cached tokens and each cause with its share, up to the end, in a color of its own.
func TestWhere(t *testing.T) {
	r := report.Report{Accounted: 1000}
	if got := where(&report.Report{}); got != nil {
		t.Errorf("without an account: got %v, want no bar", got)
	}
	classes, text := map[string]bool{}, ""
	for c := account.Block; c <= account.Unknown; c++ {
		r.Uncached[c] = 10 * (1 + int(c))
	}
	bars := where(&r)
	for _, b := range bars {
		classes[b.Class] = true
		text += b.Name + " " + b.Tokens + ", "
	}
	last := bars[len(bars)-1]
	if want := "cached 34.0 %, unknown 11.0 %, new 10.0 %, "; !strings.HasPrefix(text, want) || len(classes) != len(bars) ||
		last.X != "297.0" || last.Width != "3.0" {
		t.Errorf("got %s, the last from %s over %s, in %d colors; want %s… up to 300 in as many colors", text, last.X, last.Width,
			len(classes), want)
	}
}
