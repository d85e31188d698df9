package printable

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestHostile: nothing that a terminal obeys passes, and JSON stays what it was.
func TestHostile(t *testing.T) {
	hostile := "a\x1b[2Jb\x9bc\u009bd\u202ee\r\nf\x00 ü世\U000E0001\tg"
	for name, got := range map[string]string{"Text": Text(hostile), "Writer": func() string {
		var out strings.Builder
		if n, err := Writer(&out).Write([]byte(hostile)); n != len(hostile) || err != nil {
			t.Errorf("Write: got %d, %v, want %d", n, err, len(hostile))
		}
		return strings.NewReplacer("\n", "", "\t", "").Replace(out.String())
	}()} {
		if strings.ContainsAny(got, "\x1b\u009b\u202e\r\n\x00\t\U000E0001") ||
			!strings.Contains(got, "ü世") || !strings.Contains(got, "a\uFFFD[2Jb") {
			t.Errorf("%s: got %q, want no control character in it", name, got)
		}
	}
	raw, err := json.Marshal(map[string]string{"name": hostile})
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	got := JSON(raw)
	if err := json.Unmarshal([]byte(got), &back); err != nil || back["name"] != strings.ToValidUTF8(hostile, "\uFFFD") {
		t.Errorf("JSON: got %v, %q, want %q", err, back["name"], hostile)
	}
	if strings.ContainsAny(got, "\x1b\u009b\u202e\U000E0001") {
		t.Errorf("JSON: got %q, want no control character in it", got)
	}
}
