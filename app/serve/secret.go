package serve

import (
	"crypto/sha256"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// newSecret returns the secret of the block hashes: from index.key_file, else from that of NATS, else a random one.
func newSecret(cfg *config.Config) (*block.Secret, error) {
	text, err := cfg.Index.Key()
	if file := cfg.NATS.Auth; text == nil && err == nil && file != "" { // an embedded server may forget it, and agents keep their state
		text, err = secure.ReadFile(file)
	}
	s := block.NewSecret()
	if text != nil {
		s.Set(secretOf(text))
	}
	return s, err
}

// rehash makes all hashes anew, because the secret was replaced by that of the other Sightlines.
func (s *sources) rehash() {
	s.log.Info("block hashes have the secret of the other Sightlines from now on; asking workers for everything again")
	s.set.Resync(func(*fleet.Slot) bool { return true }, "rehash")
}

// secretOf derives a secret from a file's content.
func secretOf(text []byte) [block.SecretBytes]byte {
	return sha256.Sum256(append([]byte("sightline block hashes\x00"), text...))
}
