package serve

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/media/relay"
)

// NewMedia returns what all models share for images: the fetcher with its limits, and the cache of identified images.
func NewMedia(c config.Media) (*engine.Media, error) { return engine.NewMedia(fetching(c)) }

func fetching(c config.Media) *fetch.Config {
	signing := maps.Clone(fetch.DefaultSigning)
	maps.Copy(signing, c.Signing)
	return &fetch.Config{AllowedDomains: c.Domains, Allow: parsePrefixes(c.Allow), Budget: c.Budget, Signing: signing}
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

// startRelay serves images to the workers, if configured. A later failure is sent to done. The caller must close the server.
func startRelay(c config.Relay, media *engine.Media, noRoom func(what string), log *zap.Logger, done chan<- error) (*http.Server, error) {
	// A worker that reads too slowly is cut off; the largest image at 10 Mbit/s fits.
	web := &http.Server{ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	if c.Listen == "" {
		return web, nil
	}
	lis, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("media.relay.listen: %w", err)
	}
	lis = boundWeb(lis, noRoom, "connections to the relay")
	lis, err = c.TLS.Over(lis, log)
	if err != nil {
		return nil, fmt.Errorf("media.relay.tls: %w", err)
	}
	rc := relay.Config{URL: c.URL}
	if c.KeyFile != "" {
		rc.Key, err = c.Key()
		if err != nil {
			return nil, errors.Join(err, lis.Close())
		}
		rc.Self = relay.Address(lis.Addr())
		rc.As, err = c.Peer().Open(log)
		if err != nil {
			return nil, errors.Join(err, lis.Close())
		}
	}
	r, err := relay.New(rc)
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	media.Relay, media.RelayDataURLs, web.Handler = r, c.DataURLs, r
	go serveHTTP(web, lis, "media.relay", log, done)
	return web, nil
}
