package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
)

func TestPickIsObeyed(t *testing.T) {
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	unrouted := w.stat("http.ingress.ext_proc.failure_mode_allowed")
	for name, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
		for range 3 {
			for _, addr := range w.addrs() {
				r := w.send(c, "POST", "/v1/chat/completions?x=1", chat(script{Targets: []string{addr}, Reason: "exact"}), nil)
				if r.err != nil || r.status != 200 || r.Worker != addr {
					t.Fatalf("%s: %v, status %d from %q, want %q", name, r.err, r.status, r.Worker, addr)
				}
				if r.Path != "/v1/chat/completions?x=1" || r.id() == "" || r.Headers["X-Target-Worker"] != nil {
					t.Errorf("%s: the worker saw %s, %v", name, r.Path, r.Headers)
				}
			}
		}
	}
	if n := w.stat("http.ingress.ext_proc.failure_mode_allowed") - unrouted; n != 0 {
		t.Errorf("%d requests without a decision", n)
	}
}

// No header that a client sends has an effect on where its request goes, or reaches a worker under a name that steers,
// whether Sightline is there or not.
func TestClientCannotSteer(t *testing.T) {
	w := start(t, 2, nil)
	target := w.workers[0].addr
	bait := startWorker(t) // no worker of Envoy's: nothing may ever reach it
	admin := w.envoy.Admin // nor this
	spoofs := map[string]http.Header{
		"plain":            {"X-Target-Worker": {bait.addr}},
		"lower case":       {"x-target-worker": {bait.addr}},
		"odd case":         {"X-tArGeT-wOrKeR": {bait.addr}},
		"twice":            {"X-Target-Worker": {bait.addr, bait.addr}},
		"list":             {"X-Target-Worker": {bait.addr + "," + bait.addr}},
		"two spellings":    {"X-Target-Worker": {bait.addr}, "x-target-worker": {bait.addr}},
		"admin port":       {"X-Target-Worker": {admin}},
		"second":           {"X-Target-Worker-2": {bait.addr}},
		"third":            {"X-Target-Worker-3": {bait.addr}},
		"original dst":     {"X-Envoy-Original-Dst-Host": {bait.addr}},
		"gateway endpoint": {"X-Gateway-Destination-Endpoint": {bait.addr}},
		"rank":             {"X-Data-Parallel-Rank": {"7"}},
		"rank, odd case":   {"x-DATA-parallel-rank": {"7", "8"}},
		"prefiller":        {"X-Prefiller-Host-Port": {bait.addr}},
		"Dynamo's worker":  {"X-Dynamo-Worker-Instance-Id": {"7"}, "X-Dynamo-Dp-Rank": {"1"}},
		"Dynamo's prefill": {"x-dynamo-prefill-instance-id": {"7"}, "X-Dynamo-Prefill-Dp-Rank": {"1"}},
		"Dynamo's old":     {"X-Worker-Instance-Id": {"7"}},
		"prefiller, lower": {"x-prefiller-anything": {bait.addr, bait.addr}},
		"encoder":          {"X-Encoder-Hosts-Ports": {bait.addr}},
		"subset":           {"X-Gateway-Destination-Endpoint-Subset": {bait.addr}, "x-gateway-destination-endpoint-served": {bait.addr}},
		"decision id":      {"X-Sightline-Id": {"FORGED"}},
		"ours, unknown":    {"X-Sightline-Anything": {"1"}},
		"reason":           {"X-Route-Reason": {"exact"}},
		"retries":          {"X-Envoy-Max-Retries": {"100"}, "X-Envoy-Retry-On": {"5xx"}},
		"timeout":          {"X-Envoy-Upstream-Rq-Timeout-Ms": {"1"}},
		"attempts":         {"X-Envoy-Attempt-Count": {"9"}},
		"all":              {"X-Target-Worker": {bait.addr}, "X-Target-Worker-2": {bait.addr}, "X-Route-Reason": {"exact"}, "X-Sightline-Id": {"FORGED"}},
	}
	check := func(t *testing.T, decided bool) {
		for name, h := range spoofs {
			for proto, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
				for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
					r := w.send(c, "POST", path, chat(script{Targets: []string{target}, Reason: "load"}), maps.Clone(h))
					where := fmt.Sprintf("%s, %s %s", name, proto, path)
					if r.err != nil || r.status != 200 {
						t.Fatalf("%s: %v, status %d", where, r.err, r.status)
					}
					if r.Worker == bait.addr {
						t.Fatalf("%s: the request reached the address that the client named", where)
					}
					picked := decided && path == "/v1/chat/completions"
					if picked && r.Worker != target {
						t.Errorf("%s: worker %s, want the pick %s", where, r.Worker, target)
					}
					if picked != (r.id() != "") || r.id() == "FORGED" {
						t.Errorf("%s: decision id %q", where, r.id())
					}
					for k, v := range r.Headers {
						k = strings.ToLower(k)
						steers := strings.HasPrefix(k, "x-target-worker") || k == "x-data-parallel-rank" || strings.HasPrefix(k, "x-prefiller-") ||
							strings.HasPrefix(k, "x-encoder-") || strings.HasPrefix(k, "x-dynamo-") || k == "x-worker-instance-id" ||
							strings.HasPrefix(k, "x-gateway-destination-endpoint") ||
							strings.HasPrefix(k, "x-sightline-") || k == "x-route-reason"
						ours := picked && (k == "x-target-worker-2" && v[0] == target || k == "x-route-reason" && v[0] == "load" || k == "x-sightline-id")
						if steers && !(ours && len(v) == 1) {
							t.Errorf("%s: the worker saw %s: %q", where, k, v)
						}
						if k == "x-envoy-attempt-count" && v[0] != "1" {
							t.Errorf("%s: the worker saw %s: %q", where, k, v)
						}
					}
				}
			}
		}
	}
	t.Run("Sightline down", func(t *testing.T) { check(t, false) })
	s := w.runSightline(extproc.Options{})
	t.Run("Sightline up", func(t *testing.T) { check(t, true) })
	s.stop()
	t.Run("Sightline stopped", func(t *testing.T) { check(t, false) })
}

// Whatever is decided, Envoy dials only the addresses that its own configuration allows.
func TestOnlyAllowedAddressesAreDialled(t *testing.T) {
	w := start(t, 1, nil)
	w.runSightline(extproc.Options{})
	bait := startWorker(t)
	for name, addr := range map[string]string{
		"not a worker":     bait.addr,
		"one port above":   fmt.Sprintf("127.0.0.1:%d", portOf(t, w.workers[0].addr)+1),
		"one port below":   fmt.Sprintf("127.0.0.1:%d", portOf(t, w.workers[0].addr)-1),
		"Envoy's admin":    w.envoy.Admin,
		"another loopback": fmt.Sprintf("127.0.0.2:%d", portOf(t, w.workers[0].addr)),
	} {
		r := w.post(chat(script{Targets: []string{addr, addr}}), nil)
		if r.err != nil || r.status != 403 || !strings.Contains(string(r.body), "RBAC") {
			t.Errorf("%s: %v, status %d, %s; want 403", name, r.err, r.status, r.body)
		}
	}
}

func portOf(t *testing.T, addr string) (port int) {
	t.Helper()
	if _, err := fmt.Sscanf(addr[strings.LastIndexByte(addr, ':'):], ":%d", &port); err != nil {
		t.Fatal(err)
	}
	return port
}

func TestRefusalIsJSON(t *testing.T) {
	w := start(t, 1, nil)
	w.runSightline(extproc.Options{})
	for status, retry := range map[int]string{404: "", 429: "1", 503: "1"} {
		r := w.post(chat(script{Refuse: status}), nil)
		var said struct {
			Error struct{ Message, Type string }
		}
		if r.err != nil || r.status != status || json.Unmarshal(r.body, &said) != nil || said.Error.Message != "refused as told" || said.Error.Type == "" {
			t.Errorf("%d: %v, status %d, body %s", status, r.err, r.status, r.body)
		}
		if r.header.Get("content-type") != "application/json" || r.header.Get("retry-after") != retry {
			t.Errorf("%d: headers %v", status, r.header)
		}
	}
}

func TestRankReachesItsWorkerOnly(t *testing.T) {
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	a, b := w.workers[0], w.workers[1]
	rank := 3
	s := script{Targets: []string{a.addr, b.addr}, Rank: &rank}
	if r := w.post(chat(s), nil); r.Worker != a.addr || len(r.Headers["X-Data-Parallel-Rank"]) != 1 || r.Headers["X-Data-Parallel-Rank"][0] != "3" {
		t.Errorf("worker %s, rank %q; want rank 3 at the pick", r.Worker, r.Headers["X-Data-Parallel-Rank"])
	}
	a.kill()
	for range 5 {
		if r := w.post(chat(s), nil); r.err != nil || r.Worker != b.addr || r.Headers["X-Data-Parallel-Rank"] != nil {
			t.Errorf("%v, worker %s, rank %q; want the second choice without a rank", r.err, r.Worker, r.Headers["X-Data-Parallel-Rank"])
		}
	}
}

func TestUnixSocketAndTCP(t *testing.T) {
	w := start(t, 1, func(o *envoy.Options) { o.Sightline = freeAddr(t) })
	w.runSightline(extproc.Options{})
	if r := w.post(chat(script{Targets: w.addrs()}), nil); r.status != 200 || r.id() == "" {
		t.Errorf("over TCP: status %d, decision %q", r.status, r.id())
	}
}
