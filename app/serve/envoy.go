package serve

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/envoy/check"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/fleet"
)

// EnvoyYAML returns the envoy.yaml for a configuration, for a variant, or several separated by commas, and for the oldest Envoy
// release that must accept it; "": the default, and the tested release.
func EnvoyYAML(cfg config.Config, variants, release string) ([]byte, error) {
	o, err := envoyOptions(cfg)
	if err != nil {
		return nil, err
	}
	if variants != "" {
		if err := o.Apply(variants); err != nil {
			return nil, err
		}
	}
	o.Version = release
	return envoy.Generate(o)
}

// PrintEnvoy writes EnvoyYAML for a configuration, and to warn what the release cannot do.
func PrintEnvoy(cfg config.Config, variants, release string, out, warn io.Writer) error {
	text, err := EnvoyYAML(cfg, variants, release)
	if err != nil {
		return in(cfg.File, err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "# Left out") {
			fmt.Fprint(warn, line)
		}
	}
	_, err = out.Write(text)
	return err
}

// in names the configuration file in an error about its values.
func in(file string, err error) error {
	if file == "" || err == nil {
		return err
	}
	return fmt.Errorf("%s: %w", file, err)
}

// FitEnvoy prints what the Envoy at from (see check.Load) lacks for a configuration and what in it will not work. With change "apply" it
// prints from's configuration with all that it lacks added, and writes what is still wrong to warn;
// with "remove" from's configuration without what apply had added. It reports whether nothing is wrong, or left wrong, except for
// notes. clusters are those of the workers; none: see check.Want.
func FitEnvoy(ctx context.Context, cfg config.Config, variants, release, from string, clusters []string, change string, out,
	warn io.Writer) (fits bool, err error) {
	if change == "remove" {
		return true, removePieces(from, out, warn)
	}
	want, err := EnvoyWant(cfg)
	if err == nil && variants != "" {
		err = want.Apply(variants)
	}
	if err != nil {
		return false, in(cfg.File, err)
	}
	want.Version, want.Clusters = release, clusters
	b, err := check.Load(ctx, from)
	if err != nil {
		return false, err
	}
	b.Envoy = cmp.Or(release, b.Envoy)
	pieces, err := check.Missing(b, want)
	if err != nil {
		return false, in(cfg.File, err)
	}
	findings := check.Run(b, want)
	serious := func(f check.Finding) bool { return f.Severity != check.Note }
	if change != "" {
		for _, f := range findings {
			if f.Name == "which_clusters" && f.Severity == check.Error {
				return false, fmt.Errorf("%s: %s (want --cluster with the workers' clusters among them: nothing of another service may be changed)",
					from, f.Got)
			}
		}
		text, kept, err := check.Edit(b, pieces)
		if err != nil {
			return false, fmt.Errorf("%s: %w", from, err)
		}
		if _, err := out.Write(text); err != nil {
			return false, err
		}
		b, err = check.Read(text)
		if err != nil {
			return false, fmt.Errorf("%s with the pieces in it: %w", from, err)
		}
		findings = check.Run(b, want)
		yours := 0
		for _, f := range findings {
			yours += map[bool]int{true: 1}[serious(f)]
		}
		fmt.Fprintf(warn, "%d findings: %d applied, %d yours, %d notes\n", len(pieces)+len(findings), len(pieces), yours, len(findings)-yours)
		if !kept {
			fmt.Fprintln(warn, "the file's form does not let single lines be added: it is printed anew, without its comments, "+
				"and --remove cannot undo it")
		}
		out, pieces = warn, nil
	}
	return len(pieces) == 0 && !slices.ContainsFunc(findings, serious), check.Print(out, findings, pieces)
}

// removePieces prints a file without what --apply has added to it. A file without such lines is printed as it is.
func removePieces(from string, out, warn io.Writer) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("--remove: %w (want the envoy.yaml that --apply has printed)", err)
	}
	text, were := check.Remove(text)
	if !were {
		fmt.Fprintf(warn, "%s: no line of --apply is in it; it is printed as it is\n", from)
	}
	_, err = out.Write(text)
	return err
}

// EnvoyWant returns what Envoy must have for a configuration.
func EnvoyWant(cfg config.Config) (check.Want, error) {
	o, err := envoyOptions(cfg)
	if len(cfg.Workers)+len(cfg.Dynamo.Frontends) == 0 {
		o.Workers = nil // they are found at run time
	}
	return check.Want{Options: o, Resolve: resolver(),
		Picker: true, OneAddress: cfg.Route.OneAddress}, err
}

// maxResolved limits the names of an Envoy's configuration that are looked up.
const maxResolved = 256

// resolver returns a function that returns the addresses that Sightline uses of a name, none if it does not resolve here. It looks
// each name up once.
func resolver() func(host string) []netip.Addr {
	known := map[string][]netip.Addr{}
	return func(host string) []netip.Addr {
		addrs, ok := known[host]
		if ok || len(known) >= maxResolved {
			return addrs
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		addrs, _ = discover.Lookup(ctx, host)
		known[host] = addrs
		return addrs
	}
}

// envoyOptions returns the options for a configuration, with the shipped example's workers if it names none.
func envoyOptions(cfg config.Config) (envoy.Options, error) {
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.BodyLimit = cfg.Envoy.Listen, cfg.Envoy.Admin, cfg.Listen, int(cfg.BodyLimit)
	o.MessageTimeout, o.TokenUsage, o.DebugHeaders = cfg.Envoy.MessageTimeout, cfg.Envoy.TokenUsage, cfg.Envoy.DebugHeaders
	o.HeapLimit = cmp.Or(int64(cfg.Envoy.HeapLimit), max(1<<30, 64*int64(o.BodyLimit)))
	o.FailClosed, o.Pass, o.TenantHeader = cfg.RefusesUnread(), cfg.PassUnread, cfg.Tenants.Header
	if len(cfg.Envoy.Sightlines) > 0 {
		o.Sightline = strings.Join(cfg.Envoy.Sightlines, ",")
	}
	if len(cfg.Workers)+len(cfg.Dynamo.Frontends) > 0 {
		o.Workers = append([]string(nil), cfg.Dynamo.Frontends...)
		o.Workers = append(o.Workers, serving(cfg, "")...)
	}
	for i, text := range cfg.Envoy.Workers {
		r, err := envoy.ParseRange(text)
		if err != nil {
			return o, fmt.Errorf("envoy.worker_networks[%d]: %w", i, err)
		}
		o.Allow = append(o.Allow, r)
	}
	for _, p := range cfg.Envoy.Pools {
		pool := envoy.Pool{Name: p.Model, Path: p.Path, Host: p.Host, Header: p.Header}
		pool.Workers = serving(cfg, p.Model)
		o.Pools = append(o.Pools, pool)
	}
	o.WorkerTLS, o.SightlineTLS = envoyTLS(cfg.Envoy.WorkerTLS), envoyTLS(cfg.Envoy.SightlineTLS)
	o.SightlineTokenFile = cfg.Envoy.SightlineTokenFile
	return o, nil
}

// serving returns the addresses of the workers of a model, or of all, that serve requests. Envoy does not send requests to
// prefill and encode workers.
func serving(cfg config.Config, model string) (addrs []string) {
	for _, w := range cfg.Workers {
		if role, _ := fleet.RoleOf(w.Role); role != fleet.Prefill && role != fleet.Encode && (model == "" || w.Model == model) {
			addrs = append(addrs, w.Addr)
		}
	}
	return addrs
}

func envoyTLS(t config.PeerTLS) *envoy.TLS {
	if t.CA == "" {
		return nil
	}
	return &envoy.TLS{CA: t.CA, Cert: t.Cert, Key: t.Key, Names: t.Names}
}
