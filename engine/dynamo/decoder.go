package dynamo

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
)

// Key is what events and routes of Dynamo share: a worker's instance id, and its data-parallel rank.
type Key struct {
	Worker uint64
	Rank   uint32
}

// Decoder reads the payloads of one worker-rank. Not safe for concurrent use: it reuses its memory.
type Decoder struct {
	Key       Key
	BlockSize int // tokens a block, as the worker's model card says: events do not

	out          kvevent.Batch
	events       []kvevent.Event
	engineHashes []uint64
	locals       []uint64
}

// routerEvent is one RouterEvent as read, whatever its form.
type routerEvent struct {
	key               Key
	hasWorker         bool
	tier, domain      []byte
	kind              kvevent.Kind
	known, data       bool // data was there, and of a known kind
	parent            uint64
	hasParent         bool
	first, firstLocal int // into engine hashes, locals
}

// Decode reads one payload: RouterEvents in a list, or one alone, as named MessagePack or JSON. The batch is good until
// the next call. An error means that the payload is cut or none at all; one event that cannot be read is only counted
// (Dynamo's own router drops the whole batch).
func (d *Decoder) Decode(payload []byte) (kvevent.Batch, error) {
	d.events, d.engineHashes, d.locals = d.events[:0], kvevent.Reuse(d.engineHashes), kvevent.Reuse(d.locals)
	d.out = kvevent.Batch{Rank: int(d.Key.Rank)}
	err := eachEvent(payload, d.one, func() { d.out.Bad++ })
	if err != nil {
		return kvevent.Batch{Rank: -1}, err
	}
	d.out.Events = d.events
	return d.out, nil
}

// eachEvent calls one for each RouterEvent of a payload, in the form that it has, and bad for those that one refuses.
func eachEvent(payload []byte, one func(b []byte, isJSON bool) error, bad func()) error {
	if len(payload) == 0 {
		return errors.New("dynamo: empty payload")
	}
	if payload[0] == '{' || payload[0] == '[' {
		return eachJSON(payload, one, bad)
	}
	n, b := uint32(1), payload
	switch msgp.NextType(payload) {
	case msgp.ArrayType:
		var err error
		if n, b, err = msgp.ReadArrayHeaderBytes(payload); err != nil {
			return fmt.Errorf("dynamo: events: %w", err)
		}
	case msgp.MapType:
	default:
		return fmt.Errorf("dynamo: want a list of events or one, got %s", msgp.NextType(payload))
	}
	for i := range n {
		rest, err := msgp.Skip(b)
		if err != nil {
			return fmt.Errorf("dynamo: event %d of %d: %w", i+1, n, err)
		}
		if one(b[:len(b)-len(rest)], false) != nil {
			bad()
		}
		b = rest
	}
	return nil
}

// one reads one RouterEvent and appends what it says.
func (d *Decoder) one(b []byte, isJSON bool) error {
	e := routerEvent{first: len(d.engineHashes), firstLocal: len(d.locals)}
	var err error
	if isJSON {
		err = d.readJSON(b, &e)
	} else {
		err = d.readMap(b, &e)
	}
	switch {
	case err != nil:
	case !e.hasWorker || !e.data:
		err = errors.New("event without worker_id or data")
	case e.key != d.Key || len(e.domain) > 0 && string(e.domain) != "worker": // a cache owner's is no worker's
	case !e.known:
		d.out.Unknown++
	case e.kind == kvevent.Stored && len(d.engineHashes)-e.first != len(d.locals)-e.firstLocal:
		err = errors.New("stored event with block hashes of another kind")
	default:
		d.emit(&e)
		return nil
	}
	d.engineHashes, d.locals = d.engineHashes[:e.first], d.locals[:e.firstLocal]
	return err
}

func (d *Decoder) emit(e *routerEvent) {
	engineHashes, locals := d.engineHashes[e.first:len(d.engineHashes):len(d.engineHashes)], d.locals[e.firstLocal:len(d.locals):len(d.locals)]
	if e.kind != kvevent.Cleared && len(engineHashes) == 0 { // sent in place of what Dynamo left out, to keep ids consecutive
		return
	}
	out := kvevent.Event{Kind: e.kind, Tier: kvevent.TierOf(string(e.tier)), EngineHashes: engineHashes}
	if e.kind == kvevent.Stored {
		out.Locals, out.BlockSize, out.Parent, out.HasParent = locals, d.BlockSize, e.parent, e.hasParent
	}
	d.events = append(d.events, out)
}

func (d *Decoder) readMap(b []byte, e *routerEvent) error {
	_, err := wire.Map(b, func(key, b []byte) ([]byte, error) {
		var err error
		switch string(key) {
		case "worker_id":
			e.key.Worker, b, err = msgp.ReadUint64Bytes(b)
			e.hasWorker = err == nil
		case "storage_tier":
			e.tier, b, err = text(b)
		case "residency_domain":
			e.domain, b, err = text(b)
		case "event":
			return wire.Map(b, func(key, b []byte) ([]byte, error) {
				switch string(key) {
				case "dp_rank":
					rank, rest, err := msgp.ReadUint64Bytes(b)
					if err == nil && rank > math.MaxUint32 {
						err = fmt.Errorf("rank %d is over 32 bits", rank)
					}
					e.key.Rank = uint32(rank)
					return rest, err
				case "data":
					e.data = true
					return d.data(b, e)
				}
				return msgp.Skip(b)
			})
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
	return err
}

// data reads {"stored": {…}}, {"removed": {…}} or "cleared".
func (d *Decoder) data(b []byte, e *routerEvent) ([]byte, error) {
	if msgp.NextType(b) == msgp.StrType {
		name, rest, err := msgp.ReadStringZC(b)
		e.kind, e.known = kvevent.Cleared, string(name) == "cleared"
		return rest, err
	}
	return wire.Map(b, func(kind, b []byte) ([]byte, error) {
		switch string(kind) {
		case "stored":
			e.kind, e.known = kvevent.Stored, true
		case "removed":
			e.kind, e.known = kvevent.Removed, true
		case "cleared":
			e.kind, e.known = kvevent.Cleared, true
			return msgp.Skip(b)
		default:
			return msgp.Skip(b)
		}
		return wire.Map(b, func(key, b []byte) ([]byte, error) {
			switch string(key) {
			case "parent_hash":
				if msgp.NextType(b) == msgp.NilType {
					return msgp.Skip(b)
				}
				var err error
				e.parent, b, err = hash(b)
				e.hasParent = err == nil
				return b, err
			case "block_hashes":
				return list(b, func(b []byte) ([]byte, error) {
					h, b, err := hash(b)
					d.engineHashes = append(d.engineHashes, h)
					return b, err
				})
			case "blocks":
				return list(b, d.block)
			}
			return msgp.Skip(b)
		})
	})
}

// block reads one stored block.
func (d *Decoder) block(b []byte) ([]byte, error) {
	var engineHash, local uint64
	has := 0
	b, err := wire.Map(b, func(key, b []byte) (_ []byte, err error) {
		switch string(key) {
		case "block_hash":
			engineHash, b, err = hash(b)
			has |= 1
		case "tokens_hash":
			local, b, err = hash(b)
			has |= 2
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
	if err == nil && has != 3 {
		err = errors.New("block without block_hash or tokens_hash")
	}
	d.engineHashes, d.locals = append(d.engineHashes, engineHash), append(d.locals, local)
	return b, err
}

func list(b []byte, each func([]byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	for i := uint32(0); i < n && err == nil; i++ {
		b, err = each(b)
	}
	return b, err
}

// hash reads a block hash; a signed one keeps its bits.
func hash(b []byte) (uint64, []byte, error) {
	if msgp.NextType(b) == msgp.IntType {
		v, rest, err := msgp.ReadInt64Bytes(b)
		return uint64(v), rest, err
	}
	return msgp.ReadUint64Bytes(b)
}

// text reads a string, or null as none.
func text(b []byte) ([]byte, []byte, error) {
	if msgp.NextType(b) == msgp.NilType {
		rest, err := msgp.Skip(b)
		return nil, rest, err
	}
	return msgp.ReadStringZC(b)
}

// head reads who an event is of, and its number.
func head(b []byte, isJSON bool) (k Key, id uint64, err error) {
	has := false
	if isJSON {
		var j struct {
			Worker *uint64 `json:"worker_id"`
			Event  struct {
				ID   uint64 `json:"event_id"`
				Rank uint32 `json:"dp_rank"`
			} `json:"event"`
		}
		if err = json.Unmarshal(b, &j); err == nil && j.Worker != nil {
			k, id, has = Key{*j.Worker, j.Event.Rank}, j.Event.ID, true
		}
	} else {
		_, err = wire.Map(b, func(key, b []byte) (_ []byte, err error) {
			switch string(key) {
			case "worker_id":
				k.Worker, b, err = msgp.ReadUint64Bytes(b)
				has = true
			case "event":
				b, err = wire.Map(b, func(key, b []byte) ([]byte, error) {
					var err error
					switch string(key) {
					case "event_id":
						id, b, err = msgp.ReadUint64Bytes(b)
					case "dp_rank":
						k.Rank, b, err = msgp.ReadUint32Bytes(b)
					default:
						b, err = msgp.Skip(b)
					}
					return b, err
				})
			default:
				b, err = msgp.Skip(b)
			}
			return b, err
		})
	}
	if err == nil && !has {
		err = errors.New("event without worker_id")
	}
	return k, id, err
}
