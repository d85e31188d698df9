package config

import (
	"regexp"
	"strings"
	"testing"
)

// TestRemoved: each former key is refused by its path, with what to do instead, beside all others, and is none of today's.
func TestRemoved(t *testing.T) {
	for path, instead := range removed {
		keys := strings.Split(path, ".")
		text, want := "1", path
		for i := len(keys) - 1; i >= 0; i-- {
			if keys[i] == "models" || keys[i] == "workers" && i == 0 {
				text = "[{" + text + "}]"
				want = strings.Replace(want, keys[i], keys[i]+"[0]", 1)
			} else if i < len(keys)-1 {
				text = "{" + text + "}"
			}
			text = keys[i] + ": " + text
		}
		mistake(t, text, want+": no longer a key: "+instead)
		if !regexp.MustCompile(`\(.*\)$`).MatchString(instead) {
			t.Errorf("%s: got %q, want what to do in parentheses at the end", path, instead)
		}
	}
	mistake(t, "models: [{name: m, classes: [{name: c, session_ids: false}]}]", "models[0].classes[0].session_ids: no longer a key: ")
	m := Model{}
	if err := m.Set("session-ids=false"); err == nil || !strings.Contains(err.Error(), "session_ids: no longer a key: ") {
		t.Errorf("got %v, want what replaces session_ids", err)
	}
}
