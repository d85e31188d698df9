package bus

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Agents hash blocks, so they have to have the routers' secret (package block). It is in the metadata of a stream that has no messages:
// only who may create it can write it, which no agent may, and no answer of the server's can replace it, unlike a message.

const secretName = "sightline-block-hash-secret"

// agentSecretEvery is how often an agent looks whether the secret is still the same: a lost server comes back with another one.
const agentSecretEvery = 5 * time.Second

// shareSecret returns the deployment's secret. If no router has written one yet, own becomes it; an agent has none, and own is nil.
func shareSecret(ctx context.Context, js jetstream.JetStream,
	own *block.Secret) (secret [block.SecretBytes]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	fail := func(err error) ([block.SecretBytes]byte, error) {
		return secret,
			fmt.Errorf("the secret of the block hashes, in stream %s: %w (if NATS has users: run `sightline credentials` again, "+
				"and reload the server)", secretStream, err)
	}
	for range 2 {
		s, err := js.Stream(ctx, secretStream)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound) && own != nil:
			b := own.Bytes()
			c := jetstream.StreamConfig{Name: secretStream, Subjects: []string{secretSubject},
				Metadata: map[string]string{secretName: base64.StdEncoding.EncodeToString(b[:])},
				MaxMsgs:  1, MaxBytes: 1 << 10, MaxMsgSize: 1, Replicas: 1}
			// another router created it first
			if _, err := js.CreateStream(ctx, c); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
				return fail(err)
			}
			continue
		case err != nil:
			return fail(err)
		}
		b, err := base64.StdEncoding.DecodeString(s.CachedInfo().Config.Metadata[secretName])
		if err != nil || copy(secret[:], b) != len(secret) || len(b) != len(secret) {
			return fail(errors.New("its metadata has none (delete the stream: a router creates it again)"))
		}
		return secret, nil
	}
	return fail(errors.New("created, and not there"))
}

// SharedSecret is an agent's copy of the routers' secret. It does not change.
type SharedSecret struct {
	*block.Secret
	js  jetstream.JetStream
	log *zap.Logger
}

// AwaitSecret waits until routers have written the secret, or ctx ends.
func AwaitSecret(ctx context.Context, conn *nats.Conn, log *zap.Logger) (*SharedSecret, error) {
	js, err := jetstream.New(conn)
	pause := retry.Backoff{First: retryPause}
	for told := ""; err == nil; {
		var secret [block.SecretBytes]byte
		failed := CheckServer(conn)
		if failed == nil {
			secret, failed = shareSecret(ctx, js, nil)
		}
		if failed == nil {
			s := &SharedSecret{block.NewSecret(), js, log}
			s.Set(secret)
			return s, nil
		}
		if failed.Error() != told {
			told = failed.Error()
			log.Warn("cannot hash blocks yet; it is tried again", zap.Error(failed))
		}
		if !pause.Wait(ctx) {
			return nil, ctx.Err()
		}
	}
	return nil, err
}

// Changed returns when the routers' secret is another one, or ctx has ended.
func (s *SharedSecret) Changed(ctx context.Context) {
	for range retry.Every(ctx, agentSecretEvery) {
		if secret, err := shareSecret(ctx, s.js, nil); err == nil && secret != s.Bytes() {
			s.log.Warn("the secret of the block hashes was replaced; beginning anew")
			return
		}
	}
}
