package trtllm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// TestSeveralWindows: of a model with several attention windows not all that a hit needs is known, so what is held is an upper bound.
func TestSeveralWindows(t *testing.T) {
	event := func(id, window string) string {
		return `{"event_id":` + id + `,"window_size":` + window + `,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":1` + id +
			`,"tokens":[{"token_id":1,"token_extra_id":0},{"token_id":2,"token_extra_id":0}],"cache_level":0}]}}`
	}
	for payload, want := range map[string]bool{
		"[" + event("0", "4096") + "," + event("1", "4096") + "]": false,
		"[" + event("0", "4096") + "," + event("1", "128") + "]":  true,
		"[" + event("0", "128") + "," + event("1", "4096") + "]":  true,
	} {
		d := Decoder{BlockSize: 2}
		b, err := d.Decode([]byte(payload))
		if err != nil || b.Bad > 0 || len(b.Events) == 0 || b.UpperBound != want {
			t.Errorf("%s: %+v, %v; got %d, want no error, Bad 0, some, UpperBound %v", payload, b, err, len(b.Events), want)
		}
	}
}

// TestLayerGroups: of V2's layer groups those with a smaller window follow by their hashes. What is found of a prompt ends where its last
// window is held, and is an upper bound.
func TestLayerGroups(t *testing.T) {
	id := 0
	event := func(group, window int, data string) string {
		id++
		return fmt.Sprintf(`{"event_id":%d,"window_size":%d,"layer_group_id":%d,"data":%s}`, id-1, window, group, data)
	}
	blocks := func(hashes ...int) string {
		list := []string{}
		for _, h := range hashes {
			list = append(list, fmt.Sprintf(`{"block_hash":%d,"tokens":[{"token_id":%d},{"token_id":0}],"cache_level":0}`, h, h))
		}
		return `{"type":"stored","parent_hash":null,"blocks":[` + strings.Join(list, ",") + `]}`
	}
	const created = `{"type":"created","num_blocks_per_cache_level":[9]}`
	const part = `{"type":"stored","parent_hash":4,"blocks":[{"block_hash":5,"tokens":[{"token_id":5}],"cache_level":0}]}`
	d, ix := Decoder{BlockSize: 2}, indexer.New(indexer.Options{})
	slot := ix.Join(indexer.SlotOptions{})
	locals := block.Fixed().Locals(nil, []uint32{1, 0, 2, 0, 3, 0, 4, 0, 9}, block.Form{Size: 2}, nil, block.Root{})
	for _, c := range []struct {
		payload []string
		found   uint32
	}{
		{[]string{event(0, 5, created), event(1, 4096, created)}, 0},
		{[]string{event(0, 5, blocks(1, 2, 3, 4)), event(1, 4096, blocks(1, 2, 3, 4)), event(0, 5, part), event(1, 4096, part)}, 4},
		{[]string{event(0, 5, `{"type":"updated","block_hash":4,"cache_level":{"old_value":0,"new_value":1}}`)}, 4}, // it is brought back
		{[]string{event(0, 5, `{"type":"removed","block_hashes":[4]}`)}, 3},
		{[]string{event(0, 5, `{"type":"removed","block_hashes":[2]}`)}, 1},
		{[]string{event(1, 4096, `{"type":"removed","block_hashes":[4]}`), event(0, 5, blocks(1, 2, 3, 4))}, 3},
	} {
		b, err := d.Decode([]byte("[" + strings.Join(c.payload, ",") + "]"))
		if err != nil || b.Bad+b.Gaps > 0 || !b.UpperBound {
			t.Fatalf("%s: %+v, %v; got %d, want no error, 0, UpperBound true", c.payload, b, err, b.Bad+b.Gaps)
		}
		for i := range b.Events {
			switch e := &b.Events[i]; e.Kind {
			case kvevent.Stored:
				err = ix.Store(slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals)
			case kvevent.Removed:
				_, err = ix.Remove(slot, e.Tier, e.EngineHashes)
			case kvevent.GroupStored:
				_, err = ix.StoreGroup(slot, 2, e)
			case kvevent.GroupRemoved:
				_, err = ix.RemoveGroup(slot, e.Group, e.EngineHashes)
			case kvevent.Cleared:
				err = ix.Clear(slot)
			}
			if err != nil {
				t.Fatalf("%+v: got %v, want no error", b.Events[i], err)
			}
		}
		m := indexer.Matches{Most: 4}
		ix.Match(locals, &m)
		found := uint32(0)
		if len(m.Slots) > 0 {
			found = m.Slots[0].Blocks
		}
		if found != c.found {
			t.Errorf("%s: %d blocks found, want %d", c.payload, found, c.found)
		}
	}
}
