package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestSwappedEventSockets: the event sockets of two of four workers are configured the wrong way round. All streams are live; a few
// requests show it, and neither of the two healthy workers is named. Once the file is right and read again, nothing is.
func TestSwappedEventSockets(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(model map[string]any){
		"sessions":       func(map[string]any) {},
		"no sessions":    func(model map[string]any) { model["session_ids"] = false },
		"no model files": func(model map[string]any) { delete(model, "dir") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var at [4][2]string // of each worker's events and replay
			l := startLab(t, func(o *lab.Options) {
				o.Workers = len(at)
				o.Sim = func(i int, c *sim.Config) {
					at[i] = [2]string{freeAddr(t), freeAddr(t)}
					c.Events, c.Replay = at[i][0], at[i][1]
				}
				o.Config = func(keys map[string]any) {
					change(keys["models"].([]any)[0].(map[string]any))
					for i, w := range keys["workers"].([]any) {
						e := at[[]int{1, 0, 2, 3}[i]]
						w.(map[string]any)["events"] = map[string]any{"zmq": "tcp://" + e[0], "replay": "tcp://" + e[1]}
					}
				}
			})
			for i := range 32 {
				if got := ask(t, l, fmt.Sprintf("Question %d, which nobody has asked before: %s?", i, strings.Repeat("why ", 60))); got.status != 200 {
					t.Fatalf("%+v", got)
				}
			}
			page := ""
			if err := lab.WaitFor(t.Context(), "both workers among the problems", func() bool {
				text, err := lab.Get("http://" + l.Admin + "/problems")
				page = string(text)
				one := gjson.Get(page, `#(code=="SL0308")`)
				return err == nil && len(one.Get("workers").Array()) == 2
			}); err != nil {
				t.Fatal(err, page)
			}
			one := gjson.Get(page, `#(code=="SL0308")`)
			if what := one.Get("what").Str; !strings.Contains(what, "worker-1, worker-2") || !strings.Contains(one.Get("fix").Str, "events.zmq") {
				t.Error(one.Raw)
			}
			if n := len(gjson.Parse(page).Array()); n != 1 {
				t.Error("something else is said to be wrong as well:", page)
			}
		})
	}
}
