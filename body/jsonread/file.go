package jsonread

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// maxFile bounds a file of a model directory, except vocabularies.
const maxFile = 16 << 20

// File reads a small JSON file of a model directory into v, which stays unchanged if there is no such file. The error names the
// file.
func File(dir fs.FS, name string, v any) error {
	b, err := readFile(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && len(b) > maxFile:
		err = fmt.Errorf("more than %d bytes", maxFile)
	case err == nil:
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readFile reads one byte more than a file may have, at most.
func readFile(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}
