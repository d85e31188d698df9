package mmhash

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/mmhash/media"
)

// Words of ours for local files that are not known; they are counted.
const (
	whyNoFile    = "local file that is not to be read here"
	whyLargeFile = "local file above max_file_size_mb"
)

// local reads a file:// URL, as vLLM does, only below allowed_local_media_path: symbolic links are resolved before they are
// compared, and the file is opened through the directory, so that a link exchanged in between leads nowhere. The router
// must see the workers' directory at the same path; a file that it does not see is not known, and no error.
func (m *Model) local(rawURL string, md *Medium) (src media.Source, why string, err error) {
	refused := &Refused{Status: 400, Reason: "local media path outside of allowed_local_media_path"}
	root := m.Server.AllowedLocalMediaPath
	u, bad := url.Parse(rawURL)
	if root == "" || bad != nil {
		return src, "", refused
	}
	md.Alias = xxh3.HashString(rawURL)
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return src, whyNoFile, nil
	}
	path, err := filepath.EvalSymlinks(filepath.Clean("/" + u.Host + u.Path))
	if errors.Is(err, fs.ErrNotExist) && !below(root, filepath.Clean("/"+u.Host+u.Path)) {
		return src, "", refused
	} else if err != nil {
		return src, whyNoFile, nil
	}
	if !below(root, path) {
		return src, "", refused
	}
	file, why := readBelow(root, path, int64(m.Server.MaxFileSizeMB)<<20)
	if why != "" {
		return src, why, nil
	}
	return media.File(file), "", nil
}

func below(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../")
}

func readBelow(root, path string, most int64) (file []byte, why string) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, whyNoFile
	}
	defer dir.Close()
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return nil, whyNoFile
	}
	f, err := dir.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold us up
	if err != nil {
		return nil, whyNoFile
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		return nil, whyNoFile
	case info.Size() > most:
		return nil, whyLargeFile
	}
	file = make([]byte, info.Size())
	if _, err := io.ReadFull(f, file); err != nil {
		return nil, whyNoFile
	}
	return file, ""
}
