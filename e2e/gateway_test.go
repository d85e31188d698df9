package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// gateway is `sightline serve`, configured by a test, and a real Envoy before it.
type gateway struct {
	t          *testing.T
	url        string // Envoy's
	listen     string // Sightline's, for Envoy, ip:port
	admin      string // the same, its pages
	envoyAdmin string
	file       string
	log        lockedBuffer
	serve      *exec.Cmd
}

// startGateway starts both. Envoy's options are as change leaves them.
func startGateway(t *testing.T, keys map[string]any, change func(*envoy.Options)) *gateway {
	t.Helper()
	g := &gateway{t: t, file: filepath.Join(t.TempDir(), "sightline.yaml"), admin: freeAddr(t), envoyAdmin: freeAddr(t)}
	o := envoy.Default()
	g.listen = freeAddr(t)
	o.Listen, o.Admin, o.Sightline = freeAddr(t), g.envoyAdmin, g.listen
	g.url = "http://" + o.Listen
	change(&o)
	g.run(keys)
	t.Cleanup(func() {
		g.end()
		if t.Failed() {
			t.Logf("Sightline and Envoy:\n%s", g.log.String())
		}
	})
	text, err := envoy.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := envoytest.Run(t.Context(), binary(t), []byte(withPatience(t, string(text))), o.Admin, &g.log, "--concurrency", "2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	return g
}

// run starts Sightline with a configuration, which lacks only the addresses.
func (g *gateway) run(keys map[string]any) {
	g.t.Helper()
	keys["listen"], keys["admin"], keys["drain"] = g.listen, g.admin, "0s"
	bin, err := product()
	if err != nil {
		g.t.Fatal(err)
	}
	text, err := yaml.Marshal(keys)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(g.file, text, 0o600); err != nil {
		g.t.Fatal(err)
	}
	g.serve = exec.Command(bin, "serve", "-c", g.file)
	g.serve.Stdout, g.serve.Stderr = &g.log, &g.log
	if err := g.serve.Start(); err != nil {
		g.t.Fatal(err)
	}
}

// end stops Sightline, which must end in peace.
func (g *gateway) end() {
	_ = g.serve.Process.Signal(syscall.SIGTERM)
	if err := g.serve.Wait(); err != nil {
		g.t.Errorf("serve: %v", err)
	}
}

// ready waits until so many worker-ranks are heard and Envoy has found Sightline.
func (g *gateway) ready(slots int) {
	g.t.Helper()
	if err := lab.WaitReady(g.t.Context(), g.admin, g.envoyAdmin, slots); err != nil {
		g.t.Fatal(err)
	}
}

// page reads a page of Sightline's admin; "" if it cannot be had.
func (g *gateway) page(path string) string {
	text, _ := lab.Get("http://" + g.admin + path)
	return string(text)
}

// fleet is who is there and how: "vllm-1:live vllm-2:not ready".
func (g *gateway) fleet() (out string) {
	for _, w := range gjson.Parse(g.page("/workers")).Array() {
		out += " " + w.Get("name").Str + ":" + w.Get("events").Str
	}
	return strings.TrimSpace(out)
}

// ask sends a chat request of these messages; more overrides and adds members.
func (g *gateway) ask(messages []any, more map[string]any, header http.Header) (status int, body string) {
	g.t.Helper()
	all := map[string]any{"messages": messages, "max_tokens": 1}
	for k, v := range more {
		all[k] = v
	}
	return g.post("/v1/chat/completions", all, header)
}

// post sends a request.
func (g *gateway) post(path string, request map[string]any, header http.Header) (status int, body string) {
	g.t.Helper()
	raw, err := json.Marshal(request)
	if err != nil {
		g.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(g.t.Context(), "POST", g.url+path, bytes.NewReader(raw))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	// Envoy tells of a request's end some 20 ms later; for as long it counts as load, and a worker without any is preferred.
	eventually(g.t, "nothing is in flight", func() bool {
		rows := g.page("/workers")
		return !gjson.Get(rows, "#(in_flight>0)").Exists() && !gjson.Get(rows, "#(backlog_tokens>0)").Exists()
	})
	return resp.StatusCode, string(text)
}

// user is a user's message: a text, and images before it.
func user(text string, urls ...string) any {
	var parts []any
	for _, u := range urls {
		parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": u}})
	}
	return map[string]any{"role": "user", "content": append(parts, map[string]any{"type": "text", "text": text})}
}

// counted sums a counter of Sightline's by the value of one of its labels.
func (g *gateway) counted(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, line := range strings.Split(g.page("/metrics"), "\n") {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		var v float64
		fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
		_, rest, _ := strings.Cut(line, label+`="`)
		value, _, _ := strings.Cut(rest, `"`)
		sums[value] += v
	}
	return sums
}
