package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/internal/secure"
)

// pickerFlags are the flags of an endpoint picker, with the names and defaults that charts know (pkg/epp/server of llm-d's router,
// pkg/lwepp/server of Gateway API's Inference Extension).
type pickerFlags struct {
	Pool         string `aliases:"pool-name" placeholder:"[NS/]NAME" help:"Or: be the endpoint picker of this pool."`
	OneAddress   bool   `name:"one-address" help:"Name one address only (Envoy AI Gateway)."`
	MaxInFlight  int    `name:"max-in-flight" placeholder:"N" help:"Requests that a worker gets at once."`
	DeletionCost bool   `name:"deletion-cost" help:"Annotate pods with what their removal costs."`

	// Known from other pickers' charts. Defaults: $NAMESPACE or the pod's own; 9002, 9003 and 9090; TLS by a certificate made at the start.
	Namespace      string `kong:"-"`
	GRPCPort       int    `name:"grpc-port" hidden:""`
	GRPCHealthPort int    `name:"grpc-health-port" hidden:""`
	MetricsPort    int    `name:"metrics-port" hidden:""`
	SecureServing  *bool  `name:"secure-serving" hidden:""`
	CertPath       string `name:"cert-path" type:"existingdir" hidden:""`
	PoolGroup      string `name:"pool-group" hidden:"" default:"inference.networking.k8s.io"`

	// What other pickers know, and Sightline has nothing to do with.
	ConfigFile          string `name:"config-file" hidden:""`
	ConfigText          string `name:"config-text" hidden:""`
	LeaderElection      bool   `name:"ha-enable-leader-election" hidden:""`
	MetricsEndpointAuth bool   `name:"metrics-endpoint-auth" hidden:""`
	MetricsScheme       string `name:"model-server-metrics-scheme" hidden:""`
	Tracing             bool   `name:"tracing" hidden:""`
	Pprof               bool   `name:"enable-pprof" hidden:""`
	HealthChecking      bool   `name:"health-checking" hidden:""`
	CertReload          bool   `name:"enable-cert-reload" hidden:""`
	ZapEncoder          string `name:"zap-encoder" hidden:""`
	ZapLevel            string `name:"zap-log-level" hidden:""`
	Verbosity           string `name:"v" short:"v" hidden:""`
}

// poolGroup is the only API group of pools that is followed.
const poolGroup = "inference.networking.k8s.io"

// ignored lists those flags of other pickers that have no effect here, and why, if an operator would expect one.
func (f *pickerFlags) ignored() (list []string) {
	for why, given := range map[string]bool{
		"--config-file: plugins of another picker; Sightline has none":                               f.ConfigFile+f.ConfigText != "",
		"--ha-enable-leader-election: every replica decides":                                         f.LeaderElection,
		"--metrics-endpoint-auth: metrics are open in the network; the page needs admin_token":       f.MetricsEndpointAuth,
		"--model-server-metrics-scheme: worker_access of a configuration has workers asked over TLS": f.MetricsScheme == "https",
		"--tracing: tracing.endpoint of a configuration says where spans go":                         f.Tracing,
	} {
		if given {
			list = append(list, why)
		}
	}
	slices.Sort(list)
	return list
}

// apply sets the keys that the flags stand for. file: the configuration came from one, and keeps what no flag says.
func (f *pickerFlags) apply(cfg *config.Config, file bool) error {
	if f.Pool == "" {
		given := f.Namespace + f.CertPath
		numbers := f.GRPCPort + f.GRPCHealthPort + f.MetricsPort + f.MaxInFlight
		if given != "" || f.OneAddress || f.DeletionCost || numbers != 0 || f.SecureServing != nil {
			return errors.New("--namespace, --grpc-port, --grpc-health-port, --metrics-port, --secure-serving, --cert-path, " +
				"--one-address, --max-in-flight and --deletion-cost belong to --pool, which is not given")
		}
		return nil
	}
	if f.PoolGroup != poolGroup {
		return fmt.Errorf("--pool-group %s: not supported (want %s, whose version is v1)", f.PoolGroup, poolGroup)
	}
	given, _ := cfg.Kubernetes.InferencePool()
	cfg.Kubernetes.Pool = f.Pool
	if namespace := cmp.Or(f.Namespace, given, os.Getenv("NAMESPACE")); namespace != "" && !strings.Contains(f.Pool, "/") {
		cfg.Kubernetes.Pool = namespace + "/" + f.Pool
	}
	for _, port := range []struct {
		flag    string
		given   int
		usual   int
		address *string
	}{{"--grpc-port", f.GRPCPort, 9002, &cfg.Listen}, {"--grpc-health-port", f.GRPCHealthPort, 9003, &cfg.GRPCHealth},
		{"--metrics-port", f.MetricsPort, 9090, &cfg.Admin}} {
		if port.given < 0 || port.given > 65535 {
			return fmt.Errorf("%s %d: not a port (want 1 to 65535)", port.flag, port.given)
		}
		if port.given != 0 || !file {
			*port.address = fmt.Sprintf("0.0.0.0:%d", cmp.Or(port.given, port.usual))
		}
	}
	cfg.Route.Picker = true
	if f.MaxInFlight != 0 {
		cfg.MaxInFlight = f.MaxInFlight
	}
	cfg.Kubernetes.DeletionCost = cfg.Kubernetes.DeletionCost || f.DeletionCost
	cfg.Route.OneAddress = cfg.Route.OneAddress || f.OneAddress
	switch secured := f.SecureServing; {
	case secured != nil && !*secured && f.CertPath != "":
		return fmt.Errorf("--cert-path %s, but --secure-serving=false (want one of them)", f.CertPath)
	case secured != nil && !*secured:
		cfg.TLS = secure.Listener{}
	case f.CertPath != "":
		cfg.TLS = secure.Listener{Cert: filepath.Join(f.CertPath, "tls.crt"), Key: filepath.Join(f.CertPath, "tls.key")}
	case cfg.TLS.Cert == "" && (!file || secured != nil):
		cfg.TLS = secure.Listener{Cert: secure.SelfSigned}
	}
	return nil
}

// asPicker returns the arguments with serve before them if they are those of an endpoint picker, which has no subcommands: so an image of
// Sightline takes the place of another picker's in a chart. Empty arguments, which KServe's templates leave, are dropped.
func asPicker(args []string) []string {
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "" })
	named := func(a string) bool { return a == "--pool-name" || strings.HasPrefix(a, "--pool-name=") }
	if len(args) > 0 && strings.HasPrefix(args[0], "-") && slices.ContainsFunc(args, named) {
		return append([]string{"serve"}, args...)
	}
	return args
}
