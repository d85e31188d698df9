package secure

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxFile bounds a file of certificates, keys or tokens.
const maxFile = 1 << 20

// ReadFile reads a secret or another small file that a configuration names, of 1 MiB at most. A device or a pipe is refused: reading it
// may never end.
func ReadFile(path string) ([]byte, error) { return readFile(path, maxFile) }

func readFile(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s is too large (want %d bytes at most)", path, most)
	}
	return text, err
}

// Open opens a file or directory to read it. It does not wait for a pipe's writer, and refuses devices, pipes and sockets.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) {
		return nil, notFile(path)
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		f.Close()
		return nil, cmp.Or(err, notFile(path))
	}
	return f, nil
}

func notFile(path string) error {
	return fmt.Errorf("%s is a device, a pipe or a socket (want a file)", path)
}

// Dir returns a model directory's files, each of 256 MiB at most. Links may leave the directory, as those of Hugging Face's cache do.
func Dir(path string) fs.FS { return dir(path) }

type dir string

const maxModelFile = 256 << 20

func (d dir) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return Open(filepath.Join(string(d), name))
}

func (d dir) ReadFile(name string) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return readFile(filepath.Join(string(d), name), maxModelFile)
}

func (d dir) Stat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrInvalid}
	}
	return os.Stat(filepath.Join(string(d), name))
}
