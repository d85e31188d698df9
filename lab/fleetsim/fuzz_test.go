package fleetsim

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzReadTrace: no trace makes its reader panic; its requests are in order and have valid prompts.
func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp":1,"input_length":30,"output_length":2,"hash_ids":[1,2]}`+"\n"+
		`{"timestamp":0,"input_length":512,"output_length":0,"hash_ids":[1],"session":"s","images":[{"id":"x","offset":3,"tokens":4}]}`), 1.0)
	f.Add([]byte(`{"outcome":"refused"}`+"\n"+`{"timestamp":-1e300,"input_length":1,"hash_ids":[]}`), 0.5)
	f.Add([]byte("\x1f\x8b\x08\x00"), 1.0)
	f.Fuzz(func(t *testing.T, text []byte, speed float64) {
		if !(speed >= 0.01 && speed <= 100) {
			return
		}
		list, err := ReadTrace(bytes.NewReader(text), speed, 100)
		if err == nil && (len(list) == 0 || len(list) > 100) {
			t.Fatalf("%d requests", len(list))
		}
		for i, r := range list {
			if r.At < 0 || i > 0 && r.At < list[i-1].At {
				t.Fatalf("request %d at %v behind %v", i, r.At, list[max(i-1, 0)].At)
			}
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("%v", err)
		}
	})
}
