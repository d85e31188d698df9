package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/config"
)

// TestPickerFlags: a command line of another endpoint picker, as its charts write it, makes the configuration that it stands for.
func TestPickerFlags(t *testing.T) {
	t.Setenv("NAMESPACE", "of-env")
	certs := t.TempDir()
	for _, c := range []struct {
		args, want, wrong string
		ignored           int
	}{
		{args: "serve --pool llm/chat", want: "chat llm 0.0.0.0:9002 0.0.0.0:9003 0.0.0.0:9090 true self-signed"},
		// llm-d-router's chart 0.10
		{args: "--pool-name chat --pool-namespace llm --pool-group inference.networking.k8s.io --zap-encoder json --config-file /config/x.yaml " +
			"--ha-enable-leader-election --grpc-health-port 9004 --secure-serving=false --tracing=false --metrics-endpoint-auth=false -v 4",
			want: "chat llm 0.0.0.0:9002 0.0.0.0:9004 0.0.0.0:9090 true ", ignored: 2},
		// KServe's LLMInferenceServiceConfig, whose template leaves empty arguments
		{args: "--pool-name chat --grpc-port 9012  --grpc-health-port 9003 --enable-cert-reload=true --secure-serving=true " +
			"--model-server-metrics-scheme=https --cert-path=" + certs,
			want: "chat of-env 0.0.0.0:9012 0.0.0.0:9003 0.0.0.0:9090 true " + certs + "/tls.crt", ignored: 1},
		{args: "--pool-name chat --pool-group inference.networking.x-k8s.io", wrong: "not supported"},
		{args: "--pool-name chat --metrics-port 70000", wrong: "not a port"},
		{args: "--pool-name chat --secure-serving=false --cert-path=" + certs, wrong: "want one of them"},
		{args: "serve --grpc-port 9002", wrong: "belong to --pool"},
	} {
		var all cli
		parser, err := kong.New(&all, kong.Vars{"version": ""})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(asPicker(strings.Split(c.args, " "))); err != nil {
			t.Errorf("%s: got %v, want no error", c.args, err)
			continue
		}
		f, cfg := &all.Serve.pickerFlags, config.Default()
		err = f.apply(&cfg, false)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want an error with %q", c.args, err, c.wrong)
			}
			continue
		}
		namespace, pool := cfg.Kubernetes.InferencePool()
		got := fmt.Sprint(pool, " ", namespace, " ", cfg.Listen, " ", cfg.GRPCHealth, " ", cfg.Admin, " ",
			cfg.Route.Picker, " ", cfg.TLS.Cert)
		if got != c.want || err != nil || len(f.ignored()) != c.ignored {
			t.Errorf("%s: %v, %q, want %q; without effect: %q", c.args, err, got, c.want, f.ignored())
		}
	}
	if got := asPicker([]string{"doctor", "-c", "x"}); !slices.Equal(got, []string{"doctor", "-c", "x"}) {
		t.Errorf("another command became %q, want %q", got, []string{"doctor", "-c", "x"})
	}

	// With a file, its keys stay where no flag is given.
	cfg := config.Default()
	cfg.Admin = "127.0.0.1:1"
	f := pickerFlags{Pool: "chat", GRPCPort: 9012, PoolGroup: poolGroup}
	err := f.apply(&cfg, true)
	if err != nil || cfg.Admin != "127.0.0.1:1" || cfg.Listen != "0.0.0.0:9012" || cfg.GRPCHealth != "" || cfg.TLS.Cert != "" {
		t.Errorf(`got %v: %+v, want no error, cfg.Admin == "127.0.0.1:1", cfg.Listen == "0.0.0.0:9012", cfg.GRPCHealth == "", cfg.TLS.Cert == ""`,
			err, cfg)
	}
}
