package dynamo

import "testing"

// NVIDIA Dynamo 1.6.1, hash_mm_identifier of a URL.
func TestNames(t *testing.T) {
	const url, want = "https://example.com/image.jpg", "6b57e9c2a91759a6"
	if got := Name(URLKey(url)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	key, err := DataURLKey([][]byte{[]byte(`https:\/`), []byte(`\/example.com/image`), []byte(`\u002ejpg`)})
	if got := Name(key); err != nil || got != want {
		t.Errorf("in pieces, with escapes: %s %v, want %s", got, err, want)
	}
}
