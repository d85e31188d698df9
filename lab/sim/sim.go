// Package sim is a simulated worker, of vLLM unless told otherwise (form.go): the OpenAI-compatible server, the prefix
// cache, the encoder cache, the scheduler's timing and the KV events of one engine process, without a model.
//
// What a router can see of a worker is faithful, and recordings of real workers judge it: block hashes and image names
// (package vllmid), which blocks are hit, stored, removed and in what order, the event frames byte for byte, usage. What
// it cannot see is made up: the answer is filler, and time comes from a small model.
//
//	request ─ Config.Prompt (tokens, spans) ─ media names ─ engine (one per rank) ─ answer
//	                                                          └ vllmcache ─ events ─ publisher (PUB, replay)
//
// The package does not turn a request into tokens: whoever starts a worker gives it that function.
package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/sightline-router/sightline/lab/vllmcache"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// Config describes one worker. Model and Prompt are required, everything else has a default.
type Config struct {
	// Engine is whose worker this is. Default: VLLM. What is said of vLLM below holds for it alone.
	Engine Engine
	// Fingerprint is that of SGLang's image processor ("sha256:" and hex digits): part of its images' names.
	Fingerprint string
	// Model is vLLM's --model argument: the root in /v1/models, and part of every image's name.
	Model string
	// ServedName is what requests call the model. Default: Model.
	ServedName string
	// Adapters are the LoRA modules, models of their own in requests.
	Adapters []Adapter
	// Prompt turns a request into what the engine computes, one Prompt for each that the request holds.
	// path is /v1/chat/completions or /v1/completions. An error answers 400; a *Refusal chooses its own status.
	Prompt func(ctx context.Context, path string, body []byte) ([]Prompt, error)
	// Words are what answers are made of. Default: a few words with ids from 100 on.
	Words []Word

	// Bare tells as a server that was started without flags: of no events, and in usage of no cached tokens.
	Bare bool
	// NoPrefixCache finds nothing cached, and says so; Skew is how far its clock is ahead.
	NoPrefixCache bool
	Skew          time.Duration
	// EventsLate is how long its events are on their way.
	EventsLate time.Duration
	// Version is the vLLM release to act as, 0.23 to 0.33: it decides hashes, image names and wire forms.
	// Default: 0.32.0; the other engines have one release each, SGLang also 0.5.20.
	Version string
	// BlockSize in tokens (16), Blocks in the cache (4096, one of them reserved as in vLLM).
	BlockSize, Blocks int
	// Groups are the KV cache groups of a hybrid model (vLLM 0.32 and 0.33), by their numbers; nil: full attention alone. Their
	// blocks replace BlockSize, and all take theirs from the same Blocks. Retention is --prefix-cache-retention-interval: 0, the
	// engine's default, keeps of windows and states the prompts' ends and where prompts were seen to part; -1 keeps all.
	Groups    []vllmcache.Group
	Retention int
	// StepTokens is --max-num-batched-tokens: the most tokens of a step; 0: no limit.
	StepTokens int
	// MaxModelLen bounds prompt and answer together. Default and bound: what the cache can hold.
	MaxModelLen int
	// HashAlgo is --prefix-caching-hash-algo (sha256_cbor; vLLM itself defaults to sha256), HashSeed is PYTHONHASHSEED
	// (vllmid.DefaultSeed).
	HashAlgo vllmid.Algo
	HashSeed string
	// WholeDigests publishes whole block hashes, not their last eight bytes as a number.
	WholeDigests bool
	// MediaAlgo is --mm-hasher-algorithm (blake3), MediaIOKwargs the JSON of --media-io-kwargs (none).
	MediaAlgo, MediaIOKwargs string
	// EncoderTokens is the encoder cache's size in placeholder tokens (16384).
	EncoderTokens int
	// MaxSeqs is how many requests a rank runs at once; the others wait (64).
	MaxSeqs int
	// Priority is how it takes requests' priorities; TellsConfig: it answers GET /server_info (VLLM_SERVER_DEV_MODE=1).
	Priority    Priority
	TellsConfig bool
	// MaxTokens is an answer's length where the request names none (16; vLLM would fill the context).
	MaxTokens int
	// Ranks is the number of data-parallel ranks, each with its own cache and event port (1).
	Ranks int
	// FirstRank is --data-parallel-start-rank: what vLLM adds to a rank's number where it names ranks, but not where it takes one.
	FirstRank int
	// Time says how long things take. Speed divides it: 1 is the model's own time, 10 ten times faster, 0 no delay.
	Time  TimeModel
	Speed float64

	// Listen is the HTTP address (127.0.0.1:0). Events and Replay are those of rank 0 (same default).
	Listen, Events, Replay string
	// Load is where a Standalone worker publishes its load (127.0.0.1:0).
	Load string
	// Speaks is what the HTTP port speaks: http (the default), tls or http2 alone.
	Speaks string
	// Fault is how the worker fails (SetFault), once it has been asked to generate FaultAfter times.
	Fault      Fault
	FaultAfter int
	// Topic is the first frame of every batch (empty, as in vLLM).
	Topic string
	// Served is told of every first token, under the worker's lock.
	Served func(Served)
	// BufferSteps is how many batches replay can give back (10000).
	BufferSteps int
}

// Adapter is one --lora-modules entry: name=path.
type Adapter struct {
	Name, Path string
	Later      bool // POST /v1/load_lora_adapter loads it
}

// Word is one token of an answer and its text.
type Word struct {
	ID   uint32
	Text string
}

// Prompt is what the engine computes for one prompt of a request.
type Prompt struct {
	Tokens []uint32 // media expanded
	Media  []Media  // by offset
	// Answer is what to generate, where a test wants to say it; cut or continued to the request's length. Nil: filler.
	Answer []uint32
}

// Media is one medium's place in a prompt. The k-th of a modality belongs to the k-th such part of the request.
type Media struct {
	Offset, Length int
	Modality       string // "image" if empty
	// Identifier is vLLM's name for it. Empty: the worker computes it from the request's part, fetching http URLs
	// from loopback addresses.
	Identifier string
}

// TimeModel says how long an engine works, before Speed divides it. All zero: DefaultTime.
type TimeModel struct {
	Encode  time.Duration // one image that is not in the encoder cache
	Prefill time.Duration // one prompt token that is not in the prefix cache
	Decode  time.Duration // one step of all running requests
}

// DefaultTime resembles a 7B vision-language model on one large GPU.
var DefaultTime = TimeModel{Encode: 60 * time.Millisecond, Prefill: 60 * time.Microsecond, Decode: 9 * time.Millisecond}

func (t TimeModel) scaled(speed float64) TimeModel {
	if speed <= 0 {
		return TimeModel{}
	}
	if t == (TimeModel{}) {
		t = DefaultTime
	}
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) / speed) }
	return TimeModel{scale(t.Encode), scale(t.Prefill), scale(t.Decode)}
}

// Fault is a way to fail, for tests.
type Fault int32

// The faults. They hold for requests to generate; /health says that all is well and /metrics what is true, unless Deaf is
// added: then for every path but those below /sim/.
const (
	Healthy           Fault = iota
	Refuse                  // 503 at once
	Hang                    // no answer until the client goes
	DieAfterFirstByte       // the connection breaks after an answer's first bytes
	Unauthorized            // 401 at once, as behind another API key
	ErrorPage               // 502 with a page of HTML, as of a proxy before it

	Deaf Fault = 1 << 8
)

var faultNames = []string{"healthy", "refuse", "hang", "die-after-first-byte", "unauthorized", "error-page"}

// ParseFault returns the fault of a name.
func ParseFault(name string) (Fault, error) {
	i := slices.Index(faultNames, name)
	if i < 0 {
		return 0, fmt.Errorf("%q is no fault (want one of %s)", name, strings.Join(faultNames, ", "))
	}
	return Fault(i), nil
}

// Worker is one simulated worker. Its methods may be called from any goroutine.
type Worker struct {
	loaded  []atomic.Bool // of cfg.Adapters
	cfg     Config
	rules   vllmid.Rules
	namer   *vllmid.Namer
	words   map[uint32]string
	fetcher *http.Client
	fault   atomic.Int32
	asked   atomic.Int64
	turn    atomic.Uint32 // whose turn it is among equally loaded ranks
	ids     atomic.Uint64

	mediaMu    sync.Mutex
	processor  *lru // names of media whose processed form is kept
	mediaAsked int
	mediaHit   int

	began   time.Time
	engines []*scheduler
	http    net.Listener
	server  *http.Server
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes a worker and binds its ports. It serves from Start on; Close frees the ports in any case.
func New(cfg Config) (*Worker, error) {
	if cfg.Model == "" || cfg.Prompt == nil {
		return nil, errors.New("simulated worker: Model and Prompt are required")
	}
	setDefault(&cfg.ServedName, cfg.Model)
	setDefault(&cfg.Engine, VLLM)
	release, ok := map[Engine]string{VLLM: "0.32.0", SGLang: "0.5.23", TRTLLM: "1.3.0", TRTLLMZMQ: "1.3.0", Standalone: "1.3.0"}[cfg.Engine]
	if !ok {
		return nil, fmt.Errorf("simulated worker: %q is no engine (want vllm, sglang, trtllm, trtllm-zmq or standalone)", cfg.Engine)
	}
	if cfg.Engine != VLLM && (cfg.Engine != SGLang || cfg.Version != oldSGLang) {
		cfg.Version = release
	}
	setDefault(&cfg.Version, release)
	setDefault(&cfg.BlockSize, 16)
	setDefault(&cfg.Blocks, 4096)
	setDefault(&cfg.HashAlgo, vllmid.SHA256CBOR)
	setDefault(&cfg.HashSeed, vllmid.DefaultSeed)
	setDefault(&cfg.EncoderTokens, 16384)
	setDefault(&cfg.MaxSeqs, 64)
	setDefault(&cfg.MaxTokens, 16)
	setDefault(&cfg.Ranks, 1)
	setDefault(&cfg.Listen, "127.0.0.1:0")
	setDefault(&cfg.Events, "127.0.0.1:0")
	setDefault(&cfg.Load, "127.0.0.1:0")
	setDefault(&cfg.Speaks, PlainHTTP)
	if cfg.Engine == Standalone {
		cfg.Replay = ""
	} else {
		setDefault(&cfg.Replay, "127.0.0.1:0")
	}
	setDefault(&cfg.BufferSteps, 10000)
	if cfg.BlockSize < 1 || cfg.Blocks < 2 || cfg.MaxSeqs < 1 || cfg.Ranks < 1 || cfg.BufferSteps < 1 {
		return nil, fmt.Errorf("simulated worker: want at least 1 token a block, 2 blocks, 1 sequence, 1 rank, 1 step, have %d, %d, %d, %d, %d",
			cfg.BlockSize, cfg.Blocks, cfg.MaxSeqs, cfg.Ranks, cfg.BufferSteps)
	}
	if cfg.Groups == nil {
		cfg.Groups = []vllmcache.Group{{Kind: vllmcache.Full, BlockSize: cfg.BlockSize}}
	} else if cfg.Engine != VLLM || cfg.Version < "0.32" {
		return nil, fmt.Errorf("simulated worker: KV cache groups are those of vLLM 0.32 and 0.33, have %s %s", cfg.Engine, cfg.Version)
	}
	if room := (cfg.Blocks - 1) * cfg.BlockSize; cfg.MaxModelLen <= 0 || cfg.MaxModelLen > room {
		cfg.MaxModelLen = room
	}
	if len(cfg.Words) == 0 {
		cfg.Words = defaultWords()
	}
	like := cfg.Version
	if cfg.Engine != VLLM { // whose block hashes are opaque to the router: any rule will do
		like = "0.32.0"
	}
	rules, err := vllmid.RulesOf(like)
	if err != nil {
		return nil, fmt.Errorf("simulated worker: %w", err)
	}
	namer, err := vllmid.NewNamer(rules.Image, cfg.Model, cfg.MediaAlgo, cfg.MediaIOKwargs)
	if err != nil {
		return nil, fmt.Errorf("simulated worker: %w", err)
	}
	hasher, err := vllmid.NewBlockHasher(cfg.HashAlgo, cfg.HashSeed, rules.TaggedKeys)
	if err != nil {
		return nil, fmt.Errorf("simulated worker: %w", err)
	}
	w := &Worker{cfg: cfg, rules: rules, namer: namer, words: map[uint32]string{}, fetcher: loopbackClient(),
		processor: newLRU(4096), began: time.Now()}
	for _, word := range cfg.Words {
		w.words[word.ID] = word.Text
	}
	w.loaded = make([]atomic.Bool, len(cfg.Adapters))
	for i, a := range cfg.Adapters {
		w.loaded[i].Store(!a.Later)
	}
	w.http, err = net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("simulated worker: %w", err)
	}
	for r := range cfg.Ranks {
		e := &scheduler{
			rank: r, time: cfg.Time.scaled(cfg.Speed), slow: 1, budget: cfg.StepTokens, seats: cfg.MaxSeqs,
			byDue: cfg.Priority == ByPriority, hasher: hasher,
			pub:  &drain{rank: r, ranks: cfg.Ranks, blockSize: cfg.BlockSize, blocks: cfg.Blocks},
			wake: make(chan struct{}, 1), encoder: newLRU(cfg.EncoderTokens), served: cfg.Served,
		}
		e.pool, err = newPool(vllmcache.Options{Groups: cfg.Groups, Blocks: cfg.Blocks, Retention: cfg.Retention,
			Step: cfg.StepTokens, Once: cfg.Engine != VLLM})
		if err != nil {
			_ = w.http.Close()
			return nil, fmt.Errorf("simulated worker: %w", err)
		}
		e.pool.noClear = cfg.Engine == TRTLLM || cfg.Engine == Standalone
		w.engines = append(w.engines, e)
	}
	if err := w.listenEvents(); err != nil {
		_ = w.http.Close()
		return nil, fmt.Errorf("simulated worker: %w", err)
	}
	// Idle connections end after uvicorn's five seconds, so that a proxy in front must cope with it here too.
	w.server = &http.Server{Handler: w.routes(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Second}
	if cfg.FaultAfter == 0 {
		w.SetFault(cfg.Fault)
	}
	if err := w.speak(); err != nil {
		_ = w.http.Close()
		return nil, err
	}
	return w, nil
}

// listenEvents binds the sockets of those engines that publish.
func (w *Worker) listenEvents() error {
	if w.cfg.Engine == TRTLLM {
		return nil
	}
	pubs, backs, err := listenRanks(w.cfg.Events, w.cfg.Replay, w.cfg.Ranks)
	if err != nil {
		return err
	}
	var loads []*listener
	if w.cfg.Engine == Standalone {
		loads, err = listenRun(w.cfg.Load, w.cfg.Ranks, zmq4.Pub)
		if err != nil {
			closeAll(pubs)
			return err
		}
	}
	for r, e := range w.engines {
		p := &publisher{form: w.form(), alone: w.cfg.Engine == Standalone, clear: w.cfg.Engine == SGLang,
			topics: w.cfg.Version != oldSGLang && (w.cfg.Engine != VLLM || w.rules.ReplayTopic),
			rank:   w.cfg.FirstRank + r, topic: w.cfg.Topic, steps: w.cfg.BufferSteps, late: w.cfg.EventsLate,
			pub: pubs[r], back: backs[r]}
		p.skew.Store(int64(w.cfg.Skew))
		e.pub = p
		if loads != nil {
			e.load = &publisher{pub: loads[r]}
		}
	}
	return nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Start begins to serve and returns at once.
func (w *Worker) Start() {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	for _, e := range w.engines {
		e.pub.start()
		if e.load != nil {
			e.load.start()
		}
		w.running.Go(func() { e.run(ctx) })
	}
	w.running.Go(func() { _ = w.server.Serve(w.http) })
}

// Close ends the worker as a crash would: connections break, nothing is said. It returns when all is down.
func (w *Worker) Close() {
	_ = w.http.Close()
	_ = w.server.Close()
	w.fetcher.CloseIdleConnections()
	if w.stop != nil {
		w.stop()
	}
	w.running.Wait()
	for _, e := range w.engines {
		e.pub.stop()
		if e.load != nil {
			e.load.stop()
		}
	}
}

// StopEvents ends the worker's event sockets, as a publisher's death would; requests are served as before.
func (w *Worker) StopEvents() {
	for _, e := range w.engines {
		e.pub.stop()
	}
}

// Addr is the HTTP address, host:port.
func (w *Worker) Addr() string { return w.http.Addr().String() }

// EventsAddr is where rank 0 publishes, such as tcp://127.0.0.1:5557; rank r does so on the port plus r.
// "" if events are drained over HTTP.
func (w *Worker) EventsAddr() string {
	if p, ok := w.engines[0].pub.(*publisher); ok {
		return "tcp://" + p.pub.Addr().String()
	}
	return ""
}

// ReplayAddr is rank 0's replay socket, rank r has the port plus r; "" if there is none.
func (w *Worker) ReplayAddr() string {
	if p, ok := w.engines[0].pub.(*publisher); ok && p.back != nil {
		return "tcp://" + p.back.Addr().String()
	}
	return ""
}

// LoadAddr is where a Standalone worker publishes its load.
func (w *Worker) LoadAddr() string { return "tcp://" + w.engines[0].load.pub.Addr().String() }

// Engine is whose worker is simulated.
func (w *Worker) Engine() Engine { return w.cfg.Engine }

// SetKeepAlive says whether connections stay open after an answer, as they do at first.
func (w *Worker) SetKeepAlive(on bool) { w.server.SetKeepAlivesEnabled(on) }

// SetFault makes the worker fail from now on, or heal.
func (w *Worker) SetFault(f Fault) { w.fault.Store(int32(f)) }

// SetSlow makes every step from the next one on take a multiple of its time; 1 is as configured.
func (w *Worker) SetSlow(by float64) {
	for _, e := range w.engines {
		e.mu.Lock()
		e.slow = by
		e.mu.Unlock()
	}
}

// ResetPrefixCache empties every rank's prefix cache, as POST /reset_prefix_cache does; false where requests run. As in
// vLLM, the cleared event travels with the next batch.
func (w *Worker) ResetPrefixCache() bool {
	ok := true
	for _, e := range w.engines {
		ok = e.reset() && ok
	}
	return ok
}

// pick chooses the rank of a request: the header's, else the least loaded one (vLLM weighs a waiting request as four
// running ones), in turn where equal.
func (w *Worker) pick(header string) (*scheduler, error) {
	if r, err := strconv.Atoi(header); err == nil {
		if r < 0 || r >= len(w.engines) {
			return nil, &Refusal{Message: fmt.Sprintf("data_parallel_rank %d is out of range [0, %d).", r, len(w.engines))}
		}
		return w.engines[r], nil
	}
	if len(w.engines) == 1 {
		return w.engines[0], nil
	}
	first := int(w.turn.Add(1)-1) % len(w.engines)
	var best *scheduler
	least := 0
	for i := range w.engines {
		e := w.engines[(first+i)%len(w.engines)]
		e.mu.Lock()
		load := 4*len(e.waiting) + len(e.running)
		e.mu.Unlock()
		if best == nil || load < least {
			best, least = e, load
		}
	}
	return best, nil
}
