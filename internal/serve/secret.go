package serve

import (
	"crypto/sha256"

	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/mmhash/block"
)

// newSecret returns the secret of the block hashes: from index.key_file, else from that of the decision log, whose pseudonyms are made of
// the hashes, else a random one.
func newSecret(cfg *config.Config) (*block.Secret, error) {
	text, err := cfg.Index.Key()
	if text == nil && err == nil {
		text, err = cfg.DecisionLog.Key()
	}
	if text == nil && (cfg.NATS.Given() || len(cfg.Replicas.All(cfg.Envoy.Sightlines)) > 0) {
		return nil, err // replicas and agents have to have the same
	}
	s := block.NewSecret()
	if text != nil {
		s.Set(secretOf(text))
	}
	return s, err
}

// secretOf derives a secret from a file's content.
func secretOf(text []byte) [block.SecretBytes]byte {
	return sha256.Sum256(append([]byte("sightline block hashes\x00"), text...))
}
