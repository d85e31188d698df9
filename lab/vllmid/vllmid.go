// Package vllmid computes the identities that vLLM itself gives to blocks and images: the chained block hash of
// v1/core/kv_cache_utils.py and the media identifier of multimodal/hasher.py.
//
// The product never needs it: its keys are its own (mmhash/block) and engine block hashes are opaque to it. The simulated worker
// does, and it must not share code with what it tests. So this package imports nothing of mmhash; recordings of real
// workers judge it.
//
// vLLM changes these rules from release to release. RulesOf says which ones hold for a release; the exact first releases
// were read from the wheels 0.10.2 to 0.33.0.
package vllmid

import (
	"fmt"
	"strconv"
	"strings"
)

// ImageForm is a generation of vLLM's image hash: what bytes are digested for one image.
type ImageForm uint8

// The generations that this package knows. All hash the encoded file, never pixels.
const (
	// FormFlat (0.16 to 0.26): sorted keys, each followed by its bytes, nothing between them; request kwargs lie flat
	// beside "image" and "model_id".
	FormFlat ImageForm = iota + 3
	// FormIOConfig (0.27 to 0.29): as FormFlat, but an image that must be converted to RGB carries its conversion.
	FormIOConfig
	// FormNested (0.30): as FormIOConfig, with the request's kwargs nested under their own keys.
	FormNested
	// FormFramed (0.31 on): the same content, every item tagged and framed by its length.
	FormFramed
)

// Rules are the identity and wire rules of one release.
type Rules struct {
	Version string
	Image   ImageForm
	// TaggedKeys: the block hash takes ("mm", identifier, offset) where earlier releases take (identifier, offset),
	// and an adapter's path besides its name (0.31).
	TaggedKeys bool
	// MapEvents: KV events are msgpack maps, no longer arrays (0.24).
	MapEvents bool
	// ReplayTopic: replay messages carry the topic frame (0.26).
	ReplayTopic bool
	// FixedSeed: without PYTHONHASHSEED the hash seed of the sha256 forms is a constant, no longer random (0.29).
	FixedSeed bool
	// SessionID: a stored event carries the client's X-Session-ID (0.30).
	SessionID bool
	// EventSources: GET /kv_event_sources exists (0.31).
	EventSources bool
}

// RulesOf gives the rules of a release such as "0.32.0". It knows 0.23 to 0.33 and refuses others rather than guess.
func RulesOf(version string) (Rules, error) {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	if major != "0" || err != nil || n < 23 || n > 33 {
		return Rules{}, fmt.Errorf("vLLM version %q: want 0.23 to 0.33, such as 0.32.0", version)
	}
	r := Rules{
		Version:      version,
		Image:        FormFlat,
		TaggedKeys:   n >= 31,
		MapEvents:    n >= 24,
		ReplayTopic:  n >= 26,
		FixedSeed:    n >= 29,
		SessionID:    n >= 30,
		EventSources: n >= 31,
	}
	switch {
	case n >= 31:
		r.Image = FormFramed
	case n >= 30:
		r.Image = FormNested
	case n >= 27:
		r.Image = FormIOConfig
	}
	return r, nil
}
