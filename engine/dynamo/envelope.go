// Package dynamo has what belongs to NVIDIA Dynamo: it reads what Dynamo's workers publish about their KV caches, discovers the workers,
// and names images as its front ends do.
//
//	ZMQ frame ─ 01 ‖ length u32 BE ‖ envelope ┐
//	NATS message ───────────────── envelope ──┴─ Plane ─ list of RouterEvents ─ Decoder ─▶ kvevent.Batch
//	files of --discovery-backend file ─ discover ─▶ workers, ranks, their publishers
//
//	envelope.go   the envelope of messages on the event plane
//	decoder.go    RouterEvents
//	plane.go      one stream of many workers → a stream.Source for each worker-rank
//	transports.go that stream over ZMQ and NATS
//	discovery.go  the records of the file back end; follow.go: polling them; cards.go: which endpoints are deployed
//	names.go      names of images, salts, and how blocks are keyed (Keys)
//
// A RouterEvent carries its worker and rank, and two hashes of each block: block_hash is the engine hash, and tokens_hash is the
// local hash by Dynamo's own rule (block.Dynamo), which requests to such workers must use. Source: Dynamo 1.6.1, captures of
// running processes and its crate dynamo-kv-router.
//
// Outside of it only this is Dynamo's, and would go with it (git grep -il dynamo lists the rest, which compares with it or mentions it):
//
//	dynamo.go       of app/config, app/serve and app/generate (keys, workers, init), of extproc (headers), of mmhash/block (hashes)
//	Server.Dynamo   in engine, with its callers, and block_hash in server.go
//	Config.Dynamo   with what reads it: app/config, app/serve (workers.go, envoy.go), app/doctor and app/findings (SL0109), cmd's --dynamo
//	Instance        of router.Target, and with Frontends of fleet.Worker and registry.Spec, which have a branch wherever they are read
//	inspect         dynamoOwner: a front end is recognized
//	denied          rows of "Dynamo" in fields.go and headers.go
//	tests           e2e/dynamo, e2e/dynamo_test.go
package dynamo

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent/wire"
)

// topic is the event plane's name for KV events.
const topic = "kv-events"

// envelope is one message of the event plane.
type envelope struct {
	Topic     []byte
	Publisher uint64 // random, one per worker-rank's publisher
	Seq       uint64 // starts at 0 and rises by one per message
	Payload   []byte // a list of RouterEvents
}

// frameVersion is the first byte of a ZMQ frame. The length follows in four bytes.
const frameVersion = 1

// unframe strips the header from the last frame of a ZMQ message.
func unframe(frame []byte) ([]byte, error) {
	if len(frame) < 5 || frame[0] != frameVersion {
		return nil, fmt.Errorf("dynamo: frame of %d bytes: want version byte %d and a length of 4 bytes", len(frame), frameVersion)
	}
	if n := binary.BigEndian.Uint32(frame[1:]); uint64(n) != uint64(len(frame)-5) {
		return nil, fmt.Errorf("dynamo: frame says %d bytes, %d came", n, len(frame)-5)
	}
	return frame[5:], nil
}

// readEnvelope reads an envelope, a MessagePack map. Payload points into b. Unknown fields are skipped.
func readEnvelope(b []byte) (e envelope, err error) {
	_, err = wire.Map(b, func(key, b []byte) (_ []byte, err error) {
		switch string(key) {
		case "topic":
			e.Topic, b, err = wire.ReadText(b)
		case "publisher_id":
			e.Publisher, b, err = msgp.ReadUint64Bytes(b)
		case "sequence":
			e.Seq, b, err = msgp.ReadUint64Bytes(b)
		case "payload":
			e.Payload, b, err = msgp.ReadBytesZC(b)
		default:
			return msgp.Skip(b)
		}
		return b, err
	})
	if err == nil && e.Payload == nil {
		err = errors.New("no payload")
	}
	if err != nil {
		return envelope{}, fmt.Errorf("dynamo: envelope: %w", err)
	}
	return e, nil
}

// ofEvents reports whether the envelope holds KV events. Both spellings occur: subjects and discovery use a hyphen.
func (e *envelope) ofEvents() bool { return string(e.Topic) == topic || string(e.Topic) == "kv_events" }
