package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"
	"golang.org/x/sys/unix"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
	"github.com/sightline-router/sightline/lab/sim"
)

// From running workers to an image that goes back to the worker that has it: what `sightline init` writes is served as it is, but
// for the ports of this machine.
func TestInit(t *testing.T) {
	t.Parallel()
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for range 2 {
		addrs = append(addrs, simulated(t, sim.Config{Model: lab.ModelName, Prompt: p}).Addr())
	}
	l := initialised(t, modelDir, 1, addrs...)
	seen := func(question string) (worker string, r result) {
		r = ask(t, l, question, dataURL(photo(77)))
		quiet(t, l)
		return lastDecision(t, l).Get("worker").Str, r
	}
	first, r := seen("What is this?")
	if r.status != 200 || r.cached != 0 {
		t.Fatalf("got %+v, want status 200, cached 0", r)
	}
	eventually(t, "the image's blocks", func() bool {
		worker, r := seen("And what is that?")
		return worker == first && r.cached > 380
	})
	for _, other := range []string{"This?", "That?", "What else?"} {
		if worker, r := seen(other); worker != first || r.cached < 380 {
			t.Errorf("%s: at %s with %d tokens cached, the first was at %s, want %q, at least 380", other, worker, r.cached, first, first)
		}
	}
}

// TestSecondNode: the second node of a data-parallel vLLM names its ranks by their numbers among all nodes. Its rank r is the r-th of them:
// the events and the load of both are read, and a request goes to the rank that has its image.
func TestSecondNode(t *testing.T) {
	t.Parallel()
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	node := simulated(t, sim.Config{Model: lab.ModelName, Prompt: p, Ranks: 2, FirstRank: 8, Version: "0.33.0"})
	l := initialised(t, modelDir, 2, node.Addr())
	eventually(t, "the load of both ranks", func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && len(gjson.GetBytes(rows, "#.told.others_in_flight").Array()) == 2
	})
	const images = 4
	var home [images]int64
	used := map[int64]bool{}
	for i := range home {
		if r := ask(t, l, "What is this?", dataURL(photo(uint64(80+i)))); r.status != 200 {
			t.Fatalf("got %+v, want status 200", r)
		}
		quiet(t, l)
		home[i] = lastDecision(t, l).Get("rank").Int()
		used[home[i]] = true
	}
	for i, rank := range home {
		eventually(t, "the image's blocks", func() bool {
			r := ask(t, l, fmt.Sprint("And what is that, ", userNumber.Load(), "?"), dataURL(photo(uint64(80+i))))
			quiet(t, l)
			d := lastDecision(t, l)
			return d.Get("rank").Int() == rank && r.cached > 380 && r.cached == int(d.Get("cached_tokens").Int())
		})
	}
	if !used[0] || !used[1] {
		t.Errorf("images on the ranks %v, want on both", home)
	}
}

// TestFilesOnly: what the init container of examples/kubernetes/files runs fetches what base's configuration lacks. Without a hub it
// ends well, with a message, and the files come with the next start.
func TestFilesOnly(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	const args = "init, --files-only, /etc/sightline/sightline.yaml"
	manifest, err := os.ReadFile("../examples/kubernetes/files/kustomization.yaml")
	if err != nil || !strings.Contains(string(manifest), "args: ["+args+"]") {
		t.Fatalf(`%v: its args are not %s, want no error, strings.Contains(string(manifest), "args: ["+args+"]")`, err, args)
	}
	text, err := os.ReadFile("../examples/kubernetes/base/sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "sightline.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "dir: /models", "dir: "+dir+"/models")), 0o600); err != nil {
		t.Fatal(err)
	}
	hub := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch name := filepath.Base(r.URL.Path); {
		case r.Header.Get("Authorization") != "Bearer hf_x":
			rw.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/api/models/Qwen/Qwen2.5-VL-7B-Instruct/revision/main":
			var files []string
			list, _ := os.ReadDir(modelDir)
			for _, f := range list {
				files = append(files, fmt.Sprintf(`{"rfilename":%q}`, f.Name()))
			}
			fmt.Fprintf(rw, `{"sha":%q,"siblings":[%s]}`, strings.Repeat("0a", 20), strings.Join(files, ","))
		default:
			http.ServeFile(rw, r, filepath.Join(modelDir, name))
		}
	}))
	defer hub.Close()
	run := func(endpoint, args string) (string, error) {
		c := exec.Command(bin, strings.Split(strings.Replace(args, "/etc/sightline", dir, 1), ", ")...)
		c.Env = append(os.Environ(), "HF_ENDPOINT="+endpoint, "HF_TOKEN=hf_x")
		said, err := c.CombinedOutput()
		return string(said), err
	}
	if said, err := run("http://127.0.0.1:9", args); err != nil || !strings.Contains(said, "does not answer") ||
		!strings.Contains(said, "are learned") {
		t.Errorf("without a hub: %v\n%s", err, said)
	}
	for _, want := range []string{"fetched Qwen/Qwen2.5-VL-7B-Instruct, commit 0a0a", "there already"} {
		if said, err := run(hub.URL, args); err != nil || !strings.Contains(said, want) {
			t.Errorf("%v\n%s\nwant %s", err, said, want)
		}
	}
	request := filepath.Join(dir, "request.json")
	body := `{"model": "Qwen/Qwen2.5-VL-7B-Instruct", "messages": [{"role": "user", "content": "Hello"}]}`
	if err := os.WriteFile(request, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := run("", "explain, -c, /etc/sightline/sightline.yaml, "+request)
	if err != nil || !strings.Contains(said, "<|im_start|>user") {
		t.Errorf("the request is not read: %v\n%s", err, said)
	}
}

func simulated(t *testing.T, c sim.Config) *sim.Worker {
	t.Helper()
	w, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	t.Cleanup(w.Close)
	return w
}

// initialised runs `sightline init` for running workers, then Sightline and Envoy with what it wrote, in which the
// doctor finds nothing wrong.
//
// ranks is how many data-parallel ranks each worker has.
func initialised(t *testing.T, model string, ranks int, workers ...string) *lab.Lab {
	t.Helper()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	args := []string{"init", "--out", out, "--model-dir", model}
	for _, addr := range workers {
		args = append(args, "--worker", addr)
	}
	said, err := exec.Command(bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("sightline init: %v\n%s", err, said)
	}
	if strings.Contains(string(said), "switch on") {
		t.Errorf("these workers lack nothing:\n%s", said)
	}
	config, proxy := filepath.Join(out, "sightline.yaml"), filepath.Join(out, "envoy.yaml")
	if said, err := exec.Command(bin, "serve", "-c", config, "--check").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	l := &lab.Lab{Admin: freeAddr(t)}
	listen, clients, envoyAdmin := freeAddr(t), freeAddr(t), freeAddr(t)
	l.URL = "http://" + clients
	draft, err := os.ReadFile(config)
	if err == nil { // the draft's own keys of envoy stay
		ports := fmt.Sprintf("listen: %s\nadmin: %s\nlog_level: error\nenvoy:\n  listen: %q\n  admin: %q\n", listen, l.Admin, clients, envoyAdmin)
		if before, after, ok := strings.Cut(string(draft), "\nenvoy:\n"); ok {
			draft = []byte(before + "\n" + ports + after)
		} else {
			draft = append(draft, ports...)
		}
		err = os.WriteFile(config, draft, 0o600)
	}
	text, readErr := os.ReadFile(proxy)
	err = errors.Join(err, readErr)
	if err != nil {
		t.Fatal(err)
	}
	behindPrinted(t, l, string(text), listen, ranks*len(workers), clients, envoyAdmin, bin, "serve", "-c", config)
	checks, status := doctored(t, bin, waiting(t, config, "60s"))
	for _, c := range checks {
		if c.Verdict != doctor.OK && c.Verdict != doctor.Unchecked {
			t.Errorf("%+v", c)
		}
	}
	if status != 0 || len(checks) < 30 {
		t.Errorf("doctor: status %d of %d checks, want 0, at least 30", status, len(checks))
	}
	return l
}

// behindPrinted runs Sightline by a command, and Envoy with a configuration as it was printed for default ports. It returns what Sightline
// prints.
func behindPrinted(t *testing.T, l *lab.Lab, printed, listen string, workers int, clients, envoyAdmin, bin string,
	args ...string) *lockedBuffer {
	t.Helper()
	port := func(addr string) string { return "port_value: " + addr[strings.LastIndexByte(addr, ':')+1:] + " " }
	moved := strings.NewReplacer("port_value: 9002 ", port(listen), "port_value: 10000 ", port(clients), "port_value: 9901 ",
		port(envoyAdmin)).Replace(printed)
	cmd := exec.Command(bin, args...)
	said, log := new(lockedBuffer), new(lockedBuffer)
	cmd.Stdout, cmd.Stderr = said, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String(), "\n", log.String(), "\n", printed)
		}
	})
	e, err := envoytest.Run(t.Context(), binary(t), []byte(moved), envoyAdmin, log, "--concurrency", "2")
	if err != nil {
		t.Fatalf("got %v %q, want no error", err, log.String())
	}
	t.Cleanup(e.Stop)
	if err := lab.WaitReady(t.Context(), l.Admin, envoyAdmin, workers); err != nil {
		t.Fatal(err)
	}
	return said
}

// The same with real engines, as in TestRealVLLM: two workers of vLLM, asked by init, then an image that goes back.
func TestRealVLLMInit(t *testing.T) {
	bin := os.Getenv("SIGHTLINE_VLLM")
	if bin == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	dir := t.TempDir()
	model := tinyModel(t, dir)
	var addrs []string
	for _, name := range []string{"worker-1", "worker-2"} {
		e := startEngine(t, name, versionOf(t, bin), vllmCommand(bin, dir, window))
		e.healthy(t)
		addrs = append(addrs, e.addr)
	}
	l := initialised(t, model, 1, addrs...)
	image := []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(77))}},
		map[string]any{"type": "text", "text": "What?"}}
	body := func() map[string]any {
		return map[string]any{"model": tinyName, "messages": []any{map[string]any{"role": "user", "content": image}}}
	}
	if r := post(t, l, body(), nil); r.status != 200 {
		t.Fatalf("got %+v, want status 200", r)
	}
	first := lastDecision(t, l).Get("worker").Str
	eventually(t, "the image's blocks", func() bool {
		r := post(t, l, body(), nil)
		return r.cached > 380 && lastDecision(t, l).Get("worker").Str == first
	})
}

// TestInitAsks: on a terminal, init asks for what it lacks: where to write if files are there, workers, the file with their key. On a
// pipe it fails at once.
func TestInitAsks(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	w := simulated(t, sim.Config{Model: lab.ModelName, Prompt: p})
	inside := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: w.Addr()})
	locked := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-1" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		inside.ServeHTTP(rw, r)
	}))
	defer locked.Close()
	addr := locked.Listener.Addr().String()
	dir := t.TempDir()
	key, there := filepath.Join(dir, "key"), filepath.Join(dir, "sightline.yaml")
	if err := errors.Join(os.WriteFile(key, []byte("sk-1\n"), 0o600), os.WriteFile(there, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	command := func() *exec.Cmd {
		return exec.CommandContext(t.Context(), bin, "init", "--out", dir, "--model-dir", absolute(t, modelDir))
	}
	piped := command()
	piped.Stdin = strings.NewReader(dir + "/new\n" + addr + "\n")
	out, err := piped.CombinedOutput()
	if err == nil || strings.Contains(string(out), "Another directory") || !strings.Contains(string(out), "there already") {
		t.Errorf("piped: got %v\n%s, want it to fail without a question", err, out)
	}
	mine, theirs := terminal(t)
	c := command()
	c.Stdin, c.Stdout, c.Stderr = theirs, theirs, theirs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	var seen lockedBuffer
	done := make(chan error, 1)
	go func() { _, _ = io.Copy(&seen, mine); done <- c.Wait() }()
	for _, answer := range [][2]string{{"Another directory", dir + "/new"}, {"Running workers", "nonsense"},
		{"no address of a worker", addr}, {"--api-key: ", key}} {
		eventually(t, "it asks: "+answer[0], func() bool { return strings.Contains(seen.String(), answer[0]) })
		if _, err := fmt.Fprintln(mine, answer[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil || !strings.Contains(seen.String(), "Written and checked: "+dir+"/new/sightline.yaml") {
		t.Errorf("got %v\n%s, want the files written", err, seen.String())
	}
	text, err := os.ReadFile(filepath.Join(dir, "new", "sightline.yaml"))
	if err != nil || !strings.Contains(string(text), key) || !strings.Contains(string(text), addr) {
		t.Errorf("got %v\n%s, want the worker and the key's file", err, text)
	}
}

// terminal returns both sides of one.
func terminal(t *testing.T) (mine, theirs *os.File) {
	t.Helper()
	mine, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { mine.Close() })
	n, err := unix.IoctlGetInt(int(mine.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(mine.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mine, theirs
}
