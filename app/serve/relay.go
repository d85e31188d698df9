package serve

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/media/relay"
)

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
