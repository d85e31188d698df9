package engine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/media"
)

// Local files are named by requests through file:// URLs. The result of reading one is cached while the file's identity (device,
// inode, size, change time) stays the same, so a known file costs only its look-up. All file system calls run outside the
// request's goroutine, and the request waits for them no longer than its budget: the file may lie on a network file system that
// hangs.

// Reasons for which a local file is not known. They are counted under these names.
const (
	inexactNoFile    = "local file that is not to be read here"
	inexactLargeFile = "local file above max_file_size_mb"
	inexactSlowFile  = "local file not read within the time budget"
)

const (
	maxOpenFiles    = 16      // files opened or read at a time, by all requests
	maxWaitingFiles = 4096    // that wait for it
	maxKnownFiles   = 1 << 16 // files remembered, about 400 bytes each
	// fileSettleTime is the age below which a file's result is not cached: another write might leave the same change time.
	fileSettleTime = time.Second
)

// localFiles caches what is known of local files. Safe for concurrent use.
type localFiles struct {
	places *fair.Room // to be opened or read; a file system that hangs holds them
	known  *lru.Cache[localFile, localResult]
}

// localFile identifies one state of a file.
type localFile struct {
	path     string // links resolved
	dev, ino uint64
	size     int64
	changed  int64 // Unix nanoseconds
}

// localResult is the result of reading a file. Errors that the engine would give are cached too.
type localResult struct {
	file  localFile
	facts media.Facts
	why   string
	err   error
}

// newLocalFiles makes the cache. It calls full for each entry that is evicted for want of room.
func newLocalFiles(full func()) localFiles {
	known, _ := lru.NewWithEvict(maxKnownFiles, func(localFile, localResult) { full() }) // fails only for a size below 1
	return localFiles{fair.Shared(maxOpenFiles, maxWaitingFiles), known}
}

// inBackground runs look, a file system access, in a goroutine of its own. ok is false if ctx ended first or look panicked; a panic
// is passed to panicked. A result that comes too late serves the next request.
func inBackground[T any](ctx context.Context, c fair.Client, x *localFiles, panicked func(where string, err error),
	look func() T) (found T, ok bool) {
	if !x.places.Take(ctx, c, 1, 1) {
		return found, false
	}
	done := make(chan T, 1)
	go func() {
		defer x.places.Give(c, 1)
		defer close(done)
		if err := guard.Call(func() error { done <- look(); return nil }); err != nil {
			panicked("local file", err)
		}
	}()
	select {
	case found, ok = <-done:
		return found, ok
	case <-ctx.Done():
		return found, false
	}
}

var (
	// errNoLocal is 500: vLLM raises a RuntimeError, not a ValueError (multimodal/media/connector.py, 0.30 to 0.32).
	errNoLocal = &Refused{Status: 500, Reason: "local media without allowed_local_media_path"}
	errOutside = &Refused{Status: 400, Reason: "local media path outside of allowed_local_media_path"}
)

// local identifies the file of a file:// URL as vLLM reads it: only below allowed_local_media_path. The router must have the
// workers' directory at the same path; a file that is missing here makes the prompt inexact and is no error. The error is a
// *Refused, or says why the bytes are no image (media.Identify).
func (m *Model) local(ctx context.Context, c fair.Client, rawURL string, md *Medium) (src media.Source, why string, err error) {
	path := rawURL
	if schemeOf([][]byte{[]byte(rawURL)}) == "file" {
		u, bad := url.Parse(rawURL)
		if bad != nil {
			return src, "", errOutside
		}
		path = "/" + u.Host + u.Path
	}
	md.Alias = m.Media.Secret.Key().Link(rawURL)
	switch {
	case m.Server.AllowedLocalMediaPath == "" && m.rules.RefusesLocal:
		return src, "", errNoLocal
	case m.Server.AllowedLocalMediaPath == "", !filepath.IsAbs(path):
		return src, inexactNoFile, nil
	}
	path = strings.Clone(filepath.Clean(path)) // look may outlive the request
	l, ok := inBackground(ctx, c, &m.Media.locals, m.Media.panicked, func() localResult { return m.lookUpFile(c, path) })
	if !ok {
		return src, inexactSlowFile, nil
	}
	md.Facts = l.facts
	return media.FromLoader(func() []byte { // called only if a name is not cached
		b, _ := inBackground(ctx, c, &m.Media.locals, m.Media.panicked, func() []byte {
			if f, now := m.open(path); f != nil && now.file == l.file {
				defer f.Close()
				return contents(f, now.file.size)
			} else if f != nil {
				f.Close()
			}
			return nil
		})
		return b
	}), l.why, l.err
}

// lookUpFile opens a file and reads it unless this state of it is cached. Names are computed while the bytes are in memory.
func (m *Model) lookUpFile(c fair.Client, path string) localResult {
	f, l := m.open(path)
	if f == nil {
		return l
	}
	defer f.Close()
	if known, ok := m.Media.locals.known.Get(l.file); ok {
		return known
	}
	bytes := contents(f, l.file.size)
	if bytes == nil {
		l.why = inexactNoFile
		return l
	}
	l.facts, l.err = media.Identify(media.File(bytes))
	if l.err == nil {
		m.Media.nameAhead(c, l.facts, bytes)
	}
	after, err := f.Stat()
	if now := fileOf(l.file.path, after); err == nil && now == l.file && time.Since(after.ModTime()) > fileSettleTime {
		m.Media.locals.known.Add(l.file, l)
	}
	return l
}

// open opens a regular file. It resolves symbolic links before it compares paths and opens the file relative to the directory, so
// that a link swapped in between cannot lead outside. If f is nil, l says why.
func (m *Model) open(path string) (f *os.File, l localResult) {
	root, err := filepath.EvalSymlinks(m.Server.AllowedLocalMediaPath)
	if err != nil {
		return nil, localResult{why: inexactNoFile}
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isInside(root, path):
		return nil, localResult{err: errOutside}
	case err != nil:
		return nil, localResult{why: inexactNoFile}
	case !isInside(root, real):
		return nil, localResult{err: errOutside}
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, localResult{why: inexactNoFile}
	}
	defer dir.Close()
	rel, err := filepath.Rel(root, real)
	if err != nil {
		return nil, localResult{why: inexactNoFile}
	}
	f, err = dir.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil { // O_NONBLOCK: opening a pipe must not block
		return nil, localResult{why: inexactNoFile}
	}
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		f.Close()
		return nil, localResult{why: inexactNoFile}
	case info.Size() > maxLocalFile:
		f.Close()
		return nil, localResult{why: inexactLargeFile}
	}
	return f, localResult{file: fileOf(real, info)}
}

// maxLocalFile is the size up to which a file that a request names is read.
const maxLocalFile = 50 << 20

func fileOf(path string, info os.FileInfo) localFile {
	file := localFile{path: path}
	if info != nil {
		file.size, file.changed = info.Size(), info.ModTime().UnixNano()
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			file.dev, file.ino = uint64(s.Dev), s.Ino
		}
	}
	return file
}

func isInside(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../")
}

// contents reads size bytes of a file; nil if it has become shorter.
func contents(f *os.File, size int64) []byte {
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil
	}
	return b
}
