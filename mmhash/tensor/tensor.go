// Package tensor reads from a file of embeddings how many tokens it stands for: torch.save's archive and its older stream, and
// numpy's .npy.
//
// Such files are pickles: programs for Python's unpickler, which may call anything. This unpickler calls nothing. It supports the
// opcodes that torch writes, makes tensors of torch._utils._rebuild_tensor and fails for everything else, like torch.load with
// weights_only (torch 2.13). Only a tensor's shape is read, never its values; steps, stack and memory are bounded.
package tensor

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// ErrFormat means that a file holds no embeddings in a supported form. Its text quotes nothing of the file.
var ErrFormat = errors.New("no file of embeddings (want torch.save of a tensor, or of a dictionary with mm_embeddings or image_embeds, " +
	"or .npy)")

const (
	maxPickle  = 1 << 20 // bytes of a program
	maxEntries = 4096    // files in an archive
	maxTokens  = 1 << 20
)

// Tokens returns the length of the token axis of a plain tensor, or of the tensor under mm_embeddings or image_embeds of a
// dictionary: the first of two axes, or the second of three if the first is 1.
func Tokens(file []byte) (int, error) {
	switch {
	case bytes.HasPrefix(file, []byte("\x93NUMPY")):
		shape, err := numpy(file)
		if err != nil {
			return 0, err
		}
		return axis(shape)
	case bytes.HasPrefix(file, []byte("PK\x03\x04")):
		program, err := archived(file)
		if err != nil {
			return 0, err
		}
		v, _, err := load(program)
		if err != nil {
			return 0, err
		}
		return tokens(v)
	}
	// The older form: magic number, version, system, the value, then the storages.
	for i := range 4 {
		v, n, err := load(file[:min(len(file), maxPickle)])
		switch {
		case err != nil:
			return 0, err
		case i == 0 && v != any(magic):
			return 0, ErrFormat
		case i == 3:
			return tokens(v)
		}
		file = file[n:]
	}
	return 0, ErrFormat
}

// magic is torch's MAGIC_NUMBER, 0x1950a86a20f9469cfc6c, in the form in which load returns integers beyond 64 bits.
const magic = huge("6cfc9c46f9206aa85019")

func tokens(v any) (int, error) {
	if d, ok := v.(*dict); ok {
		for _, key := range []string{"mm_embeddings", "image_embeds"} {
			v, ok = (*d)[key]
			if ok {
				break
			}
		}
	}
	if l, ok := v.(*list); ok && len(*l) == 1 {
		v = (*l)[0]
	}
	if t, ok := v.(shape); ok {
		return axis(t)
	}
	return 0, ErrFormat
}

func axis(s shape) (int, error) {
	if len(s) == 3 && s[0] == 1 {
		s = s[1:]
	}
	if len(s) != 2 || s[0] < 1 || s[0] > maxTokens || s[1] < 1 {
		return 0, fmt.Errorf("%w: %d axes", ErrFormat, len(s))
	}
	return int(s[0]), nil
}

// archived finds the program in a zip archive.
func archived(file []byte) ([]byte, error) {
	if bytes.Count(file, []byte("PK\x01\x02")) > maxEntries { // at least one for each file in it
		return nil, ErrFormat
	}
	z, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, ErrFormat
	}
	for _, f := range z.File {
		if top, rest, ok := strings.Cut(f.Name, "/"); !ok || top == "" || rest != "data.pkl" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, ErrFormat
		}
		defer r.Close()
		b, err := io.ReadAll(io.LimitReader(r, maxPickle+1))
		if err != nil || len(b) > maxPickle {
			return nil, ErrFormat
		}
		return b, nil
	}
	return nil, ErrFormat
}

var numpyShape = regexp.MustCompile(`'shape':\s*\(([0-9, ]*)\)`)

// numpy reads the header of an .npy file.
func numpy(file []byte) (out shape, err error) {
	if len(file) < 12 {
		return nil, ErrFormat
	}
	from, n := 10, int(file[8])|int(file[9])<<8
	if file[6] >= 2 {
		from, n = 12, n|int(file[10])<<16|int(file[11])<<24
	}
	m := numpyShape.FindSubmatch(file[min(from, len(file)):min(from+min(n, 1<<16), len(file))])
	if m == nil {
		return nil, ErrFormat
	}
	for f := range strings.SplitSeq(string(m[1]), ",") {
		f = strings.TrimSpace(f)
		if f == "" {
			continue
		}
		n, err := strconv.ParseInt(f, 10, 63)
		if err != nil || len(out) == 8 {
			return nil, ErrFormat
		}
		out = append(out, n)
	}
	return out, nil
}
