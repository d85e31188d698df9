package envoy

import (
	"fmt"
	"slices"
	"strings"
)

// variants each change the default in one respect. If the options lack what a variant needs (addresses of several models,
// certificates), it uses the values of the committed example, <name>.yaml.
var variants = []struct {
	Name  string
	apply func(*Options)
}{
	{"composite", func(*Options) {}},
	{"override_host", func(o *Options) { o.OverrideHost = true }},
	{"models", func(o *Options) {
		if len(o.Pools) == 0 {
			o.Pools = []Pool{
				{Name: "qwen", Workers: o.Workers[:1], Path: "/qwen"},
				{Name: "llava", Workers: o.Workers[1:2], Host: "llava.example.com"},
				{Name: "pixtral", Workers: o.Workers[2:], Header: "x-model=pixtral"},
			}
		}
	}},
	{"tls", func(o *Options) {
		const dir = "/etc/sightline/tls/"
		if o.WorkerTLS == nil && o.SightlineTLS == nil {
			o.WorkerTLS = &TLS{CA: dir + "workers-ca.pem"}
			o.SightlineTLS = &TLS{CA: dir + "ca.pem", Cert: dir + "envoy.pem", Key: dir + "envoy-key.pem"}
		}
	}},
	{"ipv6", func(o *Options) {
		if slices.Equal(o.Workers, Default().Workers) {
			o.Listen, o.Admin, o.Sightline = "[::1]:10000", "[::1]:9901", "[::1]:9002"
			o.Workers = []string{"[::1]:8001", "[::1]:8002", "[::1]:8003"}
		}
	}},
	{"unix", func(o *Options) {
		if !strings.HasPrefix(o.Sightline, "unix:") {
			o.Sightline = "unix:/run/sightline/sightline.sock"
		}
	}},
	{"token_usage", func(o *Options) { o.TokenUsage = true }},
	{"full_duplex", func(o *Options) { o.FullDuplex = true }},
	{"fail_closed", func(o *Options) { o.FailClosed = true }},
	{"eds", func(o *Options) {
		o.EDS = true
		if len(o.Allow) == 0 {
			o.Allow = exactly(loopback)
		}
	}},
}

// loopback are the committed examples' workers.
var loopback = []hostPort{{"127.0.0.1", 8001}, {"127.0.0.1", 8002}, {"127.0.0.1", 8003}}

// VariantNames lists the variants, the default first.
func VariantNames() (names []string) {
	for _, v := range variants {
		names = append(names, v.Name)
	}
	return names
}

// Apply changes the options to those of a variant, or of several separated by commas.
func (o *Options) Apply(names string) error {
	for name := range strings.SplitSeq(names, ",") {
		at := slices.Index(VariantNames(), name)
		if at < 0 {
			return fmt.Errorf("variant %q is not known (want one of %s)", name, strings.Join(VariantNames(), ", "))
		}
		variants[at].apply(o)
	}
	o.variant = names
	return nil
}
