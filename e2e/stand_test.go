package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/testkit/envoytest"
	"github.com/sightline-router/sightline/internal/testkit/lab"
)

// stand is the product as it is run in production, on loopback: several Sightlines behind one real Envoy, before simulated
// workers, each a process of its own.
type stand struct {
	t        *testing.T
	fleet    []*engineProcess
	replicas []*standing
	envoy    *envoytest.Process
	url      string // of Envoy
	client   *http.Client
	log      lockedBuffer // Envoy's
}

// standing is one Sightline of a stand.
type standing struct {
	*process
	listen, admin string
}

// startStand starts all of it, and waits until every replica hears every worker and Envoy has found every replica. keys are of the
// replicas' configuration.
func startStand(t *testing.T, workers, replicas int, speed float64, keys map[string]any) *stand {
	t.Helper()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	for i := range workers {
		s.fleet = append(s.fleet, startEngine(t, fmt.Sprint("worker-", i+1), "0.32.0", simCommand(bin, speed)))
	}
	for _, e := range s.fleet {
		e.healthy(t)
	}
	list, _ := workersOf(s.fleet)
	var listens []string
	for i := range replicas {
		r := &standing{listen: freeAddr(t), admin: freeAddr(t)}
		all := map[string]any{"listen": r.listen, "admin": r.admin, "log_level": "warn", "workers": list,
			"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir)}}}
		maps.Copy(all, keys)
		text, err := yaml.Marshal(all)
		file := filepath.Join(t.TempDir(), "sightline.yaml")
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.process = startProcess(t, fmt.Sprint("sightline-", i+1), func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
		s.replicas, listens = append(s.replicas, r), append(listens, r.listen)
	}
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.Workers, o.DebugHeaders = freeAddr(t), freeAddr(t), strings.Join(listens, ","), addrsOf(s.fleet), true
	s.url = "http://" + o.Listen
	if s.envoy, err = envoytest.Start(t.Context(), binary(t), o, &s.log, "--concurrency", "2"); err != nil {
		t.Fatalf("%v\n%s", err, s.log.String())
	}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.envoy.Stop()
		if t.Failed() {
			t.Logf("Envoy's log, its end:\n%s", s.log.String())
		}
	})
	eventually(t, "all is up", s.whole)
	return s
}

// whole tells whether Envoy finds every replica well, and every replica hears every worker.
func (s *stand) whole() bool {
	stats, err := s.envoy.Get(s.t.Context(), "/stats?filter=cluster.sightline.membership_healthy")
	if err != nil || strings.TrimSpace(stats) != fmt.Sprint("cluster.sightline.membership_healthy: ", len(s.replicas)) {
		return false
	}
	for _, r := range s.replicas {
		rows, err := lab.Get("http://" + r.admin + "/workers")
		if err != nil || len(gjson.GetBytes(rows, `#(events=="live")#`).Array()) != len(s.fleet) {
			return false
		}
	}
	return true
}

// attempt is what became of one request, as its client sees it.
type attempt struct {
	reply
	stream, began, decided bool // began: there was a first byte
}

// failed: no good answer, or one that broke off.
func (r attempt) failed() bool {
	return r.err != nil || r.status != http.StatusOK || r.stream && !bytes.Contains(r.body, []byte("[DONE]"))
}

// send asks for the i-th answer of a mixed load.
func (s *stand) send(body string, stream bool, patience time.Duration) attempt {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", s.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return attempt{reply: reply{err: err}}
	}
	req.Header.Set("content-type", "application/json")
	r := attempt{reply: do(s.client, req), stream: stream}
	r.began, r.decided = r.status != 0, r.header.Get("x-sightline-id") != ""
	return r
}
