package engine

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
)

// TestConformanceDynamoRequests compares with what the real front end of Dynamo 1.6.1 computed for chat requests with images as
// data URLs: names and block hashes.
func TestConformanceDynamoRequests(t *testing.T) {
	var cases []struct {
		Request json.RawMessage `json:"chat_request"`
		Names   []string        `json:"url_hashes"`
		Blocks  []uint64        `json:"routing_block_hashes_bs16"`
	}
	golden.JSON(t, &cases, golden.Dir(t, "dynamo", "wire", "mm_requests.json"))
	shared, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	s := DefaultServer()
	s.BlockHash = "dynamo"
	m, err := Load("m", golden.Models(t, "qwen2.5-vl-7b-instruct"), s, shared)
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for i, c := range cases {
		var skeleton body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{c.Request}, &skeleton, &req); err != nil {
			t.Fatal(err)
		}
		p, err := m.Read(context.Background(), "/v1/chat/completions", "", &req)
		if err != nil {
			t.Fatalf("request %d: got %v, want no error", i, err)
		}
		var names []string
		for _, md := range p.List[0].Media {
			names = append(names, md.Name)
		}
		if !slices.Equal(names, c.Names) {
			t.Errorf("request %d: names %q, want %q", i, names, c.Names)
		}
		got := p.List[0].Locals(nil, block.Form{Size: m.Server.BlockSize}, "")
		if want := c.Blocks[:len(p.List[0].IDs)/s.BlockSize]; !slices.Equal(got, want) { // it also hashes a padded last block
			t.Errorf("request %d: blocks %d, want %d", i, got, want)
		}
		blocks += len(got)
	}
	t.Logf("conformance: Dynamo 1.6.1 chat requests: %d requests, %d block hashes equal", len(cases), blocks)
}
