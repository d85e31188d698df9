package dynamo

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
)

// Key names a worker-rank in Dynamo's events and routes: the worker's instance id, and its data-parallel rank.
type Key struct {
	Worker uint64
	Rank   uint32
}

// Decoder reads the payloads of one worker-rank. Not safe for concurrent use: it reuses its memory.
type Decoder struct {
	Key       Key
	BlockSize int // in tokens, from the worker's model card: events do not carry it

	a kvevent.Arena
	e routerEvent // the current event
}

// Decode reads one payload, a list of RouterEvents or a single one, as MessagePack with named fields. The batch is valid until the
// next call. An error means that the payload is truncated or not such a list. An event that cannot be read is only counted
// (Dynamo's own router drops the whole batch).
func (d *Decoder) Decode(payload []byte) (batch kvevent.Batch, _ error) {
	d.a.Reset()
	var first error // of the events that could not be read
	bad, err := eachEvent(payload, func(b []byte) error {
		before, e := d.a, &d.e
		*e = routerEvent{}
		err := e.read(b, d.data)
		mine := e.key == d.Key && (len(e.domain) == 0 || string(e.domain) == "worker")
		if mine {
			batch.CountKey(e.unknownKey)
		}
		switch {
		case err != nil:
		case !mine: // it belongs to another worker-rank or a cache owner
		case !e.known:
			batch.Unknown++
		case e.kind == kvevent.Stored && len(d.a.EngineHashes)-len(before.EngineHashes) != len(d.a.Locals)-len(before.Locals):
			err = errors.New("event with two kinds of data")
		default:
			d.emit(&before)
			return nil
		}
		d.a.Rollback(before)
		first = cmp.Or(first, err)
		return err
	})
	if err != nil {
		return kvevent.Batch{}, err
	}
	batch.Events, batch.Bad = d.a.Events, bad
	if len(batch.Events) == 0 {
		batch.Unread = first
	}
	return batch, nil
}

// Free ends the use of the last batch.
func (d *Decoder) Free() { d.a.Free() }

// eachEvent calls one for each RouterEvent of a payload, and counts those for which it returns an error.
func eachEvent(payload []byte, one func(b []byte) error) (bad uint64, err error) {
	n, b := uint32(1), payload
	switch msgp.NextType(payload) {
	case msgp.ArrayType:
		n, b, err = msgp.ReadArrayHeaderBytes(payload)
		if err != nil {
			return 0, fmt.Errorf("dynamo: events: %w", err)
		}
	case msgp.MapType:
	default:
		return 0, fmt.Errorf("dynamo: want a list of events or one, got %s", msgp.NextType(payload))
	}
	for i := range n {
		event, rest, err := wire.Raw(b)
		if err != nil {
			return 0, fmt.Errorf("dynamo: event %d of %d: %w", i+1, n, err)
		}
		if one(event) != nil {
			bad++
		}
		b = rest
	}
	return bad, nil
}

// peek returns the worker-rank of a payload's first readable event, without reading its blocks.
// The error says why, if there are events and none of them could be read.
func peek(payload []byte) (k Key, found bool, err error) {
	var first error
	_, err = eachEvent(payload, func(b []byte) error {
		if found {
			return nil
		}
		var e routerEvent
		err := e.read(b, msgp.Skip)
		k, found, first = e.key, err == nil, cmp.Or(first, err)
		return err
	})
	if found && err == nil {
		return k, true, nil
	}
	return k, false, cmp.Or(err, first)
}

// routerEvent is one decoded RouterEvent.
type routerEvent struct {
	key          Key
	tier, domain []byte
	kind         kvevent.Kind
	known        bool // its data is of a known kind
	parent       uint64
	hasParent    bool
	unknownKey   string // the first key that no release sends
}

// skip skips the value of a key that is not needed, and records a key that is not among the known ones.
func (e *routerEvent) skip(key, b []byte, known ...string) ([]byte, error) {
	if e.unknownKey == "" && !slices.Contains(known, wire.View(key)) {
		e.unknownKey = cmp.Or(wire.View(key), "an empty key")
	}
	return msgp.Skip(b)
}

var errIncomplete = errors.New("event without worker_id or data")

// read reads one RouterEvent; data reads its payload.
func (e *routerEvent) read(b []byte, data func(b []byte) ([]byte, error)) error {
	hasWorker, hasData := false, false
	_, err := wire.Map(b, func(key, b []byte) (_ []byte, err error) {
		switch string(key) {
		case "worker_id":
			hasWorker = true
			e.key.Worker, b, err = msgp.ReadUint64Bytes(b)
		case "storage_tier":
			e.tier, b, err = wire.ReadText(b)
		case "residency_domain":
			e.domain, b, err = wire.ReadText(b)
		case "event":
			b, err = wire.Map(b, func(key, b []byte) (_ []byte, err error) {
				switch string(key) {
				case "dp_rank":
					e.key.Rank, b, err = msgp.ReadUint32Bytes(b)
					return b, err
				case "data":
					hasData = true
					return data(b)
				}
				return e.skip(key, b, "event_id")
			})
		default:
			return e.skip(key, b, "state_source", "session_id")
		}
		return b, err
	})
	if err == nil && !(hasWorker && hasData) {
		err = errIncomplete
	}
	return err
}

// data reads {"stored": {…}}, {"removed": {…}} or "cleared", and appends the hashes to the arena.
func (d *Decoder) data(b []byte) ([]byte, error) {
	e := &d.e
	if msgp.NextType(b) == msgp.StrType {
		name, rest, err := msgp.ReadStringZC(b)
		e.kind, e.known = kvevent.Cleared, string(name) == "cleared"
		return rest, err
	}
	return wire.Map(b, func(kind, b []byte) ([]byte, error) {
		switch string(kind) {
		case "stored":
			e.kind, e.known = kvevent.Stored, true
			return wire.Map(b, func(key, b []byte) (_ []byte, err error) {
				switch string(key) {
				case "parent_hash":
					if msgp.NextType(b) == msgp.NilType {
						return msgp.Skip(b)
					}
					e.hasParent = true
					e.parent, b, err = msgp.ReadUint64Bytes(b)
					return b, err
				case "blocks":
					return wire.Array(b, d.block)
				}
				return e.skip(key, b, "start_position")
			})
		case "removed":
			e.kind, e.known = kvevent.Removed, true
			return wire.Map(b, func(key, b []byte) ([]byte, error) {
				if string(key) != "block_hashes" {
					return e.skip(key, b)
				}
				return wire.Array(b, func(b []byte) ([]byte, error) {
					h, b, err := msgp.ReadUint64Bytes(b)
					d.a.EngineHashes = append(d.a.EngineHashes, h)
					return b, err
				})
			})
		case "cleared":
			e.kind, e.known = kvevent.Cleared, true
		}
		return msgp.Skip(b)
	})
}

// block reads one stored block.
func (d *Decoder) block(b []byte) ([]byte, error) {
	var engineHash, local uint64
	hasHash, hasLocal := false, false
	b, err := wire.Map(b, func(key, b []byte) (_ []byte, err error) {
		switch string(key) {
		case "block_hash":
			hasHash = true
			engineHash, b, err = msgp.ReadUint64Bytes(b)
		case "tokens_hash":
			hasLocal = true
			local, b, err = msgp.ReadUint64Bytes(b)
		default:
			return d.e.skip(key, b, "mm_extra_info")
		}
		return b, err
	})
	if err == nil && !(hasHash && hasLocal) {
		err = errors.New("block without block_hash or tokens_hash")
	}
	d.a.EngineHashes, d.a.Locals = append(d.a.EngineHashes, engineHash), append(d.a.Locals, local)
	return b, err
}

// emit appends the current event to the batch, with the hashes added to the arena since before.
func (d *Decoder) emit(before *kvevent.Arena) {
	e := &d.e
	engineHashes := kvevent.Tail(d.a.EngineHashes, len(before.EngineHashes))
	if e.kind != kvevent.Cleared && len(engineHashes) == 0 {
		return // Dynamo filtered the blocks out, and sends the event to keep ids consecutive
	}
	out := kvevent.Event{Kind: e.kind, Tier: kvevent.TierOf(wire.View(e.tier)), EngineHashes: engineHashes}
	if e.kind == kvevent.Stored {
		out.Locals = kvevent.Tail(d.a.Locals, len(before.Locals))
		out.BlockSize, out.Parent, out.HasParent = d.BlockSize, e.parent, e.hasParent
	}
	d.a.Events = append(d.a.Events, out)
}
