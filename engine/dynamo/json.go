package dynamo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// eachJSON is eachEvent for JSON.
func eachJSON(payload []byte, one func([]byte, bool) error, bad func()) error {
	var list []json.RawMessage
	if payload[0] == '[' {
		if err := json.Unmarshal(payload, &list); err != nil {
			return fmt.Errorf("dynamo: events: %w", err)
		}
	} else if list = append(list, payload); !json.Valid(payload) {
		return errors.New("dynamo: event is cut or no JSON")
	}
	for _, b := range list {
		if one(b, true) != nil {
			bad()
		}
	}
	return nil
}

// readJSON reads one RouterEvent in JSON. Numbers of 64 bits stay whole.
func (d *Decoder) readJSON(b []byte, e *routerEvent) error {
	var j struct {
		Worker *uint64 `json:"worker_id"`
		Tier   string  `json:"storage_tier"`
		Domain string  `json:"residency_domain"`
		Event  struct {
			Rank uint32          `json:"dp_rank"`
			Data json.RawMessage `json:"data"`
		} `json:"event"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	e.tier, e.domain, e.key.Rank = []byte(j.Tier), []byte(j.Domain), j.Event.Rank
	if j.Worker != nil {
		e.key.Worker, e.hasWorker = *j.Worker, true
	}
	data := bytes.TrimSpace(j.Event.Data)
	e.data = len(data) > 0
	if e.data && data[0] == '"' {
		e.kind, e.known = kvevent.Cleared, string(data) == `"cleared"`
		return nil
	}
	var k struct {
		Stored *struct {
			Parent *uint64 `json:"parent_hash"`
			Blocks []struct {
				Block  *uint64 `json:"block_hash"`
				Tokens *uint64 `json:"tokens_hash"`
			} `json:"blocks"`
		} `json:"stored"`
		Removed *struct {
			Blocks []uint64 `json:"block_hashes"`
		} `json:"removed"`
	}
	if !e.data {
		return nil
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return err
	}
	switch {
	case k.Stored != nil:
		e.kind, e.known = kvevent.Stored, true
		if p := k.Stored.Parent; p != nil {
			e.parent, e.hasParent = *p, true
		}
		for _, b := range k.Stored.Blocks {
			if b.Block == nil || b.Tokens == nil {
				return errors.New("block without block_hash or tokens_hash")
			}
			d.engineHashes, d.locals = append(d.engineHashes, *b.Block), append(d.locals, *b.Tokens)
		}
	case k.Removed != nil:
		e.kind, e.known = kvevent.Removed, true
		d.engineHashes = append(d.engineHashes, k.Removed.Blocks...)
	}
	return nil
}

// Peek finds the worker-rank and the event id of a payload's first readable event, without reading its blocks.
func Peek(payload []byte) (k Key, id uint64, ok bool) {
	err := eachEvent(payload, func(b []byte, isJSON bool) error {
		if ok {
			return nil
		}
		var err error
		if k, id, err = head(b, isJSON); err == nil {
			ok = true
		}
		return err
	}, func() {})
	return k, id, ok && err == nil
}
