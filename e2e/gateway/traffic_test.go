package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/sim"
)

// podIPs are those of three simulated workers.
var podIPs = []string{"10.0.0.11", "10.0.0.12", "10.0.0.13"}

func startPods(t *testing.T) (pods []*sim.Worker) {
	for _, ip := range podIPs {
		pods = append(pods, startPod(t, ip))
	}
	return pods
}

// ask sends a conversation about a topic, and gives the answer's status (0: none came) and whether the worker had the
// whole prompt but for its last blocks. What the template puts before every topic each worker has soon.
func ask(t *testing.T, url, topic string, header http.Header, pad int) (status int, hit bool) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "max_tokens": 1, "metadata": map[string]string{"pad": strings.Repeat("x", pad)},
		"messages": []any{map[string]any{"role": "user", "content": strings.Repeat(topic+" ", 200)}}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("content-type", "application/json")
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	var page bytes.Buffer
	_, _ = page.ReadFrom(resp.Body)
	usage := gjson.GetBytes(page.Bytes(), "usage")
	return resp.StatusCode, usage.Get("prompt_tokens_details.cached_tokens").Int() > usage.Get("prompt_tokens").Int()-32
}

// drive sends requests through a gateway made of the folder envoy-gateway: conversations find their worker again,
// clients do not steer, the bodies of images pass, and with Sightline killed every request is answered and balanced.
func drive(t *testing.T, url string, pods []*sim.Worker, sightline *process) {
	t.Helper()
	ok := func(what string, header http.Header, pad int) {
		t.Helper()
		if status, _ := ask(t, url, what, header, pad); status != http.StatusOK {
			t.Errorf("%s: status %d, want %d", what, status, http.StatusOK)
		}
	}
	const topics = 12 // so many do not find their worker by chance
	round := 0
	eventually(t, "all conversations find their worker again", func() bool {
		round++
		for _, again := range []bool{false, true} {
			for i := range topics {
				status, hit := ask(t, url, fmt.Sprint("topic", round, i), nil, 0)
				if status != http.StatusOK || again && !hit {
					return false
				}
			}
		}
		return true
	})
	ok("a body of 15 MiB", nil, 15<<20)
	ok("an address that is no worker's", http.Header{"X-Gateway-Destination-Endpoint": {"127.0.0.1:9903"}}, 0)
	for i := range 6 { // to its own worker, whichever a client names
		// Envoy Gateway's access log tells a second late that a request has ended; until then it counts as load.
		eventually(t, "no request is in flight", func() bool {
			return strings.Count(get("http://127.0.0.1:9903/workers"), `"in_flight":0`) == len(podIPs)
		})
		for _, ip := range podIPs {
			steer := http.Header{"X-Gateway-Destination-Endpoint": {ip + ":8000"}, "X-Target-Worker": {ip + ":8000"}}
			if status, hit := ask(t, url, fmt.Sprint("topic", round, i), steer, 0); status != http.StatusOK || !hit {
				t.Errorf("a client names %s: status %d, cached: %t, want %d, true", ip, status, hit, http.StatusOK)
			}
		}
	}
	sightline.kill()
	before := pods[0].Stats().Requests
	for i := range 30 {
		ok(fmt.Sprint("alone", i), http.Header{"X-Gateway-Destination-Endpoint": {podIPs[0] + ":8000"}}, 0)
	}
	if n := pods[0].Stats().Requests - before; n == 30 {
		t.Errorf("without Sightline, a client's header chooses the worker: got %d, want other than 30", n)
	}
}
