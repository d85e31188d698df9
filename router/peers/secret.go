package peers

import (
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/mmhash/block"
)

// Replicas share block hashes, so they have to have one secret (package block). Each state names its sender's key. Where two differ, one
// replica asks the other for its secret and takes it over:
//
//	a secret of the configuration, or of NATS    wins over others, and is never replaced
//	the older secret, by more than sameAge       wins over the younger one: its replicas know more
//	the smaller ID of a key                      wins over the larger one
//
// Until then their hashes match nothing of each other's.

const (
	sameAge     = 100 * time.Millisecond // more than a message takes; a replica that is older by more may know what a younger one cannot
	secretEvery = time.Minute            // the shortest time between two replacements, except in a replica's first minute

	flagFixed = 1
)

// Secret says which secret a replica has. Set it before Run.
type Secret struct {
	*block.Secret        // nil: none is shared
	Fixed         bool   // it is never replaced
	Replaced      func() // called, in a goroutine of its own, after it was replaced by another replica's
}

// secretState is what an Exchange knows of the others' secrets; its mutex guards it.
type secretState struct {
	askedOf    string    // replica that was asked for its secret
	wantedBorn time.Time // when that was drawn, by our clock
	replacedAt time.Time
	bornAt     time.Time // when the secret was drawn, by our clock; zero: when we started
	logged     bool
}

// key is what a state says of its sender's key.
type key struct {
	id    uint64
	flags byte
	age   time.Duration // of the secret
}

func (x *Exchange) key() (k key) {
	k.id = x.Secret.Key().ID
	if x.Secret.Fixed {
		k.flags |= flagFixed
	}
	k.age = time.Since(x.startedAt)
	if !x.secrets.bornAt.IsZero() {
		k.age = time.Since(x.secrets.bornAt)
	}
	return k
}

// wins reports whether a replica with key k keeps it, rather than one with key other.
func (k key) wins(other key) bool {
	if k.flags != other.flags {
		return k.flags > other.flags
	}
	if apart := k.age - other.age; apart.Abs() > sameAge {
		return apart > 0
	}
	return k.id < other.id
}

// sawKey compares a replica's key with ours, and reports whether to ask for its secret. x.mu is held.
func (x *Exchange) sawKey(name string, theirs key) (ask bool) {
	if x.Secret.Secret == nil || theirs.id == x.Secret.Key().ID {
		return false
	}
	if x.Secret.Fixed {
		if theirs.flags&flagFixed != 0 && !x.secrets.logged {
			x.secrets.logged = true
			x.log.Error("another replica hashes blocks with another secret: nothing that it shares is found here, nor ours "+
				"there (want one index.key_file in all replicas, or none, and the same NATS)",
				zap.String("replica", name))
		}
		return false
	}
	if !theirs.wins(x.key()) {
		return false
	}
	// Replicas that start together may hear the one with the oldest secret last.
	if time.Since(x.startedAt) > secretEvery && time.Since(x.secrets.replacedAt) < secretEvery {
		return false
	}
	x.secrets.askedOf, x.secrets.wantedBorn = name, time.Now().Add(-theirs.age)
	return true
}

// takeSecret takes over another replica's secret, if it was asked for it. x.mu is held.
func (x *Exchange) takeSecret(name string, b [block.SecretBytes]byte) {
	if x.Secret.Secret == nil || x.Secret.Fixed || x.secrets.askedOf != name {
		return
	}
	x.secrets.askedOf, x.secrets.replacedAt, x.secrets.bornAt = "", time.Now(), x.secrets.wantedBorn
	if x.Secret.Set(b) && x.Secret.Replaced != nil {
		go x.Secret.Replaced()
	}
}
