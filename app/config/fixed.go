package config

import (
	"time"

	"github.com/sightline-router/sightline/workers/discover"
)

// Fixed is what no key sets. Tests shorten it: in Go, or as the section "fixed" of a file, which only a binary reads that was built with
// the tag fixed.
type Fixed struct {
	Probe bool `yaml:"probe"` // ask workers how they tokenize a few conversations, and compare
	// HealthEvery and LoadEvery are the intervals at which each worker is asked for its health and its load; 0: never.
	HealthEvery time.Duration `yaml:"health_every"`
	LoadEvery   time.Duration `yaml:"load_every"`
	// BodyTimeout is how long a request body may take to arrive; then the client gets 408.
	BodyTimeout time.Duration `yaml:"body_timeout"`
	// ReadyAfter is how long readiness may be delayed at start until the workers' event streams have caught up; 0: not at all.
	ReadyAfter   time.Duration `yaml:"ready_after"`
	PredictedTTL time.Duration `yaml:"predicted_ttl"` // how long a routed prompt counts as held without confirmation by events
	Patience     time.Duration `yaml:"patience"`      // how long doctor waits for an answer or an event; 0: 3 s
	// ServiceAccount is the folder with the token, and the authority of the API server, of a pod.
	ServiceAccount string `yaml:"service_account"`
	// NoSessions sends no session ids to workers, as if all were releases that take none.
	NoSessions bool `yaml:"no_sessions"`
}

func defaultFixed() Fixed {
	return Fixed{Probe: true, HealthEvery: 5 * time.Second, LoadEvery: time.Second, BodyTimeout: 5 * time.Minute,
		ReadyAfter: 30 * time.Second, PredictedTTL: 20 * time.Second, ServiceAccount: discover.AccountDir}
}
