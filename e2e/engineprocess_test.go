package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/lab"
)

// process is one that can be killed, stopped by SIGSTOP and started again.
type process struct {
	name    string
	command func() *exec.Cmd
	cmd     *exec.Cmd
	done    chan struct{} // closed when it has ended
	log     *os.File
}

func startProcess(t *testing.T, name string, command func() *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, command: command}
	var err error
	p.log, err = os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p.start(t)
	t.Cleanup(func() {
		p.stop()
		if text, _ := os.ReadFile(p.log.Name()); t.Failed() {
			t.Logf("%s:\n%s", name, text[max(0, len(text)-3000):])
		}
		_ = p.log.Close()
	})
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = p.command()
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, cmd := make(chan struct{}), p.cmd
	p.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// stop kills it.
func (p *process) stop() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// engineProcess is a worker that runs as a process of its own: a real vLLM, or a simulated one.
type engineProcess struct {
	*process
	version               string
	addr, events, replays string // ip:port
}

// engineStart bounds an engine's start: vLLM takes 70 s on two idle cores, some minutes where it was just installed.
const engineStart = 12 * time.Minute

// startEngine starts a worker; healthy waits for it.
func startEngine(t *testing.T, name, version string, command func(*engineProcess) *exec.Cmd) *engineProcess {
	t.Helper()
	e := &engineProcess{version: version, addr: freeAddr(t), events: freeAddr(t), replays: freeAddr(t)}
	e.process = startProcess(t, name, func() *exec.Cmd { return command(e) })
	return e
}

// simCommand is a simulated vLLM, so many times faster than one on a large GPU.
func simCommand(t *testing.T, speed float64) func(*engineProcess) *exec.Cmd {
	t.Helper()
	bin, err := laboratory()
	if err != nil {
		t.Fatal(err)
	}
	return func(e *engineProcess) *exec.Cmd {
		return exec.Command(bin, "worker-sim", "--model-dir", modelDir, "--served-name", lab.ModelName, "--listen", e.addr,
			"--events", e.events, "--replay", e.replays, "--speed", fmt.Sprint(speed))
	}
}

func (e *engineProcess) healthy(t *testing.T) {
	t.Helper()
	end := time.After(engineStart)
	for {
		if _, err := lab.Get("http://" + e.addr + "/health"); err == nil {
			return
		}
		select {
		case <-e.done:
			t.Fatalf("%s, version %s: has ended", e.name, e.version)
		case <-end:
			t.Fatalf("%s, version %s: not up within %v", e.name, e.version, engineStart)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// told changes how a simulated worker behaves: "fault?mode=refuse", "slow?by=10".
func (e *engineProcess) told(t *testing.T, what string) {
	t.Helper()
	resp, err := http.Post("http://"+e.addr+"/sim/"+what, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s; got %d, want %d", what, text, resp.StatusCode, http.StatusOK)
	}
}

// asked counts the requests to generate that a simulated worker got in this life, whatever became of them.
func (e *engineProcess) asked(t *testing.T) int {
	t.Helper()
	text, err := lab.Get("http://" + e.addr + "/sim/stats")
	if err != nil {
		t.Fatal(err)
	}
	return int(gjson.GetBytes(text, "asked").Int())
}

func addrsOf(engines []*engineProcess) (addrs []string) {
	for _, e := range engines {
		addrs = append(addrs, e.addr)
	}
	return addrs
}

// workersOf is the configuration's list of them, and of the classes of those that are not of the first one's release.
func workersOf(engines []*engineProcess) (workers, classes []any) {
	classes = []any{} // a key without a value is refused
	for _, e := range engines {
		events := map[string]any{"zmq": "tcp://" + e.events, "replay": "tcp://" + e.replays}
		if v, _ := rules.ParseVersion(e.version); v.AtLeast(0, 31, 0) { // which says itself where it publishes
			events = map[string]any{"auto": true}
		}
		w := map[string]any{"name": e.name, "addr": e.addr, "events": events}
		if e.version != engines[0].version {
			classes = append(classes, map[string]any{"name": "old", "engine_version": e.version})
			w["class"] = "old"
		}
		workers = append(workers, w)
	}
	return workers, classes
}
