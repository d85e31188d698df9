package explain

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
)

// The table has the columns that are not empty for all candidates, aligned in all rows.
func TestTable(t *testing.T) {
	var e admin.Explained
	e.Considered = 3
	e.Ranked = []router.Considered{
		{Candidate: decisionlog.Candidate{Worker: "a", Rank: -1, Exact: 80, Predicted: 80, Cost: 9, Terms: choose.Terms{Prefill: 9}}},
		{Candidate: decisionlog.Candidate{Worker: "b", Rank: 1, Cost: 150, Terms: choose.Terms{Prefill: 89, Delay: 61}}, Doubtful: true},
		{Candidate: decisionlog.Candidate{Worker: "c", Rank: -1}, Out: "full"},
	}
	var out strings.Builder
	table(&out, &e)
	want := `
3 candidates, in tokens; cost is the sum of the columns after it:
    worker  holds  predicted  cost  prefill  others' delay
         a     80         80     9        9              0
  b rank 1      0          0   150       89             61  its events are late
         c      0          0  full
`
	got := out.String()
	for _, line := range strings.Split(strings.TrimSpace(want), "\n") {
		if !strings.Contains(got, strings.TrimRight(line, " ")) {
			t.Errorf("got %s\nwant %q in it", got, line)
		}
	}
	if strings.Contains(got, "queue") || strings.Contains(got, "tiers") {
		t.Errorf("got %q, want no %q in it, no %q in it", got, "queue", "tiers")
	}
}

// A decision that is not exact since a rule has stepped aside names the rule, and why.
func TestRuleAside(t *testing.T) {
	var e admin.Explained
	e.ID, e.RulesAside = "d", []audit.Aside{{Rule: "images", Needed: 32, Agreed: 3,
		First: audit.Finding{Worker: "gpu-1", Says: "the medium at token 15 has 54 tokens here and 391 there"}}}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := (&Options{}).showExplained(&out, text); err != nil {
		t.Fatal(err)
	}
	if want := "rule        the rule for images has stepped aside, since gpu-1 contradicts it: the medium at token 15 has 54 tokens here " +
		"and 391 there; it is back after 32 requests that agree (3 so far)\n"; !strings.Contains(out.String(), want) {
		t.Errorf("got %s\nwant %q in it", out.String(), want)
	}
}
