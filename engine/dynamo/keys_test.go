package dynamo

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt"
)

// TestMediaNames: the name by which Dynamo's events call an image.
func TestMediaNames(t *testing.T) {
	const url = "https://example.com/image.jpg"
	var skeleton body.Skeleton
	if err := skeleton.Scan([][]byte{[]byte(`{"u":"` + url + `"}`)}); err != nil {
		t.Fatal(err)
	}
	in := &prompt.MediaPart{Source: gjson.Get(skeleton.JSON(), "u")}
	marked := UUID(mmhash.ContentID{0x12, 0x34})
	if marked != "1234000000000000"+uuidMark {
		t.Fatalf("uuid %q, want %q", marked, "1234000000000000"+uuidMark)
	}
	for what, c := range map[string]struct {
		md    rules.Naming
		name  string
		key   uint64
		named bool
	}{
		"the URL":                {rules.Naming{}, "6b57e9c2a91759a6", 0x6b57e9c2a91759a6, true},
		"an injected uuid":       {rules.Naming{Item: enginehash.Item{HasUUID: true, UUID: marked}}, marked, 0x1234000000000000, true},
		"a uuid of another form": {rules.Naming{Item: enginehash.Item{HasUUID: true, UUID: "cat"}}, "", 0, false},
		"a digest of an engine":  {rules.Naming{Item: enginehash.Item{HasUUID: true, UUID: uuidMark + "1234567812345678"}}, "", 0, false},
		"the relay's URL":        {rules.Naming{Edited: true}, "", 0, false},
	} {
		md := c.md
		md.In, md.Body, md.Scheme = in, &skeleton, "http"
		nameMedium(&md)
		if md.Name != c.name || md.Key != c.key || md.Named != c.named {
			t.Errorf("%s: %q %x %v, want %q %x %v", what, md.Name, md.Key, md.Named, c.name, c.key, c.named)
		}
	}
}

// TestSalt: which of a request's cache salts Dynamo's front end passes on (observed with 1.6.1).
func TestSalt(t *testing.T) {
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
		if err := body.Read([][]byte{[]byte(text)}, &skeleton, &req); err != nil {
			t.Fatal(err)
		}
		if got := salt(gjson.Get(text, "cache_salt").Str, &req); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
