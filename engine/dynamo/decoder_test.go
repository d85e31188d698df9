package dynamo

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/golden"
)

// Captures of ai-dynamo 1.6.1 processes on loopback: two mock workers of two ranks with 64 blocks each, and a worker with
// images, over the ZMQ plane (kv-events and kv_metrics) and the NATS plane (everything); the discovery folders beside them.
type captured struct {
	Topic   string            `json:"channel_topic"`
	Subject string            `json:"subject"`
	Frames  [][]byte          `json:"frames"` // base64
	Payload []byte            `json:"payload"`
	Case    string            `json:"case"`
	File    string            `json:"file"`
	Value   json.RawMessage   `json:"value"`
	Extra   map[string]string `json:"-"`
}

func load(t testing.TB, name string) []captured { return golden.Lines[captured](t, "testdata", name) }

// kvPayloads returns the payloads of a capture's KV events, in order.
func kvPayloads(t testing.TB, list []captured) (out []envelope) {
	for _, c := range list {
		b := c.Payload
		if len(c.Frames) > 0 {
			var err error
			b, err = unframe(c.Frames[len(c.Frames)-1])
			if err != nil {
				t.Fatal(err)
			}
		}
		e, err := readEnvelope(b)
		if err != nil {
			t.Fatal(err)
		}
		if e.ofEvents() {
			out = append(out, e)
		}
	}
	return out
}

// checkCapture checks that every message is read, that every event is decoded by its own worker-rank's decoder and no other, and
// that each publisher sends for one worker-rank with sequence numbers that rise by one from 0.
func checkCapture(t *testing.T, list []captured) (events int, ranks map[Key]bool) {
	t.Helper()
	decoders, publishers, next := map[Key]*Decoder{}, map[uint64]Key{}, map[uint64]uint64{}
	other := &Decoder{Key: Key{1, 0}}
	ranks = map[Key]bool{}
	for _, e := range kvPayloads(t, list) {
		k, ok, _ := peek(e.Payload)
		if !ok {
			t.Fatal("no worker-rank in a message")
		}
		if old, known := publishers[e.Publisher]; known && old != k || e.Seq != next[e.Publisher] {
			t.Errorf("publisher %d speaks of %v and %v, or sent %d for %d", e.Publisher, old, k, e.Seq, next[e.Publisher])
		}
		publishers[e.Publisher], ranks[k] = k, true
		next[e.Publisher]++
		if decoders[k] == nil {
			decoders[k] = &Decoder{Key: k, BlockSize: 16}
		}
		b, err := decoders[k].Decode(e.Payload)
		if err != nil || len(b.Events) == 0 || b.Bad+b.Unknown+b.UnknownKeys > 0 {
			t.Fatalf("%v: %+v; got %d, %d, want no error, some, 0", err, b, len(b.Events), b.Bad+b.Unknown+b.UnknownKeys)
		}
		events += len(b.Events)
		for _, ev := range b.Events {
			if ev.Kind == kvevent.Stored && (len(ev.EngineHashes) != len(ev.Locals) || ev.BlockSize != 16 || ev.Tier != kvevent.GPU) {
				t.Errorf("%+v", ev)
			}
		}
		if b, err := other.Decode(e.Payload); err != nil || len(b.Events) > 0 {
			t.Errorf("another's events: got %v %v, want no error, 0 of them", b.Events, err)
		}
	}
	return events, ranks
}

func TestCaptures(t *testing.T) {
	for name, want := range map[string]int{"plane_zmq.jsonl.gz": 4, "plane_nats.jsonl.gz": 2} {
		if n, ranks := checkCapture(t, load(t, name)); n == 0 || len(ranks) != want {
			t.Errorf("%s: %d events of %d worker-ranks, want %d", name, n, len(ranks), want)
		}
	}
}

func TestConformanceWire(t *testing.T) {
	for _, name := range []string{"event_plane_zmq.jsonl", "event_plane_zmq_mm.jsonl", "event_plane_nats.jsonl"} {
		list := golden.Lines[captured](t, golden.Dir(t, "dynamo", "wire", name))
		n, ranks := checkCapture(t, list)
		t.Logf("conformance: Dynamo 1.6.1 %s: %d messages, %d events of %d worker-ranks", name, len(list), n, len(ranks))
	}
	var misc struct {
		Codec []struct {
			JSON json.RawMessage `json:"json"`
			Hex  string          `json:"msgpack_hex"`
		} `json:"router_event_codec"`
	}
	golden.JSON(t, &misc, golden.Dir(t, "dynamo", "misc.json"))
	for i, c := range misc.Codec {
		packed, err := hex.DecodeString(c.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if !same(t, packed, pack(t, string(c.JSON))) {
			t.Errorf("codec case %d differs between its two forms", i)
		}
	}
	t.Logf("conformance: Dynamo 1.6.1 codec: %d events equal in both forms", len(misc.Codec))
}

// same reports whether two payloads decode to the same, for the worker-rank of the first.
func same(t testing.TB, a, b []byte) bool {
	ka, oka, _ := peek(a)
	kb, okb, _ := peek(b)
	if !oka || !okb || ka != kb {
		t.Errorf("peeked %v %v and %v %v, want true, true, %+v", ka, oka, kb, okb, kb)
	}
	da, db := Decoder{Key: ka}, Decoder{Key: ka}
	x, err1 := da.Decode(a)
	y, err2 := db.Decode(b)
	return err1 == nil && err2 == nil && fmt.Sprintf("%+v", x) == fmt.Sprintf("%+v", y)
}

const stored = `{"worker_id":18446744073709551615,"storage_tier":"host_pinned","residency_domain":"worker","session_id":"s","event":{"event_id":7,"dp_rank":3,"data":{"stored":{"parent_hash":11,"start_position":2,"blocks":[{"block_hash":18446744073709551615,"tokens_hash":9223372036854775808,"mm_extra_info":{"mm_objects":[{"mm_hash":1,"offsets":[[0,5]]}]}}]}}}}`

// TestForms: one event alone and in a list, and everything that a release omits or adds.
func TestForms(t *testing.T) {
	k := Key{1<<64 - 1, 3}
	block := kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.CPU, HasParent: true, Parent: 11, BlockSize: 16,
		EngineHashes: []uint64{1<<64 - 1}, Locals: []uint64{1 << 63}}
	removed := kvevent.Event{Kind: kvevent.Removed, EngineHashes: []uint64{11, 12}}
	for name, c := range map[string]struct {
		text         string
		want         []kvevent.Event
		unknown, bad uint64
	}{
		"one":     {stored, []kvevent.Event{block}, 0, 0},
		"a list":  {`[` + stored + `,` + stored + `]`, []kvevent.Event{block, block}, 0, 0},
		"nothing": {`[]`, nil, 0, 0},
		"cleared": {`{"worker_id":18446744073709551615,"event":{"event_id":1,"dp_rank":3,"data":"cleared"}}`,
			[]kvevent.Event{{Kind: kvevent.Cleared}}, 0, 0},
		"removed": {`{"worker_id":18446744073709551615,"event":{"event_id":1,"dp_rank":3,"data":{"removed":{"block_hashes":[11,12]}}}}`,
			[]kvevent.Event{removed}, 0, 0},
		"removed none": {`{"worker_id":18446744073709551615,"event":{"event_id":1,"dp_rank":3,"data":{"removed":{"block_hashes":[]}}}}`,
			nil, 0, 0},
		"an unknown one": {`[{"worker_id":18446744073709551615,"event":{"event_id":1,"dp_rank":3,"data":{"grown":{"by":[1]}}}},` +
			stored + `]`, []kvevent.Event{block}, 1, 0},
		"a bad one": {`[` + stored +
			`,{"worker_id":18446744073709551615,"event":{"dp_rank":3,"data":{"stored":{"blocks":[{"block_hash":1,"tokens_hash":2},{"block_hash":1}]}}}},` + stored + `]`,
			[]kvevent.Event{block, block}, 0, 1},
		"no worker":     {`[{"event":{"data":"cleared"}},` + stored + `]`, []kvevent.Event{block}, 0, 1},
		"no data":       {`{"worker_id":18446744073709551615,"event":{"dp_rank":3}}`, nil, 0, 1},
		"another rank":  {`{"worker_id":18446744073709551615,"event":{"event_id":1,"data":"cleared"}}`, nil, 0, 0},
		"another's own": {`{"worker_id":18446744073709551615,"residency_domain":"cache_owner","event":{"event_id":1,"dp_rank":3,"data":"cleared"}}`, nil, 0, 0},
	} {
		d := Decoder{Key: k, BlockSize: 16}
		got, err := d.Decode(pack(t, c.text))
		if err != nil || len(got.Events)+len(c.want) > 0 && fmt.Sprintf("%+v", got.Events) != fmt.Sprintf("%+v", c.want) ||
			got.Unknown != c.unknown || got.Bad != c.bad {
			t.Errorf("%s: %v %+v, want %+v, %d unknown, %d bad", name, err, got, c.want, c.unknown, c.bad)
		}
	}
	for _, cut := range []string{``, "\x91", string(pack(t, stored)[:40]), "\xa1x", "\x07", stored} {
		if _, err := new(Decoder).Decode([]byte(cut)); err == nil {
			t.Errorf("%q was read: got %v, want an error", cut, err)
		}
	}
	whole := pack(t, `[`+stored+`]`)
	if _, err := new(Decoder).Decode(whole[:len(whole)-3]); err == nil {
		t.Errorf("a cut list was read: got %v, want an error", err)
	}
}

// TestUnknownKeys: a key that no release sends is counted once per event, wherever it is, and only for the decoder's worker-rank.
func TestUnknownKeys(t *testing.T) {
	for _, at := range []string{"", `"worker_id":18446744073709551615`, `"dp_rank":3`, `"start_position":2`,
		`"tokens_hash":9223372036854775808`} {
		text, want, key := stored, uint64(0), ""
		if at != "" {
			text, want, key = strings.Replace(stored, at, at+`,"future":"a secret"`, 1), 1, "future"
		}
		d := Decoder{Key: Key{1<<64 - 1, 3}, BlockSize: 16}
		if got, err := d.Decode(pack(t, text)); err != nil || len(got.Events) != 1 || got.UnknownKeys != want || got.UnknownKey != key {
			t.Errorf("behind %q: %v, %+v; got %d, want no error, 1, UnknownKeys %d, UnknownKey %q", at, err, got, len(got.Events), want, key)
		}
		if got, err := new(Decoder).Decode(pack(t, text)); err != nil || got.UnknownKeys > 0 {
			t.Errorf("behind %q, of another rank: got %v, %+v, want no error, UnknownKeys 0", at, err, got)
		}
	}
}

// pack converts JSON to MessagePack, numbers as integers.
func pack(t testing.TB, text string) []byte {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return appendAny(nil, v)
}

func appendAny(b []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		b = msgp.AppendMapHeader(b, uint32(len(v)))
		for k, e := range v {
			b = appendAny(msgp.AppendString(b, k), e)
		}
	case []any:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = appendAny(b, e)
		}
	case json.Number:
		var n uint64
		fmt.Sscan(v.String(), &n)
		b = msgp.AppendUint64(b, n)
	case string:
		b = msgp.AppendString(b, v)
	case nil:
		b = msgp.AppendNil(b)
	}
	return b
}

func TestEnvelope(t *testing.T) {
	payload := []byte{0x91, 0xff}
	b := appendAny(nil, map[string]any{"topic": "kv-events", "publisher_id": json.Number("9"), "sequence": json.Number("4"),
		"published_at": json.Number("1")})
	b[0]++ // and the payload
	b = msgp.AppendBytes(msgp.AppendString(b, "payload"), payload)
	if e, err := readEnvelope(b); err != nil || !reflect.DeepEqual(e, envelope{[]byte(topic), 9, 4, payload}) {
		t.Errorf("got %+v %v, want no error, %+v", e, err, envelope{[]byte(topic), 9, 4, payload})
	}
	for _, bad := range []string{`{"payload":[1]}`, ``, "\x80", "\x81\xa1x"} {
		if e, err := readEnvelope([]byte(bad)); err == nil {
			t.Errorf("%q: %+v; got %v, want an error", bad, e, err)
		}
	}
	for _, bad := range [][]byte{nil, {1, 0, 0, 0}, {2, 0, 0, 0, 0}, {1, 0, 0, 0, 2, 9}} {
		if _, err := unframe(bad); err == nil {
			t.Errorf("frame %v was read: got %v, want an error", bad, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range kvPayloads(f, load(f, "plane_zmq.jsonl.gz"))[:20] {
		f.Add(e.Payload)
	}
	f.Add(pack(f, stored))
	f.Add(pack(f, `[`+stored+`]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, ok, _ := peek(b)
		d := Decoder{Key: k, BlockSize: 16}
		batch, err := d.Decode(b)
		if ok && err != nil {
			t.Errorf("peeked, not decoded: %v", err)
		}
		for _, e := range batch.Events {
			if e.Kind == kvevent.Stored && len(e.Locals) != len(e.EngineHashes) {
				t.Errorf("%d locals for %d engine hashes", len(e.Locals), len(e.EngineHashes))
			}
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	for _, c := range load(f, "plane_nats.jsonl.gz")[:20] {
		f.Add(c.Payload)
		f.Add(append([]byte{1, 0, 0, 0, 2}, base64.StdEncoding.EncodeToString(c.Payload)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = unframe(b)
		_, _ = readEnvelope(b)
		new(Plane).receive("", b)
	})
}
