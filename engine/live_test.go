package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightline-router/sightline/body"
)

// follower runs watch with ticks that the test sends.
type follower struct {
	*testing.T
	live   *LiveModel
	beside []*LiveModel
	tick   chan time.Time
	loaded int
	errs   []error
}

// ticks sends n ticks, and returns when their looks are done.
func (f *follower) ticks(n int) {
	for range n {
		f.tick <- time.Time{}
	}
	f.tick <- time.Time{} // accepted when the previous look is done; does nothing itself
}

func (f *follower) want(loaded, errs int) {
	f.Helper()
	if f.loaded != loaded || len(f.errs) != errs {
		f.Fatalf("%d loaded and errors %v, want %d and %d", f.loaded, f.errs, loaded, errs)
	}
}

func (f *follower) render(text string) string { return f.renderBy(f.live, text) }

func (f *follower) renderBy(l *LiveModel, text string) string {
	f.Helper()
	var s body.Skeleton
	var req body.Request
	if err := errors.Join(s.Scan([][]byte{[]byte(`{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`)}),
		body.Parse(&s, &req)); err != nil {
		f.Fatal(err)
	}
	ps, err := l.Model().Read(f.Context(), "/v1/chat/completions", "", &req)
	if err != nil {
		f.Fatal(err)
	}
	return ps.List[0].Rendered
}

// follow loads a directory, also for the servers in beside, and watches it.
func follow(t *testing.T, dir string, beside ...Server) *follower {
	media, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	f := &follower{T: t, tick: make(chan time.Time)}
	f.live, err = LoadLive("m", dir, DefaultServer(), media)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range beside {
		b, err := f.live.LoadVariant(s)
		if err != nil {
			t.Fatal(err)
		}
		f.beside = append(f.beside, b)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.live.watch(ctx, f.tick, func(m *Model, err error) {
			if (m == nil) == (err == nil) {
				t.Error("want a model or an error")
			}
			if err != nil {
				f.errs = append(f.errs, err)
			} else {
				f.loaded++
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func TestReload(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, modelFiles("", "", map[string]string{}))
	f := follow(t, dir)
	old := f.live.Model()
	f.ticks(3)
	f.want(0, 0)

	template := filepath.Join(dir, "chat_template.jinja")
	put := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(template, "new {{ messages[0].content }}")
	f.ticks(2)
	f.want(1, 0)
	if got := f.render("x"); got != "new x" {
		t.Errorf("rendered %q after the change, want %q", got, "new x")
	}
	if m := f.live.Model(); m == old || m.first != old.first || m.keys != old.keys || m.Media != old.Media {
		t.Error("what was learned of images did not survive")
	}

	put(template, "{% broken") // the old model stays, the error is reported once
	f.ticks(3 * retryAfter)
	f.want(1, 1)
	if got := f.render("x"); got != "new x" {
		t.Errorf("rendered %q after a change that does not load, want %q", got, "new x")
	}
	os.Remove(filepath.Join(dir, "tokenizer.json")) // a different error
	f.ticks(3)
	f.want(1, 2)
	if !strings.Contains(f.errs[1].Error(), "no tokenizer") {
		t.Errorf("told %v, want %q in it", f.errs[1], "no tokenizer")
	}
	write(t, dir, map[string]string{"tokenizer.json": "<example>"})
	put(template, "again {{ messages[0].content }}")
	f.ticks(2)
	f.want(2, 2)
	if got := f.render("x"); got != "again x" {
		t.Errorf("rendered %q after the repair, want %q", got, "again x")
	}
	os.RemoveAll(dir)
	f.ticks(3)
	f.want(2, 3)
	if got := f.render("x"); got != "again x" {
		t.Errorf("rendered %q without a directory, want %q", got, "again x")
	}
}

// TestReloadBeside: classes of one model are reloaded together, all or none. One shares the model's files, and one has its own
// template and follows its directory itself.
func TestReloadBeside(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, modelFiles("", "", map[string]string{}))
	template := filepath.Join(dir, "chat_template.jinja")
	if err := os.WriteFile(template, []byte("one {{ messages[0].content }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	old, own := DefaultServer(), DefaultServer()
	old.EngineVersion, old.BlockSize = "0.30.0", 32
	own.ChatTemplate = filepath.Join(t.TempDir(), "own.jinja")
	if err := os.WriteFile(own.ChatTemplate, []byte("own {{ messages[0].content }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := follow(t, dir, old, own)
	want := func(first, second, third string) {
		t.Helper()
		if a, b, c := f.render("x"), f.renderBy(f.beside[0], "x"), f.renderBy(f.beside[1], "x"); a != first || b != second || c != third {
			t.Errorf("rendered %q, %q, %q; want %q, %q, %q", a, b, c, first, second, third)
		}
	}
	want("one x", "one x", "own x")
	f.beside[0].Watch(t.Context(), time.Hour, nil) // returns at once: it is a variant
	if err := os.WriteFile(template, []byte("two {{ messages[0].content }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.ticks(2)
	f.want(1, 0)
	want("two x", "two x", "own x")
	if b := f.beside[0].Model(); b.Server.EngineVersion != "0.30.0" || b.Server.BlockSize != 32 || b.first != f.live.Model().first {
		t.Error("the class beside is no longer what it was")
	}
	if err := os.WriteFile(template, []byte("{% broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.ticks(2)
	f.want(1, 1)
	want("two x", "two x", "own x")
}

// TestReloadWaitsForWriters: a file that is still being written is not read. Each write comes after a look has ended, because two
// looks that see the same file would take it as complete.
func TestReloadWaitsForWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, modelFiles("", "", map[string]string{}))
		f := follow(t, dir)
		text := "{# "
		for range 6 {
			text += "growing "
			if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			f.tick <- time.Time{}
			synctest.Wait()
		}
		f.want(0, 0)
	})
}

// TestReloadFollowsRevision: a newer commit of a Hugging Face cache is followed.
func TestReloadFollowsRevision(t *testing.T) {
	root := t.TempDir()
	files := modelFiles(repo+"snapshots/"+first+"/", repo+"blobs/", map[string]string{repo + "refs/main": first})
	modelFiles(repo+"snapshots/"+other+"/", repo+"blobs/", files)
	delete(files, repo+"snapshots/"+other+"/chat_template.jinja")
	files[repo+"snapshots/"+other+"/chat_template.jinja"] = "newer {{ messages[0].content }}"
	write(t, root, files)
	f := follow(t, filepath.Join(root, repo))
	before := f.render("x")
	write(t, root, map[string]string{repo + "refs/main": other})
	f.ticks(2)
	f.want(1, 0)
	if got := f.render("x"); got != "newer x" || before == got {
		t.Errorf("rendered %q, before %q, want %q, other than %q", got, before, "newer x", got)
	}
}
