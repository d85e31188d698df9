package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/health"
)

// AgentOptions are the flags of `sightline agent`: whose events are published where. Rank r is at a socket's port + r.
type AgentOptions struct {
	Worker    string `required:"" placeholder:"NAME" help:"The worker's name in the router's configuration."`
	Engine    string `enum:"vllm,sglang,trtllm" default:"vllm" help:"vllm, sglang or trtllm."`
	ZMQ       string `name:"zmq" placeholder:"ADDR" help:"Its PUB socket, tcp://HOST:PORT; rank r: port + r."`
	Replay    string `placeholder:"ADDR" help:"Its replay socket, such as tcp://127.0.0.1:5657."`
	HTTP      string `name:"http" placeholder:"URL" help:"Its server: TensorRT-LLM's events, or beside --zmq."`
	Ranks     int    `placeholder:"N" help:"Data-parallel ranks; 0: none."`
	BlockSize int    `placeholder:"N" help:"TensorRT-LLM's tokens_per_block."`
	KeyFile   string `placeholder:"FILE" help:"The routers' index.key_file, if they have one."`

	NATS bus.Access `embed:""`

	Publish    string `enum:"blocks,tokens" default:"blocks" help:"blocks, or tokens (for audits) too."`
	Admin      string `kong:"-"` // where to serve /metrics, /readyz and /state
	AdminToken string `env:"SIGHTLINE_ADMIN_TOKEN" hidden:"" help:"Token for /state beyond loopback."`
	LogLevel   string `env:"SIGHTLINE_LOG_LEVEL" hidden:"" default:"info" help:"debug, info, warn or error."`
}

// Agent runs beside one worker until ctx ends: it receives the worker's KV events and publishes them to NATS.
func Agent(ctx context.Context, c AgentOptions) error {
	log, _, err := newLog(cmp.Or(c.LogLevel, "info"))
	if err != nil {
		return err
	}
	defer log.Sync()
	if err := c.check(); err != nil {
		return err
	}
	a := &agent{o: c}
	conn, err := c.NATS.Connect(bus.ConnectOptions{Name: "sightline agent " + c.Worker, Inbox: bus.AgentInbox(c.Worker), Log: log,
		Refused: func() { a.refused.Add(1) }, Failing: &a.failing})
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	defer conn.Close()
	if _, err := c.feed(0, nil, nil); err != nil {
		return err
	}
	a.ranks = make([]agentRank, max(1, c.Ranks))
	failed := make(chan error, 1)
	page, err := a.serve(log, failed)
	if err != nil {
		return err
	}
	defer page.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case err := <-failed:
			stop(err)
		case <-ctx.Done():
		}
	}()
	var ranks sync.WaitGroup
	for ctx.Err() == nil {
		secret, changed, err := a.secret(ctx, conn, log)
		if err != nil {
			stop(err)
			break
		}
		same, end := context.WithCancel(ctx)
		go func() { defer end(); changed(same) }()
		drain := trtllm.NewDrain(c.HTTP, c.Ranks, nil)
		for r := range a.ranks {
			ranks.Go(func() {
				o, err := c.feed(r, drain, secret)
				if err == nil {
					err = a.rank(same, conn, r, secret, o, log.With(zap.Int("rank", r)))
				}
				if err != nil && same.Err() == nil {
					stop(err)
				}
			})
		}
		ranks.Wait()
		end()
	}
	log.Info("stopped")
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// secret returns the secret of the block hashes, and a function that returns when it is another one or ctx has ended.
func (a *agent) secret(ctx context.Context, conn *nats.Conn, log *zap.Logger) (*block.Secret, func(context.Context), error) {
	if a.o.KeyFile != "" {
		text, err := (&config.Index{KeyFile: a.o.KeyFile}).Key()
		if err != nil {
			return nil, nil, fmt.Errorf("--key-file: %w", err)
		}
		s := block.NewSecret()
		s.Set(secretOf(text))
		return s, func(ctx context.Context) { <-ctx.Done() }, nil
	}
	shared, err := bus.AwaitSecret(ctx, conn, log)
	if err != nil {
		return nil, nil, err
	}
	return shared.Secret, shared.Changed, nil
}

// rank publishes a rank's events until ctx ends, and then what is left of them.
func (a *agent) rank(ctx context.Context, conn *nats.Conn, r int, secret *block.Secret, o stream.Options, log *zap.Logger) error {
	c := &a.o
	po := bus.PublisherOptions{NATS: conn, Secret: secret, Worker: c.Worker, Rank: r, Log: log, Replays: c.Replay != "",
		Tokens: c.Publish == "tokens", CountCopies: c.ZMQ != "" && engine.RulesOf(c.Engine, "").CountsCopies}
	if c.Ranks == 0 {
		po.Rank = -1
	}
	if c.HTTP != "" && c.ZMQ != "" { // it is not known what was missed of a drained queue
		po.ProcessID = health.ProcessStart(strings.TrimSuffix(c.HTTP, "/") + "/metrics")
	}
	p, err := bus.NewPublisher(ctx, po)
	if err != nil {
		return err
	}
	p.Options(&o)
	f := stream.Start(o)
	a.mu.Lock()
	a.ranks[r] = agentRank{p, f}
	a.mu.Unlock()
	log.Info("publishing", zap.String("worker", c.Worker), zap.String("nats", conn.ConnectedUrlRedacted()))
	watch(ctx, f, log)
	f.Close()
	return nil
}

// check returns an error for invalid flags or files.
func (c *AgentOptions) check() error {
	var errs []error
	if c.ZMQ == "" && (c.HTTP == "" || c.Replay != "") {
		errs = append(errs, errors.New("--zmq: missing (want the engine's PUB socket, or --http alone for TensorRT-LLM's server)"))
	}
	c.NATS.Check(false, func(key, format string, args ...any) {
		flag := strings.TrimSuffix("--nats-"+strings.ReplaceAll(key, "_", "-"), "-url")
		errs = append(errs, fmt.Errorf(flag+": "+format, args...))
	})
	return errors.Join(errs...)
}

// feed returns the options of a rank's feed, without its sink.
func (c *AgentOptions) feed(r int, drain *trtllm.Drain, secret *block.Secret) (o stream.Options, err error) {
	keep := c.Publish == "tokens"
	o.BlockSize = c.BlockSize
	if c.ZMQ == "" {
		if drain != nil {
			readDrain(&o, secret, drain, r, c.BlockSize, keep)
		}
		return o, nil
	}
	e := config.Events{ZMQ: c.ZMQ, Replay: c.Replay, Bind: strings.HasPrefix(c.ZMQ, "tcp://*:")}
	return o, readSockets(&o, e, netip.Prefix{}, r, engine.RulesOf(c.Engine, "").Decoder(rules.Decoding{KeepTokens: keep, Secret: secret}))
}

// watchEvery is the interval of checking for changes to log.
const watchEvery = time.Second

// watch logs changes of a rank's connection to its engine, until ctx ends.
func watch(ctx context.Context, f *stream.Feed, log *zap.Logger) {
	var before stream.Stats
	for range retry.Every(ctx, watchEvery) {
		now := f.Stats()
		switch live := now.Live(); {
		case live && !before.Live():
			log.Info("connected to the engine's events")
		case now.Unreadable != "" && before.Unreadable == "":
			log.Warn("the engine's events cannot be read (SL0309)", zap.String("received", now.Unreadable))
		case !live && before.Live():
			log.Warn("lost the engine's events", zap.String("error", now.LastError))
		}
		if now.UnknownKey != "" && before.UnknownKey == "" {
			log.Warn("unknown keys in the engine's events (SL0309)", zap.String("first", now.UnknownKey))
		}
		if n := now.Strangers - before.Strangers; n > 0 {
			log.Warn("refused connections from other machines or pods than this",
				zap.Uint64("connections", n), zap.String("last", now.LastError))
		}
		before = now
	}
}

// CredentialsOptions are the arguments and flags of `sightline credentials`: for whom NATS users are made, and where.
type CredentialsOptions struct {
	Dir    string   `arg:"" help:"Where seeds and users.conf are written; existing files are kept."`
	Config string   `kong:"-"` // the configuration, for its workers with events.nats
	Worker []string `placeholder:"NAME" help:"Names of further workers; *: one agent that may publish for all."`
}

// WriteCredentials creates a NATS user for the routers and for each worker's agent, and writes to out what it created.
func WriteCredentials(o CredentialsOptions, out io.Writer) error {
	workers := o.Worker
	if o.Config != "" {
		cfg, err := config.Load(o.Config)
		if err != nil {
			return err
		}
		for _, w := range cfg.Workers {
			if w.Events.NATS {
				workers = append(workers, w.Name)
			}
		}
		for i, g := range cfg.Kubernetes.Workers {
			if g.Events.NATS {
				fmt.Fprintf(out, "kubernetes.workers[%d]: a worker is named after its pod; name each with --worker, or give --worker '*'\n", i)
			}
		}
	}
	made, err := bus.WriteUsers(o.Dir, workers)
	for _, name := range made {
		fmt.Fprintln(out, "written:", filepath.Join(o.Dir, name))
	}
	return err
}
