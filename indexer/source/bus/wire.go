// Package bus carries the cache state of workers' ranks over NATS: an agent beside each worker publishes, every router listens.
//
//	worker ─ ZMQ ─▶ stream ─▶ Publisher ─ JetStream, one subject a worker-rank ─▶ Listener ─▶ stream ─▶ index
//	                           ▲  │                                                 ▲
//	             at a start    └──┴──────── snapshot (a stream too) ────────────────┘   at join, after a gap
//
//	wire.go          the message format
//	publisher.go     the agent's side: a Sink that publishes
//	resume.go        how an agent begins: it takes over the line, and continues where the last agent ended
//	streamreader.go  the line of a rank: a snapshot and the messages after it, for routers and for an agent's start
//	listener.go      the router's side: subjects → feeds, and a Source for each
//	stream.go        names and limits of the stream and its subjects
//	link.go          the router's connection, or its embedded server
//	secret.go        the secret of the block hashes, from routers to agents
//
// The messages of a rank form one line, ordered by epoch and number, and by the stream's own number. Every message is published
// on the condition that the previous one is the last of its subject, so the stream accepts messages of one agent only: the
// newest. An older agent's next message is refused, and the agent stops. No clocks are compared.
//
// A message has the local hash, engine hash, parent and tier of each block: about 16 bytes a block. Token ids and media names,
// which would put every prompt on the server's disk, are sent only in mode Tokens, for audits. Connection errors are retried for
// ever and logged when they begin and end; messages in an unknown format are dropped.
package bus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/binread"
	"github.com/sightline-router/sightline/mmhash/block"
)

// A message, little endian:
//
//	'S' version flags | epoch u64 | seq u64 | agent u64 | engine's next u64 | engine's sum u64 | key u64 | event …
//
// agent is a random number of each process, which other agents cannot read: its heartbeats prove by it whose they are. key is the ID of
// the key of the locals (package block). The engine's next message and the checksum of its last one (stream.Position) are
// those after the events, so that another agent can continue from here.
//
// An event: kind, tier and what follows (1 byte) | blocks varint | engine hashes u64 … A stored event adds: block size, from bit 24 on the
// lookahead, and bit 40 if there is a session, varint | parent u64, if any | locals u64 … | session, if any, and in mode Tokens:
// tokens u32 … | adapter | media. A snapshot is such a message
// with a clear, the events that rebuild what the worker holds, and stream.Feed's Rest. An event of a further KV cache group adds:
// group varint, and if stored: need (1 byte) | window varint | block size varint.
const (
	magic         = 'S'
	version       = 5
	oldestVersion = 5 // that is read: before, hashes had no key, and match nothing
	headBytes     = 3 + 6*8

	flagPartial    = 1
	flagAway       = 2 // the agent is not connected to the engine
	flagUpperBound = 4

	eventKind   = 0x07
	eventTier   = 0x18 // shifted by 3
	eventParent = 0x20
	eventMedia  = 0x40 // MediaUnknown
	eventTokens = 0x80

	lookaheadShift = 24
	withSession    = 1 << 40
)

// errOtherKey: two processes have different secrets.
var errOtherKey = errors.New("another secret (agents and replicas need the same: index.key_file, and --key-file, in " +
	"all of them or in none)")

// head is a message's header, before its events.
type head struct {
	flags             byte
	epoch, seq, agent uint64
	next, sum         uint64 // of the engine, as in stream.Position
	key               uint64
}

// append begins a message.
func (h *head) append(b []byte) []byte {
	return appendWords(append(b, magic, version, h.flags), []uint64{h.epoch, h.seq, h.agent, h.next, h.sum, h.key})
}

// maxMessage limits a message of the line. Agents send less than maxQueued and a head, and snapshots in parts.
const maxMessage = 1 << 20

// readMessage reads the header of a message of the line.
func readMessage(b []byte) (h head, err error) {
	if len(b) > maxMessage {
		return h, fmt.Errorf("bus message of %d bytes, want %d at most", len(b), maxMessage)
	}
	return readHead(b)
}

func readHead(b []byte) (h head, err error) {
	if len(b) < 2 || b[0] != magic || b[1] < oldestVersion || b[1] > version {
		return h,
			fmt.Errorf("bus message begins with % x, want %x version %d (agents and routers have to be of releases with the "+
				"same version: update them together)", b[:min(2, len(b))], magic, version)
	}
	if len(b) < headBytes {
		return h, fmt.Errorf("bus message of %d bytes, want %d or more", len(b), headBytes)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[3+8*i:]) }
	return head{b[2], word(0), word(1), word(2), word(3), word(4), word(5)}, nil
}

// appendEvent appends one event, with its tokens and names if tokens is set.
func appendEvent(b []byte, e *kvevent.Event, tokens bool) []byte {
	tokens = tokens && e.Kind == kvevent.Stored && len(e.Tokens) == e.BlockSize*len(e.EngineHashes)
	head := byte(e.Kind) | byte(e.Tier)<<3&eventTier
	if e.HasParent {
		head |= eventParent
	}
	if e.MediaUnknown {
		head |= eventMedia
	}
	if tokens {
		head |= eventTokens
	}
	b = append(b, head)
	b = binary.AppendUvarint(b, uint64(len(e.EngineHashes)))
	b = appendWords(b, e.EngineHashes)
	switch e.Kind {
	case kvevent.GroupStored, kvevent.GroupRemoved:
		b = binary.AppendUvarint(b, uint64(e.Group))
		if e.Kind == kvevent.GroupStored {
			b = append(b, byte(e.Spec.Need))
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(e.Spec.Window)), uint64(e.Spec.BlockSize))
		}
		return b
	case kvevent.Stored:
	default:
		return b
	}
	form := uint64(e.BlockSize) | uint64(e.Lookahead)<<lookaheadShift
	if e.Session != "" {
		form |= withSession
	}
	b = binary.AppendUvarint(b, form)
	if e.HasParent {
		b = binary.LittleEndian.AppendUint64(b, e.Parent)
	}
	b = appendWords(b, e.Locals)
	if e.Session != "" {
		b = appendText(b, e.Session)
	}
	if !tokens {
		return b
	}
	for _, t := range e.Tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	b = appendText(b, e.LoRA)
	b = binary.AppendUvarint(b, uint64(len(e.Media)))
	for _, m := range e.Media {
		b = binary.AppendUvarint(b, uint64(m.Block))
		b = binary.AppendVarint(b, int64(m.Offset))
		if m.Paired {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		b = appendText(b, m.Name)
	}
	return b
}

// appendBlocks appends the events that make a worker hold exactly these blocks, or some of them and more than most bytes.
func appendBlocks(b []byte, blocks []indexer.Block, groups []kvevent.Event, form block.Form, most int) []byte {
	b = appendEvent(b, &kvevent.Event{Kind: kvevent.Cleared}, false)
	for e := range indexer.Events(blocks) {
		e.BlockSize, e.Lookahead = form.Size, form.Lookahead
		if len(b) > most {
			break
		}
		b = appendEvent(b, &e, false)
	}
	for i := range groups {
		if len(b) > most {
			break
		}
		b = appendEvent(b, &groups[i], false)
	}
	return b
}

// HeldBlockBytes is the least that a block takes of AppendHeld's message.
const HeldBlockBytes = 16

// AppendHeld appends a message with all that a worker's rank holds, as one router sends it to another. It ends early, incomplete,
// once the message has more than most bytes.
func AppendHeld(b []byte, secret *block.Secret, h *stream.Held, most int) []byte {
	own := head{next: h.At.Next, sum: h.At.Sum, key: secret.Key().ID}
	if h.At.UpperBound {
		own.flags |= flagUpperBound
	}
	if h.At.Partial {
		own.flags |= flagPartial
	}
	return appendBlocks(own.append(b), h.Blocks, h.Groups, h.Form, most)
}

// ReadHeld reads such a message. The batch refers to b and to memory of its own.
func ReadHeld(b []byte, secret *block.Secret) (at stream.Position, all kvevent.Batch, err error) {
	h, err := readHead(b)
	if err == nil {
		all, err = (&Decoder{Secret: secret}).Decode(b)
	}
	all.Stands = false // a worker's own messages follow, which say nothing of that
	if err == nil && (h.flags&^(flagUpperBound|flagPartial) != 0 || len(all.Events) == 0 || all.Events[0].Kind != kvevent.Cleared) {
		err = errors.New("a message that is not of all that a worker holds")
	}
	return stream.Position{Next: h.next, Sum: h.sum, Partial: all.Partial, UpperBound: all.UpperBound}, all, err
}

func appendWords(b []byte, words []uint64) []byte {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Decoder reads bus messages for package stream. The zero value is ready to use.
type Decoder struct {
	Secret *block.Secret // whose hashes are wanted

	a     kvevent.Arena
	check bool // hashes are only skipped
}

// A message has at most maxEvents events, or as many as a snapshot of its size may have: there, each one stores a block and takes
// minEventBytes or more.
const (
	maxEvents     = 1 << 18
	minEventBytes = 19
)

// The events of one message are decoded some at a time: an event takes 176 bytes of memory, and as little as two of a message.
const (
	eventsAtOnce = 1 << 10
	wordsAtOnce  = maxMessage / 8
)

// Decode reads one message. The batch is valid until the next call, and its names as long as b. Nothing is allocated once the
// memory has grown, except for a message of more than eventsAtOnce events or wordsAtOnce hashes, and the names of mode Tokens.
func (d *Decoder) Decode(b []byte) (kvevent.Batch, error) {
	d.a.Reset()
	h, err := readHead(b)
	if err != nil {
		return kvevent.Batch{}, err
	}
	if want := d.Secret.Key().ID; h.key != want {
		return kvevent.Batch{}, fmt.Errorf("bus message with hashes under key %016x, want %016x: %w", h.key, want, errOtherKey)
	}
	batch := kvevent.Batch{Stands: true,
		Partial: h.flags&flagPartial != 0, Away: h.flags&flagAway != 0, UpperBound: h.flags&flagUpperBound != 0}
	r := &binread.Reader{B: b[headBytes:]}
	d.some(r)
	if first := *r; len(r.B) > 0 && r.Err == nil { // check the rest: of a message with an error nothing is applied
		most, count := max(maxEvents, len(b)/minEventBytes), len(d.a.Events)
		for rest := (&Decoder{check: true}); len(r.B) > 0 && r.Err == nil; count += len(rest.a.Events) {
			rest.some(r)
			if count+len(rest.a.Events) > most {
				r.Err = fmt.Errorf("more than %d events in %d bytes", most, len(b))
			}
		}
		batch.More = func() []kvevent.Event { d.some(&first); return d.a.Events }
	}
	if r.Err != nil {
		return kvevent.Batch{}, fmt.Errorf("bus: %w", r.Err)
	}
	batch.Events = d.a.Events
	return batch, nil
}

// Free ends the use of the last batch.
func (d *Decoder) Free() { d.a.Free() }

// some decodes the next events.
func (d *Decoder) some(r *binread.Reader) {
	d.a.Events, d.a.Tokens, d.a.Media, d.a.Wide = d.a.Events[:0], d.a.Tokens[:0], d.a.Media[:0], d.a.Wide[:0]
	if !d.check {
		d.a.Wide = slices.Grow(d.a.Wide, min(len(r.B)/8, wordsAtOnce))
	}
	for len(r.B) > 0 && r.Err == nil && len(d.a.Events) < eventsAtOnce && len(d.a.Wide) < wordsAtOnce && len(d.a.Tokens) < 2*wordsAtOnce {
		d.event(r)
	}
}

func (d *Decoder) event(r *binread.Reader) {
	head := r.Byte()
	e := kvevent.Event{Kind: kvevent.Kind(head & eventKind), Tier: kvevent.Tier(head & eventTier >> 3),
		HasParent: head&eventParent != 0, MediaUnknown: head&eventMedia != 0}
	if e.Kind > kvevent.GroupRemoved {
		r.Err = fmt.Errorf("kind %d", e.Kind)
		return
	}
	n := r.Count(math.MaxInt, 8)
	e.EngineHashes = d.takeWords(r, n)
	if e.Kind == kvevent.Stored && r.Err == nil {
		form := r.Varint()
		size, lookahead := form&(1<<lookaheadShift-1), form&^withSession>>lookaheadShift
		if n == 0 || size == 0 || size > 1<<20 || lookahead > block.MaxLookahead {
			r.Err = fmt.Errorf("%d blocks of %d tokens, lookahead %d", n, size, lookahead)
			return
		}
		e.BlockSize, e.Lookahead = int(size), int(lookahead)
		if e.HasParent {
			e.Parent = r.Word()
		}
		e.Locals = d.takeWords(r, n)
		if form&withSession != 0 {
			e.Session = string(readText(r))
		}
		if head&eventTokens != 0 {
			d.tokensMode(r, &e, n)
		}
	}
	if e.Kind == kvevent.GroupStored || e.Kind == kvevent.GroupRemoved {
		d.group(r, &e)
	}
	d.a.Events = append(d.a.Events, e)
}

// group reads what an event of a further KV cache group says beside its hashes.
func (d *Decoder) group(r *binread.Reader, e *kvevent.Event) {
	e.Group = int(min(r.Varint(), math.MaxInt32))
	if e.Kind == kvevent.GroupRemoved {
		return
	}
	e.Spec = kvevent.Spec{Need: kvevent.Need(r.Byte()), Window: int(min(r.Varint(), math.MaxInt32)), BlockSize: int(min(r.Varint(), 1<<20))}
	if r.Err == nil && (e.Spec.Need > kvevent.NeedLast || e.Spec.BlockSize == 0) {
		r.Err = fmt.Errorf("group %d needs %d of blocks of %d tokens", e.Group, e.Spec.Need, e.Spec.BlockSize)
	}
}

func (d *Decoder) takeWords(r *binread.Reader, n int) []uint64 {
	b := r.Bytes(8 * n)
	if d.check || b == nil {
		return nil
	}
	start := len(d.a.Wide)
	for ; len(b) > 0; b = b[8:] {
		d.a.Wide = append(d.a.Wide, binary.LittleEndian.Uint64(b))
	}
	return kvevent.Tail(d.a.Wide, start)
}

// tokensMode reads what is sent only in mode Tokens.
func (d *Decoder) tokensMode(r *binread.Reader, e *kvevent.Event, blocks int) {
	start := len(d.a.Tokens)
	for b := r.Bytes(4 * blocks * e.BlockSize); len(b) > 0; b = b[4:] {
		d.a.Tokens = append(d.a.Tokens, binary.LittleEndian.Uint32(b))
	}
	e.Tokens = kvevent.Tail(d.a.Tokens, start)
	e.LoRA = string(readText(r))
	first := len(d.a.Media)
	for range r.Count(math.MaxInt, 4) {
		m := kvevent.MediaRef{Block: int(min(r.Varint(), math.MaxInt32)), Offset: int(r.Signed()), Paired: r.Byte() == 1, Name: readText(r)}
		if m.Block >= blocks {
			r.Err = fmt.Errorf("media in block %d of %d", m.Block, blocks)
		}
		if r.Err != nil {
			return
		}
		d.a.Media = append(d.a.Media, m)
	}
	e.Media = kvevent.Tail(d.a.Media, first)
}

// readText reads a text behind its length.
func readText(r *binread.Reader) []byte { return r.Bytes(r.Count(math.MaxInt, 1)) }
