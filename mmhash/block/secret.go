package block

import (
	"crypto/rand"
	"sync/atomic"
)

// SecretBytes is the length of a deployment's secret.
const SecretBytes = 32

// Secret is a deployment's secret, and its key. It is drawn at random at the start. Processes that exchange hashes (replicas, and the
// agents of workers) need the same one: it may be replaced once, when theirs is known. Between processes with different secrets, hashes
// of equal blocks differ: no block is found, and none by mistake. Safe for concurrent use.
//
// A nil Secret has the key Fixed.
type Secret struct{ now atomic.Pointer[secretKey] }

type secretKey struct {
	Key
	secret [SecretBytes]byte
}

// NewSecret draws a secret.
func NewSecret() *Secret {
	var b [SecretBytes]byte
	_, _ = rand.Read(b[:]) // it never fails
	s := new(Secret)
	s.Set(b)
	return s
}

// Set replaces the secret, and reports whether it was another one. Hashes made under the old one have to be computed anew.
func (s *Secret) Set(b [SecretBytes]byte) (changed bool) {
	before := s.now.Swap(&secretKey{*NewKey(b[:]), b})
	return before != nil && before.secret != b
}

// Key returns the current key. A caller that makes several hashes of one prompt or message keeps it for all of them.
func (s *Secret) Key() *Key {
	if s != nil {
		if k := s.now.Load(); k != nil {
			return &k.Key
		}
	}
	return fixed
}

// Bytes returns the current secret, for other processes of the deployment.
func (s *Secret) Bytes() [SecretBytes]byte { return s.now.Load().secret }

var fixed = NewKey(nil)

// Fixed returns a key that everybody can have: for tests, recordings and tools, and never for what clients send.
func Fixed() *Key { return fixed }
