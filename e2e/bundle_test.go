package e2e

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sightline-router/sightline/lab"
)

// What a client sends is in no page of a running Sightline's or Envoy's that a bundle takes: not its words, keys, images' URLs,
// session or salt.
func TestBundle(t *testing.T) {
	t.Parallel()
	const token = "a-planted-token-of-this-test"
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) { keys["admin_token"] = token }
	})
	header := http.Header{"X-Session-Id": {"planted-session"}, "Authorization": {"Bearer planted-key"}, "Cookie": {"planted-cookie"}}
	for _, model := range []string{lab.ModelName, "nobody-serves-this"} {
		body := map[string]any{"model": model, "cache_salt": "planted-salt", "messages": []any{map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "text", "text": "planted-prompt"},
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": "http://127.0.0.1:9/planted-picture.png"}}}}}}
		post(t, l, body, header)
	}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	said, err := exec.Command(l.Self(), "bundle", "-c", l.ConfigFile(), file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	sizes, planted := map[string]int{}, regexp.MustCompile(`.{0,60}planted-.{0,60}`)
	for files := tar.NewReader(zipped); ; {
		h, err := files.Next()
		if err == io.EOF {
			break
		}
		text, readErr := io.ReadAll(files)
		if err != nil || readErr != nil {
			t.Fatalf("got %v %v, want no error, no error", err, readErr)
		}
		sizes[h.Name] = len(text)
		for _, found := range planted.FindAllString(string(text), -1) {
			t.Errorf("%s: %s", h.Name, found)
		}
	}
	for _, name := range []string{"config.yaml", "sightline/workers", "sightline/decisions", "sightline/metrics",
		"envoy/config_dump", "envoy/stats", "doctor.json"} {
		if sizes[name] < 100 {
			t.Errorf("%s has %d bytes; it says\n%s", name, sizes[name], said)
		}
	}
}
