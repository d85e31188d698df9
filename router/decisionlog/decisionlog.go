// Package decisionlog writes decisions and their outcomes for people and for replay: one JSON object a line.
//
//	decision ─▶ Line, kept with the booking ── its end is reported, or it expires ─▶ Add ─▶ queue ─▶ keyed, written, rotated
//
// Each decision is one line, written at its end: everything is known then, and nothing has to be joined. Lines are in the order
// of their ends, so a replay must sort them by timestamp. The format is Mooncake's trace (timestamp, input_length, output_length,
// hash_ids) with additional fields.
//
// No content of a request is written. What must be comparable (prompts, images, sessions) is written as a pseudonym:
// HMAC-SHA-256 under a key that is random at each start, or shared by replicas so that their lines can be joined. Nothing waits
// for the disk: a line that finds the queue full, or that cannot be written, is dropped and counted.
package decisionlog

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/choose"
)

const (
	// SpanTokens is the number of tokens that each of Line.HashIDs covers, as in Mooncake's traces.
	SpanTokens    = 512
	formatVersion = 1    // of the format
	queueLines    = 1024 // lines in the queue
)

// Line is one decision. Token counts are of the prompt as the chosen worker reads it; unknown values are 0 or omitted, except for
// Cached.
type Line struct {
	Version   int    `json:"v"`
	Timestamp int64  `json:"timestamp"` // of the decision, Unix ms
	ID        string `json:"id"`
	Model     string `json:"model"`
	Adapter   string `json:"adapter,omitempty"`
	// Session is the client's session; Add takes it as it came and writes its pseudonym.
	Session      string `json:"session,omitempty"`
	InputLength  int    `json:"input_length"`
	OutputLength int    `json:"output_length"` // as the engine reported
	// HashIDs has one id for each 512 tokens begun, equal if the prompts are equal up to there. Add takes chain hashes, and 0 for
	// unknown ones, whose pseudonym equals no other.
	HashIDs []uint64 `json:"hash_ids"`
	Images  []Image  `json:"images,omitempty"`

	Arm        string      `json:"arm,omitempty"` // steered, or left to Envoy's own balancing: then the choice is hypothetical
	Reason     string      `json:"reason"`
	Why        string      `json:"why,omitempty"`
	Worker     string      `json:"worker,omitempty"`
	Rank       int         `json:"rank"` // -1: none
	Cached     int         `json:"cached_tokens"`
	Held       int         `json:"held_tokens"`
	Regret     string      `json:"regret,omitempty"`
	Margin     float64     `json:"margin"` // how much more the second candidate costs, in tokens; 0: there is none
	Ties       int         `json:"ties"`   // further candidates whose cost counts as equal
	Considered int         `json:"considered"`
	Ranked     []Candidate `json:"ranked,omitempty"`
	Delay      float64     `json:"delay_ms,omitempty"` // after which it was due at its worker; 0: the worker was told nothing
	Steps      int         `json:"steps,omitempty"`    // of priority: above or below 0
	Took       float64     `json:"took_ms"`            // to decide

	Outcome        Outcome      `json:"outcome"`
	Status         int          `json:"status,omitempty"`
	Used           string       `json:"used,omitempty"` // worker that had it last; "other": none of ours
	ReportedCached int          `json:"reported_cached_tokens"`
	ReportedPrompt int          `json:"reported_prompt_tokens,omitempty"`
	Uncached       account.Sums `json:"uncached,omitzero"` // prompt tokens that were not cached by cause; with the cached ones all of them
	// Changed is where the prompt departs from the earlier one that had the tokens under changed.
	Changed   *account.Change `json:"changed,omitempty"`
	Kept      int             `json:"evicted_kept_by_a_fifth,omitempty"` // evicted tokens that a cache a fifth larger would have kept
	Rate      float64         `json:"used_rate,omitempty"`               // tokens that the used worker prefills a second; 0: not known
	Waited    float64         `json:"waited_ms,omitempty"`               // at its worker until it was first computed; 0: not known
	FirstByte float64         `json:"first_byte_ms,omitempty"`
	End       float64         `json:"end_ms,omitempty"` // from the decision to its end
	Would     *Hypothetical   `json:"would,omitempty"`  // for an unsteered request, if both workers are known
}

// Hypothetical compares the choice for an unsteered request with the worker that Envoy used, both as known at the decision.
type Hypothetical struct {
	Cached     int `json:"cached_tokens"`      // leading tokens of the prompt that the chosen worker held
	UsedCached int `json:"used_cached_tokens"` // leading tokens of the prompt that the used worker held
	// image tokens that the used worker had to encode beyond those of the chosen one; may be negative
	Encode int     `json:"encode_tokens"`
	Rate   float64 `json:"rate"` // tokens that the used worker prefills a second, else the mean of all; 0: not known
}

// Tokens returns the cached tokens that the choice would have gained; negative: lost.
func (w *Hypothetical) Tokens() int { return w.Cached - w.UsedCached }

// Image is an image, an audio or a video in the prompt. Add takes its cache key as ID.
type Image struct {
	ID     uint64 `json:"id"`
	Offset int    `json:"offset"`
	Tokens int    `json:"tokens"`
}

// Candidate is one of the best candidates, see choose.Candidate.
type Candidate struct {
	Worker    string       `json:"worker"`
	Rank      int          `json:"rank"` // -1: none
	Exact     int          `json:"exact"`
	Predicted int          `json:"predicted"`
	Offloaded int          `json:"offloaded,omitempty"`
	Inflight  int          `json:"inflight"`
	Backlog   float64      `json:"backlog"`
	Rate      float64      `json:"rate"`
	Cost      float64      `json:"cost"`
	Terms     choose.Terms `json:"terms"`
}

// Outcome is how a decision ended.
type Outcome string

// The outcomes.
const (
	Ended   Outcome = "ended"   // reported by Envoy
	Expired Outcome = "expired" // not reported
	Refused Outcome = "refused" // the client was answered at once
	NoPlace Outcome = "none"    // no worker was known
)

// Options configure a Log.
type Options struct {
	File     string
	MaxBytes int64  // size at which the file is rotated, in whole MiB; 0: 64 MiB
	Keep     int    // rotated files that are kept; 0: 5
	Key      []byte // key of the pseudonyms; nil: a random one
	Log      *zap.Logger
	Metrics  prometheus.Registerer // nil: none
}

// Log is an open decision log. It is safe for concurrent use; a nil Log does nothing.
type Log struct {
	out   *lumberjack.Logger
	mac   hash.Hash
	log   *zap.Logger
	queue chan *Line
	stop  chan struct{}
	end   sync.WaitGroup
	lines *prometheus.CounterVec // by what: written, dropped, failed

	failing bool // the last line was not written
	failed  atomic.Pointer[string]
	torn    bool // the file ends within a line
}

// Open opens the file, or returns an error. The caller must Close the Log.
func Open(o Options) (*Log, error) {
	f, err := os.OpenFile(o.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm() != 0o600 {
		err = f.Chmod(0o600)
		if err != nil {
			return nil, fmt.Errorf("others can read it: %w", err)
		}
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	l := newLog(o)
	l.end.Go(l.run)
	return l, nil
}

func newLog(o Options) *Log {
	key := o.Key
	if key == nil {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails
	}
	l := &Log{out: &lumberjack.Logger{Filename: o.File, MaxSize: int(cmp.Or(o.MaxBytes, 64<<20) >> 20),
		MaxBackups: cmp.Or(o.Keep, 5)},
		mac: hmac.New(sha256.New, key), log: o.Log,
		queue: make(chan *Line, queueLines), stop: make(chan struct{}),
		lines: meter.At(o.Metrics).Counters("decision_log_lines_total", "Lines of the decision log.", "what")}
	if l.log == nil {
		l.log = zap.NewNop()
	}
	return l
}

// Add queues a line. It never blocks; the Log owns the line from now on.
func (l *Log) Add(line *Line) {
	if l == nil || line == nil {
		return
	}
	select {
	case l.queue <- line:
	default:
		l.lines.WithLabelValues("dropped").Inc()
	}
}

// Failing returns why lines are not written now; "": they are.
func (l *Log) Failing() string {
	switch {
	case l == nil:
	case l.failed.Load() != nil:
		return *cmp.Or(l.failed.Load(), new(string)) // it may have been written meanwhile
	case len(l.queue) == cap(l.queue):
		return "the disk takes lines more slowly than they come"
	}
	return ""
}

// Close writes the queued lines and closes the file. Lines added later are lost.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	close(l.stop)
	l.end.Wait()
	return l.out.Close()
}

func (l *Log) run() {
	for {
		select {
		case line := <-l.queue:
			l.write(line)
		case <-l.stop:
			for len(l.queue) > 0 {
				l.write(<-l.queue)
			}
			return
		}
	}
}

// write writes a line to the file. A failure is logged once, until writing works again.
func (l *Log) write(line *Line) {
	l.pseudonymize(line)
	text, err := json.Marshal(line)
	if err == nil {
		text = append(text, '\n')
		if l.torn {
			text = append([]byte{'\n'}, text...)
		}
		var n int
		n, err = l.out.Write(text)
		l.torn = err != nil && (n > 0 || l.torn)
	}
	switch failed := err != nil; {
	case failed && !l.failing:
		l.log.Error("the decision log cannot be written: lines are dropped until it can", zap.Error(err))
	case !failed && l.failing:
		l.log.Info("the decision log is written again")
	}
	l.failing = err != nil
	if l.failing {
		why := err.Error()
		l.failed.Store(&why)
		l.lines.WithLabelValues("failed").Inc()
	} else {
		l.failed.Store(nil)
		l.lines.WithLabelValues("written").Inc()
	}
}

// pseudonymize replaces values by their pseudonyms, and rounds numbers whose last digits are of no use.
func (l *Log) pseudonymize(line *Line) {
	line.Version = formatVersion
	for k, chain := range line.HashIDs {
		if chain == 0 {
			line.HashIDs[k] = l.pseudonym(ofNothing, line.ID, uint64(k))
		} else {
			line.HashIDs[k] = l.pseudonym(ofPrompt, line.Model, uint64(k), chain)
		}
	}
	for i := range line.Images {
		line.Images[i].ID = l.pseudonym(ofImage, "", line.Images[i].ID)
	}
	for i := range line.Ranked {
		c := &line.Ranked[i]
		for _, n := range []*float64{&c.Backlog, &c.Rate, &c.Cost, &c.Terms.Prefill, &c.Terms.Queue, &c.Terms.Delay,
			&c.Terms.Requests, &c.Terms.Context, &c.Terms.Fetch, &c.Terms.Elsewhere, &c.Terms.Distance, &c.Terms.Junction} {
			*n = math.Round(10**n) / 10
		}
	}
	line.Margin = math.Round(10*line.Margin) / 10
	if line.Session != "" {
		line.Session = fmt.Sprintf("%014x", l.pseudonym(ofSession, line.Session))
	}
}

// Kinds of pseudonyms: equal numbers of different kinds get different pseudonyms.
const (
	ofPrompt  = 'p'
	ofNothing = 'n'
	ofImage   = 'i'
	ofSession = 's'
)

// pseudonym returns a number below 2⁵³, which every JSON reader can represent.
func (l *Log) pseudonym(kind byte, text string, numbers ...uint64) uint64 {
	b := []byte{kind}
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	l.mac.Reset()
	l.mac.Write(append(b, text...))
	return binary.BigEndian.Uint64(l.mac.Sum(nil)) >> 11
}

// Spans returns Line.HashIDs for a prompt of this length in tokens: for each span the chain hash of the last whole block up to its end.
func Spans(chain []uint64, blockSize, tokens int) []uint64 {
	out := make([]uint64, (tokens+SpanTokens-1)/SpanTokens)
	for k := range out {
		if last := min((k+1)*SpanTokens, tokens)/blockSize - 1; last >= 0 && last < len(chain) {
			out[k] = chain[last]
		}
	}
	return out
}
