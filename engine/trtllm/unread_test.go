package trtllm

import "testing"

// TestUnread: an answer of which no event can be read says why; one event that can be read, or of another rank, is enough.
func TestUnread(t *testing.T) {
	for text, want := range map[string]string{
		`[{"event_id": 0, "data": {"type": "cached"}}, {"event_id": 1, "data": {"type": "cached"}}]`: errUnknownTypes.Error(),
		`[{"event": "stored"}]`: "no data",
		`["stored"]`:            "want an object",
		`[]`:                    "",
		`[{"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [1]}}, {"event_id": 1, "data": {"type": "cached"}}]`: "",
		`[{"event_id": 0, "attention_dp_rank": 1, "data": {"type": "cached"}}]`:                                                          "",
	} {
		b, err := new(Decoder).Decode([]byte(text))
		got := ""
		if b.Unread != nil {
			got = b.Unread.Error()
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}
