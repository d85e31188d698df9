package engine

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestModelOfDevices: files of a model directory that are links to devices, pipes or sockets are refused at once.
func TestModelOfDevices(t *testing.T) {
	kinds := map[string]func(at string) error{
		"device": func(at string) error { return os.Symlink("/dev/zero", at) },
		"pipe":   func(at string) error { return syscall.Mkfifo(at, 0o600) },
		"socket": func(at string) error {
			l, err := net.Listen("unix", at)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
	}
	for _, file := range []string{"config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json",
		"chat_template.jinja", "chat_template.json", "processor_config.json", "preprocessor_config.json", "params.json"} {
		for kind, mk := range kinds {
			short, err := os.MkdirTemp("", "") // a socket's path has at most 107 bytes
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(short) })
			special := filepath.Join(short, "s")
			dir := derived(t, map[string]any{file: nil})
			if err := mk(special); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(special, filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
			loaded := make(chan error, 1)
			media, err := NewMedia(nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(media.Close)
			go func() {
				m, err := Load("m", dir, DefaultServer(), media)
				if err == nil {
					err = m.Fault()
				}
				loaded <- err
			}()
			select {
			case err := <-loaded:
				if err == nil && file != "params.json" || err != nil && !strings.Contains(err.Error(), "want a file") {
					t.Errorf("%s is a %s: got %v, want an error that says so", file, kind, err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s is a %s: got no model within two minutes, want one that does not load", file, kind)
			}
		}
	}
}
