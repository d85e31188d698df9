package jsonread

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// maxFile bounds a file of a model directory, except vocabularies.
const maxFile = 16 << 20

// File reads a small JSON file of a model directory into v, which stays unchanged if there is no such file. The error names the
// file.
func File(dir fs.FS, name string, v any) error {
	b, err := fs.ReadFile(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && len(b) > maxFile:
		err = fmt.Errorf("%d bytes, more than %d", len(b), maxFile)
	case err == nil:
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
