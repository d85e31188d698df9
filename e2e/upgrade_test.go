package e2e

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab"
)

// The release before, whose binary make upgrade builds, and this one share a NATS server, agents, their snapshots and a configuration:
// Sightlines are updated first, one after another, then agents; then both go back. No request fails, and what is known of the
// workers is what they hold throughout.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("SIGHTLINE_OLD")
	if old == "" {
		t.Skip("make upgrade runs it; without the release's own binary: TestPreviousRelease in app/serve and indexer/source/bus")
	}
	c := &chaos{rate: 20, request: mixed(lab.ModelName)}
	c.stand = startStandOf(t, old, 3, 2, 2, 4, map[string]any{"probe": false})
	replace := func(what, bin string, list ...*process) {
		c.bin = bin
		for _, p := range list {
			c.begin()
			c.more(c.rate)
			p.signal(syscall.SIGTERM)
			<-p.done
			p.start(t)
			c.normal(p.name, time.Now())
			failed, cut := 0, 0
			all := c.end()
			for _, r := range all {
				if r.failed() && r.began {
					cut++
				} else if r.failed() {
					failed++
				}
			}
			index := c.settle()
			t.Logf("%s to %s: %d requests, %d failed, %d cut, index %s", p.name, what, len(all), failed, cut, index)
			if failed+cut > 0 || index != "equal" {
				t.Error("want none, and equal")
			}
		}
	}
	new, err := product()
	if err != nil {
		t.Fatal(err)
	}
	replicas := []*process{c.replicas[0].process, c.replicas[1].process}
	replace("this release", new, replicas...)
	replace("this release", new, c.agents...)
	replace("the one before", old, c.agents...)
	replace("the one before", old, replicas...)
}
