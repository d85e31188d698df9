package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/section"
	"github.com/sightline-router/sightline/lab/sim"
)

// `make bench-rivals`: real routers beside Sightline. Each has a fleet of its own, simulated workers that prefill in chunks, and all
// get the same open-loop schedule at the same moment. Only ratios of one run mean something.

// rival is a router before its own fleet.
type rival struct {
	name, flags string
	start       func(r *rivalRun) error
	light       bool // it is left out at full load: its own process would slow the others down
}

// rivalRun is a router that runs.
type rivalRun struct {
	*rival
	t       *testing.T
	dir     string
	pips    string // environments of the routers that come from pip
	workers []*sim.Worker
	addr    string // where it listens
	groups  []int  // its process groups
	key     string // what clients send
	hits    []rivalHit
	mu      sync.Mutex
	served  [rivalFleet][]sim.Served // what its workers say of the same requests
	cells   int
	cpu     float64 // ms a request, summed over the cells
	outside float64 // the same
	mib     float64 // most
}

// rivalHit is what came of one request.
type rivalHit struct {
	first          time.Duration // from its planned arrival to the first text
	prompt, cached int
	err            error
}

// rivals are in the order of the table. What they are started with is what their documentation recommends for vLLM.
var rivals = []*rival{
	{name: "Sightline", flags: "what `init` writes", start: (*rivalRun).sightline},
	{name: "smg 1.13.0", flags: "`--policy cache_aware --backend vllm`", start: func(r *rivalRun) error {
		args := []string{"launch", "--host", "127.0.0.1", "--port", port(r.addr), "--prometheus-port", port(freeAddr(r.t)), "--log-level", "warn",
			"--backend", "vllm", "--policy", "cache_aware", "--worker-urls"}
		return r.pip("smg-1.13.0", "smg", nil, append(args, r.urls()...)...)
	}},
	{name: "vllm-router 0.1.17, kv_aware", flags: "`--policy kv_aware`, event and replay sources, block size, `VLLM_ROUTER_TOKENIZER`",
		start: func(r *rivalRun) error {
			args := append(r.vllmRouter("kv_aware"), "--kv-event-block-size", "16", "--kv-event-model", lab.ModelName)
			for _, w := range r.workers {
				url := "http://" + w.Addr()
				args = append(args, "--kv-event-source", url+"="+tcp(w.EventsAddr()), "--kv-event-replay-source", url+"="+tcp(w.ReplayAddr()))
			}
			return r.pip("vllm-router-0.1.17", "vllm-router", []string{"VLLM_ROUTER_TOKENIZER=" + absolute(r.t, modelDir)}, args...)
		}},
	{name: "vllm-router 0.1.17, cache_aware", flags: "`--policy cache_aware`", start: func(r *rivalRun) error {
		return r.pip("vllm-router-0.1.17", "vllm-router", nil, r.vllmRouter("cache_aware")...)
	}},
	{name: "litellm 1.108.7", flags: "`routing_strategy: simple-shuffle`, one process", light: true, start: (*rivalRun).litellm},
	{name: "endpoint picker", flags: "`EPP`, llm-d's default plug-ins, Envoy", start: (*rivalRun).picker},
	{name: "Envoy 1.40, round robin", flags: "no retries, no log", start: func(r *rivalRun) error { return r.envoy("ROUND_ROBIN", "") }},
	{name: "Envoy 1.40, least request", flags: "no retries, no log", start: func(r *rivalRun) error { return r.envoy("LEAST_REQUEST", "") }},
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

func tcp(addr string) string { return "tcp://" + strings.TrimPrefix(addr, "tcp://") }

func (r *rivalRun) urls() (list []string) {
	for _, w := range r.workers {
		list = append(list, "http://"+w.Addr())
	}
	return list
}

func (r *rivalRun) vllmRouter(policy string) []string {
	return append([]string{"--host", "127.0.0.1", "--port", port(r.addr), "--prometheus-port", port(freeAddr(r.t)), "--log-level", "warning",
		"--policy", policy, "--worker-urls"}, r.urls()...)
}

// run starts a process in a group of its own; its output goes to a file in the run's folder.
func (r *rivalRun) run(env []string, args ...string) error {
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.dir, append(os.Environ(), env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.groups = append(r.groups, cmd.Process.Pid)
	r.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return nil
}

// pip runs a script of an environment, which was moved after it was made.
func (r *rivalRun) pip(environment, script string, env []string, args ...string) error {
	bin := filepath.Join(r.pips, environment, "bin")
	if _, err := os.Stat(filepath.Join(bin, script)); err != nil {
		return err
	}
	return r.run(env, append([]string{filepath.Join(bin, "python"), filepath.Join(bin, script)}, args...)...)
}

func (r *rivalRun) write(name string, v any) (path string, err error) {
	text, err := yaml.Marshal(v)
	path = filepath.Join(r.dir, name)
	return path, err2(err, os.WriteFile(path, text, 0o600))
}

func err2(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (r *rivalRun) sightline() error {
	bin, err := product()
	if err != nil {
		return err
	}
	var workers []any
	for _, w := range r.workers {
		workers = append(workers, map[string]any{"addr": w.Addr(), "events": map[string]any{"auto": true}})
	}
	file, err := r.write("sightline.yaml", map[string]any{"listen": "unix:" + filepath.Join(r.dir, "s"), "admin": freeAddr(r.t),
		"log_level": "warn",
		"media":     map[string]any{"allow": []string{"127.0.0.0/8"}}, "workers": workers,
		"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(r.t, modelDir)}},
		"envoy":  map[string]any{"listen": r.addr, "admin": freeAddr(r.t)}})
	if err != nil {
		return err
	}
	printed, err := exec.Command(bin, "envoy", "-c", file).Output()
	if err != nil {
		return err
	}
	front := filepath.Join(r.dir, "envoy.yaml")
	if err := err2(os.WriteFile(front, printed, 0o600), r.run(nil, bin, "serve", "-c", file)); err != nil {
		return err
	}
	return r.run(nil, binary(r.t), "-c", front, "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning")
}

func (r *rivalRun) litellm() error {
	var models []any
	for _, url := range r.urls() {
		models = append(models, map[string]any{"model_name": lab.ModelName, "litellm_params": map[string]any{
			"model": "hosted_vllm/" + lab.ModelName, "api_base": url + "/v1", "api_key": "none"}})
	}
	file, err := r.write("litellm.yaml", map[string]any{"model_list": models,
		"router_settings": map[string]any{"routing_strategy": "simple-shuffle"}})
	if err != nil {
		return err
	}
	r.key = "sk-" + rand.Text() // it does not start without one
	env := []string{"LITELLM_MASTER_KEY=" + r.key, "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"}
	return r.pip("litellm-1.108.7", "litellm", env,
		"--config", file, "--host", "127.0.0.1", "--port", port(r.addr), "--num_workers", "1", "--telemetry", "False")
}

// picker runs the executable that $EPP names, with the flags and the configuration of llm-d's endpoint picker.
func (r *rivalRun) picker() error {
	epp := os.Getenv("EPP")
	if epp == "" {
		return exec.ErrNotFound
	}
	var endpoints []any
	for i, w := range r.workers {
		endpoints = append(endpoints, map[string]any{"name": fmt.Sprint("w", i), "address": "127.0.0.1", "port": port(w.Addr())})
	}
	found, err := r.write("endpoints.yaml", map[string]any{"endpoints": endpoints})
	if err != nil {
		return err
	}
	plugins := []any{map[string]any{"type": "file-discovery", "name": "file-discovery", "parameters": map[string]any{"path": found}}}
	for _, name := range []string{"queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer", "metrics-data-source",
		"core-metrics-extractor"} {
		plugins = append(plugins, map[string]any{"type": name})
	}
	weigh := func(name string, weight int) any { return map[string]any{"pluginRef": name, "weight": weight} }
	file, err := r.write("epp.yaml", map[string]any{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": plugins,
		"schedulingProfiles": []any{map[string]any{"name": "default", "plugins": []any{weigh("queue-scorer", 2),
			weigh("kv-cache-utilization-scorer", 2), weigh("prefix-cache-scorer", 3)}}},
		"dataLayer": map[string]any{"discovery": map[string]any{"pluginRef": "file-discovery"}, "sources": []any{map[string]any{
			"pluginRef": "metrics-data-source", "extractors": []any{map[string]any{"pluginRef": "core-metrics-extractor"}}}}}})
	if err != nil {
		return err
	}
	listen := freeAddr(r.t)
	err = r.run([]string{"ENDPOINTS=" + found}, epp, "--config-file", file, "--grpc-port", port(listen),
		"--grpc-health-port", port(freeAddr(r.t)),
		"--metrics-port", port(freeAddr(r.t)), "--secure-serving=false", "--pool-name", "sim", "--metrics-endpoint-auth=false", "--tracing=false")
	return err2(err, r.envoy("", listen))
}

// envoy runs a plain Envoy: with a policy, or asking an endpoint picker.
func (r *rivalRun) envoy(policy, picker string) error {
	socket := func(addr string) any {
		return map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": gjson.Parse(port(addr)).Int()}}
	}
	cluster := func(name string, addrs ...string) map[string]any {
		var endpoints []any
		for _, addr := range addrs {
			endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": socket(addr)}})
		}
		return map[string]any{"name": name, "type": "STATIC", "connect_timeout": "1s", "load_assignment": map[string]any{
			"cluster_name": name, "endpoints": []any{map[string]any{"lb_endpoints": endpoints}}}}
	}
	var addrs []string
	for _, w := range r.workers {
		addrs = append(addrs, w.Addr())
	}
	workers, clusters, filters := cluster("workers", addrs...), []any{}, []any{}
	typed := func(name, kind string, v map[string]any) any {
		v["@type"] = "type.googleapis.com/envoy.extensions." + kind
		return map[string]any{"name": name, "typed_config": v}
	}
	if policy != "" {
		workers["lb_policy"] = policy
	} else {
		workers = map[string]any{"name": "workers", "type": "ORIGINAL_DST", "connect_timeout": "1s", "lb_policy": "CLUSTER_PROVIDED",
			"original_dst_lb_config": map[string]any{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}}
		asked := cluster("picker", picker)
		asked["typed_extension_protocol_options"] = map[string]any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": map[string]any{"http2_protocol_options": map[string]any{}}}}
		const duplex = "FULL_DUPLEX_STREAMED"
		clusters = append(clusters, asked)
		filters = append(filters, typed("envoy.filters.http.ext_proc", "filters.http.ext_proc.v3.ExternalProcessor", map[string]any{
			"grpc_service": map[string]any{"envoy_grpc": map[string]any{"cluster_name": "picker"}}, "message_timeout": "60s",
			"processing_mode": map[string]any{"request_header_mode": "SEND", "response_header_mode": "SEND", "request_body_mode": duplex,
				"response_body_mode": duplex, "request_trailer_mode": "SEND", "response_trailer_mode": "SEND"}}))
	}
	filters = append(filters, typed("envoy.filters.http.router", "filters.http.router.v3.Router", map[string]any{}))
	hosts := []any{map[string]any{"name": "all", "domains": []string{"*"}, "routes": []any{map[string]any{
		"match": map[string]any{"prefix": "/"}, "route": map[string]any{"cluster": "workers", "timeout": "0s"}}}}}
	manager := typed("envoy.filters.network.http_connection_manager", "filters.network.http_connection_manager.v3.HttpConnectionManager",
		map[string]any{"stat_prefix": "in", "route_config": map[string]any{"virtual_hosts": hosts}, "http_filters": filters})
	listener := map[string]any{"name": "in", "address": socket(r.addr), "filter_chains": []any{map[string]any{"filters": []any{manager}}}}
	file, err := r.write("envoy.yaml", map[string]any{"static_resources": map[string]any{"clusters": append(clusters, workers),
		"listeners": []any{listener}}})
	return err2(err, r.run(nil, binary(r.t), "-c", file, "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"))
}

// used sums CPU time and resident memory over the router's processes.
func (r *rivalRun) used() (cpu time.Duration, mib float64) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		_, after, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(after)
		if len(f) > 21 && slices.Contains(r.groups, number(f[2])) {
			cpu += time.Duration(number(f[11])+number(f[12])) * 10 * time.Millisecond
			mib += float64(number(f[21])*os.Getpagesize()) / (1 << 20)
		}
	}
	return cpu, mib
}

// ask sends one request and reads its answer.
func (r *rivalRun) ask(client *http.Client, began time.Time, q *rivalRequest) (h rivalHit) {
	due := began.Add(q.at)
	req, err := http.NewRequest(http.MethodPost, "http://"+r.addr+"/v1/chat/completions", bytes.NewReader(q.body))
	if err != nil {
		return rivalHit{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	resp, err := client.Do(req)
	if err != nil {
		return rivalHit{err: err}
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	last := ""
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		last = data
		chunk := gjson.Parse(data)
		if h.first == 0 && chunk.Get("choices.0.delta.content").Str != "" {
			h.first = time.Since(due)
		}
		if u := chunk.Get("usage"); u.IsObject() {
			h.prompt, h.cached = int(u.Get("prompt_tokens").Int()), int(u.Get("prompt_tokens_details.cached_tokens").Int())
		}
	}
	if lines.Err() != nil || resp.StatusCode != http.StatusOK || last != "[DONE]" || h.first == 0 {
		h.err = fmt.Errorf("status %d, %v, its end %.80q", resp.StatusCode, lines.Err(), last)
	}
	return h
}

// rivalRow is one router's result in one cell.
type rivalRow struct {
	n, failed              int
	mean, p99, cached, cpu float64 // ms, ms, share, ms of CPU a request
	mib                    float64
	first                  []time.Duration // of each counted request, in their order; 0: it failed
	load                   string          // the machine's, at the end
	outside                float64         // ms of the whole cell's mean: router, connections, client; the rest is the workers'
	queued, computing      float64
	computed               [rivalFleet]int // tokens prefilled by each worker
}

func TestBenchRivals(t *testing.T) {
	pips := os.Getenv("SIGHTLINE_BENCH_RIVALS")
	if pips == "" {
		t.Skip("20 minutes, and routers from pip: make bench-rivals")
	}
	prompt, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	var shots []string
	files := map[string][]byte{}
	for i := range rivalShots {
		files[fmt.Sprint(i)] = photo(uint64(7000 + i))
	}
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(files[filepath.Base(q.URL.Path)])
	}))
	t.Cleanup(host.Close)
	for i := range rivalShots {
		shots = append(shots, dataURL(files[fmt.Sprint(i)]), fmt.Sprintf("%s/a/%d", host.URL, i), fmt.Sprintf("%s/b/%d", host.URL, i))
	}
	var runs []*rivalRun
	for _, x := range rivals {
		named := func(s string) bool { return strings.Contains(x.name, s) }
		if x != rivals[0] && !slices.ContainsFunc(strings.Split(os.Getenv("ONLY"), ","), named) {
			continue
		}
		r := &rivalRun{rival: x, t: t, dir: t.TempDir(), pips: pips, addr: freeAddr(t), key: "none"}
		for i := range rivalFleet {
			w, err := sim.New(sim.Config{Model: lab.ModelName, Prompt: prompt, Speed: 1, StepTokens: 8192, MaxModelLen: 32768,
				Served: func(s sim.Served) {
					r.mu.Lock()
					defer r.mu.Unlock()
					r.served[i] = append(r.served[i], s)
				}})
			if err != nil {
				t.Fatal(err)
			}
			w.Start()
			t.Cleanup(w.Close)
			r.workers = append(r.workers, w)
		}
		if err := r.rival.start(r); err != nil {
			fmt.Printf("bench-rivals: %s: not run: %v\n", r.name, err)
			continue
		}
		runs = append(runs, r)
	}
	runs = slices.DeleteFunc(runs, func(r *rivalRun) bool {
		hello := &rivalRequest{body: []byte(`{"model":"` + lab.ModelName + `","stream":true,"messages":[{"role":"user","content":"hello"}]}`)}
		var h rivalHit
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			h = r.ask(http.DefaultClient, time.Now(), hello)
			if h.err == nil {
				return false
			}
		}
		log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
		fmt.Printf("bench-rivals: %s: not run: %v\n%s\n", r.name, h.err, log[max(0, len(log)-2000):])
		return true
	})
	if len(runs) == 0 || runs[0].name != "Sightline" {
		t.Fatal("Sightline does not run")
	}
	var text strings.Builder
	table := rivalTable(&text, runs)
	for i, w := range rivalWorkloads {
		if !strings.Contains(w.name, os.Getenv("WORKLOAD")) {
			continue
		}
		fmt.Printf("bench-rivals: %s: %s\n", w.name, w.about)
		loads := []float64{.6, 1}
		if w.name == "short prompts" {
			loads = []float64{0}
		}
		for j, load := range loads {
			if at := os.Getenv("LOAD"); at != "" && at != fmt.Sprint(100*load) {
				continue
			}
			rate, rows := playRivals(t, runs, shots, uint64(100+10*i+j), w.draw, load)
			table(w.name, load, rate, rows)
		}
	}
	rivalCosts(&text, runs)
	fmt.Println(text.String())
	if os.Getenv("DOC") != "" {
		section.Write(t, "docs/compare.md", "rivals", strings.TrimSpace(text.String()))
	}
}

// playRivals plays one schedule with all routers at once.
func playRivals(t *testing.T, runs []*rivalRun, shots []string, seed uint64, draw func(*rivalTraffic, float64), load float64) (
	rate float64, rows map[*rivalRun]rivalRow) {
	g, rate := drawRivals(seed+uint64(time.Now().Unix())<<16, shots, draw, load)
	rows = map[*rivalRun]rivalRow{}
	var all sync.WaitGroup
	was := map[*rivalRun]time.Duration{}
	for _, r := range runs {
		if r.light && load > .6 {
			continue
		}
		for _, w := range r.workers {
			w.SetSlow(map[bool]float64{true: 1, false: rivalSlow}[load == 0])
			w.ResetPrefixCache()
		}
		r.hits, r.served = make([]rivalHit, len(g.list)), [rivalFleet][]sim.Served{}
		was[r], _ = r.used()
	}
	began := time.Now().Add(time.Second)
	for r := range was {
		client := &http.Client{Timeout: 5 * time.Minute,
			Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 3 * time.Second}}
		for i := range g.list {
			all.Go(func() {
				time.Sleep(time.Until(began.Add(g.list[i].at)))
				r.hits[i] = r.ask(client, began, &g.list[i])
			})
		}
	}
	all.Wait()
	for r, before := range was {
		cpu, mib := r.used()
		row := rivalRow{cpu: ms(cpu-before) / float64(len(g.list)), mib: mib, load: loadAverage()}
		var first []time.Duration
		prompt := 0
		for i, h := range r.hits {
			counts := g.list[i].at >= time.Duration(rivalWarm)*time.Second
			if h.err != nil {
				h.first = 0
			}
			if counts {
				row.first = append(row.first, h.first)
			}
			switch {
			case h.err != nil:
				if row.failed == 0 {
					t.Logf("%s: %v", r.name, h.err)
				}
				row.failed++
			case counts:
				first, prompt = append(first, h.first), prompt+h.prompt
				row.cached += float64(h.cached)
			}
		}
		row.n = len(first)
		if row.n > 0 {
			row.mean, row.p99, row.cached = ms(mean(first)), ms(quantile(first, .99)), row.cached/float64(max(1, prompt))
		}
		row.addWorkers(r)
		rows[r] = row
	}
	return rate, rows
}

// addWorkers splits the time to the first token, over the whole cell, by what the workers say of the same requests.
func (row *rivalRow) addWorkers(r *rivalRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all, queued, computing time.Duration
	n := 0
	for i, list := range r.served {
		for _, s := range list {
			queued, computing, n = queued+s.Begun.Sub(s.Arrived), computing+s.First.Sub(s.Begun), n+1
			row.computed[i] += s.Prompt - s.Cached
		}
	}
	for _, h := range r.hits {
		all += h.first
	}
	each := func(d time.Duration) float64 { return ms(d) / float64(max(1, n)) }
	row.queued, row.computing, row.outside = each(queued), each(computing), each(all-queued-computing)
}

// ratio compares two routers' mean times, by the requests that both have answered.
func (row *rivalRow) ratio(ours *rivalRow) (median, noise float64) {
	var theirs, own []time.Duration
	for i, d := range row.first {
		if d > 0 && ours.first[i] > 0 {
			theirs, own = append(theirs, d), append(own, ours.first[i])
		}
	}
	if len(own) < alternations {
		return math.NaN(), math.NaN()
	}
	return alternated(theirs, own, mean)
}

// rivalTable writes the table's head and returns what adds a cell to it.
func rivalTable(text *strings.Builder, runs []*rivalRun) func(workload string, load float64, rate float64, rows map[*rivalRun]rivalRow) {
	fmt.Fprintf(text, "Measured by `make bench-rivals`, %s, %d cores shared with other work (load %s): %d simulated vLLM workers for "+
		"each router, %d times slower than a large GPU; one open-loop schedule for all at once, "+
		"%.0f s a cell, of which the first %d are not counted. Load is the work under round robin. The others' times are ratios to Sightline's, "+
		"the mean's the median of %d parts of the cell with half the distance between the least and the largest; **bold** differs by more than "+
		"that, the others are within their noise. "+
		"The workloads are those of `e2e/rivaltraffic_test.go`.\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), loadAverage(),
		rivalFleet, rivalSlow, rivalSeconds, rivalWarm, alternations)
	text.WriteString("First token, mean/p99/cached: in milliseconds and percent of the prompts.\n\n| workload |")
	for _, r := range runs {
		fmt.Fprintf(text, " %s |", r.name)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(runs)) + "\n")
	return func(workload string, load, rate float64, rows map[*rivalRun]rivalRow) {
		what := fmt.Sprintf("%s, %.0f %%, %.1f/s", workload, 100*load, rate)
		if load == 0 {
			what = fmt.Sprintf("%s, %.1f/s, full speed", workload, rate)
		}
		ours := rows[runs[0]]
		fmt.Fprintf(text, "| %s, load %s |", what, ours.load)
		for _, r := range runs {
			row, ok := rows[r]
			switch {
			case !ok:
				text.WriteString(" – |")
				continue
			case r == runs[0]:
				fmt.Fprintf(text, " %.0f/%.0f", row.mean, row.p99)
			default:
				ratio, noise := row.ratio(&ours)
				bold := map[bool]string{true: "**"}[math.Abs(ratio-1) > noise]
				fmt.Fprintf(text, " %s%.2f%s±%.2f/%.2f", bold, ratio, bold, noise, row.p99/ours.p99)
			}
			fmt.Printf("bench-rivals: %-34s %-32s n %d failed %d mean %.0f p99 %.0f ms cached %.3f cpu %.2f ms rss %.0f MiB; "+
				"whole cell: outside %.1f queue %.0f prefill %.0f ms, tokens computed %d\n", what, r.name, row.n, row.failed, row.mean, row.p99,
				row.cached, row.cpu, row.mib, row.outside, row.queued, row.computing, row.computed)
			fmt.Fprintf(text, "/%.0f", 100*row.cached)
			if row.failed > 0 {
				fmt.Fprintf(text, ", %d failed", row.failed)
			}
			text.WriteString(" |")
			r.cells, r.cpu, r.outside, r.mib = r.cells+1, r.cpu+row.cpu, r.outside+row.outside, max(r.mib, row.mib)
		}
		text.WriteString("\n")
	}
}

// rivalCosts writes what each router is started with and what it takes.
func rivalCosts(text *strings.Builder, runs []*rivalRun) {
	text.WriteString("\nEach router with its Envoy: ms outside the workers; CPU ms a request, idle work too; MiB at most.\n\n")
	for _, r := range runs {
		n := float64(max(1, r.cells))
		fmt.Fprintf(text, "- %s (%s): %.1f; %.1f; %.0f\n", r.name, r.flags, r.outside/n, r.cpu/n, r.mib)
	}
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.Fields(string(text) + " unknown")[0]
}

// TestRivalTable: only a ratio beyond its noise is bold, a request that failed is left out on both sides, and the load is told.
func TestRivalTable(t *testing.T) {
	runs := []*rivalRun{{rival: &rival{name: "ours"}}, {rival: &rival{name: "slower"}}, {rival: &rival{name: "as fast"}}}
	row := func(of func(i int) int) (r rivalRow) {
		for i := range 50 {
			r.first = append(r.first, time.Duration(of(i))*time.Millisecond)
		}
		r.mean, r.p99, r.load = ms(mean(r.first)), 20, "7.5"
		return r
	}
	rows := map[*rivalRun]rivalRow{runs[0]: row(func(int) int { return 10 }), runs[1]: row(func(i int) int {
		return map[bool]int{true: 0, false: 12}[i == 3]
	}), runs[2]: row(func(i int) int { return 8 + i/10 })}
	var text strings.Builder
	rivalTable(&text, runs)("chats", .6, 2, rows)
	const want = "| chats, 60 %, 2.0/s, load 7.5 | 10/20/0 | **1.20**±0.00/1.00/0 | 1.00±0.20/1.00/0 |\n"
	if !strings.HasSuffix(text.String(), want) {
		t.Errorf("got %q, want its end %q", text.String(), want)
	}
}
