package engine

import (
	"testing"

	"github.com/sightline-router/sightline/prompt/vision"
)

// TestOnlyQwen3VL: for families that are named by pixels no pads are computed.
func TestOnlyQwen3VL(t *testing.T) {
	for typ, want := range map[string]bool{"qwen3_vl": true, "qwen3_vl_moe": true, "qwen3_5": false, "qwen2_5_vl": false} {
		if got := vision.FactsOf(typ, "").ProcessorClass != ""; got != want {
			t.Errorf("images of %s are named by their bytes: got %v, want %v", typ, got, want)
		}
	}
	if m := loadShipped(t, func(s *Server, _ *Media) { s.Engine, s.EngineVersion = "sglang", "0.5.23" }); m.keys.Name != nil {
		t.Error("Qwen2.5-VL's images would be named by their bytes: got a function, want nil")
	}
}
