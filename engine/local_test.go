package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
)

// TestLocal: only files below the directory are read, whatever the path looks like.
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
	put(filepath.Join(root, "a b.png"), "image")
	put(filepath.Join(other, "secret"), "secret")
	put(filepath.Join(root, "large"), "")
	if err := os.Truncate(filepath.Join(root, "large"), maxLocalFile+1); err != nil {
		t.Fatal(err)
	}
	link(filepath.Join(other, "secret"), filepath.Join(root, "out"))
	link("a b.png", filepath.Join(root, "in"))
	link(root, filepath.Join(other, "back"))
	link("loop", filepath.Join(root, "loop"))
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	shared, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	m := &Model{rules: RulesOf("vllm", "0.32.0"), Server: Server{AllowedLocalMediaPath: root}, Media: shared}
	for _, c := range []struct {
		url, why string
		refused  bool
	}{
		{url: "file://" + root + "/a%20b.png"},
		{url: "file://" + root + "/in"},
		{url: "file://" + root + "/x/../a%20b.png"},
		{url: "file://" + other + "/back/in"},
		{url: "file://" + root + "/large", why: inexactLargeFile},
		{url: "file://" + root + "/none", why: inexactNoFile},
		{url: "file://" + root + "/pipe", why: inexactNoFile},
		{url: "file://" + root + "/loop", why: inexactNoFile},
		{url: "file://" + root, refused: true},
		{url: "file://" + root + "/out", refused: true},
		{url: "file://" + root + "/../" + filepath.Base(other) + "/secret", refused: true},
		{url: "file://" + other + "/secret", refused: true},
		{url: "file://" + root + "x/none", refused: true},
		{url: "file:///etc/passwd", refused: true},
		{url: "file://%zz", refused: true},
	} {
		src, why, err := m.local(t.Context(), 0, c.url, &Medium{Modality: "image"})
		var refused *Refused
		if errors.As(err, &refused) != c.refused || why != c.why {
			t.Errorf("%s: %q %v, want %q, refused %v", c.url, why, err, c.why, c.refused)
		}
		if c.why == "" && !c.refused {
			if file, err := src.Decode(7); err != nil || string(file) != "image" {
				t.Errorf("%s: %q %v; got %q, want no error, %q", c.url, file, err, string(file), "image")
			}
		}
	}
	m.Server.AllowedLocalMediaPath = ""
	if _, _, err := m.local(t.Context(), 0, "file://"+root+"/in", new(Medium)); !errors.As(err, new(*Refused)) {
		t.Errorf("without a directory: %v", err)
	}
	m.rules = RulesOf("trtllm", "1.3.0") // it lacks this rule, and accepts paths
	if _, why, err := m.local(t.Context(), 0, root+"/in", new(Medium)); why != inexactNoFile || err != nil {
		t.Errorf("TensorRT-LLM, without a directory: got %q %v, want %q, no error", why, err, inexactNoFile)
	}
	m.Server.AllowedLocalMediaPath = root
	for path, want := range map[string]string{root + "/a b.png": "", root + "/a%20b.png": inexactNoFile, "a b.png": inexactNoFile} {
		if src, why, _ := m.local(t.Context(), 0, path, new(Medium)); why != want {
			t.Errorf("TensorRT-LLM, %s: got %q, want %q", path, why, want)
		} else if file, err := src.Decode(7); want == "" && (err != nil || string(file) != "image") {
			t.Errorf("TensorRT-LLM, %s: %q %v", path, file, err)
		}
	}
}

// TestLocalOnce: an unchanged file is read once, and no request waits for it longer than its budget.
func TestLocalOnce(t *testing.T) {
	root := t.TempDir()
	path, long := filepath.Join(root, "a.png"), time.Now().Add(-time.Hour)
	write := func(text string, changed time.Time) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, changed, changed)); err != nil {
			t.Fatal(err)
		}
	}
	shared, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	m := &Model{Server: Server{AllowedLocalMediaPath: root}, Media: shared}
	id := func() (mmhash.ContentID, media.Source) {
		t.Helper()
		var md Medium
		src, why, _ := m.local(t.Context(), 0, "file://"+path, &md)
		if why != "" {
			t.Fatalf("got %q, want %q", why, "")
		}
		return md.Facts.ID, src
	}
	write("one", long)
	first, src := id()
	if b, err := src.Decode(3); err != nil || string(b) != "one" {
		t.Errorf("bytes of a known file: %q %v; got %q, want no error, %q", b, err, string(b), "one")
	}
	write("two", long) // all attributes are the same, so it is not read again
	if again, _ := id(); again != first {
		t.Errorf("a known file was read again: got %v, want %v", again, first)
	}
	write("six", long.Add(time.Second))
	if b, err := src.Decode(3); err == nil && len(b) != 0 {
		t.Errorf("bytes of a file that changed, under the old identity: %q", b)
	}
	changed, _ := id()
	if changed == first {
		t.Error("a changed file keeps its identity")
	}
	write("new", time.Now()) // too new to be cached
	young, _ := id()
	write("now", time.Now())
	if now, _ := id(); now == young {
		t.Error("a file that was just written was remembered")
	}
	for taken := 0; taken < maxOpenFiles; { // the last file's hand may be on its way back
		if shared.locals.places.TryTake(0, 1) {
			taken++
		}
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, why, err := m.local(ctx, 0, "file://"+path, new(Medium)); why != inexactSlowFile || err != nil {
		t.Errorf("with all hands full: got %q %v, want %q, no error", why, err, inexactSlowFile)
	}
	var full atomic.Int64
	shared.NoRoom = func(what string) {
		if what == "local files" {
			full.Add(1)
		}
	}
	for i := range maxKnownFiles + 100 {
		shared.locals.known.Add(localFile{ino: uint64(i)}, localResult{})
	}
	if n := shared.locals.known.Len(); n > maxKnownFiles || full.Load() < 100 {
		t.Errorf("%d files remembered, %d forgotten, want at most %d, at least 100", n, full.Load(), maxKnownFiles)
	}
}

// TestLocalFilesAreShared: a client whose files hang in any number does not keep another's from being read.
func TestLocalFilesAreShared(t *testing.T) {
	const hostile, victim = fair.Client(1), fair.Client(2)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.png"), square(t), 0o600); err != nil {
		t.Fatal(err)
	}
	m := loadShipped(t, func(s *Server, _ *Media) { s.AllowedLocalMediaPath = root })
	hangs := make(chan struct{})
	defer close(hangs)
	over, end := context.WithCancel(t.Context())
	end() // their requests do not wait for the result
	for range 2 * maxOpenFiles {
		inBackground(over, hostile, &m.Media.locals, nil, func() bool { <-hangs; return true })
	}
	if n := m.Media.locals.places.Taken(); n < maxOpenFiles/2 {
		t.Fatalf("only %d of the hostile client's files hang, want at least %d", n, maxOpenFiles/2)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(ask("file://"+root+"/a.png", ""))}, &s, &req); err != nil {
		t.Fatal(err)
	}
	req.Client = victim
	if ps, err := m.Read(ctx, chatPath, "", &req); err != nil || !ps.List[0].Exact {
		t.Errorf("another client's file: got %v, %+v, want no error, List[0].Exact true", err, ps)
	}
}

// TestLocalDirectoryIsMissing: a missing directory of local files is reported, because nothing in it can be read.
func TestLocalDirectoryIsMissing(t *testing.T) {
	media, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	s := DefaultServer()
	for path, told := range map[string]bool{t.TempDir(): false, filepath.Join(t.TempDir(), "gone"): true} {
		s.AllowedLocalMediaPath = path
		m, err := Load("m", "../examples/models/qwen2.5-vl", s, media)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(m.Warnings(), "\n"), "allowed_local_media_path"); got != told {
			t.Errorf("%s: told %v, want %v", path, got, told)
		}
	}
}
