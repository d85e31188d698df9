package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/prompt"
)

// What the real frontend of Dynamo 1.6.1 computed for chat requests with pictures as data URLs: names and block hashes.
func TestConformanceDynamoRequests(t *testing.T) {
	golden, models := os.Getenv("SIGHTLINE_GOLDEN"), os.Getenv("SIGHTLINE_MODELS")
	if golden == "" || models == "" {
		t.Skip("SIGHTLINE_GOLDEN or SIGHTLINE_MODELS is not set")
	}
	text, err := os.ReadFile(filepath.Join(golden, "dynamo", "wire", "mm_requests.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Request json.RawMessage `json:"chat_request"`
		Names   []string        `json:"url_hashes"`
		Blocks  []uint64        `json:"routing_block_hashes_bs16"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	shared, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	s := DefaultServer()
	s.BlockHash = "dynamo"
	m, err := Load("m", filepath.Join(models, "qwen2.5-vl-7b-instruct"), s, shared)
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for i, c := range cases {
		var skeleton body.Skeleton
		var req body.Request
		if err := skeleton.Scan([][]byte{c.Request}); err != nil {
			t.Fatal(err)
		}
		if err := body.Parse(&skeleton, &req); err != nil {
			t.Fatal(err)
		}
		p, err := m.Read(context.Background(), "/v1/chat/completions", "", &req)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		var names []string
		for _, md := range p.List[0].Media {
			names = append(names, md.Name)
		}
		if !slices.Equal(names, c.Names) {
			t.Errorf("request %d: names %q, want %q", i, names, c.Names)
		}
		got := m.Locals(nil, &p.List[0], "")
		if want := c.Blocks[:len(p.List[0].IDs)/s.BlockSize]; !slices.Equal(got, want) { // it also hashes a padded last block
			t.Errorf("request %d: blocks %d, want %d", i, got, want)
		}
		blocks += len(got)
	}
	t.Logf("conformance: Dynamo 1.6.1 chat requests: %d requests, %d block hashes equal", len(cases), blocks)
}

// By which name Dynamo's events know a picture.
func TestDynamoNames(t *testing.T) {
	m := &Model{Server: DefaultServer()}
	m.Server.BlockHash = "dynamo"
	const url, mark = "https://example.com/image.jpg", "000000000000000000000000000000000000000000000000"
	var skeleton body.Skeleton
	if err := skeleton.Scan([][]byte{[]byte(`{"u":"` + url + `"}`)}); err != nil {
		t.Fatal(err)
	}
	source := gjson.Get(skeleton.JSON(), "u")
	in := &prompt.Medium{Source: source}
	marked := dynamo.UUID(mmhash.ContentID{0x12, 0x34})
	if marked != "1234000000000000"+mark {
		t.Fatalf("uuid %q", marked)
	}
	for what, c := range map[string]struct {
		md    Medium
		item  name.Item
		name  string
		key   uint64
		named bool
	}{
		"the URL":                {Medium{Key: 5}, name.Item{}, "6b57e9c2a91759a6", 0x6b57e9c2a91759a6, true},
		"an injected uuid":       {Medium{Key: 5}, name.Item{HasUUID: true, UUID: marked}, marked, 0x1234000000000000, true},
		"a uuid of another form": {Medium{Key: 5}, name.Item{HasUUID: true, UUID: "cat"}, "", 5, false},
		"a digest of an engine":  {Medium{Key: 5}, name.Item{HasUUID: true, UUID: mark + "1234567812345678"}, "", 5, false},
		"a video's URL":          {Medium{Key: 5, Modality: "video"}, name.Item{}, "", 5, false},
		"a video's uuid":         {Medium{Key: 5, Modality: "video"}, name.Item{HasUUID: true, UUID: marked}, "", 5, false},
		"the relay's URL":        {Medium{Key: 5, edits: []body.Edit{{}}}, name.Item{}, "", 5, false},
	} {
		md := c.md
		md.Modality = cmp.Or(md.Modality, "image")
		m.dynamoName(&md, &skeleton, in, c.item)
		if md.Name != c.name || md.Key != c.key || md.Named != c.named {
			t.Errorf("%s: %q %x %v, want %q %x %v", what, md.Name, md.Key, md.Named, c.name, c.key, c.named)
		}
		if what == "the URL" && md.Alias != 5 {
			t.Errorf("alias %d, want the content's key", md.Alias)
		}
	}
}

// Which of a request's cache salts Dynamo's front end hands on (seen on 1.6.1).
func TestDynamoSalt(t *testing.T) {
	for text, want := range map[string]string{
		`{"messages":[]}`:                                                    "",
		`{"messages":[],"cache_salt":"body"}`:                                "body",
		`{"messages":[],"nvext":{"cache_salt":"own"}}`:                       "own",
		`{"messages":[],"cache_salt":"body","nvext":{"cache_salt":"own"}}`:   "own",
		`{"messages":[],"cache_salt":"body","nvext":{"cache_salt":""}}`:      "body",
		`{"messages":[],"cache_salt":"body","nvext":{"cache_salt":7}}`:       "body",
		`{"messages":[],"cache_salt":"body","nvext":"cache_salt"}`:           "body",
		`{"messages":[],"nvext":{"cache_salt":"\u006fwn"},"cache_salt":"b"}`: "own",
	} {
		var skeleton body.Skeleton
		var req body.Request
		if err := skeleton.Scan([][]byte{[]byte(text)}); err != nil {
			t.Fatal(err)
		}
		if err := body.Parse(&skeleton, &req); err != nil {
			t.Fatal(err)
		}
		if got := dynamoSalt(gjson.Get(text, "cache_salt").Str, &req); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
