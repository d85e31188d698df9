// Package buildinfo reports what this binary was built from, by the data that the go command writes into every binary: a build in a
// clone and `go install …@version` both have it, without flags.
package buildinfo

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/module"
)

// revision is the commit, where the go command cannot tell it: -ldflags "-X …/internal/buildinfo.revision=…".
var revision string

const envoyAPI = "github.com/envoyproxy/go-control-plane/envoy"

// Info is what is known of a build. Unknown fields are empty, and omitted in the JSON.
type Info struct {
	Version    string     `json:"version"`               // v1.2.3, a pseudo-version between releases, (devel) if the go command knew none
	Commit     string     `json:"commit,omitempty"`      // in hexadecimal; "" if it was built as a released module, which has none
	Dirty      bool       `json:"dirty"`                 // files differed from the commit
	CommitTime *time.Time `json:"commit_time,omitempty"` // builds of one commit are identical, so no binary holds its own build time
	Go         string     `json:"go"`
	Platform   string     `json:"platform"` // linux/amd64
	EnvoyAPI   string     `json:"envoy_api,omitempty"`
}

// Read returns the Info of the running binary.
func Read() Info {
	i := Info{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return i
	}
	if b.Main.Version != "" {
		i.Version = b.Main.Version
	}
	if module.IsPseudoVersion(i.Version) { // go install …@main: the version has both
		i.Commit, _ = module.PseudoVersionRev(i.Version)
		if t, err := module.PseudoVersionTime(i.Version); err == nil {
			i.CommitTime = &t
		}
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.modified":
			i.Dirty = s.Value == "true"
		case "vcs.time":
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				i.CommitTime = &t
			}
		}
	}
	i.Commit = cmp.Or(i.Commit, revision)
	for _, d := range b.Deps {
		if d.Path == envoyAPI {
			i.EnvoyAPI = d.Version
		}
	}
	return i
}

// String returns one line for people.
func (i Info) String() string {
	s := "sightline " + i.Version + " (" + i.Go + ", " + i.Platform
	if i.Commit != "" {
		s += ", commit " + i.Commit[:min(12, len(i.Commit))]
	}
	if i.EnvoyAPI != "" {
		s += ", Envoy API " + i.EnvoyAPI
	}
	return s + ")"
}

// Metric returns sightline_build_info, always 1.
func (i Info) Metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sightline_build_info", Help: "What this binary was built from; always 1.",
		ConstLabels: prometheus.Labels{"version": i.Version, "commit": i.Commit, "goversion": i.Go}}, func() float64 { return 1 })
}
