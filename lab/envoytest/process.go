// Package envoytest runs Envoy as a process, for tests and the demo.
package envoytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sightline-router/sightline/envoy"
)

// Process is a running Envoy.
type Process struct {
	Admin string // ip:port of its admin page
	cmd   *exec.Cmd
	dir   string
	gone  chan struct{} // closed when it has ended
	err   error         // how, after gone
}

// startWait bounds the time to readiness: 0.1 to 0.6 s, up to 2.3 s while health checks make their first round.
const startWait = 20 * time.Second

// Start runs Envoy with a configuration that envoy.Generate made for o; see Run.
func Start(ctx context.Context, binary string, o envoy.Options, log io.Writer, args ...string) (*Process, error) {
	config, err := envoy.Generate(o)
	if err != nil {
		return nil, err
	}
	return Run(ctx, binary, config, o.Admin, log, args...)
}

// Run runs Envoy with a configuration whose admin page is at admin, and waits until it serves. What it prints goes to log:
// its own warnings, and access log lines, at most 50 ms late. args are further flags, such as "--concurrency", "2".
func Run(ctx context.Context, binary string, config []byte, admin string, log io.Writer, args ...string) (*Process, error) {
	dir, err := os.MkdirTemp("", "sightline-envoy-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	p := &Process{Admin: admin, dir: dir, gone: make(chan struct{})}
	all := append([]string{"-c", file, "-l", "warn", "--file-flush-interval-msec", "50"}, args...)
	if !slices.Contains(args, "--restart-epoch") {
		all = append(all, "--disable-hot-restart")
	}
	p.cmd = exec.Command(binary, all...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("start Envoy: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.gone)
	}()
	if err := p.waitReady(ctx); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *Process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if body, err := p.Get(ctx, "/ready"); err == nil && strings.HasPrefix(body, "LIVE") {
			tick.Stop()
			return nil
		}
		select {
		case <-tick.C:
		case <-p.gone:
			return fmt.Errorf("Envoy ended while starting: %v; its log says why", p.err)
		case <-ctx.Done():
			return fmt.Errorf("Envoy is not ready at http://%s/ready: %w", p.Admin, ctx.Err())
		}
	}
}

// Get reads a page of the admin interface, such as /stats?usedonly.
func (p *Process) Get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Admin+path, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("Envoy's admin page %s: status %d", path, res.StatusCode)
	}
	return string(body), err
}

// Signal sends it a signal: SIGSTOP, SIGCONT.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends Envoy as a crash would, and waits for it. Stop removes what it leaves.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// Stop ends Envoy, by force after five seconds, and waits for it. It may be called again.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.gone
	}
	_ = os.RemoveAll(p.dir)
}
