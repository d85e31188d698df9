package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
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
			t.Errorf("%s ended with %d, want 0", r.name, code)
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
			t.Errorf("the first request then: status %d, %v, decided: %v, want !r.failed(), r.decided", r.status, r.err, r.decided)
		}
	}
}

// Envoy ends by the example's hook: the printed admin page lets it in, a long answer that is on its way arrives to its end, and only then
// the hook returns.
func TestEnvoyEndsGracefully(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Speed = 0.5 })
	body := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":200,"messages":[{"role":"user","content":"go on"}]}`, lab.ModelName)
	res, err := http.Post(l.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	whole, before := make(chan string, 1), time.Now()
	go func() {
		text, err := io.ReadAll(res.Body)
		whole <- fmt.Sprint(string(text), err)
	}()
	out, err := exec.CommandContext(t.Context(), "bash", "../examples/envoy/end.sh", l.EnvoyAdmin, "60").CombinedOutput()
	if err != nil {
		t.Fatalf("the hook: %v\n%s", err, out)
	}
	for _, s := range l.Sims {
		if n := s.Stats().Running; n > 0 {
			t.Errorf("the hook returned after %v, and %d answers have not ended, want 0", time.Since(before), n)
		}
	}
	if text := <-whole; !strings.HasSuffix(text, "data: [DONE]\n\n<nil>") {
		t.Errorf("the answer ends with %q, want [DONE]", text[max(0, len(text)-200):])
	}
	if _, err := lab.Get("http://" + l.EnvoyAdmin + "/ready"); err == nil {
		t.Error("Envoy is ready, want its health checks to fail")
	}
}
