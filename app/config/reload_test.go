package config

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFollow: the process continues with the new live keys and the old others, which are reported.
func TestFollow(t *testing.T) {
	was, err := Parse([]byte(small + "listen: 127.0.0.1:1\nnats: {url: \"nats://a\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := Parse([]byte(small +
		"- {addr: 10.0.0.6:8000}\nlisten: 127.0.0.1:2\nmax_in_flight: 3\nmedia: {domains: [d], budget: 1s}\nindex: {max_bytes: 1GiB}\n" +
		"nats: {url: \"nats://b\", tls_ca: f}\nenvoy: {listen: \"127.0.0.1:3\", message_timeout: 1s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	live, restart, err := was.Follow(next)
	if want := []string{"listen", "nats.url", "nats.tls_ca", "index.max_bytes",
		"envoy.message_timeout"}; err != nil || !slices.Equal(restart, want) {
		t.Errorf("%v, %q want a restart", err, restart)
	}
	if live.Listen != was.Listen || live.NATS.URL != "nats://a" || live.Index.MaxBytes != was.Index.MaxBytes ||
		live.Envoy.MessageTimeout != was.Envoy.MessageTimeout ||
		len(live.Workers) != 2 || live.MaxInFlight != 3 || live.Media.Domains[0] != "d" ||
		live.Media.Budget != next.Media.Budget || live.Envoy.Listen != "127.0.0.1:3" {
		t.Errorf(`%+v, want live.Listen == %v, live.NATS.URL == "nats://a", live.Index.MaxBytes == was.Index.MaxBytes, `+
			`live.Envoy.MessageTimeout == was.Envoy.MessageTimeout, len(live.Workers) == 2, live.MaxInFlight == 3, `+
			`live.Media.Domains[0] == "d", live.Media.Budget == next.Media.Budget, live.Envoy.Listen == "127.0.0.1:3"`,
			live, was.Listen)
	}
	if _, restart, err := live.Follow(live); err != nil || len(restart) > 0 {
		t.Errorf("no change: got %q, %v, want no error, 0 of them", restart, err)
	}
}

// TestLiveDocumented: the users' page lists every key that takes effect without a restart.
func TestLiveDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Reload\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var walk func(rt reflect.Type, path string)
	walk = func(rt reflect.Type, path string) {
		for i := range rt.NumField() {
			f := rt.Field(i)
			at := path + f.Tag.Get("yaml")
			if f.Tag.Get("reload") == "live" {
				if !strings.Contains(section, "`"+at+"`") {
					t.Errorf("docs/configuration.md, Reload, does not name %s, want \"`\"+at+\"`\" in section", at)
				}
			} else if f.Type.Kind() == reflect.Struct {
				walk(f.Type, at+".")
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
}
