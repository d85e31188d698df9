// Package dynamo reads what NVIDIA Dynamo's workers say of their KV caches, and finds them.
//
//	ZMQ frame ─ 01 ‖ length u32 BE ‖ envelope ┐
//	NATS message ───────────────── envelope ──┴─ Plane ─ list of RouterEvents ─ Decoder ─▶ event.Batch
//	files of --discovery-backend file ─ Discover ─▶ workers, ranks, where they publish
//
//	envelope.go   the wrapping of the event plane
//	decoder.go    RouterEvents as named MessagePack; json.go: as JSON
//	plane.go      one stream of many workers → a feed.Source for each worker-rank
//	transports.go that stream over ZMQ and NATS
//	discovery.go  the records of the file back end
//
// A RouterEvent names its worker and rank, and each block by two hashes: block_hash, the engine's, is our engine hash, and
// tokens_hash is the local hash ready made, by Dynamo's rule (block.Dynamo), which requests of such a class must use.
// Read in Dynamo 1.6.1: captures of running processes, and its crate dynamo-kv-router.
package dynamo

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// Topic is the event plane's name for KV events.
const Topic = "kv-events"

// Envelope is one message of the event plane.
type Envelope struct {
	Topic     string
	Publisher uint64 // random, one for each worker-rank's publisher
	Seq       uint64 // rises by one a message, from 0
	Payload   []byte // a list of RouterEvents
}

// frameVersion is the first byte of a ZMQ frame; four bytes of length follow.
const frameVersion = 1

// Unframe takes the head off a ZMQ plane's last frame.
func Unframe(frame []byte) ([]byte, error) {
	if len(frame) < 5 || frame[0] != frameVersion {
		return nil, fmt.Errorf("dynamo: frame of %d bytes: want version byte %d and a length of 4 bytes", len(frame), frameVersion)
	}
	if n := binary.BigEndian.Uint32(frame[1:]); uint64(n) != uint64(len(frame)-5) {
		return nil, fmt.Errorf("dynamo: frame says %d bytes, %d came", n, len(frame)-5)
	}
	return frame[5:], nil
}

// ReadEnvelope reads an envelope: a MessagePack map, or JSON with the payload as an array of numbers (builds of early
// 2026). Payload points into b where it can. Fields that are not known are passed over.
func ReadEnvelope(b []byte) (e Envelope, err error) {
	if len(b) > 0 && b[0] == '{' {
		var j struct {
			Topic     string  `json:"topic"`
			Publisher uint64  `json:"publisher_id"`
			Seq       uint64  `json:"sequence"`
			Payload   numbers `json:"payload"`
		}
		if err := json.Unmarshal(b, &j); err != nil {
			return e, fmt.Errorf("dynamo: envelope: %w", err)
		}
		return Envelope{j.Topic, j.Publisher, j.Seq, j.Payload}, nil
	}
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return e, fmt.Errorf("dynamo: envelope: want a map: %w", err)
	}
	for range n {
		var key []byte
		if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
			return e, fmt.Errorf("dynamo: envelope: %w", err)
		}
		switch string(key) {
		case "topic":
			var t []byte
			t, b, err = msgp.ReadStringZC(b)
			e.Topic = string(t)
		case "publisher_id":
			e.Publisher, b, err = msgp.ReadUint64Bytes(b)
		case "sequence":
			e.Seq, b, err = msgp.ReadUint64Bytes(b)
		case "payload":
			e.Payload, b, err = msgp.ReadBytesZC(b)
		default:
			b, err = msgp.Skip(b)
		}
		if err != nil {
			return e, fmt.Errorf("dynamo: envelope: %.40q: %w", key, err)
		}
	}
	if e.Payload == nil {
		return e, errors.New("dynamo: envelope without a payload")
	}
	return e, nil
}

// numbers are bytes that JSON has as an array of numbers.
type numbers []byte

// UnmarshalJSON reads [1,2,255].
func (n *numbers) UnmarshalJSON(b []byte) error {
	var list []uint16
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*n = make([]byte, len(list))
	for i, v := range list {
		if v > 255 {
			return fmt.Errorf("%d is no byte", v)
		}
		(*n)[i] = byte(v)
	}
	return nil
}
