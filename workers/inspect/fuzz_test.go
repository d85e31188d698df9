package inspect

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"github.com/sightline-router/sightline/engine/rules"
)

// worker answers requests without a network.
type worker map[string]string

func (w worker) RoundTrip(r *http.Request) (*http.Response, error) {
	text, ok := w[r.URL.Path]
	status := http.StatusOK
	if !ok {
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// FuzzAsk: whatever a worker answers, accepted facts are plain text and possible numbers, and every socket is on its own host.
func FuzzAsk(f *testing.F) {
	const page = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"9\",enable_prefix_caching=\"True\",prefix_caching_hash_algo=\"sha256\"} 1\nvllm:num_requests_running{engine=\"0\"} 1\n"
	models := func(owner string) string {
		return `{"data":[{"id":"m","owned_by":"` + owner + `","root":"/models/m","max_model_len":4096},{"id":"a","parent":"m"}]}`
	}
	f.Add(models("vllm"), `{"version":"0.32.0"}`, page,
		`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv"}}`)
	f.Add(models("sglang"), `{}`, "sglang:num_running_reqs 1\n",
		`{"version":"0.5.23","page_size":1,"dp_size":2,"kv_events":{"publisher":"zmq","endpoint_port_base":65535,"replay_endpoint_port_base":99999}}`)
	f.Add(models("sglang"), `{}`, "",
		`{"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://evil:5557\",\"replay_endpoint\":\"tcp://*:0\"}","dp_size":3}`)
	f.Add(models("tensorrt_llm"), `{"version":"1.2.0"}`, "trtllm_num_requests_running 1\n", `{}`)
	f.Add(models("nvidia"), `7`, "", "")
	f.Fuzz(func(t *testing.T, models, version, page, settings string) {
		client := &http.Client{Transport: worker{"/v1/models": models, "/version": version, "/metrics": page,
			"/prometheus/metrics": page, "/server_info": settings, "/kv_event_sources": settings}}
		got := rules.Facts{Addr: "10.0.0.1:8000"}
		_ = ask(t.Context(), client, &got, false) // Ask would hide a panic
		plain := func(what, s string) {
			if len(s) > 1<<10 || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%s: %q", what, s)
			}
		}
		for _, s := range got.Served {
			plain("a name", s.ID+"")
			plain("a root", s.Root)
		}
		plain("a version", got.Version)
		plain("a template", got.ChatTemplate)
		for _, n := range []int{got.MaxModelLen, got.Ranks, got.BlockSize, got.Blocks, got.MatchUnit} {
			if n < 0 || n > 1<<40 {
				t.Fatalf("got %+v, want no number below 0 or beyond 2^40", got)
			}
		}
		if len(got.Events) > 1024 {
			t.Fatalf("%d ranks, want at most 1024", len(got.Events))
		}
		for _, e := range got.Events {
			for _, socket := range []string{e.Pub, e.Replay} {
				u, err := url.Parse(socket)
				if socket != "" && (err != nil || u.Hostname() != "10.0.0.1" || u.Port() == "" || u.Port() == "0" ||
					len(u.Port()) > 5 || len(u.Port()) == 5 && u.Port() > "65535" || strings.HasPrefix(u.Port(), "-")) {
					t.Fatalf("socket %q of %q", socket, settings)
				}
			}
		}
	})
}
