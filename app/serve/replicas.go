package serve

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/peers"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
)

// replicas is the connection to the other replicas; nil: there is none.
type replicas struct {
	*peers.Exchange
	direct *peers.Direct
	own    string
	stop   context.CancelFunc
	done   chan struct{}
}

func (s *Server) replicas() *replicas {
	if len(s.cfg.Replicas.All(s.cfg.Envoy.Sightlines)) == 0 {
		return nil
	}
	own := peers.Instance()
	p := &replicas{Exchange: peers.New(own, s.log, s.metrics), own: own, done: make(chan struct{})}
	p.direct = peers.NewDirect(own, p.Receive, p.Refused(), s.log)
	return p
}

// hooks are what the router, the server for Envoy and the page call of the line; all are nil where there is none.
type hooks struct {
	instance      string
	share         func(*router.SharedBooking)
	shareLearned  func(uint64, *learned.Lesson)
	forward       func(string, router.Outcome) bool
	otherReplicas func() (others int, ago time.Duration)
	lost          func() []string
	services      func(grpc.ServiceRegistrar) // what other replicas call
}

func (p *replicas) hooks() (h hooks) {
	if p == nil {
		return h
	}
	return hooks{instance: p.own, share: p.Share, shareLearned: p.ShareLearned, forward: p.Forward,
		otherReplicas: p.OtherReplicas, services: p.direct.Register, lost: p.direct.Lost}
}

// backfill makes a rank's source ask other replicas for what its worker cannot replay any more.
func (p *replicas) backfill(o *stream.Options, secret *block.Secret, worker string, rank int, log *zap.Logger) {
	if p == nil {
		return
	}
	o.Source = &stream.Backfill{Source: o.Source, Ask: func(ctx context.Context) (at stream.Position, all kvevent.Batch, ok bool, err error) {
		message, err := p.RequestHeld(ctx, worker, rank)
		if err != nil || message == nil {
			return at, all, false, err
		}
		at, all, err = bus.ReadHeld(message, secret)
		if err != nil {
			log.Warn("cannot read another replica's state of a worker; using the worker's own replay", zap.String("worker", worker), zap.Error(err))
			return at, all, false, nil
		}
		log.Info("got a worker's state from another replica, since its replay begins too late", zap.String("worker", worker),
			zap.Int("rank", rank), zap.Int("bytes", len(message)))
		return at, all, true, nil
	}}
}

// heldTimeout is how long to wait for a busy feed to say what it holds.
const heldTimeout = time.Second / 2

// held implements peers.Exchange.Held.
func (s *sources) held(ctx context.Context, worker string, rank int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	for _, slot := range s.set.Slots() {
		if slot.Worker.StableName == worker && slot.Rank == rank && slot.Feed != nil {
			h, err := slot.Feed.Held(ctx, peers.MostHeld/bus.HeldBlockBytes)
			if err == nil {
				return bus.AppendHeld(nil, s.secret, &h, peers.MostHeld), nil
			}
			if errors.Is(err, stream.ErrTooMany) {
				return nil, peers.ErrTooLarge
			}
		}
	}
	return nil, nil
}

// othersTimeout bounds the question about one rank: a feed that has ended does not answer.
const othersTimeout = 30 * time.Second

// askOthers is peers.Exchange.OnNewReplica. It asks for one rank after another: a rank that waits for its turn applies no events.
func (s *sources) askOthers(ctx context.Context) {
	for _, slot := range s.set.Slots() {
		if slot.Feed != nil && slot.Feed.Stats().Partial {
			one, stop := context.WithTimeout(ctx, othersTimeout)
			slot.Feed.AskOthers(one)
			stop()
		}
	}
}

// start joins the other replicas. The caller must close it.
func (p *replicas) start(ctx context.Context, r *running, srv *extproc.Server) error {
	if p == nil {
		return nil
	}
	p.Start(r.router, srv.Reported)
	again := make(retry.Bell, 1) // ask for what others remember
	p.Secret = peers.Secret{Secret: r.media.Secret, Fixed: r.cfg.Index.KeyFile != "" || r.cfg.NATS.Given(), Replaced: func() {
		again.Ring()
		r.sources.rehash()
	}}
	p.Held = func(ctx context.Context, worker string, rank int) ([]byte, error) {
		if of, asked := strings.CutPrefix(worker, peers.OfReport); asked {
			var at report.Range
			if err := json.Unmarshal([]byte(of), &at); err != nil {
				return nil, nil
			}
			return r.report.Told(at), nil
		}
		if worker == "" {
			return r.router.Replicas().LearnedSnapshot(peers.MostHeld), nil
		}
		return r.sources.held(ctx, worker, rank)
	}
	p.shareOrders(r)
	p.OnNewReplica = func(ctx context.Context) {
		again.Ring()
		r.sources.askOthers(ctx)
	}
	access, err := r.cfg.Replicas.Access(r.cfg.ListenTokenFile).Open(r.log)
	if err != nil {
		return fmt.Errorf("replicas: %w", err)
	}
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		defer close(p.done)
		streams, end := context.WithCancel(context.WithoutCancel(ctx)) // until the good-bye was sent
		var all sync.WaitGroup
		all.Go(func() {
			select {
			case <-srv.Stopping():
			case <-streams.Done():
			}
			p.direct.EndStreams()
		})
		all.Go(func() { p.direct.Run(streams, r.cfg.Replicas.All(r.cfg.Envoy.Sightlines), access) })
		all.Go(func() { p.learn(ctx, r, again) })
		p.Run(ctx, p.direct)
		end()
		all.Wait()
	}()
	return nil
}

// learn asks the other replicas for all that requests taught, now and whenever again says so, until ctx ends.
func (p *replicas) learn(ctx context.Context, r *running, again <-chan struct{}) {
	for {
		bytes, err := r.router.Replicas().TakeLearned(func() ([]byte, error) { return p.RequestLearned(ctx) })
		if err != nil && ctx.Err() == nil {
			r.log.Warn("what another replica remembers cannot be had; learning again", zap.Error(err))
		} else if bytes > 0 {
			r.log.Info("took over what another replica remembers of requests", zap.Int("bytes", bytes))
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
	}
}

// close says good-bye to the other replicas.
func (p *replicas) close() {
	if p != nil {
		p.stop()
		<-p.done
	}
}

// reports are what all replicas together have to report.
type reports struct {
	own     *report.Totals
	peers   *replicas
	mu      sync.Mutex
	told    [][]byte // by the others, of all time
	asked   time.Time
	pending bool
}

const (
	reportTime = time.Second // for the others to answer
	reportAge  = 5 * time.Second
)

// of returns the report of a range. fresh: the others are asked now; else what they told some seconds ago counts.
func (j *reports) of(of report.Range, fresh bool) report.Report {
	if j.peers == nil {
		return j.own.Of(of)
	}
	if fresh || of != (report.Range{}) {
		return j.own.Of(of, j.ask(of)...)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.pending && time.Since(j.asked) > reportAge {
		j.pending = true
		go func() {
			told := j.ask(of)
			j.mu.Lock()
			defer j.mu.Unlock()
			j.told, j.asked, j.pending = told, time.Now(), false
		}()
	}
	return j.own.Of(of, j.told...)
}

func (j *reports) ask(of report.Range) [][]byte {
	ctx, stop := context.WithTimeout(context.Background(), reportTime)
	defer stop()
	text, err := json.Marshal(of)
	if err != nil { // of a year that RFC 3339 does not have
		return nil
	}
	return j.peers.RequestReports(ctx, string(text))
}

// newSecret returns the secret of the block hashes: from index.key_file, else from that of NATS, else a random one.
func newSecret(cfg *config.Config) (*block.Secret, error) {
	text, err := cfg.Index.Key()
	if file := cfg.NATS.Auth; text == nil && err == nil && file != "" { // an embedded server may forget it, and agents keep their state
		text, err = secure.ReadFile(file)
	}
	s := block.NewSecret()
	if text != nil {
		s.Set(secretOf(text))
	}
	return s, err
}

// rehash makes all hashes anew, because the secret was replaced by that of the other Sightlines.
func (s *sources) rehash() {
	s.log.Info("block hashes have the secret of the other Sightlines from now on; asking workers for everything again")
	s.set.Resync(func(*fleet.Slot) bool { return true }, "rehash")
}

// secretOf derives a secret from a file's content.
func secretOf(text []byte) [block.SecretBytes]byte {
	return sha256.Sum256(append([]byte("sightline block hashes\x00"), text...))
}
