package secure

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
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

// Expiry is the end of a certificate's validity.
type Expiry struct {
	Text  string // with the file and the time
	Ended bool
}

// expirySoon is how long before its end a certificate is worth a warning.
const expirySoon = 7 * 24 * time.Hour

// ExpiryOf reports whether the first certificate of a PEM file has ended or ends within a week. A file that cannot be read, which
// is reported elsewhere, does neither.
func ExpiryOf(file string, now time.Time) (e Expiry, soon bool) {
	if file == "" || file == SelfSigned {
		return Expiry{}, false
	}
	text, err := ReadFile(file)
	if err != nil {
		return Expiry{}, false
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return Expiry{}, false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.NotAfter.Sub(now) > expirySoon {
		return Expiry{}, false
	}
	e = Expiry{Text: fmt.Sprintf("the certificate %s ends at %s", file, cert.NotAfter.Format(time.RFC3339))}
	if now.After(cert.NotAfter) {
		e = Expiry{Text: fmt.Sprintf("the certificate %s ended at %s", file, cert.NotAfter.Format(time.RFC3339)), Ended: true}
	}
	return e, true
}
