package fleetsim

import (
	"strings"
	"testing"
)

// TestMissed: the goals that missed.md lists are goals, and a miss by other figures is told from them.
func TestMissed(t *testing.T) {
	m, err := ReadMissed("missed.md")
	if err != nil || len(m) == 0 {
		t.Fatalf("got %d rows, %v, want some", len(m), err)
	}
	known := map[string]bool{}
	for _, g := range goals() {
		known[g.about] = true
	}
	for run := range m {
		_, about, _ := strings.Cut(run, " % | ")
		for _, played := range []string{"best rival's", "replicas, ", "separate prefills", "by priority"} { // those that playGoals makes
			known[about] = known[about] || strings.Contains(about, played)
		}
		if !known[about] {
			t.Errorf("missed.md: got the goal %q, want one of goals()", about)
		}
	}
	m = Missed{"chats, 70 % | mean": "0.927, 1.134"}
	for measured, want := range map[string]string{"0.930, 1.120": missedAsStated, "0.930, 1.300": "MISSED, stated: 0.927, 1.134",
		"0.930": "MISSED, stated: 0.927, 1.134"} {
		if got := m.verdict("chats", 0.7, "mean", measured); got != want {
			t.Errorf("%s: got %q, want %q", measured, got, want)
		}
	}
	if got := m.verdict("images", 0.7, "mean", "2.0"); got != "MISSED" {
		t.Errorf("a goal that the page does not have: got %q, want MISSED", got)
	}
}
