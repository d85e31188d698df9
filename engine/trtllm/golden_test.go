package trtllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
)

// scenario is one drained answer, and its inputs.
type scenario struct {
	ID     string
	Layout string
	Size   int      `json:"tokens_per_block"`
	IDs    []uint32 `json:"prompt_token_ids"`
	Items  []struct {
		Hash          string
		Start, Length int
		Runs          [][2]int
	}
	UUIDs map[string]string
	Chain []struct {
		Hash string `json:"block_hash"`
		N    int
	}
	Events json.RawMessage
}

// spans returns the items as a request has them.
func (s *scenario) spans() (out []block.Span) {
	for i, it := range s.Items {
		name := it.Hash
		if uuid := s.UUIDs[strconv.Itoa(i)]; uuid != "" && s.Layout == "uuid_in_hash" {
			name = uuid
		}
		if s.Layout != "no_mm_keys" {
			out = append(out, block.Span{Offset: it.Start, Length: it.Length, Name: block.Fixed().Name(inEvents(name))})
		}
	}
	return out
}

// TestConformanceEvents: each decoded answer has the hashes of a request with the prompt's tokens and items, in the order of the
// chain; after applying it to an index, the request finds what the events stored.
func TestConformanceEvents(t *testing.T) {
	var all []scenario
	golden.JSON(t, &all, golden.Dir(t, "trtllm", "events.json.gz"))
	blocks, events := 0, 0
	for _, s := range all {
		want := map[uint64]uint64{}
		var chain []uint64
		locals := block.Fixed().Locals(nil, s.IDs[:len(s.IDs)-1], block.Form{Size: s.Size}, s.spans(), block.Root{})
		for i, l := range locals {
			h, err := strconv.ParseUint(s.Chain[i].Hash, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			want[h] = l
			chain = append(chain, h)
		}
		// The goldens omit some numbers: here they are renumbered, below they are used as they are.
		var list []map[string]any
		jd := json.NewDecoder(bytes.NewReader(s.Events))
		jd.UseNumber()
		if err := jd.Decode(&list); err != nil {
			t.Fatal(err)
		}
		for i, e := range list {
			e["event_id"] = i
		}
		payload, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		batch, err := (&Decoder{Keep: true, BlockSize: s.Size}).Decode(payload)
		if err != nil || batch.Bad+batch.Unknown+batch.UnknownKeys+batch.Gaps > 0 || batch.Partial {
			t.Fatalf("%s: %v, %+v; got %d, want no error, 0, Partial false", s.ID, err, batch, batch.Bad+batch.Unknown+batch.UnknownKeys+batch.Gaps)
		}
		events += len(list)
		held := map[uint64]bool{}
		var moved []uint64
		for _, e := range batch.Events {
			switch e.Kind {
			case kvevent.Stored:
				if e.MediaUnknown != (s.Layout == "no_mm_keys") || e.BlockSize != s.Size {
					t.Errorf(`%s: media unknown %v, block size %d, want e.MediaUnknown == (s.Layout == "no_mm_keys"), e.BlockSize == s.Size`,
						s.ID, e.MediaUnknown, e.BlockSize)
				}
				for k, h := range e.EngineHashes {
					if l, ok := want[h]; !ok || l != e.Locals[k] {
						t.Errorf("%s: block %d has local hash %x, a request %x, want ok, l == e.Locals[k]", s.ID, h, e.Locals[k], l)
					}
					held[h] = true
					blocks++
				}
			case kvevent.Copied:
				moved = append(moved, e.EngineHashes...)
			case kvevent.Removed:
				for _, h := range e.EngineHashes {
					if i := slices.Index(moved, h); i >= 0 { // first from the GPU only; later, if at all, from the other tiers
						moved = slices.Delete(moved, i, i+1)
					} else {
						delete(held, h)
					}
				}
			}
		}
		leading := 0
		for leading < len(chain) && held[chain[leading]] {
			leading++
		}
		if got := found(t, payload, s.Size, locals); got != leading {
			t.Errorf("%s: a request finds %d blocks, the worker has %d, want %d", s.ID, got, leading, leading)
		}
		// The unchanged answer: where numbers are missing, everything before is dropped.
		whole := Decoder{BlockSize: s.Size}
		if _, err := whole.Decode(s.Events); err != nil {
			t.Errorf("%s: got %v, want no error", s.ID, err)
		}
	}
	t.Logf("conformance: %d answers, %d events, %d blocks equal to a request's", len(all), events, blocks)
}

// found feeds a payload into an index and returns how many leading blocks a request finds there.
func found(t *testing.T, payload []byte, size int, locals []uint64) int {
	ix := indexer.New(indexer.Options{})
	f := stream.Start(stream.Options{Source: one(payload), Decoder: &Decoder{BlockSize: size}, Sink: stream.Join(ix, indexer.SlotOptions{}),
		BlockSize: size})
	defer f.Close()
	for end := time.Now().Add(2 * time.Minute); f.Stats().Batches == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the batch was not applied")
		}
	}
	var m indexer.Matches
	ix.Match(locals, &m)
	if st := f.Stats(); st.UnknownParents+st.Refused > 0 { // short tails, which we skip, are moved and removed too
		t.Errorf("%+v: got %d, want 0", st, st.UnknownParents+st.Refused)
	}
	return m.Longest
}

// one is a source of one message.
type one []byte

func (o one) Run(ctx context.Context, f *stream.Feed) error {
	f.Offer(stream.Message{Payload: o})
	<-ctx.Done()
	return nil
}

func (one) Replay(context.Context, uint64, func(stream.Message) error) error {
	return errors.ErrUnsupported
}
