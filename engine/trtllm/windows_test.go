package trtllm

import "testing"

// TestSeveralWindows: of a model with several attention windows only the largest is followed, so what is held is an upper bound.
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
			t.Errorf("%s: %+v, %v", payload, b, err)
		}
	}
}
