package mmhash

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLocal: only what lies below the directory, whatever the way there looks like.
func TestLocal(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, at string) {
		t.Helper()
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(root, "a b.png"), "picture")
	put(filepath.Join(other, "secret"), "secret")
	put(filepath.Join(root, "large"), string(make([]byte, 1<<20+1)))
	link(filepath.Join(other, "secret"), filepath.Join(root, "out"))
	link("a b.png", filepath.Join(root, "in"))
	link(root, filepath.Join(other, "back"))
	link("loop", filepath.Join(root, "loop"))
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Model{Server: Server{AllowedLocalMediaPath: root, MaxFileSizeMB: 1}}
	for _, c := range []struct {
		url, why string
		refused  bool
	}{
		{url: "file://" + root + "/a%20b.png"},
		{url: "file://" + root + "/in"},
		{url: "file://" + root + "/x/../a%20b.png"},
		{url: "file://" + other + "/back/in"},
		{url: "file://" + root + "/large", why: whyLargeFile},
		{url: "file://" + root + "/none", why: whyNoFile},
		{url: "file://" + root + "/pipe", why: whyNoFile},
		{url: "file://" + root + "/loop", why: whyNoFile},
		{url: "file://" + root, refused: true},
		{url: "file://" + root + "/out", refused: true},
		{url: "file://" + root + "/../" + filepath.Base(other) + "/secret", refused: true},
		{url: "file://" + other + "/secret", refused: true},
		{url: "file://" + root + "x/none", refused: true},
		{url: "file:///etc/passwd", refused: true},
		{url: "file://%zz", refused: true},
	} {
		src, why, err := m.local(c.url, new(Medium))
		var refused *Refused
		if errors.As(err, &refused) != c.refused || why != c.why {
			t.Errorf("%s: %q %v, want %q, refused %v", c.url, why, err, c.why, c.refused)
		}
		if c.why == "" && !c.refused {
			if file, err := src.Decode(7); err != nil || string(file) != "picture" {
				t.Errorf("%s: %q %v", c.url, file, err)
			}
		}
	}
	m.Server.AllowedLocalMediaPath = ""
	if _, _, err := m.local("file://"+root+"/in", new(Medium)); !errors.As(err, new(*Refused)) {
		t.Errorf("without a directory: %v", err)
	}
}
