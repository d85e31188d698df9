package main

import (
	"maps"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/mmhash/fetch"
)

// fetchPatience is how long the tools wait for an image; the router has its own, much smaller budget.
const fetchPatience = 10 * time.Second

// newMedia makes what all models share of pictures.
func newMedia(c config.Media) (*engine.Media, error) {
	signing := maps.Clone(fetch.DefaultSigning)
	maps.Copy(signing, c.Signing)
	return engine.NewMedia(&fetch.Config{AllowedDomains: c.Domains, Allow: parsePrefixes(c.Allow), Budget: c.Budget, MaxBytes: int64(c.MaxBytes), Signing: signing})
}
