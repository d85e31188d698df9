package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab"
)

// Two Sightlines behind one Envoy are restarted one after another, under load: no request fails, and each is decided.
func TestRollingRestart(t *testing.T) {
	s := startStand(t, 2, 0, 2, 0, map[string]any{"drain": "3s", "envoy": map[string]any{"message_timeout": "2s"}})
	request := mixed(lab.ModelName)
	var all []attempt
	got := make(chan attempt, 1<<16)
	l := startLoad(t, 60, func(i int) reply {
		body, stream := request(i)
		r := s.send(body, stream, 30*time.Second)
		got <- r
		return r.reply
	})
	l.more(60)
	for _, r := range s.replicas {
		r.signal(syscall.SIGTERM)
		eventually(t, r.name+" says at once that it is not ready", func() bool {
			_, err := lab.Get("http://" + r.admin + "/readyz")
			return err != nil
		})
		<-r.done
		if code := r.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d", r.name, code)
		}
		l.more(30)
		r.start(t)
		eventually(t, r.name+" is back", s.whole)
		l.more(60)
	}
	l.stop()
	close(got)
	failed, undecided := 0, 0
	for r := range got {
		all = append(all, r)
		if r.failed() {
			failed++
		}
		if !r.decided {
			undecided++
		}
	}
	t.Logf("%d requests, %d failed, %d undecided", len(all), failed, undecided)
	if failed+undecided > 0 {
		t.Error("want none")
	}
}

// A Sightline that is healthy again gets the very next request, however short its absence was: the cluster's update_merge_window
// makes Envoy apply changes of health at once, which it delays by a second by default. Rolling restarts depend on it.
func TestBackAtOnce(t *testing.T) {
	t.Parallel()
	s := startStand(t, 1, 0, 1, 0, map[string]any{})
	request := mixed(lab.ModelName)
	healthy := func(n string) func() bool {
		return func() bool {
			stats, err := s.envoy.Get(t.Context(), "/stats?filter=cluster.sightline.membership_healthy")
			return err == nil && strings.TrimSpace(stats) == "cluster.sightline.membership_healthy: "+n
		}
	}
	for i := range 3 {
		s.replicas[0].signal(syscall.SIGSTOP)
		eventually(t, "Envoy sees that it does not answer", healthy("0"))
		s.replicas[0].signal(syscall.SIGCONT)
		eventually(t, "Envoy sees that it is back", healthy("1"))
		body, stream := request(i)
		if r := s.send(body, stream, 30*time.Second); r.failed() || !r.decided {
			t.Errorf("the first request then: status %d, %v, decided: %v", r.status, r.err, r.decided)
		}
	}
}
