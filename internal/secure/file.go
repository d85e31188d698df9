package secure

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxFile bounds a file of certificates, keys or tokens.
const maxFile = 1 << 20

// ReadFile reads a secret or another small file that a configuration names, of 1 MiB at most. A device or a pipe is refused: reading it
// may never end.
func ReadFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // to not wait for a pipe's writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil, fmt.Errorf("%s is a device or a pipe (want a file)", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is too large (want %d bytes at most)", path, maxFile)
	}
	return text, err
}
