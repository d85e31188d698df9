package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/fakekube"
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
	dialsOnlyItsOwn(t, exec.Command(bin, args...), honest, stolen, opened)
}

// dialsOnlyItsOwn runs a command until the socket that it may dial was dialled, and some time longer. The others must not be.
func dialsOnlyItsOwn(t *testing.T, cmd *exec.Cmd, own *atomic.Int64, others ...*atomic.Int64) {
	t.Helper()
	said := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	eventually(t, "the worker's own socket is dialled", func() bool { return own.Load() > 0 })
	time.Sleep(3 * time.Second) // several attempts of each
	for i, o := range others {
		if n := o.Load(); n > 0 {
			t.Errorf("got %d connections to a socket that is no worker's (%d), want none; it said:\n%s", n, i, said)
		}
	}
}

// Pods' annotations, and records in Dynamo's folder, name another host, a file of this machine, and a port of another service. The
// worker's own host alone is dialled.
func TestPodsAndRecordsChooseNoHost(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	victim, stolen := counted(t, "tcp", "127.0.0.2:0")
	file := filepath.Join(t.TempDir(), "socket")
	_, opened := counted(t, "unix", file)
	serve := func(keys map[string]any) *exec.Cmd {
		t.Helper()
		keys["listen"], keys["admin"] = freeAddr(t), freeAddr(t)
		text, err := json.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(t.TempDir(), "sightline.yaml")
		if err := os.WriteFile(config, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.Command(bin, "serve", "-c", config)
	}
	t.Run("pods", func(t *testing.T) {
		api, err := fakekube.Start(t.TempDir(), "llm")
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		own, honest := counted(t, "tcp", "127.0.1.41:0")
		_, port, _ := net.SplitHostPort(own)
		labels := map[string]string{"app": "vllm"}
		for i, says := range [][2]string{{"tcp://{ip}:" + port, "tcp://" + victim}, {"tcp://" + victim, ""}, {"ipc://" + file, "ipc://" + file},
			{"tcp://{ip}:" + port, "ipc://" + file}, {"tcp://127.0.0.2:" + strings.Split(victim, ":")[1], "tcp://127.0.1.41:22"}} {
			api.PutPod(fakekube.Pod{Name: fmt.Sprint("p", i), IP: fmt.Sprint("127.0.1.", 41+i), Ready: true}, labels,
				map[string]string{"sightline/model": "m", "sightline/events": says[0], "sightline/replay": says[1]})
		}
		api.PutPool("chat", labels, 8000)
		dialsOnlyItsOwn(t, serve(map[string]any{"fixed": map[string]any{"service_account": filepath.Dir(api.CAFile)},
			"kubernetes": map[string]any{"api": api.URL, "pool": "llm/chat"}}), honest, stolen, opened)
	})
	t.Run("records", func(t *testing.T) {
		own, honest := counted(t, "tcp", "127.0.1.51:0")
		root := t.TempDir()
		record := func(bucket, name string, value map[string]any) {
			t.Helper()
			text, err := json.Marshal(value)
			if err == nil {
				err = os.MkdirAll(filepath.Join(root, "v1", bucket), 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(root, "v1", bucket, url.PathEscape(name)), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		record("instances", "dynamo/backend/generate/7", map[string]any{"instance_id": 7,
			"transport": map[string]any{"tcp": "127.0.1.51:40001/generate"}})
		record("mdc", "dynamo/backend/generate/7", map[string]any{"instance_id": 7,
			"card_json": map[string]any{"display_name": "m", "kv_cache_block_size": 16}})
		for i, at := range []string{"tcp://" + own, "tcp://" + victim, "ipc://" + file, "tcp://127.0.1.51:22", "tcp://*:5557"} {
			record("event_channels", fmt.Sprint("namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/", i),
				map[string]any{"transport": map[string]any{"kind": "Zmq", "config": map[string]any{"endpoint": at}}})
		}
		dir, err := filepath.Abs(modelDir)
		if err != nil {
			t.Fatal(err)
		}
		dialsOnlyItsOwn(t, serve(map[string]any{"models": []any{map[string]any{"name": "m", "dir": dir, "block_hash": "dynamo"}},
			"dynamo": map[string]any{"discovery": root, "frontends": []string{freeAddr(t)}}}), honest, stolen, opened)
	})
}
