package serve

import (
	"maps"
	"net/netip"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/media/fetch"
)

// NewMedia returns what all models share for images: the fetcher with its limits, and the cache of identified images.
func NewMedia(c config.Media) (*engine.Media, error) { return engine.NewMedia(fetching(c)) }

func fetching(c config.Media) *fetch.Config {
	signing := maps.Clone(fetch.DefaultSigning)
	maps.Copy(signing, c.Signing)
	return &fetch.Config{AllowedDomains: c.Domains, Allow: parsePrefixes(c.Allow), Budget: c.Budget, MaxBytes: 64 << 20,
		Signing: signing}
}

// parsePrefixes parses networks that config has checked.
func parsePrefixes(list []string) (out []netip.Prefix) {
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}
