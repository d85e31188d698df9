package main

import (
	"io"
	"strings"
	"testing"
)

// TestServed: what is served is said once, and flags of another way to say it are refused.
func TestServed(t *testing.T) {
	worker := []string{"127.0.0.1:1"}
	for name, c := range map[string]struct {
		change func(*serveCmd)
		want   string
	}{
		"nothing":              {func(*serveCmd) {}, "want --worker HOST:PORT for each running worker, -c FILE, or --pool NAME"},
		"a file and workers":   {func(c *serveCmd) { c.Config, c.Worker = "s.yaml", worker }, "-c and --worker are both given"},
		"a pool and workers":   {func(c *serveCmd) { c.Pool, c.Worker = "p", worker }, "--worker and --pool are both given"},
		"a file and a port":    {func(c *serveCmd) { c.Config, c.Listen = "s.yaml", "127.0.0.1:1" }, "belong to --worker"},
		"a file and a page":    {func(c *serveCmd) { c.Config, c.Admin = "s.yaml", "127.0.0.1:1" }, "belong to --worker"},
		"a worker without one": {func(c *serveCmd) { c.Worker = []string{"10.0.0.5"} }, "want host:port, such as 10.0.0.5:8000"},
		"a worker that is not there, to be checked": {func(c *serveCmd) { c.Worker, c.Check = worker, true },
			"worker 127.0.0.1:1 could not be identified"},
	} {
		cmd := new(serveCmd)
		c.change(cmd)
		if _, _, err := cmd.configuration(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (want %q)", name, err, c.want)
		}
	}
	both := &envoyCmd{fleetFlags: fleetFlags{Config: "s.yaml", Worker: worker}}
	if _, err := both.configuration(); err == nil || !strings.Contains(err.Error(), "both given") {
		t.Errorf("envoy: got %v, want an error, %q in it", err, "both given")
	}
}
