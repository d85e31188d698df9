package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab"
)

// The release before, whose binary make upgrade builds, and this one share a NATS server, snapshots and a configuration. As
// docs/upgrade.md says of a release whose agents speak another version, Sightlines and agents are replaced together: one Sightline,
// the agents, the other Sightline; then the agents go back, and the Sightlines. No request fails, and what is known of the workers in
// the end is what they hold.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("SIGHTLINE_OLD")
	if old == "" {
		t.Skip("make upgrade runs it; without the release's own binary: TestPreviousRelease in app/serve and indexer/source/bus")
	}
	c := &chaos{rate: 20, request: mixed(lab.ModelName)}
	c.stand = startStandOf(t, old, 3, 2, 2, 4, map[string]any{})
	replace := func(what, bin string, first int) { // first: Sightlines that are replaced before the agents
		c.bin = bin
		c.begin()
		c.more(c.rate)
		begun := time.Now()
		again := func(p *process) {
			p.signal(syscall.SIGTERM)
			<-p.done
			p.start(t)
		}
		for i, r := range c.replicas {
			if i == first {
				for _, a := range c.agents {
					again(a)
				}
			}
			c.configure(r, c.workers)
			again(r.process)
			healthy := fmt.Sprint("cluster.sightline.membership_healthy: ", len(c.replicas))
			eventually(t, "Envoy asks "+r.process.name+" again", func() bool {
				stats, err := c.envoy.Get(t.Context(), "/stats?filter=cluster.sightline.membership_healthy")
				return err == nil && strings.TrimSpace(stats) == healthy
			})
		}
		blind := c.normal(what, begun)
		failed, undecided := 0, 0
		all := c.end()
		for _, r := range all {
			if r.failed() {
				failed++
			} else if !r.decided {
				undecided++
			}
		}
		index := c.settle()
		t.Logf("%s: %d requests, %d failed, %d undecided, normal after %.1f s, index %s",
			what, len(all), failed, undecided, blind.Seconds(), index)
		if failed > 0 || index != "equal" {
			t.Errorf("%s: %d failed, index %s, want 0, equal", what, failed, index)
		}
	}
	new, err := product()
	if err != nil {
		t.Fatal(err)
	}
	replace("to this release", new, 1)
	replace("back to the one before", old, 0)
}
