package fleetsim

import (
	"os"
	"testing"
)

// TestByMemory: without a rule for any prompt, the mean time to the first token is nearly that of exact reading: what is lost is the first
// sighting. SIGHTLINE_SIM_TRACE=mooncake_conversation.jsonl.gz plays all.
func TestByMemory(t *testing.T) {
	limits, list := map[string]float64{"chats": 1.08, "images": 1.03}, Scenarios()
	if file := os.Getenv("SIGHTLINE_SIM_TRACE"); file != "" {
		trace, err := readScenario(file, 8, list)
		if err != nil {
			t.Fatal(err)
		}
		list, limits["agents"], limits["hot image"], limits["mooncake"] = append(list, trace), 1.05, 1.03, 1.1
	}
	for i := range list {
		sc := &list[i]
		most, wanted := limits[sc.Name]
		if !wanted {
			continue
		}
		trace := sc.at(0.7, 1)
		_, exact := sc.run(trace, Rival{"sightline", newSightline})
		_, learned := sc.run(trace, Rival{"by memory", byMemory})
		ratio := float64(learned.Mean) / float64(exact.Mean)
		t.Logf("%s: %v by memory, %v by reading: %.3f; p99 %v, %v; hits %.3f, %.3f", sc.Name, learned.Mean, exact.Mean, ratio,
			learned.TTFT.P99, exact.TTFT.P99, learned.Hits, exact.Hits)
		if ratio > most {
			t.Errorf("%s: want at most %v", sc.Name, most)
		}
		if sc.Name == "images" {
			_, links := sc.run(trace, Rival{"by memory, images by URL", byLinks})
			ratio := float64(links.Mean) / float64(exact.Mean)
			t.Logf("%s by URL: %v: %.3f", sc.Name, links.Mean, ratio)
			if ratio > 1.045 {
				t.Errorf("%s by URL: want at most 1.045", sc.Name)
			}
		}
	}
}
