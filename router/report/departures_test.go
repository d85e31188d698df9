package report

import (
	"encoding/json"
	"fmt"
	"testing"
)

// TestDeparturesAreBounded: however departures come, a period keeps maxDepartures of them, the dearest among these.
func TestDeparturesAreBounded(t *testing.T) {
	many := func(of string) (t departures, list []Departure) {
		for i := range 2 * maxDepartures {
			p := Departure{Model: fmt.Sprint(of, i), Tokens: 1000 - i, Requests: 1}
			t.put(&p)
			list = append(list, p)
		}
		return t, list
	}
	put, list := many("a")
	merged, _ := many("a")
	others, _ := many("b")
	merged.merge(others)
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	var read departures
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	for how, got := range map[string]departures{"put": put, "merged": merged, "read": read} {
		if list := got.sorted(); len(list) != maxDepartures || list[0].Tokens != 1000 {
			t.Errorf("%s: got %d, the dearest of %d tokens, want %d, and 1000", how, len(list), list[0].Tokens, maxDepartures)
		}
	}
}
