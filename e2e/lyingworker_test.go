package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// counted listens, and counts who connects.
func counted(t *testing.T, network, address string) (at string, dials *atomic.Int64) {
	t.Helper()
	lis, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	dials = new(atomic.Int64)
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			_ = c.Close()
		}
	}()
	return lis.Addr().String(), dials
}

// Workers that are asked where they publish name another host, a file of this machine, and 1,024 ranks. Sightline dials the worker's own
// host alone, at the port that was named.
func TestLyingWorkersChooseNoHost(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	victim, stolen := counted(t, "tcp", "127.0.0.2:0")
	file := filepath.Join(t.TempDir(), "socket")
	_, opened := counted(t, "unix", file)
	own, honest := counted(t, "tcp", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(own)
	serving := func(owner string, answers map[string]string) string {
		s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				fmt.Fprintf(rw, `{"data":[{"id":"m-%s","owned_by":%q}]}`, owner, owner)
			} else if a, ok := answers[r.URL.Path]; ok {
				fmt.Fprint(rw, a)
			} else if r.URL.Path != "/health" {
				rw.WriteHeader(http.StatusNotFound)
			}
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	sglang := func(endpoint, replay string, ranks int) string {
		return serving("sglang", map[string]string{"/server_info": fmt.Sprintf(
			`{"version":"0.5.21","model_path":"m","page_size":16,"dp_size":%d,`+
				`"kv_events_config":{"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}}`,
			ranks, endpoint, replay)})
	}
	vllm := func(endpoint, replay string) string {
		return serving("vllm", map[string]string{"/version": `{"version":"0.32.0"}`, "/metrics": "vllm:cache_config_info{block_size=\"16\"} 1\n",
			"/kv_event_sources": fmt.Sprintf(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}}`,
				endpoint, replay)})
	}
	args := []string{"serve", "--listen", freeAddr(t), "--admin", freeAddr(t)}
	for _, addr := range []string{sglang("tcp://"+victim, "tcp://"+victim, 1024), sglang("ipc://"+file, "", 1),
		vllm("ipc://"+file, "ipc://"+file),
		vllm("tcp://"+victim, "ipc://"+file), vllm("tcp://127.0.0.2:"+port, "tcp://"+victim)} {
		args = append(args, "--worker", addr)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, bin, args...)
	said := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker's own socket is dialled", func() bool { return honest.Load() > 0 })
	time.Sleep(3 * time.Second) // several attempts of each
	stop()
	_ = cmd.Wait()
	if stolen.Load() > 0 || opened.Load() > 0 {
		t.Errorf("%d connections to another host, %d to a file, want none; it said:\n%s", stolen.Load(), opened.Load(), said)
	}
}
