package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
)

// pairing stands before a worker that decodes, as llm-d's sidecar does: a prefill or an encoding that fails is left to the worker.
// It dies with its worker, while dead says so; has is how many requests are there.
func pairing(t *testing.T, worker string, dead *atomic.Bool, has, prefilled, encoded, alone *atomic.Int64) *httptest.Server {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: worker})
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		if r.Method == http.MethodPost {
			has.Add(1)
			defer has.Add(-1)
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			part := func(at string, of *atomic.Int64) {
				req, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://"+at+r.URL.Path, bytes.NewReader(body))
				req.Header.Set("content-type", "application/json")
				if res, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
					of.Add(1)
				}
			}
			if at := r.Header.Get(extproc.HeaderEncoder); at != "" {
				part(at, encoded)
			}
			if at := r.Header.Get(extproc.HeaderPrefiller); at != "" {
				part(at, prefilled)
			} else {
				alone.Add(1)
			}
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// living is a stand under a mixed load, of which each fault is told what came of it.
type living struct {
	*chaos
	before resources
	had    int // requests that workers had when they were ended, since the fault began
}

// kill ends workers, and notes how many requests they have.
func (l *living) kill(workers ...*engineProcess) {
	for _, e := range workers {
		l.had += e.has()
		e.stop()
	}
}

// has returns how many requests the worker runs or holds back.
func (e *engineProcess) has() int {
	text, _ := lab.Get("http://" + e.addr + "/sim/stats")
	return int(gjson.GetBytes(text, "running").Int() + gjson.GetBytes(text, "waiting").Int())
}

// under runs a fault under load. No more requests than may fail before their first byte, none breaks off after it unless cuts, and
// five seconds after the load nothing is booked. With cuts, workers die, and the requests that they had read are counted apart: they
// are about what the workers had when they were told to end, and those that came before they were gone.
func (l *living) under(what string, may int, cuts bool, fault func()) {
	t := l.t
	t.Helper()
	l.begin()
	l.had = 0
	l.more(l.rate)
	fault()
	l.more(l.rate)
	all := l.end()
	sent := len(all)
	if cuts {
		all = slices.DeleteFunc(all, func(r attempt) bool { return hadBeenSent(r.reply) })
	}
	failed, cut, undecided, example := tally(all)
	t.Logf("%s: %d requests, %d lost with their worker, %d failed, %d cut, %d undecided %s", what, sent, sent-len(all),
		failed, cut, undecided, example)
	if failed > may || cut > 0 && !cuts || sent-len(all) > 2*l.had+4 {
		t.Errorf("%s: of %d requests %d were lost with their worker, which had %d, %d failed, %d cut", what, sent, sent-len(all), l.had,
			failed, cut)
	}
	began := time.Now()
	eventually(t, what+": nothing is booked", func() bool {
		return l.booked() == 0 && l.sum("sightline_requests_open")+l.sum("sightline_peer_requests") == 0
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%s: booked for %v more, want at most %v", what, took, 5*time.Second)
	}
}

func (l *living) sum(name string) (n int) {
	for _, r := range l.replicas {
		n += int(metricOf(l.t, r.admin, name, ""))
	}
	return n
}

func (l *living) missing(role string) int {
	n := 0
	for _, r := range l.replicas {
		n += int(metricOf(l.t, r.admin, "sightline_role_missing_total", fmt.Sprintf("role=%q", role)))
	}
	return n
}

// agree waits until every replica counts at each worker as many requests as the worker has, and returns how many those are.
func (l *living) agree(what string) (sum int) {
	l.t.Helper()
	said := ""
	defer func() {
		if l.t.Failed() {
			l.t.Log(said)
		}
	}()
	eventually(l.t, what+": every replica counts what the workers have", func() bool {
		same := true
		sum, said = 0, ""
		for _, e := range l.fleet {
			has := e.has()
			sum += has
			for _, r := range l.replicas {
				row := gjson.Get(page(l.t, r.admin, "/workers"), fmt.Sprintf("#(name==%q)", e.name))
				counts := int(row.Get("in_flight").Int())
				said += fmt.Sprintf("%s has %d, %s counts %d; ", e.name, has, r.name, counts)
				same = same && counts == has
			}
		}
		return same
	})
	return sum
}

func (l *living) stats(name string) (n int) {
	text, _ := l.envoy.Get(l.t.Context(), "/stats?filter=cluster.sightline."+name)
	_, _ = fmt.Sscanf(text, "cluster.sightline."+name+": %d", &n)
	return n
}

func (l *living) out(r *standing, name string) bool {
	return strings.HasPrefix(gjson.Get(page(l.t, r.admin, "/workers"), fmt.Sprintf("#(name==%q).health", name)).Str, "out")
}

// allOut waits until every replica has noticed that a worker is gone.
func (l *living) allOut(names ...string) {
	l.t.Helper()
	eventually(l.t, strings.Join(names, " and ")+" out", func() bool {
		for _, r := range l.replicas {
			for _, name := range names {
				if !l.out(r, name) {
					return false
				}
			}
		}
		return true
	})
}

// long sends requests that last until their worker is told to hurry.
func (l *living) long(n int) (ended chan attempt) {
	ended = make(chan attempt, n)
	for range n {
		go func() {
			body := fmt.Sprintf(`{"model":%q,"max_tokens":400,"stream":true,"messages":[{"role":"user","content":"Long %d: %s"}]}`,
				lab.ModelName, l.numbers.Add(1), strings.Repeat("a long story ", 30))
			ended <- l.send(body, true, 2*time.Minute)
		}()
		time.Sleep(10 * time.Millisecond) // what is decided at once elsewhere is not known yet
	}
	return ended
}

func (l *living) slow(by float64) {
	for _, e := range l.fleet {
		e.told(l.t, fmt.Sprint("slow?by=", by))
	}
}

// Two Sightlines before workers that prefill, decode and encode, which die in use, one and all of a role: what is left serves.
func TestRolesDie(t *testing.T) {
	var prefilled, encoded, alone atomic.Int64
	var dead [4]atomic.Bool
	var has [4]atomic.Int64
	encoder := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(encoder.Close)
	short := mixed(lab.ModelName)
	long := func(i int) (string, bool) { // a worker that decodes nothing would prefill as well as any
		body, stream := short(i)
		return strings.Replace(body, `"max_tokens":4`, `"max_tokens":60`, 1), stream
	}
	l := &living{chaos: &chaos{rate: 30, request: long}}
	l.stand = startStandWith(t, "", func(s *stand) {
		s.front = nil
		for i, role := range []string{"prefill", "prefill", "decode", "decode"} {
			w := s.workers[i].(map[string]any)
			w["role"] = role
			if role == "decode" {
				w["addr"] = pairing(t, s.fleet[i].addr, &dead[i], &has[i], &prefilled, &encoded, &alone).Listener.Addr().String()
				w["events"] = map[string]any{"zmq": "tcp://" + s.fleet[i].events, "replay": "tcp://" + s.fleet[i].replays}
				s.front = append(s.front, w["addr"].(string))
			}
		}
		s.workers = append(s.workers, map[string]any{"name": "encoder", "addr": encoder.Listener.Addr().String(), "role": "encode"})
	}, 4, 0, 2, 1, map[string]any{"fixed": unprobed("health_every", "200ms"), "replicas": true, "drain": "3s",
		"envoy": map[string]any{"message_timeout": "2s"}})
	l.under("all well", 0, false, func() {})
	if prefilled.Load() == 0 || encoded.Load() == 0 {
		t.Fatalf("%d prefilled apart, %d encoded, %d alone, want some, some", prefilled.Load(), encoded.Load(), alone.Load())
	}
	l.before = l.held()
	l.under("a worker that prefills dies", 0, false, func() {
		l.fleet[0].stop()
		l.allOut("worker-1")
		l.more(l.rate)
	})
	if n := l.missing("prefill"); n > 0 {
		t.Errorf("%d requests lacked a worker that prefills, want 0", n)
	}
	l.under("the other one too", 0, false, func() {
		l.fleet[1].stop()
		l.allOut("worker-1", "worker-2")
		before := prefilled.Load()
		l.more(l.rate)
		if n := l.missing("prefill"); n == 0 || prefilled.Load() > before {
			t.Errorf("%d counted without workers that prefill, %d prefilled apart: got %d, want some, at most %d",
				n, prefilled.Load()-before, prefilled.Load(), before)
		}
	})
	for _, e := range l.fleet[:2] {
		e.start(t)
		e.healthy(t)
	}
	eventually(t, "all are back", l.whole)
	l.under("the only worker that encodes dies", 0, false, func() {
		images := func(i int) string { // not seen before
			return fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%q}}]}]}`,
				lab.ModelName, dataURL(photo(uint64(10000+i))))
		}
		l.mu.Lock()
		l.also = images
		l.mu.Unlock()
		l.more(l.rate)
		encoder.CloseClientConnections()
		encoder.Close()
		l.allOut("encoder")
		before := encoded.Load()
		l.more(2 * l.rate)
		if n := l.missing("encode"); n == 0 || encoded.Load() > before {
			t.Errorf("%d counted without workers that encode, %d encoded: got %d, want some, at most %d",
				n, encoded.Load()-before, encoded.Load(), before)
		}
	})
	l.also = nil
	l.under("both Sightlines are restarted", 0, false, func() {
		for _, r := range l.replicas {
			r.signal(syscall.SIGTERM)
			<-r.done
			l.more(l.rate)
			r.start(t)
			eventually(t, r.name+" is back", l.whole)
		}
	})
	l.under("a worker that decodes dies", 0, true, func() {
		l.had = int(has[2].Load())
		dead[2].Store(true)
		l.fleet[2].stop()
		l.allOut("worker-3")
		l.more(l.rate)
		dead[2].Store(false)
		l.fleet[2].start(t)
		l.fleet[2].healthy(t)
		eventually(t, "it is back", l.whole)
	})
	if left := l.held().above(l.before); left != "" {
		t.Errorf("left behind: got %s, want %q", left, "")
	}
}

// Two Sightlines in two zones before two workers in each, with a limit of requests at each: the limit holds in sum, also while one
// Sightline is stopped, and the workers of a zone may all die.
func TestZonesAndLimits(t *testing.T) {
	t.Parallel()
	const each, workers = 8, 4
	l := &living{chaos: &chaos{rate: 30, request: mixed(lab.ModelName)}}
	l.stand = startStandWith(t, "", func(s *stand) {
		for i, zone := range []string{"a", "a", "b", "b"} {
			s.workers[i].(map[string]any)["zone"] = zone
		}
		for i, zone := range []string{"a", "b"} {
			s.replicas[i].keys = map[string]any{"zones": map[string]any{"own": zone, "to": map[string]any{"*": "100ms"}}}
		}
	}, workers, 0, 2, 1, map[string]any{"fixed": unprobed("health_every", "200ms"), "replicas": true, "drain": "0s", "max_in_flight": each})
	l.under("all well", 0, false, func() {})
	l.before = l.held()
	l.slow(500)
	inUse := func() (all, most int) { // what the workers have
		for _, e := range l.fleet {
			n := e.has()
			all, most = all+n, max(most, n)
		}
		return all, most
	}
	sent, refused := 3*each*workers, 0
	ended := l.long(sent)
	full := func(what string) { // each replica may give a place away that another gives away at the same moment
		t.Helper()
		eventually(t, what+": who got no place is refused", func() bool {
			for len(ended) > 0 {
				if r := <-ended; r.status != http.StatusTooManyRequests || !r.decided {
					t.Errorf("%s: status %d, %v, decided %v, want %d, true", what, r.status, r.err, r.decided, http.StatusTooManyRequests)
				}
				refused++
			}
			all, _ := inUse()
			return all == sent-refused
		})
		all, most := inUse()
		t.Logf("%s: %d of %d refused, at most %d at a worker, of %d", what, refused, sent, most, each)
		if most > each+3 || all < each*workers {
			t.Errorf("%s: got %d in flight, %d at a worker, want at most %d, at least %d", what, all, most, each+3, each*workers)
		}
	}
	full("both there")
	l.agree("both there")
	began := time.Now()
	l.replicas[0].signal(syscall.SIGSTOP)
	eventually(t, "Envoy sees that it does not answer", func() bool { return l.stats("membership_healthy") == 1 })
	eventually(t, "the other one has forgotten it", func() bool { return metricOf(t, l.replicas[1].admin, "sightline_peers ", "") == 0 })
	// Half of what the workers have is the stopped one's, of which only they tell.
	sent += each * workers
	for more := l.long(each * workers); time.Since(began) < faultLasts; time.Sleep(50 * time.Millisecond) {
		for len(more) > 0 {
			ended <- <-more
		}
	}
	full("one is stopped")
	l.replicas[0].signal(syscall.SIGCONT)
	l.agree("it goes on")
	l.slow(1)
	for range sent - refused {
		if r := <-ended; r.failed() {
			t.Errorf("a long one: status %d, %v", r.status, r.err)
		}
	}
	if n := l.agree("all have ended"); n != 0 {
		t.Errorf("%d in flight, want 0", n)
	}
	// Envoy tries the two workers that Sightline has named, which may both be of that zone.
	l.under("a zone dies", 5, true, func() {
		l.kill(l.fleet[:2]...)
		l.allOut("worker-1", "worker-2")
		l.more(2 * l.rate)
		for _, e := range l.fleet[:2] {
			e.start(t)
			e.healthy(t)
		}
		eventually(t, "they are back", l.whole)
	})
	if left := l.held().above(l.before); left != "" {
		t.Errorf("left behind: got %s, want %q", left, "")
	}
}
