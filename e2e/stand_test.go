package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// stand is the product as it is run in production, on loopback: several Sightlines behind one real Envoy, before simulated
// workers, each a process of its own. Of some workers agents tell, over a NATS server.
type stand struct {
	t        *testing.T
	bin      string // of Sightlines and agents that start from now on
	fleet    []*engineProcess
	replicas []*standing
	nats     *process
	agents   []*process
	disk     string   // where NATS keeps its streams; a small one in a namespace of its own where small is set
	small    bool     // for the next start of NATS
	workers  []any    // as the configuration lists them
	front    []string // addresses that Envoy may dial
	keys     map[string]any
	options  envoy.Options
	envoy    *envoytest.Process
	url      string // of Envoy
	client   *http.Client
	log      lockedBuffer // Envoy's
}

// standing is one Sightline of a stand.
type standing struct {
	*process
	listen, admin, file string
	keys                map[string]any // of its own configuration
}

// natsVar turns the test binary into a NATS server of that configuration.
const natsVar = "SIGHTLINE_E2E_NATS"

func serveNATS(file string) error {
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		return err
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return nil
}

// startStand starts all of it, and waits until every replica hears every worker and Envoy has found every replica. The last of the
// workers are those with agents. keys are of the replicas' configuration, args Envoy's.
func startStand(t *testing.T, workers, agents, replicas int, speed float64, keys map[string]any, args ...string) *stand {
	t.Helper()
	return startStandOf(t, "", workers, agents, replicas, speed, keys, args...)
}

// startStandOf is startStand with another binary of Sightlines and agents.
func startStandOf(t *testing.T, other string, workers, agents, replicas int, speed float64, keys map[string]any, args ...string) *stand {
	t.Helper()
	return startStandWith(t, other, nil, workers, agents, replicas, speed, keys, args...)
}

// startStandWith is startStandOf; change may change the list of workers, where Envoy finds them, and each replica's own keys.
func startStandWith(t *testing.T, other string, change func(s *stand), workers, agents, replicas int, speed float64,
	keys map[string]any, args ...string) *stand {
	t.Helper()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, bin: cmp.Or(other, bin), keys: keys,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 2 * time.Second}}}
	for i := range workers {
		s.fleet = append(s.fleet, startEngine(t, fmt.Sprint("worker-", i+1), "0.32.0", simCommand(t, speed)))
	}
	for _, e := range s.fleet {
		e.healthy(t)
	}
	s.workers, _ = workersOf(s.fleet)
	s.front = addrsOf(s.fleet)
	if agents > 0 {
		s.startNATS(agents)
	}
	listens := make([]string, replicas)
	for i := range listens {
		listens[i] = freeAddr(t)
		s.replicas = append(s.replicas, &standing{listen: listens[i], admin: freeAddr(t), file: filepath.Join(t.TempDir(), "sightline.yaml")})
	}
	if change != nil {
		change(s)
	}
	if s.keys["replicas"] != nil {
		s.keys["replicas"] = map[string]any{"addresses": listens}
	}
	for i, r := range s.replicas {
		s.configure(r, s.workers)
		r.process = startProcess(t, fmt.Sprint("sightline-", i+1), func() *exec.Cmd { return exec.Command(s.bin, "serve", "-c", r.file) })
	}
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.Workers, o.DebugHeaders = freeAddr(t), freeAddr(t), strings.Join(listens, ","), s.front, true
	o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.0.0/8"), FirstPort: 1, LastPort: 65535}}
	s.url, s.options = "http://"+o.Listen, o
	s.startEnvoy(args...)
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

// configure writes a replica's file.
func (s *stand) configure(r *standing, workers []any) {
	all := map[string]any{"listen": r.listen, "admin": r.admin, "log_level": "warn", "workers": workers,
		"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(s.t, modelDir)}}}
	maps.Copy(all, s.keys)
	maps.Copy(all, r.keys)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	if s.nats != nil {
		all["nats"] = map[string]any{"url": s.keys["nats"].(map[string]any)["url"],
			s.says("auth", "nkey"): filepath.Join(s.disk, "router.nk")}
	}
	text, err := yaml.Marshal(all)
	if err == nil {
		err = os.WriteFile(r.file, text, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// says returns what this release calls something, or what the release before does if that one's binary is run.
func (s *stand) says(now, before string) string {
	if s.bin == os.Getenv("SIGHTLINE_OLD") {
		return before
	}
	return now
}

// startNATS starts a server, and agents of the last n workers.
func (s *stand) startNATS(n int) {
	t, addr := s.t, freeAddr(s.t)
	s.disk, s.keys["nats"] = t.TempDir(), map[string]any{"url": "nats://" + addr}
	var names []string
	for _, e := range s.fleet {
		names = append(names, e.name)
	}
	_, err := bus.WriteUsers(s.disk, names)
	file, streams := filepath.Join(s.disk, "nats.conf"), filepath.Join(s.disk, "streams")
	if err == nil {
		err = errors.Join(os.Mkdir(streams, 0o700),
			os.WriteFile(file,
				fmt.Appendf(nil, "listen: %q\njetstream { store_dir: %q, max_file_store: 1GB }\nmax_payload: 1MB\ninclude users.conf\n",
					addr, streams), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	s.nats = startProcess(t, "nats", func() *exec.Cmd {
		c := exec.Command(os.Args[0])
		if s.small {
			c = exec.Command("unshare", "-Urm", "sh", "-c", `mount -t tmpfs -o size=16m small "$1" && exec "$2"`, "sh", streams, os.Args[0])
		}
		c.Env = append(os.Environ(), natsVar+"="+file)
		return c
	})
	for i, e := range s.fleet[len(s.fleet)-n:] {
		s.agents = append(s.agents, startProcess(t, "agent of "+e.name, func() *exec.Cmd {
			return exec.Command(s.bin, "agent", "--worker", e.name, "--nats", "nats://"+addr,
				s.says("--nats-auth", "--nats-nkey"), filepath.Join(s.disk, "agent-"+e.name+".nk"),
				"--zmq", "tcp://"+e.events, "--replay", "tcp://"+e.replays,
				s.says("--http", "--metrics"), "http://"+e.addr+s.says("", "/metrics"))
		}))
		s.workers[len(s.fleet)-n+i].(map[string]any)["events"] = map[string]any{"nats": true}
	}
}

// startEnvoy starts Envoy, or another one once the last has ended or hands over.
func (s *stand) startEnvoy(args ...string) {
	s.t.Helper()
	var err error
	s.envoy, err = envoytest.Start(s.t.Context(), binary(s.t), s.options, &s.log, append(args, "--concurrency", "2")...)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log.String())
	}
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
	took                   time.Duration
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
	sent := time.Now()
	r := attempt{reply: do(s.client, req), stream: stream}
	r.took = time.Since(sent)
	r.began, r.decided = r.status != 0, r.header.Get("x-sightline-id") != ""
	return r
}
