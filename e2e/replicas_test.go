package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
	"github.com/sightline-router/sightline/router/peers"
)

// Two Sightlines share what they decide, behind one Envoy, which logs to both, and behind two, each of which logs to whichever its
// connection goes to: both know all that is in flight. One is killed under 200 requests a second: none fails, and within 2 s the
// other one counts its own alone. Started again, both know all once more.
func TestReplicasAreOne(t *testing.T) {
	t.Parallel()
	const long = 24
	for name, envoys := range map[string]int{"one Envoy": 1, "two Envoys": 2} {
		t.Run(name, func(t *testing.T) {
			s := startStand(t, 2, 0, 2, 4, map[string]any{"drain": "0s", "fixed": unprobed(), "replicas": true})
			if envoys == 2 {
				s.beforeTwo()
			}
			one, two := s.replicas[0], s.replicas[1]
			open := func(r *standing) int { return int(metricOf(t, r.admin, "sightline_requests_open", "")) }
			theirs := func(r *standing) int { return int(metricOf(t, r.admin, "sightline_peer_requests", "")) }
			agreed := func(n int) func() bool {
				return func() bool {
					return inFlight(t, one.admin) == n && inFlight(t, two.admin) == n && open(one) == theirs(two) &&
						open(two) == theirs(one) && open(one)+open(two) == n
				}
			}
			text := strings.Repeat("A letter of which there are many. ", 8)
			request := func(i, tokens int) string {
				return fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":true,"messages":[{"role":"user","content":"Letter %d: %s"}]}`,
					lab.ModelName, tokens, i, text)
			}
			eventually(t, "they hear each other", func() bool {
				return metricOf(t, one.admin, "sightline_peers ", "") == 1 && metricOf(t, two.admin, "sightline_peers ", "") == 1
			})
			eventually(t, "both are asked", func() bool { // an Envoy's threads learn one after another who is well
				s.send(request(1<<21, 1), true, time.Minute)
				return metricOf(t, one.admin, "sightline_decisions_total", "") > 0 && metricOf(t, two.admin, "sightline_decisions_total", "") > 0
			})
			slowly := func(by float64) {
				for _, e := range s.fleet {
					e.told(t, fmt.Sprint("slow?by=", by))
				}
			}
			slowly(200) // the long ones last until they are told to end
			ended := make(chan attempt, long)
			for i := range long {
				go func() { ended <- s.send(request(i, 1000), true, 5*time.Minute) }()
			}
			eventually(t, "both know all", agreed(long))
			if open(one) == 0 || open(two) == 0 {
				t.Fatalf("one of them decides nothing: got %d and %d, want some, some", open(one), open(two))
			}
			slowly(4) // a long one takes 9 s
			load := startLoad(t, 200, func(i int) reply { return s.send(request(long+i, 2), true, time.Minute).reply })
			best := time.Hour
			for try := 0; try < 3 && best > 2*time.Second; try++ { // a machine that is busy may have the other one wait
				load.more(200)
				began := time.Now()
				one.stop()
				eventually(t, "its requests are forgotten", func() bool {
					return metricOf(t, two.admin, "sightline_peers ", "") == 0 && theirs(two) == 0
				})
				best = min(best, time.Since(began))
				one.start(t)
				eventually(t, "it is back", s.whole)
			}
			t.Logf("%.2f s after a kill the other one counted its own alone", best.Seconds())
			if best > 5*time.Second { // 2 s on a machine that is not busy: make chaos
				t.Errorf("got %v, want 5 s at most", best)
			}
			load.more(100)
			failed := 0
			for _, r := range load.stop() {
				if r.err != nil || r.status != http.StatusOK || !strings.Contains(string(r.body), "[DONE]") {
					failed++
					t.Logf("status %d, %v: %.100s", r.status, r.err, r.body)
				}
			}
			t.Logf("%d of %d requests failed", failed, load.sent)
			for range long {
				if r := <-ended; r.failed() {
					failed++
					t.Logf("a long one: status %d, %v: %.100s", r.status, r.err, r.body)
				}
			}
			if failed > 0 {
				t.Error("want none")
			}
			eventually(t, "nothing is in flight", agreed(0))

			forwarded := metricOf(t, one.admin, "sightline_access_log_entries_total", `"forwarded"`) + metricOf(t, two.admin,
				"sightline_access_log_entries_total", `"forwarded"`)
			t.Logf("%v reports were sent to whom they are about", forwarded)
			if forwarded == 0 {
				t.Error("want some: each of the last ones comes to one of two at random")
			}
		})
	}
}

var logClusters = regexp.MustCompile(`(grpc_service: .*cluster_name: sightline)_log_\d+`)

// beforeTwo puts two Envoys in the place of the one, whose clients' connections go to them in turn. They log as before a name that
// stands for both Sightlines.
func (s *stand) beforeTwo() {
	s.t.Helper()
	s.envoy.Stop()
	var addrs []string
	for range 2 {
		o := s.options
		o.Listen, o.Admin = freeAddr(s.t), freeAddr(s.t)
		text, err := envoy.Generate(o)
		if err == nil && !logClusters.Match(text) {
			err = errors.New("logs go to no cluster of one Sightline")
		}
		if err == nil {
			s.envoy, err = envoytest.Run(s.t.Context(), binary(s.t), logClusters.ReplaceAll(text, []byte("$1")), o.Admin,
				&s.log, "--concurrency", "2")
		}
		if err != nil {
			s.t.Fatalf("%v\n%s", err, s.log.String())
		}
		s.t.Cleanup(s.envoy.Stop)
		addrs = append(addrs, o.Listen)
	}
	var turn atomic.Uint32
	s.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addrs[turn.Add(1)%2])
	}
	eventually(s.t, "Envoy finds both", s.whole)
}

// Two Sightlines that have no file of the model share what requests taught: a conversation that began at one is known to the other, and
// to one that was killed and started again. A request follows one that begins alike and that the other has just decided.
func TestReplicasLearnTogether(t *testing.T) {
	t.Parallel()
	const talks = 11 // odd, since Envoy asks them in turn
	s := startStand(t, 2, 0, 2, 0, map[string]any{"drain": "0s", "fixed": unprobed(), "replicas": true,
		"models": []any{map[string]any{"name": lab.ModelName}}})
	all := make([][]any, talks)
	first := make([]attempt, talks)
	message := func(role, content string) any { return map[string]any{"role": role, "content": content} }
	ask := func(talk int) attempt {
		t.Helper()
		body, err := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 4, "messages": all[talk]})
		if err != nil {
			t.Fatal(err)
		}
		r := s.send(string(body), false, time.Minute)
		if r.failed() || !r.decided {
			t.Fatalf("status %d, %v: %.200s", r.status, r.err, r.body)
		}
		return r
	}
	learnedAt := func(r *standing) float64 {
		return metricOf(t, r.admin, "sightline_learned_requests_total", `"learned"`)
	}
	remembered := func(r *standing) float64 { return metricOf(t, r.admin, "sightline_learned_bytes", "") }
	one, two := s.replicas[0], s.replicas[1]
	greetings := 0
	greet := func() attempt {
		greetings++
		return s.send(fmt.Sprintf(`{"model":%q,"max_tokens":1,"messages":[{"role":"user","content":"%d is %s"}]}`, lab.ModelName, greetings,
			words(rand.New(rand.NewPCG(uint64(greetings), 32)), 40)), false, time.Minute)
	}
	taken := func(r *standing) float64 {
		return metricOf(t, r.admin, "sightline_peer_entries_total", `"lessons taken"`)
	}
	eventually(t, "Envoy asks both, and they teach each other", func() bool { // once they have one secret
		greet()
		return taken(one) > 0 && taken(two) > 0
	})
	eventually(t, "no more greetings are learned", func() bool {
		was := learnedAt(one) + learnedAt(two)
		time.Sleep(1500 * time.Millisecond)
		return learnedAt(one)+learnedAt(two) == was
	})
	before := learnedAt(one) + learnedAt(two)
	for i := range all {
		all[i] = []any{message("user", words(rand.New(rand.NewPCG(uint64(i), 31)), 100))}
		first[i] = ask(i)
		all[i] = append(all[i], message("assistant", gjson.GetBytes(first[i].body, "choices.0.message.content").Str), message("user", "Why?"))
	}
	defer func() {
		t.Logf("learned: got %v + %v, want %v; remembered: got %v and %v bytes, want the same", learnedAt(one), learnedAt(two), before+talks,
			remembered(one), remembered(two))
	}()
	eventually(t, "both know all", func() bool {
		return learnedAt(one)+learnedAt(two) >= before+talks && remembered(one) == remembered(two)
	})
	decider := func(r attempt) string { return peers.InstanceOf(r.header.Get("x-sightline-id")) }
	// expect sends all conversations and returns how many were decided by another one than from. All must be learned.
	expect := func(what string, others func(talk int, decider string) bool) {
		t.Helper()
		n := 0
		for try := 0; n < 3 && try < 10; try++ {
			for i := range all {
				r := ask(i)
				worker, reason := r.header.Get("x-sightline-worker"), r.header.Get("x-sightline-reason")
				if reason != "learned" && reason != "predicted" || // at first it goes on with an answer
					worker != first[i].header.Get("x-sightline-worker") {
					t.Errorf("%s: conversation %d began at %s, and went on at %s: %s", what, i, first[i].header.Get("x-sightline-worker"),
						worker, reason)
				}
				if others(i, decider(r)) {
					n++
				}
			}
		}
		if n < 3 {
			t.Errorf("%s: got %d decisions, want at least 3", what, n)
		}
	}
	expect("decided by the other one", func(talk int, by string) bool { return by != decider(first[talk]) })
	// The second of two requests that begin alike follows the first, which the other one has just decided.
	bookings := func(r *standing) float64 { return metricOf(t, r.admin, "sightline_peer_entries_total", `"taken"`) }
	pairs := 0
	for i := 0; pairs < 6 && i < 40; i++ {
		begin := message("system", words(rand.New(rand.NewPCG(uint64(i), 33)), 300))
		siblings := [2]attempt{}
		heard := bookings(one) + bookings(two)
		for j := range siblings {
			body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 1, "messages": []any{begin,
				message("user", fmt.Sprintf("%d is a number?", j))}})
			siblings[j] = s.send(string(body), false, time.Minute)
			eventually(t, "the other one hears of it", func() bool { return bookings(one)+bookings(two) >= heard+float64(2*j+2) })
		}
		first, second := siblings[0], siblings[1]
		if decider(first) == decider(second) {
			greet() // so that the other one is asked next
			continue
		}
		pairs++
		a, b := first.header.Get("x-sightline-worker"), second.header.Get("x-sightline-worker")
		if a != b {
			t.Errorf("the first of two siblings went to %s, the second to %s: %s, want %q", a, b, second.header.Get("x-sightline-reason"), b)
		}
	}
	if pairs < 6 {
		t.Errorf("%d pairs of siblings were decided by both, want at least 6", pairs)
	}
	were := map[string]bool{}
	for range 20 {
		were[decider(greet())] = true
	}
	one.stop()
	one.start(t)
	blocks := func(r *standing) float64 { return metricOf(t, r.admin, "sightline_index_blocks", "") }
	stands := 0 // looks in a row: with the other one's secret it asks for all blocks again, and may have looked complete just before
	eventually(t, "it is back, and knows what the other one does", func() bool {
		if s.whole() && remembered(one) > 0 && remembered(one) == remembered(two) && s.whole() && blocks(one) == blocks(two) {
			stands++
		} else {
			stands = 0
		}
		return stands >= 20
	})
	expect("decided by one that started again", func(_ int, by string) bool { return !were[by] })
}

// Two Sightlines without a key file share a random secret. Whoever reaches `listen` opens streams there, claims a fixed secret and
// offers it, under a name of its own and under a replica's: no stream is heard, and both go on with what they had.
func TestStrangersAreNoReplicas(t *testing.T) {
	t.Parallel()
	s := startStand(t, 1, 0, 2, 0, map[string]any{"drain": "0s", "fixed": unprobed(), "replicas": true})
	one, two := s.replicas[0], s.replicas[1]
	entries := func(r *standing, what string) float64 {
		return metricOf(t, r.admin, "sightline_peer_entries_total", `"`+what+`"`)
	}
	paired := func() bool {
		return metricOf(t, one.admin, "sightline_peers ", "") == 1 && metricOf(t, two.admin, "sightline_peers ", "") == 1
	}
	eventually(t, "they hear each other", paired)
	conn, err := grpc.NewClient("passthrough:///"+one.listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before := entries(one, "streams refused")
	for _, version := range []string{"v1", "v2"} {
		for _, name := range []string{"STRANGER", "STRANGE2"} {
			st, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/sightline.peers."+version+".Line/Tell")
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range []string{"a token", "\x05\x00\x00\x09IDOFAKEY\x01\x00", "\x0b" + strings.Repeat("s", 32)} {
				_ = st.SendMsg(wrapperspb.Bytes([]byte("P\x02" + name + entry)))
			}
			want := codes.PermissionDenied
			if version == "v1" {
				want = codes.Unimplemented
			}
			if err := st.RecvMsg(new(wrapperspb.BytesValue)); status.Code(err) != want {
				t.Errorf("%s, %s: the stream ended with %v, want %v", version, name, err, want)
			}
		}
	}
	if got := entries(one, "streams refused") - before; got != 2 || !paired() {
		t.Errorf("%v streams were refused, want 2; still two replicas: %v", got, paired())
	}
}
