package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/sockets"
)

// Limits of an embedded server, unless its Config sets them.
const (
	maxConnections   = 4096 // or a quarter of the files that the process may open
	maxSubscriptions = 4096 // for each connection: an agent has one for each rank
	maxPayload       = maxMessage
	maxPending       = 64 << 20 // bytes waiting for one connection; then it is closed
)

// serverStart limits the start of an embedded server. Its port may be in use for a moment, such as by an outgoing connection if
// it is in the system's ephemeral range.
const serverStart = 10 * time.Second

const pollReady = 50 * time.Millisecond

// embedded is a server in this process.
type embedded struct {
	*server.Server
	tempDir string             // a temporary directory
	stop    context.CancelFunc // ends watch
	watch   sync.WaitGroup
}

func (e *embedded) close() {
	if e == nil {
		return
	}
	e.stop()
	e.watch.Wait()
	if e.Server != nil {
		e.Shutdown()
		e.WaitForShutdown()
	}
	if e.tempDir != "" {
		_ = os.RemoveAll(e.tempDir)
	}
}

// Check returns why the server cannot be started: a listener open to strangers, an invalid Config, a store_dir to which others
// can write. Errors begin with the key.
func (s *Server) Check() error {
	o, err := s.options()
	if err != nil {
		return err
	}
	if o.StoreDir != "" {
		if err := checkDir(o.StoreDir); err != nil {
			return fmt.Errorf("nats.config: store_dir: %w", err)
		}
	}
	return nil
}

// options returns the server's options.
func (s *Server) options() (*server.Options, error) {
	o := &server.Options{}
	if s.Config != "" {
		var err error
		o, err = server.ProcessConfigFile(s.Config)
		if err != nil {
			return nil, fmt.Errorf("nats.config: %w", err)
		}
	}
	host, p, err := net.SplitHostPort(s.Listen)
	port, bad := strconv.Atoi(p)
	err = errors.Join(err, bad)
	if err != nil || port < 0 {
		return nil, fmt.Errorf("nats.listen: %q is not where to listen (want host:port)", s.Listen)
	}
	users := len(o.Users)+len(o.Nkeys)+len(o.TrustedOperators) > 0 || o.Username != "" || o.Authorization != "" || o.AuthCallout != nil
	switch {
	case o.NoAuthUser != "":
		return nil, fmt.Errorf("nats.config: %s allows clients without credentials (want no no_auth_user)", s.Config)
	case !users && !isLoopback(host):
		return nil, fmt.Errorf("nats.listen: %q is open to the network, and any client may publish events for any worker or delete the stream: "+
			"want a loopback address, or credentials: run `sightline credentials DIR -c FILE`, then set nats.config: DIR/users.conf and "+
			"nats.auth: DIR/router.nk, and give each agent its --nats-auth", s.Listen)
	}
	o.ServerName, o.Host, o.Port = cmp.Or(o.ServerName, "sightline"), host, port
	if port == 0 {
		o.Port = server.RANDOM_PORT
	}
	o.JetStream = true
	o.NoSigs, o.NoLog = true, true
	o.MaxConn, o.MaxSubs = cmp.Or(o.MaxConn, sockets.Share(4, maxConnections)), cmp.Or(o.MaxSubs, maxSubscriptions)
	o.MaxPayload, o.MaxPending = cmp.Or(o.MaxPayload, maxPayload), cmp.Or(o.MaxPending, maxPending)
	return o, nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// checkDir requires a directory to which no other user can write, or none yet.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	owner := os.Geteuid()
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(s.Uid)
	}
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is a file (want a folder)", dir)
	case info.Mode()&0o002 != 0, owner != os.Geteuid() && owner != 0:
		return fmt.Errorf("%s belongs to another user, or all may write to it (mode %v, user %d): want a folder of ours, mode 0700",
			dir, info.Mode(), owner)
	}
	return nil
}

// start starts the server with room for a stream. While its port is in use it retries, up to serverStart.
func (s *Server) start(log *zap.Logger) (_ *embedded, err error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	o, err := s.options()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &embedded{stop: stop}
	if o.StoreDir == "" {
		e.tempDir, err = os.MkdirTemp("", "sightline-nats-")
		o.StoreDir = e.tempDir
	} else {
		err = os.MkdirAll(o.StoreDir, 0o700)
		if err == nil {
			err = checkDir(filepath.Join(o.StoreDir, server.JetStreamStoreDir))
		}
	}
	if err != nil {
		e.close()
		return nil, fmt.Errorf("nats.config: store_dir: %w", err)
	}
	o.JetStreamMaxStore = cmp.Or(max(o.JetStreamMaxStore, 0), 2*keptEvents)
	o.JetStreamMaxMemory = cmp.Or(max(o.JetStreamMaxMemory, 0), 64<<20)
	last := "not ready in time" // or why the previous try failed
	for end := time.Now().Add(serverStart); ; {
		e.Server, err = server.NewServer(o.Clone())
		if err != nil {
			e.close()
			return nil, fmt.Errorf("nats: %w", err)
		}
		log := serverLog{log, make(chan string, 1)}
		e.SetLogger(log, false, false)
		go e.Start()
		why := ""
		for why == "" {
			if e.ReadyForConnections(pollReady) {
				if s.Config != "" {
					e.watch.Go(func() { s.reload(ctx, e, o, log.log) })
				}
				return e, nil
			}
			select {
			case why = <-log.fatal:
			default:
				if time.Now().After(end) {
					why = last
				}
			}
		}
		last = why
		e.Shutdown()
		e.WaitForShutdown()
		if !strings.Contains(why, syscall.EADDRINUSE.Error()) || time.Now().After(end) {
			e.close()
			return nil, fmt.Errorf("nats: the embedded server did not start on %s within %v: %s", s.Listen, serverStart, why)
		}
		time.Sleep(pollReady/2 + rand.N(pollReady))
	}
}

// reloadEvery is the interval of checking for a changed Config.
const reloadEvery = 2 * time.Second

// reload applies a changed Config, or file that it includes: new users are admitted, and users that were removed are disconnected.
func (s *Server) reload(ctx context.Context, e *embedded, began *server.Options, log *zap.Logger) {
	last, told := began.ConfigDigest(), ""
	for range retry.Every(ctx, reloadEvery) {
		o, err := s.options()
		if err == nil && o.ConfigDigest() == last {
			continue
		}
		if err == nil {
			last = o.ConfigDigest()
			o.StoreDir, o.JetStreamMaxMemory, o.JetStreamMaxStore = began.StoreDir, began.JetStreamMaxMemory, began.JetStreamMaxStore
			err = e.ReloadOptions(o)
		}
		switch {
		case err == nil:
			told = ""
			log.Info("the NATS server has read its configuration again", zap.String("nats.config", s.Config))
		case err.Error() != told:
			told = err.Error()
			log.Error("the NATS server keeps its configuration as it was", zap.Error(err))
		}
	}
}

// serverLog passes an embedded server's warnings and errors to our log, which samples repeated ones, and the reason of a failed
// start to start.
type serverLog struct {
	log   *zap.Logger
	fatal chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}
func (l serverLog) Warnf(format string, v ...any) {
	l.log.Warn("NATS server", zap.String("says", fmt.Sprintf(format, v...)))
}
func (l serverLog) Errorf(format string, v ...any) {
	l.log.Error("NATS server", zap.String("says", fmt.Sprintf(format, v...)))
}
func (l serverLog) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}
