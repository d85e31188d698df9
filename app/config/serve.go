package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/secure"
)

// CheckServe reports what keeps a configuration from being served on this machine: no workers to route to, files that are missing
// or invalid. Model directories are checked when they are loaded.
func (c *Config) CheckServe() error {
	var errs []error
	bad := report(func(path, format string, args ...any) { errs = append(errs, fmt.Errorf(path+": "+format, args...)) })
	asked := c.Asked || c.Kubernetes.Pool != ""
	if len(c.Models) == 0 && !asked {
		bad("models", "none given (want the name and the directory of each model that workers serve)")
	}
	if len(c.Workers)+len(c.Kubernetes.Workers) == 0 && c.Dynamo.Discovery == "" && !asked {
		bad("workers", "none given (want workers, or one of kubernetes and dynamo, which find them)")
	}
	c.checkFiles(bad)
	if _, err := c.Media.Relay.Key(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.Index.Key(); err != nil {
		errs = append(errs, err)
	}
	if file := c.DecisionLog.File; file != "" {
		if info, err := os.Stat(filepath.Dir(file)); err != nil {
			bad("decision_log.file", "%w (want a file in a folder that is there)", err)
		} else if !info.IsDir() {
			bad("decision_log.file", "%s is a file (want a file in a folder)", filepath.Dir(file))
		}
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			bad("decision_log.file", "%s is a folder (want a file)", file)
		}
	}
	if server := c.NATS.Link().Server; c.NATS.Listen != "" {
		if err := server.Check(); err != nil {
			errs = append(errs, err)
		}
	}
	for path, a := range map[string]*bus.Access{"nats": &c.NATS.Access, "dynamo.nats": &c.Dynamo.NATS} {
		if _, err := a.Options(); err != nil {
			errs = append(errs, fmt.Errorf("%s.%w", path, err))
		}
	}
	if dir := c.Dynamo.Discovery; dir != "" {
		if info, err := os.Stat(dir); err == nil && !info.IsDir() { // Dynamo creates it, maybe later
			bad("dynamo.discovery", "%s is a file (want the folder that Dynamo's processes have as DYN_FILE_KV)", dir)
		}
	}
	return c.Hide(errors.Join(errs...))
}

// checkFiles reads the TLS and token files.
func (c *Config) checkFiles(bad report) {
	quiet, relay := zap.NewNop(), &c.Media.Relay
	for path, l := range map[string]*secure.Listener{"tls": &c.TLS, "admin_tls": &c.AdminTLS, "media.relay.tls": &relay.TLS} {
		if _, err := l.Config(quiet); err != nil {
			bad(path, "%w", err)
		}
	}
	for path, p := range map[string]*secure.Peer{"worker_access": &c.WorkerAccess, "media.relay": relay.Peer(),
		"replicas": c.Replicas.Access("")} {
		if _, err := p.Open(quiet); err != nil {
			bad(path, "%w", err)
		}
	}
	if _, err := secure.OpenTokens(c.ListenTokenFile, quiet); err != nil {
		bad("listen_token_file", "%w", err)
	}
}

// Peer returns how a replica reaches another's relay: as workers reach it, and with its own certificate.
func (r *Relay) Peer() *secure.Peer {
	if r.CA == "" {
		return &secure.Peer{}
	}
	p := &secure.Peer{CA: r.CA, Cert: r.TLS.Cert, Key: r.TLS.Key}
	if u := webURL(r.URL); u != nil {
		p.Name = u.Hostname()
	}
	return p
}

// Key returns the secret that replicas share; nil without KeyFile.
func (r *Relay) Key() ([]byte, error) {
	if r.KeyFile == "" || r.Listen == "" {
		return nil, nil
	}
	return sharedKey("media.relay.key_file", r.KeyFile)
}

// Key returns the secret of the block hashes; nil without KeyFile.
func (x *Index) Key() ([]byte, error) {
	if x.KeyFile == "" {
		return nil, nil
	}
	return sharedKey("index.key_file", x.KeyFile)
}

func sharedKey(path, file string) ([]byte, error) {
	key, err := secure.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(key) < 32 {
		return nil, fmt.Errorf("%s: %s holds %d bytes (want 32 or more, the same in all replicas)", path, file, len(key))
	}
	return key, nil
}
